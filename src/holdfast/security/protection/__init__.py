"""How messages with X.509 certificates are protected, as users set it and as policies state it.

This room owns the settings of encryption, the choice of a peer's certificate, and the assertions of both. It knows no
message and no private key: those are ``x509``'s. Open ``encryption_settings`` first.
"""
