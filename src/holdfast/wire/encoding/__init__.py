"""From the core's messages to bytes: envelopes of every version, and checks of what a caller wants to send.

This room owns the frames. It knows no connection and no store. Open ``envelopes`` first; ``outgoing`` checks bodies.
"""
