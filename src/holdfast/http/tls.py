"""TLS contexts from files, for both ends, and what a peer's certificate says. Knows no connection."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
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
        raise ConfigurationError(
            f"the certificate and key cannot be read from {certificate}{(f' and {key}' if key else '')}: {error}",
            remedy="The certificate's file must be PEM and contain the chain; the key must be PEM, unencrypted, in "
            "its own file or the same one.",
        ) from error


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"the authorities' certificates cannot be read from {file}: {error}",
            remedy="The file must be PEM, with one or more certificates.",
        ) from error
