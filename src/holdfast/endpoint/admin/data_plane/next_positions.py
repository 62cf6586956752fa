"""Route for a reader's next batch: one request waits for records, admits the oldest and compares fingerprints.

A reader such as a stream of Spark asks once for each batch, whatever the number of queues and partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import Any, Final

from holdfast.core.queues.description import fingerprint_of
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import Search as SearchByTime
from holdfast.core.records import Record
from holdfast.endpoint.admin.data_plane.admission import Guess, Probe, oldest
from holdfast.endpoint.admin.data_plane.readers import (
    another_record,
    check_epoch,
    seconds_of,
)
from holdfast.endpoint.admin.numbering import Numbering, numbering_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import NextPositions
from holdfast.endpoint.admin.shapes.requests import NextQuery, Position
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.exceptions import StoreError

MAX_WAIT: Final = 60.0
"""Seconds that an answer may be held back."""
LARGEST_QUERY: Final = 8 << 20
"""Bytes of JSON that say where a reader stands: 100,000 partitions."""
READING_AT_A_TIME: Final = 2
"""Requests that read the store."""

Where = tuple[str, int]
"""A partition of a queue."""
Search = Generator[Probe[Where], Mapping[Where, int], tuple[dict[Where, int], Guess]]


class NextRoute:
    def __init__(self, app: RunningDestination) -> None:
        self._app = app
        self._reading = asyncio.Semaphore(READING_AT_A_TIME)

    @route(
        "POST",
        "next-positions",
        NextPositions,
        body=NextQuery,
        largest=LARGEST_QUERY,
        errors=(409, 416),
        is_told=False,
        joined=Joined.NEXT,
    )
    async def _next(self, asked: Asked) -> object:
        """Wait for records, and return the end of a reader's next batch."""
        query: NextQuery = asked.body
        queues = self._app.queues
        numbers = numbering_of(self._app)
        found = [_Reading(queues[name], one, numbers) for name, one in query.queues.items() if name in queues]
        readers = [self._app.readers[one.queue.name] for one in found]

        def is_enough() -> bool:
            return sum(one.waiting for one in found) >= query.least or any(one.has_lost for one in found)

        await Readers.wait(readers, is_enough, min(MAX_WAIT, query.wait))
        for one in found:
            one.see()
        others = queues.values() if query.others else ()
        answers = {one.name: {"epoch": one.description.epoch, "partitions": numbers.bounds(one)} for one in others}
        answers |= {one.queue.name: one.shown for one in found}
        guess = Guess(round(self._app.engine.clock() * 1e6))
        if query.guess is not None:
            guess = Guess(query.guess.ended, query.guess.width)
        if any(one.has_moved for one in found):
            guess = await self._planned(found, query.most, guess)
        return {"v": 1, "queues": answers, "guess": {"ended": guess.ended, "width": guess.width}}

    async def _planned(self, found: list[_Reading], most: int | None, guess: Guess) -> Guess:
        async with self._reading:
            try:
                return await asyncio.to_thread(self._plan, found, most, guess)
            except StoreError as error:
                self._app.engine.fail(error)
                raise

    # --- in a thread, since the store is read ---------------------------------------------------------------------

    def _plan(self, found: list[_Reading], most: int | None, guess: Guess) -> Guess:
        """Cut the batch, and compare and find fingerprints."""
        if most is not None:
            since = {(one.queue.name, p): at for one in found for p, at in one.since.items()}
            ends = {(one.queue.name, p): at for one in found for p, at in one.ends.items()}
            until, guess = self._searched(oldest(since, ends, most, guess))
            for one in found:
                one.ends = {p: until[one.queue.name, p] for p in one.ends}
        for one in found:
            one.shown["offsets"] = one.numbers.numbered(one.ends)
            if one.has_moved:
                one.shown["fingerprints"] = self._fingerprints(one)
        return guess

    def _searched(self, search: Search) -> tuple[dict[Where, int], Guess]:
        try:
            probe = next(search)
            while True:
                time = seconds_of(probe.time)
                probe = search.send({one: self._offset_at(one, *part, time) for one, part in probe.within.items()})
        except StopIteration as over:
            found: tuple[dict[Where, int], Guess] = over.value
            return found

    def _offset_at(self, where: Where, start: int, end: int, time: float) -> int:
        search = SearchByTime(start, end, time)
        while (probe := search.probe) is not None:
            record = self._record(*where, probe)
            search.take(-1.0 if record is None else record.delivered_at)  # a deleted record is older than any other
        return search.found

    def _record(self, queue: str, partition: int, offset: int) -> Record | None:
        found = self._app.store.read(queue, partition, offset, offset + 1)
        return found[0][1] if found and found[0][0] == offset else None

    def _fingerprints(self, one: _Reading) -> dict[str, str]:
        """Compare the reader's fingerprints with the stored records, and return those at the end of the batch."""
        found = {}
        for partition, at in one.ends.items():
            position = one.stands.get(partition, 0)
            theirs, ours = one.known.get(partition, ""), ""
            if theirs:
                ours = self._fingerprint(one.queue, partition, position)
                if ours and ours != theirs:
                    raise another_record(one.queue, one.numbers.partition(partition), position)
            found[partition] = ours if ours and at == position else self._fingerprint(one.queue, partition, at)
        return one.numbers.numbered(found)

    def _fingerprint(self, queue: Queue, partition: int, position: int) -> str:
        known = queue.description.fingerprint(partition, position)
        if known is not None:
            return known
        record = self._record(queue.name, partition, position - 1)
        # The retention may have deleted the record meanwhile; then the queue has saved its fingerprint.
        return fingerprint_of(record) if record else queue.description.fingerprint(partition, position) or ""


class _Reading:
    """One queue, and a reader's position in this worker's partitions of it, numbered from 0.

    Raises:
        Refused: The position is of another queue, names an unknown partition, or ends beyond the queue's end.
    """

    def __init__(self, queue: Queue, asked: Position, numbers: Numbering) -> None:
        check_epoch(queue, asked.epoch)
        self.queue, self.numbers = queue, numbers
        self.stands, self.known = numbers.owned(asked.offsets), numbers.owned(asked.fingerprints)
        self._until = None if asked.until is None else numbers.owned(asked.until)
        for own, end in (self._until or {}).items():
            if end > (there := queue.partitions[own].durable_end):
                number = numbers.partition(own)
                raise Refused(
                    416, f"partition {number} of queue {queue.name!r} ends at {there}", "Request fewer records."
                )
        self.since: dict[int, int] = {}
        """Start of the batch, after deleted records."""
        self.ends: dict[int, int] = {}
        """End of the batch."""
        self.shown: dict[str, Any] = {}

    def _ends(self) -> dict[int, int]:
        if self._until is not None:
            return self._until
        return {one: partition.durable_end for one, partition in enumerate(self.queue.partitions)}

    def _since(self, ends: Mapping[int, int]) -> dict[int, int]:
        partitions, stands = self.queue.partitions, self.stands
        return {one: min(max(partitions[one].first, stands.get(one, 0)), end) for one, end in ends.items()}

    @property
    def waiting(self) -> int:
        ends = self._ends()
        return sum(ends.values()) - sum(self._since(ends).values())

    @property
    def has_lost(self) -> bool:
        """Whether records were deleted before the reader read them."""
        return any(self.stands.get(one, 0) < at for one, at in self._since(self._ends()).items())

    def see(self) -> None:
        self.ends = dict(self._ends())
        self.since = self._since(self.ends)
        self.shown |= {"epoch": self.queue.description.epoch, "partitions": self.numbers.bounds(self.queue)}
        self.shown |= {"offsets": self.numbers.numbered(self.ends), "fingerprints": {}}

    @property
    def has_moved(self) -> bool:
        return any(at != self.stands.get(one, 0) for one, at in self.ends.items())
