"""Queues: records in partitions, each with its offset, and the cursors that record the progress of every reader.

This room decides which records a queue keeps and which it deletes: retention, limits and dead letters. It does not
know Sequences, peers or handlers. Open ``queue`` first: it composes the parts of a queue. The parts do not know the
queue that they belong to.
"""
