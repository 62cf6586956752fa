"""Three brokers as one cluster on a real database or Kafka: clients see no error, whichever broker is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from broker_cluster import JOURNAL, NAMES, PARTITIONS, Brokers
from cluster_clients import Callers, Progress, run
from interop_cells import cell
from plain_audit import found_in
from waiting import until

import holdfast
from holdfast.cluster.operating.engines import engine_of, verifier_of
from holdfast.pipeline.audit.events import SequenceRow, Violation

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


@pytest.fixture
def more() -> str:
    return JOURNAL


def audit(brokers: Brokers, counts: dict[str, int]) -> None:
    """Audit the journals of all nodes together: every message, call and reply of each client is in them."""
    events = brokers.events()
    found = found_in(events)
    assert [one for one in found if type(one) is Violation] == []
    received = [one for one in found if type(one) is SequenceRow and one.role == "in" and one.peer is not None]
    calls = sum(count for what, count in counts.items() if what.startswith("ask"))
    assert sum(one.messages for one in received) == sum(counts.values()) + calls
    runs = [(one["worker"], one["attempt"]) for one in events if one["event"] == "started"]
    assert len(set(runs)) == len(runs)


async def test_clients_of_any_broker_do_not_notice_that_one_is_killed(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(progress: Progress) -> None:
        await asyncio.to_thread(brokers.nodes["a"].kill)
        await progress.each(5)

    counts = await run(brokers, got[1], trouble)
    verify = verifier_of(brokers.store)
    live = await asyncio.to_thread(verify, brokers.store)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in "bc"] == [0, 0]
    found = await asyncio.to_thread(verify, brokers.store, live, reads_all=True)
    assert live.problems == found.problems == ()
    audit(brokers, counts)


async def test_clients_do_not_notice_moves_nor_that_the_node_with_moved_partitions_dies(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    engine = engine_of(brokers.store)

    async def trouble(progress: Progress) -> None:
        for node, partitions in (("a", range(PARTITIONS)), ("b", [0, 1]), ("a", [0])):
            await asyncio.to_thread(engine.move_partitions, brokers.store, partitions, node)
            await until(lambda node=node, wanted=set(partitions): wanted <= brokers.served(node))
            await progress.each(3)
        await asyncio.to_thread(engine.release_partitions, brokers.store, [2])
        await asyncio.to_thread(brokers.nodes["a"].kill)
        await progress.each(3)

    counts = await run(brokers, got[1], trouble)

    def moved() -> list[str]:
        return [one.moved_to for one in engine.read_status(brokers.store).partitions if one.moved_to]

    while await asyncio.to_thread(moved) != ["b"]:  # Kafka's group has a killed node for a lease
        await asyncio.sleep(0.1)
    live = await asyncio.to_thread(verifier_of(brokers.store), brokers.store)
    assert live.problems == ()
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in "bc"] == [0, 0]
    audit(brokers, counts)


async def test_clients_do_not_notice_a_broker_that_is_paused_beyond_its_lease_and_wakes(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(progress: Progress) -> None:
        a = brokers.nodes["a"]
        lost = brokers.served("a")
        a.signal(signal.SIGSTOP)
        await until(lambda: lost <= brokers.served("b") | brokers.served("c"))
        await progress.each(3)
        a.signal(signal.SIGCONT)
        await progress.each(3)

    counts = await run(brokers, got[1], trouble)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]
    audit(brokers, counts)


async def test_clients_do_not_notice_brokers_that_are_killed_in_turn_and_started_again(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(progress: Progress) -> None:
        for name in (*NAMES, *NAMES):
            await asyncio.to_thread(brokers.nodes[name].kill)
            await progress.each(5)
            await brokers.start(name)

    counts = await run(brokers, got[1], trouble)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]
    audit(brokers, counts)


@cell(fault="brokers restarted one by one")
async def test_clients_do_not_notice_a_rolling_restart(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]], callers: Callers
) -> None:
    async def trouble(progress: Progress) -> None:
        for name in NAMES:
            assert await asyncio.to_thread(brokers.nodes[name].end) == 0
            await brokers.start(name)
            await progress.each(3)

    await run(brokers, got[1], trouble, callers)


@cell(fault="brokers drained and restarted one by one")
async def test_clients_do_not_notice_partitions_that_move_away_and_come_back(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]], callers: Callers
) -> None:
    """A node that has had a partition before counts on from there, and the other nodes know nothing of its numbers."""
    engine = engine_of(brokers.store)

    async def owns(name: str, *, some: bool) -> None:
        while (name in (await asyncio.to_thread(brokers.owners)).values()) is not some:
            await asyncio.sleep(0.1)

    async def ask() -> None:
        """Let new Sequences of many partitions claim their Identifiers."""
        for number in range(2 * PARTITIONS):
            async with holdfast.Source(brokers.urls["a"], ":memory:") as source:
                await source.request(f"<n>9-{number}</n>", action="urn:test:ask", timeout=60)
        assert got[1].pop("ask 9") == list(range(2 * PARTITIONS))

    async def trouble(progress: Progress) -> None:
        for name in NAMES:
            await owns(name, some=True)
        for name in (*NAMES, *NAMES):
            await asyncio.to_thread(engine.drain_node, brokers.store, name)
            await owns(name, some=False)
            await asyncio.to_thread(engine.resume_node, brokers.store, name)
            await owns(name, some=True)
            await ask()
        for name in NAMES:
            assert await asyncio.to_thread(brokers.nodes[name].end) == 0
            await brokers.start(name)
        await ask()

    await run(brokers, got[1], trouble, callers)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]
