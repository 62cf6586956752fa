"""Handlers: when a handler is called with which message, what its result causes, and when it is called again.

This room owns the cursor of the handlers and the order of their calls. It calls no handler itself: the shell does, and
reports the outcome. It knows no outbound Sequence. Open ``delivery`` first.
"""
