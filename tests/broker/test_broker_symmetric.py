"""Messages with a symmetric key on both legs of a broker: whom it believes, and as whom it forwards. At sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import secured_broker
import symmetric_messages
from secured_broker import BASE, ECHO, HASTY, Start, Witness
from signers import Files, Issued, authority, issue
from symmetric_messages import ALICE, KEY, creation, protected
from waiting import until

import holdfast
from holdfast import Destination, EndorsedSymmetricBinding, Message, Processor, SecureConversation, SymmetricBinding
from holdfast.broker.message_security import HopProtection
from holdfast.core.messages import Envelope
from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.chain import REFUSED
from holdfast.endpoint.envelopes.processors import MessageContext
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.encryption import write_encrypted_key
from holdfast.security.header import Token, write_timestamp, write_token
from holdfast.security.names import WSSE, WSU
from holdfast.security.symmetric.endorsement import Endorsing
from holdfast.testing.proxy import Faults, LossyProxy

BAD = Faults(lose_request=0.15, lose_response=0.15, double=0.1)
BROKER, SHOP, OTHER = symmetric_messages.SHOP, issue("CN=service,O=Example"), symmetric_messages.OTHER
ANNE, BILL = issue("CN=anne,O=Example", authority()), issue("CN=bill,O=Example", authority())
OWN = issue("CN=forwarder,O=Example", authority())


class Shop(secured_broker.Shop):
    """A service that knows one user, the broker, and accepts only what a symmetric key protects."""

    def __init__(self, directory: Path, **options: Any) -> None:
        witness = Witness()
        self.data = witness.data
        users = holdfast.UsernameTokenValidator({"broker": "inner"})
        checks = holdfast.SymmetricBindingValidator(*SHOP.files(directory), users=users, **options)
        super().__init__(checks, witness)


@pytest.fixture(autouse=True)
def _passwords(tmp_path: Path) -> None:
    """The files of the users alice and bob, and of the forwarders' password."""
    for name, content in {"users": "alice:secret\nbob:hidden\n", "inner": "inner\n"}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)


def listener(directory: Path, more: str = "", own: Issued = BROKER) -> str:
    files = own.files(directory)
    key = f'certificate = "{files.certificate}"\nkey = "{files.key}"\n{more}'
    return f'[security]\nusers = "users"\n[security.symmetric]\n{key}\n'


def forwarder(directory: Path, url: str, user: str = "", more: str = "", peer: Issued = SHOP) -> str:
    certificate = f'certificate = "{peer.files(directory).certificate}"'
    return (
        f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\n[forwarders.shop.security]\n'
        f'username = "broker"\npassword_file = "inner"\n{user}\n[forwarders.shop.security.symmetric]\n'
        f"{certificate}\n{more}\n"
    )


def sender(directory: Path, name: str = "alice", password: str = "secret", *, own: Issued = BROKER) -> SymmetricBinding:
    return SymmetricBinding(name, password, own.files(directory).certificate)


def signing(own: Files, trusted: Path) -> str:
    return f'certificate = "{own.certificate}"\nkey = "{own.key}"\ntrusted = "{trusted}"\n'


def fresh(data: bytes, **changed: Any) -> bytes:
    """A request of a client, protected now for the broker."""
    return protected(data, now=time.time(), **changed)


def token_for(one: Issued) -> str:
    """The helpers' key, encrypted for a certificate."""
    certificate = Certificate(one.found)
    return write_encrypted_key(certificate, "thumbprint", certificate.wrap(KEY), "_x")


def security(content: str) -> str:
    return f'<wsse:Security xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}">{content}</wsse:Security>'


def source(url: str, *processors: Processor) -> holdfast.Source:
    return holdfast.Source(url, ":memory:", processors=list(processors), policy=HASTY)


def endorsed_listener(directory: Path, more: str = "") -> str:
    own, trusted = BROKER.files(directory), authority().files(directory).certificate
    key = f'certificate = "{own.certificate}"\nkey = "{own.key}"\ntrusted = "{trusted}"\n{more}\n'
    return f"[security.symmetric]\n{key}"


def endorsing_forwarder(directory: Path, url: str) -> str:
    own, peer = OWN.files(directory), SHOP.files(directory).certificate
    return (
        f'[forwarders.shop]\nqueue = "orders"\nto = "{url}"\n[forwarders.shop.security.symmetric]\n'
        f'certificate = "{peer}"\nown_certificate = "{own.certificate}"\nown_key = "{own.key}"\n'
    )


def endorser(directory: Path, one: Issued) -> EndorsedSymmetricBinding:
    return EndorsedSymmetricBinding(*one.files(directory), BROKER.files(directory).certificate)


def endorsed(directory: Path, by: Issued, data: bytes, **changed: Any) -> bytes:
    """A request that a certificate endorses, protected now for the broker."""
    endorsing = Endorsing(Credential(*by.files(directory)), "Basic256Sha256")
    return fresh(data, **{"user": None, "endorsing": endorsing, **changed})


async def post(url: str, data: bytes) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(url, content=data, headers={"Content-Type": "application/soap+xml"})


@pytest.mark.parametrize("conversation", [False, True], ids=["keys", "tokens"])
async def test_each_leg_has_its_own_keys_and_users(
    start: Start, run_service: Any, tmp_path: Path, conversation: bool
) -> None:
    shop = Shop(tmp_path, conversation=conversation)
    service = await run_service(shop.app)
    said = f"conversation = {str(conversation).lower()}"
    async with LossyProxy(service.url, BAD, seed=1) as behind:
        broker = await start(BASE + listener(tmp_path, said) + forwarder(tmp_path, behind.url, said))
        certificate = BROKER.files(tmp_path).certificate
        made = SecureConversation("alice", "secret", certificate=certificate) if conversation else sender(tmp_path)
        async with LossyProxy(broker.service.url, BAD, seed=2) as before, source(before.url, made) as alice:
            for number in range(10):
                await alice.send(f"<n>{number}</n>", action="urn:note")
            assert (await alice.request("<n>10</n>", action=ECHO, timeout=240)).body.text == "10"
            await alice.flush(60)
        await until(lambda: len(shop.got) == 11)
        assert behind.counts.lost > 0
    assert sorted(int(text or "") for text in shop.texts) == list(range(11))
    assert {message.user for message in shop.got} == {"broker"}
    assert all(b"alice" not in data and data.count(b"<wsse:Security ") <= 1 for data in shop.data)


async def test_a_forwarder_derives_keys_and_refers_as_its_table_says(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, cipher="aes128-gcm", suite="Basic256")
    service = await run_service(shop.app)
    more = 'cipher = "aes128-gcm"\nsuite = "Basic256"\nreference = "issuer-serial"\nderived_keys = true\n'
    broker = await start(BASE + forwarder(tmp_path, service.url, more=more))
    async with source(broker.service.url) as anybody:
        assert (await anybody.request("<n>1</n>", action=ECHO, timeout=60)).body.text == "1"
    assert all(b"X509IssuerSerial" in data and data.count(b"<c:DerivedKeyToken ") == 2 for data in shop.data)


WRONG = {
    "unprotected": lambda: creation(),
    "a user name alone": lambda: creation(headers=security(write_token(ALICE) + write_timestamp(time.time(), 60))),
    "a wrong password": lambda: fresh(creation(), user=Token("alice", "wrong", is_digest=False)),
    "a stranger": lambda: fresh(creation(), user=Token("eve", "secret", is_digest=False)),
    "no user": lambda: fresh(creation(), user=None),
    "for another certificate": lambda: fresh(creation(), token=token_for(OTHER)),
    "to the destination of a forwarder": lambda: creation().replace(b"http://shop/", b"http://127.0.0.1:1/next"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_nothing_is_stored_that_no_user_has_protected(start: Start, tmp_path: Path, what: str) -> None:
    broker = await start(BASE + forwarder(tmp_path, "http://127.0.0.1:1/next") + listener(tmp_path))
    answer = await post(broker.service.url, WRONG[what]())
    assert answer.status_code in (400, 500)
    assert broker.destination.incidents[REFUSED] == 1
    assert not broker.destination.running.engine.protocol.inbound.destinations
    assert (await post(broker.service.url, fresh(creation()))).status_code == 200


async def test_a_message_counts_once_also_after_a_reload_and_a_restart(start: Start, tmp_path: Path) -> None:
    text = BASE + listener(tmp_path)
    broker = await start(text)
    request = fresh(creation())
    assert (await post(broker.service.url, request)).status_code == 200
    for more in ("", "confirm = false"):
        assert (await post(broker.service.url, request)).status_code == 503
        (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path, more))
        broker.reload()
    assert (await post(broker.service.url, request)).status_code == 503
    await broker.service.close(0.5)
    broker = await start(text)
    assert (await post(broker.service.url, request)).status_code == 503


async def test_a_route_may_depend_on_the_user_and_the_store_has_decrypted_messages(
    start: Start, tmp_path: Path
) -> None:
    routes = '[[routes]]\nuser = "b*"\nqueues = "other"\n'
    broker = await start(BASE + routes + listener(tmp_path))
    for name, password in (("alice", "secret"), ("bob", "hidden")):
        async with source(broker.service.url, sender(tmp_path, name, password)) as one:
            await one.send(f"<n>{name}</n>", action="urn:note")
            await one.flush(60)
    store = broker.destination.running.store
    for queue, content in (("orders", b">alice</n>"), ("other", b">bob</n>")):
        parts = range(len(broker.destination.running.queues[queue].partitions))
        (record,) = [data for part in parts for _, data in store.read_encoded(queue, part, 0, 9)]
        assert content in record
        assert not any(secret in record for secret in (b"SignatureValue", b"secret", b"hidden"))


async def test_a_reload_replaces_the_certificate_and_keeps_the_tokens_of_senders(start: Start, tmp_path: Path) -> None:
    """The key of a token needs no certificate, so a Sequence continues."""
    said = "conversation = true"
    broker = await start(BASE + listener(tmp_path, said))
    conversation = SecureConversation("alice", "secret", certificate=BROKER.files(tmp_path).certificate)
    async with source(broker.service.url, conversation) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
        (tmp_path / "broker.toml").write_text(BASE + listener(tmp_path, said, own=OTHER))
        assert broker.reload() == ["security.symmetric.certificate", "security.symmetric.key"]
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
        assert broker.destination.incidents[REFUSED] == 0
    async with source(broker.service.url, sender(tmp_path, own=OTHER)) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)
    (tmp_path / "users").write_text("bob:hidden\n")
    broker.reload()
    assert (await post(broker.service.url, fresh(creation(), token=token_for(OTHER)))).status_code == 500


@pytest.mark.parametrize("store", ["store", ":memory:"])
async def test_a_forwarder_keeps_its_token_over_a_reload(
    start: Start, run_service: Any, tmp_path: Path, store: str
) -> None:
    """Another token would end its Sequence. With a store in memory, the token is there, too."""
    shop = Shop(tmp_path, conversation=True)
    service = await run_service(shop.app)
    base = BASE.replace('"store"', f'"{store}"')
    text = base + forwarder(tmp_path, service.url, "conversation = true")
    broker = await start(text)
    for number, cipher in enumerate(["aes256-cbc", "aes256-gcm"]):
        (tmp_path / "broker.toml").write_text(text + f'cipher = "{cipher}"\n')
        broker.reload()
        async with source(broker.service.url) as anybody:
            await anybody.send(f"<n>{number}</n>", action="urn:note")
            await anybody.flush(60)
        await until(lambda number=number: shop.texts[-1:] == [str(number)])
    if store != ":memory:":
        await broker.service.close(0.5)
        broker = await start(text)
        async with source(broker.service.url) as anybody:
            await anybody.send("<n>2</n>", action="urn:note")
            await anybody.flush(60)
        await until(lambda: shop.texts[-1:] == ["2"])
    assert shop.app.incidents[REFUSED] == 0
    assert len({message.sequence for message in shop.got}) == 1


async def test_an_answer_counts_only_from_the_owner_of_the_certificate(
    start: Start, run_service: Any, tmp_path: Path
) -> None:
    """The one who answers cannot read the key, so nothing is created or acknowledged until the file is right."""
    shop = Shop(tmp_path)
    service = await run_service(shop.app)
    broker = await start(BASE + forwarder(tmp_path, service.url, peer=OTHER))
    async with source(broker.service.url) as anybody:
        await anybody.send("<n>1</n>", action="urn:note")
        await anybody.flush(60)
    await until(lambda: broker.destination.incidents[REFUSED] >= 2)
    assert not shop.got, "there is no Sequence"
    (tmp_path / "broker.toml").write_text(BASE + forwarder(tmp_path, service.url))
    broker.reload()
    await until(lambda: shop.texts == ["1"])


@pytest.mark.parametrize("other", ["signature", "user name", "nothing"])
async def test_each_leg_may_have_another_kind_of_security(
    start: Start, run_service: Any, tmp_path: Path, other: str
) -> None:
    """The senders' leg has a symmetric key, the next leg another kind; and the other way round."""
    files = {one: one.files(tmp_path) for one in (BROKER, SHOP, OTHER)}
    certificate = files[BROKER].certificate
    kinds: dict[str, tuple[str, str, list[Processor], list[Processor]]] = {
        "signature": (
            "[security.signature]\n" + signing(files[BROKER], files[OTHER].certificate),
            "[forwarders.shop.security.signature]\n" + signing(files[BROKER], files[SHOP].certificate),
            [holdfast.X509(*files[OTHER], trusted=certificate)],
            [holdfast.X509(*files[SHOP], trusted=certificate)],
        ),
        "user name": (
            '[security]\nusers = "users"\n',
            '[forwarders.shop.security]\nusername = "broker"\npassword_file = "inner"\n',
            [holdfast.UsernameToken("alice", "secret")],
            [holdfast.UsernameTokenValidator({"broker": "inner"})],
        ),
        "nothing": ("", "", [], []),
    }
    table, sending, senders, checks = kinds[other]
    got: list[Message] = []
    app = Destination(":memory:", processors=checks)
    app.on()(got.append)
    url = (await run_service(app)).url
    text = f'{BASE}[forwarders.shop]\nqueue = "orders"\nto = "{url}"\n{sending}{listener(tmp_path)}'
    broker = await start(text)
    async with source(broker.service.url, sender(tmp_path)) as alice:
        await (await alice.send("<n>1</n>", action="urn:note")).acknowledged(60)
    await until(lambda: [message.body.text for message in got] == ["1"])
    await broker.service.close(0.5)
    shop = Shop(tmp_path)
    next_url = (await run_service(shop.app)).url
    broker = await start(BASE.replace('"store"', '"second"') + forwarder(tmp_path, next_url) + table)
    async with source(broker.service.url, *senders) as alice:
        assert (await alice.request("<n>2</n>", action=ECHO, timeout=60)).body.text == "2"
    assert shop.texts == ["2"]


def test_a_hop_that_waits_for_a_database_is_checked_in_another_thread() -> None:
    class Slow(Processor):
        waits = True

    for hops in ({"": Slow()}, {"http://shop/": Slow(), "": Processor()}):
        assert HopProtection(hops, ["http://shop/"]).waits
    assert not HopProtection({"": Processor()}, []).waits


@pytest.mark.parametrize("step", ["received", "_check_large", "inbound", "outbound", "encoded"])
def test_each_step_of_a_message_is_that_of_its_hop(step: str) -> None:
    called: list[str] = []

    class Hop(Processor):
        def __init__(self, name: str) -> None:
            setattr(self, step, lambda *_: called.append(name))

    for to in ("http://shop/", "http://bank/", ""):
        context = MessageContext(Envelope(SOAP.V1_2), "inbound", "destination", {}, False, to=to)
        hops = HopProtection({"": Hop("listener"), "http://shop/": Hop("shop")}, ["http://shop/", "http://bank/"])
        getattr(hops, step)(*([context, b"<e/>"] if step in ("received", "encoded") else [context]))
    assert called == ["shop", "listener"], "the other forwarder has no protection"


@pytest.mark.parametrize("conversation", [False, True], ids=["keys", "tokens"])
async def test_a_broker_publishes_that_it_demands_a_symmetric_key(
    start: Start, tmp_path: Path, conversation: bool
) -> None:
    broker = await start(BASE + listener(tmp_path, f"conversation = {str(conversation).lower()}"))
    url, certificate = f"{broker.service.url}?wsdl", BROKER.files(tmp_path).certificate
    with pytest.raises(holdfast.ConfigurationError, match="SymmetricBinding"):
        await holdfast.Source.from_wsdl(url, ":memory:")
    made = SecureConversation("alice", "secret", certificate=certificate) if conversation else sender(tmp_path)
    async with await holdfast.Source.from_wsdl(url, ":memory:", processors=[made]) as alice:
        await (await alice.send("<n/>", action="urn:note")).acknowledged(60)


# --- endorsing certificates ---------------------------------------------------------------------------------------


async def test_a_certificate_endorses_messages_on_each_leg(start: Start, run_service: Any, tmp_path: Path) -> None:
    witness = Witness()
    accepts = holdfast.EndorsingCertificates(authority().files(tmp_path).certificate)
    shop = secured_broker.Shop(holdfast.SymmetricBindingValidator(*SHOP.files(tmp_path), users=accepts), witness)
    service = await run_service(shop.app)
    async with LossyProxy(service.url, BAD, seed=1) as behind:
        broker = await start(BASE + endorsed_listener(tmp_path) + endorsing_forwarder(tmp_path, behind.url))
        sent = endorser(tmp_path, ANNE)
        async with LossyProxy(broker.service.url, BAD, seed=2) as before, source(before.url, sent) as anne:
            for number in range(10):
                await anne.send(f"<n>{number}</n>", action="urn:note")
            assert (await anne.request("<n>10</n>", action=ECHO, timeout=240)).body.text == "10"
            await anne.flush(60)
        await until(lambda: len(shop.got) == 11)
        assert behind.counts.lost > 0
    assert sorted(int(text or "") for text in shop.texts) == list(range(11))
    assert {message.user for message in shop.got} == {"CN=forwarder,O=Example"}
    assert all(b"anne" not in data and data.count(b"<wsse:Security ") <= 1 for data in witness.data)


UNENDORSED: dict[str, Callable[[Path], bytes]] = {
    "unprotected": lambda _: creation(),
    "no endorsement": lambda _: fresh(creation(), user=None),
    "a user name": lambda _: fresh(creation()),
    "a user name, too": lambda directory: endorsed(directory, ANNE, creation(), user=ALICE),
    "a stranger": lambda directory: endorsed(directory, OTHER, creation()),
    "another owner": lambda directory: endorsed(directory, BILL, creation()),
    "for another certificate": lambda directory: endorsed(directory, ANNE, creation(), token=token_for(OTHER)),
    "to the destination of a forwarder": lambda _: creation().replace(b"http://shop/", b"http://127.0.0.1:1/next"),
}


@pytest.mark.parametrize("what", UNENDORSED)
async def test_nothing_is_stored_that_no_certificate_has_endorsed(start: Start, tmp_path: Path, what: str) -> None:
    listening = endorsed_listener(tmp_path, 'subjects = "CN=anne,O=Example"')
    broker = await start(BASE + endorsing_forwarder(tmp_path, "http://127.0.0.1:1/next") + listening)
    answer = await post(broker.service.url, UNENDORSED[what](tmp_path))
    assert answer.status_code in (400, 500)
    assert broker.destination.incidents[REFUSED] == 1
    assert not broker.destination.running.engine.protocol.inbound.destinations
    assert (await post(broker.service.url, endorsed(tmp_path, ANNE, creation()))).status_code == 200


async def test_an_endorsed_message_counts_once_also_after_a_reload_and_a_restart(start: Start, tmp_path: Path) -> None:
    text = BASE + endorsed_listener(tmp_path)
    broker = await start(text)
    request = endorsed(tmp_path, ANNE, creation())
    assert (await post(broker.service.url, request)).status_code == 200
    for more in ("", "signed = false"):
        assert (await post(broker.service.url, request)).status_code == 503
        (tmp_path / "broker.toml").write_text(BASE + endorsed_listener(tmp_path, more))
        broker.reload()
    assert (await post(broker.service.url, request)).status_code == 503
    await broker.service.close(0.5)
    broker = await start(text)
    assert (await post(broker.service.url, request)).status_code == 503


async def test_a_reload_may_name_other_certificates_of_senders(start: Start, tmp_path: Path) -> None:
    """They count from the next message."""
    broker = await start(BASE + endorsed_listener(tmp_path))
    for text, accepted in (("", True), ('subjects = "CN=bill,O=Example"', False)):
        (tmp_path / "broker.toml").write_text(BASE + endorsed_listener(tmp_path, text))
        broker.reload()
        status = (await post(broker.service.url, endorsed(tmp_path, ANNE, creation()))).status_code
        assert (status == 200) is accepted
        assert (await post(broker.service.url, endorsed(tmp_path, BILL, creation()))).status_code == 200


async def test_a_route_may_depend_on_the_owner_of_a_certificate(start: Start, tmp_path: Path) -> None:
    routes = '[[routes]]\nuser = "CN=bill,*"\nqueues = "other"\n'
    broker = await start(BASE + routes + endorsed_listener(tmp_path))
    for one in (ANNE, BILL):
        async with source(broker.service.url, endorser(tmp_path, one)) as sent:
            await sent.send(f"<n>{one.found.subject.rfc4514_string()[:7]}</n>", action="urn:note")
            await sent.flush(60)
    store = broker.destination.running.store
    for queue, content in (("orders", b">CN=anne</n>"), ("other", b">CN=bill</n>")):
        parts = range(len(broker.destination.running.queues[queue].partitions))
        (record,) = [data for part in parts for _, data in store.read_encoded(queue, part, 0, 9)]
        assert content in record
        assert b"SignatureValue" not in record


async def test_a_broker_publishes_that_a_certificate_must_endorse(start: Start, tmp_path: Path) -> None:
    for more, kind in (("", "SignedEndorsing"), ("signed = false", "Endorsing")):
        broker = await start(BASE + endorsed_listener(tmp_path, more))
        url = f"{broker.service.url}?wsdl"
        async with httpx.AsyncClient() as http:
            assert f"<sp:{kind}SupportingTokens" in (await http.get(url)).text
        with pytest.raises(holdfast.ConfigurationError, match="EndorsedSymmetricBinding"):
            await holdfast.Source.from_wsdl(url, ":memory:")
        sent = endorser(tmp_path, ANNE)
        async with await holdfast.Source.from_wsdl(url, ":memory:", processors=[sent]) as anne:
            await (await anne.send("<n/>", action="urn:note")).acknowledged(60)
        await broker.service.close(0.5)


@pytest.mark.parametrize("conversation", [False, True], ids=["certificates", "tokens"])
async def test_each_leg_may_name_what_its_sequences_belong_to(
    start: Start, run_service: Any, tmp_path: Path, conversation: bool
) -> None:
    users: Any = holdfast.EndorsingCertificates(authority().files(tmp_path).certificate)
    sender: EndorsedSymmetricBinding | SecureConversation = endorser(tmp_path, ANNE)
    binds = "bind_sequences = true\n"
    if conversation:
        users = holdfast.UsernameTokenValidator({"broker": "inner"})
        sender = SecureConversation("alice", "secret", certificate=BROKER.files(tmp_path).certificate)
    checks = holdfast.SymmetricBindingValidator(*SHOP.files(tmp_path), users=users, conversation=conversation)
    shop = secured_broker.Shop(checks.bind_sequences())
    url = (await run_service(shop.app)).url
    tables = endorsed_listener(tmp_path, binds) + endorsing_forwarder(tmp_path, url) + binds
    if conversation:
        said = "conversation = true\n"
        tables = listener(tmp_path, said + binds) + forwarder(tmp_path, url, said, binds)
    broker = await start(BASE + tables)
    async with source(broker.service.url, sender) as unbound:
        with pytest.raises(holdfast.PeerFault, match="InvalidSecurity"):
            await (await unbound.send("<n>0</n>", action="urn:note")).acknowledged(60)
    if conversation:
        sender = SecureConversation("alice", "secret", certificate=BROKER.files(tmp_path).certificate)
    async with source(broker.service.url, sender.bind_sequences()) as bound:
        assert (await bound.request("<n>1</n>", action=ECHO, timeout=60)).body.text == "1"
    assert shop.texts == ["1"]
