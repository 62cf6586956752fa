"""The server's half of HTTP: connections that bring requests, and the answers that need no handler.

This room owns listeners, their limits, TLS handshakes and refusals. It knows no client. Open ``server`` first, then
``connection``; ``asgi`` serves the same handlers inside another server.
"""
