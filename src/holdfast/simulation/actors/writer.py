"""A simulated writer outside the endpoint, such as a Spark query: stages rows in a sink and publishes its batches.

The writer has a driver, tasks, and a checkpoint that names the next batch. Requests and answers may be lost, or may
arrive late, after they were sent again. The driver may die between any two steps, including between publication and
checkpoint. A new driver then resumes from the checkpoint. Sometimes the old one survives and writes the same batches.
The number of a batch determines its rows. So each row must arrive once, in the order of its key, whichever part dies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.records import Record
from holdfast.core.sinks.sink import Batch, NotStaged, Why
from holdfast.core.staged_blocks import Block
from holdfast.simulation.actors.reader import At
from holdfast.simulation.nodes.ledger import is_row
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.promises.invariant import InvariantViolation
from holdfast.store.staged import blocks_of_records

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "RowsArriveOnce"
SINK, QUERY = "sink", "query"
APART = 100
"""Added to the batch number in the rows of each further writer, so that no two rows are equal."""
BATCHES, TASKS, KEYS = 4, 2, 3
HOURS = 3600.0
"""A sink remembered for hours still exists at the end of a run; any other sink is forgotten by then."""
PATIENCE = 5.0
"""Seconds before a driver repeats an unanswered request."""
MOST_DRIVERS = 6


def rows_of(batch: int, task: int, writer: int = 0) -> list[bytes]:
    """Return the bodies of a task's rows; some tasks have none."""
    count = (batch * 3 + task * 2) % 5
    return [b"w%d-%d-%d" % (writer * APART + batch, task, number) for number in range(count)]


def batch_of(body: bytes) -> tuple[int, int]:
    """Return the writer and the batch of a row."""
    return divmod(int(body[1:].split(b"-")[0]), APART)


def key_of(body: bytes) -> str:
    """Return the key of a row, derived from its number in its task; a task's rows share out the keys."""
    return f"k{int(body.rsplit(b'-', 1)[1]) % KEYS}"


def all_rows(writer: int) -> list[bytes]:
    return [body for batch in range(BATCHES) for task in range(TASKS) for body in rows_of(batch, task, writer)]


class Writer:
    """The writer of one sink.

    Args:
        world: The world it belongs to.
        node: The endpoint, which forwards its queue.
        at: Schedules a call.
        chance: Chooses delays, losses and a driver's death.
        latency: The longest time that a request takes, seconds.
        loss: The share of requests, and of answers, that are lost during the storm.
        number: The writer's number; each writer has its own sink.
        repeats: The share of requests, and of answers, that arrive twice during the storm.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        at: At,
        chance: random.Random,
        latency: float,
        loss: float,
        number: int = 0,
        repeats: float = 0.0,
    ) -> None:
        self.world = world
        self.node = node
        self.chance = chance
        self.loss = loss
        self.number = number
        self.repeats = repeats
        self.sink = f"{SINK}-{number}" if number else SINK
        self.rows = all_rows(number)
        self.next_batch = 0
        """The batch that the checkpoint names. On a disk."""
        self.asked = -1
        """The highest batch with a publication that reached the endpoint."""
        self._at = at
        self._latency = latency
        self._drivers = 0

    def begin(self) -> None:
        """Start a driver from the checkpoint."""
        self._drivers += 1
        driver = Driver(self, self._drivers, self.next_batch)
        self.later(driver.go_on)

    def later(self, call: Callable[[], Node | None], least: float = 0.001) -> None:
        """Schedule a call after about the time a request takes."""
        self._at(least + self.chance.random() * self._latency, call)

    def dies(self, driver: Driver) -> bool:
        """Decide whether a driver dies now and another one starts; sometimes the old one survives."""
        if self.loss == 0.0 or self._drivers >= MOST_DRIVERS or self.chance.random() >= 0.15:
            return False
        lives_on = self.chance.random() < 0.5
        self.world.note(lambda: f"driver {driver.number} {'is replaced but survives' if lives_on else 'dies'}")
        self.world.count("writers together" if lives_on else "writer died")
        self.begin()
        return not lives_on

    def heal(self) -> None:
        """Stop losses, repeats and deaths."""
        self.loss = self.repeats = 0.0

    # --- checks ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the queue holds only published rows, each once, in order within a key."""
        for queue in self._queues(self.node.index).values():
            places = [self.rows.index(body) for body in queue]
            for key in range(KEYS):
                of_key = [place for place in places if key_of(self.rows[place]) == f"k{key}"]
                if of_key != sorted(set(of_key)):
                    self.broken(f"rows of the key k{key} arrive as {[self.rows[place].decode() for place in of_key]}")
            if any(batch_of(body)[1] > self.asked for body in queue):
                self.broken(f"a row of a batch after {self.asked} is in a queue, but no driver has published it")

    def missing(self) -> str | None:
        """Describe unfinished work; None if every row has arrived once and no staged row is left."""
        self.check()
        if self.next_batch < BATCHES:
            return f"batch {self.next_batch} is not published"
        staging = self.node.protocol.staging if self.node.is_up else None
        sink = None if staging is None else staging.sinks.get(self.sink)
        if staging is None or (sink is not None and sink.moving):
            return "rows are moving into their queue"
        arrived = [body for queue in self._queues(-1).values() for body in queue]
        if len(arrived) < len(self.rows):
            return f"{len(self.rows) - len(arrived)} rows have not arrived"
        if sorted(arrived) != sorted(self.rows):
            self.broken(f"the arrived rows are {sorted(arrived)}")
        if sink is not None and sink.parts:
            self.broken(f"after publication, the sink still holds the parts {[*sink.parts]}")
        if sink is not None and self.node.setup.staging.remember < HOURS:
            return f"the sink {self.sink} is not forgotten"
        if sink is None and self.node.setup.staging.remember >= HOURS:
            self.broken(f"the sink {self.sink} is forgotten too early")
        if any(one.parts for one in staging.every):
            return None  # another writer has not finished
        if self.node.store.pending or self.node.protocol.wants_commit:
            return "staged rows are not durably deleted"
        store = self.node.store.durable.load()
        left = [name for name, _ in store.bounds if name.startswith("staging/")]
        if left or staging.bytes_held:
            self.broken(f"after publication, the store still holds {left}, {staging.bytes_held} bytes")
        return None

    def _queues(self, index: int) -> dict[int, list[bytes]]:
        """Return all rows ever in an endpoint's queue, by partition, according to the disk."""
        queues = self.world.ledger.disks[index].queues
        return {
            number: [one.body for one in queue if is_row(one.body) and batch_of(one.body)[0] == self.number]
            for number, queue in queues.items()
        }

    def broken(self, what: str) -> NoReturn:
        """Report a broken promise.

        Raises:
            InvariantViolation: always.
        """
        raise InvariantViolation(INVARIANT, what)


class Driver:
    """One driver of the query. It makes one request at a time and stores nothing on a disk."""

    def __init__(self, writer: Writer, number: int, batch: int) -> None:
        self.number = number
        self._writer = writer
        self._batch = batch
        self._tokens: list[str] = []
        self._task = self._attempt = 0
        self._is_dead = False

    def go_on(self) -> Node | None:
        """Send the next request."""
        self._writer.check()
        if self._is_dead or self._batch == BATCHES:
            return None
        if self._writer.dies(self):
            self._is_dead = True
            return None
        self._attempt += 1
        ask = self._stage if self._task < TASKS else self._publish
        self._send(partial(self._arrived, self._writer.node.run, self._attempt, ask(self._attempt)))
        self._writer.later(partial(self._unanswered, self._attempt), PATIENCE)
        return None

    def _send(self, what: Callable[[], Node | None]) -> None:
        """Carry a request or an answer; it may be lost or arrive after the driver has stopped waiting."""
        writer = self._writer
        if writer.chance.random() >= writer.loss:
            is_late = writer.loss > 0.0 and writer.chance.random() < 0.1
            writer.later(what, PATIENCE if is_late else 0.001)
            if writer.repeats and writer.chance.random() < writer.repeats:
                writer.world.count("requests of writers that came twice")
                writer.later(what)

    def _unanswered(self, attempt: int) -> Node | None:
        return self.go_on() if attempt == self._attempt else None

    # --- at the endpoint ------------------------------------------------------------------------------------------

    def _arrived(self, run: int, attempt: int, do: Callable[[], Node | None]) -> Node | None:
        node = self._writer.node
        if not node.is_up or (run != node.run and self._writer.chance.random() < 0.5):
            return None  # the endpoint is down, or the connection belonged to an earlier run
        try:
            return do()
        except NotStaged as refused:
            self._send(partial(self._answered, attempt, refused))
            return node

    def _stage(self, attempt: int) -> Callable[[], Node | None]:
        """Stage a task's part, which the endpoint stores in two slices, each in its own commit."""
        sink, number = self._writer.sink, self._writer.number
        batch, bodies = Batch(sink, QUERY, self._batch), rows_of(self._batch, self._task, number)
        token = f"{self.number}-{attempt}"
        cut = self._writer.chance.randint(0, len(bodies))
        slices = [bodies[:cut], bodies[cut:]] if 0 < cut < len(bodies) else [bodies]
        rows = [[(INBOX, Record(key_of(body), 0, "urn:row", body, 0.0)) for body in some] for some in slices]
        blocks = [block for some in rows for block in blocks_of_records(some, self._writer.node.now)]

        def stage(start: int, some: list[Block], now: float) -> Node:
            node = self._writer.node
            is_kept = node.protocol.staging.stage(batch, token, start, some[0], now)
            then = partial(self._reply, attempt, token if is_kept else None)
            if is_kept and len(some) > 1:
                then = partial(go_on, start + some[0].rows, some[1:])
            node.protocol.commit.then(then)
            return node

        def go_on(start: int, some: list[Block], now: float) -> None:
            try:
                stage(start, some, now)
            except NotStaged as refused:
                self._writer.node.protocol.staging.discard(sink, [token])
                self._send(partial(self._answered, attempt, refused))

        return lambda: stage(0, blocks, self._writer.node.now)

    def _publish(self, attempt: int) -> Callable[[], Node | None]:
        batch, tokens = Batch(self._writer.sink, QUERY, self._batch), list(self._tokens)
        count = sum(len(rows_of(self._batch, task)) for task in range(TASKS))

        def publish() -> Node:
            node = self._writer.node
            self._writer.asked = max(self._writer.asked, batch.number)
            is_final = batch.number == BATCHES - 1
            is_new = node.protocol.staging.publish(batch, tokens, count, node.now, is_final=is_final).is_new
            self._writer.world.note(lambda: f"driver {self.number} publishes batch {batch.number}: {is_new}")
            self._writer.world.count("batches published" if is_new else "batches published again")
            node.protocol.commit.then(partial(self._reply, attempt, None))
            return node

        return publish

    def _reply(self, attempt: int, said: str | None, now: float) -> None:
        """Answer once the requested change is durable."""
        self._send(partial(self._answered, attempt, said))

    # --- at the driver --------------------------------------------------------------------------------------------

    def _answered(self, attempt: int, said: str | NotStaged | None) -> Node | None:
        """Handle an answer: a token for a staged part, None for a published batch, or the reason of a refusal."""
        writer = self._writer
        if self._is_dead or attempt != self._attempt:
            return None  # an answer to an abandoned attempt, or a duplicate
        self._attempt += 1
        if isinstance(said, NotStaged):
            if said.why not in (Why.TOKEN, Why.UNKNOWN):
                writer.broken(f"batch {self._batch} is refused: {said}")
            writer.world.count("batches staged again")
            self._give_up()
        elif said is not None:
            self._tokens.append(said)
            self._task += 1
        elif not writer.dies(self):
            writer.next_batch = max(writer.next_batch, self._batch + 1)
            self._batch, self._task, self._tokens = self._batch + 1, 0, []
        else:
            self._is_dead = True
            return None
        return self.go_on()

    def _give_up(self) -> None:
        """Discard the staged parts with one request, which may be lost, and start the batch again."""
        tokens, node, sink = self._tokens, self._writer.node, self._writer.sink

        def discard() -> Node | None:
            if not node.is_up:
                return None
            node.protocol.staging.discard(sink, tokens)
            return node

        self._send(discard)
        self._task, self._tokens = 0, []


__all__ = ["BATCHES", "Writer"]
