"""Spark before a cluster of three brokers on a real database or Kafka, whose nodes are killed or paused at each step:
it reads every record once, and each of its rows is a message once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, store_on
from crew import wait_until
from meddler import Meddler

import holdfast
from holdfast.client.data_plane import DataPlane

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

SOURCES, MESSAGES = 24, 10
QUEUES = "[queues.orders]\n[queues.out]\n"
EXPECTED = Counter(f"<n>{name}-{number}</n>" for name in range(SOURCES) for number in range(MESSAGES))


class Steps:
    """Three nodes with messages in every partition, each behind a meddler that knows every step of a query.

    Attributes:
        brokers: The nodes.
        ahead: The step at which something happens: a part of its request, and whether the request is done before.
        done: What was done then.
    """

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.ahead = ("", "")
        self.trouble: Callable[[], object] = bool
        self.is_over = threading.Event()
        self._meddlers = {name: Meddler(url) for name, url in brokers.admins.items()}
        for name, one in self._meddlers.items():
            one.is_meant, one.on_sink = self._is_meant, self._meddle
            brokers.advertised[name] = one.url

    def _is_meant(self, path: str) -> bool:
        return bool(self.ahead[0]) and self.ahead[0] in path

    def _meddle(self, request: str) -> str | None:
        if self.is_over.is_set():
            return None
        self.is_over.set()
        if self.ahead[1] == "after":  # while it is at work on it, or just after
            threading.Timer(0.002, self.trouble).start()
            return "after"
        self.trouble()
        return "before"

    @property
    def urls(self) -> str:
        """The admin listeners of all nodes, for option broker."""
        return ",".join(one.url for one in self._meddlers.values())

    def asked(self, name: str) -> list[str]:
        """What a node was asked."""
        return self._meddlers[name].requests

    def stop(self) -> None:
        for one in self._meddlers.values():
            one.stop()


@pytest.fixture(params=["postgresql", "kafka"])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Steps]:
    brokers = Brokers(tmp_path, store_on(request.param, request), more=QUEUES)
    made = Steps(brokers)
    try:
        asyncio.run(brokers.start(*NAMES))
        wait_until(lambda: sorted(Counter(brokers.owners().values()).values()) == [2, 2, 2])
        asyncio.run(send(list(brokers.urls.values())))
        yield made
    finally:
        brokers.clean()
        made.stop()


async def send(urls: list[str]) -> None:
    """Send the messages, each Sequence to one of the nodes."""

    async def one(name: int) -> None:
        async with holdfast.Source(urls[name % len(urls)], ":memory:") as source:
            for number in range(MESSAGES):
                await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
            await source.flush(60)

    await asyncio.gather(*map(one, range(SOURCES)))


def read(spark: SparkSession, broker: str, queue: str = "orders") -> DataFrame:
    return spark.read.format("wsrm").options(broker=broker, queue=queue).load()


def bodies(found: DataFrame) -> Counter[str]:
    return Counter(row.body for row in found.select("body").collect())


def sink_of(partition: int) -> str:
    """A sink that belongs to a partition of the cluster."""
    return next(name for name in map("sink-{}".format, range(1000)) if crc32(name.encode()) % PARTITIONS == partition)


def copy(spark: SparkSession, steps: Steps, sink: str, checkpoint: Path) -> None:
    """Send each message of a queue to another, in batches of about 60."""
    server = {"broker": steps.urls, "awaySeconds": "60"}
    stream = spark.readStream.format("wsrm").options(**server, queue="orders", reader="copy")
    rows = stream.option("maxRowsPerBatch", "60").load().select("body", "action")
    writer = rows.writeStream.format("wsrm").options(**server, queue="out", sinkId=sink)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(280)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("request_", "when", "how"),
    [
        ("/batches/1", "after", "killed"),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (
                ("/records?", "before", "killed"),
                ("/records?", "before", "paused"),
                ("batch=1&", "before", "killed"),
                ("batch=1&", "after", "paused"),
                ("/batches/1", "before", "killed"),
                ("/batches/1", "after", "paused"),
            )
        ),
    ],
)
def test_a_query_copies_every_message_once_whichever_step_an_owner_dies_at(
    spark: SparkSession, steps: Steps, tmp_path: Path, patiently: Any, request_: str, when: str, how: str
) -> None:
    """The node that fails owns the sink, and a third of the messages. It is also the first one that is asked."""
    node = steps.brokers.nodes["a"]
    (sink, *_) = [sink_of(partition) for partition, owner in steps.brokers.owners().items() if owner == "a"]
    steps.ahead = (request_, when)
    steps.trouble = node.kill if how == "killed" else lambda: node.signal(signal.SIGSTOP)
    patiently(lambda: copy(spark, steps, sink, tmp_path / "checkpoint"))
    assert steps.is_over.is_set()
    if how == "paused":
        node.signal(signal.SIGCONT)
    assert bodies(read(spark, steps.urls, "out")) == EXPECTED
    assert set(steps.brokers.owners().values()) >= {"b", "c"}


@pytest.mark.nightly
def test_tasks_read_from_the_owners_and_find_the_next_one_after_a_kill(spark: SparkSession, steps: Steps) -> None:
    nodes = DataPlane(steps.urls).nodes()
    assert nodes is not None
    owners = steps.brokers.owners()
    assert nodes.workers == tuple(steps.brokers.advertised[owners[worker]] for worker in range(PARTITIONS))
    assert bodies(read(spark, steps.urls)) == EXPECTED
    for name in NAMES:
        asked = {int(one.split("/")[3]) // nodes.partitions for one in steps.asked(name) if "/records?" in one}
        assert asked == {worker for worker, owner in owners.items() if owner == name}
    planned = read(spark, steps.urls)
    steps.brokers.nodes["b"].kill()
    assert bodies(planned) == EXPECTED
    assert set(steps.brokers.owners().values()) == {"a", "c"}
