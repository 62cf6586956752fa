"""LogAudit: checks the rules that a log must keep, from its first record to its last. It knows no Kafka.

A log is read as an owner reads it (:mod:`holdfast.store.kafka.replay`), which finds claims and writes that are out of
order, and missing records. In addition, the changes of each valid write are compared with those before it. The memory
grows with the Sequences and queues, and with the large stored attachments, not with the other messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.dead_letters import LETTERS
from holdfast.core.queues.description import DEAD_LETTERS, OUTBOX
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import content_name, content_size
from holdfast.exceptions import HoldfastError, StoreError, clause
from holdfast.store import records as layout
from holdfast.store.kafka.frames import Change, Claim, Part, decode, decode_write
from holdfast.store.kafka.replay import Checkpoint, Claimed, Replay, Written

MOST_PROBLEMS: Final = 100
"""Maximum number of reported problems of one log."""

_LETTERS: Final = layout.partition_key(layout.CURSOR, DEAD_LETTERS, 0) + LETTERS.encode()
"""The key of which dead letters have ended."""


@dataclass(slots=True)
class _Held:
    """The messages of an inbound Sequence that were accepted, and wait for others.

    Args:
        stored: The numbers of the messages in the log.
        listed: The numbers that its state names.
        unrouted: The numbers of the messages that go to no queue.
        may_discard: Whether the Sequence has ended, and may discard messages beyond a gap.
    """

    stored: set[int] = field(default_factory=set)
    listed: set[int] = field(default_factory=set)
    unrouted: set[int] = field(default_factory=set)
    may_discard: bool = False

    def see(self, state: dict[str, Any]) -> None:
        """Read the state of the Sequence."""
        listed = state.get("held", [])
        self.listed = set(listed[: len(listed) // 2])  # the numbers, then their sizes
        self.unrouted.update(number for number, *queues in state.get("routed", ()) if not queues)
        self.may_discard = "state" in state or "ended_at" in state


class PieceAudit:
    """Checks the contents of a log: as long as a record names one, all its pieces are there."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, AcknowledgementRanges] = {}
        self._bytes: dict[bytes, int] = {}
        self._sizes: dict[bytes, int] = {}
        self._names: dict[bytes, bytes] = {}
        """Key of a reference -> the content that its record names."""

    def put(self, key: bytes, value: bytes) -> None:
        """Note a piece. A copy may have it again."""
        name, piece = layout.piece_of(key)
        if self._pieces.setdefault(name, AcknowledgementRanges()).add(piece + 1):
            self._bytes[name] = self._bytes.get(name, 0) + len(value)

    def erase(self, name: bytes) -> None:
        """Note that the pieces of a content are deleted."""
        self._pieces.pop(name, None)
        self._bytes.pop(name, None)

    def record(self, value: bytes) -> None:
        """Note how many bytes a record says that its content has."""
        if value.startswith(layout.RECORD_BEGINNING):
            return  # without attachments
        attachments = layout.decode_record(value).attachments
        if name := content_name(attachments):
            self._sizes[name] = content_size(attachments)

    def name(self, key: bytes, name: bytes) -> None:
        """Note that a record names a content."""
        self._names[key] = name

    def forget(self, key: bytes) -> None:
        """Note that the record is deleted."""
        self._names.pop(key, None)

    def missing(self) -> Iterator[str]:
        """Return what is missing at the end of the log."""
        for name in sorted(set(self._names.values())):
            found, size = self._bytes.get(name, 0), self._sizes.get(name)
            if size is not None and found != size:
                yield f"a record names attachments {name.hex()} of {size} bytes, but {found} bytes are stored"


class LogAudit:
    """A check of one log. Pass each record to :meth:`read`, then call :meth:`end`.

    Attributes:
        problems: The broken rules, each as a sentence.
        is_over: Whether the rest of the log has no meaning, because it is damaged.
        records: How many records of queues were written.
    """

    def __init__(self, first: int, place: str) -> None:
        self.problems: list[str] = []
        self.is_over = False
        self.records = 0
        self._place = place
        self._replay = Replay(Checkpoint(next=first), place)
        self._kinds: dict[str, object] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._written: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        """Queue and partition -> the offsets of the records in the present write."""
        self._is_copying = False
        """Whether the present write is within the copy that the log begins with."""
        self._found: defaultdict[tuple[str, int], AcknowledgementRanges] = defaultdict(AcknowledgementRanges)
        """Queue and partition -> one more than the offset of each record, while that copy is read. It has the records
        in their order, but new ones are written meanwhile, and may be copied later."""
        self._numbers: dict[str, dict[str, AcknowledgementRanges]] = {}
        """Sequence -> queue -> the numbers that were appended there."""
        self._accepted: dict[str, AcknowledgementRanges] = {}
        self._unqueued: dict[str, int] = {}
        """Sequence -> how many accepted messages went to no queue; without those that an older version of Holdfast
        wrote, which did not count them."""
        self._stored: defaultdict[str, AcknowledgementRanges] = defaultdict(AcknowledgementRanges)
        """Sequence -> the numbers that were ever in a queue, or held."""
        self._absent: dict[str, int | None] = {}
        """Sequence -> how many accepted messages need not be found: their records were deleted before the copy at the
        beginning of the log, or an older version accepted them for no queue; None: unknown until the end of a write."""
        self._is_copied = False
        """Whether a copy of the content was read since the last check of the accepted messages."""
        self._held: defaultdict[str, _Held] = defaultdict(_Held)
        self._dropped: list[tuple[str, int]] = []
        """Sequence and number of each held message that the present write deletes."""
        self._starts: dict[str, int] = {}
        """Outbound Sequence -> offset of its message 1."""
        self._pieces = PieceAudit()
        self._may_repeat = False
        """Whether the present write ends dead letters: then it may put their messages into their queues again."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the last valid claim."""
        return self._replay.epoch

    @property
    def serial(self) -> int:
        """Return the number of the last valid write."""
        return self._replay.serial

    def read(self, offset: int, record: bytes | None) -> None:
        if self.is_over:
            return
        before = self._replay.epoch
        try:
            found = self._replay.read(offset, record)
            self._check_epoch(offset, before, record, found)
            if isinstance(found, Written):
                self._is_copied |= found.has_copy
                self._is_copying = found.has_copy or self._replay.checkpoint is None
                copied, changes = decode_write(found.data, self._place)
                self._follow(offset, copied if found.has_copy else [], is_copy=True)
                self._follow(offset, changes, is_copy=False)
                self._end_copy(offset)
                self._check_held(offset, changes)
                self._check_accepted(offset, changes)
        except StoreError as error:
            self._say(error.message)
            self.is_over = True

    def end(self) -> None:
        if not self.is_over:
            try:
                self._replay.require_whole()
            except StoreError as error:
                self._say(error.message)
            for problem in self._pieces.missing():
                self._say(f"The log at {self._place}: {clause(problem)}.")

    def _say(self, problem: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def _check_epoch(self, offset: int, before: int, record: bytes | None, found: object) -> None:
        """A claimant has read the log to its end, and an owner its claim. So no epoch comes before its claim."""
        frame, where = decode(record, self._place), f"The log at {self._place}: record {offset}"
        if isinstance(frame, Claim) and isinstance(found, Claimed) and frame.epoch > before + 1:
            self._say(f"{where} claims epoch {frame.epoch}, but the last one is {before}.")
        elif isinstance(frame, Part) and frame.epoch > self._replay.epoch:
            self._say(f"{where} has epoch {frame.epoch}, which no process has claimed before.")

    # --- the changes of a write -------------------------------------------------------------------------------------

    def _follow(self, offset: int, changes: Iterable[Change], *, is_copy: bool) -> None:
        where = f"The log at {self._place}, record {offset}"
        arrived: list[tuple[str, int]] = []
        changes = list(changes)
        self._may_repeat = any(change[0] == _LETTERS for change in changes)
        for change in changes:
            tag = change[0][:1]
            try:
                if len(change) == 2:
                    self._put(where, tag, change[0], change[1], arrived, is_copy=is_copy)
                elif len(change) == 1:
                    self._delete(tag, change[0])
                elif tag == layout.PIECE:
                    self._pieces.erase(change[0][1:])
                elif tag == layout.RECORD and self._is_copying:
                    self._erase(change[0], layout.last_number(change[1]))
            except (HoldfastError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                self._say(f"{where}: the key {change[0][:80]!r} cannot be read: {clause(error)}.")
        self._check_offsets(where)
        for sequence, number in arrived:
            accepted = self._accepted.get(sequence)
            if not is_copy and accepted is not None and number not in accepted:
                self._say(f"{where}: message {number} of Sequence {sequence} was stored, but not accepted.")

    def _put(
        self, where: str, tag: bytes, key: bytes, value: bytes, arrived: list[tuple[str, int]], *, is_copy: bool
    ) -> None:
        if tag == layout.RECORD:
            self._pieces.record(value)
            self._record(where, key, value, arrived)
        elif tag == layout.PIECE:
            self._pieces.put(key, value)
        elif tag == layout.CONTENT:
            self._pieces.name(key, value)
        elif tag == layout.HELD:
            self._pieces.record(value)
            name, number = layout.key_name(key), layout.last_number(key)
            self._held[name].stored.add(number)
            self._stored[name].add(number)
            # A copy repeats what arrived before.
            if not is_copy:
                arrived.append((name, number))
        elif tag == layout.QUEUE:
            self._kinds[layout.key_name(key)] = layout.decode_state(value).get("kind")
        elif tag == layout.SEQUENCE:
            self._sequence(where, layout.key_name(key), layout.decode_state(value))

    def _delete(self, tag: bytes, key: bytes) -> None:
        if tag == layout.PARTITION:
            queue, number, _ = layout.split_partition_key(key)
            self._ends.pop((queue, number), None)
            self._written.pop((queue, number), None)
            self._found.pop((queue, number), None)
        elif tag == layout.RECORD and self._is_copying:
            self._erase(key, layout.last_number(key) + 1)
        elif tag == layout.CONTENT:
            self._pieces.forget(key)
        elif tag == layout.SEQUENCE:
            name = layout.key_name(key)
            self._numbers.pop(name, None)
            self._accepted.pop(name, None)
            self._starts.pop(name, None)
            self._held.pop(name, None)
            self._unqueued.pop(name, None)
            self._stored.pop(name, None)
            self._absent.pop(name, None)
        elif tag == layout.HELD:
            name, number = layout.key_name(key), layout.last_number(key)
            self._held[name].stored.discard(number)
            self._dropped.append((name, number))

    def _erase(self, begin: bytes, end: int) -> None:
        """Note that records are deleted, so that the copy may lack them."""
        queue, number, rest = layout.split_partition_key(begin)
        erased = AcknowledgementRanges([(int.from_bytes(rest, "big") + 1, end)])
        self._found[queue, number] = AcknowledgementRanges(self._found[queue, number].outside(erased))

    def _end_copy(self, offset: int) -> None:
        """Check at the end of the copy that no record is missing between others."""
        if not self._is_copying or self._replay.checkpoint is None:
            return
        where = f"The log at {self._place}, record {offset}"
        for (queue, number), found in self._found.items():
            for lower, upper in found:
                self._check_next(where, queue, number, lower - 1)
                self._ends[queue, number] = upper
        self._found.clear()

    def _check_offsets(self, where: str) -> None:
        """Check that the records of each partition continue those before. A write has released messages after others,
        whatever their offsets."""
        for (queue, number), offsets in self._written.items():
            for offset in sorted(offsets):
                self._check_next(where, queue, number, offset)
                self._ends[queue, number] = offset + 1
        self._written.clear()

    def _check_next(self, where: str, queue: str, number: int, offset: int) -> None:
        expected = self._ends.get((queue, number), offset)
        if offset != expected:
            place = f"{where}: queue {queue!r}, partition {number}"
            self._say(f"{place}: the next record should be {expected}, but {offset} is written.")

    def _check_held(self, offset: int, changes: Iterable[Change]) -> None:
        """Check that no message is lost between its acceptance and its queue."""
        dropped, self._dropped = self._dropped, []
        if self._replay.checkpoint is None:
            return  # the copy of the content is not read to its end
        where = f"The log at {self._place}, record {offset}"
        for name, number in dropped:
            held, queues = self._held.get(name), self._numbers.get(name, {}).values()
            if held is None or held.may_discard or number in held.unrouted:
                continue
            if not any(number in numbers for numbers in queues):
                self._say(f"{where}: message {number} of Sequence {name} was held, and is in no queue now.")
        saved = {layout.key_name(one[0]) for one in changes if len(one) == 2 and one[0][:1] == layout.SEQUENCE}
        for name in sorted(saved & self._held.keys()):
            for number in sorted(self._held[name].listed - self._held[name].stored):
                self._say(f"{where}: message {number} of Sequence {name} counts as held, but is not stored.")

    def _check_accepted(self, offset: int, changes: Iterable[Change]) -> None:
        """Check that every accepted message was stored, or counts as one for no queue."""
        if self._replay.checkpoint is None:
            return  # the copy of the content is not read to its end
        if self._is_copied:
            self._absent, self._is_copied = {name: self._missing(name) for name in self._unqueued}, False
        saved = {layout.key_name(one[0]) for one in changes if len(one) == 2 and one[0][:1] == layout.SEQUENCE}
        for name in sorted(saved & self._unqueued.keys()):
            missing, known = self._missing(name), self._absent.setdefault(name, 0)
            if known is not None and missing != known:
                among = AcknowledgementRanges(self._accepted[name].outside(self._stored[name]))
                more = f"{missing - known} more messages of Sequence {name} are accepted than stored: some of {among}"
                if missing < known:
                    more = (
                        f"{known - missing} messages of Sequence {name} are stored, but count as accepted for no queue"
                    )
                self._say(f"The log at {self._place}, record {offset}: {more}.")
            self._absent[name] = missing

    def _missing(self, name: str) -> int:
        """Return how many messages of a Sequence are accepted, but neither stored nor for no queue."""
        return self._accepted[name].count - self._stored[name].count - self._unqueued[name]

    def _record(self, where: str, key: bytes, value: bytes, arrived: list[tuple[str, int]]) -> None:
        queue, number, rest = layout.split_partition_key(key)
        place = f"{where}: queue {queue!r}, partition {number}"
        self.records += 1
        offset = int.from_bytes(rest, "big")
        if not self._is_copying:
            self._written[queue, number].append(offset)
        elif not self._found[queue, number].add(offset + 1):
            return  # the copy repeats what a write had before it
        kind = self._kinds.get(queue)
        if kind in (OUTBOX, DEAD_LETTERS) or queue == DEAD_LETTERS or queue.startswith(ASIDE):
            return
        record = layout.decode_record(value)
        if record.message_number < 1:
            return
        self._stored[record.sequence].add(record.message_number)
        if kind is None:
            return  # an older version did not say whether it is an outbox
        known = self._numbers.setdefault(record.sequence, {}).setdefault(queue, AcknowledgementRanges())
        if not known.add(record.message_number) and not self._may_repeat:
            what = f"number {record.message_number} of Sequence {record.sequence}"
            self._say(f"{place}: record {offset} repeats {what}.")
        arrived.append((record.sequence, record.message_number))

    def _sequence(self, where: str, name: str, state: dict[str, Any]) -> None:
        if state.get("role") == "source":
            start = int(state["start"])
            known = self._starts.setdefault(name, start)
            if start != known:
                self._say(f"{where}: message 1 of Sequence {name} was record {known} of its queue, but is {start} now.")
            self._starts[name] = start
        elif "accepted" in state:
            accepted = AcknowledgementRanges.from_state(state["accepted"])
            before = self._accepted.get(name, AcknowledgementRanges())
            for lower, upper in before.outside(accepted):
                self._say(f"{where}: messages {lower} to {upper} of Sequence {name} count as accepted no longer.")
            self._accepted[name] = accepted
            self._held[name].see(state)
            if "unqueued" in state:
                if name not in self._unqueued and len(before):
                    self._absent[name] = None
                self._unqueued[name] = int(state["unqueued"])
