"""The policy of messages with a symmetric key, as a destination publishes it (SecurityPolicy 1.2, 7.4 and 8)."""

from __future__ import annotations

from typing import Final

from holdfast.security.names import CipherName, SymmetricSuiteName
from holdfast.security.protection.encryption_settings import Encryption
from holdfast.security.protection.written_policy import signed_parts, suite_name, suites
from holdfast.security.username_token import SECURITY_POLICY
from holdfast.wire.policy.assertions import (
    DERIVED_KEYS,
    ENCRYPTION,
    PASSWORD,
    PROTECTED_TOKENS,
    SIGNATURES,
    SIGNED_TOKENS,
    SYMMETRIC_KEY,
    TIMESTAMP,
    Ability,
)

_SPACE: Final = f'xmlns:sp="{SECURITY_POLICY}"'
_INCLUDE: Final = f"{SECURITY_POLICY}/IncludeToken"
_OPTIONS: Final = (
    f"<sp:Wss11 {_SPACE}><wsp:Policy><sp:MustSupportRefKeyIdentifier/><sp:MustSupportRefIssuerSerial/>"
    "<sp:MustSupportRefThumbprint/><sp:MustSupportRefEncryptedKey/>{confirmed}</wsp:Policy></sp:Wss11>"
)
_TRUST: Final = (
    f"<sp:Trust13 {_SPACE}><wsp:Policy><sp:RequireClientEntropy/><sp:RequireServerEntropy/></wsp:Policy></sp:Trust13>"
)


def written_symmetric(
    suite: SymmetricSuiteName, cipher: CipherName, proof: str, *, conversation: bool, confirms: bool
) -> str:
    """Return the assertions of messages with a symmetric key (SecurityPolicy 1.2, section 7.4).

    Args:
        cipher: How messages are encrypted.
        proof: The assertion of what proves the client: a user name, or a certificate.
        conversation: Whether the key is that of a token of WS-SecureConversation, and only the request for the token
            has a user name.
        confirms: Whether answers confirm the signatures of their requests.
    """
    options = _OPTIONS.replace("{confirmed}", "<sp:RequireSignatureConfirmation/>" * confirms)
    algorithms = suite_name(suite, cipher)
    certificate = (
        f'<sp:X509Token sp:IncludeToken="{_INCLUDE}/Never"><wsp:Policy><sp:RequireThumbprintReference/>'
        "<sp:WssX509V3Token11/></wsp:Policy></sp:X509Token>"
    )
    parts = f"{signed_parts()}<sp:EncryptedParts {_SPACE}><sp:Body/></sp:EncryptedParts>"
    by_certificate = f"{_binding(certificate, algorithms)}{proof}{options}"
    if not conversation:
        return by_certificate + parts
    bootstrap = f"<wsp:Policy>{by_certificate}{_TRUST}{parts}</wsp:Policy>"
    token = (
        f'<sp:SecureConversationToken sp:IncludeToken="{_INCLUDE}/AlwaysToRecipient"><wsp:Policy>'
        f"<sp:RequireDerivedKeys/><sp:BootstrapPolicy>{bootstrap}</sp:BootstrapPolicy></wsp:Policy>"
        "</sp:SecureConversationToken>"
    )
    return f"{_binding(token, algorithms)}{options}{_TRUST}{parts}"


def symmetric_abilities(
    suite: SymmetricSuiteName,
    cipher: CipherName,
    *,
    derived_keys: bool = False,
    proof: tuple[Ability, ...] = (PASSWORD, PROTECTED_TOKENS, SIGNED_TOKENS),
) -> tuple[Ability, ...]:
    """Return the demands of a policy that a source with these settings meets."""
    derives = (DERIVED_KEYS,) if derived_keys else ()
    found = suites(suite, Encryption(cipher=cipher))
    return (SYMMETRIC_KEY, SIGNATURES, ENCRYPTION, TIMESTAMP, *found, *proof, *derives)


def _binding(token: str, algorithms: str) -> str:
    return (
        f"<sp:SymmetricBinding {_SPACE}><wsp:Policy><sp:ProtectionToken><wsp:Policy>{token}</wsp:Policy>"
        f"</sp:ProtectionToken><sp:AlgorithmSuite><wsp:Policy><{algorithms}/></wsp:Policy></sp:AlgorithmSuite>"
        "<sp:Layout><wsp:Policy><sp:Lax/></wsp:Policy></sp:Layout><sp:IncludeTimestamp/>"
        "<sp:OnlySignEntireHeadersAndBody/></wsp:Policy></sp:SymmetricBinding>"
    )
