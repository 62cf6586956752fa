"""A destination that says little: it is asked, and who waits is told that it says nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from waiting import until

from holdfast import NotAcknowledged, RetransmissionPolicy, Source, SourceHTTP, SourcePolicy, Versions
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    RequestAcknowledgement,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.versions import ALL_VERSIONS, RM
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.wire import content_type, decode, encode

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2))


class Taciturn:
    """A scripted destination that acknowledges a message only if it is asked to, as Metro does a repeated one.

    Args:
        is_mute: Whether it acknowledges nothing at all.
    """

    def __init__(self, *, is_mute: bool = False) -> None:
        self.is_mute = is_mute
        self.identifier = "urn:s"
        self.got = AcknowledgementRanges()
        self.came: defaultdict[int, list[Envelope]] = defaultdict(list)
        self.server = HTTPServer()

    async def __aenter__(self) -> str:
        await self.server.start(self.handle, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.port}/"

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    def handle(self, exchange: Exchange) -> None:
        envelope = decode(exchange.request.body)
        control = envelope.control
        if isinstance(control, CreateSequence):
            self.answer(exchange, envelope, CreateSequenceResponse(self.identifier))
        elif isinstance(control, CloseSequence) and not self.is_mute:
            self.answer(exchange, envelope, CloseSequenceResponse(self.identifier))
        elif isinstance(control, TerminateSequence) and envelope.rm is RM.V1_1:
            self.answer(exchange, envelope, TerminateSequenceResponse(self.identifier))
        elif envelope.sequence is not None:
            self.identifier = envelope.sequence.identifier  # which the source made, if it did not ask for one
            self.got.add(envelope.sequence.message_number)
            self.came[envelope.sequence.message_number].append(envelope)
            if envelope.ack_requested and not self.is_mute:
                self.answer(exchange, envelope, Acknowledge())
            else:
                exchange.respond(202)
        else:
            assert isinstance(control, RequestAcknowledgement | TerminateSequence | CloseSequence)
            exchange.respond(202)

    def answer(self, exchange: Exchange, envelope: Envelope, control: Control) -> None:
        answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, control=control)
        answer.relates_to = envelope.message_id
        if not isinstance(control, CreateSequenceResponse):
            answer.acknowledgements = (SequenceAcknowledgement(self.identifier, self.got.as_pairs()),)
        exchange.respond(200, encode(answer), content_type(envelope.soap).encode())


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=lambda v: f"{v.rm}-{v.addressing}-{v.soap}")
async def test_a_destination_that_acknowledges_only_on_request_acknowledges_all(
    versions: Versions,
) -> None:
    peer = Taciturn()
    async with peer as url:
        async with Source(url, ":memory:", versions=versions, offer=False, policy=QUICK) as source:
            await asyncio.gather(*(source.send(f"<n>{i}</n>", action="urn:a") for i in range(30)))
            await source.flush(60)
            await source.end(timeout=60)
    assert peer.got.covers(30)
    asked = [one for envelopes in peer.came.values() for envelope in envelopes for one in envelope.ack_requested]
    assert {one.identifier for one in asked} == {peer.identifier}
    assert all(len(one.ack_requested) <= 1 for envelopes in peer.came.values() for one in envelopes), "WCF takes one"


async def test_every_retransmission_asks_and_a_waiter_hears_of_a_silent_peer() -> None:
    peer = Taciturn(is_mute=True)
    async with peer as url:
        async with Source(url, ":memory:", versions=Versions(), offer=False, policy=QUICK) as source:
            sent = [await source.send(f"<n>{i}</n>", action="urn:a") for i in range(3)]
            await until(lambda: source.progress.problem)
            assert source.progress.problem.startswith(f"{url} has answered message 1 of the Sequence urn:s")
            assert "times with success but no content, although it was asked" in source.progress.problem
            with pytest.raises(NotAcknowledged, match="neither acknowledges nor rejects the message"):
                await sent[0].acknowledged(0.01)
            await until(lambda: len(peer.came[1]) > 3)
    again = [envelope for envelopes in peer.came.values() for envelope in envelopes[1:]]
    assert again and all(envelope.ack_requested for envelope in again)


async def test_a_request_does_not_ask_for_an_acknowledgement() -> None:
    peer = Taciturn()
    async with peer as url:
        async with Source(url, ":memory:", versions=Versions(), offer=True, policy=QUICK) as source:
            with pytest.raises(NotAcknowledged):
                await source.request("<n/>", action="urn:a", timeout=1.0)
            await until(lambda: "nor sent the reply yet" in source.progress.problem)
    assert len(peer.came[1]) > 1
    assert not any(envelope.ack_requested for envelope in peer.came[1])


async def test_a_listener_that_hears_nothing_is_named_as_what_may_not_be_reached() -> None:
    peer = Taciturn(is_mute=True)
    async with peer as url:
        source = Source(
            url,
            ":memory:",
            versions=Versions(),
            offer=False,
            policy=QUICK,
            http=SourceHTTP(listen=("127.0.0.1", 0), address="http://behind-a-wall.example/"),
        )
        async with source:
            await source.send("<n/>", action="urn:a")
            await until(lambda: "check that it can reach that address" in source.progress.problem)
            assert "http://behind-a-wall.example/" in source.progress.problem


async def test_a_destination_that_answers_the_end_of_a_sequence_with_nothing_is_named() -> None:
    peer = Taciturn()
    async with peer as url:
        source = Source(url, ":memory:", versions=Versions(), offer=False, policy=QUICK)
        await source.open()
        try:
            await (await source.send("<n/>", action="urn:a")).acknowledged(60)
            peer.is_mute = True
            ending = asyncio.ensure_future(source.end())
            await until(lambda: "has answered the end of the Sequence urn:s" in source.progress.problem)
            ending.cancel()
        finally:
            await source.close(0.0)
