"""HandlerCursor: which records of a queue partition a handler gets next or has finished.

In order, one record of a Sequence at a time; records of different Sequences do not wait for each other. A failed record
is due again after a backoff, and becomes a dead letter when it has failed too often.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.exceptions import ConfigurationError
from holdfast.settings import SecondsOrZero, check_settings


@dataclass(frozen=True, slots=True)
class HandlingPolicy:
    """How often and with what pauses a destination retries a failing handler, and how many handlers run at a time.

    Args:
        attempts: The number of failures that make a message a dead letter; None: retry until the handler succeeds.
        backoff: Seconds before the second attempt; the pause doubles before each further attempt.
        backoff_cap: The longest pause, in seconds.
        ahead: The number of records read beyond the first unfinished one. It bounds memory, and how far other
            Sequences may get ahead of a waiting one.
        concurrency: The number of handlers that run at a time. Plain (not async) handlers run in as many threads.

    Raises:
        ConfigurationError: a number is not valid, or two contradict each other.
    """

    attempts: int | None = 5
    backoff: SecondsOrZero = 0.5
    backoff_cap: SecondsOrZero = 30.0
    ahead: int = 1024
    concurrency: int = 32

    def __post_init__(self) -> None:
        check_settings(self)
        if self.backoff > self.backoff_cap:
            raise ConfigurationError(
                f"HandlingPolicy(backoff={self.backoff:g}) is above backoff_cap={self.backoff_cap:g}",
                remedy="backoff is the shortest pause between attempts: raise backoff_cap as well.",
            )


@dataclass(slots=True)
class _Entry:
    offset: int
    sequence: str
    attempts: int = 0
    due: float = 0.0


class HandlerCursor:
    """The cursor of one partition.

    Offsets start at 0. Internally they are kept as numbers from 1, because acknowledgement ranges start at 1.

    Args:
        policy: How often, and with what pauses, a handler is retried.
        in_order: Whether the records of one Sequence are handled one after the other.
        state: A value that :meth:`to_state` returned; None for a new partition.
    """

    def __init__(self, policy: HandlingPolicy, in_order: bool, state: State | None = None):
        self.policy = policy
        self.in_order = in_order
        self._done = AcknowledgementRanges.from_state(state["done"]) if state is not None else AcknowledgementRanges()
        self.next_offset = self.floor
        """The first offset not offered yet."""
        self._waiting: dict[str, deque[_Entry]] = {}
        self._running: dict[int, _Entry] = {}
        self._ready: dict[int, _Entry] = {}
        self._delayed: list[_Entry] = []

    @property
    def floor(self) -> int:
        """The lowest unfinished offset: every offset below it is finished."""
        return self._done.first_gap - 1

    def unfinished(self, end: int) -> int:
        """Return how many offsets below ``end`` are unfinished."""
        return end - self._done.count

    def is_done(self, offset: int) -> bool:
        """Return whether the record at the offset is finished."""
        return offset + 1 in self._done

    @property
    def limit(self) -> int:
        """The first offset that the cursor does not accept yet."""
        return self.floor + self.policy.ahead

    @property
    def has_room(self) -> bool:
        """Return whether the cursor accepts another record."""
        return self.next_offset < self.limit

    def offer(self, offset: int, sequence: str) -> bool:
        """Offer the next record; return whether a handler must get it, or already has it.

        A finished record is skipped.
        """
        assert offset == self.next_offset, (offset, self.next_offset)
        self.next_offset = offset + 1
        if self.is_done(offset):
            return False
        # Since before a rewind: it is offered once, and finishes as it would have.
        if offset in self._running or any(entry.offset == offset for entry in self._delayed):
            return True  # since before the rewind
        entry = _Entry(offset, sequence)
        if not self.in_order:
            self._ready[offset] = entry
            return True
        line = self._waiting.get(sequence)
        if line is None:
            self._waiting[sequence] = deque([entry])
            self._ready[offset] = entry
        else:
            line.append(entry)
        return True

    def wake(self, now: float) -> bool:
        """Make failed records with a due retry available, and return whether there are any."""
        due = [entry for entry in self._delayed if entry.due <= now]
        for entry in due:
            self._delayed.remove(entry)
            self._ready[entry.offset] = entry
        return bool(due)

    def take(self, now: float) -> int | None:
        """Return the offset of a record to handle now, or None.

        Call :meth:`finished` or :meth:`failed` afterwards.
        """
        if self._delayed:
            self.wake(now)
        if not self._ready:
            return None
        offset = next(iter(self._ready))
        entry = self._ready.pop(offset)
        entry.attempts += 1
        self._running[offset] = entry
        return offset

    def attempts(self, offset: int) -> int:
        """Return how often the running record has been handled, this time included."""
        return self._running[offset].attempts

    def give_up_on(self, offset: int) -> None:
        """Count the running record as finished from now on (at most once).

        Its Sequence's next record still waits for :meth:`finished`.
        """
        # Done as far as a crash is concerned; in this process its Sequence still waits for it.
        self._done.add(offset + 1)

    def finished(self, offset: int) -> None:
        """Finish a handled, answered or dead record. Save :meth:`to_state` in the same batch."""
        entry = self._running.pop(offset)
        self._done.add(offset + 1)
        if not self.in_order:
            return
        line = self._waiting[entry.sequence]
        line.popleft()
        # In order, the Sequence's next record becomes available only now.
        if line:
            self._ready[line[0].offset] = line[0]
        else:
            del self._waiting[entry.sequence]

    def failed(self, offset: int, now: float) -> bool:
        """Schedule a retry after a failure; return False if it has failed too often for that."""
        entry = self._running[offset]
        if self.policy.attempts is not None and entry.attempts >= self.policy.attempts:
            return False
        del self._running[offset]
        # The limit of the exponent keeps the float from overflowing; the cap applies long before.
        entry.due = now + min(self.policy.backoff_cap, self.policy.backoff * 2.0 ** min(entry.attempts - 1, 30))
        self._delayed.append(entry)
        return True

    def skip(self, offset: int) -> bool:
        """Discard a record; return False if a handler has it, or it is finished."""
        if offset in self._running or self.is_done(offset):
            return False
        self._done.add(offset + 1)
        self._ready.pop(offset, None)
        self._delayed = [entry for entry in self._delayed if entry.offset != offset]
        for sequence, line in self._waiting.items() if offset < self.next_offset else ():
            entry = next((entry for entry in line if entry.offset == offset), None)
            if entry is not None:
                self._take_from_line(sequence, line, entry)
                break
        return True

    def _take_from_line(self, sequence: str, line: deque[_Entry], entry: _Entry) -> None:
        was_first = line[0] is entry
        line.remove(entry)
        if not line:
            del self._waiting[sequence]
        elif was_first:
            self._ready[line[0].offset] = line[0]

    def rewind(self, offset: int) -> None:
        """Offer every record from ``offset`` on again.

        A record that a handler has is not offered again until that handler is done; the rest of its Sequence waits for
        it.
        """
        # Everything from there on is open again. What runs stays, and is not begun twice.
        self._done = AcknowledgementRanges([(1, offset)] if offset else [])
        self.next_offset = offset
        self._ready.clear()
        self._delayed.clear()
        self._waiting = {}
        # The rest of a Sequence waits behind its record that runs.
        if self.in_order:
            self._waiting = {entry.sequence: deque([entry]) for entry in self._running.values()}

    def deadline(self) -> float | None:
        """When a delayed record is due, None if none is."""
        return min((entry.due for entry in self._delayed), default=None)

    def to_state(self) -> State:
        return {"done": self._done.to_state()}
