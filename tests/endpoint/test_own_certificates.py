"""Own certificates: warnings before peers refuse them, and remedies for files that cannot be used.

Covers http/tls.py and endpoint/logs.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from signers import Files, issue

from holdfast.endpoint.logs import warn_of_tls
from holdfast.exceptions import ConfigurationError
from holdfast.http.tls import ClientTLS, ServerTLS, own_validity
from holdfast.security.certificates import Credential

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.partition("event='")[2].partition("'")[0] for line in caplog.messages if "certificate." in line]


@pytest.mark.parametrize(
    ("since", "until", "event"),
    [
        (NOW - 400 * DAY, NOW - DAY, "certificate.not_valid"),
        (NOW + DAY, NOW + 400 * DAY, "certificate.not_valid"),
        (NOW - DAY, NOW + 13 * DAY, "certificate.expires"),
        (NOW - DAY, NOW + 15 * DAY, ""),
        (datetime(1999, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC), ""),
    ],
)
def test_a_certificate_that_peers_refuse_or_soon_will_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, since: datetime, until: datetime, event: str
) -> None:
    """In the same way for TLS and for messages."""
    files = issue("CN=shop,O=Example", since=since, until=until).files(tmp_path)
    assert own_validity(str(files.certificate)) == (since.timestamp(), until.timestamp())
    with caplog.at_level("WARNING", logger="holdfast"):
        warn_of_tls(str(files.certificate), None)
        assert told(caplog) == [event] * bool(event)
        Credential(*files)
    assert told(caplog) == [event, event] * bool(event)
    assert caplog.text.count("Replace it, or correct this machine's clock") == 2 * (event == "certificate.not_valid")


def test_a_file_without_a_readable_certificate_has_no_validity(tmp_path: Path) -> None:
    pem = issue("CN=shop,O=Example").pem
    for number, content in enumerate((b"", b"x", pem[:200], pem.replace(pem[60:90], b"A" * 30), pem[100:])):
        (tmp_path / str(number)).write_bytes(content)
        assert own_validity(str(tmp_path / str(number))) is None
    assert own_validity(str(tmp_path / "absent")) is None


def exchanged(files: Files, directory: Path) -> tuple[Any, ...]:
    return files.key, files.certificate


def of_another(files: Files, directory: Path) -> tuple[Any, ...]:
    return files.certificate, issue("CN=other,O=Example").files(directory).key


def encrypted(files: Files, directory: Path) -> tuple[Any, ...]:
    private = issue("CN=shop,O=Example").key
    for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        written = private.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret"))
        (directory / "locked.key").write_bytes(written)
    return files.certificate, directory / "locked.key"


def without_key(files: Files, directory: Path) -> tuple[Any, ...]:
    return (files.certificate,)


def in_der(files: Files, directory: Path) -> tuple[Any, ...]:
    der = issue("CN=shop,O=Example").found.public_bytes(serialization.Encoding.DER)
    (directory / "shop.der").write_bytes(der)
    return directory / "shop.der", files.key


@pytest.mark.parametrize(
    ("make", "what", "remedy"),
    [
        (exchanged, "has no certificate in PEM", "perhaps the two files are exchanged"),
        (of_another, "is not the private key of the certificate in", "Name the key that the certificate is for"),
        (encrypted, "is encrypted", "openssl pkey -in"),
        (without_key, "has no private key in PEM", "name the file of the key"),
        (in_der, "has no certificate in PEM", "openssl x509 -inform der"),
    ],
)
@pytest.mark.parametrize("kind", [ServerTLS, ClientTLS])
def test_files_that_cannot_be_used_are_named_with_what_to_do(
    tmp_path: Path, kind: Any, make: Any, what: str, remedy: str
) -> None:
    given = make(issue("CN=shop,O=Example").files(tmp_path), tmp_path)
    names = dict(zip(("certificate", "key"), map(str, given), strict=False))
    with pytest.raises(ConfigurationError) as caught:
        kind(**names).context()
    assert what in caught.value.message
    assert remedy in caught.value.remedy
