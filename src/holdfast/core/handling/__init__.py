"""Handlers: when one is called with which message, what its result does, and when it is called again.

This room owns the cursor of the handlers and its order. It calls nothing: the shell calls the handler and says what
came of it. It knows no outbound Sequence. Open ``delivery`` first.
"""
