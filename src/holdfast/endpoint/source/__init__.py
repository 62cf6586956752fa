"""The source: the public class of clients that send reliably, and of those that wait for replies.

This room owns calls of the application: sends that wait, replies, the store's owner, a WSDL's demands. It knows no
destination. Open ``source`` first; ``sync`` is the same for programs without an event loop.
"""
