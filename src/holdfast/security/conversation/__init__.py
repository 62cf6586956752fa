"""The client's side of WS-SecureConversation: a source requests a token with its user name, and signs with its key.

This room owns the requests for tokens, the file in which a source keeps its tokens, and the processor that uses both.
It knows nothing of issuing: that is ``sessions``. Open ``secure_conversation`` first.
"""
