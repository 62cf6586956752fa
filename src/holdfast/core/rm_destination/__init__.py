"""One inbound Sequence: which numbers it accepts, holds, releases and acknowledges.

This room owns the Sequence's state, the progress of its replies and its saved state. It does not know stores, queues or
other Sequences. Open ``destination`` first: it has the states. The parts do not know it.
"""
