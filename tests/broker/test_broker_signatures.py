"""Signed messages on both legs of a broker: whom it believes, and as whom it forwards. Over real sockets."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import secured_broker
from secured_broker import BASE, ECHO, HASTY, Start, Witness
from signers import Files, Issued, authority, issue
from waiting import until

import holdfast
from holdfast import X509, Encryption
from holdfast.broker.config_file import read_config
from holdfast.endpoint.envelopes import envelopes
from holdfast.endpoint.envelopes.chain import REFUSED
from holdfast.testing.proxy import Faults, LossyProxy

ALICE, BOB = issue("CN=alice,O=Example", authority()), issue("CN=bob,O=Example", authority())
BROKER, SHOP = issue("CN=broker,O=Example"), issue("CN=shop,O=Example")


class Shop(secured_broker.Shop):
    """A service that believes the broker alone."""

    def __init__(self, directory: Path, trusted: Issued = BROKER, encrypt: Encryption | None = None) -> None:
        witness = Witness()
        self.data = witness.data
        super().__init__(witness, self.checks(directory, trusted, encrypt))

    @staticmethod
    def checks(directory: Path, trusted: Issued = BROKER, encrypt: Encryption | None = None) -> X509:
        return X509(*SHOP.files(directory), trusted=trusted.files(directory).certificate, encrypt=encrypt)


def signature(table: str, own: Files, trusted: Path, more: str = "") -> str:
    return f"""
[{table}.signature]
certificate = "{own.certificate}"
key = "{own.key}"
trusted = "{trusted}"
{more}
"""


def listener(directory: Path, more: str = "") -> str:
    return signature("security", BROKER.files(directory), authority().files(directory).certificate, more)


def forwarder(directory: Path, url: str, trusted: Issued = SHOP) -> str:
    table = f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\n'
    return table + signature("forwarders.shop.security", BROKER.files(directory), trusted.files(directory).certificate)


def source(
    url: str, one: Issued | None, directory: Path, encrypt: Encryption | None = None, *, binds: bool = False
) -> holdfast.Source:
    trusted = BROKER.files(directory).certificate
    signer = [] if one is None else [X509(*one.files(directory), trusted=trusted, encrypt=encrypt)]
    if binds:
        signer[0].bind_sequences()
    return holdfast.Source(url, ":memory:", processors=signer, policy=HASTY)


def test_a_forwarder_that_could_accept_no_answer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    text = BASE + forwarder(
        tmp_path, "https://shop.example/", issue("CN=authority", is_issuer=True, usage="key_cert_sign")
    )
    file.write_text(text)
    with pytest.raises(holdfast.ConfigurationError, match="no answer would be accepted") as caught:
        read_config(file)
    assert "subjects" in caught.value.remedy or "subjects" in str(caught.value)
    file.write_text(text + 'subjects = "CN=shop,O=Example"\n')
    read_config(file)


async def test_each_leg_has_its_own_signatures(start: Start, run_service: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    service = await run_service(shop.app)
    bad = Faults(lose_request=0.15, lose_response=0.15, double=0.1)
    async with LossyProxy(service.url, bad, seed=1) as behind:
        broker = await start(BASE + listener(tmp_path) + forwarder(tmp_path, behind.url))
        async with (
            LossyProxy(broker.service.url, bad, seed=2) as before,
            source(before.url, ALICE, tmp_path) as alice,
        ):
            for number in range(10):
                await alice.send(f"<n>{number}</n>", action="urn:note")
            reply = await alice.request("<n>10</n>", action=ECHO, timeout=240)
            assert reply.body.text == "10"
            await alice.flush(60)
        await until(lambda: len(shop.got) == 11)
        assert behind.counts.lost > 0
    assert sorted(int(message.body.text or "") for message in shop.got) == list(range(11))
    assert {message.user for message in shop.got} == {"CN=broker,O=Example"}
    assert all(data.count(b"<wsse:Security ") == 1 for data in shop.data), "the sender's signature ends at the broker"


@pytest.mark.parametrize("who", [None, issue("CN=stranger")], ids=["unsigned", "a stranger"])
async def test_nothing_that_is_not_signed_is_stored(start: Start, tmp_path: Path, who: Issued | None) -> None:
    broker = await start(BASE + listener(tmp_path))
    async with source(broker.service.url, who, tmp_path) as stranger:
        sent = await stranger.send("<n/>", action="urn:note")
        with pytest.raises(holdfast.PeerFault) as refused:
            await sent.acknowledged(60)
    assert refused.value.code == "InvalidSecurity"
    assert broker.destination.incidents[REFUSED] >= 1
    assert broker.destination.running.accepted == 0


async def test_a_route_may_depend_on_the_signer(start: Start, tmp_path: Path) -> None:
    routes = '[[routes]]\nuser = "CN=bob,*"\nqueues = "other"\n'
    broker = await start(BASE + routes + listener(tmp_path))
    for one in (ALICE, BOB):
        async with source(broker.service.url, one, tmp_path) as sender:
            await sender.send(f"<n>{one.name}</n>", action="urn:note")
            await sender.flush(60)
    store = broker.destination.running.store
    for queue, name in (("orders", b"alice"), ("other", b"bob")):
        parts = range(len(broker.destination.running.queues[queue].partitions))
        (record,) = [data for part in parts for _, data in store.read_encoded(queue, part, 0, 9)]
        assert b"<n>CN=" + name in record
        assert b"SignatureValue" not in record


async def test_an_answer_that_another_signed_acknowledges_nothing(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    """The forwarder trusts the shop. Whoever answers at its address with another certificate is not believed."""
    shop = Shop(tmp_path)
    service = await run_service(shop.app)
    broker = await start(BASE + forwarder(tmp_path, service.url, trusted=BOB))
    async with source(broker.service.url, None, tmp_path) as sender:
        await sender.send("<n/>", action="urn:note")
        await sender.flush(60)
    await until(lambda: broker.destination.incidents[REFUSED] >= 2)
    assert not shop.got, "there is no Sequence"
    (tmp_path / "broker.toml").write_text(BASE + forwarder(tmp_path, service.url))
    broker.reload()
    await until(lambda: len(shop.got) == 1)


async def test_signers_come_and_go_with_a_reload_and_signatures_are_remembered(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE + listener(tmp_path))
    before = broker._security._hops[""]
    (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path, 'subjects = ["CN=bob,O=Example"]'))
    assert broker.reload() == ["security.signature.subjects"]
    assert broker._security._hops[""]._nonces is before._nonces
    async with source(broker.service.url, ALICE, tmp_path) as alice:
        sent = await alice.send("<n/>", action="urn:note")
        with pytest.raises(holdfast.PeerFault):
            await sent.acknowledged(60)
    async with source(broker.service.url, BOB, tmp_path) as bob:
        await (await bob.send("<n/>", action="urn:note")).acknowledged(60)


async def test_a_broker_publishes_that_it_demands_signatures(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE + listener(tmp_path))
    url = f"{broker.service.url}?wsdl"
    with pytest.raises(holdfast.ConfigurationError, match="AsymmetricBinding"):
        await holdfast.Source.from_wsdl(url, ":memory:")


async def test_each_leg_has_its_own_encryption(start: Start, run_service: Any, tmp_path: Path) -> None:
    """The senders' leg encrypts the signature, too; the leg to the shop signs what is encrypted."""
    behind, before = Encryption(before_signing=True), Encryption(signature=True, cipher="aes256-gcm")
    shop = Shop(tmp_path, encrypt=behind)
    service = await run_service(shop.app)
    tables = listener(tmp_path) + '[security.signature.encryption]\nsignature = true\ncipher = "aes256-gcm"\n'
    tables += forwarder(tmp_path, service.url)
    tables += "[forwarders.shop.security.signature.encryption]\nbefore_signing = true\n"
    broker = await start(BASE + tables)
    async with source(broker.service.url, ALICE, tmp_path, encrypt=before) as alice:
        await alice.send("<n>1</n>", action="urn:note")
        assert (await alice.request("<n>2</n>", action=ECHO, timeout=240)).body.text == "2"
        await alice.flush(60)
    await until(lambda: len(shop.got) == 2)
    assert sorted(message.body.text or "" for message in shop.got) == ["1", "2"]
    assert all(b"EncryptedData" in data and b"<n" not in data for data in shop.data)
    async with source(broker.service.url, ALICE, tmp_path) as plain:
        sent = await plain.send("<n>3</n>", action="urn:note")
        with pytest.raises(holdfast.PeerFault, match="InvalidSecurity"):
            await sent.acknowledged(60)


async def test_encryption_comes_with_a_reload(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE + listener(tmp_path))
    (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path) + "[security.signature.encryption]\n")
    assert broker.reload() == ["security.signature.encryption"]
    async with source(broker.service.url, ALICE, tmp_path, encrypt=Encryption()) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)


def test_a_forwarder_that_encrypts_must_know_for_whom(tmp_path: Path) -> None:
    """An issuer can vouch for many: none of them is the destination by itself."""
    table = "[forwarders.shop.security.signature.encryption]\n"
    file = tmp_path / "broker.toml"
    file.write_text(BASE + forwarder(tmp_path, "http://shop.example/", trusted=authority()) + table)
    with pytest.raises(holdfast.ConfigurationError, match=r"shop\.security\.signature\.encryption: the cert"):
        read_config(file)
    file.write_text(file.read_text() + f'certificate = "{SHOP.files(tmp_path).certificate}"\n')
    assert read_config(file).forwarders
    file.write_text(file.read_text() + 'headers = "Customer"\n')
    with pytest.raises(holdfast.ConfigurationError, match="not the name of a header"):
        read_config(file)


async def test_a_leg_has_its_own_certificates_for_encryption(start: Start, tmp_path: Path) -> None:
    ours, hers = (issue(one.name, authority(), usage="key_encipherment", bits=3072) for one in (BROKER, ALICE))
    mine, her = ours.files(tmp_path), hers.files(tmp_path)
    tables = listener(tmp_path, "bind_sequences = true\n")
    tables += f'[security.signature.encryption]\nown_certificate = "{mine.certificate}"\n'
    broker_file = f'own_key = "{mine.key}"\npeers = ["{her.certificate}"]\n'
    broker = await start(BASE + tables + broker_file)
    encrypt = Encryption(mine.certificate, own=(her.certificate, her.key))
    async with source(broker.service.url, ALICE, tmp_path, encrypt=encrypt) as alice:
        with pytest.raises(holdfast.PeerFault, match="InvalidSecurity"):
            await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
    async with source(broker.service.url, ALICE, tmp_path, encrypt=encrypt, binds=True) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
    file = tmp_path / "half.toml"
    file.write_text(BASE + tables)
    with pytest.raises(holdfast.ConfigurationError, match="has no key"):
        read_config(file)


# --- attachments ------------------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 40
PHOTO = holdfast.Attachment(DATA, "image/png", "photo@test")
CLAIM = '<claim><x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:photo@test"/></claim>'
INLINE = b64encode(DATA).decode()


class Claims(secured_broker.Shop):
    """A service that returns an attachment, which its reply names unless the request says otherwise."""

    def _echo(self, message: holdfast.Message) -> Any:
        self.got.append(message)
        body = "<unnamed/>" if message.body.tag == "ask" else CLAIM
        return holdfast.WithAttachments(body, [PHOTO])


@pytest.mark.parametrize("behind", [True, False], ids=["signed", "plain"])
@pytest.mark.parametrize("before", [True, False], ids=["signed", "plain"])
async def test_attachments_pass_through_a_broker_that_signs_a_leg(
    start: Start, run_service: Any, tmp_path: Path, before: bool, behind: bool
) -> None:
    """They are in the body from the first leg on that signs, and on every other leg in MTOM."""
    claims = Claims(*([Shop.checks(tmp_path)] if behind else []))
    service = await run_service(claims.app)
    to = forwarder(tmp_path, service.url) if behind else f'[forwarders.shop]\nqueue = "orders"\nto = "{service.url}"\n'
    broker = await start(BASE + (listener(tmp_path) if before else "") + to)
    async with source(broker.service.url, ALICE if before else None, tmp_path) as alice:
        sent = await alice.send(CLAIM, action="urn:note", attachments=[PHOTO])
        await sent.acknowledged(240)
        reply = await alice.request(CLAIM, action=ECHO, attachments=[PHOTO], timeout=240)
    await until(lambda: len(claims.got) == 2)
    for message in (*claims.got, reply):
        assert [one.read() for one in message.attachments] == ([] if before or behind else [DATA])
        assert message.body.text == (INLINE if before or behind else None)


async def test_a_part_that_no_element_names_is_a_dead_letter_before_a_leg_that_signs(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    claims = Claims(Shop.checks(tmp_path))
    service = await run_service(claims.app)
    broker = await start(BASE + forwarder(tmp_path, service.url))
    async with source(broker.service.url, None, tmp_path) as alice:
        with pytest.raises(holdfast.PeerFault, match="no xop:Include element names"):
            await alice.request("<claim/>", action=ECHO, attachments=[PHOTO], timeout=240)
        assert (await alice.request("<claim/>", action=ECHO, timeout=240)).body.text == INLINE
    assert broker.destination.incidents["dead_letter.added"] == 1


async def test_a_message_that_encryption_makes_too_large_is_a_dead_letter(
    start: Start, run_service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "most_bytes_of", lambda _limits: 1 << 20)
    shop = Shop(tmp_path, encrypt=Encryption())
    service = await run_service(shop.app)
    text = BASE + forwarder(tmp_path, service.url) + "[forwarders.shop.security.signature.encryption]\n"
    broker = await start(text)
    async with source(broker.service.url, None, tmp_path) as alice:
        with pytest.raises(holdfast.PeerFault, match="parts in base64, has"):
            await alice.request(f"<n>{'1' * 900_000}</n>", action=ECHO, timeout=240)
        assert (await alice.request("<n>2</n>", action=ECHO, timeout=240)).body.text == "2"
    assert broker.destination.incidents["dead_letter.added"] == 1


async def test_a_reply_with_a_part_that_no_element_names_is_a_fault_on_a_leg_that_signs(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    claims = Claims()
    service = await run_service(claims.app)
    broker = await start(BASE + listener(tmp_path) + f'[forwarders.shop]\nqueue = "orders"\nto = "{service.url}"\n')
    async with source(broker.service.url, ALICE, tmp_path) as alice:
        for _ in range(2):
            with pytest.raises(holdfast.PeerFault, match=r"reply cannot be sent: .* no xop:Include element names"):
                await alice.request("<ask/>", action=ECHO, timeout=240)
            assert (await alice.request("<claim/>", action=ECHO, timeout=240)).body.text == INLINE
    assert len(claims.got) == 4
