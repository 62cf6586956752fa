"""Records of an outbox: a cursor over one partition of a queue, and the Sequence that carries the records behind it.

The queue is either the outbox's private queue, which holds the messages of an application, or any other queue. A
forwarder sends the records of the latter without a copy. Message number n of a Sequence is the n-th record from the
offset where the Sequence began, so numbers need no separate write and are the same after a crash. The queue keeps every
record that the cursor has not passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from holdfast.core.commit import Opened
from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.queues.partitions import Partition
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.read_ahead_buffer import Here

READ_AHEAD = 64
"""Number of records in one read of the store, which begins while as many are still unsent: the window is seldom
larger. At most three times as many are in memory."""

MOST_CUTS = 256
"""Maximum number of pending cuts. Cuts accumulate while nothing can be sent."""

SAVE_EVERY = 64
"""Number of newly acknowledged messages that are saved together. A crash costs as many retransmissions."""


def outbox_queue(key: str) -> str:
    """Return the name of the queue of messages that an application sends under a sequence key."""
    return f"outbox/{key}"


def replies_queue(key: str) -> str:
    """Return the name of the queue of replies that the Sequence with that key carries."""
    return f"replies/{key}"


def derived_message_id(*what: str | int) -> str:
    """Return a MessageID derived from the arguments. It is the same each time, and does not reveal them."""
    digits = blake2b(repr(what).encode(), digest_size=16).hexdigest()
    # RFC 9562 5.8: version 8, set by two of the digits, marks a UUID with a custom layout
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True, eq=False)
class Submission:
    """Messages at offsets ``first`` to ``last`` that one batch makes durable, and that one effect reports."""

    opened: Opened
    first: int
    last: int


class StoredOutbox(NamedTuple):
    """The stored description of an outbox."""

    key: str
    queue: str
    partition: int
    about: State
    """``to``, ``choices``, ``stopped`` and ``left_out``."""


def stored_outboxes(snapshot: Snapshot) -> Iterator[StoredOutbox]:
    """Yield every outbox with a stored cursor, in the order of their cursors."""
    for (queue, partition, name), state in snapshot.cursors.items():
        if name.startswith(OUTBOUND):
            yield StoredOutbox(name.removeprefix(OUTBOUND), queue, partition, state)


class OutboxRecords:
    """The records of an outbox: which are finished, which may have arrived, and which must be read from the store.

    Args:
        queue: The queue with its records, in which its cursor already exists.
        cursor: The name of its cursor, which moves after several acknowledgements together.
    """

    def __init__(self, queue: Queue, partition: int, cursor: str, here: Here):
        self.queue = queue
        self.partition = partition
        self.cursor = cursor
        self._cursor = queue.cursors[cursor]
        self.first = self._cursor.offsets[partition]
        """Every record below this offset is acknowledged or discarded."""
        self.source: RMSource | None = None
        """The Sequence that carries them now."""
        self.submitting: Submission | None = None
        """The messages submitted with the open batch, or with the latest one that is not durable."""
        self.left_out = AcknowledgementRanges()
        """Offsets, each plus one, of records that no Sequence carries: they were discarded, or arrived in an abandoned
        Sequence. A Sequence ends before such a range, and the next one begins after it."""
        self.cuts: list[int] = []
        """Ascending offsets at which a session ended. No Sequence carries records from both sides of one."""
        self._records: Partition = queue.partitions[partition]
        self.here = here
        self.front: int | None = None
        """The offset of the message to check next for expiry; None: no message."""
        self.has_requests = False
        """Whether this run has had a request to send."""
        self.is_reading = False  # whether the store is reading records for it
        self._waiting: list[tuple[int, Callable[[float], None]]] = []

    def shares_partition(self, other: OutboxRecords) -> bool:
        """Whether another outbox has its records in the same partition of the same queue; not for itself."""
        return self is not other and self.queue is other.queue and self.partition == other.partition

    @property
    def end(self) -> int:
        """The offset of the next record accepted."""
        return self._records.end

    @property
    def durable_end(self) -> int:
        """Records below it are durable."""
        return self._records.durable_end

    def append(self, record: Record) -> int:
        """Append a record with the open batch, and return its offset."""
        offset = self.queue.records.append(self.partition, record)
        self.keep(offset, record)
        return offset

    def keep(self, offset: int, record: Record) -> None:
        """Keep a record that the queue has just received in memory, to save a read.

        The buffer must have room, and the record must follow the last one in it: each hole would cost a read.
        """
        here = self.here
        # Only as a continuation of what is here: a hole would cost a separate read when its turn comes.
        if len(here) < 2 * READ_AHEAD and (offset - 1 in here or not here) and not here.is_full:
            here.put(offset, record)
            self.has_requests |= record.wants_reply

    def submitted_with(self, opened: Opened, offset: int) -> Submission:
        """Return the messages that become durable together with the one just appended to the open batch."""
        together = self.submitting
        if together is None or together.opened is not opened:
            together = self.submitting = Submission(opened, offset, offset)
        together.last = offset
        return together

    def record(self, offset: int) -> Record | None:
        """Return the record at ``offset`` if it is in memory: just submitted, or read ahead."""
        return self.here.get(offset)

    def wait_for(self, offset: int, then: Callable[[float], None]) -> None:
        """Call ``then(now)`` once the record at ``offset`` is read, or found to be deleted."""
        self._waiting.append((offset, then))

    @property
    def wants_front(self) -> bool:
        """Whether the message to check next for expiry must be read."""
        return self.front is not None and self.front not in self.here

    def begin_reading(self, start: int) -> tuple[int, int]:
        """Return the range of offsets to read from ``start`` on; :meth:`take` must follow."""
        self.is_reading = True
        return start, min(start + READ_AHEAD, self._records.durable_end)

    @property
    def awaited(self) -> int | None:
        """The offset of a record that is needed for another reason than transmission; None: no such record."""
        if self._waiting:
            return self._waiting[0][0]
        return self.front if self.front is not None and self.front not in self.here else None

    @property
    def wanted(self) -> int | None:
        """The offset from which to read the records to transmit next; None: no read is needed.

        It is a missing record that is due, or the next ones, once fewer are in memory than one read returns.
        """
        here, source = self.here, self.source
        if source is None or source.polled:
            return None
        if source.flight.missing and (missing := self.offset_of(source.flight.missing)) not in here:
            return missing
        numbers = source.numbers
        # A record that the cursor has passed may be deleted, and each read of it would ask for another one. In an older
        # copy of the store, numbers above the saved mark may be acknowledged before their turn.
        start, end = max(self.first, numbers.start + numbers.next - 1), numbers.start + numbers.available
        if start >= end or (start in here and (here.is_full or min(start + READ_AHEAD, end) - 1 in here)):
            return None
        return next((offset for offset in range(start, min(start + READ_AHEAD, end)) if offset not in here), None)

    def take(self, start: int, found: list[tuple[int, Record]], now: float) -> None:
        """Accept the records read from ``start`` on.

        As many of the records in memory remain as there is room: first those to transmit next, then transmitted ones.
        """
        self.is_reading = False
        found = found[:READ_AHEAD]
        source = self.source
        following = self.first if source is None else source.numbers.start + source.numbers.next - 1
        here = self.here
        # The next to transmit first; those already transmitted are needed only if they are lost.
        kept = sorted((offset for offset in here if offset >= self.first), key=lambda one: (one < following, one))
        # The records just read always get room: neither they nor the next records to transmit displace each other.
        here.keep(kept, 3 * READ_AHEAD - len(found))
        for offset, record in found:
            here.put(offset, record)
            self.has_requests |= record.wants_reply
        here.has_read()
        # The queue keeps the record as long as it is neither acknowledged nor discarded.
        assert start < self.first or (found and found[0][0] == start), (self.cursor, start)
        waiting, self._waiting = self._waiting, []
        for offset, then in waiting:
            if offset in self.here or offset <= start:
                then(now)
            else:
                self._waiting.append((offset, then))

    def abandon(self, now: float) -> None:
        """Make the calls that wait for a record, because the outbox was deleted."""
        waiting, self._waiting = self._waiting, []
        for _, then in waiting:
            then(now)

    def offset_of(self, number: int) -> int:
        """Return the offset of message ``number`` of the present Sequence."""
        assert self.source is not None
        return self.source.numbers.start + number - 1

    def sent_before(self) -> list[tuple[int, int]]:
        """Return the ranges of offsets that an earlier run may have transmitted and the peer has not acknowledged."""
        source = self.source
        if source is None or source.identifier is None or source.polled:
            return []  # no transmitted message
        sent = source.numbers.with_record(source.numbers.sent_before)
        end = min(source.numbers.start + sent, self._records.durable_end)
        gaps = source.acknowledged.gaps(end - source.numbers.start)
        found = (
            (max(self.first, source.numbers.start + lower - 1), source.numbers.start + upper) for lower, upper in gaps
        )
        return [(start, end) for start, end in found if start < end]

    def update_available(self) -> None:
        """Update the highest number of the present Sequence that has a durable message."""
        source = self.source
        if source is not None:
            end = self._present_end(source)
            source.numbers.is_cut = end < self._records.durable_end or end in self.cuts
            source.numbers.available = end - source.numbers.start

    def _present_end(self, source: RMSource) -> int:
        """Return the offset after the last durable record that the present Sequence carries."""
        start = source.numbers.start
        return start + source.numbers.with_record(self.run_end(start) - start)

    def run_end(self, start: int) -> int:
        """Return the offset after the last record that one Sequence can carry from ``start`` on."""
        end = next((cut for cut in self.cuts if cut > start), self._records.durable_end)
        for lower, upper in self.left_out:
            if upper > start:
                end = min(end, max(start, lower - 1))
                break
        return min(end, self._records.durable_end)

    def cut(self) -> bool:
        """End the present Sequence after the existing records, and return whether the cut must be saved."""
        self._forget_passed_cuts()
        end = self.end
        if end <= self._begin or end in self.cuts or len(self.cuts) >= MOST_CUTS:
            return False
        self.cuts.append(end)
        self.update_available()
        return True

    def _forget_passed_cuts(self) -> None:
        begin = self._begin
        self.cuts = [cut for cut in self.cuts if cut > begin]

    @property
    def _begin(self) -> int:
        """The lowest offset where the present or the next Sequence may begin, also after a crash."""
        begin = min(self.first, self._cursor.offsets[self.partition])
        return begin if self.source is None else min(begin, self.source.numbers.start)

    def leave_out(self, first: int, last: int) -> None:
        """Exclude the records ``first`` to ``last`` from every Sequence."""
        self.left_out.add_range(first + 1, last + 1)
        self.skip()
        self.update_available()

    def skip(self) -> None:
        """Pass the records left out at the beginning.

        Their range is removed once no Sequence begins before it and the saved cursor has passed it. The cursor and the
        ranges are saved separately.
        """
        for lower, upper in self.left_out:
            if lower <= self.first + 1:
                self.first = max(self.first, upper)
        begin = self._begin
        if self.cuts:
            self._forget_passed_cuts()
        if any(upper <= begin for _, upper in self.left_out):
            self.left_out = AcknowledgementRanges(pair for pair in self.left_out if pair[1] > begin)

    @property
    def unsent(self) -> int:
        """The offset of the first record that a Sequence must carry and certainly none has transmitted."""
        source = self.source
        offset = self.first
        if source is not None and source.identifier is not None:
            numbers = source.numbers
            offset = max(offset, numbers.start + numbers.with_record(max(numbers.highest_sent, numbers.sent_before)))
        for lower, upper in self.left_out:
            if lower <= offset + 1 <= upper:
                return upper
        return offset

    def may_have_left(self, offset: int) -> bool:
        """Whether the present Sequence may have transmitted the record; after a restart, any record up to the mark."""
        source = self.source
        if source is None or source.identifier is None:
            return False
        number = offset - source.numbers.start + 1
        return 1 <= number <= self.highest_left(source)

    @staticmethod
    def highest_left(source: RMSource) -> int:
        """Return the highest number of a record that may have been transmitted."""
        numbers = source.numbers
        return min(max(numbers.highest_sent, numbers.sent_before), numbers.limit, numbers.available)

    def in_doubt(self, start: int = 0) -> int:
        """Return how many records from ``start`` on the peer may have without an acknowledgement."""
        if self.source is None:
            return 0
        first = start - self.source.numbers.start + 1
        return sum(upper - max(lower, first) + 1 for lower, upper in self.doubtful(self.source) if upper >= first)

    def doubtful(self, source: RMSource) -> AcknowledgementRanges:
        """Return the unacknowledged numbers that the peer may have."""
        if source.is_final:
            return AcknowledgementRanges()  # WS-RM 3.9: the ranges never change again
        found = AcknowledgementRanges(source.acknowledged.gaps(self.highest_left(source)))
        for number in source.flight.untaken:
            if number > source.numbers.sent_before:  # an earlier process did not transmit it either
                found.discard(number)
        return found

    def rewind(self, offset: int, now: float) -> None:
        """Move the cursor to ``offset``. New Sequences carry every record from there on."""
        assert self.source is None, self.cursor
        self.left_out, self.cuts = AcknowledgementRanges(), []
        self.first = self.queue.put_cursor(self.cursor, self.partition, offset, now)

    def leave_out_arrived(self) -> None:
        """Leave out the records that arrived behind a gap, because the present Sequence is abandoned."""
        source = self.source
        assert source is not None
        for lower, upper in source.acknowledged:
            last = source.numbers.with_record(upper)
            if source.records_done < lower <= last:
                self.left_out.add_range(source.numbers.start + lower, source.numbers.start + last)

    def pass_acknowledged(self) -> bool:
        """Pass the acknowledged records, and return whether to save the cursor and the Sequence's ranges now."""
        source = self.source
        if source is None:
            return False
        first = min(source.numbers.start + source.records_done, self._records.end)
        if self.queue.description.epoch and first > self.first and (last := self.here.get(first - 1)) is not None:
            self._records.passed = first - 1, last  # for its fingerprint, when it is deleted
        for offset in range(self.first, first):
            self.here.drop(offset)
        self.first = max(self.first, first)
        if len(self.left_out):
            self.skip()
        return self.first - self._cursor.offsets[self.partition] >= SAVE_EVERY or source.is_complete

    def is_ahead_of_saved(self, source: RMSource) -> bool:
        """Whether messages may be acknowledged that the saved position and ranges do not contain."""
        has_passed = self.first > self._cursor.offsets[self.partition]
        return has_passed or source.acknowledged.highest > source.records_done

    def save_place(self, now: float) -> None:
        """Save the cursor with the open batch. The queue may then delete the records that it has passed."""
        self.queue.move_cursor(self.cursor, self.partition, self.first, now)

    def is_acknowledged(self, offset: int) -> bool:
        """Whether the record at ``offset`` is acknowledged or left out; earlier ones may still be pending."""
        source = self.source
        if offset < self.first or offset + 1 in self.left_out:
            return True
        if source is None or offset < source.numbers.start:
            return False
        number = offset - source.numbers.start + 1
        return number in source.acknowledged and number == source.numbers.with_record(number)

    @property
    def waiting(self) -> int:
        """Number of durable records that are neither acknowledged nor discarded."""
        done = sum(upper - max(lower, self.first + 1) + 1 for lower, upper in self.left_out if upper > self.first)
        source = self.source
        if source is not None:
            end = self._present_end(source) - source.numbers.start
            begin = self.first - source.numbers.start
            done += sum(
                min(upper, end) - max(lower, begin + 1) + 1
                for lower, upper in source.acknowledged
                if upper > begin and lower <= end
            )
        return self.durable_end - self.first - done

    @property
    def is_empty(self) -> bool:
        """Whether every record is acknowledged or discarded."""
        return self.first >= self.end

    def to_state(self) -> State:
        """Return the state to save with the cursor."""
        state: State = {"left_out": self.left_out.to_state()}
        return state | {"cuts": list(self.cuts)} if self.cuts else state

    def restore(self, state: State) -> None:
        self.left_out = AcknowledgementRanges.from_state(state.get("left_out", []))
        self.cuts = [cut for cut in state.get("cuts", ()) if type(cut) is int]
