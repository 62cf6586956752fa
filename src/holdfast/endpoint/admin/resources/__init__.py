"""What operators see and change, one file for each kind of thing: queues, Sequences, outboxes, forwarders and so on.

Each file owns the routes of its kind. It knows no other file here. Open ``queues`` first: the others are alike.
"""
