"""The receiving half: inbound Sequences, and which queue or peer their messages go to.

This room owns which application messages are accepted, when they are acknowledged, and which reply answers which
request. It knows no handler and no forwarder. Open ``acceptance`` first, then ``inbound``; ``inbound_sequences`` finds
the Sequences for both. One Sequence is in ``rm_destination``.
"""
