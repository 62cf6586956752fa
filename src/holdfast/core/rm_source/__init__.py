"""One outbound Sequence: which numbers may be transmitted now, and what an acknowledgement of them means.

This room owns the Sequence's state, its window, its round trips and its saved state. It knows no queue, no record's
body and no other Sequence. Open ``source`` first.
"""
