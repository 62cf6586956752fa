"""An answer waits for nobody but those who were seen to need it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from waiting import until

from holdfast import Destination, DestinationHTTP
from holdfast.core.events import Respond, Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, EndpointReference, Envelope
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules
from holdfast.core.queues.queue import Queue
from holdfast.core.versions import Versions
from holdfast.endpoint.sending.pauses import MOST, PAUSE, Pauses
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.store import MemoryStore
from holdfast.wire import action_of, decode, encode, http_headers

HERE, THERE = "http://here.example/", "http://there.example/"
CXF = b"Apache-CXF/4.2.3"


def request(message_id: str = "urn:1", reply_to: EndpointReference | None = None) -> Envelope:
    versions = Versions()
    made = Envelope(versions.soap, versions.addressing, versions.rm, "urn:a", message_id=message_id)
    made.reply_to = reply_to
    return made


def answer(relates_to: str | None = "urn:1", to: str = HERE, *, attempt: int = 1) -> Transmit:
    made = request("urn:answer")
    made.relates_to = relates_to
    return Transmit(to, made, attempt=attempt)


def test_nobody_waits_who_was_not_seen_to_need_it() -> None:
    pauses = Pauses()
    for reply_to in (None, ANONYMOUS_EPR, EndpointReference("none")):
        pauses.heard(request(reply_to=reply_to), CXF)
    pauses.heard(request(reply_to=EndpointReference(HERE)), b"")
    assert pauses.before(answer()) == 0.0
    assert pauses.before(answer(None)) == 0.0


def test_one_that_says_it_is_cxf_is_waited_for_and_others_are_not() -> None:
    pauses = Pauses()
    pauses.heard(request(reply_to=EndpointReference(HERE)), CXF)
    assert pauses.before(answer()) == PAUSE
    assert pauses.before(answer(to=THERE)) == 0.0
    assert pauses.before(answer(attempt=2)) == 0.0, "its 202 was read long ago"


def test_a_peer_that_repeats_an_answered_request_is_waited_for_from_then_on() -> None:
    pauses = Pauses()
    for address in (HERE, THERE):
        pauses.heard(request(reply_to=EndpointReference(address)), b"")
        assert pauses.before(answer(to=HERE)) == 0.0
    pauses.heard(request("urn:2", EndpointReference(HERE)), b"")
    assert pauses.before(answer("urn:2")) == 0.0
    pauses.heard(request("urn:2", EndpointReference(HERE)), b"")
    assert pauses.before(answer("urn:3")) == PAUSE
    assert pauses.before(answer("urn:3", THERE)) == 0.0


def test_what_is_remembered_is_bounded() -> None:
    pauses = Pauses()
    for number in range(MOST + 10):
        pauses.before(answer(f"urn:{number}"))
        pauses.heard(request(f"urn:{number}", EndpointReference(f"{THERE}{number}")), CXF)
    assert len(pauses._answered) == len(pauses._needed_by) == MOST
    assert pauses.before(answer(to=f"{THERE}{MOST + 9}")) == PAUSE


def test_the_core_answers_the_exchange_before_it_sends_elsewhere() -> None:
    protocol = RMProtocol(
        Queue("inbox"),
        Environment(MemoryStore().read, lambda: "urn:new", lambda: 0.0),
        rules=MessageRules(allows=lambda _: True),
    )
    creating = request(reply_to=EndpointReference(HERE))
    creating.control = CreateSequence(EndpointReference(HERE))
    creating.action = action_of(replace(creating, action=""))
    protocol.receive(creating, object(), 1.0)
    protocol.take_batch()
    protocol.batch_durable(1.0)
    order = [type(effect) for effect in protocol.take_effects() if isinstance(effect, Respond | Transmit)]
    assert order == [Respond, Transmit]


@pytest.mark.parametrize(("name", "seconds"), [("somebody", 0.0), (CXF.decode(), PAUSE)])
async def test_a_posted_answer_leaves_at_once_unless_its_peer_needs_a_pause(
    serve: Any, name: str, seconds: float
) -> None:
    answers: list[Envelope] = []

    def take(exchange: Exchange) -> None:
        exchange.respond(202)
        answers.append(decode(exchange.request.body))

    listener = HTTPServer()
    await listener.start(take, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.port}/"
    app = Destination(":memory:", http=DestinationHTTP(allow_addresses=[address]))
    service = await serve(app)
    creating = request(reply_to=EndpointReference(address))
    creating.action, creating.control = "", CreateSequence(EndpointReference(address))
    async with HTTPClient() as client:
        headers = http_headers(creating.soap, action_of(creating)) | {"User-Agent": name}
        response = await client.fetch("POST", service.url, encode(creating), headers)
        assert response.status == 202
        await until(lambda: answers)
    await listener.close()
    assert isinstance(answers[0].control, CreateSequenceResponse)
    assert app.running.sender.pauses.before(answer("urn:another", address)) == seconds
