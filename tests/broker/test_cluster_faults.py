"""Faults around three brokers of one cluster: clients see no error, and each message arrives once and in order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import broker_cluster
import pytest
from broker_cluster import JOURNAL, MORE, NAMES, Brokers, Got
from cluster_clients import Callers, Progress, run
from cut_off import CutOff
from interop_cells import CLUSTERS, cell
from standby import Primary, Standby
from waiting import until

from holdfast.cluster.operating.engines import engine_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

DAY = 86_400
ON_POSTGRESQL = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)


@pytest.fixture
def ways(idle: Brokers, tmp_path: Path) -> Iterator[dict[str, CutOff]]:
    """The way of each node to the database."""
    (directory,) = parse_qs(urlsplit(idle.store).query)["host"]
    made = {}
    for name in NAMES:
        own = tmp_path / f"way-{name}"
        own.mkdir()
        made[name] = CutOff(own / ".s.PGSQL.5432", Path(directory) / ".s.PGSQL.5432")
        idle.stores[name] = idle.store.replace(directory, str(own))
    yield made
    for one in made.values():
        one.is_open.set()
        one.close()


@cell(fault="nodes join and leave all the time")
async def test_clients_do_not_notice_nodes_that_join_and_leave_all_the_time(
    brokers: Brokers, got: Got, callers: Callers
) -> None:
    async def trouble(progress: Progress) -> None:
        for joins, leaves in ((MORE[0], "c"), ("c", MORE[0])) * 10:
            await brokers.start(joins)
            assert await asyncio.to_thread(brokers.nodes[leaves].end) == 0

    await run(brokers, got[1], trouble, callers)


@cell(fault="partitions moved by an operator")
async def test_clients_do_not_notice_partitions_that_are_moved_and_these_stay(
    brokers: Brokers, got: Got, callers: Callers
) -> None:
    async def trouble(progress: Progress) -> None:
        for name in (*NAMES, *NAMES):
            await asyncio.to_thread(engine_of(brokers.store).move_partitions, brokers.store, [0, 3], name)
            await brokers.wait_for_owners(lambda owners, name=name: {owners.get(0), owners.get(3)} == {name})
            await progress.each(3)
            owners = await asyncio.to_thread(brokers.owners)
            assert (owners[0], owners[3]) == (name, name)

    await run(brokers, got[1], trouble, callers)


@pytest.mark.parametrize("more", [JOURNAL], ids=[""])
@cell(fault="clocks of brokers a day off, and two brokers killed in turn")
async def test_clients_do_not_notice_clocks_that_are_a_day_off(idle: Brokers, got: Got, callers: Callers) -> None:
    idle.program = (str(Path(broker_cluster.__file__).with_name("clock_child.py")),)
    idle.environments = {
        name: {"CLOCK_OFFSET": str(offset)} for name, offset in zip(NAMES, (DAY, -DAY, 0), strict=True)
    }
    await idle.start(*NAMES)

    async def trouble(progress: Progress) -> None:
        for name in ("a", "b"):  # what one has stored another takes over, two days earlier or a day later
            await asyncio.to_thread(idle.nodes[name].kill)
            await progress.each(5)
            await idle.start(name)
            await progress.each(5)

    await run(idle, got[1], trouble, callers)
    times = [row["at"] for row in idle.events()]
    assert times and max(abs(at - time.time()) for at in times) < DAY / 2, "each uses the clock of PostgreSQL or Kafka"


@ON_POSTGRESQL
@cell(fault="packets between a broker and the database lost")
async def test_clients_do_not_notice_a_node_whose_packets_to_the_database_are_lost(
    idle: Brokers, ways: dict[str, CutOff], got: Got, callers: Callers
) -> None:
    await idle.start(*NAMES)

    async def trouble(progress: Progress) -> None:
        for name in ("a", "b"):
            lost, others = idle.served(name), [one for one in NAMES if one != name]
            ways[name].is_open.clear()
            await until(lambda lost=lost, others=others: lost <= set().union(*map(idle.served, others)))
            await progress.each(3)
            ways[name].is_open.set()
            await progress.each(3)

    await run(idle, got[1], trouble, callers)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in NAMES] == [0, 0, 0]


@ON_POSTGRESQL
@pytest.mark.parametrize("lost", ["asked", "answered"])
@cell(fault="connections to the database cut at a commit")
async def test_clients_do_not_notice_connections_of_workers_that_are_cut_at_a_commit(
    idle: Brokers, ways: dict[str, CutOff], got: Got, lost: str, callers: Callers
) -> None:
    """A commit is one statement. Either that is lost, or the answer to it, and then it may have happened."""
    for way in ways.values():
        way.only = b"application_name\0holdfast space"
    await idle.start(*NAMES)

    async def trouble(progress: Progress) -> None:
        for _ in range(10):
            before = cut()
            for way in ways.values():
                way.cuts = lost
            await until(lambda before=before: cut() > before)
            for way in ways.values():
                way.cuts = ""
            await progress.further(10)

    def cut() -> int:
        return sum(way.times for way in ways.values())

    await run(idle, got[1], trouble, callers)
    assert cut() >= 10


@pytest.fixture
def primary() -> Iterator[Primary]:
    with Primary() as one:
        yield one


@cell(setup=CLUSTERS["postgresql"], fault="the database killed, and its standby promoted")
async def test_clients_do_not_notice_that_the_synchronous_standby_is_promoted(
    primary: Primary, got: Got, tmp_path: Path, callers: Callers
) -> None:
    standby = Standby(primary)
    standby.begin()
    hosts = f"{primary.directory},{standby.directory}"
    made = Brokers(
        tmp_path, f"postgresql://tester@/holdfast?host={hosts}&target_session_attrs=read-write&space=o", got[0]
    )
    try:
        primary.wait_for_standby()
        await made.start(*NAMES)

        async def trouble(progress: Progress) -> None:
            await progress.each(3)
            primary.kill()
            standby.promote()
            await progress.each(5)

        await run(made, got[1], trouble, callers)
    finally:
        made.clean()
        standby.end()


@cell(fault="two of three brokers paused")
async def test_clients_do_not_notice_that_two_of_three_nodes_are_paused(
    idle: Brokers, got: Got, callers: Callers
) -> None:
    await idle.start(*NAMES)

    async def trouble(progress: Progress) -> None:
        for name in ("a", "b"):
            idle.nodes[name].signal(signal.SIGSTOP)
        await until(lambda: set(range(6)) <= idle.served("c"))
        await progress.each(3)
        for name in ("a", "b"):
            idle.nodes[name].signal(signal.SIGCONT)
        await progress.each(3)

    await run(idle, got[1], trouble, callers)
