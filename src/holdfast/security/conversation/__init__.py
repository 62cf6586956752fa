"""WS-SecureConversation: tokens that a source requests with its user name, and a destination issues and checks.

This room owns both sides: the requests for tokens, and the file in which a source keeps them; the tokens that were
issued, and what they prove. It knows no password: ``username_token`` checks it. Open ``secure_conversation`` first for
a source, and ``sessions`` for a destination.
"""
