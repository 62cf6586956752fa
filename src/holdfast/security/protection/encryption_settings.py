"""Encryption: what users set about encrypted messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.exceptions import ConfigurationError
from holdfast.security.certificates import Certificate, distinguished_name, read_certificates
from holdfast.security.encryption import EncryptedMessage
from holdfast.security.header import Invalid
from holdfast.security.names import ENCRYPTED_HEADER, SECURITY, CipherName
from holdfast.settings import check_settings

_NAME: Final = re.compile(r"\{[^{}\s]+\}[^{}\s:]+")


@dataclass(frozen=True)
class Encryption:
    """How messages are encrypted: ``X509(…, encrypt=Encryption())``.

    The Body of every message is encrypted, in both directions, with a new key for each message. The key is encrypted
    for the certificate of the receiver (RSA-OAEP). A received message must be encrypted in the same way. Only a signed
    fault need not be: its sender may not know for whom.

    Args:
        certificate: A file in PEM with the certificate of the receiver. None: the one in ``trusted``, if only one
            there is of a peer. An answer is encrypted for the certificate that signed its request, unless ``peers``
            has another for its signer.
        cipher: "aes256-cbc", which the policies Basic256 and Basic256Sha256 demand; "aes128-cbc"; or "aes256-gcm" and
            "aes128-gcm", which also protect the content by themselves. The endpoint accepts its cipher and aes256-gcm,
            and answers with that of the request.
        headers: Names of header blocks to encrypt as well: "{urn:shop}Customer".
        signature: Encrypt the signature, too (EncryptSignature). Otherwise a reader of the message can confirm a guess
            of a short Body. But the receiver must then decrypt before it knows who sent the message.
        before_signing: Sign the encrypted parts (EncryptBeforeSigning) instead of their content.
        own: Files in PEM with the endpoint's own certificate for encryption, and its private key. Peers must encrypt
            for this certificate then. None: the certificate that the endpoint signs with.
        peers: The certificates of peers for encryption, as files in PEM. A distinguished name as in RFC 4514,
            "CN=alice,O=Example": of answers to requests that this owner signed. A URL: of messages that are posted to
            an address that begins with it, such as a reply to an address of the client. The longest counts.
    """

    certificate: str | Path | None = None
    cipher: CipherName = "aes256-cbc"
    headers: Sequence[str] = ()
    signature: bool = False
    before_signing: bool = False
    own: tuple[str | Path, str | Path] | None = None
    peers: Mapping[str, str | Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.headers, str):
            raise ConfigurationError("headers= is a single name", remedy=f"Write headers=[{self.headers!r}].")
        check_settings(self)
        for name in self.headers:
            if _NAME.fullmatch(name) is None or name in (SECURITY, ENCRYPTED_HEADER):
                raise ConfigurationError(
                    f"headers= has {name!r}, which is not the name of a header block that can be encrypted",
                    remedy="Write it with its namespace: '{urn:shop}Customer'.",
                )
        for name in self.peers:
            if not _is_url(name) and "=" not in name:
                raise ConfigurationError(
                    f"peers= has {name!r}, which is neither a distinguished name nor a URL",
                    remedy='Write "CN=alice,O=Example", or "https://alice.example/".',
                )
        if self.signature and self.before_signing:
            raise ConfigurationError(
                "Encryption has signature=True and before_signing=True", remedy="Encrypt the signature, or sign last."
            )


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


class PeerCertificates:
    """The certificates of peers for encryption.

    Raises:
        ConfigurationError: A file has no usable certificate, or a name is not a distinguished name.
    """

    def __init__(self, files: Mapping[str, str | Path]) -> None:
        found = {name: read_certificates(file)[0] for name, file in files.items()}
        self._addresses = sorted(((url, one) for url, one in found.items() if _is_url(url)), key=_length, reverse=True)
        self._names = [(distinguished_name(name), one) for name, one in found.items() if not _is_url(name)]

    def of_owner(self, signer: Certificate) -> Certificate:
        """Return the certificate for the owner of another: its own, if none is set for it."""
        owner = distinguished_name(signer.subject)
        return next((one for name, one in self._names if name == owner), signer)

    def at(self, address: str) -> Certificate | None:
        """Return the certificate for what is posted to an address, None if none is set for it."""
        return next((one for url, one in self._addresses if _is_within(address, url)), None)


def _length(row: tuple[str, Certificate]) -> int:
    return len(row[0])


def _is_within(address: str, url: str) -> bool:
    """Return whether an address begins with a URL. A longer host, or a longer name in the path, is another address."""
    rest = address.removeprefix(url)
    return address.startswith(url) and (not rest or url.endswith("/") or rest[0] in "/?")


def check_as_agreed(encrypted: EncryptedMessage, encrypt: Encryption) -> None:
    """Check that a message is encrypted as the settings demand: not less, and not in another order.

    Raises:
        Invalid: It is not.
    """
    if not any(part.place == "body" for part in encrypted.parts):
        raise Invalid("the Body is not encrypted")
    if encrypted.hides_signature != encrypt.signature:
        raise Invalid(f"the signature is {'not ' * encrypt.signature}encrypted: see signature=")
    if encrypted.hides_token and not encrypted.is_signed_first:
        raise Invalid("the assertion was encrypted before signing: the signature must be over the assertion")
    if encrypted.is_signed_first == encrypt.before_signing:
        order = "after" if encrypt.before_signing else "before"
        raise Invalid(f"it was encrypted {order} signing: see before_signing=")
