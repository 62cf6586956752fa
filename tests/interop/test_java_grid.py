"""Every Java stack with Holdfast: both roles, both operations, each network and service, direct and through a broker.

Tests of one stack only are in a file of its own. The peers are built by Maven when a JDK and Maven are there and bring
their jars; otherwise all of this is skipped.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import processes
import pytest
from calling_process import calling_process, written
from interop_cells import cell
from java_contract import (
    CLEAN,
    LIVE,
    LOSS,
    PATIENCE,
    WORK,
    Operation,
    Shop,
    Work,
    broker_before,
    connected,
    exchange,
    forwarder_words,
    served,
    source_to,
)
from java_peer import NAMESPACE, JavaPeer
from java_stacks import STACKS, Stack
from served_process import Served
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly]

NOWHERE = "http://127.0.0.1:9/"
MANY = 40


VERSIONS = [("1.0", "2004/08", "1.1"), ("1.0", "2005/08", "1.1"), ("1.1", "2005/08", "1.1"), ("1.1", "2005/08", "1.2")]
OF_METRO = [("1.0", "2005/08", "1.1"), ("1.0", "2005/08", "1.2"), *VERSIONS[2:]]
ALL = [
    (stack, holdfast.Versions(*versions))
    for stack in STACKS.values()
    for versions in (OF_METRO if stack.name == "metro" else VERSIONS)
]


def _pairs(pairs: list[tuple[Stack, holdfast.Versions]]) -> pytest.MarkDecorator:
    names = [f"{one.name}-rm{v.rm.value}-wsa{v.addressing.value[:4]}-soap{v.soap.value}" for one, v in pairs]
    return pytest.mark.parametrize(("stack", "versions"), pairs, ids=names)


every_stack_and_version = _pairs(ALL)
every_pair = _pairs([pair for at, pair in enumerate(ALL) if at % 4 in (0, 3)])
"""The first and the last version of each stack."""
every_work = pytest.mark.parametrize("work", WORK.values(), ids=WORK)
every_operation = pytest.mark.parametrize("operation", ["notify", "echo"])
every_route = pytest.mark.parametrize("brokered", [False, True], ids=["direct", "broker"])


@pytest.fixture
def peer(request: pytest.FixtureRequest, stack: Stack) -> JavaPeer:
    found: JavaPeer = request.getfixturevalue(stack.name)
    return found


# --- A stack's client, Holdfast's Destination ---------------------------------------------------------------------


@every_stack_and_version
@every_work
@every_route
@cell(role="destination")
async def test_a_client_sends_to_holdfast(
    peer: JavaPeer, tmp_path: Path, stack: Stack, versions: holdfast.Versions, work: Work, brokered: bool
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=work.milliseconds / 1000)
    setup = stack.client_words(versions, asks=work.operation == "echo", slow=work.milliseconds > 0)
    async with AsyncExitStack() as context:
        url = await context.enter_async_context(running_destination(shop.app))
        if brokered:
            before = broker_before(url, tmp_path / "broker", expects=stack.expects)
            url = (await context.enter_async_context(before)).service.url
        proxy = await context.enter_async_context(LossyProxy(url, work.faults, seed=3))
        caller = await connected(peer, proxy.url, work.operation, **setup)
        await caller.call(1, work.count - 1)
        proxy.faults = CLEAN  # what ends a Sequence, CXF says once, and throws if it is lost
        await caller.call(work.count, work.count, is_the_end=True)
        await caller.settle()
        await until(lambda: len(shop.numbers) >= work.count, PATIENCE)
    assert shop.numbers == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)


@every_pair
@every_operation
@every_route
@pytest.mark.crash
@cell(role="destination", fault="Holdfast killed", network=Faults(lose_response=0.1))
async def test_holdfast_is_killed_under_the_load_of_a_client_which_does_not_notice(
    peer: JavaPeer,
    tmp_path: Path,
    stack: Stack,
    versions: holdfast.Versions,
    operation: Operation,
    brokered: bool,
) -> None:
    """The destination, or a broker before a destination that is up."""
    async with AsyncExitStack() as context:
        victim: Any
        if brokered:
            shop = Shop(tmp_path / "inbox")
            url = await context.enter_async_context(running_destination(shop.app))
            victim = await broker_process(context, tmp_path, url, stack)
            delivered = shop.numbers.copy
        else:
            victim = context.enter_context(Served(tmp_path))
            delivered = victim.delivered
        proxy = await context.enter_async_context(LossyProxy(victim.url, Faults(lose_response=0.1), seed=2))
        setup = stack.client_words(versions, asks=operation == "echo", outages=True)
        caller = await connected(peer, proxy.url, operation, **setup)
        await caller.call(1, 1)
        calling = asyncio.ensure_future(caller.call_on(delivered, 2, MANY))
        for due in (10, 25):
            await until(lambda due=due: calling.done() or len(delivered()) >= due, PATIENCE)  # type: ignore[misc]
            await kill_and_start(victim)
        await calling
        await caller.settle()
        await until(lambda: len(set(delivered())) >= MANY, PATIENCE)
    # Of what it had handled last before it was killed, the handler may get some once more: the messages are the same.
    numbers = delivered() if brokered else list(dict.fromkeys(delivered()))
    assert numbers == list(range(1, MANY + 1))


async def broker_process(context: AsyncExitStack, directory: Path, url: str, stack: Stack, **more: str) -> Any:
    """A broker as a process of its own, before ``url``; ``more`` are settings of its forwarder."""
    lines = [f'{name} = "{value}"' for name, value in more.items()]
    if stack.expects is not None:
        echo = f'action = "{NAMESPACE}/echo"\nexpects = "{stack.expects.value}"'
        lines += [f'[[routes]]\nqueues = "inbox"\n{echo}', '[[routes]]\nqueues = "inbox"']
    broker = processes.broker(directory, url, timeout="60s", more="\n".join(lines))
    context.push_async_callback(broker.kill)
    await broker.start()
    return broker


async def kill_and_start(victim: Served | processes.Process) -> None:
    if isinstance(victim, Served):
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
    else:
        await victim.kill()
        await victim.start()


# --- Holdfast's Source, a stack's service -------------------------------------------------------------------------


@every_stack_and_version
@every_work
@every_route
@cell(role="source")
async def test_holdfast_sends_to_a_service(
    peer: JavaPeer, tmp_path: Path, stack: Stack, versions: holdfast.Versions, work: Work, brokered: bool
) -> None:
    is_slow = work.milliseconds > 0
    # Slow requests are sent at once. In order, CXF holds the exchanges beyond a gap, and Metro answers not all of them.
    setup = stack.words(versions, sleep=work.milliseconds, ordered=not is_slow)
    service = await served(peer, tmp_path / "log", **setup)
    async with AsyncExitStack() as context:
        proxy = await context.enter_async_context(LossyProxy(service.url, work.faults, seed=5))
        back = None
        if not stack.keeps_replies:
            back = await context.enter_async_context(LossyProxy(NOWHERE, work.faults, seed=8))
        if brokered:
            before = broker_before(
                proxy.url, tmp_path / "broker", back, expects=stack.expects, **forwarder_words(versions)
            )
            broker = await context.enter_async_context(before)
            url, back = broker.service.url, None
        else:
            url = proxy.url
        source = await context.enter_async_context(source_to(url, tmp_path / "outbox", versions, back))
        await exchange(source, work.operation, range(1, work.count + 1), at_once=is_slow)
        await until(lambda: len(service.delivered(work.operation)) >= work.count, PATIENCE)
        await source.end(timeout=PATIENCE)
    delivered = service.delivered(work.operation)
    assert (sorted(delivered) if is_slow else delivered) == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)


@every_pair
@every_operation
@pytest.mark.crash
@cell(role="source", addressing="2005/08", soap="1.1", fault="Holdfast killed", network=Faults(lose_response=0.1))
async def test_holdfast_is_killed_while_it_sends_to_a_service_and_goes_on(
    peer: JavaPeer, tmp_path: Path, stack: Stack, versions: holdfast.Versions, operation: Operation
) -> None:
    versions = holdfast.Versions(versions.rm.value, "2005/08", "1.1")
    service = await served(peer, tmp_path / "log", **stack.words(versions))
    port = 0 if stack.keeps_replies else free_ports(1)[0]
    async with LossyProxy(service.url, Faults(lose_response=0.1), seed=2) as proxy:
        for due in (10, 25, MANY):
            with calling_process(proxy.url, tmp_path, operation, versions, MANY, port=port) as process:
                await until(lambda due=due: len(written(tmp_path / "called")) >= due, PATIENCE)  # type: ignore[misc]
                if due == MANY:
                    assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    await until(lambda: len(service.delivered(operation)) >= MANY, PATIENCE)
    assert service.delivered(operation) == list(range(1, MANY + 1))


@every_pair
@every_operation
@pytest.mark.crash
@cell(role="source", broker="broker", fault="Holdfast killed", network=Faults(lose_response=0.1))
async def test_a_broker_is_killed_while_it_forwards_to_a_service_and_goes_on(
    peer: JavaPeer, tmp_path: Path, stack: Stack, versions: holdfast.Versions, operation: Operation
) -> None:
    service = await served(peer, tmp_path / "log", **stack.words(versions))
    async with AsyncExitStack() as context:
        proxy = await context.enter_async_context(LossyProxy(service.url, Faults(lose_response=0.1), seed=2))
        more = forwarder_words(versions)
        back = None
        if not stack.keeps_replies:
            back = await context.enter_async_context(LossyProxy(NOWHERE, CLEAN))
            more["address"] = back.url
        broker = await broker_process(context, tmp_path, proxy.url, stack, **more)
        if back is not None:
            back.target = broker.url
        source = await context.enter_async_context(source_to(broker.url, tmp_path / "outbox", versions))
        sending = asyncio.ensure_future(exchange(source, operation, range(1, MANY + 1)))
        for due in (10, 25):
            await until(lambda due=due: len(service.delivered(operation)) >= due, PATIENCE)  # type: ignore[misc]
            await kill_and_start(broker)
        await sending
        await until(lambda: len(service.delivered(operation)) >= MANY, PATIENCE)
    assert service.delivered(operation) == list(range(1, MANY + 1))
