"""The scenarios of the OASIS WS-RX committee with live stacks: message 2 of each Sequence is lost once.

With Holdfast at both ends they are in ``tests/endpoint/test_oasis_scenarios.py``. What a stack cannot do is in
``docs/results.py``, which draws the table.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import (
    LIVE,
    PATIENCE,
    Operation,
    Shop,
    connected,
    exchange,
    poll_replies,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_stacks import STACKS
from metro_security import SYMMETRIC, metro_side, symmetric, symmetric_client
from oasis_wire import Wire
from waiting import until
from wcf.destination import contract_app, running_destination, text_of
from wcf.grids import each_version
from wcf.https import context_in, tls_before
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.wire import Profile

import holdfast
from holdfast.core.messages import CloseSequence, CreateSequence, TerminateSequence

ONE_WAY, LISTENS = "1.1 One-way, anonymous client", "1.4 One-way, addressable client"
CLOSES = "1.3 Close of an incomplete Sequence"
NO_MESSAGES, SECURE = "1.2 No application messages", "4.1 Secure one-way"
OFFERS, NO_OFFER = "2.1 Request/reply, addressable client, Offer", "2.2 Request/reply, addressable client, no Offer"
POLLS = "3.1 Request/reply, anonymous client that polls"
COUNT = 3
CONVERSATION = SYMMETRIC[-1]
VERSIONS = holdfast.Versions("1.1", "2005/08", "1.2")
PEERS = {"metro": "Metro", "sandesha": "Sandesha2", "cxf": "CXF"}


def _cells(role: str, stacks: dict[str, tuple[str, ...]]) -> pytest.MarkDecorator:
    found = []
    for scenario, names in stacks.items():
        pattern = "one-way" if scenario in (ONE_WAY, LISTENS, CLOSES) else "request/reply"
        for name in names:
            declared = cell(
                peer=PEERS[name], role=role, setup=scenario, pattern=pattern, network="", versions=[VERSIONS]
            )
            marks = [declared, cell(fault="message 2 of each Sequence lost")]
            found.append(pytest.param(name, scenario, marks=marks, id=f"{name}-{scenario[:3]}"))
    return pytest.mark.parametrize(("name", "scenario"), found)


@pytest.fixture
def peer(request: pytest.FixtureRequest, name: str) -> JavaPeer:
    found: JavaPeer = request.getfixturevalue(name)
    return found


pytestmark = [pytest.mark.interop, pytest.mark.nightly]
java = [one for one in LIVE if one.name != "interop"]


def live(function):  # type: ignore[no-untyped-def]
    for mark in java:
        function = mark(function)
    return function


@live
@_cells(
    "destination",
    {
        ONE_WAY: ("metro", "sandesha", "cxf"),
        LISTENS: ("sandesha", "cxf"),
        OFFERS: ("sandesha", "cxf"),
        POLLS: ("metro", "sandesha"),
    },
)
async def test_a_client_completes_the_scenario_with_holdfast(
    peer: JavaPeer, tmp_path: Path, name: str, scenario: str
) -> None:
    shop, stack = Shop(tmp_path / "inbox"), STACKS[name]
    operation: Operation = "notify" if scenario in (ONE_WAY, LISTENS) else "echo"
    listens = scenario in (LISTENS, OFFERS)
    setup = stack.words(VERSIONS, **(stack.with_slow_services if listens else stack.anonymous))
    if name == "cxf":
        setup["decoupled"] = listens
    if scenario == POLLS:
        setup["polls"] = True
    async with running_destination(shop.app) as url, Wire(url) as wire:
        caller = await connected(peer, wire.url, operation, **setup)
        await caller.call(1, COUNT, is_the_end=True)
        await caller.settle()
        await until(lambda: len(shop.numbers) >= COUNT)
    assert shop.numbers == list(range(1, COUNT + 1))
    assert wire.lost and wire.numbers().count(2) > 1


@live
@_cells("destination", {CLOSES: ("sandesha", "cxf")})
@cell(fault="message 2 lost each time")
async def test_a_client_closes_an_incomplete_sequence_of_holdfast(
    peer: JavaPeer, tmp_path: Path, name: str, scenario: str
) -> None:
    """CXF closes it when its bus is shut down, and does not terminate it."""
    shop, stack = Shop(tmp_path / "inbox", assurance="exactly-once"), STACKS[name]
    async with running_destination(shop.app) as url, Wire(url, every_time=True) as wire:
        caller = await connected(peer, wire.url, "notify", **stack.words(VERSIONS, **stack.anonymous))
        await caller.call(1, COUNT)
        await until(lambda: shop.numbers == [1, 3])
        await caller.close()
        (closed,) = {one.last_message_number for one in wire.controls(CloseSequence)}
        assert closed == COUNT
        finals = [one for answer in wire.answered if answer is not None for one in answer.acknowledgements if one.final]
        assert finals and {one.ranges for one in finals} == {((1, 1), (3, 3))}
        assert bool(wire.controls(TerminateSequence)) is (name == "sandesha")
    assert shop.numbers == [1, 3]


@live
@_cells(
    "source",
    {
        ONE_WAY: ("metro", "sandesha", "cxf"),
        LISTENS: ("metro", "sandesha", "cxf"),
        OFFERS: ("metro", "sandesha", "cxf"),
        NO_OFFER: ("sandesha",),
        POLLS: ("metro", "sandesha"),
    },
)
async def test_holdfast_completes_the_scenario_with_a_service(
    peer: JavaPeer, tmp_path: Path, name: str, scenario: str
) -> None:
    polls = {"polls": True} if scenario == POLLS else {}
    service = await served(peer, tmp_path / "log", **STACKS[name].words(VERSIONS, **polls))
    operation: Operation = "notify" if scenario in (ONE_WAY, LISTENS) else "echo"
    async with AsyncExitStack() as context:
        wire = await context.enter_async_context(Wire(service.url))
        if scenario == POLLS:
            await poll_replies(wire.url, tmp_path / "outbox", VERSIONS, COUNT)
        else:
            back = await context.enter_async_context(Wire("http://127.0.0.1:9/")) if scenario != ONE_WAY else None
            offer = scenario == OFFERS
            source = await context.enter_async_context(
                source_to(wire.url, tmp_path / "outbox", VERSIONS, back, offer=offer)
            )
            await exchange(source, operation, range(1, COUNT + 1))
        await until(lambda: len(service.delivered(operation)) >= COUNT)
        assert wire.lost and wire.numbers().count(2) > 1
    assert service.delivered(operation) == list(range(1, COUNT + 1))


secure = cell(peer="Metro", security=CONVERSATION, fault="message 2 of each Sequence lost", versions=[VERSIONS])


@live
@secure
@cell(role="destination", setup=SECURE, pattern="one-way")
async def test_metro_completes_the_secure_scenario_with_holdfast(metro: JavaPeer, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "inbox", processors=[symmetric(tmp_path, CONVERSATION).bind_sequences()])
    async with running_destination(shop.app) as url, Wire(url) as wire:
        caller = await connected(metro, wire.url, "notify", **metro_side(tmp_path, VERSIONS, "client", CONVERSATION))
        await caller.call(1, COUNT)
        await caller.settle()
        await until(lambda: len(shop.numbers) >= COUNT)
    assert shop.numbers == list(range(1, COUNT + 1))
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    assert binds_its_sequence(wire)


@live
@secure
@cell(role="source", setup=SECURE, pattern="one-way")
async def test_holdfast_completes_the_secure_scenario_with_metro(metro: JavaPeer, tmp_path: Path) -> None:
    service = await served(metro, tmp_path / "log", **metro_side(tmp_path, VERSIONS, "server", CONVERSATION))
    processors = [symmetric_client(tmp_path, CONVERSATION)]
    async with (
        Wire(service.url) as wire,
        source_to(wire.url, tmp_path / "outbox", VERSIONS, processors=processors, offer=False) as source,
    ):
        await exchange(source, "notify", range(1, COUNT + 1))
        await until(lambda: len(service.delivered("notify")) >= COUNT)
        await source.end(timeout=PATIENCE)
    assert service.delivered("notify") == list(range(1, COUNT + 1))
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    assert binds_its_sequence(wire)


def binds_its_sequence(wire: Wire) -> bool:
    """Whether each CreateSequence, whose body is encrypted, says in its header that it names the token."""
    found = [b"".join(one.headers) for one in wire.asked if one.action.endswith("/CreateSequence")]
    return bool(found) and all(b"UsesSequenceSTR" in one for one in found)


@needs_the_client
@pytest.mark.wcf
@pytest.mark.timeout(900)
@each_version
@cell(peer="WCF", role="destination", setup=ONE_WAY, pattern="one-way", fault="message 2 of each Sequence lost")
async def test_the_net_client_completes_the_scenario_with_holdfast(profile: Profile) -> None:
    told: list[str] = []
    app = contract_app(":memory:", lambda message: told.append(text_of(message)))
    async with running_destination(app) as url, Wire(url) as wire:
        client = LiveWCFClient(wire.url, contract="notify", **versions_of(profile))
        await client.run("open; notify 1..3; close")
    assert client.failed == [] and len(told) == COUNT
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1


@needs_the_client
@pytest.mark.wcf
@pytest.mark.timeout(900)
@each_version
@cell(peer="WCF", role="destination", setup=NO_MESSAGES, pattern="no session")
async def test_the_net_client_has_a_session_without_messages(profile: Profile) -> None:
    """While it sends nothing, it requests an acknowledgement: after half of its inactivity timeout, of four seconds."""
    told: list[str] = []
    app = contract_app(":memory:", lambda message: told.append(text_of(message)))
    async with running_destination(app) as url, Wire(url) as wire:
        client = LiveWCFClient(wire.url, contract="notify", inactivity="4", **versions_of(profile))
        await client.run("open; sleep 5; close")
    assert client.failed == [] and not told and len(wire.controls(TerminateSequence)) == 1
    asked = [answer for one, answer in zip(wire.asked, wire.answered, strict=True) if one.ack_requested and answer]
    assert asked and all(one.acknowledgements[0].ranges == () for one in asked)


@needs_the_client
@pytest.mark.wcf
@pytest.mark.timeout(900)
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(peer="WCF", role="destination", security="secure conversation", setup=SECURE, pattern="one-way")
@cell(fault="message 2 of each Sequence lost")
async def test_the_net_client_completes_the_secure_scenario(tmp_path: Path, binding: str) -> None:
    told: list[str] = []
    users = holdfast.UsernameTokenValidator({"alice": "secret"})
    app = contract_app(":memory:", lambda message: told.append(text_of(message)), processors=[users])
    async with running_destination(app) as url, Wire(url) as wire, tls_before(wire.url, context_in(tmp_path)) as outer:
        client = LiveWCFClient(outer, contract="notify", binding=binding, username="alice:secret", trust_any="")
        await client.run("open; notify 1..3; close")
    assert client.failed == [] and len(told) == COUNT
    assert len(wire.lost) == 1 and wire.numbers().count(2) > 1
    (created,) = (b"".join(one.headers) for one in wire.asked if isinstance(one.control, CreateSequence))
    assert b"SecurityContextToken" in created
    assert (b"UsesSequenceSTR" in created) == (binding == "ws2007")
