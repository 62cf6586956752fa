"""Everything that an audit finds in events grouped by their subject: see :func:`decide`.

``rules`` contains the deciders that report violations; the deciders here only count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.pipeline.audit.events import (
    IN,
    OUT,
    PLACE,
    WAY,
    Decider,
    Found,
    Latencies,
    SequenceRow,
    Told,
)
from holdfast.pipeline.audit.gaps import Gaps
from holdfast.pipeline.audit.rules import OfInbound, OfPlace

MOST_LATENCIES = 100_000
"""Maximum number of distinct values collected before they are reported."""


class OfOutbound:
    """Count the outcomes of one outbound Sequence.

    Attributes:
        found: Findings so far; the caller removes them.
    """

    def __init__(self, name: str, latencies: Latencies) -> None:
        self.found: list[Found] = []
        self._name = name
        self._peer: str | None = None
        self._key: str | None = None
        self._begun: int | None = None
        self._ended: int | None = None
        self._sent = AcknowledgementRanges()
        self._again = 0
        self._gaps = Gaps(OUT, name, self.found)

    def take(self, told: Told) -> None:
        self._peer, self._key = self._peer or told.peer, self._key or told.key
        if told.event == "created":
            self._begun = told.at
        elif told.event == "terminated":
            self._ended = told.at
        elif told.number and told.count:
            upper = told.number + told.count - 1
            if told.event in ("arrived", "stands"):
                self._gaps.come_together(told.number, upper, told.at)
            else:
                self._send(told, upper)

    def _send(self, told: Told, upper: int) -> None:
        """Record a transmission. An earlier run may already have sent a number that this run reports as sent the first
        time."""
        assert told.number and told.count
        new = 0
        if told.event != "retransmitted":
            numbers = AcknowledgementRanges([(told.number, upper)])
            new = sum(last - first + 1 for first, last in numbers.outside(self._sent))
        self._again += told.count - new
        self._sent.add_range(told.number, upper)

    def end(self) -> None:
        """Finish after the last event."""
        self._gaps.end()
        there = self._gaps.there
        highest = max(there.highest, self._sent.highest)
        row = SequenceRow(
            role=OUT,
            sequence=self._name,
            peer=self._peer,
            key=self._key,
            assurance=None,
            state="created" if self._ended is None else "terminated",
            begun=self._begun,
            ended=self._ended,
            messages=there.count,
            highest=highest,
            missing=highest - there.count,
            delivered=0,
            held=0,
            discarded=0,
            not_queued=0,
            acknowledged=there.count,
            duplicates=0,
            transmitted=self._sent.count,
            retransmitted=self._again,
        )
        self.found.append(row)


class OfWay:
    """Measure how long messages of one partition took to be handled, and to reach the next hop.

    Its events are ordered by offset: at each offset the ranges that start there, then the message. So it needs to
    remember only the ranges that may contain the next message.

    Args:
        name: Name of the partition; unused.
        latencies: Receives the durations.

    Attributes:
        found: Always empty.
    """

    def __init__(self, name: str, latencies: Latencies) -> None:
        self.found: list[Found] = []
        self._latencies = latencies
        self._taken: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)

    def take(self, told: Told) -> None:
        offset = told.offset
        if offset is None:
            return
        if told.event == "handled":
            self._take("received to handled", told.queue or "", offset, told)
        elif told.event == "arrived":
            self._take("received to arrived", told.key or "", offset, told)
        elif told.since is not None:
            for (stage, name), ranges in self._taken.items():
                # The first handling counts, but never one before the message arrived, which belongs to an earlier
                # epoch.
                done = min((at for end, at in ranges if end > offset and at >= told.at), default=None)
                if done is not None:
                    self._latencies.add(stage, name, done - told.since)

    def _take(self, stage: str, name: str, offset: int, told: Told) -> None:
        known = self._taken[stage, name]
        known[:] = [one for one in known if one[0] > offset]
        known.append((offset + (told.count or 1), told.at))

    def end(self) -> None:
        """Finish after the last event."""


DECIDERS: Mapping[str, Callable[[str, Latencies], Decider]] = {
    IN: OfInbound,
    OUT: OfOutbound,
    PLACE: OfPlace,
    WAY: OfWay,
}


def decide(events: Iterable[Told]) -> Iterator[Found]:
    """Return everything found in the events.

    Args:
        events: The events of each ``about`` together, in their order: of a partition by offset, ranges before messages;
            of everything else by time, run after run.
    """
    latencies = Latencies()
    for about, group in groupby(events, attrgetter("about")):
        kind, _, name = about.partition(" ")
        decider = DECIDERS[kind](name, latencies)
        found, take = decider.found, decider.take
        for told in group:
            take(told)
            if found:
                yield from found
                found.clear()
        decider.end()
        yield from found
        if len(latencies) > MOST_LATENCIES:
            yield from latencies.take()
    yield from latencies.take()
