"""Reading ahead: requests to the store for outboxes' records, and their results.

Nothing here waits for a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbound_room import OutboundRoom
from holdfast.core.sending.outboxes.outbox import Outbox

MOST_AT_A_TIME = 4
"""Maximum number of outboxes that read at the same time. Each read may return one record of any size."""


class ReadingAhead:
    """Reads the records that outboxes need."""

    def __init__(
        self, effects: list[Effect], outboxes: Mapping[str, Outbox], ready: dict[str, None], room: OutboundRoom
    ) -> None:
        self._effects = effects
        self._outboxes = outboxes
        self._ready = ready
        self._room = room
        self._under_way = 0
        self._line: dict[str, None] = {}
        """Keys of outboxes that wait to read, in order."""
        self._recovering: set[str] = set()

    @property
    def is_recovering(self) -> bool:
        """Whether the requests that an earlier run may have transmitted are still unknown.

        Until they are known, nothing is sent and nothing may be received: a reply would match no request.
        """
        return bool(self._recovering)

    def is_reading(self, outbox: Outbox) -> bool:
        """Return whether the outbox reads, or waits to read."""
        return outbox.records.is_reading or outbox.key in self._line

    def has(self, outbox: Outbox, source: RMSource, number: int, again: Callable[[float], None]) -> bool:
        """Whether message ``number`` is in memory; if not, ``again(now)`` follows its read.

        ``again`` is also called if the record proves to be deleted.
        """
        offset = outbox.records.offset_of(number)
        if number == source.numbers.last or outbox.records.record(offset) is not None:
            return True
        outbox.records.wait_for(offset, again)
        self.ask(outbox)
        return False

    def ask(self, outbox: Outbox) -> None:
        """Read the records that the outbox needs next, if any."""
        if outbox.records.is_reading:
            return
        # A decision waits for this record, so neither the window nor the line of the destination delays it.
        start = outbox.records.awaited
        if start is None:
            start = outbox.records.wanted
            if start is None or not self._room.may_read(outbox.key, outbox.to or ""):
                return
        if self._under_way >= MOST_AT_A_TIME:
            self._line[outbox.key] = None
            return
        self._under_way += 1
        start, end = outbox.records.begin_reading(start)
        take = partial(self._read, outbox, start)
        self._effects.append(ReadWanted(outbox.records.queue.name, outbox.records.partition, start, end, take))

    def _ask_next(self) -> None:
        while self._line and self._under_way < MOST_AT_A_TIME:
            key = next(iter(self._line))
            del self._line[key]
            outbox = self._outboxes.get(key)
            if outbox is not None:
                self.ask(outbox)

    def _read(self, outbox: Outbox, start: int, found: list[tuple[int, Record]], now: float) -> None:
        self._under_way -= 1
        self._ask_next()
        if self._outboxes.get(outbox.key) is not outbox:
            outbox.records.abandon(now)  # it was deleted meanwhile
            return
        outbox.records.take(start, found, now)
        self.ask(outbox)
        self._ready[outbox.key] = None

    def recover(self, outbox: Outbox) -> None:
        """Read the records that an earlier run may have transmitted."""
        self._read_before(outbox, outbox.records.sent_before())

    def _read_before(self, outbox: Outbox, parts: list[tuple[int, int]]) -> None:
        if parts:
            self._recovering.add(outbox.key)
            take = partial(self._found_before, outbox, parts)
            self._effects.append(ReadWanted(outbox.records.queue.name, outbox.records.partition, *parts[0], take))
        else:
            self._recovering.discard(outbox.key)

    def _found_before(
        self, outbox: Outbox, parts: list[tuple[int, int]], found: list[tuple[int, Record]], now: float
    ) -> None:
        (start, end), *rest = parts
        if self._outboxes.get(outbox.key) is not outbox or outbox.source is None:
            self._recovering.discard(outbox.key)  # it was for a Sequence that no longer exists
            return
        assert found and found[0][0] == start, (outbox.key, start)  # the store keeps it for the outbox
        found = [(offset, record) for offset, record in found if offset < end]
        outbox.found_before(found)
        reached = found[-1][0] + 1
        self._read_before(outbox, [(reached, end), *rest] if reached < end else rest)
