"""What a source and a destination both need to send: posting, pauses, and what is told when sending stops.

This room owns the HTTP of transmissions, and the listener for acknowledgements. When a message is transmitted is the
core's decision. Open ``sender`` first.
"""
