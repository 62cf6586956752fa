"""WS-MakeConnection, both roles: what waits for peers that poll, and when this side polls.

This room owns which message a poll gets, and when a poll leaves. It does not know who may poll for which address. Open
``mailboxes`` first for peers that poll, and ``poller`` for the polls of this side.
"""
