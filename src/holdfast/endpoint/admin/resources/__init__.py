"""Resources that operators inspect and change, one file for each kind: queues, Sequences, outboxes and so on.

Each file owns the routes of its kind. It knows no other file here. Open ``queues`` first: the others are similar.
"""
