"""TLS contexts from files, for both ends, and what a peer's certificate says. Knows no connection."""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.exceptions import ConfigurationError
from holdfast.settings import File

MAX_NAMES = 32
"""Maximum number of a certificate's subject alternative names to keep."""
MAX_TEXT = 1024
"""Characters of a distinguished name; a longer one is not kept, since half a name is another's."""

_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A certificate that a peer showed, and that was verified.

    Attributes:
        sha256: The SHA-256 of the whole certificate (DER), in lower-case hexadecimal digits.
        subject, issuer: Distinguished names in the form of RFC 4514, "" where unknown.
        serial_number: In upper-case hexadecimal digits, "" where unknown.
        names: Subject alternative names, such as ``DNS:client.example``.
    """

    sha256: str
    subject: str = ""
    issuer: str = ""
    serial_number: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, connection: ssl.SSLObject | ssl.SSLSocket) -> PeerCertificate | None:
        """Return the verified certificate of a TLS connection's peer, None without one."""
        encoded, decoded = connection.getpeercert(True), connection.getpeercert()
        # Decoded is empty for a certificate that was not verified.
        if not encoded or not decoded:
            return None
        names: Any = decoded.get("subjectAltName", ())
        return cls(
            hashlib.sha256(encoded).hexdigest(),
            distinguished_name(decoded.get("subject", ())),
            distinguished_name(decoded.get("issuer", ())),
            str(decoded.get("serialNumber", "")),
            tuple(f"{kind}:{name}" for kind, name in names[:MAX_NAMES] if len(str(name)) <= MAX_TEXT),
        )

    @classmethod
    def of_pem(cls, text: str, subject: str) -> PeerCertificate | None:
        """Return a certificate with a subject from another source, None if it is invalid.

        Args:
            text: The certificate, as PEM.
            subject: Its distinguished name in the form of RFC 4514.
        """
        try:
            encoded = ssl.PEM_cert_to_DER_cert(text)
        except ValueError:
            return None
        return cls(hashlib.sha256(encoded).hexdigest(), subject if len(subject) <= MAX_TEXT else "")


def distinguished_name(parts: Any) -> str:
    """Convert a name from Python's ssl to the form of RFC 4514: the most specific part first."""
    text = ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in reversed(parts)
    )
    return text if len(text) <= MAX_TEXT else ""


def _escaped(value: str) -> str:
    text = "".join(f"\\{sign}" if sign in '"+,;<>\\' else "\\00" if sign == "\0" else sign for sign in value)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(value) > 1 else text


@dataclass(frozen=True)
class ServerTLS:
    """TLS of a listener.

    Args:
        certificate: PEM file with the certificate and its chain.
        key: PEM file with the private key, unless the certificate's file contains it.
        client_ca: PEM file of certificate authorities. Clients must present a certificate that one of them signed.
    """

    certificate: File
    key: File | None = None
    client_ca: File | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the server.

        Raises:
            ConfigurationError: A file is not valid.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load_chain(context, self.certificate, self.key)
        if self.client_ca is not None:
            _load_authorities(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True)
class ClientTLS:
    """TLS towards a destination.

    Args:
        ca: PEM file of the certificate authorities to trust instead of the system's.
        certificate: PEM file with the client certificate and its chain.
        key: PEM file with the private key, unless the certificate's file contains it.
    """

    ca: File | None = None
    certificate: File | None = None
    key: File | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the client; None without any file, which means the system's trust.

        Raises:
            ConfigurationError: A file is not valid, or there is a key without a certificate.
        """
        if self.certificate is None and self.key is not None:
            raise ConfigurationError(
                f"{self.key} is a key without a certificate", remedy="Name the certificate of the key as well."
            )
        if self.ca is None and self.certificate is None:
            return None
        # With a configured authority, the system's are not trusted.
        context = ssl.create_default_context() if self.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            _load_authorities(context, self.ca)
        if self.certificate is not None:
            _load_chain(context, self.certificate, self.key)
        return context


def _load_chain(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        # An encrypted key must not make the process ask for a password at an unattended terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _unusable_chain(certificate, key, error) from error


def _unusable_chain(certificate: str, key: str | None, error: Exception) -> ConfigurationError:
    try:
        chain, private = (Path(one).read_bytes() for one in (certificate, key or certificate))
    except OSError as unread:
        return ConfigurationError(f"cannot read {unread.filename}: {unread.strerror}", remedy="Check the path.")
    named = key or certificate
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        other = " It has a private key: perhaps the two files are exchanged." if _KEY.search(chain) else ""
        return ConfigurationError(
            f"{certificate} has no certificate in PEM",
            remedy=f"Name the file with the certificate and its chain.{other} To convert DER: openssl x509 -inform der "
            "-in FILE -out server.pem.",
        )
    if _KEY.search(private) is None:
        where = "" if key else " Or name the file of the key."
        return ConfigurationError(
            f"{named} has no private key in PEM", remedy=f"Name the file with the certificate's private key.{where}"
        )
    if b"ENCRYPTED" in private:
        return ConfigurationError(
            f"the private key in {named} is encrypted, and an unattended process cannot ask for its password",
            remedy=f"Decrypt it: openssl pkey -in {named} -out plain.pem, readable only by the endpoint's user.",
        )
    if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
        return ConfigurationError(
            f"{named} is not the private key of the certificate in {certificate}",
            remedy="Name the key that the certificate is for. In the certificate's file, its own certificate comes "
            "before those of its issuers.",
        )
    return ConfigurationError(
        f"the certificate and key cannot be read from {certificate}{(f' and {key}' if key else '')}: {error}",
        remedy="The certificate's file must be PEM and contain the chain; the key must be PEM, unencrypted, in "
        "its own file or the same one.",
    )


_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def own_validity(file: str) -> tuple[float, float] | None:
    """Return since when and until when the first certificate in a file is valid, in seconds since 1970.

    Returns:
        None if the file has no certificate that can be read.
    """
    try:
        found = _FIRST.search(Path(file).read_text(encoding="ascii", errors="replace"))
        if found is None:
            return None
        certificate = _parts(ssl.PEM_cert_to_DER_cert(found.group()))[0][1]
        fields = _parts(_parts(certificate)[0][1])
        # RFC 5280, 4.1: the version, which is tagged, the serial number, the algorithm, the issuer, the validity.
        validity = _parts(fields[4 if fields[0][0] == 0xA0 else 3][1])
        since, until = (_seconds(tag, content.decode("ascii")) for tag, content in validity)
    except (OSError, ValueError, IndexError):
        return None
    return since, until


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    """Return the values in data encoded by DER, each with its tag."""
    found, at = [], 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        found.append((tag, data[at : at + size]))
        at += size
    return found


def _seconds(tag: int, text: str) -> float:
    """Return a time (RFC 5280, 4.1.2.5) in seconds since 1970. UTCTime has two digits of the year."""
    if tag == 0x17:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"the authorities' certificates cannot be read from {file}: {error}",
            remedy="The file must be PEM, with one or more certificates.",
        ) from error
