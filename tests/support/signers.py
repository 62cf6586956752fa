"""Certificates and keys for tests: of an authority, and of those it vouches for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

# OpenSSL tests the primes of an RSA key whenever it reads one: 36 ms of processor time. Tests read the same few keys
# thousands of times.
serialization.load_pem_private_key = cache(serialization.load_pem_private_key)  # type: ignore[assignment]

SINCE, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)


class Files(NamedTuple):
    """Where a certificate and its key are."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Issued:
    """A certificate with its private key."""

    name: str
    found: x509.Certificate
    key: rsa.RSAPrivateKey

    @property
    def pem(self) -> bytes:
        return self.found.public_bytes(serialization.Encoding.PEM)

    def files(self, directory: Path) -> Files:
        """Write both to a directory."""
        directory.mkdir(exist_ok=True)
        mark = self.found.fingerprint(hashes.SHA256()).hex()[:8]
        files = Files(directory / f"{mark}.pem", directory / f"{mark}.key")
        files.certificate.write_bytes(self.pem)
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files.key.write_bytes(self.key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
        return files


PRIMES = Path(__file__).parents[1] / "data" / "rsa_primes.txt"
"""Primes of RSA keys of 2,048 bits, two in each line. To find them takes a tenth of a second, and each worker of pytest
needs twenty keys before its first test."""


@cache
def _recorded() -> Iterator[tuple[int, int]]:
    lines = PRIMES.read_text(encoding="ascii").splitlines()
    return iter([(int(p, 16), int(q, 16)) for p, q in map(str.split, lines)])


@cache
def private_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """The key of that name, the same in each call of a process."""
    p, q = next(_recorded(), (0, 0)) if bits == 2048 else (0, 0)
    if not p:
        return rsa.generate_private_key(65537, bits)
    d = pow(65537, -1, (p - 1) * (q - 1))
    exponents = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, *exponents, rsa.RSAPublicNumbers(65537, p * q))
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


@cache
def elliptic_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def issue(
    name: str,
    by: Issued | None = None,
    *,
    is_issuer: bool = False,
    since: datetime = SINCE,
    until: datetime = UNTIL,
    usage: str = "",
    bits: int = 2048,
    serial: int = 0,
    has_identifier: bool = True,
) -> Issued:
    """Issue a certificate, signed by itself without an issuer.

    Args:
        name: The subject, as in RFC 4514.
        by: The issuer.
        is_issuer: Whether it may issue others.
        since: When it begins to be valid.
        until: When it ends to be.
        usage: The only use of its key, as x509.KeyUsage names it; "" for any.
        bits: Size of its key.
        serial: Its number; 0: any.
        has_identifier: Whether it has the extension SubjectKeyIdentifier.
    """
    key = private_key(name, bits)
    subject = x509.Name.from_rfc4514_string(name)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(by.found.subject if by is not None else subject)
    builder = (
        builder.serial_number(serial or x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
    )
    if has_identifier:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if is_issuer:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if usage:
        uses = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
        uses += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
        builder = builder.add_extension(x509.KeyUsage(**{use: use == usage for use in uses}), critical=True)
    signer = by.key if by is not None else key
    return Issued(name, builder.sign(signer, hashes.SHA256()), key)


@cache
def authority(name: str = "CN=authority,O=Example") -> Issued:
    """An issuer of certificates."""
    return issue(name, is_issuer=True)


def content_of(path: Path) -> bytes:
    """The content of a recorded HTTP message, its transfer coding removed; or the whole file, if it is XML."""
    data = path.read_bytes()
    if path.suffix == ".xml":
        return data
    head, _, data = data.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return data
    content = b""
    while size := int(data.partition(b"\r\n")[0] or b"0", 16):
        data = data.partition(b"\r\n")[2]
        content, data = content + data[:size], data[size + 2 :]
    return content
