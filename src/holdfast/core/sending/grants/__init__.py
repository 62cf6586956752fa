"""Grants: how a Sequence is created at a destination, and which of its grants can be used.

This room owns CreateSequence, its repeats and its refusals. It knows no message of an application: an outbox says when
it needs a Sequence. Open ``creation`` first.
"""
