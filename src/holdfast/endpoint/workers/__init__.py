"""Several processes that serve one address: which one has a Sequence, and how a connection gets there.

This room owns the supervisor, the neighbours' sockets and the owner of each Sequence. It knows no message beyond its
Identifier. Open ``supervisor`` first.
"""
