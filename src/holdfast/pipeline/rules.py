"""What must not be in an event journal: each rule, decided by reading the events of one Sequence, or of one partition
of a queue, in the order in which they happened. Plain Python: Spark only brings the events together.

A rule compares what was said with what was durable, and decides nothing itself. Where the journal has a hole, no rule
makes a violation of it: each file begins with what stands, and what stands counts as told (docs/internals/journal.md).
What is remembered are ranges, so memory grows with gaps, not with messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.core.queues import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges

RULES = {
    "acknowledged, not delivered": "It was acknowledged, and is in no queue, neither held nor discarded.",
    "acknowledged, never released": "It was acknowledged and held, its Sequence is over, and it went nowhere.",
    "acknowledged too early": "It was acknowledged before it was durable.",
    "acknowledged, then gone": "It was acknowledged, and a later run does not know that it was accepted.",
    "delivered twice": "The same message of a Sequence came into a queue twice.",
    "delivered out of order": "Its Sequence promises order, and it came into its queue behind a later one.",
    "offset used twice": "Two records came to one offset of a queue.",
    "delivered, then gone": "It was durable in a queue, and the queue of a later run is shorter.",
    "handled again": "It was handed over after its handler was durably done with it; or, at most once, a second time.",
    "handled out of order": "Its Sequence promises order, and it was handed over after a later one.",
}
"""Rule -> when it is broken."""

AT_MOST_ONCE, IN_ORDER = "at-most-once", "in-order"
"""Words of what a Sequence is promised, as ``created`` and ``stands`` tell it."""
WORK = ("delivered", "handed over", "handled", "gap")
"""Events behind which a run's ``handled stands`` may tell what the run itself did."""


class Told(NamedTuple):
    """One event, with what other events of its run say of it.

    Args:
        about: Which Sequence, or which partition of which queue, it is looked at for: all of one come together.
        event, sequence, number, count, queue, partition, offset, attempt, detail, worker, run, ordinal: As in the
            journal.
        at: Microseconds since 1970.
        epoch: Of its queue in its run; None: not known.
        restored: Whether its server's store was put back to a copy, as its operator said: a queue has a new epoch.
        rewound: Whether handlers of its partition were put back in its run.
        is_first: Whether its run had done nothing before it.
    """

    about: str
    event: str
    sequence: str | None
    number: int | None
    count: int | None  # type: ignore[assignment]  # a column of the journal, not the method of tuples
    queue: str | None
    partition: int | None
    offset: int | None
    attempt: int | None
    detail: str | None
    worker: int | None
    run: str
    ordinal: int
    at: int
    epoch: str | None
    restored: bool
    rewound: bool
    is_first: bool


class Violation(NamedTuple):
    """One thing that must not be: the rule, what it is about, and the event that tells it; None: several, or nothing.

    Args:
        rule: Of :data:`RULES`.
        sequence, number, count, queue, partition, offset, run, ordinal: As in the journal.
        at: Microseconds since 1970.
        unless_at_most_once: Whether it is none if its Sequence is promised "at most once".
    """

    rule: str
    sequence: str | None
    number: int | None
    count: int | None  # type: ignore[assignment]  # a column of the journal, not the method of tuples
    queue: str | None = None
    partition: int | None = None
    offset: int | None = None
    run: str | None = None
    ordinal: int | None = None
    at: int | None = None
    unless_at_most_once: bool = False


Ranges = AcknowledgementRanges


class OfSequence:
    """Decides about one Sequence that comes in.

    Attributes:
        found: What was found; whoever feeds it takes it out.
    """

    EVENTS = (
        "created",
        "stands",
        "delivered",
        "held",
        "discarded",
        "not queued",
        "acknowledged",
        "handed over",
        "terminated",
        "expired",
    )
    """Those that it wants, of those that have a Sequence and no ``key``."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self._name: str | None = None
        self._run: str | None = None
        self._at_most_once = self._in_order = self._is_over = self._restored = False
        self._said, self._placed = Ranges(), Ranges()
        self._waited, self._gone, self._standing = Ranges(), Ranges(), Ranges()
        self._delivered: dict[str | None, Ranges] = defaultdict(Ranges)
        self._tops: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._handed: dict[tuple[Any, ...], Ranges] = defaultdict(Ranges)
        # Of the latest run that says what stands: what runs before it had said, and what it knows.
        self._said_before: Ranges | None = None
        self._known = Ranges()
        self._begin_run(None)
        self._of: Mapping[str, Callable[[Told], None]] = {
            "created": self._promised,
            "stands": self._stands,
            "delivered": self._delivery,
            "held": self._held,
            "discarded": self._discarded,
            "not queued": self._not_queued,
            "acknowledged": self._acknowledged,
            "handed over": self._handed_over,
            "terminated": self._over,
            "expired": self._over,
        }

    def _begin_run(self, run: str | None) -> None:
        self._run = run
        self._settle()
        self._said_at_start = self._said.copy()
        self._stood, self._stood_held = Ranges(), Ranges()
        self._here, self._early = Ranges(), Ranges()
        self._last_handed: dict[str | None, int] = {}
        self._has_stood = False

    def take(self, told: Told) -> None:
        """The next event."""
        if told.run != self._run:
            self._begin_run(told.run)
        self._name = told.sequence
        self._restored |= told.restored
        if told.event != "stands":
            self._settle()
        self._of[told.event](told)

    def end(self) -> None:
        """That was all: what is missing is seen now."""
        self._settle()
        self._missing("acknowledged, not delivered", outside(self._said, self._placed))
        if self._is_over:
            stuck = Ranges(outside(self._waited, self._gone))
            unsaid = Ranges(outside(stuck, self._said))
            self._missing("acknowledged, never released", outside(stuck, unsaid))
        if self._said_before is not None and not self._restored:
            self._missing("acknowledged, then gone", outside(self._said_before, self._known))

    def _missing(self, rule: str, ranges: Iterable[tuple[int, int]]) -> None:
        self.found += [Violation(rule, self._name, lower, upper - lower + 1) for lower, upper in ranges]

    def _settle(self) -> None:
        """What stands and is not held counts as released: the event may be lost, its file deleted."""
        if len(self._standing):
            self._gone.update(self._standing)
            self._standing = Ranges()

    def _promised(self, told: Told) -> None:
        detail = told.detail or ""
        self._at_most_once |= AT_MOST_ONCE in detail
        self._in_order |= IN_ORDER in detail

    def _over(self, _told: Told) -> None:
        self._is_over = True

    def _stands(self, told: Told) -> None:
        number, count = told.number, told.count
        is_held = told.detail == "held"
        if not is_held:
            self._promised(told)
        if not self._has_stood:
            self._has_stood = True
            self._said_before, self._known = self._said_at_start, Ranges()
        if not number or not count:
            return
        upper = number + count - 1
        for ranges in (self._known, self._placed, self._here):
            ranges.add_range(number, upper)
        if is_held:
            # The range that it lies in was told before: it is no more than held.
            self._waited.add_range(number, upper)
            for one in range(number, upper + 1):
                self._standing.discard(one)
                self._stood.discard(one)
        else:
            self._standing.add_range(number, upper)
            self._stood.add_range(number, upper)

    def _put(self, told: Told, number: int) -> None:
        """It is durable: what was said of it before that, in this run, was said too early."""
        if number in self._early:
            self._early.discard(number)
            self._tell("acknowledged too early", told)
        self._placed.add(number)
        self._here.add(number)

    def _delivery(self, told: Told) -> None:
        number, offset = told.number, told.offset
        if number is None or offset is None:
            return
        self._put(told, number)
        self._gone.add(number)
        is_new = self._delivered[told.queue].add(number)
        if not is_new or number in self._stood:
            self._tell("delivered twice", told)
            return
        place = (told.worker, told.queue, told.partition, told.epoch)
        top = self._tops.get(place)
        if self._in_order and top is not None and offset != top[1] and (number > top[0]) != (offset > top[1]):
            self._tell("delivered out of order", told)
        if top is None or offset > top[1]:
            self._tops[place] = number, offset

    def _held(self, told: Told) -> None:
        if told.number is not None:
            self._put(told, told.number)
            self._waited.add(told.number)

    def _not_queued(self, told: Told) -> None:
        if told.number is not None:
            self._put(told, told.number)
            self._gone.add(told.number)

    def _discarded(self, told: Told) -> None:
        if told.number is not None:
            self._placed.add(told.number)
            self._gone.add(told.number)

    def _acknowledged(self, told: Told) -> None:
        if told.number and told.count:
            upper = told.number + told.count - 1
            self._said.add_range(told.number, upper)
            if not _is_inside(told.number, upper, self._here):
                self._early.update(outside(Ranges([(told.number, upper)]), self._here))

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
    """Decides about one partition of a queue of one worker.

    Attributes:
        found: What was found; whoever feeds it takes it out.
    """

    EVENTS = ("queue stands", "delivered", "handled stands", "handled", "handed over")
    """Those that it wants, of those that have a ``queue``."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        self._run: str | None = None
        self._used: dict[str | None, Ranges] = defaultdict(Ranges)
        self._ends: dict[str | None, int] = {}
        self._done, self._done_before = Ranges(), Ranges()
        self._of: Mapping[str, Callable[[Told, int], None]] = {
            "queue stands": self._stands,
            "delivered": self._delivery,
            "handled stands": self._handled,
            "handled": self._handled,
            "handed over": self._handed_over,
        }

    def take(self, told: Told) -> None:
        """The next event."""
        if told.run != self._run:
            self._run = told.run
            self._done, self._done_before = Ranges(), Ranges()
        if told.offset is not None:
            self._of[told.event](told, told.offset)

    def end(self) -> None:
        """That was all."""

    def _delivery(self, told: Told, offset: int) -> None:
        if not self._used[told.epoch].add(offset + 1):
            self.found.append(_violation("offset used twice", told))
        if offset >= self._ends.get(told.epoch, 0):
            self._ends[told.epoch] = offset + 1

    def _stands(self, told: Told, offset: int) -> None:
        end = self._ends.get(told.epoch, 0)
        if offset < end:
            self.found.append(_violation("delivered, then gone", told)._replace(count=end - offset))

    def _handled(self, told: Told, offset: int) -> None:
        if told.count and not told.rewound:
            self._done.add_range(offset + 1, offset + told.count)
            if told.event == "handled stands" and told.is_first:
                self._done_before.add_range(offset + 1, offset + told.count)

    def _handed_over(self, told: Told, offset: int) -> None:
        # At most once, the handler is done with a message before it gets it, but not before the run began.
        if offset + 1 in self._done:
            may_be = offset + 1 not in self._done_before
            self.found.append(_violation("handled again", told)._replace(unless_at_most_once=may_be))


def _violation(rule: str, told: Told) -> Violation:
    where = (told.queue, told.partition, told.offset, told.run, told.ordinal, told.at)
    return Violation(rule, told.sequence, told.number, 1, *where)


def outside(these: AcknowledgementRanges, those: AcknowledgementRanges) -> Iterator[tuple[int, int]]:
    """What of some numbers is not among others, as ascending ranges."""
    others = iter(those)
    other = next(others, None)
    for lower, upper in these:
        at = lower
        while other is not None and other[0] <= upper:
            if other[0] > at:
                yield at, other[0] - 1
            at = max(at, other[1] + 1)
            if other[1] > upper:
                break
            other = next(others, None)
        if at <= upper:
            yield at, upper


def _is_inside(lower: int, upper: int, ranges: AcknowledgementRanges) -> bool:
    """Whether it lies in one range: a quick answer for what is usual."""
    return len(ranges) == 1 and all(first <= lower and upper <= last for first, last in ranges)


def decide(events: Iterable[Told]) -> Iterator[Violation]:
    """All that must not be.

    Args:
        events: Those of each ``about`` together, in their order.
    """
    for about, group in groupby(events, attrgetter("about")):
        decider = OfSequence() if about.startswith(SEQUENCE) else OfPlace()
        found, take = decider.found, decider.take
        for told in group:
            take(told)
            if found:
                yield from found
                found.clear()
        decider.end()
        yield from found


SEQUENCE, PLACE = "s ", "p "
"""How ``about`` begins."""


def violations_of(rows: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """All that must not be in a small journal, in memory.

    Args:
        rows: Column -> value, times in seconds; of one server, in any order.
    """
    events, promised = _told(list(rows))
    return [one for one in decide(events) if not (one.unless_at_most_once and one.sequence in promised)]


def _told(rows: list[Mapping[str, Any]]) -> tuple[list[Told], set[str]]:
    runs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    epochs: dict[tuple[Any, ...], str] = {}
    of_queue: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for row in rows:
        runs[row["run"]].append(row)
        if row["event"] == "queue stands" and row["detail"]:  # a new queue has no epoch before its first record
            epochs.setdefault((row["run"], row["queue"], row["partition"]), row["detail"])
            of_queue[row["worker"], row["queue"]].add(row["detail"])
    rewound = {(row["run"], row["queue"], row["partition"]) for row in rows if row["event"] == "rewound"}
    restored = {worker for (worker, _), several in of_queue.items() if len(several) > 1}
    found = []
    for name, mine in runs.items():
        numbers = [row["attempt"] for row in mine if row["event"] in ("started", "queue stands")]
        began = (max(numbers, default=0), min(row["at"] for row in mine), name)
        is_whole = min(row["ordinal"] for row in mine) == 0
        work = min((row["ordinal"] for row in mine if row["event"] in WORK), default=_NEVER) if is_whole else 0
        for row in mine:
            known = {field: row[field] for field in _PLAIN}
            more = {
                "at": round(row["at"] * 1e6),
                "epoch": epochs.get((name, row["queue"], row["partition"])),
                "restored": row["worker"] in restored,
                "rewound": (name, row["queue"], row["partition"]) in rewound,
                "is_first": row["ordinal"] < work,
            }
            abouts = []
            if row["sequence"] is not None and row["key"] is None and row["event"] in OfSequence.EVENTS:
                abouts.append(f"{SEQUENCE}{row['sequence']}")
            if row["queue"] is not None and row["event"] in OfPlace.EVENTS:
                abouts.append(f"{PLACE}{row['worker']} {row['partition']} {row['queue']}")
            found += [(about, began, row["ordinal"], Told(about, **known, **more)) for about in abouts]
    found.sort(key=lambda one: one[:3])
    at_most_once = {row["sequence"] for row in rows if AT_MOST_ONCE in (row["detail"] or "") and row["key"] is None}
    return [one[3] for one in found], at_most_once


_NEVER = 1 << 62
_PLAIN = tuple(name for name in Told._fields[1:] if name not in ("at", "epoch", "restored", "rewound", "is_first"))
