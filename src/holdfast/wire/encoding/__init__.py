"""From the core's messages to bytes: envelopes of every version, and checks of an application's content.

This package owns the envelope's frame. It knows no connection and no store. Open ``envelopes`` first; ``outgoing``
checks bodies.
"""
