"""Sending for sources and destinations: HTTP posts, pauses, and the errors when sending stops.

This room owns the HTTP of transmissions, and the listener for acknowledgements. When a message is transmitted is the
core's decision. Open ``sender`` first.
"""
