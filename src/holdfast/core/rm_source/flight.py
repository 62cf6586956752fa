"""Flight: the numbers of one outbound Sequence that were transmitted and are not acknowledged.

Owns what is looked for among them, so that a message costs the same whatever the window: which are due again, when the
next one is, which is the lowest. Decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from holdfast.core.records import Record

Claim = Callable[[int], bool]
"""``claim(size)``: reserve room for a message of that many bytes, which then leaves; return whether there was room."""


def always(_size: int) -> bool:
    """Return True: there is room for every message."""
    return True


@dataclass(slots=True)
class InFlight:
    """A number that was transmitted and is not acknowledged. Times in seconds; ``due`` is when it is sent again."""

    sent_at: float
    due: float
    attempts: int
    first_sent_at: float
    answered: bool = False
    """Whether the exchange that carried it last is over."""
    tries: int = 0
    """Transmissions since it last was known to wait for another one: what its backoff counts."""
    waits_for: int = 0
    """A lower number in flight: it is not sent again before that is acknowledged. 0: none."""
    silences: int = 0
    """How often it was answered with nothing while every lower number was acknowledged."""
    message_id: str | None = None
    """Of the message, once it has left; a fault may name it."""
    size: int = 0
    """Bytes of its body."""
    faults: int = 0
    """Exchanges that carried it and were answered with a fault that does not end the Sequence."""
    arrived_at: float = math.inf
    """When it was acknowledged first, if it is a request, which stays in flight until its reply is here."""
    exchanges: int = 0
    """Open HTTP exchanges that carry it."""
    untaken: int = 0
    """Transmissions that the peer did not take: they never left, or its answer says that the Sequence is over."""

    behind: int = 0
    """The lowest number that was in flight when it left last; 0 if that was itself."""
    is_dropped: bool = False
    """Whether its destination dropped the last transmission because a lower number was missing."""
    drops: int = 0
    """Transmissions that its destination dropped so."""
    is_begun_again: bool = False
    """Whether it was in flight before and removed: it may have been transmitted before ``first_sent_at``."""

    @property
    def was_lost_once(self) -> bool:
        """Whether it was sent again for another reason than that its destination had dropped it."""
        return self.attempts - self.drops > 1

    @property
    def is_parked(self) -> bool:
        """Whether it is not sent again: the destination refuses it for good, or was asked whether it arrived."""
        return self.waits_for > 0 and self.due == math.inf

    @property
    def may_have_arrived(self) -> bool:
        """Whether an exchange that carried it did not end with a fault. A posted fault does not say which transmission
        it answers."""
        return self.attempts > self.faults + self.untaken

    @property
    def was_lost(self) -> bool:
        """Whether it is sent again because it may not have arrived: no request that only waits for its reply."""
        return self.attempts > 0 and self.arrived_at == math.inf


def size_of(record: Record | None) -> int:
    """Return the bytes of a message's body; None: the message that ends the Sequence, without one."""
    return 0 if record is None else len(record.body)


class Flight(dict[int, InFlight]):
    """Numbers in flight, ascending: they begin in that order.

    None is due before ``_due_from``, so that until then nobody looks at each of them. Whoever lets one be sent earlier
    says so here; that one is due later, or is acknowledged, may go unsaid: they are looked at once in vain.
    """

    __slots__ = ("_due_from", "_has_waiting", "_leaving", "asking", "bytes", "missing")

    def __init__(self) -> None:
        super().__init__()
        self.asking: set[int] = set()
        """Those whose last transmission asked for an acknowledgement and has no answer yet."""
        self.bytes = 0
        """Of the bodies of all."""
        self.missing = 0
        """The lowest due number that waits for its record to be read, or for room; 0: none, as far as was looked."""
        self._due_from = math.inf
        self._leaving: set[int] = set()
        """Those that were said to be due, and did not leave yet."""
        self._has_waiting = False
        """Whether one waits for a lower one."""

    def has_room(self, record: Record | None, most: int) -> bool:
        """Whether that body fits in beside the others, with ``most`` bytes in all. One always goes."""
        return not self or self.bytes + size_of(record) <= most

    def begin(self, number: int, record: Record | None, now: float) -> None:
        """``number`` is to leave now, for the first time; without a record it is nothing but the end."""
        size = size_of(record)
        self[number] = InFlight(now, now, 0, now, size=size)
        self.bytes += size
        self._leaving.add(number)

    def begin_again(self, number: int, record: Record | None, now: float) -> None:
        """``number``, which was removed, is to leave now, though higher ones are in flight."""
        self.begin(number, record, now)
        self[number].is_begun_again = True
        entries = sorted(self.items())
        self.clear()
        self.update(entries)

    def left(self, number: int, due: float) -> None:
        """``number`` leaves now; ``due`` is when it is sent again."""
        self._leaving.discard(number)
        self[number].due = due
        self._due_from = min(self._due_from, due)

    def ended(self, number: int, least: float | None) -> None:
        """An exchange that carried ``number`` is over; a request is not sent again before ``least``."""
        entry = self.get(number)
        if entry is None:
            return
        entry.exchanges = max(0, entry.exchanges - 1)
        if least is None:
            return
        entry.due = max(entry.due, least)
        self._due_from = min(self._due_from, -math.inf if entry.waits_for else entry.due)

    def has_arrived(self, number: int, now: float) -> None:
        """``number``, a request, is acknowledged."""
        entry = self.get(number)
        if entry is not None:
            entry.arrived_at = min(entry.arrived_at, now)

    def hurry(self, entry: InFlight, due: float) -> None:
        """Send that one again at ``due`` at the latest, unless it is parked."""
        if entry.is_parked:
            return
        entry.due = min(entry.due, due)
        self._due_from = min(self._due_from, due)

    def wait(self, number: int, lower: int, due: float) -> None:
        """``number`` is sent again once ``lower`` is acknowledged, or at ``due`` if it is a request without a reply."""
        entry = self[number]
        entry.due = due
        entry.waits_for = lower
        self._leaving.discard(number)
        self._has_waiting = True
        self._due_from = min(self._due_from, due)

    @property
    def has_waiting(self) -> bool:
        """Whether one waits for a lower one, or did when :meth:`due` looked last."""
        return self._has_waiting

    def leaving(
        self, due: Mapping[int, Record | None], last_number: int | None, claim: Claim
    ) -> tuple[list[int], bool]:
        """Return the due numbers that leave now, and whether there was room for all. The others are held.

        Args:
            due: Number -> its record. A number whose record is not in memory (None) is held.
            last_number: The number that leaves without a record.
            claim: Reserves room. Numbers above one without room are held.
        """
        leaving, held, has_room = [], [], True
        for number, record in due.items():
            if has_room and (record is not None or number == last_number):
                has_room = claim(size_of(record))
                if has_room:
                    leaving.append(number)
                    continue
            held.append(number)
        if held:
            self.hold(held)
        return leaving, has_room

    def hold(self, numbers: list[int]) -> None:
        """Those are due, and cannot leave before their records are read, or there is room: until then the time alone
        says nothing."""
        self.missing = numbers[0]
        self._leaving.difference_update(numbers)

    def remove(self, number: int) -> InFlight | None:
        """``number`` is in flight no more; what it was, None if it was not."""
        entry = self.pop(number, None)
        if entry is not None:
            self.bytes -= entry.size
        self.asking.discard(number)
        self._leaving.discard(number)
        if self._has_waiting:
            self._due_from = -math.inf  # one may have waited for it
        elif not self:
            self._due_from = math.inf
        return entry

    def may_be_untaken(self, number: int) -> bool:
        """Whether the peer took no transmission of ``number``, as far as answers have come."""
        entry = self.get(number)
        return entry is not None and entry.attempts - entry.exchanges <= entry.untaken

    @property
    def untaken(self) -> list[int]:
        """Those of which the peer took no transmission."""
        return [number for number, entry in self.items() if 0 < entry.attempts == entry.untaken]

    @property
    def lowest(self) -> int:
        """The lowest number in flight, 0 if there is none."""
        return next(iter(self), 0)

    @property
    def waiting_since(self) -> float | None:
        """When the one was first sent that is in flight for longest; None if there is none."""
        return next((entry.first_sent_at for entry in self.values()), None)

    def due(self, now: float, unreplied: Container[int], replying: Container[int] = ()) -> list[int]:
        """Numbers to send again now, ascending. A request is not among them while an exchange that carries it is open.

        Args:
            now: Seconds.
            unreplied: Requests that wait for a reply.
            replying: Of these, requests whose reply is on its way to the store.
        """
        if now < self._due_from and not self._leaving and not self.missing:
            return []
        self.missing = 0
        numbers: list[int] = []
        self._due_from = math.inf
        self._has_waiting = False
        for number, entry in self.items():
            due = entry.due
            if entry.waits_for:
                self._has_waiting = True
                due = self._due_behind(number, entry, unreplied)
            if number in unreplied and (entry.exchanges or number in replying):
                continue
            if due <= now:
                numbers.append(number)
            elif due < self._due_from:
                self._due_from = due
        self._leaving = set(numbers)  # what began and may not leave yet is no reason to look again at once
        return numbers

    def _due_behind(self, number: int, entry: InFlight, unreplied: Container[int]) -> float:
        """When a number that waits for a lower one is sent again: as soon as that is acknowledged, and not before."""
        if entry.waits_for not in self:
            return -math.inf
        # A request may be there without an answer saying so, while its reply takes its time: it is asked for again.
        return entry.due if number in unreplied else math.inf

    @property
    def deadline(self) -> float | None:
        """The earliest time at which :meth:`due` may have one; None if there is none without something happening."""
        if self._leaving:
            return -math.inf
        return None if self._due_from == math.inf else self._due_from
