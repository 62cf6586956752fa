"""X509 at both ends of a socket: who is believed, whose a Sequence is, and what becomes of what is not signed."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import served_destination
from lxml import etree
from signers import Issued, authority, issue
from waiting import until

from holdfast import (
    X509,
    Attachment,
    ConfigurationError,
    DeliveryError,
    Destination,
    DestinationHTTP,
    Encryption,
    EnvelopeError,
    Message,
    MessageContext,
    PeerFault,
    Processor,
    Source,
    SourceHTTP,
    Versions,
)
from holdfast.core.messages import CreateSequence, Envelope, Fault
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS, SOAP
from holdfast.endpoint.envelopes.decoder import OFF_LOOP
from holdfast.http.exchange import Exchange
from holdfast.security import x509
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.names import SECURITY, THUMBPRINT, WSSE, Kind, SuiteName
from holdfast.security.nonces import FileNonces
from holdfast.security.signed_message import SUITES, Signing, sign
from holdfast.testing import lossy, pair
from holdfast.wire import content_type, encode

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
ALICE, BOB = issue("CN=alice,O=Example", authority()), issue("CN=bob,O=Example", authority())
SHOP = issue("CN=shop,O=Example", authority())
SUBJECTS = ["CN=shop,O=Example"]
KINDS: tuple[Kind, ...] = ("token", "subject-key-identifier", "issuer-serial", "thumbprint")
IDENTIFIER = re.compile(rb"Identifier>([^<]+)<")
ANONYMOUS = "<a:Address>http://www.w3.org/2005/08/addressing/anonymous</a:Address>"
NS = "http://docs.oasis-open.org/ws-rx/wsrm/200702"


def of(one: Issued, directory: Path, *trusted: Issued, **options: Any) -> X509:
    """The processor of one of them, who trusts these."""
    files = [other.files(directory).certificate for other in trusted or [authority()]]
    return X509(*one.files(directory), trusted=files, **options)


class Served(served_destination.Served):
    """A destination at a socket, which answers."""

    def __init__(self, directory: Path, processor: Processor | None, **options: Any) -> None:
        processors = [] if processor is None else [processor]
        super().__init__(Destination(directory / "inbox", processors=processors, **options))

    def take(self, message: Message) -> str:
        super().take(message)
        return "<taken/>"


def envelope(action: str, body: str, headers: str = "", number: int = 1) -> bytes:
    action = action if ":" in action else f"{NS}/{action}"
    return (
        f'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
        f'xmlns:r="{NS}"><s:Header><a:Action>{action}</a:Action><a:MessageID>urn:m:{number}</a:MessageID>'
        f"<a:To>http://shop/</a:To>{headers}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def creation(more: str = "", headers: str = "") -> bytes:
    body = f"<r:CreateSequence><r:AcksTo>{ANONYMOUS}</r:AcksTo>{more}</r:CreateSequence>"
    return envelope("CreateSequence", body, headers)


def numbered(sequence: str, number: int = 1) -> bytes:
    header = (
        f"<r:Sequence><r:Identifier>{sequence}</r:Identifier><r:MessageNumber>{number}</r:MessageNumber></r:Sequence>"
    )
    return envelope("urn:shop/order", "<order/>", header, number)


@dataclass
class Signer:
    """Signs envelopes that the test writes."""

    credential: Credential
    kind: Kind = "token"

    def __call__(self, data: bytes, at: float | None = None, suite: SuiteName = "rsa-sha256") -> bytes:
        signing = Signing(self.credential, self.kind, SUITES[suite], 300.0)
        return sign(data, SOAP.V1_2, signing, time.time() if at is None else at, must_understand=True)


def signer(one: Issued, directory: Path) -> Signer:
    return Signer(Credential(*one.files(directory)))


def fault_of(answer: httpx.Response) -> str:
    assert answer.status_code in (400, 500), answer.text
    fault = etree.fromstring(answer.content).find(".//{*}Fault")
    assert fault is not None, answer.text
    return " ".join(fault.itertext())


# --- both ends -------------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
async def test_messages_and_replies_are_signed_in_every_version(tmp_path: Path, versions: Versions) -> None:
    seen: list[bytes] = []

    class Witness(Processor):
        def inbound(self, context: MessageContext) -> None:
            seen.append(context.data)

    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        alice = of(ALICE, tmp_path, subjects=SUBJECTS)
        processors = [Witness(), alice]
        async with Source(
            served.url, tmp_path / "out", processors=processors, policy=HASTY, versions=versions
        ) as source:
            await source.send("<note/>", action="urn:note")
            with await source.request("<ask/>", action="urn:ask", timeout=240) as reply:
                assert etree.QName(reply.body).localname == "taken"
            await source.flush(timeout=240)
            await source.end(timeout=240)
        await served.app.handled()
    assert [message.user for message in served.got] == ["CN=alice,O=Example"] * 2
    assert not any(message.header_bytes for message in served.got), "the Security header is not stored"
    assert len(seen) >= 2, "2003/03 has no CreateSequence"
    assert all(b"SignatureValue" in data for data in seen)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_reference_to_a_certificate_is_written_and_read(tmp_path: Path, kind: Kind) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path, ALICE, reference=kind)) as served:
        alice = of(ALICE, tmp_path, SHOP, reference=kind)
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            await (await source.send("<note/>", action="urn:note")).acknowledged(timeout=240)


async def test_signed_messages_arrive_once_through_a_bad_network(tmp_path: Path) -> None:
    attempts: set[int] = set()
    signatures: list[bytes] = []

    class Witness(Processor):
        def outbound(self, context: MessageContext) -> None:
            attempts.add(context.attempt)

        def encoded(self, context: MessageContext, data: bytes) -> bytes:
            signatures.extend(re.findall(rb"SignatureValue>([^<]+)<", data))
            return data

    got: list[str | None] = []
    app = Destination(":memory:", processors=[of(SHOP, tmp_path)])

    @app.on()
    def take(message: Message) -> str:
        got.append(message.body.text)
        return "<ok/>"

    both = [Witness(), of(ALICE, tmp_path, subjects=SUBJECTS)]
    async with pair(app, network=lossy(0.2, seed=5), processors=both, policy=HASTY) as source:
        for number in range(20):
            assert (await source.request(f"<n>{number}</n>", action="urn:ask")).body.tag == "ok"
    assert got == [str(number) for number in range(20)]
    assert max(attempts) > 1, "something was retransmitted"
    assert len(set(signatures)) == len(signatures), "and signed again"


async def test_a_destination_answers_with_the_algorithms_of_the_request(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path, suite="Basic256")) as served:
        alice = signer(ALICE, tmp_path)
        for suite in SUITES:
            answer = await served.post(alice(creation(), suite=suite))  # type: ignore[arg-type]
            assert answer.status_code == 200
            assert SUITES[suite].signature.encode() in answer.content
            assert SUITES[suite].digest.encode() in answer.content


async def test_the_loop_does_not_wait_for_the_signature_of_a_large_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, usual = list[tuple[bool, str]](), x509.check_signed

    def check(message: Any, *more: Any) -> Any:
        checked.append((len(etree.tostring(message.body)) > OFF_LOOP, threading.current_thread().name))
        return usual(message, *more)

    monkeypatch.setattr(x509, "check_signed", check)
    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        alice = of(ALICE, tmp_path, subjects=SUBJECTS)
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            for size in (10, 2 * OFF_LOOP):
                await (await source.send(f"<n>{'x' * size}</n>", action="urn:note")).acknowledged(timeout=240)
        answer = await served.post(signer(ALICE, tmp_path)(creation()).replace(b"urn:m:1", b"urn:" + b"m" * OFF_LOOP))
        assert fault_of(answer) and answer.status_code == 400, "what is changed is refused as before"
        await served.app.handled()
    large = {name.partition("_")[0] for is_large, name in checked if is_large}
    assert large == {"holdfast-decode"} and (False, "MainThread") in checked
    assert len(served.got) == 2


@pytest.mark.parametrize("encrypt", [None, Encryption()], ids=["signed", "encrypted"])
@pytest.mark.parametrize("size", [10, 2 * OFF_LOOP], ids=["small", "large"])
async def test_only_the_process_that_owns_a_message_checks_its_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, encrypt: Encryption | None
) -> None:
    read, usual, is_elsewhere = list[int](), x509.read_secured, True

    def counted(data: bytes, soap: SOAP) -> Any:
        read.append(len(data))
        return usual(data, soap)

    monkeypatch.setattr(x509, "read_secured", counted)
    async with Served(tmp_path, of(SHOP, tmp_path, encrypt=encrypt)) as served:
        reception = served.app.running.reception
        handle = reception.handle

        def relay(exchange: Exchange, _: Envelope) -> bool:
            if is_elsewhere:
                exchange.respond(202)
            return is_elsewhere

        monkeypatch.setattr(reception, "handle", lambda exchange, _=None: handle(exchange, relay))
        data = signer(ALICE, tmp_path)(envelope("urn:note", f"<n>{'x' * size}</n>"))
        assert (await served.post(data)).status_code == 202 and not read
        is_elsewhere = False
        answer = await served.post(data)
        assert len(read) == 1
        assert ("WSRMRequired" in fault_of(answer)) is (encrypt is None), "what is not encrypted is refused before"


# --- whom a destination believes -------------------------------------------------------------------------------------


async def test_every_refusal_has_the_same_fault_and_changes_nothing(tmp_path: Path) -> None:
    """A fault is no oracle: it is the same for a missing signature, an untrusted one, and one over too little."""
    alice, stranger = signer(ALICE, tmp_path), signer(issue("CN=stranger"), tmp_path)
    expired = issue("CN=old", authority(), until=datetime(2021, 1, 1, tzinfo=UTC))
    future = issue("CN=young", authority(), since=datetime(2059, 1, 1, tzinfo=UTC))
    now = time.time()
    good = alice(creation())
    refused: dict[str, bytes] = {
        "no Security header": creation(),
        "an untrusted signer": stranger(creation()),
        "an expired certificate": signer(expired, tmp_path)(creation()),
        "a certificate that is not yet valid": signer(future, tmp_path)(creation()),
        "our own certificate": signer(SHOP, tmp_path)(creation()),
        "an algorithm that is not allowed": alice(creation(), suite="Basic256Sha256"),
        "a changed Body": good.replace(b"/anonymous", b"/anonymouz"),
        "a changed value": re.sub(rb"<ds:SignatureValue>....", b"<ds:SignatureValue>AAAA", good),
        "an old Timestamp": alice(creation(), at=now - 400),
        "a Timestamp of the future": alice(creation(), at=now + 100),
        "an unsigned header": good.replace(b"</s:Header>", b"<a:RelatesTo>urn:x</a:RelatesTo></s:Header>"),
    }
    texts = {}
    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        for what, data in refused.items():
            texts[what] = fault_of(await served.post(data))
        assert not served.sequences
        assert (await served.post(good)).status_code == 200, "and others go on"
    assert len(set(texts.values())) == 1, texts
    assert "alice" not in texts["a changed Body"]


async def test_a_repeated_message_is_put_off_even_after_a_restart(tmp_path: Path) -> None:
    data = signer(ALICE, tmp_path)(creation())
    for expected in ([200, 503], [503]):
        async with Served(tmp_path, of(SHOP, tmp_path, nonces=tmp_path / "signatures.db")) as served:
            assert [(await served.post(data)).status_code for _ in expected] == expected
    assert FileNonces(tmp_path / "signatures.db")._count == 1, "and what is refused fills no memory"


async def test_only_the_named_subjects_are_accepted(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path, subjects=["CN=bob, O=Example"])) as served:
        assert (await served.post(signer(ALICE, tmp_path)(creation()))).status_code in (400, 500)
        assert (await served.post(signer(BOB, tmp_path)(creation()))).status_code == 200


@pytest.mark.every(5)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
async def test_what_is_signed_for_another_service_is_refused(
    tmp_path: Path, versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    """The other service has received the messages, trusts the same issuer, and sends each of them again."""
    captured: list[bytes] = []

    class Look(Processor):
        roles = ("source",)

        def encoded(self, context: MessageContext, data: bytes) -> bytes:
            captured.append(data)
            return data

    async with Served(tmp_path / "other", of(SHOP, tmp_path)) as other:
        url, alice = other.url, of(ALICE, tmp_path, subjects=SUBJECTS)
        async with Source(url, ":memory:", versions=versions, processors=[Look(), alice]) as source:
            await (await source.send("<order/>", action="urn:shop/order")).acknowledged(60)
    assert caplog.text.count("security.no_addresses") == (not versions.rm.can.creates), "warned of once, in 2003/03"
    others = ["http://shop/", "http://shop.example/"]
    cases = ((others, None, 0), ([url], None, 1), (others, url, 1), (others, url.rstrip("/") + "{path}", 0))
    for number, (addresses, public, taken) in enumerate(cases):
        shop, http = of(SHOP, tmp_path, addresses=addresses), DestinationHTTP(public_url=public)
        async with Served(tmp_path / str(number), shop, http=http) as served:
            for one in captured:
                answer = await served.post(one, {"Content-Type": content_type(versions.soap)})
                assert taken or answer.status_code in (400, 500)
            is_begun = bool(served.sequences)
            assert is_begun == bool(taken)


async def test_headers_that_are_not_signed_do_not_reach_a_handler(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        alice = signer(ALICE, tmp_path)
        sequence = IDENTIFIER.findall((await served.post(alice(creation()))).content)[0].decode()
        tenant = b"<t:Tenant xmlns:t='urn:t'>a</t:Tenant>"
        data = alice(numbered(sequence).replace(b"</s:Header>", tenant + b"</s:Header>"))
        trace = b"<t:Trace xmlns:t='urn:t'>b</t:Trace>"
        assert (await served.post(data.replace(b"</s:Header>", trace + b"</s:Header>"))).status_code < 300
        await served.app.handled()
    assert [one.tag for one in served.got[0].headers] == ["{urn:t}Tenant"]


# --- whose a Sequence is ---------------------------------------------------------------------------------------------

WORDS: dict[str, Callable[[str], bytes]] = {
    "sends on it": numbered,
    "asks for its state": lambda sequence: envelope(
        "AckRequested", "", f"<r:AckRequested><r:Identifier>{sequence}</r:Identifier></r:AckRequested>"
    ),
    "closes it": lambda sequence: envelope(
        "CloseSequence", f"<r:CloseSequence><r:Identifier>{sequence}</r:Identifier></r:CloseSequence>"
    ),
    "terminates it": lambda sequence: envelope(
        "TerminateSequence", f"<r:TerminateSequence><r:Identifier>{sequence}</r:Identifier></r:TerminateSequence>"
    ),
}


async def test_nobody_else_speaks_for_a_sequence(tmp_path: Path) -> None:
    impostor = issue("CN=alice,O=Example", authority("CN=other authority"))
    renewed = issue("CN=alice,O=Example", authority(), serial=7)
    alice, others = signer(ALICE, tmp_path), [signer(one, tmp_path) for one in (BOB, impostor)]
    async with Served(tmp_path, of(SHOP, tmp_path, authority(), authority("CN=other authority"))) as served:
        for what, words in WORDS.items():
            sequence = IDENTIFIER.findall((await served.post(alice(creation()))).content)[0].decode()
            for other in others:
                answer = await served.post(other(words(sequence)))
                assert answer.status_code in (400, 500), (what, answer.text)
                assert b"AcknowledgementRange" not in answer.content
            assert sequence in served.sequences
            assert (await served.post(signer(renewed, tmp_path)(words(sequence)))).status_code < 300, what
        await served.app.handled()
    assert [message.user for message in served.got] == ["CN=alice,O=Example"]


async def test_nobody_else_acknowledges_what_an_answer_carries(tmp_path: Path) -> None:
    """The destination's own Sequence, which alice offered, is acknowledged by alice alone."""
    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        alice, bob = signer(ALICE, tmp_path), signer(BOB, tmp_path)
        offered = (
            f"<r:Offer><r:Identifier>urn:alice:replies</r:Identifier><r:Endpoint>{ANONYMOUS}</r:Endpoint></r:Offer>"
        )
        sequence = IDENTIFIER.findall((await served.post(alice(creation(offered)))).content)[0].decode()
        to = f"<a:ReplyTo>{ANONYMOUS}</a:ReplyTo>"
        asked = numbered(sequence).replace(b"</s:Header>", to.encode() + b"</s:Header>")
        assert b"taken" in (await served.post(alice(asked))).content
        (outbox,) = served.app.running.engine.protocol.outbound.sequences.by_local_id.values()
        assert outbox.source is not None
        acknowledgement = (
            "<r:SequenceAcknowledgement><r:Identifier>urn:alice:replies</r:Identifier>"
            '<r:AcknowledgementRange Lower="1" Upper="1"/></r:SequenceAcknowledgement>'
        )
        for speaker, count in ((bob, 0), (alice, 1)):
            await served.post(speaker(envelope("SequenceAcknowledgement", "", acknowledgement)))
            assert outbox.source.acknowledged.count == count


def binding(kind: str) -> tuple[str, str]:
    """What goes into CreateSequence, and into its header."""

    def named(one: Issued) -> str:
        value = base64.b64encode(Certificate(one.found).reference("thumbprint").value).decode()
        return (
            f'<o:SecurityTokenReference xmlns:o="{WSSE}"><o:KeyIdentifier ValueType="{THUMBPRINT}">{value}'
            "</o:KeyIdentifier></o:SecurityTokenReference>"
        )

    header = '<r:UsesSequenceSTR s:mustUnderstand="1"/>'
    return {
        "alice": (named(ALICE), header),
        "bob": (named(BOB), header),
        "both": (named(ALICE) + named(BOB), header),
        "nobody": ("", header),
        "nonsense": (f'<o:SecurityTokenReference xmlns:o="{WSSE}"/>', header),
    }[kind]


async def test_a_creation_may_bind_its_sequence_to_the_signer_only(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path, ALICE, BOB)) as served:
        alice = signer(ALICE, tmp_path)
        for kind in ("bob", "both", "nobody", "nonsense"):
            fault_of(await served.post(alice(creation(*binding(kind)))))
        assert not served.sequences
        assert (await served.post(alice(creation(*binding("alice"))))).status_code == 200


# --- whom a source believes ------------------------------------------------------------------------------------------


class Interceptor(Processor):
    """Stands between the destination's signature and the network, and changes the first answers."""

    def __init__(self, change: Callable[[bytes], bytes], times: int = 3) -> None:
        self.change = change
        self.left = times

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        if not context.is_answer or self.left <= 0:
            return data
        self.left -= 1
        return self.change(data)


def without_security(data: bytes) -> bytes:
    return re.sub(rb"<wsse:Security.*</wsse:Security>", b"", data, flags=re.DOTALL)


@pytest.mark.parametrize("what", ["unsigned", "by another", "by the source itself", "a fault", "too much acknowledged"])
async def test_an_answer_that_the_service_did_not_sign_does_not_count(tmp_path: Path, what: str) -> None:
    fault = encode(Envelope(SOAP.V1_2, fault=Fault("Sender", "Go away.")))
    changes: dict[str, Callable[[bytes], bytes]] = {
        "unsigned": without_security,
        "by another": lambda data: signer(BOB, tmp_path)(without_security(data)),
        "by the source itself": lambda data: signer(ALICE, tmp_path)(without_security(data)),
        "a fault": lambda _data: fault,
        "too much acknowledged": lambda data: data.replace(b"anonymous", b"anonymouz").replace(
            b'Upper="1"', b'Upper="9"'
        ),
    }
    interceptor = Interceptor(changes[what])
    async with Served(tmp_path, None) as served:
        served.app.running.reception.envelopes.process_with([interceptor, of(SHOP, tmp_path)])
        alice = of(ALICE, tmp_path, subjects=SUBJECTS)
        versions = Versions("1.1", "2005/08", "1.2")
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY, versions=versions) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)
        await served.app.handled()
    assert interceptor.left == 0
    assert len(served.got) == 1


async def test_a_source_does_not_take_any_owner_of_a_certificate_for_its_service(tmp_path: Path) -> None:
    """Without a name or the certificate itself, bob could answer in the shop's place."""
    refused: list[str] = []

    class Told(X509):
        def inbound(self, context: MessageContext) -> None:
            try:
                super().inbound(context)
            except Exception as error:
                refused.append(str(error))
                raise

    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        files = ALICE.files(tmp_path)
        alice = Told(*files, trusted=authority().files(tmp_path).certificate)
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            await source.send("<n/>", action="urn:note")
            await until(lambda: len(refused) > 2)
            assert source.sequences()[0]["state"] == "creating"


SECRET_REASONS: dict[str, tuple[bool, Callable[[bytes], bytes], str]] = {
    "a service that is not trusted": (
        False,
        lambda data: data,
        "the certificate of CN=shop,O=Example is not a trusted",
    ),
    "an answer without a signature": (True, without_security, "no Security header"),
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(one, marks=pytest.mark.nightly if trusts else ()) for one, (trusts, *_) in SECRET_REASONS.items()],
)
async def test_the_reason_against_an_answer_reaches_the_operator_and_no_peer(tmp_path: Path, what: str) -> None:
    trusts, change, why = SECRET_REASONS[what]
    received: list[bytes] = []

    class Listening(Processor):
        def received(self, context: MessageContext, data: bytes) -> bytes:
            received.append(data)
            return data

    async with Served(tmp_path, None) as served:
        chain = [Listening(), Interceptor(change, 1000), of(SHOP, tmp_path)]
        served.app.running.reception.envelopes.process_with(chain)
        alice = of(ALICE, tmp_path, SHOP if trusts else BOB)
        # It tries ten times in each of many versions.
        policy = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.005, floor=0.005, cap=0.005))
        async with Source(served.url, ":memory:", processors=[alice], policy=policy) as source:
            sent = await source.send("<n/>", action="urn:note")
            await until(lambda: why in source.progress.problem)
            with pytest.raises(DeliveryError) as raised:
                await sent.acknowledged(timeout=240)
    assert why in raised.value.message
    for text in (source.progress.problem, raised.value.message):
        assert "discovered" not in text and ".." not in text, text
    assert received and not [data for data in received if b"not a trusted" in data or b"no Security" in data]


async def test_a_source_that_is_refused_stops_and_says_why(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path, BOB)) as served:
        alice = of(ALICE, tmp_path, SHOP)
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            sent = await source.send("<n/>", action="urn:note")
            with pytest.raises(PeerFault, match="InvalidSecurity") as raised:
                await sent.acknowledged(timeout=240)
    assert "requires other credentials" in raised.value.remedy


async def test_what_comes_to_the_address_of_a_source_is_checked_too(tmp_path: Path) -> None:
    allowed = DestinationHTTP(allow_addresses=["http://127.0.0.1"])
    async with Served(tmp_path, of(SHOP, tmp_path), http=allowed) as served:
        alice = of(ALICE, tmp_path, subjects=SUBJECTS)
        addresses: set[str] = set()

        class Witness(Processor):
            def outbound(self, context: MessageContext) -> None:
                if isinstance(context.envelope.control, CreateSequence):
                    addresses.add(context.envelope.control.acks_to.address)

        http = SourceHTTP(listen=("127.0.0.1", 0))
        async with Source(served.url, ":memory:", processors=[Witness(), alice], policy=HASTY, http=http) as source:
            with await source.request("<ask/>", action="urn:ask", timeout=240) as reply:
                assert etree.QName(reply.body).localname == "taken"
            (address,) = addresses
            answer = await served.post(envelope("SequenceAcknowledgement", ""), to=address)
            assert "processing the Security header" in fault_of(answer)


# --- encryption at both ends -----------------------------------------------------------------------------------------


class Wire(Processor):
    """Notes what is on the wire."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def inbound(self, context: MessageContext) -> None:
        self.seen.append(context.data)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        self.seen.append(data)
        return data


CUSTOMER = "{urn:shop}Customer"
ORDERS = {
    "signed first": Encryption(),
    "encrypted first": Encryption(before_signing=True, headers=[CUSTOMER]),
    "the signature, too": Encryption(signature=True, headers=[CUSTOMER], cipher="aes256-gcm"),
}


# By default each order in a third of the versions, so that each version has one.
@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("order", "versions"),
    [
        pytest.param(order, versions, id=f"{order}-{versions}", marks=[pytest.mark.nightly] if (m + n) % 3 else [])
        for m, order in enumerate(ORDERS)
        for n, versions in enumerate(ALL_VERSIONS)
    ],
)
async def test_everything_is_encrypted_in_every_version(tmp_path: Path, versions: Versions, order: str) -> None:
    """Creations, messages, replies and their acknowledgements; large ones in another thread."""
    encrypt, wire = ORDERS[order], Wire()
    async with Served(tmp_path, of(SHOP, tmp_path, ALICE, encrypt=encrypt)) as served:
        processors = [wire, of(ALICE, tmp_path, SHOP, encrypt=encrypt)]
        customer = f"<c:Customer xmlns:c='urn:shop'>{'secret' if encrypt.headers else ''}</c:Customer>".encode()
        async with Source(
            served.url, tmp_path / "out", processors=processors, policy=HASTY, versions=versions
        ) as source:
            await source.send("<note>secret</note>", action="urn:note", headers=customer)
            await source.send(f"<note>{'secret' * 20_000}</note>", action="urn:note", headers=customer)
            with await source.request("<ask/>", action="urn:ask", headers=customer, timeout=240) as reply:
                assert etree.QName(reply.body).localname == "taken"
            await source.flush(timeout=240)
            await source.end(timeout=240)
        await served.app.handled()
    assert [len(message.body.text or "") for message in served.got] == [6, 120_000, 0]
    assert all(len(message.headers) == 1 for message in served.got)
    assert len(wire.seen) >= 4
    assert all(data.count(b"EncryptedKey ") == 1 for data in wire.seen)
    assert not any(b"secret" in data or b"CreateSequence>" in data or b"<taken" in data for data in wire.seen)


async def test_encrypted_messages_arrive_once_through_a_bad_network(tmp_path: Path) -> None:
    wire, got = Wire(), list[str]()
    app = Destination(":memory:", processors=[of(SHOP, tmp_path, ALICE, encrypt=Encryption())])

    @app.on()
    def take(message: Message) -> str:
        got.append(message.body.text or "")
        return "<ok/>"

    both = [wire, of(ALICE, tmp_path, SHOP, encrypt=Encryption())]
    async with pair(app, network=lossy(0.2, seed=5), processors=both, policy=HASTY) as source:
        for number in range(20):
            assert (await source.request(f"<n>{number}</n>", action="urn:ask")).body.tag == "ok"
    assert got == [str(number) for number in range(20)]
    values = [value for data in wire.seen for value in re.findall(rb"CipherValue>([^<]+)<", data)]
    assert len(set(values)) == len(values), "each retransmission is encrypted again"


async def test_an_answer_is_encrypted_for_the_signer_of_its_request(tmp_path: Path) -> None:
    """The destination knows only the issuer of both; each reads only its own answers (UseReqSigCert)."""
    async with Served(tmp_path, of(SHOP, tmp_path, encrypt=Encryption(cipher="aes128-cbc"))) as served:
        for one, cipher in ((ALICE, "aes128-cbc"), (BOB, "aes256-gcm")):
            wire = Wire()
            encrypt = Encryption(cipher=cipher)  # type: ignore[arg-type]
            processors = [wire, of(one, tmp_path, SHOP, encrypt=encrypt)]
            async with Source(served.url, ":memory:", processors=processors, policy=HASTY) as source:
                with await source.request("<ask/>", action="urn:ask", timeout=240) as reply:
                    assert etree.QName(reply.body).localname == "taken"
            assert all(f"#{cipher}".encode() in data for data in wire.seen), "and with its cipher"


async def test_encrypted_replies_go_to_the_address_of_a_source(tmp_path: Path) -> None:
    allowed = DestinationHTTP(allow_addresses=["http://127.0.0.1"])
    async with Served(tmp_path, of(SHOP, tmp_path, ALICE, encrypt=Encryption()), http=allowed) as served:
        alice = of(ALICE, tmp_path, SHOP, encrypt=Encryption())
        http = SourceHTTP(listen=("127.0.0.1", 0))
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY, http=http) as source:
            with await source.request("<ask/>", action="urn:ask", timeout=240) as reply:
                assert etree.QName(reply.body).localname == "taken"


async def test_a_source_believes_no_answer_that_is_not_encrypted(tmp_path: Path) -> None:
    """Nor one that is encrypted for another: both count as lost, and the source asks again."""
    plainly = of(SHOP, tmp_path, ALICE)
    sealing = of(SHOP, tmp_path, ALICE, encrypt=Encryption())
    times = 0

    class Downgraded(X509):
        def encoded(self, context: MessageContext, data: bytes) -> bytes:
            nonlocal times
            times += 1
            return plainly.encoded(context, data) if times < 4 else super().encoded(context, data)

    downgraded = Downgraded(
        *SHOP.files(tmp_path), trusted=ALICE.files(tmp_path).certificate, encrypt=sealing._encryption
    )
    async with Served(tmp_path, downgraded) as served:
        alice = of(ALICE, tmp_path, SHOP, encrypt=Encryption())
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)
        await served.app.handled()
    assert times >= 4
    assert len(served.got) == 1


async def test_a_refusal_reaches_a_source_that_encrypts(tmp_path: Path) -> None:
    """The destination does not trust the source, so it does not encrypt the fault; but it signs it."""
    async with Served(tmp_path, of(SHOP, tmp_path, authority(), encrypt=Encryption())) as served:
        stranger = of(issue("CN=stranger"), tmp_path, SHOP, encrypt=Encryption())
        async with Source(served.url, ":memory:", processors=[stranger], policy=HASTY) as source:
            sent = await source.send("<n/>", action="urn:note")
            with pytest.raises(PeerFault, match="InvalidSecurity"):
                await sent.acknowledged(timeout=240)


async def test_every_failure_of_decryption_has_the_same_fault(tmp_path: Path) -> None:
    """Over the socket: the same status and text as for a message without any security."""
    changes: list[Callable[[bytes], bytes]] = [
        lambda data: re.sub(rb"(<s:Body.*?<xenc:CipherValue>)....", rb"\1AAAA", data, flags=re.DOTALL),
        lambda data: re.sub(
            rb"....(</xenc:CipherValue></xenc:CipherData></xenc:EncryptedData></s:Body>)", rb"\1", data
        ),
        lambda data: re.sub(rb"(EncryptedKey .*?<xenc:CipherValue>)....", rb"\1AAAA", data, flags=re.DOTALL),
        lambda data: data.replace(b"xmlenc#aes256-cbc", b"xmlenc#tripledes-cbc"),
        lambda data: re.sub(rb"<s:Body.*</s:Body>", b"<s:Body><order/></s:Body>", data, flags=re.DOTALL),
        lambda data: creation(),
    ]
    async with Served(tmp_path, of(SHOP, tmp_path, encrypt=Encryption())) as served:
        alice = of(ALICE, tmp_path, SHOP, encrypt=Encryption())
        told = set()
        for change in changes:
            context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to=served.url)
            good = alice.encoded(context, creation())
            data = change(good)
            assert data != good
            answer = await served.post(data)
            told.add((answer.status_code, fault_of(answer)))
        assert not served.sequences
        assert (await served.post(alice.encoded(context, creation()))).status_code == 200
    assert len(told) == 1, told


async def test_an_encrypted_envelope_may_be_the_only_part_of_a_package(tmp_path: Path) -> None:
    """As CXF sends every message with MTOM switched on."""
    async with Served(tmp_path, of(SHOP, tmp_path, ALICE, encrypt=Encryption())) as served:
        alice = of(ALICE, tmp_path, SHOP, encrypt=Encryption())
        context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to=served.url)
        package = (
            b'--b\r\nContent-Type: application/xop+xml; type="application/soap+xml"\r\nContent-ID: <r>\r\n\r\n'
            + alice.encoded(context, creation())
            + b"\r\n--b--\r\n"
        )
        media = 'multipart/related; type="application/xop+xml"; boundary="b"; start="<r>"; start-info="{}"'
        answer = await served.post(package, {"Content-Type": media.format("application/soap+xml")})
        assert answer.status_code == 200
        assert len(served.sequences) == 1


# --- settings and what cannot be signed ------------------------------------------------------------------------------


async def test_a_part_that_its_body_does_not_name_is_neither_sent_nor_accepted(tmp_path: Path) -> None:
    async with Served(tmp_path, of(SHOP, tmp_path)) as served:
        alice = of(ALICE, tmp_path, subjects=SUBJECTS)
        async with Source(served.url, ":memory:", processors=[alice], policy=HASTY) as source:
            with pytest.raises(EnvelopeError, match="cannot have attachments"):
                await source.send("<n/>", action="urn:note", attachments=[Attachment(b"data")])
            await source.send("<n/>", action="urn:note")
            await source.flush(240)
        await until(lambda: bool(served.got))
        served.got.clear()
        (created,) = served.sequences
        include = b"<order><x:Include xmlns:x='http://www.w3.org/2004/08/xop/include' href='cid:x'/></order>"
        package = (
            b'--b\r\nContent-Type: application/xop+xml; type="application/soap+xml"\r\nContent-ID: <r>\r\n\r\n'
            + signer(ALICE, tmp_path)(numbered(created).replace(b"<order/>", include))
            + b"\r\n--b\r\nContent-ID: <x>\r\n\r\ndata\r\n--b--\r\n"
        )
        media = 'multipart/related; type="application/xop+xml"; boundary="b"; start="<r>"; start-info="{}"'
        answer = await served.post(package, {"Content-Type": media.format("application/soap+xml")})
        assert "processing the Security header" in fault_of(answer)
    assert not served.got


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"suite": "Basic128"}, "suite cannot be 'Basic128'"),
        ({"reference": "name"}, "reference cannot be 'name'"),
        ({"subjects": "CN=shop"}, "single name"),
        ({"subjects": ["shop"]}, "not a distinguished name"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        of(ALICE, tmp_path, **options)


def test_an_identifier_that_a_certificate_lacks_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no SubjectKeyIdentifier"):
        of(issue("CN=bare", has_identifier=False), tmp_path, reference="subject-key-identifier")


def test_its_text_shows_whose_it_is_and_no_key(tmp_path: Path) -> None:
    assert repr(of(ALICE, tmp_path)) == "X509('CN=alice,O=Example', …)"
    assert SECURITY in X509.understands


def test_a_source_that_could_accept_no_answer_is_refused_as_in_the_file_of_a_broker(tmp_path: Path) -> None:
    issuer = issue("CN=authority,O=Example", is_issuer=True, usage="key_cert_sign")
    (tmp_path / "ca.pem").write_bytes(issuer.pem)
    own = issue("CN=alice,O=Example", issuer).files(tmp_path)
    with pytest.raises(ConfigurationError, match="no answer would be accepted: 'trusted' has only issuers") as caught:
        Source("https://shop.example/", processors=[X509(*own, trusted=tmp_path / "ca.pem")])
    assert "subjects=" in caught.value.remedy
    Source(
        "https://shop.example/",
        processors=[X509(*own, trusted=tmp_path / "ca.pem", subjects=["CN=shop,O=Example"])],
    )
    Destination(":memory:", processors=[X509(*own, trusted=tmp_path / "ca.pem")])
