"""SAML tokens: what an issuer says about the sender of a message (SAML Token Profile 1.1).

This room owns the assertions of SAML 1.1 and 2.0 as typed values, the check of their issuer's signature, and the two
processors that send and check them. It knows no issuer's protocol: it requests no assertion and makes none. Open
``saml_token`` first, then ``assertion``.
"""
