"""A Spark query that reads the queue of several workers, some of which are killed, and then of one more."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crew import Crew

import holdfast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")]

SOURCES, MESSAGES, WAIT = 12, 10, 280


def send(url: str, round_: int) -> None:
    for name in range(SOURCES):
        with holdfast.sync.Source(url, store=":memory:") as source:
            for number in range(MESSAGES):
                source.send(f"<n>{round_}-{name}-{number}</n>", action="urn:test:submit")
            source.flush(60)


@pytest.mark.nightly
def test_a_query_reads_every_message_once_though_workers_are_killed_and_become_more(
    spark: SparkSession, tmp_path: Path, patiently: Any
) -> None:
    batches: dict[int, list[tuple[int, str]]] = {}

    def collect(batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("partition", "body").collect()
        batches[batch_id] = [(row.partition, row.body) for row in rows]

    def run(admin: str) -> bool:
        stream = spark.readStream.format("wsrm").option("broker", admin).option("queue", "inbox")
        stream = stream.option("reader", "spark").option("maxRowsPerBatch", "70")
        writer = stream.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).foreachBatch(collect).start()
        if server.pids:
            server.kill(0)
        return bool(query.awaitTermination(WAIT))

    partitions = []
    for round_, workers in enumerate(("2", "3")):
        server = Crew(tmp_path, "--port", "0", "--admin", "0", "--workers", workers)
        try:
            url, admin = server.url(), server.url()
            send(url, round_)
            assert patiently(lambda at=admin: run(at))
            assert server.end() == 0
        finally:
            server.clean()
        partitions.append({partition for rows in batches.values() for partition, _ in rows})
    told = Counter(body for rows in batches.values() for _, body in rows)
    expected = [
        f"<n>{r}-{name}-{number}</n>" for r in range(2) for name in range(SOURCES) for number in range(MESSAGES)
    ]
    assert told == Counter(expected)
    assert partitions[0] <= {0, 1, 2, 3}
    assert len(partitions[0]) > 1
