"""Delivery of records to an application's handlers, and its results. Sans-IO.

Handlers get one record of a Sequence at a time if it is in order, within a limit of concurrent handlers and of bytes in
memory. After a failure a record is retried, then dead-lettered. A reply, the mark that its request is handled, and the
dead letter that replaces a record become durable in one batch. At most once, a record is durably marked as handled
before a handler gets it: the records that handlers had when the process ended are lost, and the next process reports
this to their requesters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.core.commit import changing
from holdfast.core.events import Handle, Incident, ReadWanted
from holdfast.core.handling.handler_cursor import HandlerCursor, HandlingPolicy
from holdfast.core.handling.running_handlers import RunningHandlers
from holdfast.core.policy import Delivery
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.dead_letters import DeadLetters, Letter
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Batch, Record, content_name
from holdfast.core.versions import Addressing

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Maximum bytes of records in memory for handlers, plus at most one record; others are read from the store when there
is room."""


_ONCE = "and at-most-once allows no second attempt"


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """How handlers are called, and what a requester gets whose request no handler could process.

    Args:
        policy: How often and with what pauses a failing handler is retried.
        set_aside: Makes the answer to a request that is dead-lettered; None if no reply is wanted.
        queue: The name of the queue with handlers; "" for the first one.
    """

    policy: HandlingPolicy
    set_aside: Callable[[Record], Record | None]
    queue: str = ""


@dataclass(slots=True)
class _Search:
    """Search for unanswered requests that the last process had marked as handled.

    Args:
        wanted: Sequence and message number of each unanswered request.
        done: Numbers (an offset plus one) of the records marked by then.
        position: All records below it have been examined.
    """

    wanted: set[tuple[str, int]]
    done: AcknowledgementRanges
    position: int


@dataclass(slots=True)
class _Line:
    """State of one partition in addition to its cursor.

    Args:
        end: Records below it are durable.
        records: Records in memory, by offset: those with a handler, and the next ones.
        is_reading: Whether the next record is being read.
        marked: At most once, the records with a handler, already marked as handled.
        search: At most once, the search that follows a start.
    """

    end: int
    records: dict[int, Record] = field(default_factory=dict)
    is_reading: bool = False
    marked: set[int] = field(default_factory=set)
    search: _Search | None = None


class HandlerSchedule:
    def __init__(
        self,
        queue: Queue,
        letters: DeadLetters,
        settings: HandlerSettings,
        sequences: InboundSequences,
        replies: Replies,
    ) -> None:
        self.queue = queue
        self.letters = letters
        self.policy = settings.policy
        self.started = RunningHandlers(settings.policy.concurrency)
        self.succeeded = 0
        self.failed = 0
        self.dead = 0
        """Number of successful handlings, of failed handlings, and of messages dead-lettered."""
        self.cursors: list[HandlerCursor] = []
        self._sequences = sequences
        self._replies = replies
        self.commit = sequences.commit
        self._effects = sequences.effects
        self.is_at_most_once = sequences.policy.assurance.delivery is Delivery.AT_MOST_ONCE
        """Whether no handler may get a message twice."""
        self._set_aside = settings.set_aside
        self._lines: list[_Line] = []
        self._held_bytes = 0
        self._ready: dict[int, None] = {}
        """Partitions that may have a record ready, in the order of service."""
        self._starved: dict[int, None] = {}
        """Partitions with records that wait for room in memory."""
        self._due: float | None = None
        self._letter: Letter | None = None
        """The dead letter being retried; one at a time."""
        self._retrying: int | None = None
        self._is_stopped = False
        self._when_done: list[Callable[[], None]] = []

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Resume at the saved cursors. Call once, after the queue was recovered."""
        in_order = self._sequences.policy.assurance.in_order
        for partition, end in enumerate(self.queue.records.ends):
            state = self.queue.cursors.handled(partition, at_most_once=self.is_at_most_once)
            self.cursors.append(HandlerCursor(self.policy, in_order, state))
            self._lines.append(_Line(end))
        if self.is_at_most_once:
            self._look_for_lost(now)
        for partition in range(len(self.cursors)):
            # At most once it must be saved before the first delivery: a saved cursor that lags would deliver again.
            if not self.queue.cursors.is_handled_saved(partition):
                self._save(partition, now)
            self._fill(partition, now)
        self.queue.inform(HANDLER, self.delivered)
        self._begin(now)

    def stop(self) -> None:
        """Call no further handlers."""
        self._is_stopped = True

    def leave(self) -> None:
        """Stop following the queue."""
        self.queue.inform(HANDLER, None)

    @property
    def is_done(self) -> bool:
        """Whether every record is handled, answered or dead-lettered, with no retry due."""
        reached = all(cursor.floor >= line.end for cursor, line in zip(self.cursors, self._lines, strict=True))
        is_busy = self.running or any(line.search is not None for line in self._lines)
        return reached and not is_busy and self.letters.next_asked() is None

    @property
    def running(self) -> int:
        """How many records are with a handler, or on their way to one."""
        return len(self.started) + (self._retrying is not None and self._letter is None)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, when :attr:`is_done` becomes true."""
        self._when_done.append(call)

    @property
    def unhandled(self) -> int:
        """The number of delivered records not yet handled, and of dead letters to retry."""
        lines = zip(self.cursors, self._lines, strict=True)
        return sum(cursor.unfinished(line.end) for cursor, line in lines) + self.letters.asked

    # --- what comes -----------------------------------------------------------------------------------------------

    def delivered(self, partition: int, offset: int, record: Record | None, now: float) -> None:
        """Handle a durable record of the queue (called by it).

        A ``record`` of None must be read from the store.
        """
        line = self._lines[partition]
        line.end = offset + 1
        # Beyond the limit or without room it is read from the store when its turn comes.
        if record is not None and offset < self.cursors[partition].limit and self._held_bytes < MAX_HELD_BYTES:
            self._keep(line, offset, record)
        self._fill(partition, now)
        self._begin(now)

    def _keep(self, line: _Line, offset: int, record: Record) -> None:
        if offset not in line.records:
            line.records[offset] = record
            self._held_bytes += _size_of(record)

    def _drop(self, line: _Line, offset: int) -> None:
        record = line.records.pop(offset, None)
        if record is not None:
            self._held_bytes -= _size_of(record)

    def _fill(self, partition: int, now: float) -> None:
        cursor, line = self.cursors[partition], self._lines[partition]
        while cursor.next_offset < line.end and cursor.has_room:
            offset = cursor.next_offset
            record = line.records.get(offset)
            # A record that is done needs no read: it is passed by its offset alone.
            if record is None and not cursor.is_done(offset):
                self._want(partition, offset)
                return
            if cursor.offer(offset, record.sequence if record is not None else ""):
                self._ready[partition] = None
            else:
                self._drop(line, offset)

    def _want(self, partition: int, offset: int) -> None:
        line = self._lines[partition]
        if line.is_reading:
            return
        if self._held_bytes >= MAX_HELD_BYTES:
            self._starved[partition] = None
            return
        line.is_reading = True
        end = min(line.end, self.cursors[partition].limit)
        self._effects.append(
            ReadWanted(self.queue.name, partition, offset, end, partial(self._read, partition, offset))
        )

    def _read(self, partition: int, start: int, found: list[tuple[int, Record]], now: float) -> None:
        cursor, line = self.cursors[partition], self._lines[partition]
        line.is_reading = False
        # The store keeps unhandled records, unless an operator discarded them meanwhile.
        assert cursor.next_offset != start or (found and found[0][0] == start), (partition, start)
        for offset, record in found:
            if offset >= cursor.next_offset and self._held_bytes < MAX_HELD_BYTES:
                self._keep(line, offset, record)
        self._fill(partition, now)
        self._begin(now)

    # --- scheduling -----------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        dues = (self._due, self.started.due)
        return min((due for due in dues if due is not None), default=None)

    def pump(self, now: float) -> None:
        """Retry the records that are due, and report handlers that hang."""
        self._effects += self.started.pump(now)
        if self._due is None or self._due > now:
            return
        for partition, cursor in enumerate(self.cursors):
            if cursor.wake(now):
                self._ready[partition] = None
        self._due = min((due for one in self.cursors if (due := one.deadline()) is not None), default=None)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Start as many handlings as allowed."""
        if self._is_stopped:
            return
        if self._when_done and self.is_done:
            for call in self._when_done:
                call()
            self._when_done.clear()
        self._begin_retry()
        while self._ready and self.running < self.policy.concurrency:
            # A partition that is served goes to the end of the line, so none starves.
            partition = next(iter(self._ready))
            del self._ready[partition]
            offset = self.cursors[partition].take(now)
            if offset is not None:
                self._ready[partition] = None
                self._hand_over(partition, offset, now)

    def _hand_over(self, partition: int, offset: int, now: float) -> None:
        cursor, line = self.cursors[partition], self._lines[partition]
        handle = Handle(self.queue.name, partition, offset, line.records[offset], cursor.attempts(offset))
        self.started.begin(handle, now)
        if not self.is_at_most_once:
            self._effects.append(handle)
            return
        # Mark it before a handler gets it: a crash in between loses the record, which this assurance allows; a second
        # delivery it does not.
        cursor.give_up_on(offset)
        line.marked.add(offset)
        self._save(partition, now)
        self.commit.then(partial(self._marked, handle))

    def _marked(self, handle: Handle, now: float) -> None:
        self._effects.append(handle)

    # --- results --------------------------------------------------------------------------------------------------

    def addressing_of(self, handle: Handle) -> Addressing:
        """Return the WS-Addressing version of the message's sender."""
        return self._replies.addressing_of(handle.record)

    def handled(self, handle: Handle, reply: Record | None, now: float) -> None:
        """Record that the handler succeeded.

        Args:
            reply: The reply, None for none. A dead letter's reply has no requester and is dropped.
        """
        if self._is_letter(handle):
            self.letters.discard(handle.offset)
            self._letter_handled(handle, now)
        else:
            self._finish(handle, reply, now)
        self.succeeded += 1
        self._begin(now)

    def refused(self, handle: Handle, fault: Record | None, reason: str, now: float) -> None:
        """Record that a request has an invalid body, so that its handler was not called."""
        detail = {"code": "Sender", "reason": reason}
        self._tell(handle, Incident("message.refused", level="warning", detail=detail))
        self._finish(handle, fault, now)
        self._begin(now)

    def handled_alone(self, handle: Handle, reply: Record | None, now: float) -> tuple[Batch | None, Batch]:
        """Record that the handler succeeded, in a batch that holds nothing else.

        Returns:
            The batch open before, None if it was empty, and the batch of this handling alone. Both are taken: they
                become durable in this order, and ``batch_durable`` is called for each.
        """
        # The handler's own transaction commits this batch, so nothing of other messages may be in it.
        before = self.commit.take() if self.commit.is_wanted else None
        if self._is_letter(handle):
            self.letters.discard(handle.offset)
        else:
            self.cursors[handle.partition].give_up_on(handle.offset)
            self._replies.reply(handle.record, reply, now)
            self._save(handle.partition, now)
        # The next record of its Sequence follows only then: the effects that it relies on are in that batch.
        self.commit.then(partial(self._alone_durable, handle))
        return before, self.commit.take()

    def _alone_durable(self, handle: Handle, now: float) -> None:
        if self._is_letter(handle):
            self._letter_handled(handle, now)
        else:
            self._go_on_behind(handle, now)
        self.succeeded += 1
        self._begin(now)

    def handling_failed(self, handle: Handle, error: str, reason: str, now: float, *, is_final: bool = False) -> None:
        """Record that the handler failed: retry the record later, or dead-letter it.

        Args:
            error: The reason, in one line.
            reason: The full reason, for a dead letter.
            is_final: Whether another attempt would fail too.
        """
        self.failed += 1
        record = handle.record
        if self._is_letter(handle):
            assert self._letter is not None
            # In one batch with the end of the old letter, so the message is a dead letter exactly once.
            again = replace(self._letter, reason=reason, attempts=handle.attempt, failed_at=now)
            place = self.letters.failed_again(handle.offset, again)
            detail = {"letter": handle.offset, "place": place, "exception": reason}
            self._retried(handle, Incident("dead_letter.failed_again", level="error", detail=detail), now)
        elif self.is_at_most_once:
            detail = {"why": f"its handler failed, {_ONCE}", "exception": reason}
            self._tell(handle, Incident("message.lost", level="error", detail=detail))
            # The requester gets its fault in the batch that finishes the record: it is never left without an answer.
            self._finish(handle, self._set_aside(record), now)
        elif not is_final and (cursor := self.cursors[handle.partition]).failed(handle.offset, now):
            self._tell(handle, Incident("handler.failed", level="warning", detail={"error": error}))
            due = cursor.deadline()
            self._due = due if self._due is None or due is None else min(self._due, due)
            self._effects += self.started.end(handle, now)
        else:
            self._tell(handle, Incident("dead_letter.added", level="error", detail={"exception": reason}))
            self.dead += 1
            self.letters.add(Letter(record, reason, handle.attempt, now))
            self._finish(handle, self._set_aside(record), now)
        self._begin(now)

    def _finish(self, handle: Handle, reply: Record | None, now: float) -> None:
        # Reply, mark and cursor in one batch: after a crash the handler is called again, or the reply is there.
        self._replies.reply(handle.record, reply, now)
        self._go_on_behind(handle, now)
        self._save(handle.partition, now)

    def _go_on_behind(self, handle: Handle, now: float) -> None:
        """Finish the record, so that the next one of its Sequence may follow."""
        partition, offset = handle.partition, handle.offset
        line = self._lines[partition]
        self._effects += self.started.end(handle, now)
        self.cursors[partition].finished(offset)
        # Its content may be large, so its record is deleted at the next chance and not after 256 others.
        if content_name(handle.record.attachments):
            self.queue.partitions[partition].has_passed_content = True
        line.marked.discard(offset)
        self._drop(line, offset)
        self._ready[partition] = None
        self._fill_all(partition, now)

    def _fill_all(self, partition: int, now: float) -> None:
        self._fill(partition, now)
        # Room in memory is shared by all partitions, so the next one may be another's.
        while self._starved and self._held_bytes < MAX_HELD_BYTES:
            starved = next(iter(self._starved))
            del self._starved[starved]
            self._fill(starved, now)

    def _save(self, partition: int, now: float) -> None:
        cursor, line = self.cursors[partition], self._lines[partition]
        state, floor = cursor.to_state(), cursor.floor
        if self.is_at_most_once:
            # The next process searches for records that are marked and not answered.
            looked = floor if line.search is None else line.search.position
            floor = state["floor"] = min(floor, looked, *line.marked)
        self.queue.move_cursor(HANDLER, partition, floor, now, state)

    def _tell(self, handle: Handle, told: Incident) -> None:
        record = handle.record
        told.identifier, told.number = record.sequence, record.message_number
        told.detail = {"action": record.action, "attempt": handle.attempt, **(told.detail or {})}
        self._effects.append(told)

    # --- dead letters to retry ------------------------------------------------------------------------------------

    @changing
    def retry(self, letter: int | None = None) -> int:
        """Retry a dead letter, or all, once the request is durable; return their count."""
        count = self.letters.ask(letter)
        self.commit.then(self._begin)
        return count

    # --- the operator's decisions ---------------------------------------------------------------------------------

    def rewind(self, partition: int, offset: int, now: float) -> None:
        """Handle the records from ``offset``, or from the first one kept, once more.

        Requesters have their replies and receive no second one. At-most-once no longer holds for these records.
        """
        cursor = self.cursors[partition]
        cursor.rewind(max(offset, self.queue.partitions[partition].first))
        self.queue.put_cursor(HANDLER, partition, cursor.floor, now, cursor.to_state())
        self._fill(partition, now)
        self.commit.then(self._begin)

    def give_up(self, partition: int, records: list[tuple[int, Record]], now: float) -> int:
        """Discard these records and answer their requesters; return how many.

        Records that are handled, or with a handler, are not discarded.
        """
        cursor, line, count = self.cursors[partition], self._lines[partition], 0
        for offset, record in records:
            if cursor.skip(offset):
                count += 1
                self._drop(line, offset)
                self._replies.reply(record, self._set_aside(record), now)
        self._ready[partition] = None
        self._save(partition, now)
        self._fill_all(partition, now)
        self.commit.then(self._begin)
        return count

    def _is_letter(self, handle: Handle) -> bool:
        return handle.queue == self.letters.name

    def _begin_retry(self) -> None:
        letter = self.letters.next_asked()
        if letter is None or self._retrying is not None or self.running >= self.policy.concurrency:
            return
        self._retrying = letter
        # The request must be durable before the retry, so that a crash in between only delays it.
        self.commit.then(partial(self._want_letter, letter))

    def _want_letter(self, letter: int, now: float) -> None:
        self._effects.append(ReadWanted(self.letters.name, 0, letter, letter + 1, partial(self._letter_read, letter)))

    def _letter_read(self, letter: int, found: list[tuple[int, Record]], now: float) -> None:
        if self._is_stopped or not self.letters.is_there(letter):
            self._retrying = None
            self._begin(now)
            return
        self._letter = self.letters.unseal(found[0][1])
        # Its requester got a fault when it became a dead letter, so no one waits for the reply.
        record = replace(self._letter.record, wants_reply=False)
        handle = Handle(self.letters.name, 0, letter, record, self._letter.attempts + 1)
        self.started.begin(handle, now)
        self._effects.append(handle)

    def _letter_handled(self, handle: Handle, now: float) -> None:
        self._retried(handle, Incident("dead_letter.handled", detail={"letter": handle.offset}), now)

    def _retried(self, handle: Handle, told: Incident, now: float) -> None:
        self._retrying = self._letter = None
        self._effects += self.started.end(handle, now)
        self._tell(handle, told)

    # --- at most once: what the last process was handling ---------------------------------------------------------

    def _look_for_lost(self, now: float) -> None:
        """Answer requests that were being handled when the process ended with a fault.

        They are not handled again.
        """
        wanted: dict[int, set[tuple[str, int]]] = {}
        for one in self._sequences.destinations.values():
            # A request that is held beyond a gap was never given to a handler.
            for number in one.replies.unanswered.difference(one.held):
                wanted.setdefault(one.partition, set()).add((one.identifier, number))
        for partition, requests in wanted.items():
            state = self.queue.cursors.handled(partition, at_most_once=True)
            done = AcknowledgementRanges.from_state(state["done"])
            self._lines[partition].search = _Search(requests, done, state["floor"])
            self._look_on(partition, now)

    def _look_on(self, partition: int, now: float) -> None:
        line = self._lines[partition]
        search = line.search
        assert search is not None
        if search.wanted and search.position < search.done.highest:
            take = partial(self._looked_at, partition)
            self._effects.append(ReadWanted(self.queue.name, partition, search.position, search.done.highest, take))
        else:
            line.search = None
            self._save(partition, now)
            self._begin(now)

    def _looked_at(self, partition: int, found: list[tuple[int, Record]], now: float) -> None:
        search = self._lines[partition].search
        assert search is not None
        for offset, record in found:
            request = (record.sequence, record.message_number)
            if request in search.wanted:
                search.wanted.discard(request)
                if offset + 1 in search.done:
                    detail = {"action": record.action, "why": f"the process ended in its handler, {_ONCE}"}
                    self._effects.append(Incident("message.lost", *request, level="error", detail=detail))
                    self._replies.reply(record, self._set_aside(record), now)
        search.position = found[-1][0] + 1 if found else search.done.highest
        self._look_on(partition, now)


def _size_of(record: Record) -> int:
    return record.size
