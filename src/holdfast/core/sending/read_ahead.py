"""Reading ahead: what outboxes want read, asked for and given to them. Nothing here waits for a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox import Outbox


class ReadingAhead:
    """Asks for what outboxes want, and says that it is there.

    Args:
        effects: Where it asks.
        outboxes: By key.
        ready: Keys of those to look at.
    """

    def __init__(self, effects: list[Effect], outboxes: dict[str, Outbox], ready: dict[str, None]) -> None:
        self._effects = effects
        self._outboxes = outboxes
        self._ready = ready
        self._recovering: set[str] = set()

    @property
    def is_recovering(self) -> bool:
        """Whether it is not known yet which requests an earlier run may have transmitted. Until it is, nothing is sent,
        and nothing may be taken in: it would be taken for the answer to nothing."""
        return bool(self._recovering)

    def has(self, outbox: Outbox, source: RMSource, number: int, again: Callable[[float], None]) -> bool:
        """Whether the record of message ``number`` is in memory. If not, ``again(now)`` is called once it was read, or
        is found to be there no more."""
        offset = outbox.offset_of(number)
        if number == source.last_number or outbox.record(offset) is not None:
            return True
        outbox.wait_for(offset, again)
        self.ask(outbox)
        return False

    def ask(self, outbox: Outbox) -> None:
        """Have read what the outbox wants next, if anything."""
        wanted = outbox.wanted()
        if wanted is not None:
            start, end = wanted
            take = partial(self._read, outbox, start)
            self._effects.append(ReadWanted(outbox.queue.name, outbox.partition, start, end, take))

    def _read(self, outbox: Outbox, start: int, found: list[tuple[int, Record]], now: float) -> None:
        if self._outboxes.get(outbox.key) is not outbox:
            outbox.abandon(now)  # somebody deleted it meanwhile
            return
        outbox.take(start, found, now)
        self.ask(outbox)
        self._ready[outbox.key] = None

    def recover(self, outbox: Outbox) -> None:
        """Have read what an earlier run may have transmitted."""
        self._read_before(outbox, outbox.sent_before())

    def _read_before(self, outbox: Outbox, parts: list[tuple[int, int]]) -> None:
        if parts:
            self._recovering.add(outbox.key)
            take = partial(self._found_before, outbox, parts)
            self._effects.append(ReadWanted(outbox.queue.name, outbox.partition, *parts[0], take))
        else:
            self._recovering.discard(outbox.key)

    def _found_before(
        self, outbox: Outbox, parts: list[tuple[int, int]], found: list[tuple[int, Record]], now: float
    ) -> None:
        (start, end), *rest = parts
        if self._outboxes.get(outbox.key) is not outbox or outbox.source is None:
            self._recovering.discard(outbox.key)  # it was for a Sequence that nobody has any more
            return
        assert found and found[0][0] == start, (outbox.key, start)  # it is kept for us
        found = [(offset, record) for offset, record in found if offset < end]
        outbox.found_before(found)
        reached = found[-1][0] + 1
        self._read_before(outbox, [(reached, end), *rest] if reached < end else rest)
