"""What becomes of a transmission: an answer, silence, or something that is no SOAP message."""

from __future__ import annotations

import asyncio
import gc
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from waiting import until

from holdfast import Attachment
from holdfast.core.events import Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    Acknowledge,
    CreateSequence,
    Envelope,
    MakeConnection,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes.attachments import encode_attachments
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.processors import MessageContext, Processor
from holdfast.endpoint.sending import sender as sending
from holdfast.endpoint.sending.sender import RETRYABLE_STATUS, Sender, Way, retry_after
from holdfast.endpoint.sending.stopped import TO_CREDENTIALS
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Response, TransportError
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports
from holdfast.wire import encode

ACKNOWLEDGEMENT = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=Acknowledge())
ACKNOWLEDGEMENT.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 1),)),)


class Recorder:
    """Stands in for an engine: notes what the sender tells the protocol."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.touched = 0
        self.times_told = 0
        self.protocol = self
        self.outbound = self
        self.exchanges = self
        self.pauses: list[float] = []

    def clock(self) -> float:
        return 1.0

    def touch(self) -> None:
        self.touched += 1

    turn = touch

    def fail(self, error: BaseException) -> None:
        raise error

    def ending(self, call: Callable[..., None]) -> Callable[..., None]:
        return call

    def received_together(self, answers: list[tuple[Transmit, Envelope | None]], now: float) -> None:
        self.told.extend(envelope for _, envelope in answers)
        self.times_told += 1

    def failed(
        self,
        sent: Transmit,
        now: float,
        unreachable: str = "",
        *,
        has_left: bool = True,
        not_accepted: str = "",
        is_too_large: bool = False,
    ) -> None:
        self.told.append("too large" if is_too_large else "failed")

    def pause(self, to: str, seconds: float, now: float) -> float:
        self.pauses.append(seconds)
        return seconds

    def unsendable(self, sent: Transmit, reason: str, now: float) -> None:
        self.told.append(reason)


@asynccontextmanager
async def answering(answer: Callable[[Exchange], None]) -> AsyncIterator[str]:
    server = HTTPServer()
    await server.start(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.port}/"
    await server.close()


def message(to: str, control: Any = None) -> Transmit:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, "urn:a", to, control=control)
    if control is None:
        envelope.body = b"<a/>"
    else:
        envelope.action, envelope.message_id = "", "urn:m"
    return Transmit(to, envelope, "urn:local", 1)


class Inlining(Processor):
    """Has attachments in the body, as a signature demands it."""

    def _inlines(self, to: str) -> bool:
        return True


class Stalled:
    """A transport to peers that do not answer, until they are told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, Callable[[Any], None]]] = []

    def request(self, method: str, url: str, body: bytes, headers: Any, done: Callable[[Any], None]) -> None:
        self.asked.append((url, body, done))

    async def close(self) -> None:
        pass


async def test_the_attachments_of_few_messages_are_in_memory_at_a_time() -> None:
    """The window counts the stored records, which do not contain them. No address waits for another."""
    http, engine = Stalled(), Recorder()
    sender = Sender(engine, http, Envelopes("source", Counter(), [Inlining()]))  # type: ignore[arg-type]
    for number in range(1, 7):
        for to in ("http://a/", "http://b/"):
            sent = message(to)
            sent.envelope.body = b"<a><x:Include xmlns:x='http://www.w3.org/2004/08/xop/include' href='cid:1'/></a>"
            part = Attachment(b"12345", content_id="1")
            sent.envelope.attachments = encode_attachments([part], sent.envelope.body)
            sender.transmit(replace(sent, number=number))
    for turn in range(1, 4):
        await until(lambda turn=turn: len(http.asked) == 4 * turn)
        for url, body, done in http.asked[4 * turn - 4 :]:
            assert b"<a>MTIzNDU=</a>" in body, url
            done(TransportError("cut", connected=True))
    assert [url for url, _, _ in http.asked].count("http://a/") == 6
    assert not sender._inlined and not sender._to_inline
    await sender.stop()


class AskingFirst(Processor):
    """Demands a request before each message."""

    def outbound(self, context: MessageContext) -> None:
        if context.envelope.action != "urn:ask":
            context.request_first("<ask/>", action="urn:ask")


async def outcome(
    answer: Callable[[Exchange], None], control: Any = None, *processors: Processor
) -> tuple[Any, list[str]]:
    """What the protocol was told, and what the user was."""
    recorder, problems = Recorder(), list[str]()
    async with answering(answer) as url:
        http = HTTPClient()
        sender = Sender(
            recorder,  # type: ignore[arg-type]
            http,
            Envelopes("source", Counter(), processors),
            {"Authorization": "Bearer t"},
            on_transport_error=lambda sent, reason: problems.append(reason),
        )
        sender.transmit(message(url, control))
        await until(lambda: recorder.touched)
        assert sender.transmissions == 1
        await sender.stop()
    assert recorder.touched == 1
    (told,) = recorder.told
    return told, problems


async def test_an_envelope_comes_back_decoded_whatever_its_status() -> None:
    for status in (200, 500):
        told, problems = await outcome(lambda e, s=status: e.respond(s, encode(ACKNOWLEDGEMENT), b"text/xml"))
        assert told.acknowledgements == ACKNOWLEDGEMENT.acknowledgements
        assert problems == []


async def test_an_empty_success_is_an_answer_with_nothing_in_it() -> None:
    for status, body in ((202, b""), (200, b""), (200, b" \r\n")):
        told, problems = await outcome(lambda e, s=status, b=body: e.respond(s, b))
        assert told is None
        assert problems == []


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "control",
    [None, CreateSequence(ANONYMOUS_EPR), MakeConnection(f"{MC_ANONYMOUS}1")],
    ids=["message", "CreateSequence", "poll"],
)
async def test_refused_http_credentials_are_a_fault_that_says_that_some_were_given(status: int, control: Any) -> None:
    told, _ = await outcome(lambda e: e.respond(status, b"<html>who</html>", b"text/html"), control)
    assert told.fault.code == f"HTTP {status}" and told.fault.reason.endswith(TO_CREDENTIALS)


@pytest.mark.parametrize("status", [200, 400, 404, *RETRYABLE_STATUS])
async def test_a_page_in_place_of_a_message_is_a_failure_that_names_the_status(status: int) -> None:
    told, problems = await outcome(lambda e: e.respond(status, b"<html>oops</html>", b"text/html"))
    assert told == "failed"
    (problem,) = problems
    assert f"HTTP {status}" in problem


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_beyond_a_limit_is_too_large_only_if_it_is_a_success(status: int) -> None:
    beyond = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, "urn:r", headers=(b"<h xmlns='urn:h'/>" * 100,))
    for body in (encode(beyond), b"<a>" + b"x" * 16 * 1024 * 1024 + b"</a>"):
        told, problems = await outcome(lambda e, b=body: e.respond(status, b, b"application/soap+xml"))
        assert told == ("too large" if status == 200 else "failed")
        assert ("mtom=True" in problems[0]) == (status == 200)


async def test_a_create_sequence_answered_with_an_error_page_is_refused_or_retried() -> None:
    create = CreateSequence(ANONYMOUS_EPR)
    for status in (200, 203, 404, 415, 501, 505, 520):
        told, _ = await outcome(lambda e, s=status: e.respond(s, b"not here"), create)
        assert (told.fault.code, told.fault.sender) == (f"HTTP {status}", 400 <= status < 500)
    told, problems = await outcome(lambda e: e.respond(503, b"later"), create)
    assert told == "failed"
    assert "HTTP 503" in problems[0]


@pytest.mark.parametrize("status", [200, 400, 401, 404, *RETRYABLE_STATUS])
@pytest.mark.parametrize("control", [None, CreateSequence(ANONYMOUS_EPR)], ids=["message", "CreateSequence"])
@pytest.mark.parametrize("page", [(b"<html>oops</html>", b"text/html"), (b"not here", b"text/plain")])
async def test_a_page_before_a_message_means_what_it_means_for_the_message(
    status: int, control: Any, page: tuple[bytes, bytes]
) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.respond(status, *page, [(b"Retry-After", b"3")])

    alone, before = await outcome(answer, control), await outcome(answer, control, AskingFirst())
    assert [re.sub(r":\d+", "", str(one)) for one in before] == [re.sub(r":\d+", "", str(one)) for one in alone]


async def test_a_terminate_sequence_that_arrived_is_answered_whatever_came_back() -> None:
    told, problems = await outcome(lambda e: e.respond(200, b"thanks"), TerminateSequence("urn:s"))
    assert told is None
    assert problems == []


async def test_a_refused_connection_is_a_failure_with_the_reason() -> None:
    recorder, problems = Recorder(), list[str]()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    sender = Sender(
        recorder,  # type: ignore[arg-type]
        HTTPClient(),
        Envelopes("source", Counter()),
        on_transport_error=lambda sent, reason: problems.append(reason),
    )
    sender.transmit(message(url))
    await until(lambda: recorder.touched)
    await sender.stop()
    assert recorder.told == ["failed"]
    assert "Connection refused" in problems[0]
    assert url in problems[0]


async def test_transports_that_are_replaced_together_are_both_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []

    class Slow:
        def request(self, *_: Any, **__: Any) -> None: ...

        async def close(self) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(self)

    monkeypatch.setattr(sending, "RETIRED_FOR", 0.0)
    sender = Sender(Recorder(), Slow(), Envelopes("source", Counter()))  # type: ignore[arg-type]
    for to in ("http://a/", "http://b/"):
        sender.use(to, Way(Slow()))  # type: ignore[arg-type]
        sender.use(to, None)
    await asyncio.sleep(0.05)
    gc.collect()
    assert ended == [], "a closing without a reference ends in its middle"


async def test_a_process_that_is_not_trusted_sends_nothing_and_tries_again_later() -> None:
    recorder, problems, asked = Recorder(), list[str](), list[str]()
    trusted = [False]

    def answer(exchange: Exchange) -> None:
        asked.append(exchange.request.target)
        exchange.respond(202)

    async with answering(answer) as url:
        sender = Sender(
            recorder,  # type: ignore[arg-type]
            HTTPClient(),
            Envelopes("source", Counter()),
            on_transport_error=lambda sent, reason: problems.append(reason),
            is_trusted=lambda: trusted[0],
        )
        sender.transmit(message(url))
        await until(lambda: recorder.told == ["failed"])
        assert (asked, problems) == ([], ["another node may have taken over this message"])
        trusted[0] = True
        sender.transmit(message(url))
        await until(lambda: asked == ["/"])
        await sender.stop()


async def test_headers_go_with_soaps_own() -> None:
    seen: list[dict[bytes, bytes]] = []

    def answer(exchange: Exchange) -> None:
        seen.append(exchange.request.headers)
        exchange.respond(202)

    await outcome(answer)
    assert seen[0][b"authorization"] == b"Bearer t"
    assert b"application/soap+xml" in seen[0][b"content-type"]
    assert b'action="urn:a"' in seen[0][b"content-type"]


@pytest.mark.parametrize("status", [200, 202])
async def test_silence_in_answer_to_create_sequence_is_told_for_it_will_never_open(status: int) -> None:
    told, problems = await outcome(lambda e: e.respond(status), CreateSequence(ANONYMOUS_EPR))
    assert told is None
    (problem,) = problems
    assert f"answered CreateSequence with HTTP {status} and no content" in problem


async def test_an_application_message_in_answer_to_create_sequence_names_the_remedy() -> None:
    """As of a service without reliable messaging, which answers whatever it is sent."""
    reply = Envelope(SOAP.V1_2, Addressing.V2005_08, None, "urn:reply", body=b"<r/>")
    told, problems = await outcome(lambda e: e.respond(200, encode(reply), b"text/xml"), CreateSequence(ANONYMOUS_EPR))
    assert told.body == b"<r/>"
    (problem,) = problems
    assert "answered CreateSequence with an application's message" in problem
    assert "reliable messaging is enabled there" in problem


async def test_silence_in_answer_to_a_message_is_an_answer() -> None:
    assert await outcome(lambda e: e.respond(202)) == (None, [])


@pytest.mark.parametrize("relates_to", [None, "urn:asked"])
async def test_an_answer_to_an_address_lets_the_202_for_its_question_go_first(relates_to: str | None) -> None:
    recorder = Recorder()
    async with answering(lambda exchange: exchange.respond(202)) as url:
        sender = Sender(recorder, HTTPClient(), Envelopes("source", Counter()))  # type: ignore[arg-type]
        sent = message(url)
        sent.envelope.relates_to = relates_to
        sender.transmit(sent)
        assert sender.transmissions == (1 if relates_to is None else 0)
        await until(lambda: recorder.touched)
        assert sender.transmissions == 1
        await sender.stop()


async def test_what_is_told_after_the_end_changes_nothing() -> None:
    recorder = Recorder()
    async with answering(lambda exchange: None) as url:
        sender = Sender(recorder, HTTPClient(), Envelopes("source", Counter()))  # type: ignore[arg-type]
        waiting = message(url)
        waiting.envelope.relates_to = "urn:asked"
        sender.transmit(message(url))
        sender.transmit(waiting)
        await sender.stop()
    assert (recorder.told, recorder.touched, sender.transmissions) == ([], 0, 1)


async def test_what_a_server_says_in_plain_text_is_handed_on() -> None:
    text = b"The store failed; nothing is accepted.\nmore\n"
    told, problems = await outcome(lambda e: e.respond(503, text, b"text/plain; charset=utf-8"))
    assert told == "failed"
    (problem,) = problems
    assert problem.endswith("answered with HTTP 503 and no SOAP message (The store failed; nothing is accepted.)")


async def test_what_is_wrong_with_an_answer_in_mtom_is_said() -> None:
    mtom = b'multipart/related; type="application/xop+xml"; boundary="b"'
    told, (problem,) = await outcome(lambda e: e.respond(200, b"--b", mtom))
    assert told == "failed"
    assert "the multipart body ends before the last boundary" in problem


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Sun, 22 Nov 2026 05:30:00 GMT", 60.0),
        ("Sun, 22 Nov 2026 05:00:00 GMT", 0.0),
        ("9" * 400, float("9" * 12)),
        ("-5", 0.0),
        ("soon", 0.0),
        ("٣", 0.0),
        ("Sun, 99 Nov 2026 05:30:00 GMT", 0.0),
        ("", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_anything_else_is_not_looked_at(said: str, seconds: float) -> None:
    now = 1795325340.0  # 05:29:00
    for status in (429, 503):
        assert retry_after(Response(status, {"retry-after": said}, b""), now) == seconds
    assert retry_after(Response(500, {"retry-after": said}, b""), now) == 0.0


async def test_a_pause_that_is_asked_for_is_told_to_the_protocol_and_to_the_user() -> None:
    recorder, problems = Recorder(), list[str]()

    def busy(exchange: Exchange) -> None:
        exchange.respond(503, b"Closed for lunch.", b"text/plain", ((b"Retry-After", b"40"),))

    async with answering(busy) as url:
        sender = Sender(
            recorder,  # type: ignore[arg-type]
            HTTPClient(),
            Envelopes("source", Counter()),
            on_transport_error=lambda _, reason: problems.append(reason),
        )
        sender.transmit(message(url))
        await until(lambda: recorder.touched)
        await sender.stop()
    assert recorder.pauses == [40.0]
    assert recorder.told == ["failed"]
    assert "Closed for lunch.; the next attempt follows in 40 s" in problems[0]


async def test_what_cannot_be_written_is_told_to_the_protocol_and_not_posted() -> None:
    recorder = Recorder()
    sent = message("http://127.0.0.1:9/")
    sent.envelope.headers = (b"<h xmlns='urn:h'>\xff</h>",)
    sender = Sender(recorder, HTTPClient(), Envelopes("source", Counter()))  # type: ignore[arg-type]
    sender.transmit(sent)
    await sender.stop()
    (reason,) = recorder.told
    assert "UnicodeDecodeError" in reason


class Scripted:
    """A transport that ends its calls when the test says so, all in one turn of the loop."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def request(self, method: str, url: str, body: bytes, headers: Any, done: Any) -> None:
        self.calls.append(done)

    async def close(self) -> None:
        pass


async def test_answers_and_failures_of_one_turn_are_told_in_their_order() -> None:
    recorder, transport = Recorder(), Scripted()
    sender = Sender(recorder, transport, Envelopes("source", Counter()))  # type: ignore[arg-type]
    for _ in range(4):
        sender.transmit(message("http://d.test/"))
    lost = TransportError("it closed the connection", connected=True)
    for outcome_of_one in (Response(202, {}, b""), lost, Response(202, {}, b""), lost):
        transport.calls.pop(0)(outcome_of_one)
    await until(lambda: len(recorder.told) == 4)
    assert recorder.told == [None, "failed", None, "failed"]
    await sender.stop()
