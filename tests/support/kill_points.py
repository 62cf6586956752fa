"""``holdfast`` with a node that is killed, with all its processes, at the point that a test names.

The test writes the name of the point into the file ``kill`` in the directory of the nodes. The first process of any
node that reaches the point kills its node: it is the one that removes the file.

| point | the process of a partition |
| --- | --- |
| ``sent`` | has sent a batch with messages to PostgreSQL or Kafka, and no answer has arrived |
| ``confirmed`` | knows that such a batch is durable, and has answered no client |
| ``claimed`` | has opened its store, so that it owns it, and has read nothing |
| ``replay`` | has read a part of what its predecessor had stored, or nothing, if its cache has all |
| ``copy`` | has copied a part of its content into the log (Kafka only: PostgreSQL deletes rows, and copies none) |
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.cli.main import main
from holdfast.store.sql.postgresql_batch import BatchSender
from holdfast.store.sql.store import SQLStore

FILE = "kill"
POINTS = ("sent", "confirmed", "claimed", "replay")
ON_KAFKA = (*POINTS, "copy")
COPY_FROM, COPY_STEP = 20_000, 500
"""Bytes of a log that need no copy, and of a step of the copy: so that a copy is always in progress."""
LONGEST_FLIGHT = 0.003
"""Seconds: how long Kafka's client may work at a batch. So it has sent some batches, and others not."""

_has_messages = False
"""Whether the batch that this process writes has messages. A process has one store."""


def reach(point: str) -> None:
    """Kill the node if the test wants that here."""
    try:
        if Path(FILE).read_text() != point:
            return
        os.unlink(FILE)
    except FileNotFoundError:  # nothing is wanted, or another process came first
        return
    os.killpg(0, signal.SIGKILL)


def _at_stores(kind: Any) -> None:
    opened, commit = kind.__init__, kind.commit

    def open_(self: Any, *arguments: Any, **named: Any) -> None:
        opened(self, *arguments, **named)
        reach("claimed")

    def commit_(self: Any, batch: Any) -> None:
        global _has_messages
        _has_messages = bool(batch.appends)
        commit(self, batch)
        if _has_messages:
            reach("confirmed")

    kind.__init__, kind.commit = open_, commit_


def _at_postgresql() -> None:
    execute, load = BatchSender._execute, SQLStore._load

    def execute_(self: Any, pgconn: Any, statement: bytes, values: Sequence[bytes], *, prepares: bool) -> Any:
        if _has_messages and Path(FILE).exists():
            from psycopg import pq

            pgconn.send_query_params(statement, values, None, [pq.Format.BINARY] * len(values))
            while pgconn.flush():
                pass
            reach("sent")
            while (result := pgconn.get_result()) is not None:
                last = result
            return last
        return execute(self, pgconn, statement, values, prepares=prepares)

    def load_(self: Any) -> Any:
        found = load(self)
        reach("replay")
        return found

    BatchSender._execute, SQLStore._load = execute_, load_  # type: ignore[method-assign]


def _at_kafka() -> None:
    from holdfast.store.kafka import sweep
    from holdfast.store.kafka.cache import Applied
    from holdfast.store.kafka.frames import Copies
    from holdfast.store.kafka.store import KafkaStore
    from holdfast.store.kafka.topic import KafkaLog

    append, add, write, write_log = KafkaLog.append, Applied.add, Applied.write, KafkaStore._write_log

    def append_(self: Any, records: Sequence[bytes], goes_on: Callable[[], bool]) -> Any:
        if not (_has_messages and Path(FILE).exists() and Path(FILE).read_text() == "sent"):
            return append(self, records, goes_on)
        producer, topic, partition = self._writer(), self._address.topic, self._address.partition
        for record in records:
            producer.produce(topic, record, partition=partition)
        producer.flush(random.uniform(0, LONGEST_FLIGHT))
        reach("sent")
        self.is_passing = True
        return None  # another process was faster, so this one finds out what became of the batch

    def add_(self: Any, found: Any) -> None:
        add(self, found)
        reach("replay")

    def write_(self: Any) -> None:
        write(self)
        reach("replay")

    def write_log_(self: Any, write: Any) -> None:
        if write.copies == Copies.CONTINUES:
            reach("copy")
        write_log(self, write)

    KafkaLog.append, KafkaStore._write_log = append_, write_log_  # type: ignore[method-assign]
    Applied.add, Applied.write = add_, write_  # type: ignore[method-assign]
    sweep.FEWEST_BYTES, sweep.STEP_BYTES = COPY_FROM, COPY_STEP
    _at_stores(KafkaStore)


if __name__ == "__main__":
    _at_stores(SQLStore)
    _at_postgresql()
    if "kafka:" in Path(f"{os.environ['HOLDFAST_NODE']}.toml").read_text():
        _at_kafka()
    main()
