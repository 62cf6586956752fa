"""Encrypted messages: parts of an envelope, encrypted and decrypted (SOAP Message Security 1.1, section 9).

Of XML Encryption it accepts one shape: one EncryptedKey in the Security header, for the endpoint's own certificate, and
EncryptedData in four places: as the content of the Body, in an EncryptedHeader, instead of the signature, and instead
of a token, where it may be in an EncryptedAssertion. Each is
found by its position, and everything is read before anything is decrypted. After that, whatever makes no sense fails
alike: a wrong key, bad padding, content that is not XML, nested encryption.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from lxml import etree

from holdfast.core.versions import SOAP
from holdfast.exceptions import EnvelopeError
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.header import USERNAME_TOKEN, Invalid
from holdfast.security.names import (
    ASSERTIONS,
    CIPHERS,
    DS,
    ENCRYPTED_ASSERTION,
    ENCRYPTED_HEADER,
    ENCRYPTED_KEY,
    RSA_OAEP,
    RSA_OAEP_MGF1P,
    SECURITY,
    SHA1,
    SHA256,
    SIGNATURE_CONFIRMATION,
    WSSE,
    WSSE11,
    WSU,
    XENC,
    XENC11,
    Kind,
)
from holdfast.security.signature import ID, IDS, decoded, encoded, only, parsed_to_sign
from holdfast.security.signed_message import (
    SecuredMessage,
    Signing,
    elements_of,
    header_of,
    sign_envelope,
)
from holdfast.security.token_references import read_key_reference, write_key_reference
from holdfast.wire import parse_element
from holdfast.wire.names import ROLE_ATTRIBUTE, SOAP_NS
from holdfast.wire.text import escape, escape_attribute

MAX_PARTS: Final = 16
"""Maximum number of encrypted parts of a message."""
BLOCK: Final = 16
"""Bytes of a block of AES, and of the tag of GCM."""
NONCE: Final = 12
"""Bytes of the initialization vector of GCM (XML Encryption 1.1, section 5.2.4)."""
KEY_BYTES: Final = {uri: 32 if "256" in name else 16 for name, uri in CIPHERS.items()}
"""URI of a cipher -> bytes of its key."""
_AUTHENTICATED: Final = frozenset(uri for name, uri in CIPHERS.items() if name.endswith("gcm"))

Place = Literal["body", "header", "signature", "token"]

_DATA: Final = f"{{{XENC}}}EncryptedData"
_KEY: Final = f"{{{XENC}}}EncryptedKey"
_LIST: Final = f"{{{XENC}}}ReferenceList"
_METHOD: Final = f"{{{XENC}}}EncryptionMethod"
_CIPHER_DATA: Final = f"{{{XENC}}}CipherData"
_KEY_INFO: Final = f"{{{DS}}}KeyInfo"
_SIGNATURE: Final = f"{{{DS}}}Signature"
_TYPES: Final[dict[Place, str]] = {
    "body": XENC + "Content",
    **dict.fromkeys(("header", "signature", "token"), XENC + "Element"),
}
_TOKENS: Final = frozenset({USERNAME_TOKEN, SIGNATURE_CONFIRMATION, *ASSERTIONS})
"""Parts of the Security header that may be encrypted as the place "token"."""
_DIGESTS: Final = {SHA1: SHA1, SHA256: SHA256}
_MASKS: Final = {XENC11 + "mgf1sha1": SHA1, XENC11 + "mgf1sha256": SHA256}


# --- bytes --------------------------------------------------------------------------------------------------------


def encrypt(cipher: str, key: bytes, plain: bytes) -> bytes:
    """Return bytes encrypted, with the initialization vector before them (XML Encryption 1.1, section 5.2)."""
    if cipher in _AUTHENTICATED:
        nonce = secrets.token_bytes(NONCE)
        return nonce + AESGCM(key).encrypt(nonce, plain, None)
    start = secrets.token_bytes(BLOCK)
    count = BLOCK - len(plain) % BLOCK
    encryptor = Cipher(AES(key), CBC(start)).encryptor()
    return start + encryptor.update(plain + secrets.token_bytes(count - 1) + bytes([count])) + encryptor.finalize()


def encrypted_size(size: int) -> int:
    """Return the largest size of encrypted bytes in base64, with any cipher."""
    return 4 * ((size + 2 * BLOCK + 2) // 3)


def decrypt(cipher: str, key: bytes, data: bytes) -> tuple[bytes, bool]:
    """Return bytes decrypted, and whether padding or tag were right. Wrong padding is part of the result."""
    if cipher in _AUTHENTICATED:
        try:
            return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], None), True
        except (InvalidTag, ValueError):
            return b"", False
    # An initialization vector and a block at least: padding is never empty.
    if len(data) % BLOCK or len(data) < 2 * BLOCK:
        return b"", False
    decryptor = Cipher(AES(key), CBC(data[:BLOCK])).decryptor()
    plain = decryptor.update(data[BLOCK:]) + decryptor.finalize()
    # Only the last byte tells the length of the padding; the others are arbitrary (XML Encryption 1.1, section 5.2).
    count = plain[-1]
    is_right = 1 <= count <= BLOCK
    return plain[: len(plain) - count * is_right], is_right


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncryptedPart:
    """An encrypted part of a received message.

    Attributes:
        place: Which part.
        target: What stands in its place: the EncryptedHeader, or the EncryptedData.
        content: The encrypted bytes.
    """

    place: Place
    target: etree._Element
    content: bytes

    def fits(self, plain: bytes) -> bool:
        """Return whether decrypted bytes are XML that may replace the part."""
        parent = self.target.getparent()
        assert parent is not None
        found = _parsed(plain, parent)
        if found is None or any(one.tag in (_DATA, _KEY) for one in found):
            return False
        if self.place == "body":
            return True
        if len(found) != 1 or found.text or found[0].tail or not isinstance(found[0].tag, str):
            return False
        if self.place in ("signature", "token"):
            return bool(found[0].tag == _SIGNATURE if self.place == "signature" else found[0].tag in _TOKENS)
        return found[0].tag not in (SECURITY, ENCRYPTED_HEADER)


@dataclass(frozen=True, slots=True)
class Decrypted:
    """A message after decryption.

    Attributes:
        data: The message. A part that made no sense is missing.
        is_right: Whether all parts made sense.
        headers: Positions in the Header of the header blocks that were encrypted.
    """

    data: bytes
    is_right: bool
    headers: frozenset[int]


@dataclass(frozen=True, slots=True)
class EncryptedMessage:
    """What is encrypted in a message, and for whom.

    Attributes:
        cipher: URI of their cipher.
        is_signed_first: Whether the signature is over the parts as they are after decryption.
    """

    parts: tuple[EncryptedPart, ...]
    cipher: str
    is_signed_first: bool
    _wrapped: bytes
    _digest: str
    _mask: str

    @property
    def hides_signature(self) -> bool:
        return any(part.place == "signature" for part in self.parts)

    @property
    def hides_token(self) -> bool:
        return any(part.place == "token" for part in self.parts)

    def decrypt(self, message: SecuredMessage, credential: Credential) -> Decrypted:
        """Decrypt all parts. The message given is of no use afterwards."""
        key = credential.unwrap(self._wrapped, KEY_BYTES[self.cipher], digest=self._digest, mask=self._mask)
        return decrypt_parts(message, self.parts, self.cipher, key)


def decrypt_parts(message: SecuredMessage, parts: Iterable[EncryptedPart], cipher: str, key: bytes) -> Decrypted:
    """Decrypt parts of a message, which is of no use afterwards.

    The decrypted bytes are put into the text of the message, because lxml changes prefixes when it moves elements,
    and prefixes are signed.

    Args:
        cipher: URI of their cipher.
        key: As many bytes as :data:`KEY_BYTES` says.
    """
    is_right = True
    plain: dict[str, bytes] = {}
    headers = set[int]()
    for part in parts:
        content, has_right_end = decrypt(cipher, key, part.content)
        fits = part.fits(content)
        is_right = is_right and has_right_end and fits
        # Random: decrypted content cannot contain the mark of another part.
        mark = secrets.token_hex(16)
        plain[mark] = content if fits else b""
        parent = part.target.getparent()
        assert parent is not None
        if part.place == "body":
            parent.text = part.target.tail = None
        elif part.place == "header":
            headers.add(parent.index(part.target))
        parent.replace(part.target, etree.Comment(mark))
    data = etree.tostring(message.envelope, encoding="utf-8", xml_declaration=False)
    for mark, content in plain.items():
        data = data.replace(f"<!--{mark}-->".encode(), content, 1)
    return Decrypted(data, is_right, frozenset(headers))


def is_encrypted(message: SecuredMessage) -> bool:
    return message.security.element.find(_KEY) is not None


def read_encrypted(
    message: SecuredMessage,
    own: Certificate,
    ciphers: Collection[str],
    in_security: Literal["signature", "token"] = "signature",
) -> EncryptedMessage:
    """Find the encrypted parts of a message, before any of them is decrypted.

    The EncryptedKey names the certificate in one of the four forms (X.509 Certificate Token Profile 1.1, section 3.4),
    and a ReferenceList names the parts, each in its place (SOAP Message Security 1.1, section 9.1). A token with our
    own certificate is removed: it signs nothing.

    Raises:
        Invalid: It is encrypted for another certificate, with another algorithm, in another place or shape.
    """
    security = message.security.element
    key = read_encrypted_key(security, own)

    def check_key(named: etree._Element | None) -> None:
        if named is None:
            return
        (reference,) = _children(named, (f"{{{WSSE}}}Reference",))
        if not key.name or reference.get("URI") != f"#{key.name}":
            raise Invalid("a part is encrypted with another key")

    read, cipher, is_signed_first = read_parts(message, ciphers, check_key, in_security)
    return EncryptedMessage(read, cipher, is_signed_first, key.wrapped, key.digest, key.mask)


@dataclass(frozen=True, slots=True)
class EncryptedKey:
    """A symmetric key that was encrypted for a certificate.

    Attributes:
        name: Its Id, "" without one.
        digest, mask: Algorithms of RSA-OAEP.
    """

    name: str
    wrapped: bytes
    digest: str
    mask: str


def read_encrypted_key(security: etree._Element, own: Certificate) -> EncryptedKey:
    """Return the only EncryptedKey of a Security header.

    Raises:
        Invalid: It is for another certificate, or has another algorithm or shape.
    """
    key = only(security, XENC, "EncryptedKey")
    method, key_info, data, *_ = _children(key, (_METHOD, _KEY_INFO, _CIPHER_DATA), (_LIST,))
    digest, mask = _key_algorithm(method)
    _check_is_for(own, key_info, security)
    return EncryptedKey(key.get("Id", ""), _value(data), digest, mask)


def read_parts(
    message: SecuredMessage,
    ciphers: Collection[str],
    check_key: Callable[[etree._Element | None], None],
    in_security: Literal["signature", "token"],
) -> tuple[tuple[EncryptedPart, ...], str, bool]:
    """Find the encrypted parts that the only ReferenceList names.

    Args:
        ciphers: URIs of the ciphers to accept.
        check_key: Raises :class:`Invalid` if a SecurityTokenReference to the key of a part, None without one, is wrong.
        in_security: What may be encrypted in the Security header.

    Returns:
        The parts, the URI of their cipher, and whether the message was signed before it was encrypted.

    Raises:
        Invalid: A part has another place, cipher or shape.
    """
    security = message.security.element
    lists = [*security.findall(f"{_KEY}/{_LIST}"), *security.findall(_LIST)]
    if len(lists) != 1:
        raise Invalid(f"{len(lists)} lists of encrypted parts, not 1")
    parts = _named_parts(message, lists[0], in_security)
    found = {one.get("Id", ""): _read_data(one, place, ciphers, check_key) for one, place, _ in parts}
    if len({cipher for cipher, _ in found.values()}) != 1:
        raise Invalid("the parts are encrypted with different ciphers")
    read = tuple(EncryptedPart(place, target, found[one.get("Id", "")][1]) for one, place, target in parts)
    ((cipher, _), *_) = found.values()
    # A list before the signature is processed first (SOAP Message Security 1.1, section 5): the sender
    # encrypted after it signed.
    signature, (at, *_) = security.find(_SIGNATURE), (lists[0], *lists[0].iterancestors(_KEY))[::-1]
    return read, cipher, signature is None or security.index(at) < security.index(signature)


def _children(parent: etree._Element, wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[etree._Element]:
    """Return an element's children, which must have these names, in this order; the optional ones may be absent."""
    found = list(parent)
    names = [child.tag for child in found]
    if names[: len(wanted)] != list(wanted) or names[len(wanted) :] not in ([], list(optional)):
        raise Invalid(f"{etree.QName(parent).localname} has other parts than it should")
    return found


def _key_algorithm(method: etree._Element) -> tuple[str, str]:
    """Return the digests of RSA-OAEP. RSA 1.5 is not accepted: its padding tells too much about the key."""
    name = method.get("Algorithm", "")
    if name not in (RSA_OAEP_MGF1P, RSA_OAEP):
        raise Invalid(f"the key is encrypted with {name[:100]!r}")
    digest, mask = SHA1, SHA1
    for child in method:
        given = child.get("Algorithm", "")
        if child.tag == f"{{{DS}}}DigestMethod" and given in _DIGESTS:
            digest = given
        # rsa-oaep-mgf1p has MGF1 with SHA-1, and no parameter for it (XML Encryption 1.1, section 5.5.2).
        elif child.tag == f"{{{XENC11}}}MGF" and given in _MASKS and name == RSA_OAEP:
            mask = _MASKS[given]
        else:
            raise Invalid(f"the key is encrypted with parameters: {str(child.tag)[:100]!r}")
    return digest, mask


def _check_is_for(own: Certificate, key_info: etree._Element, security: etree._Element) -> None:
    (named,) = _children(key_info, (f"{{{WSSE}}}SecurityTokenReference",))
    reference = read_key_reference(named, security)
    if not own.is_named_by(reference):
        raise Invalid("the message is encrypted for another certificate")
    if reference.kind == "token":
        for token in security.findall(f"{{{WSSE}}}BinarySecurityToken"):
            if named[0].get("URI") == f"#{token.get(ID)}":
                security.remove(token)


def _named_parts(
    message: SecuredMessage, references: etree._Element, in_security: Place
) -> list[tuple[etree._Element, Place, etree._Element]]:
    """Return each EncryptedData with its place, and what stands there. The list must name all of them, each once."""
    if not 1 <= len(references) <= MAX_PARTS:
        raise Invalid(f"{len(references)} encrypted parts")
    uris = [one.get("URI", "") for one in _children(references, (f"{{{XENC}}}DataReference",) * len(references))]
    parts = list(_places(message, in_security))
    if sorted(uris) != sorted(f"#{one.get('Id', '')}" for one, _, _ in parts) or "#" in uris:
        raise Invalid("the list of encrypted parts names others than those that are in their places")
    ids: list[str] = IDS(message.envelope)
    if len(set(uris)) != len(uris) or any(ids.count(uri[1:]) != 1 for uri in uris):
        raise Invalid("two elements have the same Id")
    return parts


def _places(message: SecuredMessage, in_security: Place) -> Iterable[tuple[etree._Element, Place, etree._Element]]:
    if len(message.body) == 1 and message.body[0].tag == _DATA:
        yield message.body[0], "body", message.body[0]
    for block in message.header:
        if block.tag == ENCRYPTED_HEADER:
            yield only(block, XENC, "EncryptedData"), "header", block
    security = message.security.element
    for part in security.findall(_DATA):
        if in_security == "signature" and security.find(_SIGNATURE) is not None:
            raise Invalid("a token is encrypted, such as an assertion, which is not supported here: see with_saml()")
        yield part, in_security, part
    for part in security.findall(ENCRYPTED_ASSERTION):
        yield only(part, XENC, "EncryptedData"), in_security, part


def _read_data(
    data: etree._Element,
    place: Place,
    ciphers: Collection[str],
    check_key: Callable[[etree._Element | None], None],
) -> tuple[str, bytes]:
    if data.get("Type") != _TYPES[place]:
        raise Invalid(f"an encrypted part of the type {data.get('Type', '')[:100]!r}")
    names = (_METHOD, _KEY_INFO, _CIPHER_DATA) if data.find(_KEY_INFO) is not None else (_METHOD, _CIPHER_DATA)
    method, *key_info, content = _children(data, names)
    cipher = method.get("Algorithm", "")
    if cipher not in ciphers or len(method):
        raise Invalid(f"a part is encrypted with {cipher[:100]!r}, or with parameters")
    check_key(_children(key_info[0], (f"{{{WSSE}}}SecurityTokenReference",))[0] if key_info else None)
    return cipher, _value(content)


def _value(data: etree._Element) -> bytes:
    (value,) = _children(data, (f"{{{XENC}}}CipherValue",))
    if len(value):
        raise Invalid("a CipherValue is not text")
    return decoded(value)


def _parsed(plain: bytes, place: etree._Element) -> etree._Element | None:
    """Return an element with decrypted content, in the namespaces of its place; None if it is not XML."""
    declared = "".join(
        f' xmlns{":" + prefix if prefix else ""}="{escape_attribute(uri)}"' for prefix, uri in place.nsmap.items()
    )
    try:
        return parse_element(b"<content%b>%b</content>" % (declared.encode(), plain))
    except EnvelopeError:
        return None


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encrypting:
    """How an endpoint encrypts a message.

    Args:
        certificate: Of the receiver.
        cipher: URI of the cipher.
        reference: How the message names the certificate; not "token".
        headers: Names of the header blocks to encrypt besides the Body.
        signature: Whether the signature is encrypted.
        before_signing: Whether the signature is over the encrypted parts.
    """

    certificate: Certificate
    cipher: str
    reference: Kind
    headers: Collection[str] = ()
    signature: bool = False
    before_signing: bool = False


def sign_and_encrypt(
    data: bytes, soap: SOAP, signing: Signing, encrypting: Encrypting, now: float, *, must_understand: bool
) -> bytes:
    """Return a message signed and encrypted.

    The receiver processes the Security header from its beginning (SOAP Message Security 1.1, section 5): the
    EncryptedKey precedes the signature if the parts must be decrypted before the signature is checked.
    """
    envelope = parsed_to_sign(data)
    header = header_of(envelope, soap)
    if encrypting.before_signing:
        key = _encrypt_parts(envelope, header, None, soap, encrypting)
        sign_envelope(envelope, header, soap, signing, now, must_understand=must_understand, also=key)
    else:
        security = sign_envelope(envelope, header, soap, signing, now, must_understand=must_understand)
        security.insert(1, _encrypt_parts(envelope, header, security, soap, encrypting))
    return etree.tostring(envelope, encoding="utf-8", xml_declaration=False)


def _encrypt_parts(
    envelope: etree._Element,
    header: etree._Element,
    security: etree._Element | None,
    soap: SOAP,
    encrypting: Encrypting,
) -> etree._Element:
    """Replace parts of an envelope by their EncryptedData, and return the EncryptedKey."""
    mark = f"_{secrets.token_hex(8)}"
    key = secrets.token_bytes(KEY_BYTES[encrypting.cipher])
    replacing = Replacing(encrypting.cipher, key, key_in_message(mark), mark)
    replacing.body(envelope, soap)
    for block in [one for one in header if one.tag in encrypting.headers]:
        replacing.header(block, soap)
    if security is not None and encrypting.signature:
        replacing.element(only(security, DS, "Signature"), "signature")
    certificate, kind = encrypting.certificate, encrypting.reference
    (found,) = elements_of(write_encrypted_key(certificate, kind, certificate.wrap(key), mark, replacing.list()))
    return found


class Replacing:
    """Replaces parts of an envelope by their EncryptedData."""

    def __init__(self, cipher: str, key: bytes, named: str, mark: str) -> None:
        self._cipher = cipher
        self._key = key
        self._named = named
        self._mark = mark
        self._names: list[str] = []

    def body(self, envelope: etree._Element, soap: SOAP) -> None:
        body = envelope.find(f"{{{SOAP_NS[soap]}}}Body")
        assert body is not None
        plain = escape(body.text or "").encode() + b"".join(_written(child, with_tail=True) for child in body)
        del body[:]
        body.text = None
        body.append(self._data_of(plain, "body"))

    def header(self, block: etree._Element, soap: SOAP) -> None:
        wrapper = etree.Element(ENCRYPTED_HEADER, nsmap={"wsse11": WSSE11, "wsu": WSU})
        wrapper.set(ID, block.get(ID) or f"{self._mark}-h{len(self._names)}")
        for name in (f"{{{SOAP_NS[soap]}}}mustUnderstand", f"{{{ROLE_ATTRIBUTE[soap]}"):
            if name in block.attrib:
                wrapper.set(name, block.attrib[name])
        wrapper.append(self._data_of(_written(block), "header"))
        parent = block.getparent()
        assert parent is not None
        parent.replace(block, wrapper)

    def element(self, part: etree._Element, place: Literal["signature", "token"]) -> None:
        parent = part.getparent()
        assert parent is not None
        parent.replace(part, self._data_of(_written(part), place))

    def list(self) -> str:
        named = "".join(f'<xenc:DataReference URI="#{name}"/>' for name in self._names)
        return f'<xenc:ReferenceList xmlns:xenc="{XENC}">{named}</xenc:ReferenceList>'

    def _data_of(self, plain: bytes, place: Place) -> etree._Element:
        name = f"{self._mark}-d{len(self._names)}"
        self._names.append(name)
        content = encrypt(self._cipher, self._key, plain)
        (data,) = elements_of(_write_data(self._cipher, content, place, name, self._named))
        return data


def _written(element: etree._Element, *, with_tail: bool = False) -> bytes:
    return etree.tostring(element, encoding="utf-8", with_tail=with_tail)


def _write_data(cipher: str, content: bytes, place: Place, name: str, named: str) -> str:
    return (
        f'<xenc:EncryptedData xmlns:xenc="{XENC}" Id="{name}" Type="{_TYPES[place]}">'
        f'<xenc:EncryptionMethod Algorithm="{cipher}"/><ds:KeyInfo xmlns:ds="{DS}">{named}</ds:KeyInfo>'
        f"<xenc:CipherData><xenc:CipherValue>{encoded(content)}</xenc:CipherValue></xenc:CipherData>"
        "</xenc:EncryptedData>"
    )


def key_in_message(mark: str) -> str:
    """Return a SecurityTokenReference to the EncryptedKey that :func:`write_encrypted_key` writes."""
    return (
        f'<wsse:SecurityTokenReference xmlns:wsse11="{WSSE11}" wsse11:TokenType="{ENCRYPTED_KEY}">'
        f'<wsse:Reference URI="#{mark}-k"/></wsse:SecurityTokenReference>'
    )


def write_encrypted_key(certificate: Certificate, kind: Kind, wrapped: bytes, mark: str, parts: str = "") -> str:
    """Return the EncryptedKey.

    Args:
        certificate: Of the receiver.
        kind: How it names the certificate; not "token".
        mark: With which its Id begins.
        parts: The list of what is encrypted, "" if it is elsewhere.
    """
    reference, _ = write_key_reference(certificate, kind)
    return (
        f'<xenc:EncryptedKey xmlns:xenc="{XENC}" Id="{mark}-k">'
        f'<xenc:EncryptionMethod Algorithm="{RSA_OAEP_MGF1P}"/><ds:KeyInfo xmlns:ds="{DS}">'
        f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference></ds:KeyInfo>"
        f"<xenc:CipherData><xenc:CipherValue>{encoded(wrapped)}</xenc:CipherValue>"
        f"</xenc:CipherData>{parts}</xenc:EncryptedKey>"
    )
