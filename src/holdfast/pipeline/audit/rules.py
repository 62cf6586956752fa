"""Rules that an event journal must not violate.

The deciders read the events of one Sequence, or of one partition of a queue, in the order in which they happened. This
module is plain Python: Spark only groups the events.

A rule compares what the broker promised with what was durable. A hole in the journal never causes a violation: after a
hole, and at the start of a run, the deciders accept the listed state as if events had reported it. If a file begins
within a run without a hole, or a run ended in order, they do not: an event must have reported every number listed there
(docs/internals/journal.md). A number without such an event stays untrusted in later runs. The deciders store ranges, so
memory grows with gaps, not with messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.endpoint.journal.columns import LIFE, RECOVERED
from holdfast.pipeline.audit.events import (
    AT_MOST_ONCE,
    IN,
    IN_ORDER,
    Found,
    Latencies,
    SequenceRow,
    Told,
    Violation,
)
from holdfast.pipeline.audit.gaps import Gaps

RULES = {
    "acknowledged, not delivered": "It was acknowledged, but no event puts it into a queue, holds it or discards it.",
    "acknowledged, never released": "It was acknowledged and held, but when its Sequence was forgotten, it had not "
    "been released or discarded.",
    "acknowledged too early": "It was acknowledged before it was durable.",
    "acknowledged, then gone": "It was acknowledged, but a later file does not list it as accepted.",
    "delivered twice": "The same message of a Sequence was put into a queue twice.",
    "delivered out of order": "Its Sequence is in order, but it was put into its queue after a later message.",
    "offset used twice": "Two records have the same offset of a queue.",
    "offset skipped": "A partition has records after an offset that has no record.",
    "delivered, then gone": "It was durable in a queue, but the queue of a later run is shorter.",
    "handled again": "It was handed to its handler after the handler had durably completed it; or, at most once, a "
    "second time.",
    "handled out of order": "Its Sequence is in order, but it was handed to its handler after a later message.",
}
"""Rule -> the condition that violates it."""

Ranges = AcknowledgementRanges


@dataclass(slots=True)
class _StandingList:
    """State of one Sequence listed at the start of a file, in consecutive rows.

    Args:
        said_before: Numbers acknowledged before the list.
        is_first: Whether the list is the journal's first record of the Sequence in this part of its run.
        last: Ordinal of the last event before a hole.
    """

    said_before: Ranges
    is_first: bool
    last: int
    ordinal: int = -1
    known: Ranges = field(default_factory=Ranges)


class OfInbound:
    """Check one inbound Sequence and count the outcomes of its messages.

    Args:
        name: Identifier of the Sequence.
        latencies: Collects the latencies of messages with an arrival time that only this class knows.

    Attributes:
        found: Findings so far; the caller removes them.
    """

    def __init__(self, name: str, latencies: Latencies) -> None:
        self.found: list[Found] = []
        self._name = name
        self._latencies = latencies
        self._at_most_once = self._in_order = self._is_over = self._is_forgotten = self._restored = False
        self._peer: str | None = None
        self._assurance: str | None = None
        self._state: str | None = None
        self._begun: int | None = None
        self._ended: int | None = None
        self._duplicates = 0
        self._discards, self._not_queues = Ranges(), Ranges()
        self._gaps = Gaps(IN, name, self.found)
        self._is_sink = False
        """Whether a sink numbers its rows when it publishes them, so they have no gaps, whatever the journal lacks."""
        self._said, self._placed = Ranges(), self._gaps.there
        self._waited, self._gone, self._standing = Ranges(), Ranges(), Ranges()
        self._dead = Ranges()
        self._untold = Ranges()
        """Numbers that a complete part of the journal lists without an event that reported them."""
        self._waits: dict[int, tuple[int, int | None]] = {}
        self._delivered: dict[tuple[str | None, str | None], Ranges] = defaultdict(Ranges)
        """By queue. A restored store has one set per epoch, because lost messages arrive again."""
        self._tops: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._handed: dict[tuple[Any, ...], Ranges] = defaultdict(Ranges)
        self._reported: dict[str, Ranges] = defaultdict(Ranges)
        self._standing_list: _StandingList | None = None
        self._part: tuple[str, int] | None = None
        self._begin_part()
        self._of: Mapping[str, Callable[[Told], None]] = {
            "created": self._created,
            "stands": self._stands,
            "delivered": self._delivery,
            "held": self._held,
            "discarded": self._discarded,
            "not queued": self._not_queued,
            "given up": self._given_up,
            "acknowledged": self._acknowledged,
            "handed over": self._handed_over,
            "duplicate": self._duplicate,
            "closed": self._closed,
            "terminated": self._over,
            "expired": self._over,
            "forgotten": self._forgot,
        }

    def _begin_part(self) -> None:
        """Start a part: events of one run without a hole."""
        self._is_known = False
        self._stood = Ranges()
        self._here, self._early = Ranges(), Ranges()
        self._last_handed: dict[str | None, int] = {}

    def _end_part(self) -> None:
        """End a part at the end of a run or at a hole: acknowledged numbers must be durable by now."""
        self._end_standing_list()
        if self._is_known:
            self._missing("acknowledged, not delivered", self._early)

    def take(self, told: Told) -> None:
        if (told.run, told.last) != self._part:
            self._end_part()
            self._part = told.run, told.last
            self._begin_part()
        self._restored |= told.restored
        if told.event != "stands":
            self._end_standing_list()
        self._of[told.event](told)

    def end(self) -> None:
        """Finish after the last event and report missing numbers."""
        self._end_part()
        # A Sequence that ended releases its held messages block by block, and is forgotten only after the last one.
        if self._is_forgotten:
            stuck = Ranges(self._waited.outside(self._gone))
            unsaid = Ranges(stuck.outside(self._said))
            self._missing("acknowledged, never released", Ranges(stuck.outside(unsaid)))
        self._gaps.end()
        self.found.append(self._row())

    def _row(self) -> SequenceRow:
        there, delivered = self._placed, Ranges()
        for ranges in self._delivered.values():
            delivered.update(ranges)
        held = sum(upper - lower + 1 for lower, upper in self._waited.outside(self._gone))
        return SequenceRow(
            role=IN,
            sequence=self._name,
            peer=self._peer,
            key=None,
            assurance=self._assurance,
            state=self._state,
            begun=self._begun,
            ended=self._ended,
            messages=there.count,
            highest=there.highest,
            missing=0 if self._is_sink else there.highest - there.count,
            delivered=delivered.count,
            held=held,
            discarded=self._discards.count,
            not_queued=self._not_queues.count,
            acknowledged=self._said.count,
            duplicates=self._duplicates,
            transmitted=0,
            retransmitted=0,
        )

    def _missing(self, rule: str, numbers: Ranges) -> None:
        reported = self._reported[rule]
        for lower, upper in list(numbers.outside(reported)):
            reported.add_range(lower, upper)
            self.found.append(Violation(rule, self._name, lower, upper - lower + 1))

    def _end_standing_list(self) -> None:
        """End the list at the start of a file; the journal may break off after its last row."""
        listed, self._standing_list = self._standing_list, None
        if listed is None:
            return
        # Listed numbers that are not held count as released: the file with the event may have been deleted.
        self._gone.update(self._standing)
        self._standing = Ranges()
        if listed.ordinal < listed.last and not self._restored:
            self._missing("acknowledged, then gone", Ranges(listed.said_before.outside(listed.known)))

    def _promised(self, told: Told, promised: str) -> None:
        self._in_order |= IN_ORDER in promised
        self._peer = self._peer or told.peer
        if not self._at_most_once:
            self._at_most_once = AT_MOST_ONCE in promised
            self._assurance = promised.partition(",")[0] or self._assurance

    def _created(self, told: Told) -> None:
        self._promised(told, told.detail or "")
        self._begun = told.at
        self._state = told.event
        self._is_known = True

    def _closed(self, told: Told) -> None:
        self._state = told.event

    def _over(self, told: Told) -> None:
        self._is_over = True
        self._state, self._ended = told.event, told.at

    def _forgot(self, told: Told) -> None:
        self._is_forgotten = True

    def _duplicate(self, told: Told) -> None:
        self._duplicates += 1

    def _stands(self, told: Told) -> None:
        number, count = told.number, told.count
        is_held = told.detail == "held"
        if not is_held:
            state, _, promised = (told.detail or "").partition(", ")
            self._promised(told, promised)
            if not self._is_over:
                self._state = LIFE.get(state, state) or self._state
        listed = self._standing_list
        if listed is None or told.ordinal != listed.ordinal + 1:
            self._end_standing_list()
            listed = self._standing_list = _StandingList(self._said.copy(), not self._is_known, told.last)
            self._is_known = True
        listed.ordinal = told.ordinal
        if not number or not count:
            return
        upper = number + count - 1
        self._gaps.come_together(number, upper, told.at)
        listed.known.add_range(number, upper)
        if not listed.is_first:  # trust only numbers that separate events reported
            if not _is_inside(number, upper, self._here):
                self._untold.update(Ranges([(number, upper)]).outside(self._here))
            return
        believed = Ranges([(number, upper)])
        if len(self._untold) and not self._restored:
            believed = Ranges(believed.outside(self._untold))
        self._here.update(believed)
        if is_held:
            # An earlier row listed the surrounding range: these numbers are only held.
            self._waited.add_range(number, upper)
            for one in range(number, upper + 1):
                self._standing.discard(one)
                self._stood.discard(one)
        else:
            self._standing.update(believed)
            self._stood.update(believed)

    def _put(self, told: Told, number: int) -> None:
        """Record a durable message; an acknowledgement before this, in the same run, came too early."""
        if number in self._early:
            self._early.discard(number)
            self._tell("acknowledged too early", told)
        if number in self._untold:
            self._untold.discard(number)
        if self._is_sink:
            self._placed.add(number)
        else:
            self._gaps.come(number, told.at)
        self._here.add(number)

    def _delivery(self, told: Told) -> None:
        number, offset = told.number, told.offset
        if number is None or offset is None:
            return
        if told.peer is not None:
            self._is_sink, self._peer = True, told.peer
        self._put(told, number)
        self._gone.add(number)
        if number in self._dead:  # the operator retried a dead letter
            self._dead.discard(number)
            return
        if number in self._waits:
            self._released(told, *self._waits.pop(number))
        is_new = self._delivered[told.queue, told.epoch if told.restored else None].add(number)
        if not is_new or number in self._stood:
            self._tell("delivered twice", told)
            return
        place = (told.worker, told.queue, told.partition, told.epoch)
        top = self._tops.get(place)
        if self._in_order and top is not None and offset != top[1] and (number > top[0]) != (offset > top[1]):
            self._tell("delivered out of order", told)
        if top is None or offset > top[1]:
            self._tops[place] = number, offset

    def _released(self, told: Told, since: int, came: int | None) -> None:
        self._latencies.add("held to delivered", told.queue or "", told.at - since)
        if told.since is None and came is not None:  # an earlier run held it
            self._latencies.add("received to delivered", told.queue or "", told.at - came)

    def _held(self, told: Told) -> None:
        if told.number is not None:
            self._put(told, told.number)
            self._waited.add(told.number)
            self._waits[told.number] = told.at, told.since

    def _not_queued(self, told: Told) -> None:
        if told.number is not None:
            self._put(told, told.number)
            self._gone.add(told.number)
            self._not_queues.add(told.number)

    def _given_up(self, told: Told) -> None:
        """Record a dead letter, which may have been in another queue before."""
        if told.number is not None:
            self._put(told, told.number)
            self._gone.add(told.number)
            self._dead.add(told.number)

    def _discarded(self, told: Told) -> None:
        if told.number is not None:
            self._gaps.come(told.number, told.at)
            self._gone.add(told.number)
            self._discards.add(told.number)
            self._waits.pop(told.number, None)

    def _acknowledged(self, told: Told) -> None:
        if told.number and told.count:
            upper = told.number + told.count - 1
            self._said.add_range(told.number, upper)
            if not _is_inside(told.number, upper, self._here):
                self._early.update(Ranges([(told.number, upper)]).outside(self._here))

    def _handed_over(self, told: Told) -> None:
        number, offset = told.number, told.offset
        if number is None or offset is None or told.rewound:
            return
        if self._at_most_once:
            place = (told.worker, told.queue, told.partition, told.epoch)
            if not self._handed[place].add(offset + 1):
                self._tell("handled again", told)
        if told.attempt == 1 and told.queue != DEAD_LETTERS:
            if self._in_order and number < self._last_handed.get(told.queue, 0):
                self._tell("handled out of order", told)
            self._last_handed[told.queue] = number

    def _tell(self, rule: str, told: Told) -> None:
        self.found.append(_violation(rule, told))


class OfPlace:
    """Check one partition of a queue of one worker.

    Args:
        name: Name of the partition; unused.
        latencies: Collects the latencies of messages.

    Attributes:
        found: Findings so far; the caller removes them.
    """

    def __init__(self, name: str, latencies: Latencies) -> None:
        self.found: list[Found] = []
        self._latencies = latencies
        self._run: str | None = None
        self._part: tuple[str, int] | None = None
        self._used: dict[str | None, Ranges] = defaultdict(Ranges)
        self._ends: dict[str | None, int] = {}
        self._next: int | None = None
        """Offset after the last one that this part of the run reported; None: none yet."""
        self._jumped: list[tuple[int, Told]] = []
        """Expected offsets, each with the event that had a later offset instead."""
        self._batch_at: int | None = None
        self._done, self._done_before = Ranges(), Ranges()
        self._of: Mapping[str, Callable[[Told, int], None]] = {
            "queue stands": self._stands,
            "delivered": self._delivery,
            "given up": self._put,
            "handled stands": self._handled,
            "handled": self._handled,
            "handed over": self._handed_over,
        }

    def take(self, told: Told) -> None:
        if told.run != self._run:
            self._run = told.run
            self._done, self._done_before = Ranges(), Ranges()
        if (told.run, told.last) != self._part:
            self._end_part()
            self._part = told.run, told.last
        if told.offset is not None:
            self._of[told.event](told, told.offset)

    def end(self) -> None:
        """Finish after the last event."""
        self._end_part()

    def _end_part(self) -> None:
        """End a part at the end of a run or at a hole.

        The journal orders the events of one batch by kind, so the newest batch may be incomplete, and offsets that it
        skipped prove nothing.
        """
        self._jumped = [(begin, told) for begin, told in self._jumped if told.at != self._batch_at]
        self._skipped()
        self._next = None

    def _delivery(self, told: Told, offset: int) -> None:
        if told.since is not None:
            self._latencies.add("received to delivered", told.queue or "", told.at - told.since)
        self._put(told, offset)

    def _put(self, told: Told, offset: int) -> None:
        self._batch_at = told.at
        if not self._used[told.epoch].add(offset + 1):
            self.found.append(_violation("offset used twice", told))
        if offset >= self._ends.get(told.epoch, 0):
            self._ends[told.epoch] = offset + 1
        if self._next is not None and offset > self._next:
            self._jumped.append((self._next, told))
        self._next = max(self._next or 0, offset + 1)

    def _skipped(self) -> None:
        for begin, told in self._jumped:
            assert told.offset is not None
            for lower, upper in Ranges([(begin + 1, told.offset)]).outside(self._used[told.epoch]):
                skipped = _violation("offset skipped", told)
                self.found.append(
                    skipped._replace(sequence=None, number=None, offset=lower - 1, count=upper - lower + 1)
                )
        self._jumped = []

    def _stands(self, told: Told, offset: int) -> None:
        end = self._ends.get(told.epoch, 0)
        if offset < end:
            self.found.append(_violation("delivered, then gone", told)._replace(count=end - offset))
        if self._next is not None and offset > self._next:
            self._jumped.append((self._next, told))
        self._skipped()
        self._next = max(self._next or 0, offset)

    def _handled(self, told: Told, offset: int) -> None:
        if told.count and not told.rewound:
            self._done.add_range(offset + 1, offset + told.count)
            if told.detail == RECOVERED:
                self._done_before.add_range(offset + 1, offset + told.count)

    def _handed_over(self, told: Told, offset: int) -> None:
        # With AtMostOnce, a message counts as handled before the handler gets it, but not before the run began.
        if offset + 1 in self._done:
            may_be = offset + 1 not in self._done_before
            self.found.append(_violation("handled again", told)._replace(unless_at_most_once=may_be))


def _violation(rule: str, told: Told) -> Violation:
    where = (told.queue, told.partition, told.offset, told.run, told.ordinal, told.at)
    return Violation(rule, told.sequence, told.number, 1, *where)


def _is_inside(lower: int, upper: int, ranges: AcknowledgementRanges) -> bool:
    """Whether ``ranges`` is one range that contains these numbers: a fast path for the usual case."""
    return len(ranges) == 1 and all(first <= lower and upper <= last for first, last in ranges)
