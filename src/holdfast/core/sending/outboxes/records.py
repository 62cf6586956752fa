"""Records of an outbox: a cursor over one partition of a queue, and which Sequence carries what is behind it.

The queue is the outbox's own, into which an application puts what it sends, or any other, whose records are then
forwarded, with no copy of them. Message number n of a Sequence is the n-th record from the offset where the Sequence
began, so numbers need no write of their own and are the same after a crash. What the cursor has not passed is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from holdfast.core.commit import Opened
from holdfast.core.policy import ForwardingPolicy
from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.partitions import Partition
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.read_ahead_buffer import Here

READ_AHEAD = 64
"""Records that are read from the store at once, while as many are still in front: the window is seldom larger. At most
three times as many are in memory."""

MOST_CUTS = 256
"""Offsets, at most, at which one Sequence is to end and the next to begin, while nothing can be sent."""

SAVE_EVERY = 64
"""So many newly acknowledged messages are saved together; losing the newest costs as many retransmissions."""


def outbox_queue(key: str) -> str:
    """The queue of what an application sends under that sequence key."""
    return f"outbox/{key}"


def replies_queue(key: str) -> str:
    """The queue of the replies that go out in the Sequence with that key."""
    return f"replies/{key}"


def derived_message_id(*what: str | int) -> str:
    """A MessageID that follows from something, the same each time, and tells nobody of what."""
    digits = blake2b(repr(what).encode(), digest_size=16).hexdigest()
    # RFC 9562 5.8: a UUID whose making is one's own says so by two of its digits
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True, eq=False)
class Submitting:
    """Messages at offsets ``first`` to ``last`` that one batch makes durable: one thing to tell, not one for each."""

    opened: Opened
    first: int
    last: int


class StoredOutbox(NamedTuple):
    """An outbox as a store holds it."""

    key: str
    queue: str
    partition: int
    about: State
    """``to``, ``choices``, ``stopped`` and ``left_out``."""


def stored_outboxes(snapshot: Snapshot) -> Iterator[StoredOutbox]:
    """Every outbox that a store knows by more than its Sequence, in the order of their cursors."""
    known = set()
    for (queue, partition, name), state in snapshot.cursors.items():
        if name.startswith(OUTBOUND):
            known.add(name)
            yield StoredOutbox(name.removeprefix(OUTBOUND), queue, partition, state)
    for queue, state in snapshot.queues.items():  # of a version that had no cursor for it
        if state.get("kind") == OUTBOX and "key" in state and OUTBOUND + state["key"] not in known:
            yield StoredOutbox(state["key"], queue, 0, state)


class OutboxRecords:
    """The records of an outbox: which are done, which may have arrived, which are in memory and which must be read.

    Args:
        key: The sequence key; for replies the offered Identifier.
        queue: Where its records are; its cursor is there already.
        partition: In which partition.
        to: The address it sends to; None for an anonymous one.
        here: Its records in memory.
    """

    def __init__(self, key: str, queue: Queue, partition: int, to: str | None, here: Here):
        self.key = key
        self.queue = queue
        self.partition = partition
        self.to = to
        self.forwarding = None if queue.description.kind == OUTBOX else ForwardingPolicy()
        """What it gives up by itself, if it sends on what came in; None: nothing, as nobody but its owner may."""
        self.cursor = OUTBOUND + key
        """The name of its cursor, which is moved now and then."""
        self._cursor = queue.cursors[self.cursor]
        self.first = self._cursor.offsets[partition]
        """Below it all is acknowledged or given up."""
        self.is_for_replies = queue.name == replies_queue(key)
        """Whether it answers the requests of a Sequence: nobody here waits for its end."""
        self.source: RMSource | None = None
        self.answers: str | None = None
        """The inbound Sequence whose requests it answers, for an outbox of replies."""
        self.submitting: Submitting | None = None
        """What was submitted into the open batch, or into the last one that is not durable."""
        self.left_out = AcknowledgementRanges()
        """Offsets, each one higher, of records that no Sequence carries any more: given up by somebody, or known to
        have arrived in a Sequence that was given up. A Sequence ends before the first, the next begins behind it."""
        self.cuts: list[int] = []
        """Offsets, ascending: no Sequence carries records from both sides of one. A session ended there."""
        self._records: Partition = queue.partitions[partition]
        self.here = here
        self.front: int | None = None
        """The offset of the message that is to be seen next, to know whether it has expired; None: of none."""
        self.has_requests = False
        """Whether a request was among what was to be sent, in this run."""
        self.is_reading = False  # whether the store is reading records for it
        self._waiting: list[tuple[int, Callable[[float], None]]] = []

    @property
    def end(self) -> int:
        """The offset of the next record accepted."""
        return self._records.end

    @property
    def durable_end(self) -> int:
        """Records below it are durable."""
        return self._records.durable_end

    def append(self, record: Record) -> int:
        """Add a record to the open batch; its offset."""
        offset = self.queue.records.append(self.partition, record)
        self.keep(offset, record)
        return offset

    def keep(self, offset: int, record: Record) -> None:
        """The record there, which came into the queue just now: it need not be read, if there is room and it follows
        the last one that was kept. Holes would cost a read each."""
        here = self.here
        if len(here) < 2 * READ_AHEAD and (offset - 1 in here or not here) and not here.is_full:
            here.put(offset, record)
            self.has_requests |= record.wants_reply

    def submitted_with(self, opened: Opened, offset: int) -> Submitting:
        """What becomes durable together with the message that was just appended to the open batch."""
        together = self.submitting
        if together is None or together.opened is not opened:
            together = self.submitting = Submitting(opened, offset, offset)
        together.last = offset
        return together

    def record(self, offset: int) -> Record | None:
        """The record at ``offset`` if it is in memory: what was just submitted, or was read ahead."""
        return self.here.get(offset)

    def wait_for(self, offset: int, then: Callable[[float], None]) -> None:
        """Call ``then(now)`` once the record at ``offset`` was read, or is found to be there no more."""
        self._waiting.append((offset, then))

    @property
    def wants_front(self) -> bool:
        """Whether the message that is to be seen next is not in memory."""
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
        """The offset from which to read what is transmitted next; None: nothing needs to be read.

        That is a record that is due, or the next ones, as soon as fewer are in memory than one read returns.
        """
        here, source = self.here, self.source
        if source is None or source.polled:
            return None
        if source.flight.missing and (missing := self.offset_of(source.flight.missing)) not in here:
            return missing
        start, end = source.numbers.start + source.numbers.next - 1, source.numbers.start + source.numbers.available
        if start >= end or (start in here and (here.is_full or min(start + READ_AHEAD, end) - 1 in here)):
            return None
        return next((offset for offset in range(start, min(start + READ_AHEAD, end)) if offset not in here), None)

    def take(self, start: int, found: list[tuple[int, Record]], now: float) -> None:
        """What was read from ``start`` on is there. Of what was here before, as much stays as there is room: what is to
        go out next, then what has gone out."""
        self.is_reading = False
        found = found[:READ_AHEAD]
        source = self.source
        following = self.first if source is None else source.numbers.start + source.numbers.next - 1
        here = self.here
        kept = sorted((offset for offset in here if offset >= self.first), key=lambda one: (one < following, one))
        # Whatever was read comes on top: what goes out next must not make room for what follows it, nor that for it.
        here.keep(kept, 3 * READ_AHEAD - len(found))
        for offset, record in found:
            here.put(offset, record)
            self.has_requests |= record.wants_reply
        here.has_read()
        # It is kept for us as long as it is neither acknowledged nor given up.
        assert start < self.first or (found and found[0][0] == start) or self._waiting, (self.key, start)
        waiting, self._waiting = self._waiting, []
        for offset, then in waiting:
            if offset in self.here or offset <= start:
                then(now)
            else:
                self._waiting.append((offset, then))

    def abandon(self, now: float) -> None:
        """It is no more: whoever waits for one of its records finds it gone."""
        waiting, self._waiting = self._waiting, []
        for _, then in waiting:
            then(now)

    def message_id(self, record: Record) -> str | None:
        """The MessageID that a record goes out with: its own, but for a request that is sent on. What its sender wrote
        need not be unique among all senders, or may be missing, and its reply must find it: so it has one that follows
        from who sends it, in which Sequence it came and with which number. It tells nobody that Sequence's Identifier.
        """
        if self.forwarding is None or not record.wants_reply:
            return record.message_id
        return derived_message_id(self.key, record.sequence, record.message_number)

    def query(self, number: int) -> Record | None:
        """Return forwarded message ``number`` if it awaits no reply and names no ReplyTo.

        No ReplyTo is the anonymous one (WS-Addressing 1.0 core, section 3.2), so a reply may come in the answer to it.
        """
        if self.forwarding is None or self.source is None or number == self.source.numbers.last:
            return None
        record = self.here.get(self.offset_of(number))
        is_open = record is not None and not (record.wants_reply or record.reply_to or record.relates_to)
        return record if is_open else None

    def number_of(self, message_id: str | None) -> int:
        """The number of the message in flight that has this MessageID; 0 if there is none."""
        if self.source is not None and message_id is not None:
            for number, entry in self.source.flight.items():
                if entry.message_id == message_id:
                    return number
        return 0

    def offset_of(self, number: int) -> int:
        """The offset of message ``number`` of the present Sequence."""
        assert self.source is not None
        return self.source.numbers.start + number - 1

    def sent_before(self) -> list[tuple[int, int]]:
        """Offsets of what an earlier run may have transmitted and nobody has acknowledged, ascending, each from where
        to where."""
        source = self.source
        if source is None or source.identifier is None or source.polled or self.is_for_replies:
            return []  # nothing, or nothing that is a request
        end = min(source.numbers.start + source.numbers.sent_before, self._records.durable_end)
        gaps = source.acknowledged.gaps(end - source.numbers.start)
        found = (
            (max(self.first, source.numbers.start + lower - 1), source.numbers.start + upper) for lower, upper in gaps
        )
        return [(start, end) for start, end in found if start < end]

    def found_before(self, found: list[tuple[int, Record]]) -> None:
        """Some of that was read: what are requests among them may be answered from now on."""
        source = self.source
        assert source is not None
        for offset, record in found:
            self.keep(offset, record)
            message_id = self.message_id(record)
            if record.wants_reply and message_id is not None:
                source.requests.found_before(message_id, source, offset - source.numbers.start + 1)

    def update_available(self) -> None:
        """Tell the present Sequence how far durable messages reach that are its own."""
        source = self.source
        if source is not None:
            end = self.run_end(source.numbers.start)
            source.numbers.is_cut = end < self._records.durable_end or end in self.cuts
            source.numbers.available = end - source.numbers.start

    def run_end(self, start: int) -> int:
        """Where the records end that one Sequence can carry from ``start`` on."""
        end = next((cut for cut in self.cuts if cut > start), self._records.durable_end)
        for lower, upper in self.left_out:
            if upper > start:
                end = min(end, max(start, lower - 1))
                break
        return min(end, self._records.durable_end)

    def cut(self) -> bool:
        """Let what comes from now on go in another Sequence than what is here. Whether that is to be saved."""
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
        """Where the next Sequence, or the present one, may begin, also after a crash."""
        begin = min(self.first, self._cursor.offsets[self.partition])
        return begin if self.source is None else min(begin, self.source.numbers.start)

    def leave_out(self, first: int, last: int) -> None:
        """Records that no Sequence is to carry any more."""
        self.left_out.add_range(first + 1, last + 1)
        self.skip()
        self.update_available()

    def skip(self) -> None:
        """Pass what is left out at the beginning. It is forgotten once no Sequence began before it, and that it is
        passed is saved: what is saved of it and of its place goes by itself."""
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
        """The offset of the first record that no Sequence has transmitted for sure, and one is to."""
        source = self.source
        offset = self.first
        if source is not None and source.identifier is not None:
            offset = max(offset, source.numbers.start + max(source.numbers.highest_sent, source.numbers.sent_before))
        for lower, upper in self.left_out:
            if lower <= offset + 1 <= upper:
                return upper
        return offset

    def may_have_left(self, offset: int) -> bool:
        """Whether the record may have been transmitted in the present Sequence. After a restart that is any up to the
        mark."""
        source = self.source
        if source is None or source.identifier is None:
            return False
        number = offset - source.numbers.start + 1
        return 1 <= number <= self.highest_left(source) and number != source.numbers.last

    @staticmethod
    def highest_left(source: RMSource) -> int:
        """The highest number that may have been transmitted and is a record's."""
        numbers = source.numbers
        return min(max(numbers.highest_sent, numbers.sent_before), numbers.limit, numbers.available)

    def in_doubt(self, start: int = 0) -> int:
        """How many records from ``start`` on the peer may have in the present Sequence, which it did not
        acknowledge."""
        if self.source is None:
            return 0
        first = start - self.source.numbers.start + 1
        return sum(upper - max(lower, first) + 1 for lower, upper in self.doubtful(self.source) if upper >= first)

    def doubtful(self, source: RMSource) -> AcknowledgementRanges:
        """The numbers that may have been transmitted and are not acknowledged, but those of which the peer
        surely took no transmission."""
        found = AcknowledgementRanges(source.acknowledged.gaps(self.highest_left(source)))
        for number in source.flight.untaken:
            if number > source.numbers.sent_before:  # an earlier process may have transmitted it, too
                found.discard(number)
        return found

    def rewind(self, offset: int, now: float) -> None:
        """Go back to an earlier record. All from there on is to be sent in Sequences that have not begun yet."""
        assert self.source is None, self.key
        self.left_out, self.cuts = AcknowledgementRanges(), []
        self.first = self.queue.put_cursor(self.cursor, self.partition, offset, now)

    def leave_out_arrived(self) -> None:
        """The present Sequence is given up: what is known to have arrived behind a gap is not sent again."""
        source = self.source
        assert source is not None
        for lower, upper in source.acknowledged:
            last = min(upper, (source.numbers.last or upper + 1) - 1)
            if source.records_done < lower <= last:
                self.left_out.add_range(source.numbers.start + lower, source.numbers.start + last)

    def pass_acknowledged(self) -> bool:
        """Pass what is acknowledged; whether that is so much that it is to be saved, with the Sequence's ranges."""
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

    def save_place(self, now: float) -> None:
        """Save with the open batch how far it has come. What it has passed may be deleted then."""
        self.queue.move_cursor(self.cursor, self.partition, self.first, now)

    def is_acknowledged(self, offset: int) -> bool:
        """Whether the record at ``offset`` is acknowledged, perhaps before an earlier one is."""
        source = self.source
        if offset < self.first or offset + 1 in self.left_out:
            return True
        return (
            source is not None
            and offset >= source.numbers.start
            and offset - source.numbers.start + 1 in source.acknowledged
        )

    @property
    def waiting(self) -> int:
        """How many durable records are neither acknowledged nor given up."""
        done = sum(upper - max(lower, self.first + 1) + 1 for lower, upper in self.left_out if upper > self.first)
        source = self.source
        if source is not None:
            end = self.run_end(source.numbers.start) - source.numbers.start
            begin = self.first - source.numbers.start
            done += sum(
                min(upper, end) - max(lower, begin + 1) + 1
                for lower, upper in source.acknowledged
                if upper > begin and lower <= end
            )
        return self.durable_end - self.first - done

    @property
    def is_empty(self) -> bool:
        """Whether everything ever put in is acknowledged, or given up."""
        return self.first >= self.end
