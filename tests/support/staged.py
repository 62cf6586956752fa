"""A side of the protocol with sinks, over any store, whose every event is the test's to choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import count
from typing import Any
from zlib import crc32

from holdfast.core.events import ReadWanted
from holdfast.core.policy import StagingPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.sinks.sink import Batch
from holdfast.core.staged_blocks import Block, Run, unpack
from holdfast.store import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.records import decode_record
from holdfast.store.staged import blocks_of_records, fill

PARTITIONS = 3
Row = tuple[str, Record]


def row(body: str, key: str = "", queue: str = "inbox") -> Row:
    return queue, Record(key, 0, "urn:a", body.encode(), 0.0)


def partition_of(key: str) -> int:
    return crc32(key.encode()) % PARTITIONS


def rows(*bodies: str, queue: str = "inbox") -> list[Row]:
    return [row(body, queue=queue) for body in bodies]


def unpacked(blocks: Iterable[Block]) -> Iterator[tuple[str, int, Record]]:
    """For each row its queue, the hash of its key, and the record that it becomes as message 7 of urn:s, at 9."""
    for block in blocks:
        rows = unpack(block.data)
        for (queue, key_hash), place in zip(rows.entries, rows.places, strict=True):
            run = Run(queue, 0, 0, "s", "urn:s", "urn:made:", rows.received_at, 9.0, block.data, [7], [place])
            yield queue, key_hash, decode_record(fill(run)[0])


def exact(batches: int) -> list[str]:
    """The bodies of batches of two tasks, each with the keys k0 to k3, partition after partition."""
    mine = [[n for n in range(4) if partition_of(f"k{n}") == partition] for partition in range(PARTITIONS)]
    return [f"{batch}-{task}-{n}" for some in mine for batch in range(batches) for task in range(2) for n in some]


def _place(record: Record) -> tuple[str, int]:
    return record.sequence, record.message_number


class Side:
    """A protocol over a store, whose every event is the test's to choose: what is written becomes durable, and what is
    to be read is read, when it is told so; and it may die in between."""

    def __init__(
        self,
        policy: StagingPolicy | None = None,
        queues: tuple[str, ...] = ("inbox", "other"),
        reopen: Callable[[], Store] | None = None,
    ) -> None:
        self.memory = MemoryStore()
        self.reopen = reopen or (lambda: self.memory)
        self.names = (f"urn:sink:{number}" for number in count())
        self.now = 1000.0
        self.policy, self.queue_names = policy or StagingPolicy(), queues
        self.start()

    def start(self) -> None:
        """Begin, or begin again after a death: what is not in the store is gone."""
        self.store = self.reopen()
        queues = [Queue(name, PARTITIONS) for name in self.queue_names]
        self.protocol = RMProtocol(
            queues[0],
            Environment(self.store.read, self.names.__next__, lambda: 0.5),
            further=queues[1:],
            policies=Policies(staging=self.policy or StagingPolicy()),
        )
        self.snapshot = self.store.load()
        self.protocol.recover(self.snapshot, self.now)
        self.staging = self.protocol.staging
        self.taken: list[Any] = []
        self.wanted: list[ReadWanted] = []
        self.told: list[Any] = []

    def copy(self) -> MemoryStore:
        """What the store holds now."""
        return deepcopy(self.memory)

    def put_back(self, copy: MemoryStore) -> None:
        """Begin again over an older copy of the store, and say so."""
        self.memory = deepcopy(copy)
        self.start()
        self.staging.restored()

    def take_effects(self) -> None:
        for effect in self.protocol.take_effects():
            (self.wanted if isinstance(effect, ReadWanted) else self.told).append(effect)

    def take(self) -> None:
        self.taken.append(self.protocol.take_batch())

    def durable(self) -> None:
        self.store.commit(self.taken.pop(0))
        self.protocol.batch_durable(self.now)
        self.take_effects()

    def read(self) -> None:
        one = self.wanted.pop(0)
        found = self.store.read(one.queue, one.partition, one.start, one.end)
        self.protocol.records_read(one, found, self.now)
        self.take_effects()

    def step(self) -> None:
        """Let one thing happen."""
        if self.protocol.effects:
            self.take_effects()
        elif self.taken:
            self.durable()
        elif self.protocol.wants_commit:
            self.take()
        elif self.wanted:
            self.read()

    def settle(self) -> None:
        """Let all happen that needs no time."""
        while self.protocol.effects or self.taken or self.wanted or self.protocol.wants_commit:
            self.step()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.protocol.pump(self.now)
        self.settle()

    def records(self, queue: str, partition: int) -> list[Record]:
        found: list[tuple[int, Record]] = []
        while some := self.store.read(queue, partition, found[-1][0] + 1 if found else 0, 1 << 40):
            found += some
        return [one for _, one in found]

    def bodies(self, queue: str = "inbox") -> list[str]:
        """The bodies, partition after partition, in each by Sequence and number."""
        records = [sorted(self.records(queue, one), key=_place) for one in range(PARTITIONS)]
        return [one.body.decode() for some in records for one in some]

    def stage(
        self, number: int, token: str, some: list[Row], sink: str = "s", query: str = "q", jumps: bool = False
    ) -> bool:
        start = 0
        for block in blocks_of_records(some, self.now):
            if not self.staging.stage(Batch(sink, query, number, jumps), token, start, block, self.now):
                return False
            start += block.rows
        return True

    def publish(
        self,
        number: int,
        *tokens: str,
        count: int,
        sink: str = "s",
        query: str = "q",
        jumps: bool = False,
        is_final: bool = False,
    ) -> bool:
        batch = Batch(sink, query, number, jumps)
        return self.staging.publish(batch, tokens, count, self.now, is_final=is_final).is_new
