"""The interoperability scenarios of the OASIS WS-RX committee, Holdfast at both ends, over sockets.

Ping is one-way. EchoString answers with all texts so far, so a lost, repeated or early message shows in its replies.
The proxy loses message 2 of each Sequence once. 2.3 is missing, since a destination accepts every Offer: how a source
continues without one is in ``tests/core/sending/test_outbound.py``. ``tests/interop/test_oasis_live.py`` has other
stacks.
"""

from __future__ import annotations

from typing import Any

import pytest
from interop_cells import cell
from oasis_wire import Wire

from holdfast import (
    Destination,
    Message,
    Processor,
    SecureConversation,
    Source,
    SourcePolicy,
    UsernameTokenValidator,
    Versions,
)
from holdfast.core.messages import (
    ANONYMOUS,
    MC_ANONYMOUS,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    MakeConnection,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import RetransmissionPolicy
from holdfast.core.versions import ALL_VERSIONS, RM
from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.testing.ports import free_ports

PING, ECHO, ECHOED = "urn:wsrm:Ping", "urn:wsrm:EchoString", "urn:wsrm:EchoStringResponse"
SOON = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5))
pytestmark = cell(peer="Holdfast", role="both", fault="message 2 of each Sequence lost")
OASIS = sorted((one for one in ALL_VERSIONS if one.rm in (RM.V1_0, RM.V1_1)), key=str)
EACH_VERSION = pytest.mark.parametrize("versions", OASIS, ids=str)
SINCE_1_1 = pytest.mark.parametrize("versions", [one for one in OASIS if one.rm is RM.V1_1], ids=str)


class Application:
    """The service that the scenarios call."""

    def __init__(self, *processors: Processor) -> None:
        http = DestinationHTTP(allow_addresses=["http://127.0.0.1/"])
        self.destination = Destination(":memory:", assurance="exactly-once in-order", http=http, processors=processors)
        self.pinged: list[str] = []
        self.echoed: list[str] = []
        self.destination.on(PING)(self._ping)
        self.destination.on(ECHO)(self._echo)

    async def _ping(self, message: Message) -> None:
        self.pinged.append(message.body[0].text or "")

    async def _echo(self, message: Message) -> str:
        self.echoed.append(message.body[0].text or "")
        return f"<echoStringResponse><EchoStringReturn>{''.join(self.echoed)}</EchoStringReturn></echoStringResponse>"


def ping(text: str) -> str:
    return f"<t:Ping xmlns:t='http://tempuri.org/'><t:Text>{text}</t:Text></t:Ping>"


def echo(text: str) -> str:
    return f"<t:echoString xmlns:t='http://tempuri.org/'><t:Text>{text}</t:Text></t:echoString>"


def listening_at(port: int, address: str) -> SourceHTTP:
    return SourceHTTP(listen=("127.0.0.1", port), address=address)


async def ping_three_times(source: Source) -> None:
    async with source:
        for text in "abc":
            await source.send(ping(text), action=PING)
        await source.flush(60)
        await source.end(timeout=60)


async def echo_three_times(source: Source) -> list[str]:
    async with source:
        replies = [await source.request(echo(text), action=ECHO) for text in "abc"]
        await source.end(timeout=60)
    return [reply.body[0].text or "" for reply in replies]


@EACH_VERSION
@cell(setup="1.1 One-way, anonymous client", pattern="one-way")
async def test_1_1_one_way_from_an_anonymous_client(serve: Any, versions: Versions) -> None:
    service = Application()
    async with Wire((await serve(service.destination)).url) as wire:
        await ping_three_times(Source(wire.url, ":memory:", versions=versions, offer=False, policy=SOON))
    assert service.pinged == ["a", "b", "c"]
    (creation,) = wire.controls(CreateSequence)
    assert (creation.acks_to.address, creation.offer) == (ANONYMOUS, None)
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    assert any(answer is not None and answer.acknowledgements for answer in wire.answered), "in HTTP responses"
    assert wire.controls(TerminateSequence)


@EACH_VERSION
@cell(setup="1.2 No application messages", pattern="no session", fault="")
async def test_1_2_no_application_messages(serve: Any, peer: Any, versions: Versions) -> None:
    service = Application()
    client = peer((await serve(service.destination)).url, versions)
    await client.create()
    asked = await client.say(ack_requested=(AckRequested(client.identifier),))
    assert asked.ranges == ()
    ended = await client.say(control=TerminateSequence(client.identifier), message_id=client.new_id())
    assert ended.status < 300
    if versions.rm is RM.V1_1:
        assert isinstance(ended.envelope.control, TerminateSequenceResponse)
    late = await client.message(1, ping("late").encode(), PING)
    assert late.fault in ("SequenceTerminated", "UnknownSequence")
    assert service.pinged == []


@SINCE_1_1
@cell(setup="1.3 Close of an incomplete Sequence", pattern="one-way", fault="message 2 never sent")
async def test_1_3_an_incomplete_sequence_is_closed(serve: Any, peer: Any, versions: Versions) -> None:
    client = peer((await serve(Destination(":memory:", assurance="exactly-once"))).url, versions)
    await client.create()
    await client.message(1, ping("a").encode(), PING)
    await client.message(3, ping("c").encode(), PING)
    closed = await client.say(control=CloseSequence(client.identifier, 3), message_id=client.new_id())
    assert isinstance(closed.envelope.control, CloseSequenceResponse)
    (final,) = closed.envelope.acknowledgements
    assert (final.ranges, final.final) == (((1, 1), (3, 3)), True)
    late = await client.message(2, ping("b").encode(), PING)
    assert late.fault == "SequenceClosed"
    ended = await client.say(control=TerminateSequence(client.identifier, 3), message_id=client.new_id())
    assert isinstance(ended.envelope.control, TerminateSequenceResponse)


@EACH_VERSION
@cell(setup="1.4 One-way, addressable client", pattern="one-way")
async def test_1_4_one_way_from_an_addressable_client(serve: Any, versions: Versions) -> None:
    service, (port,) = Application(), free_ports(1)
    async with Wire((await serve(service.destination)).url) as wire, Wire(f"http://127.0.0.1:{port}/") as back:
        http = listening_at(port, back.url)
        await ping_three_times(Source(wire.url, ":memory:", versions=versions, offer=False, policy=SOON, http=http))
    assert service.pinged == ["a", "b", "c"]
    (creation,) = wire.controls(CreateSequence)
    assert creation.acks_to.address.startswith(back.url)
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    assert any(one.acknowledgements for one in back.asked), "in requests of their own"
    assert not any(answer is not None and answer.acknowledgements for answer in wire.answered)


@EACH_VERSION
@cell(setup="2.1 Request/reply, addressable client, Offer", pattern="request/reply")
async def test_2_1_replies_to_an_addressable_client_that_offers(serve: Any, versions: Versions) -> None:
    service, (port,) = Application(), free_ports(1)
    async with Wire((await serve(service.destination)).url) as wire, Wire(f"http://127.0.0.1:{port}/") as back:
        http = listening_at(port, back.url)
        source = Source(wire.url, ":memory:", versions=versions, offer=True, policy=SOON, http=http)
        assert await echo_three_times(source) == ["a", "ab", "abc"]
    assert service.echoed == ["a", "b", "c"]
    (creation,), (created,) = wire.controls(CreateSequence), back.controls(CreateSequenceResponse)
    assert creation.offer is not None and created.accept_acks_to is not None
    assert [len(one.lost) for one in (wire, back)] == [1, 1], "a request and a reply"
    assert {one.sequence.identifier for one in back.asked if one.sequence} == {creation.offer.identifier}
    assert back.controls(CreateSequence) == []


@EACH_VERSION
@cell(setup="2.2 Request/reply, addressable client, no Offer", pattern="request/reply")
async def test_2_2_replies_to_an_addressable_client_that_offers_nothing(serve: Any, versions: Versions) -> None:
    service, (port,) = Application(), free_ports(1)
    async with Wire((await serve(service.destination)).url) as wire, Wire(f"http://127.0.0.1:{port}/") as back:
        http = listening_at(port, back.url)
        source = Source(wire.url, ":memory:", versions=versions, offer=False, policy=SOON, http=http)
        assert await echo_three_times(source) == ["a", "ab", "abc"]
    assert service.echoed == ["a", "b", "c"]
    assert [len(one.lost) for one in (wire, back)] == [1, 1], "a request and a reply"
    (creation,) = back.controls(CreateSequence)
    assert creation.offer is None


@SINCE_1_1
@cell(setup="3.1 Request/reply, anonymous client that polls", pattern="request/reply")
async def test_3_1_replies_to_an_anonymous_client_that_polls(serve: Any, versions: Versions) -> None:
    service = Application()
    async with Wire((await serve(service.destination)).url) as wire:
        source = Source(wire.url, ":memory:", versions=versions, policy=SOON, http=SourceHTTP(poll=True))
        assert await echo_three_times(source) == ["a", "ab", "abc"]
    assert service.echoed == ["a", "b", "c"]
    (creation,) = wire.controls(CreateSequence)
    assert creation.offer is not None
    assert creation.acks_to.address == creation.offer.endpoint.address != ANONYMOUS
    assert creation.acks_to.address.startswith(MC_ANONYMOUS)
    assert wire.controls(MakeConnection)
    assert len(wire.lost) == 2, "a request and a reply"


def assert_bound_to_its_token(wire: Wire) -> None:
    """Every message is signed, and CreateSequence names the token."""
    heads = [b"".join(one.headers) for one in wire.asked]
    assert all(b"Security" in one for one in heads)
    assert not any(b"Signature" not in one for one, asked in zip(heads, wire.asked, strict=True) if asked.sequence)
    creations = [one for one, asked in zip(heads, wire.asked, strict=True) if isinstance(asked.control, CreateSequence)]
    assert creations and all(b"UsesSequenceSTR" in one and b"SecurityContextToken" in one for one in creations)


@SINCE_1_1
@cell(setup="4.1 Secure one-way", security="secure conversation", pattern="one-way")
async def test_4_1_secure_one_way(serve: Any, versions: Versions) -> None:
    service = Application(UsernameTokenValidator({"alice": "secret"}))
    async with Wire((await serve(service.destination)).url) as wire:
        alice = SecureConversation("alice", "secret")
        source = Source(wire.url, ":memory:", versions=versions, offer=False, policy=SOON, processors=[alice])
        await ping_three_times(source)
    assert service.pinged == ["a", "b", "c"]
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    assert_bound_to_its_token(wire)


@SINCE_1_1
@cell(setup="4.2 Secure request/reply, anonymous client that polls", security="secure conversation")
@cell(pattern="request/reply")
async def test_4_2_secure_replies_to_an_anonymous_client_that_polls(serve: Any, versions: Versions) -> None:
    service = Application(UsernameTokenValidator({"alice": "secret"}))
    async with Wire((await serve(service.destination)).url) as wire:
        alice, http = SecureConversation("alice", "secret"), SourceHTTP(poll=True)
        source = Source(wire.url, ":memory:", versions=versions, policy=SOON, http=http, processors=[alice])
        assert await echo_three_times(source) == ["a", "ab", "abc"]
    assert service.echoed == ["a", "b", "c"]
    assert len(wire.lost) == 2, "a request and a reply"
    assert wire.controls(MakeConnection)
    assert_bound_to_its_token(wire)
