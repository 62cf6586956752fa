"""One outbound Sequence: which numbers it may transmit now, and what an acknowledgement of them means.

This room owns the Sequence's state, its window, its round trips and its saved state. It does not know queues, the
bodies of records or other Sequences. Open ``source`` first: it has the states and composes the parts. The parts do not
know the source.
"""
