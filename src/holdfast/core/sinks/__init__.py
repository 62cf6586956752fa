"""Sinks: batches of rows from writers outside, staged, and published once.

This room owns which batch of a writer comes next and when its rows enter their queues. It knows no Sequence. Open
``sink`` first, then ``staging``; ``parts`` has the staged rows, and ``moves`` brings them into their queues.
"""
