"""Certificates: the one that an endpoint signs with, and those that it trusts. All cryptography is the library's.

Needs the extra ``x509``, the package cryptography.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from holdfast.core.origin import ISSUER
from holdfast.endpoint.logs import log, warn_of_validity
from holdfast.exceptions import ConfigurationError
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import RSA_SHA1, RSA_SHA256, SHA1, SHA256, Kind

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.x509 import verification
except ImportError:
    raise ConfigurationError(
        "Messages signed by certificates need the package cryptography, which is not installed.",
        remedy="pip install 'holdfast[x509]'",
    ) from None

MAX_FILE: Final = 1024 * 1024
"""Maximum bytes of a file of certificates."""
MIN_BITS: Final = 2048
"""Minimum size of an RSA key."""
REMEMBERED: Final = 1024
"""Maximum number of certificates with a remembered check."""
REMEMBER: Final = 60.0
"""Seconds for which the check of a certificate counts."""

DistinguishedName = list[frozenset[tuple[str, str]]]
"""The parts of a name, the most specific last; each has types and values."""

_ISSUE_V3: Final = (
    "Peers that trust its issuer accept only version 3. Issue it again: openssl x509 -req with -extfile, and there "
    "basicConstraints=CA:FALSE."
)
_NEW_KEY: Final = "openssl req -newkey rsa:2048 -nodes -keyout KEY -out REQUEST"

_HASHES: Final[dict[str, hashes.HashAlgorithm]] = {
    RSA_SHA256: hashes.SHA256(),
    RSA_SHA1: hashes.SHA1(),
    SHA256: hashes.SHA256(),
    SHA1: hashes.SHA1(),
}


@dataclass(frozen=True, slots=True)
class KeyReference:
    """How a message names a certificate (X.509 Certificate Token Profile 1.1, section 3.2).

    Args:
        kind: Which form; "key": an assertion has the key and no certificate (SAML Token Profile 1.1, section 3.5.2).
        value: The certificate in DER for "token"; the public key in DER for "key"; the identifier; b"" for
            "issuer-serial".
        issuer: The issuer's name, for "issuer-serial".
        serial: The serial number, for "issuer-serial".
    """

    kind: Kind | Literal["key"]
    value: bytes = b""
    issuer: str = ""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a trusted certificate.

    Args:
        subject: The distinguished name, as in RFC 4514.
        issued_by: A URI for the issuer; or for the certificate, if the files contain it. A renewed certificate of the
            same issuer has the same.
        is_known: Whether the files contain the certificate, and not only its issuer.
    """

    subject: str
    issued_by: str
    is_known: bool


class _UnusableKey(Invalid):
    """A certificate with a key that is not for RSA, or too short."""


class Certificate:
    """A certificate with an RSA key, and the ways to name it.

    Raises:
        Invalid: The key is not an RSA key, or too short.
    """

    def __init__(self, found: x509.Certificate) -> None:
        key = found.public_key()
        if not isinstance(key, rsa.RSAPublicKey) or key.key_size < MIN_BITS:
            size = f", but one of {key.key_size} bits" if isinstance(key, rsa.RSAPublicKey) else ", but of another kind"
            raise _UnusableKey(f"the certificate has no RSA key of at least {MIN_BITS} bits{size}")
        self.found = found
        self._key = key
        self.der = found.public_bytes(serialization.Encoding.DER)

    @classmethod
    def from_der(cls, data: bytes) -> Certificate:
        """Read a certificate.

        Raises:
            Invalid: It is not one, or has no RSA key.
        """
        try:
            return cls(x509.load_der_x509_certificate(data))
        except _UnusableKey:  # a ValueError, too
            raise
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise Invalid("the token is not an X.509 certificate") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.der == other.der

    def __hash__(self) -> int:
        return hash(self.der)

    @property
    def subject(self) -> str:
        """The owner's distinguished name."""
        return self.found.subject.rfc4514_string()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the whole certificate, in lower-case hexadecimal digits."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def key_identifier(self) -> bytes:
        """The value of its extension SubjectKeyIdentifier, b"" without one."""
        try:
            return self.found.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
        except (x509.ExtensionNotFound, ValueError):
            return b""

    def reference(self, kind: Kind) -> KeyReference:
        """Return its name in a form."""
        if kind == "token":
            return KeyReference(kind, self.der)
        if kind == "issuer-serial":
            issuer = self.found.issuer.rfc4514_string()
            return KeyReference(kind, issuer=issuer, serial=self.found.serial_number)
        if kind == "subject-key-identifier":
            return KeyReference(kind, self.key_identifier)
        return KeyReference(kind, hashlib.sha1(self.der).digest())

    def is_named_by(self, reference: KeyReference) -> bool:
        if reference.kind == "key":
            return _spki(self._key) == reference.value
        if reference.kind != "issuer-serial":
            # Without an identifier, a certificate is not named: several may have none.
            return bool(reference.value) and self.reference(reference.kind).value == reference.value
        is_its_number = reference.serial == self.found.serial_number
        return is_its_number and _name_in(reference.issuer) == _parts(self.found.issuer)

    def has_signed(self, data: bytes, signature: bytes, algorithm: str) -> bool:
        try:
            self._key.verify(signature, data, padding.PKCS1v15(), _HASHES[algorithm])
        except InvalidSignature:
            return False
        return True

    def wrap(self, key: bytes) -> bytes:
        """Encrypt a symmetric key for the owner, by RSA-OAEP as in XML Encryption 1.0, section 5.4.2."""
        return self._key.encrypt(key, _oaep(SHA1, SHA1))


class Credential:
    """A certificate and its private key.

    Args:
        certificate: A file in PEM. The first certificate counts.
        key: A file in PEM with its private key, without a password.

    Raises:
        ConfigurationError: A file cannot be read, or the two do not belong together.
    """

    def __init__(self, certificate: str | Path, key: str | Path) -> None:
        self.certificate = read_certificates(certificate)[0]
        try:
            private = serialization.load_pem_private_key(_content(key), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ConfigurationError(
                f"{key} has no private key in PEM, or one with a password",
                remedy="Convert it: openssl rsa -in key.pem -out plain.pem, readable only by the endpoint's user.",
            ) from None
        if not isinstance(private, rsa.RSAPrivateKey) or private.public_key() != self.certificate.found.public_key():
            raise ConfigurationError(
                f"{key} is not the private key of {certificate}", remedy="Name the key that the certificate is for."
            )
        self._key = private
        self._file = str(certificate)
        found = self.certificate.found
        if found.version is not x509.Version.v3:
            log.warning("certificate.outdated", file=self._file, version=found.version.name, remedy=_ISSUE_V3)
        self._validity = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
        self._was_valid = self._is_valid()
        self._warn()

    def _is_valid(self) -> bool:
        since, until = self._validity
        return since <= time.time() <= until

    def _warn(self) -> None:
        warn_of_validity(self._file, *self._validity, time.time(), "Peers refuse its signatures.")

    def trouble(self) -> str:
        """Return why peers refuse the signatures now, as a sentence; "" if the certificate is valid."""
        if self._is_valid():
            return ""
        since, until = (datetime.fromtimestamp(one, UTC) for one in self._validity)
        return (
            f"The certificate in {self._file} is valid only from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC."
        )

    def sign(self, data: bytes, algorithm: str) -> bytes:
        if self._was_valid and not self._is_valid():
            self._was_valid = False
            self._warn()  # once, when it expires
        return self._key.sign(data, padding.PKCS1v15(), _HASHES[algorithm])

    def unwrap(self, wrapped: bytes, *lengths: int, digest: str = SHA1, mask: str = SHA1) -> bytes:
        """Return the symmetric key that was encrypted for this certificate by RSA-OAEP.

        If it cannot be decrypted, or has another length, the result is a random key. Then the content makes no sense,
        as with a wrong key, and the sender does not learn which it was (XML Encryption 1.1, section 6.1.1).

        Args:
            lengths: How many bytes it may have.
            digest: Algorithm of the digest.
            mask: Algorithm of the digest in the mask generation function.
        """
        other = secrets.token_bytes(max(lengths))
        try:
            key = self._key.decrypt(wrapped, _oaep(digest, mask))
        except ValueError:
            return other
        return key if len(key) in lengths else other

    def __reduce__(self) -> Any:
        raise TypeError("private keys cannot be serialized")


class Trust:
    """The certificates that an endpoint trusts: those of peers themselves, and those of issuers.

    Args:
        files: Files in PEM.
        own: The endpoint's own certificate. A peer that signs with it would be the endpoint itself.

    Raises:
        ConfigurationError: A file cannot be read, has no certificate, or has the endpoint's own.
    """

    def __init__(self, files: Sequence[str | Path], own: Certificate) -> None:
        self._known = [one for file in files for one in read_certificates(file)]
        if own in self._known:
            raise ConfigurationError(
                "trusted= contains the endpoint's own certificate: its own messages, sent back to it, would count",
                remedy="Give each side another certificate, and trust that of the other side.",
            )
        if not self._known:
            raise ConfigurationError("trusted= names no certificate", remedy="Name the file of the peer's certificate.")
        issuers = [one.found for one in self._known if _is_issuer(one.found)]
        self._store = verification.Store(issuers) if issuers else None
        self._own = own
        self._checked: dict[Certificate, tuple[Owner, float, float]] = {}
        """Certificate -> its owner, and from when until when that counts."""

    @property
    def peers(self) -> list[Certificate]:
        """Those that are not an issuer's."""
        return [one for one in self._known if not _is_issuer(one.found)]

    @property
    def has_signer(self) -> bool:
        """Whether a certificate in the files may sign messages itself. That of an issuer may, unless it says otherwise:
        a service may have a self-signed certificate."""
        return any(_may_sign(one.found) for one in self._known)

    def find(self, reference: KeyReference) -> Certificate:
        """Return the certificate that a message names.

        Raises:
            Invalid: It contains one that is not valid.
            Unproven: None of those in the files has the name, or several have.
        """
        if reference.kind == "token":
            return Certificate.from_der(reference.value)
        found = [one for one in self._known if one.is_named_by(reference)]
        if len(found) != 1:
            raise Unproven(f"{len(found)} of the trusted certificates have the {reference.kind} of the message")
        return found[0]

    def check(self, certificate: Certificate, now: float) -> Owner:
        """Return the owner of a certificate (RFC 5280, section 6.1; without lists of revoked ones).

        Raises:
            Unproven: It is not trusted, or not valid at that time.
        """
        owner, since, until = self._checked.get(certificate, (None, 0.0, 0.0))
        if owner is not None and since <= now < until:
            return owner
        owner = self._owner_of(certificate, datetime.fromtimestamp(now, UTC))
        if len(self._checked) >= REMEMBERED:
            self._checked.clear()
        until = min(now + REMEMBER, certificate.found.not_valid_after_utc.timestamp())
        self._checked[certificate] = owner, now, until
        return owner

    def _owner_of(self, certificate: Certificate, at: datetime) -> Owner:
        found = certificate.found
        if certificate == self._own:
            raise Unproven("the message is signed with our own certificate")
        if not found.not_valid_before_utc <= at <= found.not_valid_after_utc:
            raise Unproven(f"the certificate of {certificate.subject} is not valid now")
        if not _may_sign(found) or not certificate.subject:
            raise Unproven(f"the certificate of {certificate.subject} is not for signatures")
        if certificate in self._known:
            return Owner(certificate.subject, _uri(certificate.der), True)
        if self._store is None:
            raise Unproven(f"the certificate of {certificate.subject} is not a trusted one")
        if found.version is not x509.Version.v3:
            raise Unproven(f"the certificate of {certificate.subject} has X.509 version 1. {_ISSUE_V3}")
        try:
            _verifier(self._store, at).verify(found, [])
        except verification.VerificationError as error:
            raise Unproven(f"the certificate of {certificate.subject} is not of a trusted issuer: {error}") from None
        return Owner(certificate.subject, _uri(found.issuer.public_bytes()), False)


def rsa_key(modulus: bytes, exponent: bytes) -> KeyReference:
    """Return the name of a certificate by its public key (XML Signature 1.0, section 4.4.2.2).

    Raises:
        Invalid: It is no RSA key.
    """
    try:
        numbers = rsa.RSAPublicNumbers(int.from_bytes(exponent, "big"), int.from_bytes(modulus, "big"))
        return KeyReference("key", _spki(numbers.public_key()))
    except (ValueError, UnsupportedAlgorithm):
        raise Invalid("the RSAKeyValue is not an RSA key") from None


def distinguished_name(text: str) -> DistinguishedName:
    """Return the parts of a distinguished name as in RFC 4514.

    Raises:
        ConfigurationError: It is not one.
    """
    parts = _name_in(text)
    if not parts:
        raise ConfigurationError(
            f"{text!r} is not a distinguished name",
            remedy="Write it as in openssl x509 -in FILE -noout -subject -nameopt RFC2253.",
        )
    return parts


def read_certificates(file: str | Path) -> list[Certificate]:
    """Return the certificates in a file in PEM.

    Raises:
        ConfigurationError: It cannot be read, has no certificate, or one without a usable key.
    """
    content = _content(file)
    try:
        return [Certificate(one) for one in x509.load_pem_x509_certificates(content)]
    except _UnusableKey as error:
        raise ConfigurationError(
            f"{file}: {error}",
            remedy=f"Only RSA is supported. Create such a key, and have a certificate issued for it: {_NEW_KEY}.",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{file}: it has no certificate in PEM", remedy=_remedy_without(content)) from None


def _remedy_without(content: bytes) -> str:
    """Return what to do about a file that has no certificate in PEM."""
    if b"PRIVATE KEY-----" in content:
        return "The file has a private key. Name the certificate's file here, and the key's as the key."
    try:
        x509.load_der_x509_certificate(content)
    except (ValueError, UnsupportedAlgorithm):
        return "Name a file with a certificate: it begins with -----BEGIN CERTIFICATE-----."
    return "Convert it: openssl x509 -in FILE -inform DER -out certificate.pem."


def _content(file: str | Path) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{file} cannot be read: {why}", remedy="Correct the path.") from None
    if len(content) > MAX_FILE:
        raise ConfigurationError(f"{file} is longer than {MAX_FILE:,} bytes", remedy="Name fewer certificates.")
    return content


def _spki(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _oaep(digest: str, mask: str) -> padding.OAEP:
    return padding.OAEP(padding.MGF1(_HASHES[mask]), _HASHES[digest], None)


def _uri(identity: bytes) -> str:
    return f"{ISSUER}x509:{hashlib.sha256(identity).hexdigest()}"


def _is_issuer(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _may_sign(certificate: x509.Certificate) -> bool:
    """Whether its key is for signatures (RFC 5280, 4.2.1.3). Without the extension, it is for anything."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except ValueError:
        return False
    return usage.digital_signature or usage.content_commitment


def _verifier(store: verification.Store, at: datetime) -> verification.ClientVerifier:
    """Return what checks a chain. The issuers need no more than that they are: private ones omit what the web needs."""
    issuers = verification.ExtensionPolicy.permit_all().require_present(
        x509.BasicConstraints, verification.Criticality.AGNOSTIC, _check_issuer
    )
    issuers = issuers.may_be_present(x509.KeyUsage, verification.Criticality.AGNOSTIC, _check_issuer_usage)
    builder = verification.PolicyBuilder().store(store).time(at)
    return builder.extension_policies(
        ca_policy=issuers, ee_policy=verification.ExtensionPolicy.permit_all()
    ).build_client_verifier()


def _check_issuer(_policy: object, _certificate: object, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("it is no issuer")


def _check_issuer_usage(_policy: object, _certificate: object, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("its key is not for certificates")


def _parts(name: x509.Name) -> DistinguishedName:
    return [frozenset((one.oid.dotted_string, str(one.value)) for one in part) for part in name.rdns]


def _name_in(text: str) -> DistinguishedName | None:
    """Return the parts of a distinguished name, None if it is not one. Peers write blanks after the commas, or not."""
    for form in (text.strip(), text.strip().replace(", ", ",")):
        try:
            return _parts(x509.Name.from_rfc4514_string(form))
        except ValueError:
            continue
    return None
