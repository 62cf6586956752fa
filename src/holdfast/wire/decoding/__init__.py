"""From bytes to the core's messages: one complete reader, and two quicker ways that must agree with it.

This room owns what is refused and why. It knows nothing of how envelopes are written. Open ``envelopes`` first;
``fast`` and ``forms`` leave to it whatever they do not know.
"""
