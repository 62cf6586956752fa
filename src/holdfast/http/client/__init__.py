"""The client's half of HTTP: requests over kept connections, directly or through a proxy.

This room owns the pool of connections, its limits, and the memory for large answers. It knows no server. Open
``client`` first, then ``pool``.
"""
