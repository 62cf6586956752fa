"""Several queues of a broker of several workers, some of which are killed: read as Spark's processes do."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows

import holdfast
from holdfast.client.data_plane import DataPlane
from holdfast.client.offsets import parse
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

CONFIG = """
store = "inbox"
partitions = 2
[listen]
port = 0
[admin]
port = 0
[queues.orders]
[queues.returns]
[[routes]]
action = "urn:returns/*"
queues = "returns"
[[routes]]
queues = "orders"
"""
SOURCES, MESSAGES = 4, 15
Row = tuple[str, str, str, int]


def send(url: str, round_: int) -> None:
    for name in range(SOURCES):
        with holdfast.sync.Source(url, store=":memory:") as source:
            for number in range(MESSAGES):
                action = "urn:returns/one" if number % 3 == 0 else "urn:orders/one"
                source.send(f"<n>{round_}-{name}-{number}</n>", action=action)
            source.flush(60)


def source(admin: str, **options: str) -> WsrmDataSource:
    usual = {"broker": admin, "reader": "spark", "waitSeconds": "0"}
    return WsrmDataSource(options=CaseInsensitiveDict({**usual, **options}))


def read(reader: Any, partitions: Any) -> list[Row]:
    rows = []
    for partition in partitions:
        task = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            rows += [(r["queue"], r["body"], r["sequence"], r["partition"]) for r in batch.to_pylist()]
    return rows


def batch(admin: str, **options: str) -> list[Row]:
    made = source(admin, **options)
    reader = made.reader(made.schema())
    return read(reader, reader.partitions())


def places(admin: str) -> list[tuple[str, int]]:
    """Of every row its queue and partition, for which no record is read."""
    made = source(admin, queue="returns,orders", columns="queue,partition")
    reader = made.reader(made.schema())
    return [
        (row["queue"], row["partition"])
        for partition in reader.partitions()
        for some in reader.read(partition)
        for row in some.to_pylist()
    ]


def run(reader: WsrmStreamReader, start: dict[str, Any] | None, kill: Any) -> tuple[dict[str, Any], list[Row]]:
    """One run until all that was there at its beginning is read, by batches of ten rows."""
    reader.prepareForTriggerAvailableNow()
    rows: list[Row] = []
    start = reader.initialOffset() if start is None else start
    while (end := json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(10))))) != start:
        reader.commit(start)
        partitions = reader.partitions(start, end)
        kill()
        some = read(reader, partitions)
        assert len(some) <= 10
        rows += some
        start = end
    return start, rows


def test_all_queues_of_workers_that_are_killed_and_added_are_read_once(tmp_path: Path) -> None:
    start: dict[str, Any] | None = None
    told: list[Row] = []
    for round_, workers in enumerate(("2", "3")):
        server = Crew(tmp_path, "--workers", workers, broker=CONFIG)
        try:
            url, admin = server.url(), server.url()
            send(url, round_)
            made = source(admin, queuePattern=".*")
            killed = iter([True])
            start, rows = run(
                made.streamReader(made.schema()), start, lambda s=server, k=killed: next(k, False) and s.kill(0)
            )
            told += rows
            everything = batch(admin, queue="returns,orders")
            assert batch(admin, queue="orders,returns", startingTimestamp="2000-01-01") == sorted(
                everything, key=lambda row: (row[0], row[3])
            )
            assert batch(admin, queue="orders", startingTimestamp="2100-01-01") == []
            one = everything[-1][2]
            assert batch(admin, queue="returns,orders", sequence=one) == [row for row in everything if row[2] == one]
            assert places(admin) == [(row[0], row[3]) for row in everything]
            assert batch(admin, read="letters") == []
            plane = DataPlane(admin)
            assert plane.partition_of(one) == everything[-1][3]
            assert plane.partition_of("urn:uuid:nowhere") is None
            plane.close()
            assert server.end() == 0
        finally:
            server.clean()
    expected = Counter(
        (
            "returns" if number % 3 == 0 else "orders",
            f"<n>{round_}-{name}-{number}</n>",
        )
        for round_ in range(2)
        for name in range(SOURCES)
        for number in range(MESSAGES)
    )
    assert Counter(row[:2] for row in told) == expected
    assert start is not None
    assert {queue: sum(place.positions.values()) for queue, place in parse(start).queues.items()} == {
        "orders": 2 * SOURCES * 10,
        "returns": 2 * SOURCES * 5,
    }
