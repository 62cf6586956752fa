"""WS-Security for reliable messages: who sent a message, and when.

This room owns the Security header: UsernameToken and Timestamp (OASIS WSS SOAP Message Security and UsernameToken
Profile 1.1), which a source writes and a destination checks, as processors of the endpoint; the tokens of
WS-SecureConversation, which a destination issues and a source requests (``conversation``), and the signatures made with
them; and messages signed by X.509 certificates and encrypted for them, which both sides write and check. It knows no
rule of the protocol and no socket. Open ``username_token`` first; for certificates ``x509``, then
``signed_message`` and ``encryption``.
"""
