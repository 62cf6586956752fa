"""Three brokers as one cluster on three Kafka brokers, which are killed, restarted or cut off: clients see no error."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import maven_build
import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, Got, needs_proc
from cluster_clients import Callers, Progress, run
from crew import PATIENCE, wait_until
from fault_times import note_times
from interop_cells import cell

from holdfast.cluster.operating.engines import verifier_of
from holdfast.store.kafka.address import read_kafka_address

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(1800),
    cell(setup="a cluster on three brokers of Kafka, four clients"),
    needs_proc,
]


@pytest.fixture(scope="module")
def ways(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Three brokers of Kafka for these tests alone, and the network before them."""
    kafka_ways = pytest.importorskip("kafka_ways", reason="confluent-kafka is not installed")
    if reason := maven_build.available():
        pytest.skip(reason)
    with kafka_ways.KafkaWays(pytestconfig.cache.mkdir("kafka-server")) as made:
        yield made


@pytest.fixture
async def brokers(ways: Any, got: Got, tmp_path: Path) -> AsyncIterator[Brokers]:
    url = ways.kafka.new_url(tmp_path / "cache" / "NODE", partitions=PARTITIONS)
    made = Brokers(tmp_path, url, got[0])
    ways.network.group_of = made.group_of
    try:
        await made.start(*NAMES)
        await made.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})
        yield made
    finally:
        ways.network.lose()
        made.clean()


async def end_and_verify(brokers: Brokers) -> None:
    """End the nodes in order, and check the rules of their logs."""
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]
    found = await asyncio.to_thread(verifier_of(brokers.store), brokers.store, None, reads_all=True)
    assert found.problems == ()


@cell(fault="each broker of Kafka killed in turn")
async def test_clients_do_not_notice_that_each_broker_of_kafka_is_killed(
    brokers: Brokers, ways: Any, got: Got, callers: Callers
) -> None:
    """One of them is the controller, one coordinates the group of the nodes, and each leads some partitions."""
    kafka = ways.kafka

    async def trouble(progress: Progress) -> None:
        waits = []
        for number in range(len(NAMES)):
            progress.longest()
            await asyncio.to_thread(kafka.kill, number)
            await progress.each(5)
            waits.append(progress.longest())
            kafka.start(number)
            await asyncio.to_thread(kafka.wait)
            await progress.each(5)
        note_times("kafka", "a broker of Kafka killed", waits)

    await run(brokers, got[1], trouble, callers)
    await end_and_verify(brokers)


@cell(fault="each broker of Kafka restarted in turn")
async def test_clients_do_not_notice_a_rolling_restart_of_kafka(
    brokers: Brokers, ways: Any, got: Got, callers: Callers
) -> None:
    kafka = ways.kafka

    async def trouble(progress: Progress) -> None:
        waits = []
        for number in range(len(NAMES)):
            progress.longest()
            await asyncio.to_thread(kafka.end, number)
            await progress.each(3)
            kafka.start(number)
            await asyncio.to_thread(kafka.wait)
            await progress.each(3)
            waits.append(progress.longest())
        note_times("kafka", "a broker of Kafka restarted", waits)

    await run(brokers, got[1], trouble, callers)
    await end_and_verify(brokers)


def is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=PATIENCE):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


@cell(fault="two of three brokers of Kafka down")
async def test_clients_do_not_notice_that_two_of_three_brokers_of_kafka_are_down(
    brokers: Brokers, ways: Any, got: Got, callers: Callers
) -> None:
    """One replica is not enough, so the nodes accept nothing until a second one is back."""
    kafka = ways.kafka

    async def trouble(progress: Progress) -> None:
        for number in (0, 1):
            await asyncio.to_thread(kafka.kill, number)
        for name in NAMES:
            await asyncio.to_thread(wait_until, lambda name=name: not is_ready(brokers.admins[name]))
        progress.longest()
        for number in (0, 1):
            kafka.start(number)
        await asyncio.to_thread(kafka.wait)
        await progress.each(3)
        note_times("kafka", "two brokers of Kafka down and back", [progress.longest()])

    await run(brokers, got[1], trouble, callers)
    await end_and_verify(brokers)


@cell(fault="a broker cut off from Kafka")
async def test_clients_do_not_notice_a_node_that_is_cut_off_from_kafka(
    brokers: Brokers, ways: Any, got: Got, callers: Callers
) -> None:
    await lose_in_turn(brokers, ways, got, callers, "a node cut off from Kafka", only_coordinator=False)


@cell(fault="a broker cut off from the coordinator of its group")
async def test_clients_do_not_notice_a_node_that_is_cut_off_from_its_coordinator(
    brokers: Brokers, ways: Any, got: Got, callers: Callers
) -> None:
    """The node still reaches the leaders of most of its partitions, but nobody hears that it lives."""
    await lose_in_turn(brokers, ways, got, callers, "a node cut off from its coordinator", only_coordinator=True)


async def lose_in_turn(
    brokers: Brokers, ways: Any, got: Got, callers: Callers, fault: str, *, only_coordinator: bool
) -> None:
    group = f"{read_kafka_address(brokers.store).topic}-nodes"

    async def trouble(progress: Progress) -> None:
        waits = []
        for name in ("a", "b"):
            others = {*NAMES} - {name}
            progress.longest()
            lost = ["kafka1", "kafka2", "kafka3"]
            if only_coordinator:
                lost = [await asyncio.to_thread(ways.coordinator, group)]
            ways.cut_off(name, *lost)
            await brokers.wait_for_owners(
                lambda owners, others=others: len(owners) == PARTITIONS and {*owners.values()} == others
            )
            await progress.each(3)
            waits.append(progress.longest())
            ways.network.lose()
            await brokers.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})
            await progress.each(3)
        note_times("kafka", fault, waits)

    await run(brokers, got[1], trouble, callers)
    await end_and_verify(brokers)


@pytest.mark.parametrize("lost", ["asked", "answered"])
@cell(fault="connections to Kafka cut at a write")
async def test_clients_do_not_notice_connections_to_kafka_that_are_cut_at_a_write(
    brokers: Brokers, ways: Any, got: Got, lost: str, callers: Callers
) -> None:
    """Either the request is lost, or the answer to it, and then the records are in the log."""
    network = ways.network

    async def trouble(progress: Progress) -> None:
        waits = []
        for _ in range(10):
            progress.longest()
            before, network.cuts = network.times, lost
            await progress.until(lambda before=before: network.times > before)
            await progress.each(3)
            waits.append(progress.longest())
        note_times("kafka", f"a connection cut at a write ({lost})", waits)

    await run(brokers, got[1], trouble, callers)
    await end_and_verify(brokers)
