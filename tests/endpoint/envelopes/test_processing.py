"""Processors of real endpoints: every message passes, each attempt anew, and whatever they say, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

from holdfast import (
    DeliveryError,
    Destination,
    DestinationHTTP,
    HoldfastError,
    Message,
    MessageContext,
    MessageFlowError,
    PeerFault,
    ProcessingError,
    Processor,
    Source,
    SourceHTTP,
)
from holdfast.core.events import Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.endpoint.envelopes.chain import FAILED, PUT_OFF, REFUSED
from holdfast.endpoint.envelopes.decoder import OFF_LOOP
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.testing import lossy, pair
from holdfast.testing.ports import free_ports
from holdfast.wire import decode, encode, http_headers

TICKET = "{urn:t}Ticket"
HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))


class Tickets(Processor):
    """Puts a new ticket on whatever leaves, and wants one of whatever comes, that never was there before."""

    understands = (TICKET,)

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.sent: list[tuple[str, int, int]] = []
        self.came: list[tuple[str, bool]] = []
        self.tickets: dict[int, set[str]] = {}

    def outbound(self, context: MessageContext) -> None:
        self.count += 1
        self.sent.append((kind(context), context.message_number, context.attempt))
        block = f"<t:Ticket xmlns:t='urn:t'>{self.name} {self.count}</t:Ticket>"
        context.add_header(block, must_understand=True)

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        return data.replace(b"</t:Ticket>", b" sealed</t:Ticket>", 1)

    def inbound(self, context: MessageContext) -> None:
        ticket = context.header(TICKET)
        if ticket is None or not (ticket.text or "").endswith(" sealed"):
            raise ProcessingError("There is no sealed ticket.")
        assert context.data.count(b" sealed</t:Ticket>") == 1
        assert ticket.text is not None
        self.tickets.setdefault(context.message_number, set()).add(ticket.text)
        self.came.append((kind(context), context.is_answer))


def kind(context: MessageContext) -> str:
    return "message" if context.is_application else type(context.envelope.control or context.envelope.fault).__name__


class When(Processor):
    """Does something with the application's messages, and with answers, of one direction."""

    def __init__(self, method: str, does: Callable[[MessageContext], Any]) -> None:
        self.method, self.does = method, does
        self.times = 0

    def _do(self, method: str, context: MessageContext) -> None:
        if method == self.method and (context.is_application or context.is_answer):
            self.times += 1
            self.does(context)

    def inbound(self, context: MessageContext) -> None:
        self._do("inbound", context)

    def outbound(self, context: MessageContext) -> None:
        self._do("outbound", context)


def app_of(*processors: Processor, got: list[str] | None = None) -> Destination:
    app = Destination(processors=processors)

    @app.on("urn:say")
    def say(message: Message) -> None:
        if got is not None:
            got.append(message.body.text or "")

    @app.on("urn:ask")
    def ask(message: Message) -> str:
        return f"<re>{message.body.text}</re>"

    return app


# --- everything passes -----------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
async def test_every_message_passes_both_ends_and_each_attempt_anew(versions: Versions) -> None:
    got: list[str] = []
    here, there = Tickets("source"), Tickets("destination")
    app = app_of(there, got=got)
    async with pair(app, network=lossy(0.3, seed=5), processors=[here], versions=versions) as source:
        for number in range(30):
            await source.send(f"<n>{number}</n>", action="urn:say")
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
        await source.end()
    assert got == [str(number) for number in range(30)]
    attempts = Counter(number for what, number, _ in here.sent if what == "message")
    assert max(attempts.values()) > 1, "something was sent again"
    for number, times in attempts.items():
        assert [attempt for _, one, attempt in here.sent if one == number][:times] == list(range(1, times + 1))
    assert any(number and len(tickets) > 1 for number, tickets in there.tickets.items()), "sent again, made anew"
    assert all(ticket.startswith("source ") for tickets in there.tickets.values() for ticket in tickets)
    begun = ("CreateSequence", "CreateSequenceResponse") if versions.rm.can.creates else ("message", "message")
    assert {what for what, _ in there.came} >= {"message", begun[0], "TerminateSequence"}
    assert {what for what, is_answer in here.came if is_answer} >= {"message", begun[1], "Acknowledge"}
    assert app.incidents[REFUSED] == app.incidents[FAILED] == 0


async def test_what_comes_to_an_address_passes_too(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}/"
    here, there = Tickets("source"), Tickets("destination")
    app = Destination(tmp_path / "in", processors=[there], http=DestinationHTTP(allow_addresses=[address]))

    @app.on()
    def answer(message: Message) -> str:
        return f"<re>{message.body.text}</re>"

    service = Service(app, Listeners(port=0))
    await service.start()
    http = SourceHTTP(listen=("127.0.0.1", port), address=address)
    options: dict[str, Any] = {"http": http, "processors": [here]}
    async with Source(service.url, tmp_path / "out", policy=HASTY, **options) as source:
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    await service.close()
    assert ("message", False) in here.came, "the reply, as a request of its own"
    assert any(what == "message" and attempt == 1 for what, _, attempt in there.sent)
    assert app.incidents[REFUSED] == 0


async def test_a_request_and_its_answer_share_notes_at_both_ends() -> None:
    noted: list[tuple[str, object]] = []

    class Notes(Processor):
        def inbound(self, context: MessageContext) -> None:
            self.note(context, "in")

        def outbound(self, context: MessageContext) -> None:
            self.note(context, "out")

        def note(self, context: MessageContext, way: str) -> None:
            if context.is_answer:
                noted.append((context.role, context.notes.get("of")))
            else:
                assert "of" not in context.notes, "one exchange's"
                context.notes["of"] = way

    async with pair(app_of(Notes()), processors=[Notes()]) as source:
        await source.request("<n>a</n>", action="urn:ask")
    assert set(noted) == {("destination", "in"), ("source", "out")}


class Veil(Processor):
    """Hides the whole content of the Body, whether it is the application's or the protocol's."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.times = 0
        self.threads: set[str] = set()

    def encoded(self, context: MessageContext, data: bytes) -> bytes:
        start, end = data.index(b"<s:Body>") + 8, data.rindex(b"</s:Body>")
        return data[:start] + b"<v:Veil xmlns:v='urn:v'>%s</v:Veil>" % data[start:end].hex().encode() + data[end:]

    def received(self, context: MessageContext, data: bytes) -> bytes:
        assert context.envelope.body.startswith(b"<v:Veil")
        assert context.envelope.control is None, "it is hidden"
        self.threads.add(threading.current_thread().name)
        self.times += 1
        if self.error is not None and self.times % 3:
            raise self.error
        start, end = data.index(b"'urn:v'>") + 8, data.index(b"</v:Veil>")
        hidden = bytes.fromhex(data[start:end].decode())
        return data[: data.index(b"<v:Veil")] + hidden + data[end + 9 :]

    def inbound(self, context: MessageContext) -> None:
        assert b"<v:Veil" in context.data, "as it came"
        assert b"Veil" not in context.envelope.body


async def test_a_message_is_opened_before_the_protocol_reads_it() -> None:
    got: list[str] = []
    here, there = Veil(), Veil()
    app = app_of(there, got=got)
    versions = Versions("1.1", "2005/08", "1.2")
    async with pair(app, network=lossy(0.2, seed=3), processors=[here], versions=versions) as source:
        await source.send("<n>1</n>", action="urn:say")
        await source.send(f"<n>{'2' * OFF_LOOP}</n>", action="urn:say")
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
        await source.end()
    assert got == ["1", "2" * OFF_LOOP]
    assert here.times > 3
    assert len(there.threads) == 2, "the large one in another thread"


@pytest.mark.parametrize("error", [MessageFlowError("not now"), ValueError("a bug")], ids=["put off", "bug"])
@pytest.mark.parametrize("role", ["source", "destination"])
async def test_what_cannot_be_opened_now_is_not_lost(error: Exception, role: str) -> None:
    got: list[str] = []
    here, there = (Veil(error if role == one else None) for one in ("source", "destination"))
    app = app_of(there, got=got)
    versions = Versions("1.1", "2005/08", "1.2")
    async with pair(app, processors=[here], versions=versions) as source:
        await source.send("<n>1</n>", action="urn:say")
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    assert got == ["1"]
    incidents = app.incidents if role == "destination" else source.incidents
    assert incidents[FAILED] + incidents[PUT_OFF] > 1


class Waiting(Processor):
    """Waits until the event loop, which it must not block, lets it go on."""

    waits = True

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.began = asyncio.Event()
        self.may_go = threading.Event()
        self.was_let_go: list[bool] = []

    def _wait(self) -> None:
        self._loop.call_soon_threadsafe(self.began.set)
        self.was_let_go.append(self.may_go.wait(60))


class WaitingInbound(Waiting):
    def inbound(self, context: MessageContext) -> None:
        self._wait()


class WaitingReceived(Waiting):
    """As one that asks a database for the signature of a message before it decrypts that."""

    def received(self, context: MessageContext, data: bytes) -> bytes:
        self._wait()
        return data


class WaitingOutbound(Waiting):
    """As one that asks a database for the token of a message."""

    def outbound(self, context: MessageContext) -> None:
        self._wait()


@pytest.mark.parametrize(
    ("role", "kind"),
    [*product(("source", "destination"), (WaitingInbound, WaitingReceived)), ("source", WaitingOutbound)],
)
async def test_a_processor_that_waits_does_not_block_the_event_loop(role: str, kind: type[Waiting]) -> None:
    got: list[str] = []
    here, there = ([kind()] if role == one else [] for one in ("source", "destination"))
    (waiting,) = (*here, *there)
    async with pair(app_of(*there, got=got), processors=here) as source:
        await source.send("<n>1</n>", action="urn:say")
        await waiting.began.wait()
        waiting.may_go.set()
        await source.send("<n>2</n>", action="urn:say")
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
        await source.end()
    assert got == ["1", "2"]
    assert all(waiting.was_let_go)


# --- what stops a message that comes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "incident"),
    [(MessageFlowError("not now", retry_after=1), PUT_OFF), (ValueError("a bug"), FAILED)],
    ids=["put off", "bug"],
)
@pytest.mark.parametrize("at", ["destination inbound", "destination outbound", "source inbound"])
async def test_what_is_put_off_or_meets_a_bug_is_not_lost(error: Exception, incident: str, at: str) -> None:
    def fail(context: MessageContext) -> None:
        if stumbling.times % 3:
            raise error

    role, _, method = at.partition(" ")
    stumbling = When(method, fail)
    got: list[str] = []
    app = app_of(*([stumbling] if role == "destination" else []), got=got)
    async with pair(app, processors=[stumbling] if role == "source" else []) as source:
        for number in range(10):
            await source.send(f"<n>{number}</n>", action="urn:say")
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    assert got == [str(number) for number in range(10)]
    incidents = app.incidents if role == "destination" else source.incidents
    assert incidents[incident] > 1


async def test_a_message_refused_by_a_processor_is_answered_with_a_fault_and_dropped() -> None:
    def refuse(context: MessageContext) -> None:
        if b"bad" in context.envelope.body:
            raise ProcessingError("This one is bad.", detail=b"<d:why xmlns:d='urn:d'>bad</d:why>")

    got: list[str] = []
    refusing = When("inbound", refuse)
    app = app_of(refusing, got=got)
    async with pair(app) as source:
        await source.send("<n>good</n>", action="urn:say")
        other = await source.send("<n>fine</n>", action="urn:say", sequence_key="other")
        bad = await source.send("<n>bad</n>", action="urn:say")
        with pytest.raises(HoldfastError, match="This one is bad") as stopped:
            await bad.acknowledged()
        assert "safe" in str(stopped.value) or "in memory" in str(stopped.value)
        await other.acknowledged()
        await source.send("<n>still</n>", action="urn:say", sequence_key="other")
        await source.end("other")
        assert app.running.accepted == 3
        refusing.does = lambda context: None
        source.resume()
        await bad.acknowledged()
    assert sorted(got) == ["bad", "fine", "good", "still"]
    assert app.incidents[REFUSED] == 1


async def test_a_refusal_that_is_not_the_senders_fault_is_tried_again() -> None:
    def refuse(context: MessageContext) -> None:
        if refusing.times < 4:
            raise ProcessingError("The keys are not here yet.", sender=False)

    refusing = When("inbound", refuse)
    got: list[str] = []
    async with pair(app_of(refusing, got=got)) as source:
        await source.send("<n>a</n>", action="urn:say")
    assert got == ["a"]


@pytest.mark.parametrize("error", [ProcessingError("forged"), ProcessingError("x", sender=False)])
async def test_an_answer_that_is_refused_stops_nothing_for_anybody_could_have_written_it(error: Exception) -> None:
    def refuse(context: MessageContext) -> None:
        if refusing.times < 6:
            raise error

    refusing = When("inbound", refuse)
    app = app_of()
    async with pair(app, processors=[refusing]) as source:
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    assert refusing.times >= 6
    assert app.running.accepted == 1


# --- what stops a message that leaves --------------------------------------------------------------------------------


async def test_what_cannot_leave_now_is_tried_again() -> None:
    def fail(context: MessageContext) -> None:
        if failing.times < 5:
            raise MessageFlowError("there is no token yet")

    failing = When("outbound", fail)
    got: list[str] = []
    async with pair(app_of(got=got), processors=[failing]) as source:
        await source.send("<n>a</n>", action="urn:say")
        await until(lambda: "there is no token yet" in source.progress.problem or bool(got))
    assert got == ["a"]
    assert source.incidents[PUT_OFF] == 4


@pytest.mark.parametrize("error", [ProcessingError("There is no key for it."), ZeroDivisionError()])
async def test_what_a_processor_does_not_let_leave_stops_its_sequence_with_a_sentence(error: Exception) -> None:
    def fail(context: MessageContext) -> None:
        if b"bad" in context.envelope.body:
            raise error

    failing = When("outbound", fail)
    got: list[str] = []
    async with pair(app_of(got=got), processors=[failing]) as source:
        bad = await source.send("<n>bad</n>", action="urn:say")
        good = await source.send("<n>good</n>", action="urn:say", sequence_key="other")
        with pytest.raises(DeliveryError, match="cannot be written: ") as stopped:
            await bad.acknowledged()
        assert ("no key" if isinstance(error, ProcessingError) else "When failed: ZeroDivision") in str(stopped.value)
        await good.acknowledged()
        failing.does = lambda context: None
        source.resume()
        await bad.acknowledged()
    assert sorted(got) == ["bad", "good"]


@pytest.mark.parametrize("posts", [False, True], ids=["in the response", "to an address"])
async def test_a_reply_that_a_processor_never_lets_leave_is_a_fault_and_blocks_nothing(
    tmp_path: Path, posts: bool
) -> None:
    """It stays in its place of the Sequence, so its requester acknowledges it, and later requests are handled."""

    def refuse(context: MessageContext) -> None:
        if b"bad" in context.envelope.body:
            context.add_header("<t:h xmlns:t='urn:t'>of the reply that is refused</t:h>")
            raise ProcessingError("Bad replies do not leave.")

    app, (port,) = app_of(When("outbound", refuse)), free_ports(1)
    address = f"http://127.0.0.1:{port}/"
    app.settings.location, app.settings.http = tmp_path / "inbox", DestinationHTTP(allow_addresses=[address])
    service = Service(app, Listeners(port=0))
    await service.start()
    http = SourceHTTP(listen=("127.0.0.1", port), address=address) if posts else None
    try:
        async with Source(service.url, tmp_path / "outbox", http=http, policy=HASTY) as source:
            for text in ("a", "bad", "c", "bad", "d"):
                asked = source.request(f"<n>{text}</n>", action="urn:ask", timeout=240)
                if text != "bad":
                    assert (await asked).body.text == text
                    continue
                with pytest.raises(PeerFault, match="The reply cannot be sent: Bad replies do not leave"):
                    await asked
            await source.end(timeout=240)
    finally:
        await service.close(0.0)
    assert app.incidents["reply.replaced_by_fault"] >= 2


@pytest.mark.parametrize("is_reply", [False, True])
@pytest.mark.parametrize("role", ["source", "destination"])
def test_a_message_that_only_relates_to_another_is_never_replaced_by_a_fault(role: Any, is_reply: bool) -> None:
    """As of a forwarder or a sink: it waits for the operator, or it would be lost."""

    def refuse(context: MessageContext) -> None:
        raise ProcessingError("It does not leave.")

    envelopes = Envelopes(role, Counter(), [When("outbound", refuse)])
    sent = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:order", to="http://x/", body=b"<order/>")
    sent.message_id, sent.relates_to, sent.is_reply = "urn:m:2", "urn:m:1", is_reply
    with contextlib.suppress(ProcessingError):
        envelopes.write(Transmit("http://x/", sent))
    assert (b"Fault" in sent.body) is is_reply
    assert (sent.body == b"<order/>") is not is_reply


@pytest.mark.parametrize(
    "error", [ProcessingError("The keys are not here yet.", sender=False), ZeroDivisionError()], ids=["later", "bug"]
)
async def test_a_reply_that_may_leave_later_is_asked_for_again(error: Exception) -> None:
    def refuse(context: MessageContext) -> None:
        if refusing.times < 6 and context.is_application:
            raise error

    refusing = When("outbound", refuse)
    async with pair(app_of(refusing)) as source:
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    assert refusing.times >= 6


async def test_a_fault_that_is_refused_as_well_does_not_end_in_a_loop() -> None:
    def refuse(context: MessageContext) -> None:
        if context.is_application and refusing.times < 10:
            raise ProcessingError("No reply leaves.")

    refusing = When("outbound", refuse)
    app = app_of(refusing)
    async with pair(app) as source:
        assert (await source.request("<n>a</n>", action="urn:ask")).body.text == "a"
    assert app.incidents[REFUSED] >= 8


# --- over HTTP -------------------------------------------------------------------------------------------------------


def create(**values: Any) -> Envelope:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, message_id="urn:m", **values)
    envelope.control = CreateSequence(ANONYMOUS_EPR)
    return envelope


async def posted(tmp_path: Path, processor: Processor, *envelopes: Envelope) -> list[httpx.Response]:
    service = Service(Destination(tmp_path / "in", processors=[processor]), Listeners(port=0))
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        headers = http_headers(SOAP.V1_2)
        answers = [await client.post("/", content=encode(one), headers=headers) for one in envelopes]
    await service.close()
    return answers


SSL = b'<r:UsesSequenceSSL xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"/>'
SECURITY = (
    b'<w:Security xmlns:w="urn:wsse" xmlns:s="http://www.w3.org/2003/05/soap-envelope" s:mustUnderstand="1">k'
    b"</w:Security>"
)


async def test_which_headers_are_understood_is_what_the_processors_say(tmp_path: Path) -> None:
    class Understanding(Processor):
        understands = frozenset({"{urn:wsse}Security", "{http://docs.oasis-open.org/ws-rx/wsrm/200702}UsesSequenceSSL"})

    class Nothing(Processor):
        pass

    for headers in ((SECURITY,), (SSL,), (SSL, SECURITY)):
        (answer,) = await posted(tmp_path / "some", Understanding(), create(headers=headers))
        assert isinstance(decode(answer.content).control, CreateSequenceResponse)
        (answer,) = await posted(tmp_path / "none", Nothing(), create(headers=headers))
        assert answer.status_code == 500
        assert answer.content.count(b":NotUnderstood qname=") == len(headers)
        fault = decode(answer.content).fault
        assert fault is not None
        assert fault.code == "MustUnderstand"


async def test_what_is_answered_for_the_protocol_passes_too(tmp_path: Path) -> None:
    """Faults for bytes that are no envelope, for a header that nobody understands, and for what a processor refuses."""

    class Stamping(Processor):
        def inbound(self, context: MessageContext) -> None:
            raise ProcessingError("I take nothing.")

        def outbound(self, context: MessageContext) -> None:
            assert context.is_answer and context.role == "destination"
            context.add_header("<t:Ticket xmlns:t='urn:t'/>")

    service = Service(Destination(tmp_path, processors=[Stamping()]), Listeners(port=0))
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        for content in (b"<", encode(create(headers=(SECURITY,))), encode(create())):
            answer = decode((await client.post("/", content=content, headers=http_headers(SOAP.V1_2))).content)
            assert answer.fault is not None
            assert answer.headers == (b"<t:Ticket xmlns:t='urn:t'/>",)
    await service.close()


async def test_a_request_that_a_processor_answers_never_reaches_reliable_messaging(tmp_path: Path) -> None:
    class Pong(Processor):
        def inbound(self, context: MessageContext) -> None:
            if context.envelope.action == "urn:ping":
                context.answer("<pong/>", action="urn:pong")
            elif context.is_application:
                context.answer()

    ping = Envelope(SOAP.V1_2, Addressing.V2005_08, action="urn:ping", message_id="urn:m", body=b"<ping/>")
    plain = Envelope(SOAP.V1_2, Addressing.V2005_08, action="urn:other", body=b"<a/>")
    pong, nothing, created = await posted(tmp_path, Pong(), ping, plain, create())
    answer = decode(pong.content)
    assert (answer.action, answer.relates_to, answer.body) == ("urn:pong", "urn:m", b"<pong/>")
    assert (nothing.status_code, nothing.content) == (202, b"")
    assert isinstance(decode(created.content).control, CreateSequenceResponse)


async def test_a_processor_that_defers_or_fails_is_503_with_the_delay_it_names(
    tmp_path: Path,
) -> None:
    class Away(Processor):
        def inbound(self, context: MessageContext) -> None:
            raise errors.pop(0)

    why = "The directory of keys does not answer."
    errors = [MessageFlowError(why, retry_after=2.5), MessageFlowError(why), LookupError(why)]
    answers = await posted(tmp_path, Away(), create(), create(), create())
    assert [answer.status_code for answer in answers] == [503, 503, 503]
    # Who is asked to wait leaves everything be: one message's bug asks for no such thing.
    assert [answer.headers.get("retry-after") for answer in answers] == ["3", None, None]
    assert not any(b"directory" in answer.content for answer in answers), "nothing is told of what is inside"


async def test_an_answer_with_a_header_that_nobody_understands_is_not_taken(tmp_path: Path) -> None:
    class Demanding(Processor):
        def outbound(self, context: MessageContext) -> None:
            if demanding and context.is_application:
                context.add_header("<t:Ticket xmlns:t='urn:t'/>", must_understand=True)

    demanding = True
    app = app_of(Demanding())
    async with pair(app) as source:
        asking = asyncio.ensure_future(source.request("<n>a</n>", action="urn:ask"))
        await until(lambda: TICKET in source.progress.problem)
        demanding = False
        assert (await asking).body.text == "a"


def test_assurances_hold_with_processors_that_stumble_at_every_turn() -> None:
    """At both ends, in both directions, at once, over a bad network."""
    turns = Counter[str]()

    class Stumbling(Processor):
        def __init__(self, role: str) -> None:
            self.role = role

        def stumble(self, way: str) -> None:
            turns[self.role + way] += 1
            if turns[self.role + way] % 5 == 0:
                raise MessageFlowError("not now")
            if turns[self.role + way] % 7 == 0 and (self.role, way) != ("source", "out"):
                raise KeyError("a bug")

        def inbound(self, context: MessageContext) -> None:
            self.stumble("in")

        def outbound(self, context: MessageContext) -> None:
            self.stumble("out")

    got: list[str] = []
    app = app_of(Stumbling("destination"), got=got)
    with pair(app, network=lossy(0.2, seed=3), processors=[Stumbling("source")]) as source:
        for number in range(60):
            source.send(f"<n>{number}</n>", action="urn:say")
        assert source.request("<n>a</n>", action="urn:ask").body.text == "a"
    assert got == [str(number) for number in range(60)]
