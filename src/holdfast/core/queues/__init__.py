"""Queues: records in partitions, each with its offset, and the cursors that say who has passed what.

This room owns what a queue keeps and deletes: retention, limits and dead letters. It knows no Sequence, no peer and
no handler. Open ``queue`` first: it composes the parts of a queue, each of which owns what its name says and knows
nothing of the whole.
"""
