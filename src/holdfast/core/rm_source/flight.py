"""Flight: the numbers of one outbound Sequence that were transmitted and are not acknowledged.

Maintains the results of searches among them, so that the cost of a message does not depend on the window: which numbers
are due again, when the next one is due, and which is the lowest. It makes no decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from holdfast.core.records import Record, content_size

Claim = Callable[[int], bool]
"""``claim(size)``: reserve room for a message of ``size`` bytes, which then leaves; return whether there was room."""


def always(_size: int) -> bool:
    """Return True: there is room for every message."""
    return True


@dataclass(slots=True)
class InFlight:
    """A transmitted, unacknowledged number. Times in seconds; ``due`` is the time of its retransmission."""

    sent_at: float
    due: float
    attempts: int
    first_sent_at: float
    answered: bool = False
    """Whether the latest exchange of the number has ended."""
    tries: int = 0
    """Transmissions since the number last waited for a lower one; the backoff depends on this count."""
    waits_for: int = 0
    """A lower number in flight that must be acknowledged before this one is retransmitted. 0: none."""
    silences: int = 0
    """How often the peer gave an empty answer while every lower number was acknowledged."""
    message_id: str | None = None
    """MessageID of the message, once it has left; a fault may name it."""
    size: int = 0
    """Bytes of its body."""
    is_streamed: bool = False
    """Whether its attachments are in the store: a transmission may take minutes, so another one waits for its end."""
    faults: int = 0
    """Exchanges of the number that ended with a fault that does not end the Sequence."""
    arrived_at: float = math.inf
    """When a request was first acknowledged. A request stays in flight until its reply arrives."""
    exchanges: int = 0
    """Open HTTP exchanges of the number."""
    answers: int = 0
    """How many exchanges of a reply ended with an answer."""
    untaken: int = 0
    """Transmissions that the peer did not accept: they never left, or its answer ended the Sequence."""

    behind: int = 0
    """The lowest number in flight at the latest transmission; 0 if this was the lowest."""
    is_dropped: bool = False
    """Whether the destination dropped the latest transmission because a lower number was missing."""
    drops: int = 0
    """Transmissions that the destination dropped for that reason."""
    is_begun_again: bool = False
    """Whether the number was in flight before and removed: it may have left before ``first_sent_at``."""
    too_large: str = ""
    """Why the latest answer could not be read, if it was too large; "" for any other answer."""
    unproven: int = 0
    """Replies that were too large to check who sent them."""
    is_parked: bool = False
    """Whether the number is not retransmitted before :meth:`Flight.release`."""

    @property
    def was_lost_once(self) -> bool:
        """Whether the number was retransmitted for a reason other than a drop by the destination."""
        return self.attempts - self.drops > 1

    @property
    def may_have_arrived(self) -> bool:
        """Whether an exchange of the number ended without a fault.

        A fault on another connection does not identify the transmission that it answers.
        """
        return self.attempts > self.faults + self.untaken

    @property
    def was_lost(self) -> bool:
        """Whether the number is retransmitted because it may be lost, and not only to obtain the reply to a request."""
        return self.attempts > 0 and self.arrived_at == math.inf


def size_of(record: Record | None) -> int:
    """Return the size of a message's body in bytes; None stands for the final message, which has no record."""
    return 0 if record is None else len(record.body) + len(record.attachments)


class Flight(dict[int, InFlight]):
    """Numbers in flight, in ascending order, which is the order of their first transmission.

    No number is due before ``_due_from``, so until then :meth:`due` need not examine them. A change that makes a number
    due earlier must update ``_due_from``. A change that makes it due later, or an acknowledgement, need not: the cost
    is one unnecessary examination.
    """

    __slots__ = ("_due_from", "_leaving", "asking", "bytes", "has_waiting", "left_alone", "missing", "passed_over")

    def __init__(self) -> None:
        super().__init__()
        self.asking: set[int] = set()
        """Numbers with a latest transmission that asked for an acknowledgement and has no answer yet."""
        self.bytes = 0
        """Total size of the bodies."""
        self.missing = 0
        """The lowest due number that waits for its record to be read, or for room; 0: no such number found so far."""
        self.passed_over: set[int] = set()
        """Replies that hold back no other number: see :meth:`pass_over`."""
        self.left_alone: set[int] = set()
        """Replies that are not retransmitted before their requester asks for them: see :meth:`leave`."""
        self._due_from = math.inf
        self._leaving: set[int] = set()
        """Numbers that are due now and have not left yet."""
        self.has_waiting = False
        """Whether a number waits for a lower one, or did at the latest :meth:`due`."""

    def has_room(self, record: Record | None, most: int) -> bool:
        """Whether the body fits in addition to the others, with ``most`` bytes in total. Alone, each fits."""
        return not self.counted or self.bytes + size_of(record) <= most

    @property
    def counted(self) -> int:
        """How many numbers count towards the window."""
        return len(self) - len(self.passed_over)

    def begin(self, number: int, record: Record | None, now: float) -> None:
        """Add ``number``, which leaves now for the first time; without a record, it is the final message."""
        size = size_of(record)
        is_streamed = record is not None and content_size(record.attachments) > 0
        self[number] = InFlight(now, now, 0, now, size=size, is_streamed=is_streamed)
        self.bytes += size
        self._leaving.add(number)

    def begin_again(self, number: int, record: Record | None, now: float) -> None:
        """Add ``number`` again after its removal. It leaves now, although higher numbers are in flight."""
        self.begin(number, record, now)
        self[number].is_begun_again = True
        # The order of the dict is the order of the numbers, on which ``lowest`` depends.
        entries = sorted(self.items())
        self.clear()
        self.update(entries)

    def left(self, number: int, due: float) -> None:
        """Record that ``number`` leaves now; ``due`` is the time of its retransmission."""
        self._leaving.discard(number)
        self[number].due = due
        self._due_from = min(self._due_from, due)

    def ended(self, number: int, least: float | None) -> None:
        """Record the end of an exchange of ``number``; a request is not retransmitted before ``least``."""
        entry = self.get(number)
        if entry is None:
            return
        entry.exchanges = max(0, entry.exchanges - 1)
        # A streamed message is not due while an exchange of it is open: now it may be.
        if entry.is_streamed and not entry.exchanges and not entry.waits_for:
            self._due_from = min(self._due_from, entry.due)
        if least is None:
            return
        entry.due = max(entry.due, least)
        # A number that waits has no due time, so the next call must examine it.
        self._due_from = min(self._due_from, -math.inf if entry.waits_for else entry.due)

    def has_arrived(self, number: int, now: float) -> None:
        """Record that the request ``number`` is acknowledged."""
        entry = self.get(number)
        if entry is not None:
            entry.arrived_at = min(entry.arrived_at, now)

    def hurry(self, entry: InFlight, due: float) -> None:
        """Retransmit a number at ``due`` at the latest, unless it is parked."""
        if entry.is_parked:
            return
        entry.due = min(entry.due, due)
        self._due_from = min(self._due_from, due)

    def wait(self, number: int, lower: int, due: float) -> None:
        """Retransmit ``number`` once ``lower`` is acknowledged, or at ``due`` if it is a request without a reply."""
        entry = self[number]
        entry.due = due
        entry.waits_for = lower
        self._leaving.discard(number)
        self.has_waiting = True
        self._due_from = min(self._due_from, due)

    def park(self, number: int) -> None:
        """Do not retransmit ``number``: the peer refuses it permanently, or must first report whether it arrived."""
        entry = self[number]
        entry.is_parked = True
        # It waits for nothing: only release() brings it back.
        entry.waits_for, entry.due = 0, math.inf
        self._leaving.discard(number)

    def pass_over(self, number: int) -> None:
        """Continue to retransmit a reply, but let it hold back no other one.

        Its requester received it several times and may never acknowledge it: a call that has failed takes no reply
        (CXF). The replies to the requester's other calls do not depend on it.
        """
        entry = self[number]
        self.passed_over.add(number)
        # Its bytes count no longer, as its number does not: neither holds back another reply.
        self.bytes -= entry.size
        entry.size = 0
        self._due_from = -math.inf  # another number may have waited for it

    def leave(self, number: int) -> None:
        """Do not retransmit a reply before its requester asks for it: it was repeated for long enough."""
        self.park(number)
        self.left_alone.add(number)

    def demand(self, number: int, at: float) -> None:
        """Retransmit ``number`` at ``at`` at the latest: the peer has asked for it."""
        entry = self[number]
        if number in self.left_alone:
            self.left_alone.discard(number)
            entry.is_parked, entry.first_sent_at = False, at
        self.hurry(entry, at)

    def release(self, number: int, now: float) -> None:
        """Retransmit ``number`` now, although it was parked or waits for a lower one."""
        entry = self[number]
        entry.is_parked = False
        self.left_alone.discard(number)
        entry.waits_for = 0
        self.hurry(entry, now)

    def leaving(
        self, due: Mapping[int, Record | None], last_number: int | None, claim: Claim
    ) -> tuple[list[int], bool]:
        """Return the due numbers that leave now, and whether there was room for all of them. Hold the others.

        Args:
            due: Number -> its record. A number without a record in memory (None) is held.
            last_number: The number that leaves without a record.
            claim: Reserves room. Numbers above one without room are held.
        """
        leaving, held, has_room = [], [], True
        # In order: behind a number without room, none leaves, so a large message is not overtaken for ever.
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
        """Hold due numbers until their records are read, or until there is room, regardless of the time."""
        self.missing = numbers[0]
        # A held number must not make the next call due at once: it waits for a read or for room, not for time.
        self._leaving.difference_update(numbers)

    def remove(self, number: int) -> InFlight | None:
        """Remove ``number`` from flight, and return its entry, None if it was not in flight."""
        entry = self.pop(number, None)
        if entry is not None:
            self.bytes -= entry.size
        self.asking.discard(number)
        self.passed_over.discard(number)
        self.left_alone.discard(number)
        self._leaving.discard(number)
        if self.has_waiting:
            self._due_from = -math.inf  # another number may have waited for it
        elif not self:
            self._due_from = math.inf
        return entry

    def not_taken(self, number: int) -> None:
        """Record that a transmission of ``number`` never left, or that its answer ended the Sequence."""
        entry = self.get(number)
        if entry is not None:
            entry.untaken += 1

    def answered_too_large(self, number: int, reason: str) -> None:
        """Record why the answer to ``number`` cannot be read; "": a later answer could be read."""
        entry = self.get(number)
        if entry is not None:
            entry.too_large = reason

    def may_be_untaken(self, number: int) -> bool:
        """Whether the peer accepted no transmission of ``number`` among those with an ended exchange."""
        entry = self.get(number)
        return entry is not None and entry.attempts - entry.exchanges <= entry.untaken

    @property
    def untaken(self) -> list[int]:
        """Numbers without a transmission that the peer accepted."""
        # Every transmission was in vain; one that is still in an exchange may yet arrive.
        return [number for number, entry in self.items() if 0 < entry.attempts == entry.untaken]

    def number_of(self, message_id: str | None) -> int:
        """Return the number of the message with this MessageID, 0 without one."""
        if message_id is None:
            return 0
        return next((number for number, entry in self.items() if entry.message_id == message_id), 0)

    @property
    def lowest(self) -> int:
        """The lowest number in flight, 0 without one."""
        return next(iter(self), 0)

    @property
    def waiting_since(self) -> float | None:
        """First transmission time of the number that has been in flight longest; None without one."""
        return next((entry.first_sent_at for entry in self.values()), None)

    def due(self, now: float, unreplied: Container[int], replying: Container[int] = ()) -> list[int]:
        """Return the numbers to send now, ascending, without requests and streamed messages with an open exchange.

        Args:
            unreplied: Requests that wait for a reply.
            replying: The requests among them with a reply that the store is writing.
        """
        # For most calls: no number is due, and none needs an examination.
        if now < self._due_from and not self._leaving and not self.missing:
            return []
        self.missing = 0
        numbers: list[int] = []
        self._due_from = math.inf
        self.has_waiting = False
        for number, entry in self.items():
            due = entry.due
            if entry.waits_for:
                self.has_waiting = True
                due = self._due_behind(number, entry, unreplied)
            # While an exchange is open its reply may come back on it; a destination answers the repeat with an
            # acknowledgement alone (CXF), which would mean that no reply follows.
            if number in unreplied and (entry.exchanges or number in replying):
                continue
            # A second copy of a package of gigabytes would only slow down the first.
            if entry.is_streamed and entry.exchanges:
                continue
            if due <= now:
                numbers.append(number)
            elif due < self._due_from:
                self._due_from = due
        self._leaving = set(numbers)  # other new numbers that cannot leave yet must not make the next call due now
        return numbers

    def _due_behind(self, number: int, entry: InFlight, unreplied: Container[int]) -> float:
        """Return when a number that waits for a lower one is due: once the lower one is acknowledged or passed over."""
        if entry.waits_for not in self or entry.waits_for in self.passed_over:
            return -math.inf
        # A request may have arrived without an acknowledgement while its reply is pending: repeat it to get the reply.
        return entry.due if number in unreplied else math.inf

    @property
    def deadline(self) -> float | None:
        """The earliest time at which :meth:`due` may return a number; None if only an event can make one due."""

        if self._leaving:
            return -math.inf
        return None if self._due_from == math.inf else self._due_from
