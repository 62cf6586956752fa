"""The collector that turns what happens into a journal's events (``journal_columns``).

The endpoint notifies the collector of durable batches and of everything it sends. The collector never asks the protocol
for its state, so a reader of the journal can check whether the protocol was right. It runs in the loop with every
message, so it only gathers; ``journal_files`` makes rows later, in another thread. Knows no file and no clock but the
given one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from holdfast.core.events import (
    Acknowledged,
    Discarded,
    Effect,
    FaultReceived,
    Handle,
    Incident,
    NotQueued,
    Respond,
    Stopped,
    Transmit,
)
from holdfast.core.messages import Envelope, Fault, SequenceAcknowledgement
from holdfast.core.origin import without_secrets
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.cursors import HANDLER, OUTBOUND
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch, Snapshot, State
from holdfast.core.rm_destination.destination import TIME_IS_UP
from holdfast.core.sending.outboxes.records import stored_outboxes
from holdfast.core.staged_blocks import Run
from holdfast.endpoint.journal.columns import LIFE, RECOVERED, SINK_PEER

Row = tuple[Any, ...]
Pairs = tuple[tuple[int, int], ...]

APPENDED, ACKNOWLEDGED, ROWS = "a", "k", "r"
"""What an entry is: ``(APPENDED, at, queues, partitions, offsets, [(sequence, number, received_at)])``,
``(ACKNOWLEDGED, at, [(sequence, number, count)])``, or ``(ROWS, [(at, event, sequence, ...)])``."""

_STAMP = attrgetter("sequence", "message_number", "received_at")
_LONGEST_DETAIL = 400
_TOLD_OTHERWISE = frozenset(
    {"sequence.created", "sequence.terminated", "fault.raised", "dead_letter.added", "sequence.incomplete"}
)
_OF_MESSAGES = {"message.duplicate_dropped": "duplicate", "message.not_held": "not taken"}


class Collector:
    """Gathers events until the writer takes them.

    Args:
        clock: Returns the current time.
        policy: The policy of Sequences that are granted from now on; it may be replaced later.
    """

    def __init__(self, clock: Callable[[], float], policy: DestinationPolicy) -> None:
        self.policy = policy
        self.run = 1
        """Which run of its directory this is: clocks may be set back between two."""
        self.broken = ""
        """Why it records nothing; "" if it works."""
        self.count = 0
        """Events since it was made, those taken included."""
        self.entries: list[tuple[Any, ...]] = []
        self._clock = clock
        self._rows: list[Row] | None = None
        self._said: list[SequenceAcknowledgement] = []
        self._said_at = 0.0
        self._told: dict[str, int | Pairs] = {}
        """Sequence -> what this run acknowledged: the highest number, if every number up to it is acknowledged."""
        self._states: dict[str, State] = {}
        self._held: dict[str, dict[int, float | None]] = {}
        """Sequence -> its held messages, and when each arrived; None: before this run, the time is unknown."""
        self._unqueued: dict[str, dict[int, str]] = {}
        """Sequence -> what of it goes into no queue and is not durably accepted yet, and why."""
        self._done: dict[tuple[str, int], Pairs] = {}
        self._homes: dict[str, tuple[str | None, int | None]] = {}
        self._promised: dict[str, str] = {}
        self._recovered: str | None = None
        self._addresses: dict[str, str | None] = {}
        """Outbox -> where it sends to."""
        self.of_effect: dict[type[Any], Callable[[Any], None]] = {
            Respond: self._respond,
            Transmit: self._transmitted,
            Acknowledged: self._arrived,
            Handle: self._handed_over,
            Incident: self._incident,
            NotQueued: self._not_queued,
            FaultReceived: self._fault_received,
            Discarded: self._discarded,
            Stopped: self._stopped,
        }
        """Kind of effect -> its recorder; other effects report only durable facts, which are recorded already."""

    # --- what is durable ------------------------------------------------------------------------------------------

    def durable(self, batch: Batch) -> None:
        """Record the effects of a durable batch, before the answers that waited for it leave."""
        at = self._clock()
        if self._said:
            self._tell_said()
        if batch.appends:
            queues, partitions, offsets, records = zip(*batch.appends, strict=True)
            self._put((APPENDED, at, queues, partitions, offsets, list(map(_STAMP, records))), len(offsets))
        for run in batch.runs:
            self._moved_rows(run, at)
        if batch.holds or batch.releases or batch.drops:
            self._holding(batch, at)
        if self._unqueued:
            self._tell_unqueued(batch.sequences, at)
        states = self._states
        for name, state in batch.sequences.items():
            if state is None:
                self._forgotten(name, at)
                continue
            if name not in states or states[name]["state"] != state["state"]:
                self._moved(name, state, batch, at)
            states[name] = state
        if batch.cursors:
            self._cursors(batch.cursors, at)
        for (queue, partition), offset in batch.trims.items():
            self._row(at, "deleted", queue=queue, partition=partition, offset=offset)
        for queue, _ in batch.deletes:
            # With the cursor of its outbox: ``replies/KEY``.
            self._addresses.pop(queue.partition("/")[2], None)

    def _moved_rows(self, run: Run, at: float) -> None:
        head, where = (at, "delivered", run.sequence), (1, run.queue, run.partition)
        # Each event names the sink, because no event of an earlier file need be left that does.
        tail = (run.received_at, SINK_PEER + run.sink, None, None, None)
        rows = [(*head, number, *where, offset, *tail) for offset, number in enumerate(run.numbers, run.offset)]
        self._put((ROWS, rows), len(rows))

    def _holding(self, batch: Batch, at: float) -> None:
        for sequence, number, record in batch.holds:
            self._held.setdefault(sequence, {})[number] = record.received_at
            self._row(at, "held", sequence, number, 1, since=record.received_at)
        for sequence, number, queue, partition, offset, _ in batch.releases:
            since = self._held.get(sequence, {}).get(number)
            self._row(at, "delivered", sequence, number, 1, queue, partition, offset, since)
        for sequence, number, *_ in batch.releases:  # into several queues, maybe
            self._held.get(sequence, {}).pop(number, None)
        for sequence, number in batch.drops:
            self._held.get(sequence, {}).pop(number, None)
            self._row(at, "discarded", sequence, number, 1)

    def _tell_unqueued(self, saved: Mapping[str, State | None], at: float) -> None:
        for name in saved.keys() & self._unqueued.keys():
            state, waiting = saved[name], self._unqueued.pop(name)
            accepted = AcknowledgementRanges.from_state(state["accepted"]) if state is not None else None
            for number, why in waiting.items():
                if accepted is None or number in accepted:
                    self._row(at, "not queued", name, number, 1, detail=why)
                else:
                    self._unqueued.setdefault(name, {})[number] = why

    def _moved(self, name: str, state: State, batch: Batch, at: float) -> None:
        known = self._states.get(name)
        if state["role"] == "source":
            if known is None:
                self._homes[name] = batch.homes.get(name, (None, None))
            if state["identifier"] is not None and (known is None or known["identifier"] is None):
                queue, partition = self._homes[name]
                where: dict[str, Any] = {
                    "queue": queue,
                    "partition": partition,
                    "offset": state["start"],
                    "key": state["outbox"],
                }
                self._row(at, "created", state["identifier"], **where, peer=self._address(state))
            return
        if known is None:
            detail = self._promised[name] = _promise(self.policy, state)
            self._row(at, "created", name, partition=state["partition"], peer=_peer(state), detail=detail)
        event = LIFE.get(state["state"])
        if event is None:
            return
        fault = state.get("last_fault", "")
        if event == "terminated" and fault == TIME_IS_UP:
            event = "expired"
        missing = state.get("gaps", ())
        said = [f"missing {AcknowledgementRanges.from_state(list(missing))}"] if missing else []
        self._row(at, event, name, detail=_short(", ".join([*said, *([fault] if fault else [])])) or None)

    def _address(self, state: State) -> str | None:
        address: str | None = state["to"] or self._addresses.get(state["outbox"])
        return address

    def _forgotten(self, name: str, at: float) -> None:
        known = self._states.pop(name, None)
        if known is None:
            return
        is_source = known["role"] == "source"
        identifier = known["identifier"]
        self._told.pop(identifier, None)
        self._held.pop(identifier, None)
        self._homes.pop(name, None)
        self._promised.pop(name, None)
        key = known["outbox"] if is_source else None
        if identifier is not None:
            self._row(at, "terminated" if is_source else "forgotten", identifier, key=key)

    def _cursors(self, cursors: Mapping[tuple[str, int, str], State | None], at: float) -> None:
        for (queue, partition, name), state in cursors.items():
            if state is None:
                self._addresses.pop(name.removeprefix(OUTBOUND), None)
            elif name == HANDLER:
                self._handled(queue, partition, _pairs(state["done"]), at)
            elif name.startswith(OUTBOUND):
                self._addresses[name.removeprefix(OUTBOUND)] = state.get("to")
            elif "/" not in name and "offset" in state:
                self._row(at, "read", queue=queue, partition=partition, offset=state["offset"], peer=name)

    def _handled(self, queue: str, partition: int, done: Pairs, at: float) -> None:
        before = self._done.get((queue, partition), ())
        self._done[queue, partition] = done
        if _news(done, before):  # work that was done is undone
            floor = done[0][1] if done and done[0][0] == 1 else 0
            self._row(at, "rewound", queue=queue, partition=partition, offset=floor)
            before = ((1, floor),) if floor else ()
        for lower, upper in _news(before, done):
            self._row(at, "handled", None, None, upper - lower + 1, queue, partition, lower - 1)

    # --- what leaves ----------------------------------------------------------------------------------------------

    def told(self, effect: Effect) -> None:
        """The core tells something, or wants something sent or handled; for who need not be quick about it."""
        make = self.of_effect.get(type(effect))
        if make is not None:
            make(effect)

    def _respond(self, effect: Respond) -> None:
        envelope = effect.envelope
        if envelope is None:
            return
        self._answers(envelope)
        if envelope.sequence is not None:
            one = envelope.sequence
            self._row(self._clock(), "replied", one.identifier, one.message_number, 1)

    def _answers(self, envelope: Envelope) -> None:
        if envelope.acknowledgements:
            if not self._said:
                self._said_at = self._clock()
            self._said += envelope.acknowledgements
        if envelope.fault is not None:
            self._fault("fault sent", envelope.fault)

    def _transmitted(self, effect: Transmit) -> None:
        envelope = effect.envelope
        self._answers(envelope)
        if not effect.number or envelope.sequence is None:
            return
        at, identifier, number, attempt = self._clock(), envelope.sequence.identifier, effect.number, effect.attempt
        # Consecutive numbers are one row: a window of them would be as many.
        if attempt == 1 and self._rows:
            last = self._rows[-1]
            if last[1] == "transmitted" and last[2] == identifier and last[3] + last[4] == number:
                self._rows[-1] = (at, "transmitted", identifier, last[3], last[4] + 1, *last[5:])
                return
        self._row(at, "transmitted" if attempt == 1 else "retransmitted", identifier, number, 1, attempt=attempt)

    def _arrived(self, effect: Acknowledged) -> None:
        count = effect.last - effect.first + 1
        self._row(
            self._clock(), "arrived", effect.identifier, effect.number, count, offset=effect.first, key=effect.key
        )

    def _handed_over(self, effect: Handle) -> None:
        record = effect.record
        where = (effect.queue, effect.partition, effect.offset)
        self._row(
            self._clock(),
            "handed over",
            record.sequence or None,
            record.message_number or None,
            1,
            *where,
            attempt=effect.attempt,
        )

    def _incident(self, effect: Incident) -> None:
        sequence, number = effect.identifier or None, effect.number or None
        event = _OF_MESSAGES.get(effect.name)
        if event is not None:
            self._row(self._clock(), event, sequence, number, 1)
        elif effect.level != "debug" and effect.name not in _TOLD_OTHERWISE:
            detail = effect.name
            if effect.detail:
                detail += " " + json.dumps(effect.detail, default=str, ensure_ascii=False)
            self._row(self._clock(), "incident", sequence, number, detail=_short(detail))

    def _not_queued(self, effect: NotQueued) -> None:
        """Record a message that enters no queue. The event waits until its acceptance is durable."""
        self._unqueued.setdefault(effect.identifier, {})[effect.number] = effect.why
        state = self._states.get(effect.identifier)
        if state is not None and effect.number in AcknowledgementRanges.from_state(state["accepted"]):
            self._tell_unqueued({effect.identifier: state}, self._clock())

    def _fault_received(self, effect: FaultReceived) -> None:
        self._fault("fault received", effect.fault)

    def _discarded(self, effect: Discarded) -> None:
        self._row(self._clock(), "given up", None, None, 1, offset=effect.offset, key=effect.key)

    def _stopped(self, effect: Stopped) -> None:
        self._row(self._clock(), "sending.stopped", key=effect.key, detail=_short(f"{effect.code}: {effect.reason}"))

    def _fault(self, event: str, fault: Fault) -> None:
        detail = _short(f"{fault.code}: {fault.reason}")
        self._row(self._clock(), event, fault.identifier or None, detail=detail)

    def _tell_said(self) -> None:
        rows: list[tuple[str, int, int]] = []
        told = self._told
        newest = {one.identifier: one.ranges for one in self._said if one.ranges}  # of each Sequence, the last said
        for identifier, ranges in newest.items():
            before = told.get(identifier, 0)
            if type(before) is int and len(ranges) == 1 and ranges[0][0] == 1:  # as nearly always
                upper = ranges[0][1]
                if upper > before:
                    rows.append((identifier, before + 1, upper - before))
                    told[identifier] = upper
            else:
                known = before if isinstance(before, tuple) else ((1, before),) if before else ()
                rows += [(identifier, lower, upper - lower + 1) for lower, upper in _news(known, ranges)]
                told[identifier] = ranges[0][1] if len(ranges) == 1 and ranges[0][0] == 1 else ranges
        self._said.clear()
        if rows:
            self._put((ACKNOWLEDGED, self._said_at, rows), len(rows))

    # --- where it stands ------------------------------------------------------------------------------------------

    def started(self, version: str) -> None:
        """Record the start of a process."""
        self._row(self._clock(), "started", attempt=self.run, detail=version)

    def ended(self, queues: Iterable[Queue]) -> None:
        """Record the orderly end of the run, after the state that is durable then.

        If another program writes to the store before the next run, that run lists more.
        """
        self.stand(queues)
        self._row(self._clock(), "stopped")

    def lost(self, count: int, why: str) -> None:
        """Record that ``count`` events were not written. Call :meth:`stand` next: it records the resulting state."""
        self._row(self._clock(), "gap", count=count, detail=_short(why))

    def recover(self, snapshot: Snapshot) -> None:
        """Restore the state from the store; :meth:`stand` records it."""
        self._states = dict(snapshot.sequences)
        self._promised = {name: _promise(self.policy, state) for name, state in self._states.items()}
        self._homes = {name: snapshot.homes.get(name, (None, None)) for name in self._states}
        self._addresses = {outbox.key: outbox.about.get("to") for outbox in stored_outboxes(snapshot)}
        self._held = {name: dict.fromkeys(numbers) for name, numbers in snapshot.held.items()}
        for (queue, partition, name), state in snapshot.cursors.items():
            if name == HANDLER and _is_done(state):
                self._done[queue, partition] = _pairs(state["done"])
        self._recovered = RECOVERED
        self._row(self._clock(), "recovered", count=len(self._states))

    def stand(self, queues: Iterable[Queue]) -> None:
        """Record the durable state: at the start, at the end of a run, and at the start of each file.

        Each file then contains the state that the files before it left.
        """
        if self._said:
            self._tell_said()
        at = self._clock()
        for queue in queues:
            for partition, one in enumerate(queue.partitions):
                where: dict[str, Any] = {"queue": queue.name, "partition": partition, "offset": one.durable_end}
                self._row(at, "queue stands", **where, attempt=self.run, detail=queue.description.epoch)
        before, self._recovered = self._recovered, None
        for (name, partition), done in self._done.items():
            for lower, upper in done:
                where = {"count": upper - lower + 1, "queue": name, "partition": partition, "offset": lower - 1}
                self._row(at, "handled stands", **where, detail=before)
        for name, state in self._states.items():
            if state["identifier"] is not None:
                self._stand_one(name, state, at)

    def _stand_one(self, name: str, state: State, at: float) -> None:
        identifier = state["identifier"]
        if state["role"] == "source":
            queue, partition = self._homes.get(name, (None, None))
            peer, key = self._address(state), state["outbox"]
            for lower, upper in _pairs(state["acknowledged"]) or ((1, 0),):
                where: dict[str, Any] = {"queue": queue, "partition": partition, "offset": state["start"] + lower - 1}
                self._row(at, "stands", identifier, lower, upper - lower + 1, **where, peer=peer, key=key)
            return
        detail = f"{state['state']}, {self._promised[name]}"
        for lower, upper in _pairs(state["accepted"]) or ((1, 0),):
            self._row(at, "stands", identifier, lower, upper - lower + 1, peer=_peer(state), detail=detail)
        for number in sorted(self._held.get(identifier, ())):
            self._row(at, "stands", identifier, number, 1, detail="held")

    # --- what is gathered -----------------------------------------------------------------------------------------

    def _put(self, entry: tuple[Any, ...], count: int) -> None:
        self.entries.append(entry)
        self.count += count
        self._rows = None

    def _row(
        self,
        at: float,
        event: str,
        sequence: str | None = None,
        number: int | None = None,
        count: int | None = None,
        queue: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: float | None = None,
        peer: str | None = None,
        key: str | None = None,
        attempt: int | None = None,
        detail: str | None = None,
    ) -> None:
        if self._rows is None:
            self._rows = []
            self.entries.append((ROWS, self._rows))
        self.count += 1
        if key is not None:
            key = without_secrets(key)
        row = (at, event, sequence, number, count, queue, partition, offset, since, peer, key, attempt, detail)
        self._rows.append(row)

    def take(self) -> list[tuple[Any, ...]]:
        """Return the entries collected since the last call."""
        if self._said:
            self._tell_said()
        entries, self.entries, self._rows = self.entries, [], None
        return entries


def _peer(state: State) -> str:
    peer: str = state.get("party") or state["acks_to"][0]
    return without_secrets(peer)


def _short(text: str) -> str:
    text = without_secrets(text)
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"


def _promise(policy: DestinationPolicy, state: State) -> str:
    """Return the assurance of a Sequence, and its IncompleteSequenceBehavior."""
    return f"{policy.assurance}, {state['behavior']}"


def _is_done(state: State) -> bool:
    """Whether it is a place of handlers: a store may hold what cannot be understood, which is set aside."""
    done = state.get("done")
    return isinstance(done, list) and len(done) % 2 == 0 and all(type(one) is int for one in done)


def _pairs(state: list[Any]) -> Pairs:
    return AcknowledgementRanges.from_state(state).as_pairs()


def _news(before: Pairs, after: Pairs) -> list[tuple[int, int]]:
    """Return the ranges that are in ``after`` and not in ``before``; both are ascending."""
    if not before:
        return list(after)
    if len(before) == len(after) == 1 and before[0][0] == after[0][0]:
        upper = before[0][1]
        return [(upper + 1, after[0][1])] if after[0][1] > upper else []
    return list(AcknowledgementRanges(after).outside(AcknowledgementRanges(before)))
