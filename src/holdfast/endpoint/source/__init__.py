"""The source: the public class of clients that send reliably and wait for replies.

This room owns calls of the application: waiting sends, replies, the store's owner, the requirements of a WSDL. It knows
no destination. Open ``source`` first; ``sync`` is the same for programs without an event loop.
"""
