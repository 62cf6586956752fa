"""One outbound Sequence: which numbers may be transmitted now, and what an acknowledgement of them means.

This room owns the Sequence's state, its window, its round trips and its saved state. It knows no queue, no record's
body and no other Sequence. Open ``source`` first: it has the states, and composes the parts. Each part owns what its
name says, and knows nothing of the whole.
"""
