"""Queues: records in partitions, each with its offset, and the cursors that record the progress of every reader.

This room owns the decision which records a queue keeps and which it deletes: retention, limits and dead letters. It
knows no Sequence, no peer and no handler. Open ``queue`` first: it composes the parts of a queue. The parts do not
know the queue that they belong to.
"""
