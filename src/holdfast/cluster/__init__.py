"""A cluster of brokers: which node serves which partition now.

This room owns membership: the leases of nodes, the ownership of partitions, and the view of both that a node's
processes work with. It knows no message, no Sequence and no HTTP. Open ``view`` first, then ``membership``, which
decides; ``rows`` has what it decides on.
"""
