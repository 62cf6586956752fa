"""What keeps the content of a cluster's partitions in a simulated world: a table with a fence, or a log.

Each has the content that is durable, seen from outside, and a client for each worker that opens it. Requests and
answers take time and get lost. An append to the log may come late, or never. The decisions of the log's clients are
those of ``store/kafka``; a table obeys the condition that each commit of ``store/sql`` has.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.records import Batch
from holdfast.store.kafka.owner import LogOwner, Write
from holdfast.store.kafka.replay import Checkpoint, Replay, Written
from holdfast.store.kafka.states import OwnerAction, OwnerState
from holdfast.store.memory import MemoryStore

if TYPE_CHECKING:
    from cluster_world import Worker

MOST = 1 << 20
"""Bytes of a record of the log."""
SILENCE = 2.0
"""Seconds after which a client gives an answer up."""


class Table:
    """The content of one partition in a database: how often it was opened, and how many batches it has."""

    def __init__(self, stored: Callable[[Batch], None]) -> None:
        self.epoch = self.serial = 0
        self.content = MemoryStore()
        self._stored = stored

    def open(self) -> tuple[int, int]:
        self.epoch += 1
        return self.epoch, self.serial

    def commit(self, epoch: int, serial: int, batch: Batch) -> bool:
        """Commit a batch, if nobody opened the table since, and it is the next one."""
        if (epoch, serial) != (self.epoch, self.serial):
            return False
        self.serial += 1
        self.content.commit(batch)
        self._stored(batch)
        return True

    def client(self, worker: Worker) -> TableClient:
        return TableClient(self, worker)


class TableClient:
    """One worker's connection to its table."""

    is_shared = True

    def __init__(self, table: Table, worker: Worker) -> None:
        self.table, self.worker = table, worker
        self.epoch = self.serial = 0
        self.content = table.content
        self._attempt = 0

    @property
    def is_claimed(self) -> bool:
        return self.epoch > 0

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have deleted what this one reads."""
        return self.epoch != self.table.epoch

    def open(self) -> None:
        """Open it: nobody else commits from then on."""
        self._attempt += 1
        self._exchange(self.table.open, self._opened, self.open, self._attempt)

    def _opened(self, answer: tuple[int, int]) -> None:
        self.epoch, self.serial = answer
        self.worker.opened()

    def commit(self, batch: Batch) -> None:
        self._attempt += 1
        epoch, serial = self.epoch, self.serial
        self._exchange(
            lambda: self.table.commit(epoch, serial, batch),
            lambda is_stored: self._committed() if is_stored else self.worker.fail("fenced"),
            lambda: self._ask(batch),
            self._attempt,
        )

    def _ask(self, batch: Batch) -> None:
        """Ask on a new connection whether the batch is there. What the old one still carried is lost."""
        self._attempt += 1
        self._exchange(
            lambda: (self.table.epoch, self.table.serial),
            lambda found: self._decide(batch, *found),
            lambda: self._ask(batch),
            self._attempt,
        )

    def _decide(self, batch: Batch, epoch: int, serial: int) -> None:
        if epoch != self.epoch or serial not in (self.serial, self.serial + 1):
            self.worker.fail("fenced")
        elif serial == self.serial:
            self.commit(batch)
        else:
            self._committed()

    def _committed(self) -> None:
        self.serial += 1
        self.worker.durable()

    def _exchange(
        self, run: Callable[[], Any], answered: Callable[[Any], None], failed: Callable[[], None], attempt: int
    ) -> None:
        world, process = self.worker.world, self.worker.process

        def execute() -> None:
            # A new connection ends the old one, and what that still carried. That of a paused process lives on.
            if attempt != self._attempt or not world.database.is_up or (process.is_cut and world.chance(0.5)):
                return
            if world.stalled_until > world.now or world.chance(0.02):  # perhaps long after its sender gave it up
                world.at(world.random.uniform(0, 3 * world.policy.lease), execute)
                return
            found = run()
            if not (process.is_cut or world.chance(world.lost_answers)):
                self.worker.later(world.delay(0.005, 0.3), lambda: done(found))

        def done(found: Any) -> None:
            if attempt == self._attempt:
                self._attempt += 1
                answered(found)

        def give_up() -> None:
            if attempt == self._attempt:
                failed()

        world.at(world.delay(0.005, 0.3), execute)
        self.worker.later(SILENCE, give_up)


class Log:
    """The content of one partition in a log."""

    def __init__(self, stored: Callable[[Batch], None]) -> None:
        self.records: list[bytes] = []
        self._stored = stored
        self._judge = Replay(Checkpoint(), "the log")

    def append(self, record: bytes) -> int:
        self.records.append(record)
        found = self._judge.read(len(self.records) - 1, record)
        if isinstance(found, Written):
            self._stored(pickle.loads(found.data))
        return len(self.records) - 1

    def client(self, worker: Worker) -> LogClient:
        return LogClient(self, worker)


class LogClient:
    """One worker's ownership of a log, and its copy of the content."""

    is_shared = is_lost = False

    def __init__(self, log: Log, worker: Worker) -> None:
        self.log, self.worker = log, worker
        self.content = MemoryStore()
        self.owner = LogOwner(
            worker.name, worker.world.random.randbytes(8), worker.world.replay(Checkpoint(), "the log"), MOST
        )
        self.is_claimed = False
        self._append = 0

    def open(self) -> None:
        self._go_on()

    def commit(self, batch: Batch) -> None:
        self._do(self.owner.commit(Write(pickle.dumps(batch))))

    def _go_on(self) -> None:
        world = self.worker.world
        if self.owner.claims:
            if not self.is_claimed:
                self.worker.read_to_end()
            self._send([self.owner.claim(world.now)], self._claimed)
        elif self.owner.reads:
            self.worker.later(world.delay(0.005, 0.2), self._read)

    def _claimed(self, _offsets: list[int] | None) -> None:
        self.owner.claimed()
        self._go_on()

    def _read(self) -> None:
        """Read what is there. What comes meanwhile is read next time."""
        world, owner = self.worker.world, self.owner
        if self.worker.process.is_cut or world.stalled_until > world.now or not world.database.is_up:
            self.worker.later(0.5, self._read)
            return
        end = len(self.log.records)
        if world.chance(0.05):  # the end that a reader sees may be behind
            end = world.random.randint(min(owner.replay.next, end), end)
        while owner.reads and owner.replay.next < end:
            found, action = owner.read(owner.replay.next, self.log.records[owner.replay.next])
            if isinstance(found, Written) and not self.is_claimed:
                self.content.commit(pickle.loads(found.data))
            if action is not OwnerAction.NOTHING:
                self._do(action)
                return
        is_turn = self.is_claimed or self.worker.may_act
        is_at_end = owner.reads and owner.replay.next >= end
        self._do(owner.ended() if is_at_end and is_turn else OwnerAction.NOTHING)

    def _do(self, action: OwnerAction) -> None:
        match action:
            case OwnerAction.SERVE:
                self.is_claimed = True
                self.worker.opened()
            case OwnerAction.APPEND:
                records = self.owner.records
                self._send(records, lambda offsets: self._do(self.owner.appended(offsets, sum(map(len, records)))))
            case OwnerAction.ACKNOWLEDGE:
                self.worker.durable()
            case OwnerAction.STOP:
                self.worker.fail("another process owns the log")
            case _:
                self._go_on()

    def _send(self, records: list[bytes], heard: Callable[[list[int] | None], None]) -> None:
        world, process = self.worker.world, self.worker.process
        self._append += 1
        number = self._append
        offsets: list[int] = []

        def arrive() -> None:
            if not world.database.is_up or (process.is_cut and world.chance(0.5)):
                return
            if world.stalled_until > world.now or world.chance(0.02):  # perhaps long after its sender gave it up
                world.at(world.random.uniform(0, 3 * world.policy.lease), arrive)
                return
            offsets.extend(map(self.log.append, records))
            if not (process.is_cut or world.chance(world.lost_answers)):
                self.worker.later(world.delay(0.005, 0.3), lambda: end(offsets))

        def end(found: list[int] | None) -> None:
            if number == self._append and self.owner.state is not OwnerState.LOST:
                self._append += 1
                heard(found)

        world.at(world.delay(0.005, 0.3), arrive)
        self.worker.later(SILENCE, lambda: end(None))
