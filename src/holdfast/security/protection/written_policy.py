"""The policy of signed and encrypted messages: what a destination publishes, and what a source meets."""

from __future__ import annotations

from lxml import etree

from holdfast.security.names import CipherName, Kind, Reference, SuiteName
from holdfast.security.protection.encryption_settings import Encryption
from holdfast.security.username_token import SECURITY_POLICY
from holdfast.wire.names import RM_NS, WSA_NS
from holdfast.wire.policy.assertions import (
    CXF_SUITES,
    ENCRYPTED_FIRST,
    ENCRYPTED_SIGNATURES,
    ENCRYPTION,
    KEY_IN_ASSERTION,
    OWN_ENCRYPTION_CERTIFICATE,
    RECEIVER_CERTIFICATE,
    SIGNATURES,
    TIMESTAMP,
    TOKEN_IN_MESSAGE,
    TOKEN_NOT_IN_MESSAGE,
    Ability,
    encrypted_header,
)
from holdfast.wire.policy.source_kinds import suite_abilities
from holdfast.wire.text import escape_attribute


def written_binding(suite: SuiteName, reference: Kind, encrypt: Encryption | None, initiator: str = "") -> str:
    """Return the assertions of SecurityPolicy 1.2 for signed messages, and for encrypted ones.

    Args:
        initiator: The token that requests are signed with, and whose signature must be over it too; "": a certificate.
    """
    to_initiator = "AlwaysToInitiator" if reference == "token" else "Never"
    cipher = "aes256-cbc" if encrypt is None else encrypt.cipher
    protect = "<sp:ProtectTokens/>" if initiator else ""
    return (
        f'<sp:AsymmetricBinding xmlns:sp="{SECURITY_POLICY}"><wsp:Policy>'
        f"{_role('InitiatorToken', initiator or _certificate('AlwaysToRecipient'))}{_recipient(to_initiator, encrypt)}"
        f"<sp:AlgorithmSuite><wsp:Policy><{suite_name(suite, cipher)}/></wsp:Policy></sp:AlgorithmSuite>"
        "<sp:Layout><wsp:Policy><sp:Lax/></wsp:Policy></sp:Layout><sp:IncludeTimestamp/>"
        f"{_order(encrypt)}{protect}<sp:OnlySignEntireHeadersAndBody/></wsp:Policy></sp:AsymmetricBinding>"
        f"{signed_parts()}{_parts(encrypt)}"
    )


def signed_parts() -> str:
    """Return the assertion of what is signed (SecurityPolicy 1.2, section 4.1.1)."""
    headers = "".join(f'<sp:Header Namespace="{one}"/>' for one in (*WSA_NS.values(), *RM_NS.values()))
    return f'<sp:SignedParts xmlns:sp="{SECURITY_POLICY}"><sp:Body/>{headers}</sp:SignedParts>'


def _role(role: str, token: str) -> str:
    return f"<sp:{role}><wsp:Policy>{token}</wsp:Policy></sp:{role}>"


def _certificate(inclusion: str) -> str:
    included = f'sp:IncludeToken="{SECURITY_POLICY}/IncludeToken/{inclusion}"'
    return f"<sp:X509Token {included}><wsp:Policy><sp:WssX509V3Token10/></wsp:Policy></sp:X509Token>"


def _recipient(inclusion: str, encrypt: Encryption | None) -> str:
    """Return the assertion of the destination's certificates (SecurityPolicy 1.2, section 7.5)."""
    if encrypt is None or encrypt.own is None:
        return _role("RecipientToken", _certificate(inclusion))
    signing, encrypting = _certificate(inclusion), _certificate("Never")
    return _role("RecipientSignatureToken", signing) + _role("RecipientEncryptionToken", encrypting)


def suite_name(suite: SuiteName, cipher: CipherName) -> str:
    """Return the suite's assertion. Those of SecurityPolicy have no GCM; CXF has one."""
    size = cipher[3:6]
    if cipher.endswith("gcm"):
        return f'cxf:Basic{size}GCM xmlns:cxf="{CXF_SUITES}"'
    return f"sp:Basic{size}" if suite == "Basic256" else f"sp:Basic{size}Sha256"


def _order(encrypt: Encryption | None) -> str:
    if encrypt is None:
        return ""
    return "<sp:EncryptBeforeSigning/>" * encrypt.before_signing + "<sp:EncryptSignature/>" * encrypt.signature


def _parts(encrypt: Encryption | None) -> str:
    """Return the assertion of what is encrypted (SecurityPolicy 1.2, section 4.2.1)."""
    if encrypt is None:
        return ""
    names = [etree.QName(name) for name in encrypt.headers]
    headers = "".join(
        f'<sp:Header Name="{one.localname}" Namespace="{escape_attribute(one.namespace or "")}"/>' for one in names
    )
    return f'<sp:EncryptedParts xmlns:sp="{SECURITY_POLICY}"><sp:Body/>{headers}</sp:EncryptedParts>'


def abilities_of(suite: SuiteName, reference: Reference, encrypt: Encryption | None) -> tuple[Ability, ...]:
    """Return the demands of a policy that a source with these settings meets."""
    named = {"token": TOKEN_IN_MESSAGE, "assertion": KEY_IN_ASSERTION}.get(reference, TOKEN_NOT_IN_MESSAGE)
    return (SIGNATURES, TIMESTAMP, named, *suites(suite, encrypt), *_encrypting(encrypt))


def suites(suite: SuiteName, encrypt: Encryption | None) -> tuple[Ability, ...]:
    """Return the suites of algorithms: without encryption, their ciphers do not count."""
    return suite_abilities(suite, None if encrypt is None else encrypt.cipher)


def _encrypting(encrypt: Encryption | None) -> tuple[Ability, ...]:
    if encrypt is None:
        return ()
    settings = (
        (ENCRYPTED_SIGNATURES, encrypt.signature),
        (ENCRYPTED_FIRST, encrypt.before_signing),
        (RECEIVER_CERTIFICATE, encrypt.certificate is not None),
        (OWN_ENCRYPTION_CERTIFICATE, encrypt.own is not None),
    )
    return (ENCRYPTION, *[ability for ability, is_set in settings if is_set], *map(encrypted_header, encrypt.headers))
