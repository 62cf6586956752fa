"""Messages protected by a symmetric key: the SymmetricBinding of WS-SecurityPolicy.

A client makes a key for each message, encrypts it for the certificate of the service, and signs and encrypts the
message with it. A user name in the message says who the client is, or a certificate that signs the message's signature.
Or both sides share the key of a token of WS-SecureConversation. This room owns the keys of such messages, their
signatures, and the processors of both sides. It knows no password and issues no token: those are ``username_token``'s
and ``sessions``'. Open ``symmetric_binding`` first, then ``protected_message``, ``message_keys`` and ``endorsement``.
"""
