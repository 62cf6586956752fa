"""Sending for sources and destinations: HTTP posts, pauses, and the errors when sending stops.

This room owns the HTTP of transmissions, and the listener for acknowledgements. It knows no rule of
the protocol: the core decides when a message is transmitted. Open ``sender`` first.
"""
