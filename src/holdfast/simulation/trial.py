"""One Sequence over one network, from CreateSequence to its end: its cost and its duration.

The simulator checks guarantees in worlds with many faults. A trial measures how well a policy works, so it omits
crashes, invariants and a store, but uses the same core. A trial and a seed give the same outcome on every machine.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from holdfast.core.events import BackChannel, Delivered, Effect, Ended, ReadWanted, Respond, Stopped, Transmit
from holdfast.core.messages import ANONYMOUS, Envelope
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.settings import SecondsOrZero, Within, check_settings

ADDRESS = "http://destination.test/"
EXCHANGE_TIMEOUT = 60.0
"""Seconds after which a source stops waiting for the answer to one request; equal to WCF's send timeout."""
LONGEST = 100_000.0
"""Virtual seconds after which a trial stops unfinished."""
BODY = b"<m/>"


@dataclass(frozen=True, slots=True)
class Link:
    """A network, and the destination behind it.

    Args:
        loss: Share of requests that are lost, and of answers, 0 to 1; each loss is independent and silent.
        delay: Seconds one way, without queueing.
        spread: Up to this share of ``delay`` is added at random, so that messages overtake each other.
        capacity: Requests per second that get through; faster ones wait in line.
        line: Requests that may wait in line; the network drops the next one.
        sync: Seconds until a side's write is durable.

    Raises:
        ConfigurationError: for a number out of range.
    """

    loss: Annotated[float, Within(0, 0.95)] = 0.0
    delay: SecondsOrZero = 0.05
    spread: Annotated[float, Within(0)] = 0.5
    capacity: float = 1000.0
    line: int = 64
    sync: SecondsOrZero = 0.002

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial's parameters.

    Args:
        source: The policy of the RM Source.
        destination: The policy of the RM Destination; None: the default.
        interval: Seconds between two submissions; 0: all at once.
        versions: Protocol versions of both sides.

    Raises:
        ConfigurationError: for a number out of range.
    """

    link: Link = field(default_factory=Link)
    source: SourcePolicy = field(default_factory=SourcePolicy)
    destination: DestinationPolicy | None = None
    messages: int = 10
    interval: SecondsOrZero = 0.0
    versions: Versions = field(default_factory=Versions)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(slots=True)
class Outcome:
    """The result of one trial.

    Args:
        seconds: From the first submission to the last delivery.
        latencies: For each delivered message, in order: seconds from submission to delivery.
        transmissions: Number of transmissions of messages, retransmissions included.
        requests: Number of all requests of the source.
        dropped: Requests lost because the line was full.
        is_complete: Whether every message was delivered and acknowledged.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    transmissions: int = 0
    requests: int = 0
    dropped: int = 0
    is_complete: bool = False


@dataclass(slots=True, eq=False)
class _Exchange:
    """One request in transit; also the handle that the destination answers."""

    sent: Transmit
    is_over: bool = False


class _Kept:
    """A side's stored records, in memory. Only an outbox with more messages than its buffer reads them."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], list[Record]] = {}

    def commit(self, batch: Batch) -> None:
        for queue, partition, _offset, record in batch.appends:
            self._queues.setdefault((queue, partition), []).append(record)

    def read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        records = self._queues.get((queue, partition), [])
        return [(offset, records[offset]) for offset in range(start, min(end, len(records)))]


class _Side:
    """The core and a minimal shell for it."""

    def __init__(
        self,
        run: _Run,
        name: str,
        perform: Callable[[Effect], None],
        *,
        policies: Policies,
        local: str = ANONYMOUS,
    ) -> None:
        self._run = run
        self._perform = perform
        self._kept = _Kept()
        self._is_writing = False
        self._timer = 0.0
        self._names = 0
        self._name = name
        self.protocol = RMProtocol(
            Queue("inbox"),
            Environment(self._kept.read, self._identifier, run.chance, local=local),
            policies=policies,
        )

    def _identifier(self) -> str:
        self._names += 1
        return f"urn:{self._name}:{self._names}"

    def settle(self) -> None:
        """Perform the core's effects, as required after every input."""
        protocol, run = self.protocol, self._run
        protocol.outbound.pump(run.now)
        while True:
            for effect in protocol.take_effects():
                if type(effect) is ReadWanted:
                    found = self._kept.read(effect.queue, effect.partition, effect.start, effect.end)
                    protocol.records_read(effect, found, run.now)
                else:
                    self._perform(effect)
            if protocol.wants_commit and not self._is_writing:
                self._is_writing = True
                run.at(run.trial.link.sync, partial(self._durable, protocol.take_batch()))
            if protocol.effects:
                continue
            due = protocol.deadline()
            if due is None or due > run.now:
                break
            protocol.pump(run.now)
        if due is not None and (self._timer <= run.now or due < self._timer):
            self._timer = due
            run.at(due - run.now, self._pump)

    def _durable(self, batch: Batch) -> None:
        self._is_writing = False
        self._kept.commit(batch)
        self.protocol.batch_durable(self._run.now)
        self.settle()

    def _pump(self) -> None:
        self.protocol.pump(self._run.now)
        self.settle()


class _Run:
    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial = trial
        self.now = 0.0
        self.chance = random.Random(seed).random
        self.outcome = Outcome()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._is_over = False
        self._line_free_at = 0.0
        self._submitted: list[float] = []
        self._source = _Side(self, "source", self._of_source, policies=Policies(source=trial.source))
        policies = Policies() if trial.destination is None else Policies(trial.destination)
        self._destination = _Side(self, "destination", self._of_destination, policies=policies, local=ADDRESS)
        self._outbox: Outbox = self._source.protocol.outbound.open("", ADDRESS, [(trial.versions, False)])

    def at(self, delay: float, event: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay, self._scheduled, event))

    def run(self) -> Outcome:
        trial, outcome = self.trial, self.outcome
        if trial.interval:
            for number in range(trial.messages):
                self.at(number * trial.interval, self._submit)
        else:
            for _ in range(trial.messages):
                self._put()
            self._source.settle()
        events = self._events
        while events and not self._is_over:
            self.now, _, event = heapq.heappop(events)
            if self.now > LONGEST:
                break
            event()
        outcome.is_complete = self._outbox.records.waiting == 0 and len(outcome.latencies) == trial.messages
        return outcome

    # --- the source -----------------------------------------------------------------------------------------------

    def _put(self) -> None:
        self._submitted.append(self.now)
        record = Record("", 0, "urn:trial", BODY, self.now, f"urn:m:{len(self._submitted)}", ADDRESS)
        self._source.protocol.submit(self._outbox, record, self.now)
        if len(self._submitted) == self.trial.messages:
            self._outbox.want_end(self.now)

    def _submit(self) -> None:
        self._put()
        self._source.settle()

    def _of_source(self, effect: Effect) -> None:
        kind = type(effect)
        if kind is Transmit:
            self._transmit(effect)  # type: ignore[arg-type]
        elif kind is Ended or kind is Stopped:
            self._is_over = True

    def _transmit(self, sent: Transmit) -> None:
        outcome, link = self.outcome, self.trial.link
        outcome.requests += 1
        outcome.transmissions += sent.number > 0
        exchange = _Exchange(sent)
        self.at(EXCHANGE_TIMEOUT, partial(self._fail, exchange))
        # The network is one server with a queue: a request waits until the earlier ones are through.
        begins = max(self._line_free_at, self.now)
        if (begins - self.now) * link.capacity >= link.line:
            outcome.dropped += 1
            return
        self._line_free_at = begins + 1.0 / link.capacity
        if self.chance() >= link.loss:
            self.at(self._line_free_at - self.now + self._delay(), partial(self._arrive, exchange))

    def _delay(self) -> float:
        link = self.trial.link
        return link.delay * (1.0 + link.spread * self.chance())

    def _fail(self, exchange: _Exchange) -> None:
        if not exchange.is_over:
            exchange.is_over = True
            self._source.protocol.failed(exchange.sent, self.now, "no answer in time")
            self._source.settle()

    def _answer(self, exchange: _Exchange, envelope: Envelope | None) -> None:
        if not exchange.is_over:
            exchange.is_over = True
            self._source.protocol.received(exchange.sent, envelope, self.now)
            self._source.settle()

    # --- the destination ------------------------------------------------------------------------------------------

    def _arrive(self, exchange: _Exchange) -> None:
        self._destination.protocol.receive(replace(exchange.sent.envelope), BackChannel(exchange), self.now)
        self._destination.settle()

    def _of_destination(self, effect: Effect) -> None:
        kind = type(effect)
        if kind is Respond:
            assert isinstance(effect, Respond)
            exchange = effect.back_channel
            assert isinstance(exchange, _Exchange)
            if self.chance() >= self.trial.link.loss:
                self.at(self._delay(), partial(self._answer, exchange, effect.envelope))
        elif kind is Delivered:
            assert isinstance(effect, Delivered)
            self.outcome.latencies.append(self.now - self._submitted[effect.offset])
            self.outcome.seconds = self.now


def run(trial: Trial, seed: int) -> Outcome:
    """Run one trial."""
    return _Run(trial, seed).run()
