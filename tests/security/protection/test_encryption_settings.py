"""Certificates for encryption other than those for signatures: the endpoint's own, and those of its peers.

Covers security/protection/written_policy.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from signers import Issued, authority, issue

from holdfast import (
    X509,
    ConfigurationError,
    Destination,
    DestinationHTTP,
    Encryption,
    Message,
    PeerFault,
    Source,
    SourceHTTP,
    Versions,
)
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.security.certificates import Certificate
from holdfast.security.protection.encryption_settings import PeerCertificates
from holdfast.testing import pair
from holdfast.testing.ports import free_ports

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
ALICE, BOB = issue("CN=alice,O=Example", authority()), issue("CN=bob,O=Example", authority())
SHOP = issue("CN=shop,O=Example", authority())


def for_encryption(one: Issued) -> Issued:
    """The same owner's certificate for another key, which may not sign."""
    return issue(one.name, authority(), usage="key_encipherment", bits=3072)


def source_of(one: Issued, directory: Path, **options: object) -> X509:
    encrypt = Encryption(for_encryption(SHOP).files(directory).certificate, **options)  # type: ignore[arg-type]
    return X509(*one.files(directory), trusted=SHOP.files(directory).certificate, encrypt=encrypt)


def shop(directory: Path, *peers: Issued, **named: Issued) -> X509:
    own = for_encryption(SHOP).files(directory)
    files = {one.name: for_encryption(one).files(directory).certificate for one in peers}
    files |= {url: for_encryption(one).files(directory).certificate for url, one in named.items()}
    trusted = [one.files(directory).certificate for one in (ALICE, BOB)]
    encrypt = Encryption(own=(own.certificate, own.key), peers=files)
    return X509(*SHOP.files(directory), trusted=trusted, encrypt=encrypt)


def own(one: Issued, directory: Path) -> tuple[Path, Path]:
    files = for_encryption(one).files(directory)
    return files.certificate, files.key


async def echo(message: Message) -> bytes:
    return message.body_bytes


async def test_each_side_decrypts_with_a_key_that_does_not_sign(tmp_path: Path) -> None:
    """Alice has two certificates, bob has one: each gets answers that it can read."""
    app = Destination(":memory:", processors=[shop(tmp_path, ALICE)])
    app.on("urn:echo")(echo)
    for one, options in ((ALICE, {"own": own(ALICE, tmp_path)}), (BOB, {})):
        processors = [source_of(one, tmp_path, **options)]
        async with pair(app, processors=processors, policy=HASTY) as source:
            assert (await source.request("<n>7</n>", action="urn:echo", timeout=240)).body.text == "7"


async def test_a_message_for_the_key_that_signs_is_refused(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path)])
    trusted = SHOP.files(tmp_path).certificate
    processor = X509(*ALICE.files(tmp_path), trusted=trusted, encrypt=Encryption())
    with pytest.raises(PeerFault, match="InvalidSecurity"):
        async with pair(app, processors=[processor], policy=HASTY) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)


async def test_replies_are_posted_to_several_peers_each_with_its_certificate(tmp_path: Path) -> None:
    ports = dict(zip((ALICE.name, BOB.name), free_ports(2), strict=True))
    named = {f"http://127.0.0.1:{ports[one.name]}/": one for one in (ALICE, BOB)}
    allowed = DestinationHTTP(allow_addresses=["http://127.0.0.1"])
    app = Destination(tmp_path / "inbox", processors=[shop(tmp_path, ALICE, BOB, **named)], http=allowed)
    app.on("urn:echo")(echo)
    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        for one in (ALICE, BOB):
            async with Source(
                service.url,
                ":memory:",
                http=SourceHTTP(listen=("127.0.0.1", ports[one.name])),
                processors=[source_of(one, tmp_path, own=own(one, tmp_path))],
                policy=HASTY,
                versions=Versions("1.1", "2005/08", "1.2"),
            ) as source:
                reply = await source.request(f"<n>{one.name}</n>", action="urn:echo", timeout=240)
                assert reply.body.text == one.name
    finally:
        await service.close()


def test_the_longest_url_of_an_address_counts(tmp_path: Path) -> None:
    files = {
        "https://peers.example/": ALICE,
        "https://peers.example/bob": BOB,
        "https://shop.example:443": SHOP,
    }
    found = PeerCertificates({url: one.files(tmp_path).certificate for url, one in files.items()})
    expected = {
        "https://peers.example/replies": ALICE,
        "https://peers.example/bob/replies?x=1": BOB,
        "https://peers.example/bob": BOB,
        "https://peers.example/bobby": ALICE,
        "https://peers.example.org/bob": None,
        "https://shop.example:443/": SHOP,
        "https://shop.example:4430/": None,
        "http://peers.example/": None,
    }
    for address, one in expected.items():
        assert found.at(address) == (None if one is None else Certificate(one.found)), address


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"own": "encryption.pem"}, "own cannot be"),
        ({"own": ("encryption.pem",)}, "a tuple of 2"),
        ({"peers": {"alice": "alice.pem"}}, "neither a distinguished name nor a URL"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Encryption(**options)  # type: ignore[arg-type]


async def test_a_policy_says_that_a_service_has_two_certificates(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path)])
    wsdl = tmp_path / "service.wsdl"
    wsdl.write_bytes(app._generated_wsdl("http://shop.example/"))
    processor = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate, encrypt=Encryption())
    with pytest.raises(ConfigurationError, match="RecipientEncryptionToken") as raised:
        await Source.from_wsdl(wsdl, ":memory:", processors=[processor])
    assert "service-encryption.pem" in str(raised.value)
    source = await Source.from_wsdl(wsdl, ":memory:", processors=[source_of(ALICE, tmp_path)])
    await source.close()


async def test_a_source_that_encrypts_more_than_a_policy_demands_is_told(tmp_path: Path) -> None:
    """The service would answer with messages that are not encrypted, and the source would refuse them."""
    trusted = ALICE.files(tmp_path).certificate
    app = Destination(":memory:", processors=[X509(*SHOP.files(tmp_path), trusted=trusted)])
    app.on("urn:shop/echo")(echo)
    wsdl = tmp_path / "service.wsdl"
    wsdl.write_bytes(app._generated_wsdl("http://shop.example/"))
    processor = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate, encrypt=Encryption())
    with pytest.raises(ConfigurationError, match="does not ask for messages encrypted for a certificate in the input"):
        await Source.from_wsdl(wsdl, ":memory:", processors=[processor])
