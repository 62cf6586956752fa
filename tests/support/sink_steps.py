"""A query that sends rows, step by step and without Spark; and what may happen to it at each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.offsets import Range
from holdfast.pipeline.source import WsrmDataSource
from holdfast.pipeline.writer.client import Batch, SinkPlane
from holdfast.pipeline.writer.sink import Staged, TaskWriter, WsrmStreamWriter, planned
from holdfast.store.records import decode_record


class Server(Protocol):
    """A fake server, or a meddler before a real one."""

    url: Any
    on_sink: Callable[[str], Any]


ARROW = {"body": pa.string(), "carrier": pa.int32(), "action": pa.string(), "to": pa.string(), "queue": pa.string()}
ARROW |= {"id": pa.int32(), "place": pa.string()}
SPARK = {pa.string(): StringType(), pa.int32(): IntegerType()}


def schema(*names: str) -> StructType:
    return StructType([StructField(name, SPARK[ARROW[name.lower()]]) for name in names])


class Query:
    """A streaming query as its sink sees it: each step makes a writer of its own, as Spark does."""

    def __init__(self, server: Server, query: str = "q1", **options: str) -> None:
        given = {"broker": server.url, "queue": "out", "action": "urn:a", "awaySeconds": "0", **options}
        self.options = {name: text for name, text in given.items() if text}
        self.query = query

    def writer(self, *names: str) -> WsrmStreamWriter:
        return WsrmDataSource(self.options).streamWriter(schema(*names), False)

    def task(self, batch: int, partition: int, rows: dict[str, list[Any]], size: int = 3) -> Staged:
        options, plan = planned(self.options, schema(*rows), False, stream=True)
        table = pa.table({name: pa.array(values, ARROW[name.lower()]) for name, values in rows.items()})
        sink = options.sink_id or self.query
        return TaskWriter(options, plan, Batch(sink, self.query, batch), partition).write(
            iter(table.to_batches(max_chunksize=size))
        )

    def run(self, batch: int, *tasks: dict[str, list[Any]]) -> None:
        staged = [self.task(batch, partition, rows) for partition, rows in enumerate(tasks)]
        self.writer(*tasks[0]).commit(list(staged), batch)


def bodies(*names: Any) -> dict[str, list[Any]]:
    return {"body": [f"<{name}/>" for name in names]}


def failures() -> Iterator[tuple[str, ...]]:
    """Where the one who writes dies, or a request is lost, in each of two attempts at a batch."""
    places = ("none", "staging", "staged", "publish before", "publish after", "published", "part before", "part after")
    return itertools.product(places, places)  # type: ignore[return-value]


class Died(Exception):
    """A process of the query is no more."""


def attempt(
    server: Server, query: Query, batch: int, place: str, tasks: Sequence[dict[str, list[Any]]] | None = None
) -> None:
    """One attempt of Spark at a batch, of these rows or some, which something happens to."""
    if tasks is None:
        tasks = [bodies(*(f"r{batch}-{task}-{row}" for row in range(3))) for task in range(2)]
    lost = {
        "publish before": "/batches/",
        "publish after": "/batches/",
        "part before": "/parts",
        "part after": "/parts",
    }
    faults = [(lost[place], place.split()[1])] if place in lost else []

    def fail(request: str) -> str | None:
        return faults.pop()[1] if faults and faults[0][0] in request else None

    server.on_sink = fail
    staged: list[Any] = []
    for task, rows in enumerate(tasks):
        if task == 1 and place == "staging":
            raise Died
        staged.append(query.task(batch, task, rows))
    if place == "staged":
        raise Died
    query.writer(*tasks[0]).commit(staged, batch)
    if place == "published":
        raise Died


SERVED = """
from holdfast import Destination
app = Destination("store", partitions=2, queues={"inbox": None, "out": None})
"""
"""A server with a queue that messages come into, and one that rows are sent to."""


class Sent:
    """What came into a server's queue ``out``."""

    def __init__(self, admin: str) -> None:
        self._admin = admin

    def bodies(self, sink: str) -> list[str]:
        """The bodies of a sink's rows, once all that it published has come; each partition's in its order."""
        self.settled(sink)
        plane = DataPlane(self._admin)
        patience = Patience(60)
        ends = plane.ends("out")
        found: list[str] = []
        name = plane._json("GET", f"/sinks/{sink}")["sequence"]
        for partition, end in sorted(ends.ends.items()):
            for block in read_range(plane, "out", ends.epoch, Range(partition, 0, end), patience):
                records = [decode_record(encoded) for _, encoded in block]
                found += [one.body.decode() for one in records if one.sequence.startswith(f"{name}#")]
        plane.close()
        return found

    def settled(self, sink: str) -> None:
        plane = SinkPlane(self._admin)
        deadline = time.monotonic() + 60
        while Patience(60).call(lambda: plane._json("GET", f"/sinks/{sink}"))["moving"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        plane.close()
