"""Offsets of a stream in Spark's checkpoint, and the division of work. Pure: no Spark, no network, no clock.

An offset is a flat JSON object that contains its identity, so that a checkpoint cannot be used for other queues, or for
one that was restored from an older copy and has received records since: ``{"v": 3, "orders/epoch": "6f1c",
"orders/before": "0:9f3c,1:77e0", "orders/0": 1200, "orders/1": 1180}``. ``before`` contains the fingerprint of the last
record below a position, if the server knew one. An absent partition is at 0. The two offsets around a batch define its
content. If a batch does not start at the end of the batch before it, because a queue joined or records were deleted
unread, its end contains the start: ``"orders/begins": "0:700"``. ``skipped`` counts the records that were deleted
before the stream could read them, ``reader`` names its cursors. ``"orders/left": 1`` means that the queue is no longer
read, and where reading starts if the queue returns. Versions 1 and 2 had one queue: ``{"v": 2, "queue": "orders",
"epoch": "6f1c", "before": "0:9f3c", "0": 1200}``, and are still read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.client.errors import OffsetRefused
from holdfast.client.terminal_text import few

VERSION = 3
_ONE_QUEUE = (1, 2)
MIN_TASK_ROWS = 5_000
"""Below this number, a second task costs more (about 50 ms) than it saves."""
TASK_ROWS = 50_000
"""Rows for each task of a large read, if the number of tasks is not set."""
FEW_TASKS = 4
"""Number of tasks once each has ``MIN_TASK_ROWS``, if the number of tasks is not set."""

_PAIRS = re.compile(r"(?:[0-9]+:[0-9a-f]+(?:,[0-9]+:[0-9a-f]+)*)?")
_BEGINS = re.compile(r"(?:[0-9]+:[0-9]+(?:,[0-9]+:[0-9]+)*)?")

Offset = dict[str, Any]
Positions = dict[int, int]
Known = tuple[int, int, str]
"""A partition, the position up to which it was read, and the fingerprint of the last record below it."""
K = TypeVar("K", int, tuple[str, int])
Positioned = Mapping[tuple[str, int], int]
"""A position in each partition of each queue."""
Admit = Callable[[Positioned, Positioned], Positioned]


@dataclass(frozen=True, slots=True)
class Ends:
    """Records of a queue: ``first <= offset < end`` in each partition, and the epoch of the queue."""

    queue: str
    epoch: str
    partitions: dict[int, tuple[int, int]]

    @property
    def firsts(self) -> Positions:
        """The lowest offset there is, of each partition."""
        return {partition: first for partition, (first, _) in self.partitions.items()}

    @property
    def ends(self) -> Positions:
        """The offset the next record will have, of each partition."""
        return {partition: end for partition, (_, end) in self.partitions.items()}


def cut(ends: Ends, at: Positions) -> Ends:
    """Return the records of a queue below ``at``, in the partitions of ``at``."""
    firsts = ends.firsts
    return Ends(ends.queue, ends.epoch, {one: (min(firsts.get(one, 0), end), end) for one, end in at.items()})


@dataclass(frozen=True, slots=True)
class Range:
    """Records start <= offset < end of one partition of a queue."""

    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Number of records: offsets are dense."""
        return self.end - self.start


QueueRange = tuple[str, Range]
"""A range with its queue."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a stream in one queue.

    Args:
        epoch: The epoch of the queue.
        positions: Partition -> offset; the stream has read every record below it.
        fingerprints: Fingerprints of the last record below each position, as far as known.
        begins: Partition -> start of the batch that ends here, if it differs from the end of the previous batch.
    """

    epoch: str
    positions: Positions
    fingerprints: dict[int, str] = field(default_factory=dict)
    begins: Positions = field(default_factory=dict)

    @property
    def known(self) -> list[Known]:
        """Positions and fingerprints for the server to compare."""
        prints = sorted(self.fingerprints.items())
        return [(one, self.positions[one], text) for one, text in prints if text and one in self.positions]


@dataclass(frozen=True, slots=True)
class NextPositions:
    """The server's answer to a request for the end of a reader's next batch.

    Args:
        ends: The records of each queue.
        positions: The end of the batch in each queue that the reader named.
        fingerprints: Fingerprints of the last records below these positions, in the queues with records in the batch.
        guess: Argument of the next request.
    """

    ends: dict[str, Ends]
    positions: dict[str, Positions]
    fingerprints: dict[str, dict[int, str]]
    guess: dict[str, int]

    @property
    def by_partition(self) -> dict[tuple[str, int], int]:
        return {(queue, one): at for queue, positions in self.positions.items() for one, at in positions.items()}


@dataclass(frozen=True, slots=True)
class Places:
    """Position of a stream in all its queues.

    Args:
        queues: Position in each queue.
        skipped: Number of records that were deleted before the stream could read them, since it began.
        left: Last position in queues that it no longer reads.
        reader: The name of its cursors; "" where an earlier version wrote the offset.
    """

    queues: dict[str, Place]
    skipped: int = 0
    left: dict[str, Place] = field(default_factory=dict)
    reader: str = ""

    def left_at(self, queue: str, epoch: str) -> Place | None:
        """Return its last position in a queue that it stopped reading; None without one, or if the epoch differs."""
        place = self.left.get(queue)
        return place if place is not None and place.epoch == epoch else None

    def to_json(self) -> Offset:
        """Return the offset as Spark stores it, always in the same order, because Spark compares texts."""
        offset: Offset = {"v": VERSION}
        if self.skipped:
            offset["skipped"] = self.skipped
        if self.reader:
            offset["reader"] = self.reader
        for queue, place in sorted([*self.queues.items(), *self.left.items()], key=lambda one: one[0]):
            offset[f"{queue}/epoch"] = place.epoch
            if queue in self.left:
                offset[f"{queue}/left"] = 1
            for name, pairs in (("before", place.fingerprints), ("begins", place.begins)):
                if text := ",".join(f"{one}:{value}" for one, value in sorted(pairs.items()) if value != ""):
                    offset[f"{queue}/{name}"] = text
            offset |= {f"{queue}/{one}": position for one, position in sorted(place.positions.items())}
        return offset

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        return {(queue, one): at for queue, place in self.queues.items() for one, at in place.positions.items()}


def parse(offset: Mapping[str, Any]) -> Places:
    """Parse an offset of a checkpoint.

    Raises:
        OffsetRefused: It is of another version, or is no offset at all.
    """
    version = offset.get("v")
    if type(version) is int and version in _ONE_QUEUE:
        return _parse_one_queue(offset)
    if type(version) is not int or version != VERSION:
        raise OffsetRefused(
            f"the checkpoint's offset {str(dict(offset))[:500]} was not written by this version of Holdfast",
            remedy="Use the version that wrote the checkpoint, or start the query with a new checkpoint",
        )
    parts: dict[str, dict[str, Any]] = {}
    for key, value in offset.items():
        queue, mark, name = key.rpartition("/")
        if mark:
            parts.setdefault(queue, {})[name] = value
        elif key not in ("v", "skipped", "reader"):
            raise _unreadable(offset)
    skipped, reader = offset.get("skipped", 0), offset.get("reader", "")
    if type(skipped) is not int or skipped < 0 or not isinstance(reader, str):
        raise _unreadable(offset)
    left = {queue for queue, part in parts.items() if part.pop("left", 0)}
    places = {queue: _place(part, offset) for queue, part in parts.items()}
    there = {queue: place for queue, place in places.items() if queue not in left}
    return Places(there, skipped, {queue: places[queue] for queue in left}, reader)


def _parse_one_queue(offset: Mapping[str, Any]) -> Places:
    queue = offset.get("queue")
    if not isinstance(queue, str) or "begins" in offset:
        raise _unreadable(offset)
    part = {name: value for name, value in offset.items() if name not in ("v", "queue")}
    return Places({queue: _place(part, offset)})


def _place(part: dict[str, Any], offset: Mapping[str, Any]) -> Place:
    epoch, before, begins = part.pop("epoch", None), part.pop("before", ""), part.pop("begins", "")
    texts = isinstance(epoch, str) and isinstance(before, str) and isinstance(begins, str)
    if not texts or not _PAIRS.fullmatch(before) or not _BEGINS.fullmatch(begins):
        raise _unreadable(offset)
    if not all(_is_number(name) and type(value) is int and value >= 0 for name, value in part.items()):
        raise _unreadable(offset)
    return Place(
        epoch,
        {int(name): value for name, value in part.items()},
        {int(one): text for one, text in _pairs(before)},
        {int(one): int(text) for one, text in _pairs(begins)},
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for pair in text.split(","):
        one, mark, value = pair.partition(":")
        if mark:
            yield one, value


def _unreadable(offset: Mapping[str, Any]) -> OffsetRefused:
    told = str(dict(offset))[:500]
    return OffsetRefused(f"the checkpoint's offset {told} cannot be read", remedy="Restore the checkpoint")


# --- what lies between two offsets ------------------------------------------------------------------------------------


def ranges_between(start: Places, end: Places) -> list[QueueRange]:
    """Return the ranges between two offsets, by queue and partition, without empty ones.

    Raises:
        OffsetRefused: The offsets are of different epochs, or the end lies below the start.
    """
    ranges: list[QueueRange] = []
    for queue, place in sorted(end.queues.items()):
        before = start.queues.get(queue)
        since = dict(before.positions) if before is not None else {}
        if before is not None:
            check_epoch(queue, before.epoch, place.epoch)
            _refuse_backwards(queue, since, place.positions)
            _refuse_backwards(queue, {one: since.get(one, 0) for one in place.begins}, place.begins)
        since |= place.begins
        _refuse_backwards(queue, place.begins, place.positions)
        until = place.positions
        ranges += [(queue, Range(p, since.get(p, 0), until[p])) for p in sorted(until) if until[p] > since.get(p, 0)]
    return ranges


def check_epoch(queue: str, theirs: str, ours: str) -> None:
    """Check that a checkpoint belongs to the current queue.

    Raises:
        OffsetRefused: It does not.
    """
    if theirs != ours:
        raise OffsetRefused(
            f"queue {queue!r} is not the queue of the checkpoint: its epoch is {ours}, the checkpoint's is "
            f"{theirs}. Its store was created again, or broker names another server",
            remedy="Restore the option broker or the store, or start the query with a new checkpoint",
        )


def _refuse_backwards(queue: str, since: Positions, until: Positions) -> None:
    for partition, position in sorted(since.items()):
        if until.get(partition, 0) < position:
            raise OffsetRefused(
                f"queue {queue!r} partition {partition} ends at {until.get(partition, 0)}, below the position "
                f"{position} of the query: it was restored to an earlier state, and rows above that are in doubt",
                remedy="Restore the server's store, or start the query with a new checkpoint",
            )


def split_trimmed(ranges: Iterable[QueueRange], there: Mapping[str, Ends]) -> tuple[list[QueueRange], list[QueueRange]]:
    """Split ranges into existing records and deleted ones."""
    left: list[QueueRange] = []
    gone: list[QueueRange] = []
    for queue, part in ranges:
        first = min(max(part.start, there[queue].firsts.get(part.partition, 0)), part.end)
        for found, start, end in ((gone, part.start, first), (left, first, part.end)):
            if start < end:
                found.append((queue, Range(part.partition, start, end)))
    return left, gone


def advance(
    start: Places, there: Mapping[str, Ends], joining: Mapping[str, Positions], admit: Admit | None = None
) -> tuple[Places, list[QueueRange]]:
    """Return the next offset: the end of all records, or the end that ``admit`` chooses.

    Args:
        start: Where the stream stands.
        there: What each queue holds that is read.
        joining: Of the queues that ``start`` does not know, or had left, where to begin.
        admit: Of where a batch begins and where each partition ends, where the batch ends. None for no limit.

    Returns:
        The offset, with the fingerprints of the places that stay the same; and what is skipped, since it is deleted.

    Raises:
        OffsetRefused: A queue has another epoch, or ends below ``start``.
    """
    since: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    begins: dict[str, Positions] = {queue: {} for queue in there}
    lost: list[QueueRange] = []
    for queue, one in there.items():
        before = start.queues.get(queue)
        if before is not None:
            check_epoch(queue, before.epoch, one.epoch)
        stands = dict.fromkeys(one.ends, 0) | (before.positions if before is not None else joining[queue])
        _refuse_backwards(queue, stands, one.ends)
        _, gone = split_trimmed([(queue, Range(p, at, one.ends[p])) for p, at in stands.items()], there)
        lost += gone
        begins[queue] = {part.partition: part.end for _, part in gone}
        if before is None:
            begins[queue] = {p: at for p, at in {**stands, **begins[queue]}.items() if at}
        stands |= begins[queue]
        since |= {(queue, p): stands[p] for p in one.ends}
        ends |= {(queue, p): end for p, end in one.ends.items()}
    until = ends if admit is None else admit(since, ends)
    queues = {}
    for queue, one in there.items():
        before = start.queues.get(queue)
        positions = {p: until[queue, p] for p in sorted(one.ends)}
        at = before.positions if before is not None else {}
        known = before.fingerprints.items() if before is not None else ()
        same = {one: text for one, text in known if at.get(one) == positions.get(one)}
        queues[queue] = Place(one.epoch, positions, same, begins[queue])
    skipped = start.skipped + sum(part.rows for _, part in lost)
    left = {queue: place for queue, place in start.left.items() if queue not in there}
    return replace(start, queues=queues, skipped=skipped, left=left), lost


def has_moved(start: Places, end: Places) -> bool:
    """Return whether there is a batch between two offsets: rows, or skipped records to report. A queue that joins
    without a row is not a batch."""
    before = start.positions
    return any(at != before.get(where, 0) for where, at in end.positions.items() if where[0] in start.queues) or any(
        at > place.begins.get(one, 0)
        for queue, place in end.queues.items()
        if queue not in start.queues
        for one, at in place.positions.items()
    )


def _present(fingerprints: Mapping[int, str]) -> dict[int, str]:
    return {partition: text for partition, text in fingerprints.items() if text}


def with_fingerprints(places: Places, fingerprints: Mapping[str, dict[int, str]]) -> Places:
    """Return the same positions with the known fingerprints of the records below them in some queues."""
    queues = {
        queue: replace(place, fingerprints=_present(place.fingerprints | fingerprints.get(queue, {})))
        for queue, place in places.queues.items()
    }
    return replace(places, queues=queues)


# --- the sharing of work ----------------------------------------------------------------------------------------------


def plan(ranges: list[QueueRange], tasks: int | None, least: int = 1, ease: int = 1) -> list[tuple[QueueRange, ...]]:
    """Divide ranges, kept in order, into parts of about equal size. Read one after the other, the parts have the
    ranges' order.

    Args:
        ranges: The ranges to read.
        tasks: Maximum number of parts, none needlessly small. None: four, or one for each ``TASK_ROWS``, if more.
        least: Minimum number of parts, if there are enough rows.
        ease: Factor for the number of rows of a part.
    """
    total = sum(part.rows for _, part in ranges)
    most = tasks if tasks is not None else max(FEW_TASKS, least, -(-total // (TASK_ROWS * ease)))
    count = min(most, max(total // (MIN_TASK_ROWS * ease), least, 1), total)
    parts: list[list[QueueRange]] = [[] for _ in range(count)]
    number = done = 0
    for queue, part in ranges:
        start = part.start
        while start < part.end:
            end = min(part.end, start + total * (number + 1) // count - done)
            parts[number].append((queue, Range(part.partition, start, end)))
            done += end - start
            number += done == total * (number + 1) // count
            start = end
    return [tuple(part) for part in parts]


# --- places by option -------------------------------------------------------------------------------------------------

LATEST, EARLIEST = -1, -2
"""Positions other than an offset."""


def resolve(position: str | Positions, ends: Ends, option: str) -> Positions:
    """A position in one queue given by option, as an offset for every partition, or for those it names. It may lie
    below what is still there.

    Raises:
        OffsetRefused: It names a partition that is not there, or an offset above its end.
    """
    if position == "latest":
        return ends.ends
    if isinstance(position, str):
        return ends.firsts
    resolved: Positions = {}
    for partition, offset in position.items():
        if partition not in ends.partitions:
            raise OffsetRefused(
                f"option {option} names partition {partition}, which queue {ends.queue!r} does not have "
                f"(its partitions are {few(map(str, sorted(ends.partitions)))})",
                remedy="Name only existing partitions, or none: the others use a default",
            )
        first, end = ends.partitions[partition]
        if offset > end:
            raise OffsetRefused(
                f"option {option} asks for {offset}, but queue {ends.queue!r} partition {partition} ends at {end}",
                remedy="Give an offset up to the end, or -1 for the end",
            )
        resolved[partition] = {LATEST: end, EARLIEST: first}.get(offset, offset)
    return resolved
