"""Envelopes at an endpoint: every one passes here, on its way in and out.

This room owns decoding in a thread, processors, what a handler sees as a message, and spans. It knows no Sequence and
no store. Open ``envelopes`` first, then ``processors``.
"""
