"""Dispatcher: hands delivered messages to the application's handlers, in the order their assurance demands.

Owns the handler cursors, concurrency, retries and dead letters. Knows no HTTP and no protocol rule but one: a reply
and the mark that its request is done with become durable together.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.core.cursor import HandlerCursor, HandlingPolicy
from holdfast.core.dead_letters import DeadLetters
from holdfast.core.policy import Delivery
from holdfast.core.queues import HANDLER, Queue
from holdfast.core.records import Record
from holdfast.endpoint.engine import Cancellable, Engine
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.letters import Letter, seal, unseal
from holdfast.endpoint.logs import log
from holdfast.endpoint.message import ApplicationFault, Body, Message, body_bytes, fault_body
from holdfast.exceptions import EnvelopeError, StoreError

Handler = Callable[[Message], Awaitable[Body | None] | Body | None]
"""Takes a message; what it returns, if anything, is the reply's body. Plain functions run in threads."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bodies kept in memory ahead of their handlers; what is beyond is read from the store when its turn comes."""

_SET_ASIDE = ApplicationFault("The service failed to handle the request; it has been set aside.", sender=False)


class Dispatcher:
    """Runs handlers over the partitions of one queue.

    Args:
        engine: The running engine.
        queue: The queue.
        letters: Where what cannot be handled goes, and comes back from if somebody asks for it.
        handlers: Action -> handler; "" is asked for any other action.
        policy: How handlers are called.
        concurrency: Handlers that run at a time.
    """

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        letters: DeadLetters,
        handlers: dict[str, Handler],
        policy: HandlingPolicy,
        concurrency: int,
    ):
        self._engine = engine
        self._queue = queue
        self._letters = letters
        self._handlers = handlers
        self._policy = policy
        self._concurrency = concurrency
        self._cursors: list[HandlerCursor] = []
        self._ends: list[int] = []
        self._records: dict[tuple[int, int], Record] = {}
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Cancellable | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._retrying: int | None = None
        self._stopping = False
        self._awaited: asyncio.Event | None = None
        self.handled = 0
        self.failed = 0
        self.dead = 0

    def start(self) -> None:
        """Go on where the cursors stood."""
        in_order = self._engine.protocol.policy.assurance.in_order
        self._ends = self._queue.ends
        for partition in range(len(self._ends)):
            state = self._queue.handled(partition, at_most_once=self._is_at_most_once)
            self._cursors.append(HandlerCursor(self._policy, in_order, state))
        if self._is_at_most_once:
            self._answer_lost(self._queue.firsts)
        for partition in range(len(self._ends)):
            self._save(partition)
        self._run()

    def _answer_lost(self, firsts: list[int]) -> None:
        """Requests that were being handled when the process ended: answered with a fault, not handled again."""
        destinations = self._engine.protocol.inbound.destinations.values()
        awaited = {(one.identifier, number) for one in destinations for number in one.unanswered - one.held}
        for partition, cursor in enumerate(self._cursors):
            position = firsts[partition]
            while awaited and position < self._ends[partition]:
                for offset, record in self._engine.read(self._queue.name, partition, position, self._ends[partition]):
                    position = offset + 1
                    if (record.sequence, record.message_number) in awaited:
                        awaited.discard((record.sequence, record.message_number))
                        if cursor.is_done(offset):
                            self._answer_one_lost(record)

    def _answer_one_lost(self, record: Record) -> None:
        log.error(
            "message lost",
            sequence=record.sequence,
            message_number=record.message_number,
            action=record.action,
            why="the process ended in its handler, and at-most-once allows no second attempt",
        )
        self._engine.protocol.reply(record, _fault_reply(record, _SET_ASIDE), self._engine.clock())

    def _floor(self, partition: int) -> int:
        """The first offset that is not done with, or marked so but still running (at most once)."""
        floor = self._cursors[partition].floor
        if not self._is_at_most_once:
            return floor
        return min(floor, min((offset for where, offset in self._records if where == partition), default=floor))

    def delivered(self, partition: int, offset: int, record: Record | None) -> None:
        """A record is durable in the queue."""
        self._ends[partition] = offset + 1
        cursor = self._cursors[partition]
        if record is not None and offset == cursor.next_offset and cursor.has_room and self._has_room():
            self._offer(partition, offset, record)
        self._run()

    def _has_room(self) -> bool:
        return self._held_bytes < MAX_HELD_BYTES

    def _offer(self, partition: int, offset: int, record: Record) -> None:
        cursor = self._cursors[partition]
        cursor.offer(offset, record.sequence)
        if not cursor.is_done(offset):
            self._records[partition, offset] = record
            self._held_bytes += len(record.body)

    def _fill(self, partition: int) -> None:
        cursor = self._cursors[partition]
        while cursor.next_offset < self._ends[partition] and cursor.has_room and self._has_room():
            found = self._engine.read(self._queue.name, partition, cursor.next_offset, self._ends[partition])
            for offset, record in found:
                if cursor.has_room:
                    self._offer(partition, offset, record)

    def _run(self) -> None:
        """Start as many handlers as may run."""
        if self._stopping or self._engine.failure is not None:
            return
        now = self._engine.clock()
        self._start_retry()
        for partition, cursor in enumerate(self._cursors):
            try:
                self._fill(partition)
            except StoreError:
                return  # the engine has told it to everybody
            while len(self._tasks) < self._concurrency:
                offset = cursor.take(now)
                if offset is None:
                    break
                task = asyncio.ensure_future(self._handle(partition, offset))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        self._set_timer(now)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("dispatcher failed", exc_info=task.exception())
        self._run()
        if self._awaited is not None and self.is_done:
            self._wake()

    def _set_timer(self, now: float) -> None:
        due = min((due for cursor in self._cursors if (due := cursor.deadline()) is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._engine.clock.call_at(due, self._run)

    # --- dead letters that somebody asked for ---------------------------------------------------------------------

    def retry(self) -> None:
        """Letters were asked for, durably: hand them over."""
        self._run()

    def _start_retry(self) -> None:
        letter = self._letters.next_asked()
        if letter is None or self._retrying is not None or len(self._tasks) >= self._concurrency:
            return
        self._retrying = letter
        task = asyncio.ensure_future(self._retry(letter))
        self._tasks.add(task)
        task.add_done_callback(self._retried)

    def _retried(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:  # else not again and again
            self._retrying = None
        self._ended(task)

    async def _retry(self, number: int) -> None:
        """Hand a letter over once more. Nobody waits for its reply: a request was answered when it became a letter."""
        found = self._engine.store.read(self._letters.name, 0, number, number + 1)
        letter = unseal(found[0][1])
        record = replace(letter.record, wants_reply=False)
        attempt = letter.attempts + 1
        fields = {
            "letter": number,
            "sequence": record.sequence,
            "message_number": record.message_number,
            "action": record.action,
            "attempt": attempt,
        }
        try:
            await self._answer(Message.from_record(record, attempt), record)
        except Exception as error:
            self.failed += 1
            now = self._engine.clock()
            again = replace(letter, reason=reason_of(error), attempts=attempt, failed_at=now)
            place = self._letters.failed_again(number, seal(again))
            log.error("dead letter again", **fields, place=place, exception=again.reason)
        else:
            self.handled += 1
            self._letters.discard(number)
            log.info("dead letter handled", **fields)
        self._engine.touch()

    async def _handle(self, partition: int, offset: int) -> None:
        cursor = self._cursors[partition]
        record = self._records[partition, offset]
        attempt = cursor.attempts(offset)
        message = Message.from_record(record, attempt)
        if self._is_at_most_once:
            # Marked before it is handed over: a crash in between loses it, which this assurance allows; a second
            # delivery it does not.
            cursor.give_up_on(offset)
            self._save(partition)
            await self._engine.durable()
        try:
            reply = await self._answer(message, record)
        except Exception as error:
            if self._is_at_most_once:
                self._lost(partition, offset, record, error)
            else:
                self._failed(partition, offset, record, error)
            return
        self._finish(partition, offset, record, reply)
        self.handled += 1

    @property
    def _is_at_most_once(self) -> bool:
        return self._engine.protocol.policy.assurance.delivery is Delivery.AT_MOST_ONCE

    async def _answer(self, message: Message, record: Record) -> Record | None:
        """What the handler makes of a message: the reply, or the fault it decided for; raises what it raises."""
        try:
            return _reply(record, await self._call(message))
        except ApplicationFault as fault:
            if not record.wants_reply:
                log.warning(
                    "fault without a requester",
                    sequence=record.sequence,
                    message_number=record.message_number,
                    action=record.action,
                    reason=str(fault),
                )
            return _fault_reply(record, fault)
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            # Of something that the handler waited for: nobody has cancelled the handler itself.
            raise RuntimeError("the handler waited for something that was cancelled") from error
        except SystemExit as error:
            # One message must not end the server, and every start of it after that.
            raise RuntimeError(f"the handler asked the process to end: {brief(error)}") from error

    async def _call(self, message: Message) -> Body | None:
        handler = self._handlers.get(message.action) or self._handlers.get("")
        if handler is None:
            raise LookupError(f"there is no handler of the action {message.action!r} any more")
        if inspect.iscoroutinefunction(handler):
            result: Any = await handler(message)
        else:
            result = await self._in_thread(handler, message)
            if inspect.isawaitable(result):
                result = await result
        return result  # type: ignore[no-any-return]

    async def _in_thread(self, handler: Handler, message: Message) -> Any:
        """Call a plain handler in a thread of our own: the loop's executor has few, and serves the store besides."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="holdfast-handler")
        call = partial(contextvars.copy_context().run, _call_plain, handler, message)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _lost(self, partition: int, offset: int, record: Record, error: Exception) -> None:
        self.failed += 1
        log.error(
            "message lost",
            sequence=record.sequence,
            message_number=record.message_number,
            action=record.action,
            why="its handler failed, and at-most-once allows no second attempt",
            exception=reason_of(error),
        )
        self._finish(partition, offset, record, _fault_reply(record, _SET_ASIDE))

    def _finish(self, partition: int, offset: int, record: Record, reply: Record | None) -> None:
        cursor = self._cursors[partition]
        cursor.finished(offset)
        del self._records[partition, offset]
        self._held_bytes -= len(record.body)
        self._save(partition)
        self._engine.protocol.reply(record, reply, self._engine.clock())
        self._engine.touch()

    def _save(self, partition: int) -> None:
        state = self._cursors[partition].to_state()
        self._queue.move_cursor(HANDLER, partition, self._floor(partition), self._engine.clock(), state)

    def _failed(self, partition: int, offset: int, record: Record, error: Exception) -> None:
        self.failed += 1
        now = self._engine.clock()
        cursor = self._cursors[partition]
        attempt = cursor.attempts(offset)
        fields = {
            "sequence": record.sequence,
            "message_number": record.message_number,
            "action": record.action,
            "attempt": attempt,
        }
        if cursor.failed(offset, now):
            log.warning("handler failed", **fields, error=brief(error))
            return
        reason = reason_of(error)
        log.error("dead letter", **fields, exception=reason)
        self.dead += 1
        self._letters.add(seal(Letter(record, reason, attempt, now)))
        self._finish(partition, offset, record, _fault_reply(record, _SET_ASIDE))

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs."""
        return bool(self._tasks)

    @property
    def is_done(self) -> bool:
        """Whether all that was delivered is handled, answered or a dead letter, and nothing is to be tried again."""
        reached = all(cursor.floor >= end for cursor, end in zip(self._cursors, self._ends, strict=True))
        return reached and not self._tasks and self._letters.next_asked() is None

    @property
    def unhandled(self) -> int:
        """Delivered records that are not done with."""
        unfinished = sum(cursor.unfinished(end) for cursor, end in zip(self._cursors, self._ends, strict=True))
        return unfinished + self._letters.asked

    async def done(self) -> None:
        """Wait for that, the store's failure, or the stop."""
        while not (self.is_done or self._stopping or self._engine.failure is not None):
            awaited = self._awaited = self._awaited or asyncio.Event()
            await awaited.wait()

    def _wake(self) -> None:
        if self._awaited is not None:
            self._awaited.set()
            self._awaited = None

    def store_failed(self) -> None:
        """The store has failed: nothing more will be done."""
        self._wake()

    async def stop(self, grace: float) -> None:
        """Start no more handlers; let those that run finish, for ``grace`` seconds, then cancel them."""
        self._stopping = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._threads is not None:
            # Whoever still runs in a thread cannot be stopped: its message is not done with, and is handed over again.
            self._threads.shutdown(wait=False, cancel_futures=True)


def _call_plain(handler: Handler, message: Message) -> Any:
    try:
        return handler(message)
    except StopIteration as error:  # which no future can hold: whoever waits for it would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


def _reply(record: Record, result: Body | None) -> Record | None:
    if result is None or not record.wants_reply:
        return None
    try:
        body = body_bytes(result)
    except EnvelopeError as error:
        raise EnvelopeError(f"what the handler returned is no reply: {error.message}") from None
    return Record("", 0, f"{record.action}Response", body, record.received_at, soap=record.soap)


def _fault_reply(record: Record, fault: ApplicationFault) -> Record | None:
    if not record.wants_reply:
        return None
    action = "http://www.w3.org/2005/08/addressing/soap/fault"
    return Record("", 0, action, fault_body(fault, record.soap), record.received_at, soap=record.soap)
