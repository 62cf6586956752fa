"""Certificates: whom an endpoint trusts, by which names it finds them, and files that are no use."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from signers import SINCE, UNTIL, Issued, authority, elliptic_key, issue

from holdfast import X509, Destination, PeerFault
from holdfast.exceptions import ConfigurationError
from holdfast.security.certificates import (
    REMEMBERED,
    Certificate,
    Credential,
    KeyReference,
    Owner,
    Trust,
    distinguished_name,
    read_certificates,
)
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import Kind
from holdfast.testing import pair

NOW = datetime(2027, 1, 15, tzinfo=UTC)
SHOP = issue("CN=shop,O=Example", authority())
ALICE = issue("CN=alice,O=Example", authority())


def trust(directory: Path, *trusted: Issued) -> Trust:
    return Trust([one.files(directory).certificate for one in trusted], Certificate(SHOP.found))


def owner_of(trusted: Trust, one: Issued, at: datetime = NOW) -> Owner:
    return trusted.check(Certificate(one.found), at.timestamp())


def test_a_certificate_of_a_trusted_issuer_is_its_subjects(tmp_path: Path) -> None:
    found = owner_of(trust(tmp_path, authority()), ALICE)
    assert found.subject == "CN=alice,O=Example"
    assert not found.is_known


def test_a_certificate_that_is_trusted_itself_needs_no_issuer(tmp_path: Path) -> None:
    alone = issue("CN=alone")
    assert owner_of(trust(tmp_path, alone), alone).is_known


def test_a_chain_of_issuers_is_followed_if_they_are_in_the_files(tmp_path: Path) -> None:
    between = issue("CN=between", authority(), is_issuer=True)
    below = issue("CN=below", between)
    assert owner_of(trust(tmp_path, between), below).subject == "CN=below"
    with pytest.raises(Unproven, match="not of a trusted issuer"):
        owner_of(trust(tmp_path, authority()), below)


def test_a_renewed_certificate_has_the_same_owner_and_one_of_another_issuer_has_not(tmp_path: Path) -> None:
    other = authority("CN=other authority")
    both = trust(tmp_path, authority(), other)
    renewed = issue("CN=alice,O=Example", authority(), serial=7)
    impostor = issue("CN=alice,O=Example", other)
    assert owner_of(both, renewed) == owner_of(both, ALICE)
    assert owner_of(both, impostor).issued_by != owner_of(both, ALICE).issued_by


UNTRUSTED = {
    "another issuer": issue("CN=alice,O=Example", authority("CN=other authority")),
    "an issuer of the same name": issue(
        "CN=alice,O=Example", issue("CN=authority,O=Example", is_issuer=True, bits=2056)
    ),
    "nobody": issue("CN=nobody"),
    "issued by a certificate that is no issuer": issue("CN=mallory", ALICE),
    "expired": issue("CN=old", authority(), until=NOW - timedelta(days=1)),
    "not yet valid": issue("CN=young", authority(), since=NOW + timedelta(days=1)),
    "a key for encryption only": issue("CN=secretive", authority(), usage="key_encipherment"),
    "no name": issue("", authority()),
    "our own": SHOP,
}


@pytest.mark.parametrize("what", UNTRUSTED)
def test_other_certificates_are_not_trusted(tmp_path: Path, what: str) -> None:
    trusted = trust(tmp_path, authority(), ALICE)
    with pytest.raises(Unproven):
        owner_of(trusted, UNTRUSTED[what])
    with pytest.raises(Unproven):
        owner_of(trusted, UNTRUSTED[what])


def test_a_trusted_certificate_that_has_expired_counts_no_longer(tmp_path: Path) -> None:
    short = issue("CN=short", until=NOW + timedelta(seconds=30))
    trusted = trust(tmp_path, short)
    assert owner_of(trusted, short).is_known
    with pytest.raises(Unproven, match="not valid now"):
        owner_of(trusted, short, NOW + timedelta(seconds=31))


def test_an_issuer_that_may_not_issue_is_none(tmp_path: Path) -> None:
    weak = issue("CN=weak", is_issuer=True, usage="digital_signature")
    with pytest.raises(Unproven, match="not of a trusted issuer"):
        owner_of(trust(tmp_path, weak), issue("CN=below weak", weak))


def test_the_memory_of_checks_is_bounded(tmp_path: Path) -> None:
    trusted = trust(tmp_path, authority())
    checked = owner_of(trusted, ALICE)
    for number in range(REMEMBERED):
        trusted._checked[Certificate(SHOP.found)] = checked, 0.0, float(number)
        trusted._checked[f"stand-in {number}"] = checked, 0.0, 0.0  # type: ignore[index]
    owner_of(trusted, ALICE, NOW + timedelta(hours=1))
    assert len(trusted._checked) == 1


# --- names -----------------------------------------------------------------------------------------------------------

KINDS: tuple[Kind, ...] = ("token", "subject-key-identifier", "issuer-serial", "thumbprint")


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_is_found_by_each_kind_of_name(tmp_path: Path, kind: Kind) -> None:
    trusted = trust(tmp_path, issue("CN=bob"), ALICE)
    assert trusted.find(Certificate(ALICE.found).reference(kind)) == Certificate(ALICE.found)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_name_of_no_certificate_in_the_files_finds_none(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(Unproven, match="0 of the trusted"):
        trust(tmp_path, authority()).find(Certificate(ALICE.found).reference(kind))


def test_a_name_of_two_certificates_finds_none(tmp_path: Path) -> None:
    renewed = issue("CN=alice,O=Example", authority(), serial=7)
    with pytest.raises(Unproven, match="2 of the trusted"):
        trust(tmp_path, ALICE, renewed).find(Certificate(ALICE.found).reference("subject-key-identifier"))


@pytest.mark.parametrize("issuer", ["CN=authority,O=Example", "CN=authority, O=Example", " CN=authority,O=Example "])
def test_an_issuer_is_known_with_and_without_blanks(tmp_path: Path, issuer: str) -> None:
    named = KeyReference("issuer-serial", issuer=issuer, serial=ALICE.found.serial_number)
    assert trust(tmp_path, ALICE).find(named).subject == "CN=alice,O=Example"


@pytest.mark.parametrize(
    "issuer", ["O=Example,CN=authority", "CN=authority", "", "nonsense", "CN=authority,O=Example,"]
)
def test_another_issuer_of_the_same_number_is_another(tmp_path: Path, issuer: str) -> None:
    named = KeyReference("issuer-serial", issuer=issuer, serial=ALICE.found.serial_number)
    with pytest.raises(Unproven, match="0 of the trusted"):
        trust(tmp_path, ALICE).find(named)


def test_an_absent_identifier_is_not_the_identifier_of_a_certificate_without_one(tmp_path: Path) -> None:
    bare = issue("CN=bare", has_identifier=False)
    with pytest.raises(Unproven, match="0 of the trusted"):
        trust(tmp_path, bare).find(KeyReference("subject-key-identifier", b""))


def test_bytes_that_are_no_certificate_and_short_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not an X"):
        trust(tmp_path, ALICE).find(KeyReference("token", b"nonsense"))
    with pytest.raises(Invalid, match="2048 bits"):
        Certificate(issue("CN=small", bits=1024).found)


def test_the_parts_of_a_name_are_read() -> None:
    assert distinguished_name("CN=a+O=b") == distinguished_name("O=b+CN=a")
    with pytest.raises(ConfigurationError, match="not a distinguished name"):
        distinguished_name("alice")


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_key_signs_what_its_certificate_proves(tmp_path: Path) -> None:
    credential = Credential(*ALICE.files(tmp_path))
    algorithm = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"
    signature = credential.sign(b"data", algorithm)
    assert credential.certificate.has_signed(b"data", signature, algorithm)
    assert not credential.certificate.has_signed(b"other", signature, algorithm)
    assert not Certificate(SHOP.found).has_signed(b"data", signature, algorithm)


def test_a_credential_cannot_be_serialized(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be serialized"):
        pickle.dumps(Credential(*ALICE.files(tmp_path)))


def test_files_that_are_no_use_are_errors_of_the_settings(tmp_path: Path) -> None:
    alice, shop = ALICE.files(tmp_path), SHOP.files(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "huge").write_bytes(b"#" * 1_100_000)
    locked = serialization.BestAvailableEncryption(b"password")
    pkcs8 = serialization.PrivateFormat.PKCS8
    (tmp_path / "locked").write_bytes(ALICE.key.private_bytes(serialization.Encoding.PEM, pkcs8, locked))
    plain = serialization.NoEncryption()
    (tmp_path / "elliptic").write_bytes(elliptic_key().private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    for why, key in {
        "cannot be read": tmp_path / "absent",
        "no private key": tmp_path / "empty",
        "with a password": tmp_path / "locked",
        "not the private key of": shop.key,
        "longer than": tmp_path / "huge",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            Credential(alice.certificate, key)
    with pytest.raises(ConfigurationError, match="not the private key of"):
        Credential(alice.certificate, tmp_path / "elliptic")
    with pytest.raises(ConfigurationError, match="no certificate in PEM"):
        read_certificates(tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="names no certificate"):
        Trust([], Certificate(SHOP.found))


def test_a_token_with_an_unusable_key_is_told_from_one_that_is_no_certificate() -> None:
    small = issue("CN=small", bits=1024).found.public_bytes(serialization.Encoding.DER)
    for token, told in ((small, "one of 1024 bits"), (b"small", "not an X.509 certificate")):
        with pytest.raises(Invalid, match=told):
            Certificate.from_der(token)


def test_the_remedy_for_a_useless_certificate_fits_its_fault(tmp_path: Path) -> None:
    """What to convert can be converted, and nobody is told to convert anything else."""
    small = issue("CN=small", bits=1024)
    name, key = x509.Name.from_rfc4514_string("CN=curve"), elliptic_key()
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    curve = builder.serial_number(1).not_valid_before(SINCE).not_valid_after(UNTIL).sign(key, hashes.SHA256())
    der = ALICE.found.public_bytes(serialization.Encoding.DER)
    for content, told, remedy in (
        (small.pem, "one of 1024 bits", "rsa:2048"),
        (curve.public_bytes(serialization.Encoding.PEM), "of another kind", "rsa:2048"),
        (der, "no certificate in PEM", "-inform DER"),
        (ALICE.files(tmp_path).key.read_bytes(), "no certificate in PEM", "private key"),
        (b"<definitions/>", "no certificate in PEM", "BEGIN CERTIFICATE"),
        (b"", "no certificate in PEM", "BEGIN CERTIFICATE"),
    ):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ConfigurationError, match=told) as raised:
            read_certificates(tmp_path / "file")
        assert remedy in raised.value.remedy
        assert ("Convert" in raised.value.remedy) == (content is der)


def first_version(one: Issued, by: Issued, directory: Path) -> Path:
    """The certificate as ``openssl x509 -req`` issues it without -extfile."""
    files, issuer, request, made = one.files(directory), by.files(directory), directory / "csr", directory / "v1.pem"
    authorized = ["-CA", issuer.certificate, "-CAkey", issuer.key, "-set_serial", "1"]
    for command in (
        ["req", "-new", "-key", files.key, "-subj", "/CN=first", "-out", request],
        ["x509", "-req", "-in", request, *authorized, "-out", made],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return made


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the library issues no certificates of version 1")
def test_an_own_certificate_that_peers_refuse_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = first_version(ALICE, authority(), tmp_path)
    if x509.load_pem_x509_certificate(made.read_bytes()).version is not x509.Version.v1:
        pytest.skip("this openssl adds extensions of its own")
    found = Credential(made, ALICE.files(tmp_path).key).certificate
    assert "certificate.outdated" in caplog.text and "basicConstraints=CA:FALSE" in caplog.text
    assert "certificate.not_valid" not in caplog.text
    with pytest.raises(Unproven, match=r"version 1\. .*basicConstraints=CA:FALSE"):
        trust(tmp_path, authority()).check(found, time.time())
    assert Trust([made], Certificate(SHOP.found)).check(found, time.time()).is_known
    caplog.clear()
    Credential(*issue("CN=old", authority(), until=datetime(2021, 1, 1, tzinfo=UTC)).files(tmp_path))
    assert "certificate.not_valid" in caplog.text and "2021-01-01" in caplog.text
    caplog.clear()
    Credential(*ALICE.files(tmp_path))
    assert not caplog.text


@pytest.mark.parametrize("days", [31, -2], ids=["expired", "not valid yet"])
async def test_a_source_with_a_certificate_that_becomes_invalid_while_it_runs_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    now = time.time()
    since, until = (datetime.fromtimestamp(now + days * 86_400, UTC) for days in (-1, 30))
    own, shop = issue("CN=short", since=since, until=until), issue("CN=shop")
    clock = [now]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    trusted = {one: one.files(tmp_path).certificate for one in (own, shop)}
    service = Destination(processors=[X509(*shop.files(tmp_path), trusted=trusted[own])])
    service.on("urn:a")(lambda _: None)
    processors = [X509(*own.files(tmp_path), trusted=trusted[shop])]
    with pytest.raises(PeerFault, match="InvalidSecurity"):  # noqa: PT012
        async with pair(service, processors=processors) as source:
            await (await source.send("<a/>", action="urn:a")).acknowledged(60)
            assert "certificate." not in caplog.text
            clock[0] += days * 86_400
            with pytest.raises(PeerFault, match="Replace it, or correct this machine's clock") as raised:
                await (await source.send("<a/>", action="urn:a")).acknowledged(60)
            assert f"certificate in {own.files(tmp_path).certificate} is valid only from" in raised.value.remedy
            assert caplog.text.count("certificate.not_valid") == 1


def test_trust_in_the_own_certificate_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="own certificate"):
        trust(tmp_path, SHOP)
