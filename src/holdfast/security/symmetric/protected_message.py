"""Messages signed and encrypted with a symmetric key, read and written (SOAP Message Security 1.1, sections 8 and 9).

The signature is an HMAC over the Body, the Timestamp, all header blocks and the user name; the Body and the user name
are encrypted after that. Each part is found by its position, as in ``signed_message`` and ``encryption``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from lxml import etree

from holdfast.core.versions import SOAP
from holdfast.security.encryption import KEY_BYTES, Decrypted, EncryptedPart, Replacing, decrypt_parts, read_parts
from holdfast.security.header import Invalid, Token, Unproven, write_timestamp, write_token
from holdfast.security.names import (
    CIPHERS,
    HMAC_SHA1,
    HMAC_SHA256,
    SHA1,
    SHA256,
    SIGNATURE_CONFIRMATION,
    WSSE11,
    XENC,
    SymmetricSuiteName,
)
from holdfast.security.signature import algorithm, encoded, parsed_to_sign
from holdfast.security.signed_message import (
    SecuredMessage,
    SignedMessage,
    Suite,
    add_header,
    add_signature,
    canonical_as,
    check_part,
    check_parts,
    elements_of,
    header_of,
    parts_to_sign,
    read_secured,
    signed_info,
    unsigned_headers,
)
from holdfast.security.symmetric.endorsement import Endorsing, find_primary
from holdfast.security.symmetric.message_keys import MessageKeys, write_derived

SUITES: Final[Mapping[SymmetricSuiteName, Suite]] = {
    "Basic256Sha256": Suite(HMAC_SHA1, SHA256),
    "Basic256": Suite(HMAC_SHA1, SHA1),
}
"""The suites of SecurityPolicy 1.2, 6.1, as CXF and Metro read them. As an HMAC, SHA-1 is not broken."""
SAFEST: Final = CIPHERS["aes256-gcm"]
"""A cipher that is accepted whichever one was chosen."""
_MACS: Final = {HMAC_SHA1: (HMAC_SHA1, "sha1"), HMAC_SHA256: (HMAC_SHA256, "sha256")}
_NO_SENSE: Final = "it cannot be decrypted with the key of the message, or was changed"


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealed:
    """A message with a right signature, before it is decrypted.

    Attributes:
        message: The message. Only its signature and its Timestamp are checked.
        mac: Algorithm of the signature.
        parts: What is encrypted.
        cipher: URI of the cipher, "" if nothing is encrypted.
        key: The key of the encrypted parts.
    """

    message: SignedMessage
    mac: str
    parts: tuple[EncryptedPart, ...]
    cipher: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """A message after the check of its signature and of each signed part.

    Attributes:
        message: The message, decrypted.
        data: The same, as bytes.
        suite: The algorithms of its signature.
        cipher: URI of the cipher, "" if nothing was encrypted.
        unsigned: Names of header blocks that are not signed.
        endorsing: A signature by a certificate, which is not checked; None without one.
    """

    message: SignedMessage
    data: bytes
    suite: Suite
    cipher: str
    unsigned: set[str]
    endorsing: etree._Element | None


def check_sealed(
    secured: SecuredMessage, keys: MessageKeys, suite: SymmetricSuiteName, ciphers: Collection[str]
) -> Sealed:
    """Check the signature of a message, and that it is over the Timestamp, before anything is decrypted
    (SecurityPolicy 1.2, section 7.4).

    Raises:
        Invalid: It has another shape, another algorithm, or parts in other places.
        Unproven: The signature was made with another key.
    """
    keys.derive(secured.security.element)
    message, named, _ = find_primary(secured)
    form, method, *_ = signed_info(message)
    mac, digest = algorithm(method, _MACS)
    wanted = hmac.digest(keys.find(named), canonical_as(message.signature[0], form), digest)
    if not hmac.compare_digest(wanted, message.value):
        raise Unproven("the signature was made with another key, or changed")
    check_part(message, message.timestamp, suite)
    if not _is_encrypted(secured):
        return Sealed(message, mac, (), "", b"")
    found = set[bytes]()

    def check_key(reference: etree._Element | None) -> None:
        if reference is None:
            raise Invalid("an encrypted part names no key")
        found.add(keys.find(reference))

    parts, cipher, _ = read_parts(secured, ciphers, check_key, "token")
    if len(found) != 1:
        raise Invalid("the parts are encrypted with different keys")
    return Sealed(message, mac, parts, cipher, found.pop())


def _is_encrypted(secured: SecuredMessage) -> bool:
    places = (secured.header, secured.security.element, secured.body)
    names = f"{{{XENC}}}EncryptedData", f"{{{XENC}}}ReferenceList"
    return any(place.find(name) is not None for place in places for name in names)


def open_sealed(sealed: Sealed, data: bytes, soap: SOAP, suite: SymmetricSuiteName) -> Opened:
    """Decrypt a message, and check each part that counts.

    Raises:
        Invalid: A part is not signed.
        Unproven: A part makes no sense after decryption, or was changed.
    """
    if not sealed.parts:
        message, _, endorsing = find_primary(sealed.message)
        used = Suite(sealed.mac, check_parts(message, suite))
        return Opened(message, data, used, "", unsigned_headers(message), endorsing)
    decrypted = _decrypt(sealed)
    try:
        message, _, endorsing = find_primary(read_secured(decrypted.data, soap))
        used = Suite(sealed.mac, check_parts(message, suite))
    except (Invalid, Unproven):
        if decrypted.is_right:
            raise
        raise Unproven(_NO_SENSE) from None
    if not decrypted.is_right:
        raise Unproven(_NO_SENSE)
    return Opened(message, decrypted.data, used, sealed.cipher, unsigned_headers(message), endorsing)


def _decrypt(sealed: Sealed) -> Decrypted:
    length = KEY_BYTES[sealed.cipher]
    # A key of another length fails as a wrong one does (XML Encryption 1.1, section 6.1.1).
    key = sealed.key if len(sealed.key) == length else secrets.token_bytes(length)
    return decrypt_parts(sealed.message, sealed.parts, sealed.cipher, key)


def is_body_encrypted(sealed: Sealed) -> bool:
    return any(part.place == "body" for part in sealed.parts)


def confirmations_in(message: SecuredMessage) -> list[str]:
    return [one.get("Value", "") for one in message.security.element.findall(SIGNATURE_CONFIRMATION)]


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Protecting:
    """How a message is signed and encrypted.

    Args:
        named: The SecurityTokenReference to it, from this message.
        suite: Algorithms of the signature.
        cipher: URI of the cipher.
        life: Seconds for which the message is valid.
        token: The token of the key, "" if the message has none.
        derives_in: Namespace of WS-SecureConversation if signature and encryption have keys derived from it, else "".
        confirms: In an answer, the signatures of the request (SOAP Message Security 1.1, section 8.5).
        endorsing: How a certificate signs the signature.
    """

    key: bytes
    named: str
    suite: Suite
    cipher: str
    life: float
    token: str = ""
    derives_in: str = ""
    user: Token | None = None
    confirms: tuple[bytes, ...] = ()
    endorsing: Endorsing | None = None


def protect(
    data: bytes, soap: SOAP, protecting: Protecting, now: float, *, must_understand: bool
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a message signed and encrypted, and the values of its signatures (SecurityPolicy 1.2, section 7.4).

    The receiver processes the Security header from its beginning (SOAP Message Security 1.1, section 5), so the keys
    precede the list of encrypted parts, and that precedes the signature.
    """
    envelope = parsed_to_sign(data)
    header = header_of(envelope, soap)
    mark = f"_{secrets.token_hex(8)}"
    parts = parts_to_sign(envelope, header, soap, mark)
    security = add_header(header, soap, must_understand=must_understand)
    (signing, to_signing), (encrypting, to_encrypting), tokens = _keys(protecting, mark)
    security.extend(elements_of(write_timestamp(now, protecting.life, f"{mark}-t") + tokens))
    end_of_keys = len(security)
    user = "" if protecting.user is None else write_token(protecting.user, f"{mark}-u")
    endorsing = protecting.endorsing
    security.extend(elements_of(user + _confirmations(protecting.confirms, mark)))
    if endorsing is not None:
        security.extend(elements_of(endorsing.token(mark)))
    digest = _MACS[protecting.suite.signature][1]
    value = add_signature(
        security,
        (*parts, security[0], *security[end_of_keys:]),
        protecting.suite,
        to_signing,
        lambda content: hmac.digest(signing, content, digest),
    )
    values = (value,) if endorsing is None else (value, endorsing.add(security, mark))
    # After the signature: the default order is SignBeforeEncrypting (SecurityPolicy 1.2, section 6.3).
    replacing = Replacing(protecting.cipher, encrypting, to_encrypting, mark)
    replacing.body(envelope, soap)
    if user:
        # The user name is the first part after the keys.
        replacing.element(security[end_of_keys], "token")
    security[end_of_keys:end_of_keys] = elements_of(replacing.list())
    return etree.tostring(envelope, encoding="utf-8", xml_declaration=False), values


def _keys(protecting: Protecting, mark: str) -> tuple[tuple[bytes, str], tuple[bytes, str], str]:
    """Return the keys of the signature and of the encryption, with the references to them, and their tokens."""
    key, named, namespace = protecting.key, protecting.named, protecting.derives_in
    if not namespace:
        return (key, named), (key, named), protecting.token
    length = KEY_BYTES[protecting.cipher]
    signing, first, to_signing = write_derived(key, named, namespace, f"{mark}-s", min(length, 24))  # 6.1: 192 bits
    encrypting, second, to_encrypting = write_derived(key, named, namespace, f"{mark}-e", length)
    return (signing, to_signing), (encrypting, to_encrypting), protecting.token + first + second


def _confirmations(values: tuple[bytes, ...], mark: str) -> str:
    space = f'xmlns:wsse11="{WSSE11}"'
    return "".join(
        f'<wsse11:SignatureConfirmation {space} wsu:Id="{mark}-v{number}" Value="{encoded(value)}"/>'
        for number, value in enumerate(values)
    )
