"""Names of WS-Security: namespaces, types and fault codes. Owns constants only."""

from __future__ import annotations

from typing import Final

_OASIS: Final = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"
WSSE: Final = _OASIS + "wssecurity-secext-1.0.xsd"
WSU: Final = _OASIS + "wssecurity-utility-1.0.xsd"
PASSWORD_TEXT: Final = _OASIS + "username-token-profile-1.0#PasswordText"
PASSWORD_DIGEST: Final = _OASIS + "username-token-profile-1.0#PasswordDigest"
BASE64: Final = _OASIS + "soap-message-security-1.0#Base64Binary"

SECURITY: Final = f"{{{WSSE}}}Security"

# The reasons are the texts of SOAP Message Security 1.1, section 12. They say nothing of the cause, which helps only
# an attacker: the log has it.
INVALID_SECURITY: Final = f"{{{WSSE}}}InvalidSecurity"
INVALID_SECURITY_REASON: Final = "An error was discovered processing the Security header."
FAILED_AUTHENTICATION: Final = f"{{{WSSE}}}FailedAuthentication"
FAILED_AUTHENTICATION_REASON: Final = "The security token could not be authenticated or authorized."
