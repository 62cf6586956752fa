"""Names of WS-Security: namespaces, types and fault codes. Owns constants only."""

from __future__ import annotations

from typing import Final, Literal

_OASIS: Final = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"
WSSE: Final = _OASIS + "wssecurity-secext-1.0.xsd"
WSU: Final = _OASIS + "wssecurity-utility-1.0.xsd"
PASSWORD_TEXT: Final = _OASIS + "username-token-profile-1.0#PasswordText"
PASSWORD_DIGEST: Final = _OASIS + "username-token-profile-1.0#PasswordDigest"
BASE64: Final = _OASIS + "soap-message-security-1.0#Base64Binary"
_X509: Final = _OASIS + "x509-token-profile-1.0#"
X509_V3: Final = _X509 + "X509v3"
SUBJECT_KEY_IDENTIFIER: Final = _X509 + "X509SubjectKeyIdentifier"
WSSE11: Final = "http://docs.oasis-open.org/wss/oasis-wss-wssecurity-secext-1.1.xsd"
_WSS11: Final = "http://docs.oasis-open.org/wss/oasis-wss-soap-message-security-1.1#"
THUMBPRINT: Final = _WSS11 + "ThumbprintSHA1"
ENCRYPTED_KEY: Final = _WSS11 + "EncryptedKey"
ENCRYPTED_KEY_SHA1: Final = _WSS11 + "EncryptedKeySHA1"
SIGNATURE_CONFIRMATION: Final = f"{{{WSSE11}}}SignatureConfirmation"
STR_TRANSFORM: Final = _OASIS + "soap-message-security-1.0#STR-Transform"

SAML_2: Final = "urn:oasis:names:tc:SAML:2.0:assertion"
SAML_1: Final = "urn:oasis:names:tc:SAML:1.0:assertion"
ASSERTIONS: Final = {f"{{{SAML_2}}}Assertion": "2.0", f"{{{SAML_1}}}Assertion": "1.1"}
"""Name of an assertion -> its version. SAML 1.1 has the namespace of 1.0."""
ENCRYPTED_ASSERTION: Final = f"{{{SAML_2}}}EncryptedAssertion"
ASSERTION_IDS: Final = {"2.0": "ID", "1.1": "AssertionID"}
"""Version -> the attribute with an assertion's name."""
_SAML_PROFILE: Final = "http://docs.oasis-open.org/wss/oasis-wss-saml-token-profile-1."
ASSERTION_NAMES: Final = {"2.0": f"{_SAML_PROFILE}1#SAMLID", "1.1": f"{_SAML_PROFILE}0#SAMLAssertionID"}
"""Version -> the type of the KeyIdentifier that names an assertion."""
ASSERTION_TYPES: Final = {"2.0": f"{_SAML_PROFILE}1#SAMLV2.0", "1.1": f"{_SAML_PROFILE}1#SAMLV1.1"}
"""Version -> the type of an assertion as a token."""

SECURITY: Final = f"{{{WSSE}}}Security"
USES_SEQUENCE_STR: Final = "{http://docs.oasis-open.org/ws-rx/wsrm/200702}UsesSequenceSTR"

TRUST_2005: Final = "http://schemas.xmlsoap.org/ws/2005/02/trust"
CONVERSATION_2005: Final = "http://schemas.xmlsoap.org/ws/2005/02/sc"
TRUST_1_3: Final = "http://docs.oasis-open.org/ws-sx/ws-trust/200512"
CONVERSATION_1_3: Final = "http://docs.oasis-open.org/ws-sx/ws-secureconversation/200512"
CONVERSATIONS: Final = (CONVERSATION_2005, CONVERSATION_1_3)
NEGOTIATIONS: Final = (f"{TRUST_2005}/RST/Issue", f"{TRUST_1_3}/RST/Issue")
"""Actions with which a client of WCF in the security mode Message negotiates a token."""

DS: Final = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE_C14N: Final = "http://www.w3.org/2001/10/xml-exc-c14n#"
EXCLUSIVE_C14N_WITH_COMMENTS: Final = EXCLUSIVE_C14N + "WithComments"
RSA_SHA1: Final = DS + "rsa-sha1"
RSA_SHA256: Final = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"
HMAC_SHA1: Final = DS + "hmac-sha1"
HMAC_SHA256: Final = "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256"
SHA1: Final = DS + "sha1"
SHA256: Final = "http://www.w3.org/2001/04/xmlenc#sha256"

XENC: Final = "http://www.w3.org/2001/04/xmlenc#"
XENC11: Final = "http://www.w3.org/2009/xmlenc11#"
RSA_OAEP_MGF1P: Final = XENC + "rsa-oaep-mgf1p"
RSA_OAEP: Final = XENC11 + "rsa-oaep"
CIPHERS: Final = {
    "aes256-cbc": XENC + "aes256-cbc",
    "aes128-cbc": XENC + "aes128-cbc",
    "aes256-gcm": XENC11 + "aes256-gcm",
    "aes128-gcm": XENC11 + "aes128-gcm",
}
"""Cipher -> its URI."""
ENCRYPTED_HEADER: Final = f"{{{WSSE11}}}EncryptedHeader"

# The reasons are the texts of SOAP Message Security 1.1, section 12. They say nothing of the cause, which helps only
# an attacker: the log has it.
INVALID_SECURITY: Final = f"{{{WSSE}}}InvalidSecurity"
INVALID_SECURITY_REASON: Final = "An error was discovered processing the Security header."
FAILED_AUTHENTICATION: Final = f"{{{WSSE}}}FailedAuthentication"
FAILED_AUTHENTICATION_REASON: Final = "The security token could not be authenticated or authorized."

SuiteName = Literal["rsa-sha256", "Basic256Sha256", "Basic256"]
"""A choice of algorithms for signatures."""
SymmetricSuiteName = Literal["Basic256Sha256", "Basic256"]
"""A choice of algorithms for messages with a symmetric key."""
CipherName = Literal["aes256-cbc", "aes128-cbc", "aes256-gcm", "aes128-gcm"]
"""How the parts of a message are encrypted."""
ConversationVersion = Literal["2005/02", "1.3"]
"""A version of WS-SecureConversation."""
Confirmation = Literal["bearer", "holder-of-key", "sender-vouches"]
"""Who may use a SAML assertion."""
Kind = Literal["token", "subject-key-identifier", "issuer-serial", "thumbprint"]
"""How a message names a certificate."""
Reference = Kind | Literal["assertion"]
"""How the messages of an endpoint name its certificate."""
