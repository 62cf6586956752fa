"""Dispatcher: calls the application's handlers and reports their results to the core.

The core decides the rest: the order of records, the time of a retry, which records become dead letters, what is saved.
The dispatcher knows no HTTP and no cursor.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from holdfast.core.events import Handle
from holdfast.core.handling.delivery import HandlerSchedule
from holdfast.core.records import Batch, Record
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.attachments import WithAttachments, are_small, encode_attachments
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.fault_replies import fault_reply
from holdfast.endpoint.envelopes.message import ApplicationFault, Body, Message, body_bytes, empty_response
from holdfast.endpoint.envelopes.tracing import Tracing
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.handling.handlers import InvalidRequest, PermanentFailure, wants_connection
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.store import Transaction, Transactional
from holdfast.wire import check_header_blocks

Returned = Body | WithAttachments | None
Result = Awaitable[Returned] | Returned
"""What a handler returns: the body of the reply, if there is one."""

TRUST_SECONDS: Final = 0.1
"""Between two looks whether this process may call handlers again."""


class TransactionalHandler(Protocol):
    """A plain handler that takes part in the transaction of the store's database."""

    def __call__(self, message: Message, /, connection: Any) -> Result: ...


MessageHandler = Callable[[Message], Result] | TransactionalHandler
"""What :meth:`holdfast.Destination.on` accepts, for type checkers."""
HandlerT = TypeVar("HandlerT", bound=MessageHandler)
Handler = Callable[..., Result]
"""The same for those who call it. Plain functions run in threads."""


class Dispatcher:
    """Runs handlers.

    Args:
        handling: The core's decisions about handlers.
        handlers: Action -> handler; "" handles any other action.
        reply_actions: Action -> action of its replies, if that is not the action followed by ``Response``; "" for an
            operation without replies.
        envelopes: Writes the replies.
        tracing: Traces the end of handlers; None without tracing.
        is_trusted: Whether this process may call handlers now; otherwise, another node may call them. None: always.
    """

    def __init__(
        self,
        engine: Engine,
        handling: HandlerSchedule,
        handlers: dict[str, Handler],
        reply_actions: Mapping[str, str],
        envelopes: Envelopes,
        tracing: Tracing | None = None,
        is_trusted: Callable[[], bool] | None = None,
    ):
        self.handling = handling
        self._reply_actions = reply_actions
        self._engine = engine
        self._handlers = handlers
        self._wanting: dict[str, bool] = {}
        """Action -> whether its handler takes the database connection."""
        self._unrequested: set[str] = set()
        """Actions of one-way messages with a handler that has returned a value, which is reported once."""
        self._running: set[asyncio.Future[Any]] = set()
        self._is_trusted = is_trusted
        self._put_off: set[asyncio.TimerHandle] = set()
        """Calls that wait until this process may act again."""
        self._threads: ThreadPoolExecutor | None = None
        self._jobs: set[Future[Any]] = set()
        """Calls of plain handlers, until the loop has their results."""
        self._stopping = False
        self._stop_at: float | None = None
        """The loop's time at which :meth:`stop` abandons handlers, if the stop began before it."""
        self._last_start: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._changed: asyncio.Event | None = None
        self._envelopes = envelopes
        self._tracing = tracing
        self._was_late = False
        """Whether the stop has cancelled or abandoned handlers."""
        self.last_failure = ""
        """What a handler raised last, in one line; "" if none has failed."""

    # --- calling --------------------------------------------------------------------------------------------------

    def hand_over(self, handle: Handle) -> None:
        """Call the handler of a record."""
        if self._is_closed or self._engine.failure is not None:
            return
        if self._is_trusted is not None and not self._is_trusted():
            self._call_later(handle)
            return
        action = handle.record.action
        handler = self._handlers.get(action) or self._handlers.get("")
        if handler is None:
            self._raised(handle, LookupError(f"no handler is registered for the action {action!r} any longer"))
        elif inspect.iscoroutinefunction(handler):
            self._watch(asyncio.create_task(self._await(handle, _call(handler, handle))), self._ended)
        else:
            # In threads of our own: the loop's executor has few, and serves the store besides.
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.handling.policy.concurrency, "holdfast-handler")
            # A thread has no context of its caller: without a copy, spans of the handler would have no parent.
            run = contextvars.copy_context().run
            if self._wants_connection(action, handler):
                call = partial(run, self._call_within, handler, handle)
                then = partial(self._returned_within, handle)
            else:
                call, then = partial(run, _call_plain, handler, handle), partial(self._returned, handle)
            job = self._threads.submit(call)
            self._jobs.add(job)
            running = asyncio.wrap_future(job)
            running.add_done_callback(lambda _: self._jobs.discard(job) if job.done() else None)
            self._watch(running, then)

    def _call_later(self, handle: Handle) -> None:
        def again() -> None:
            self._put_off.discard(timer)
            self.hand_over(handle)
            self._wake()

        timer = asyncio.get_running_loop().call_later(TRUST_SECONDS, self._engine.ending(again))
        self._put_off.add(timer)

    def _watch(self, running: asyncio.Future[Any], then: Callable[[asyncio.Future[Any]], None]) -> None:
        self._running.add(running)
        running.add_done_callback(self._engine.ending(then))

    async def _await(self, handle: Handle, awaited: Awaitable[Any]) -> None:
        task = asyncio.current_task()
        try:
            result = await awaited
        except BaseException as error:
            if isinstance(error, GeneratorExit) and _current_task() is not task:
                raise  # Python closes this coroutine, because the loop has ended
            if self._stopping and isinstance(error, asyncio.CancelledError):
                raise
            if isinstance(error, KeyboardInterrupt) and _may_be_a_signal():
                raise
            self._raised(handle, error)
        else:
            self._gave(handle, result)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._engine.fail(error)
        self._wake()

    def _returned(self, handle: Handle, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            error = running.exception()
            if error is not None:
                self._raised(handle, error)
            elif inspect.isawaitable(running.result()):
                self._watch(asyncio.create_task(self._await(handle, running.result())), self._ended)
            else:
                self._gave(handle, running.result())
        self._wake()

    def _wants_connection(self, action: str, handler: Handler) -> bool:
        # Peers choose actions, so what is remembered is the action of the handler.
        handled = action if action in self._handlers else ""
        wants = self._wanting.get(handled)
        if wants is None:
            wants = self._wanting[handled] = wants_connection(handler)
        return wants

    def _call_within(self, handler: Handler, handle: Handle) -> tuple[Any, Transaction]:
        """Call it with a transaction, which is left for what follows from it."""
        store = self._engine.store
        assert isinstance(store, Transactional)  # or the destination would not have started
        transaction = store.begin()
        try:
            result = _call_plain(partial(handler, connection=transaction.connection), handle)
            transaction.check()
            # Too late to report: the message is handled again, so nothing of this attempt may be committed.
            if self._is_closed:
                raise RuntimeError("the destination was closed")
        except BaseException:
            transaction.end()
            raise
        return result, transaction

    def _returned_within(self, handle: Handle, running: asyncio.Future[tuple[Any, Transaction]]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            error = running.exception()
            if error is not None:
                self._raised(handle, error)
            else:
                self._gave_within(handle, *running.result())
        self._wake()

    def _gave_within(self, handle: Handle, result: Body | None, transaction: Transaction) -> None:
        try:
            reply = self._reply(handle.record, result)
        except Exception as error:
            asyncio.get_running_loop().run_in_executor(None, transaction.end)
            self._failed(handle, error)
        else:
            clock, handling = self._engine.clock, self.handling
            take = partial(_alone, handling, handle, reply, clock)
            self._watch(self._engine.commit_alone(take, transaction), self._committed)

    def _committed(self, running: asyncio.Future[None]) -> None:
        self._running.discard(running)
        self._wake()

    # --- what came of it ------------------------------------------------------------------------------------------

    def _gave(self, handle: Handle, result: Returned) -> None:
        if isinstance(result, WithAttachments) and not are_small(result.attachments):
            replying = asyncio.get_running_loop().run_in_executor(None, self._reply, handle.record, result)
            self._watch(replying, partial(self._replied, handle))
            return
        self._replied_with(handle, partial(self._reply, handle.record, result))

    def _replied(self, handle: Handle, replying: asyncio.Future[Record | None]) -> None:
        """Process a reply with large attachments, which a thread has written to the store."""
        self._running.discard(replying)
        if not replying.cancelled():
            self._replied_with(handle, replying.result)
        self._wake()

    def _replied_with(self, handle: Handle, reply_of: Callable[[], Record | None]) -> None:
        try:
            reply = reply_of()
        except Exception as error:
            self._failed(handle, error)
        else:
            self._handled(handle, reply)

    def _reply(self, record: Record, result: Returned) -> Record | None:
        """Return the reply made of a handler's result; None if the message requests no reply.

        Raises:
            _NoReply: The result is not a body.
        """
        if not record.wants_reply:
            # Peers choose actions, so what is remembered is the action of the handler.
            handled = record.action if record.action in self._handlers else ""
            if result is not None and handled not in self._unrequested:
                self._unrequested.add(handled)
                log.warning("reply.not_requested", action=record.action, message_number=record.message_number)
            return None
        try:
            content = result.body if isinstance(result, WithAttachments) else result
            # A .NET client fails without a reply, also to an operation that returns nothing. For a one-way operation
            # with a ReplyTo, the WSDL has no element that such a reply could contain.
            is_one_way = self._reply_actions.get(record.action) == ""
            nothing = b"" if is_one_way else empty_response(record.body)
            body = nothing if content is None else body_bytes(content)
            self._check_size(body)
            files = result.attachments if isinstance(result, WithAttachments) else ()
            headers = result.headers if isinstance(result, WithAttachments) else b""
            if not isinstance(headers, bytes):  # values, which only handlers of operations return
                raise EnvelopeError(f"its headers must be bytes of XML, not {type(headers).__name__}")
            if headers:
                check_header_blocks(headers)
            attachments = encode_attachments(files, body, headers, self._engine.store.create_content)
            self._envelopes.check_content(body, headers, attachments)
        except (EnvelopeError, ConfigurationError) as error:
            raise _NoReply(f"the handler returned an invalid reply: {error.message}") from None
        action = self._reply_actions.get(record.action) or f"{record.action}Response"
        return Record(
            "", 0, action, body, record.received_at, soap=record.soap, headers=headers, attachments=attachments
        )

    def _check_size(self, body: bytes) -> None:
        """Refuse a body that clients cannot receive: its requester would ask for it without end."""
        most = self._envelopes.most_content
        if len(body) > most:
            raise EnvelopeError(
                f"its body has {len(body):,} bytes, and clients accept {most:,}. Return large values as "
                "attachments: set DestinationHTTP(mtom=True), or return WithAttachments. If all clients accept more, "
                "raise max_bytes in DestinationHTTP(envelopes=Limits(...))"
            )

    def _raised(self, handle: Handle, error: BaseException) -> None:
        if isinstance(error, ApplicationFault):
            self._decided(handle, error)
        elif isinstance(error, asyncio.CancelledError):
            # An operation that the handler awaited was cancelled, not the handler itself.
            self._failed(handle, _caused("the handler waited for an operation that was cancelled", error))
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            # One message must not end the server, and every start of it after that.
            self._failed(handle, _caused(f"the handler asked the process to end: {brief(error)}", error))
        else:
            self._failed(handle, error)

    def _decided(self, handle: Handle, fault: ApplicationFault) -> None:
        """Answer with the fault. Without a requester that would get it, the message becomes a dead letter instead."""
        if not handle.record.wants_reply:
            self._failed(handle, fault, is_final=True)
            return
        try:
            reply = fault_reply(handle.record, fault, self.handling.addressing_of(handle))
            if reply is not None:
                self._envelopes.check_content(reply.body, reply.headers)
        except Exception as error:
            self._failed(handle, error, is_final=True)
            return
        if not isinstance(fault, InvalidRequest):
            self._handled(handle, reply)
            return
        if self._tracing is not None:
            self._tracing.delivered(handle, reply)
        self.handling.refused(handle, reply, fault.message, self._engine.clock())
        self._engine.touch()

    def _handled(self, handle: Handle, reply: Record | None) -> None:
        if self._tracing is not None:
            self._tracing.delivered(handle, reply)
        self.handling.handled(handle, reply, self._engine.clock())
        self._engine.touch()

    def _failed(self, handle: Handle, error: BaseException, *, is_final: bool = False) -> None:
        self.last_failure = brief(error)
        if self._tracing is not None:
            self._tracing.delivered(handle, error=error)
        is_final = is_final or isinstance(error, PermanentFailure)
        self.handling.handling_failed(
            handle, self.last_failure, reason_of(error), self._engine.clock(), is_final=is_final
        )
        self._engine.touch()

    # --- waiting and ending ---------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    async def done(self) -> None:
        """Wait until every delivered message is handled, answered or a dead letter, and no retry is pending.

        Return early if the store fails or the dispatcher stops.
        """
        while not (self.handling.is_done or self._stopping or self._engine.failure is not None):
            self.handling.when_done(self._wake)
            await self._change()

    async def _change(self) -> None:
        changed = self._changed = self._changed or asyncio.Event()
        await changed.wait()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def store_failed(self) -> None:
        """Stop handling because the store has failed."""
        self._wake()

    def announce_stop(self, grace: float) -> None:
        """Count the ``grace`` seconds of :meth:`stop` from now on.

        Until then handlers still start, since requesters wait for their replies; but not in the second half of these
        seconds, so that each handler has at least half of them.
        """
        loop = asyncio.get_running_loop()
        self._stop_at = loop.time() + grace
        self._last_start = loop.call_later(grace / 2, self.handling.stop)

    async def stop(self, grace: float) -> None:
        """Stop starting handlers, wait ``grace`` seconds for the running ones, then cancel them."""
        self._stopping = True
        self.handling.stop()
        self._wake()
        now = asyncio.get_running_loop().time()
        if self._last_start is not None:
            self._last_start.cancel()
        try:
            async with asyncio.timeout_at(now + grace if self._stop_at is None else self._stop_at):
                while self._running or (self._is_owed and self._engine.failure is None):
                    await self._change()
        except TimeoutError:
            pass
        finally:  # also if the caller is cancelled: nothing of a handler may come to a closed store
            await self._abandon(grace)

    @property
    def _is_owed(self) -> bool:
        """Whether a handler must still be called. At most once, that is so for a message that is marked as handled, or
        it would be lost. Another one that is put off is delivered after the next start."""
        put_off = 0 if self.handling.is_at_most_once else len(self._put_off)
        return self.handling.running > put_off

    async def _abandon(self, grace: float) -> None:
        self._is_closed = True
        for timer in self._put_off:
            timer.cancel()
        late = list(self._running)
        if late:
            is_lost = self.handling.is_at_most_once
            log.warning(
                "handlers.abandoned",
                running=len(late),
                seconds=grace,
                messages="lost, as at-most-once says" if is_lost else "delivered again after the next start",
                remedy="Set timeouts in the libraries that handlers call (asyncio.timeout in async ones), or give the "
                "stop more seconds",
            )
        self._was_late = bool(late)
        for running in late:
            running.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if self._threads is not None:
            # A handler in a thread cannot be stopped: its message stays unfinished and is delivered again. The store's
            # lock stays as well (when_returned), or another process would handle the message at the same time.
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def has_abandoned(self) -> bool:
        """Whether the stop has left handlers in threads that still run, or threads of cancelled ones."""
        return self.unreturned > 0 or (self._was_late and _has_busy_threads())

    @property
    def unreturned(self) -> int:
        """The number of plain handlers that still run, also after :meth:`stop`."""
        return sum(not job.done() for job in self._jobs)

    def when_returned(self, call: Callable[[], object]) -> None:
        """Call ``call`` once when no plain handler runs any more: now, or in the thread of the last one."""
        jobs, lock = list(self._jobs), threading.Lock()
        left = len(jobs) + 1  # 1 for this method, so that handlers that return during the loop do not call early

        def returned(_job: object = None) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                call()

        for job in jobs:
            job.add_done_callback(returned)
        returned()


async def _call(handler: Handler, handle: Handle) -> Any:
    return await handler(Message.from_record(handle.record, handle.attempt))  # type: ignore[misc]


def _call_plain(handler: Handler, handle: Handle) -> Any:
    try:
        return handler(Message.from_record(handle.record, handle.attempt))
    except StopIteration as error:  # a future cannot hold it: the waiting task would never wake
        raise RuntimeError("the handler raised StopIteration") from error


def _alone(
    handling: HandlerSchedule, handle: Handle, reply: Record | None, clock: Callable[[], float]
) -> tuple[Batch | None, Batch]:
    return handling.handled_alone(handle, reply, clock())


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


def _may_be_a_signal() -> bool:
    """Whether a signal may have raised KeyboardInterrupt here, and not the handler itself.

    A server and ``asyncio.run`` have signal handlers that end the program in order instead.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _caused(what: str, error: BaseException) -> RuntimeError:
    failure = RuntimeError(what)
    failure.__cause__ = error
    return failure


class _NoReply(EnvelopeError, PermanentFailure):
    """A handler returned a value that cannot be sent. A retry would repeat its work, with the same result."""


def _has_busy_threads() -> bool:
    """Whether a call of ``asyncio.to_thread`` still runs. An idle thread of its executor waits in ``_worker``."""
    frames = sys._current_frames()
    threads = [one.ident for one in threading.enumerate() if one.name.startswith("asyncio_")]
    return any(one in frames and frames[one].f_code.co_name != "_worker" for one in threads if one is not None)
