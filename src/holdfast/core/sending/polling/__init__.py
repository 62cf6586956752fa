"""Peers that poll with MakeConnection: what waits for them, and how a poll is answered.

This room owns which message a poll gets. It does not know who may poll for which address. Open ``mailboxes`` first.
"""
