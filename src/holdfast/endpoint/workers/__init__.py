"""Several processes that serve one address: which one has a Sequence, and how a connection gets there.

This room owns the supervisor, the neighbours' sockets, the owner of each Sequence and the table of granted Identifiers.
It knows no message beyond its Identifier. Open ``supervisor`` first.
"""
