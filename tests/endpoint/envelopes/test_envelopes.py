"""The one way in and the one way out: who is answered what when bytes are no envelope, or an envelope no bytes."""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from waiting import until

from holdfast import MessageContext, Processor
from holdfast.core.events import Transmit
from holdfast.core.messages import Acknowledge, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.envelopes.decoder import OFF_LOOP
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.http.exchange import Exchange, Request
from holdfast.http.outcome import Response
from holdfast.http.server.server import HTTPServer
from holdfast.wire import content_type, decode, encode

SENT = Transmit("http://destination.test/", Envelope(SOAP.V1_2))


def acknowledgement() -> Envelope:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=Acknowledge())
    envelope.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 1),)),)
    return envelope


@asynccontextmanager
async def serving(handler: Callable[[Exchange], None]) -> AsyncIterator[httpx.AsyncClient]:
    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/", timeout=60) as client:
        yield client
    await server.close()


@pytest.mark.parametrize("soap", list(SOAP))
@pytest.mark.parametrize("size", [10, OFF_LOOP + 10])
async def test_bytes_that_are_no_envelope_are_answered_with_a_fault_and_counted(soap: SOAP, size: int) -> None:
    incidents = Counter[str]()
    envelopes = Envelopes("destination", incidents)
    taken: list[Envelope] = []
    async with serving(
        lambda exchange: envelopes.receive(exchange, lambda _, read, refusal: taken.append(read))
    ) as client:
        answer = await client.post("/", content=b"<" * size, headers={"Content-Type": content_type(soap)})
    fault = decode(answer.content).fault
    assert (answer.status_code, taken, incidents) == (
        400 if soap is SOAP.V1_2 else 500,
        [],
        {"envelope.refused": 1},
    )
    assert fault is not None
    assert fault.code == "Sender"
    await envelopes.close()


async def test_an_answer_that_cannot_be_written_is_503_so_that_it_is_asked_for_again() -> None:
    incidents = Counter[str]()
    envelopes = Envelopes("destination", incidents)
    answers = [acknowledgement(), acknowledgement(), None]
    assert answers[0] is not None
    answers[0].headers = (b"<h xmlns='urn:h'>\xff</h>",)
    async with serving(lambda exchange: envelopes.respond(exchange, answers.pop(0))) as client:
        unwritten, written, nothing = [await client.post("/") for _ in range(3)]
    assert (unwritten.status_code, "retry-after" in unwritten.headers) == (503, False)
    assert (written.status_code, written.content) == (200, encode(acknowledgement()))
    assert (nothing.status_code, nothing.content) == (202, b"")
    assert incidents == {"answer.unwritable": 1}


async def test_what_is_read_in_the_thread_is_waited_for_at_the_end() -> None:
    envelopes = Envelopes("source", Counter())
    told: list[object] = []
    head = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body><b>'
    data = head + b"x" * OFF_LOOP + b"</b></s:Body></s:Envelope>"
    envelopes.read(SENT, Response(200, {}, data), None, told.append)
    assert envelopes.is_busy
    await envelopes.close()
    assert not envelopes.is_busy
    assert [type(one) for one in told] == [Envelope]
    envelopes.read(
        SENT, Response(200, {}, data), None, told.append
    )  # whoever is still answered after that is read all the same
    await until(lambda: len(told) == 2)
    await envelopes.close()


class Opening(Processor):
    """Decrypts what is encrypted with base64."""

    def received(self, context: MessageContext, data: bytes) -> bytes:
        return base64.b64decode(context.envelope.body[len(b"<x>") : -len(b"</x>")])


async def test_who_owns_a_message_is_asked_after_it_is_decrypted() -> None:
    """The Body of TerminateSequence has its Identifier, which shows the worker."""
    envelopes = Envelopes("destination", Counter(), [Opening()])
    hidden = Envelope(
        SOAP.V1_2, Addressing.V2005_08, body=b"<x>" + base64.b64encode(encode(acknowledgement())) + b"</x>"
    )
    asked: list[Envelope] = []
    taken: list[Envelope] = []

    def is_elsewhere(exchange: Exchange, envelope: Envelope) -> bool:
        assert exchange.request.body == encode(hidden), "the other worker decrypts it itself"
        asked.append(envelope)
        return len(asked) == 1

    for _ in range(2):
        exchange = Answered(encode(hidden))
        envelopes.receive(exchange, lambda _, read, refusal: taken.append(read), is_elsewhere)
    assert [type(one.control) for one in (*asked, *taken)] == [Acknowledge] * 3
    await envelopes.close()


class Answered(Exchange):
    """Throws its answer away."""

    def __init__(self, data: bytes) -> None:
        self.request = Request("POST", "/", {}, data, None, False)

    def respond(self, *_given: object) -> None:  # type: ignore[override]
        pass

    start = write = drain = finish = respond  # type: ignore[assignment]


def test_without_processors_the_path_costs_a_message_six_more_calls() -> None:
    """Counted, not timed: nothing that a message needs no processor for is made for it."""
    data = encode(acknowledgement())
    envelopes = Envelopes("destination", Counter())
    exchange, envelope = Answered(data), acknowledgement()

    def take(exchange: Exchange, _envelope: Envelope, _refusal: Fault | None) -> None:
        envelopes.respond(exchange, envelope)

    def by_hand() -> None:
        decode(data)
        exchange.respond(200, encode(envelope))

    def calls(do: Callable[[], None]) -> int:
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "call"

        do()  # what is learnt once is learnt
        sys.setprofile(profile)
        do()
        sys.setprofile(None)
        return count

    # receive, the decoder's two, _received, take, respond.
    assert calls(lambda: envelopes.receive(exchange, take)) - calls(by_hand) <= 6
