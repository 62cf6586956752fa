"""Offsets of a stream as Spark's checkpoint keeps them, and the sharing of work. Pure: no Spark, no network, no clock.

An offset is a flat JSON object with its identity inside, so that a checkpoint cannot be used on another queue, nor on
one that was put back to an older copy and grew on:
``{"v": 2, "queue": "orders", "epoch": "6f1c", "before": "0:9f3c,1:77e0", "0": 1200, "1": 1180}``. ``before`` has the
fingerprint of the last record below the position, where the server knew one. A partition that is absent stands at 0.
Version 1 had no fingerprints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.pipeline.errors import OffsetRefused, RecordsTrimmed

VERSION = 2
_READ = (1, 2)
_IDENTITY = ("v", "queue", "epoch", "before")
MIN_TASK_ROWS = 5_000
"""Below this a second task costs more (about 50 ms) than it saves."""

_BEFORE = re.compile(r"(?:[0-9]+:[0-9a-f]+(?:,[0-9]+:[0-9a-f]+)*)?")

Offset = dict[str, Any]
Positions = dict[int, int]


@dataclass(frozen=True, slots=True)
class Ends:
    """What a queue holds: ``first <= offset < end`` of each partition, and the epoch it was created with."""

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


@dataclass(frozen=True, slots=True)
class Range:
    """Records start <= offset < end of one partition of a queue."""

    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many there are: offsets are dense."""
        return self.end - self.start


def to_offset(
    queue: str, epoch: str, positions: Mapping[int, int], fingerprints: Mapping[int, str] | None = None
) -> Offset:
    """The offset as Spark keeps it; always in the same order, for Spark compares texts."""
    prints = fingerprints or {}
    before = ",".join(f"{partition}:{prints[partition]}" for partition in sorted(prints) if prints[partition])
    head = {"v": VERSION, "queue": queue, "epoch": epoch, "before": before}
    return {**head, **{str(partition): positions[partition] for partition in sorted(positions)}}


def fingerprints_of(offset: Mapping[str, Any]) -> dict[int, str]:
    """The fingerprints in an offset; none in one of version 1.

    Raises:
        OffsetRefused: They cannot be read.
    """
    before = offset.get("before", "")
    found = _BEFORE.fullmatch(before) if isinstance(before, str) else None
    if found is None:
        raise _unreadable(offset)
    pairs = [pair.split(":") for pair in before.split(",") if pair]
    return {int(partition): fingerprint for partition, fingerprint in pairs}


def known_of(offset: Mapping[str, Any], queue: str) -> list[tuple[int, int, str]]:
    """What the server may compare: partition, position, and the fingerprint of the last record below it."""
    positions = positions_of(offset, queue)
    return [(one, positions[one], text) for one, text in sorted(fingerprints_of(offset).items()) if one in positions]


def _unreadable(offset: Mapping[str, Any]) -> OffsetRefused:
    return OffsetRefused(f"the checkpoint's offset {dict(offset)} cannot be read", remedy="restore the checkpoint")


def positions_of(offset: Mapping[str, Any], queue: str, epoch: str | None = None) -> Positions:
    """The positions in an offset that was made by ``to_offset``.

    Raises:
        OffsetRefused: It is of another version, queue or epoch, or is no offset at all.
    """
    if type(offset.get("v")) is not int or offset["v"] not in _READ:
        raise OffsetRefused(
            f"the checkpoint's offset {dict(offset)} was not written by this version of Holdfast",
            remedy="use the version that wrote the checkpoint, or start the query with a new checkpoint",
        )
    if offset.get("queue") != queue:
        raise OffsetRefused(
            f"the checkpoint is of queue {offset.get('queue')!r}, but the query reads {queue!r}",
            remedy="set the option queue back, or start the query with a new checkpoint",
        )
    if epoch is not None and offset.get("epoch") != epoch:
        raise OffsetRefused(
            f"queue {queue!r} is not the one the checkpoint was made with: its epoch is {epoch}, "
            f"the checkpoint's is {offset.get('epoch')}. Its store was created anew, or broker names another server",
            remedy="set the option broker back, restore the store, or start the query with a new checkpoint",
        )
    positions = {key: value for key, value in offset.items() if key not in _IDENTITY}
    if not all(key.isdigit() and type(value) is int and value >= 0 for key, value in positions.items()):
        raise _unreadable(offset)
    return {int(key): value for key, value in positions.items()}


def ranges_between(start: Mapping[str, Any], end: Mapping[str, Any], queue: str) -> list[Range]:
    """What lies between two offsets, by partition; partitions without a record are left out.

    Raises:
        OffsetRefused: The offsets are of different epochs, or the end lies below the start.
    """
    until = positions_of(end, queue)
    since = positions_of(start, queue, str(end.get("epoch")))
    _refuse_backwards(queue, since, until)
    return [Range(p, since.get(p, 0), until[p]) for p in sorted(until) if until[p] > since.get(p, 0)]


def _refuse_backwards(queue: str, since: Positions, until: Positions) -> None:
    for partition, position in sorted(since.items()):
        if until.get(partition, 0) < position:
            raise OffsetRefused(
                f"queue {queue!r} partition {partition} ends at {until.get(partition, 0)}, below the {position} "
                "already read: it was put back to an earlier state, and what was read above is in doubt",
                remedy="restore the server's store, or start the query with a new checkpoint",
            )


def advance(start: Mapping[str, Any], ends: Ends, max_rows: int | None = None) -> Offset:
    """The next offset: everything there is, or ``max_rows`` rows shared fairly over the partitions.

    Raises:
        OffsetRefused: The queue has another epoch, or ends below ``start``.
    """
    since = positions_of(start, ends.queue, ends.epoch)
    _refuse_backwards(ends.queue, since, ends.ends)
    until = ends.ends if max_rows is None else share(since, ends.ends, max_rows)
    return to_offset(ends.queue, ends.epoch, until)


def share(since: Positions, ends: Positions, max_rows: int) -> Positions:
    """Positions at most ``max_rows`` rows further: equal shares, and what some do not need goes to the others."""
    until = {partition: since.get(partition, 0) for partition in sorted(ends)}
    while max_rows > 0 and (behind := [p for p in until if until[p] < ends[p]]):
        quota = max(1, max_rows // len(behind))
        for partition in behind:
            step = min(quota, ends[partition] - until[partition], max_rows)
            until[partition] += step
            max_rows -= step
    return until


def plan(ranges: list[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Divide ranges, kept in order, into at most ``tasks`` parts of about equal size, none needlessly small.

    Read one part after the other, the parts give the ranges' own order.
    """
    total = sum(r.rows for r in ranges)
    size = max(MIN_TASK_ROWS, -(-total // tasks))
    parts: list[list[Range]] = []
    room = 0
    for part in ranges:
        start = part.start
        while start < part.end:
            if room == 0:
                parts.append([])
                room = size
            end = min(part.end, start + room)
            parts[-1].append(Range(part.partition, start, end))
            room -= end - start
            start = end
    return [tuple(part) for part in parts]


def resolve(position: str | Positions, ends: Ends, option: str) -> Positions:
    """A position given by option, as an offset for every partition, or for those it names.

    Raises:
        OffsetRefused: It names a partition that is not there, or an offset above its end.
        RecordsTrimmed: It names records that are deleted.
    """
    if position == "latest":
        return ends.ends
    if isinstance(position, str):
        return ends.firsts
    for partition, offset in position.items():
        first, end = ends.partitions.get(partition, (0, -1))
        if offset > end:
            there = f"ends at {end}" if end >= 0 else f"is not there (partitions: {sorted(ends.partitions)})"
            raise OffsetRefused(
                f"option {option} asks for {offset}, but queue {ends.queue!r} partition {partition} {there}"
            )
        if offset < first:
            raise RecordsTrimmed(
                f"option {option} asks for {offset}, but queue {ends.queue!r} partition {partition} begins at {first}",
                remedy="start at earliest, or at an offset that is still there",
            )
    return dict(position)
