"""The protocol, sans-IO: no clock, randomness, thread, socket or XML. ``now`` is always an argument."""
