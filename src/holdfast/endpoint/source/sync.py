"""The blocking Source: the same names without ``await``. A separate thread runs its event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.policy import SourcePolicy
from holdfast.endpoint.engine.owning_loop import check_process
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.message import Body
from holdfast.endpoint.handling.dispatcher import HandlerT
from holdfast.endpoint.sending.policies import Policy
from holdfast.endpoint.source import sent
from holdfast.endpoint.source import source as asynchronous
from holdfast.endpoint.source.block_hints import NoAsyncWith
from holdfast.endpoint.source.operation_calls import MessageFields
from holdfast.endpoint.source.pending_sends import Progress
from holdfast.endpoint.source.sent import Enqueued
from holdfast.endpoint.source.wsdl import SourceOptions
from holdfast.exceptions import ConfigurationError, PeerFault
from holdfast.settings import check_seconds
from holdfast.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from holdfast.store.sql.outgoing import DBConnection

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds that calls in other threads have to return when the source closes."""


class LoopThread:
    """A running event loop in a separate thread."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise ConfigurationError in a forked process, which has no such thread."""
        check_process("source", self._process)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self.check()
        except ConfigurationError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        """Stop the loop. First end the pending calls of other threads, which would otherwise wait forever."""
        self.run(_let_go())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Sent:
    """A message that is durable in the source's store; see :class:`holdfast.Sent`."""

    def __init__(self, source: Source, sent: sent.Sent) -> None:
        self._source = source
        self._sent = sent
        self.message_id = sent.message_id
        self.sequence_key = sent.sequence_key
        self.offset = sent.offset

    def __repr__(self) -> str:
        return repr(self._sent)

    @property
    def fault(self) -> PeerFault | None:
        """The fault that the service sent for this one-way message; see :attr:`holdfast.Sent.fault`."""
        return self._sent.fault

    def acknowledged(self, timeout: float | None = None) -> None:
        """Wait until the destination has acknowledged the message.

        Arguments and errors are those of :meth:`holdfast.Sent.acknowledged`.
        """
        self._source._run(self._sent.acknowledged(timeout))


def _arguments_of(
    _source: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Source, P], None]]:
    """Give a constructor the arguments of another class, for type checkers, editors and ``inspect``."""

    def decorate(constructor: Callable[..., None]) -> Callable[Concatenate[Source, P], None]:
        return wraps(asynchronous.Source.__init__)(constructor)

    return decorate


def _shown_as(method: Callable[..., object]) -> Callable[[F], F]:
    """Give a method the arguments of another for editors and ``inspect``; type checkers know them already."""

    def decorate(function: F) -> F:
        returned = signature(function).return_annotation
        function.__signature__ = signature(method).replace(return_annotation=returned)  # type: ignore[attr-defined]
        return function

    return decorate


def _blocking(
    method: Callable[Concatenate[asynchronous.Source, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Source, P], T]:
    """Return the blocking form of an async method: the same arguments and documentation, and the result, blocking."""

    @wraps(method)
    def call(source: Source, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        result = source._run(method(source._source, *args, **kwargs))
        return Sent(source, result) if isinstance(result, sent.Sent) else result

    return call


def _in_loop(method: Callable[Concatenate[asynchronous.Source, P], T]) -> Callable[Concatenate[Source, P], T]:
    """Return the form of a plain method that other threads may call: it runs in the source's loop."""

    @wraps(method)
    def call(source: Source, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def result() -> T:
            return method(source._source, *args, **kwargs)

        return source._run(result())

    return call


class Source(NoAsyncWith):
    """The blocking :class:`holdfast.Source`, with the same arguments, methods and errors.

    Any thread may call it, one call at a time in each thread. It is a context manager; use :meth:`open` and
    :meth:`close` where a ``with`` block does not fit.
    """

    @_arguments_of(asynchronous.Source)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._stand_before(asynchronous.Source(*args, **kwargs))

    @classmethod
    def from_wsdl(
        cls,
        wsdl: str | Path,
        store: str | Path | Store = "outbox",
        *,
        port: str | None = None,
        to: str | None = None,
        **options: Unpack[SourceOptions],
    ) -> Self:
        """See :meth:`holdfast.Source.from_wsdl`: ``with holdfast.sync.Source.from_wsdl(url) as source``."""
        # In a separate thread, because the caller's thread may have a running loop, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            making = asynchronous.Source.from_wsdl(wsdl, store, port=port, to=to, **options)
            made = thread.submit(asyncio.run, making).result()
        source = cls.__new__(cls)
        source._stand_before(made)
        return source

    def _stand_before(self, source: asynchronous.Source) -> None:
        self._source = source
        self._thread: LoopThread | None = None
        self._is_lent = False

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def _envelopes(self) -> Envelopes:
        return self._source._envelopes

    @property
    def to(self) -> str | None:
        """The destination's URL. If only the store has it, it is known once the source is open."""
        return self._source.to

    @property
    def policy(self) -> SourcePolicy:
        """The policy of the messages without a ``sequence_key``."""
        return self._source.policy

    def use(self, policy: SourcePolicy | Iterable[Policy]) -> None:
        """See :meth:`holdfast.Source.use`."""
        if self._thread is None:
            self._source.use(policy)
        else:
            self._run(self._use(policy))

    async def _use(self, policy: SourcePolicy | Iterable[Policy]) -> None:
        self._source.use(policy)

    def on(self, action: str = "") -> Callable[[HandlerT], HandlerT]:
        """See :meth:`holdfast.Source.on`. A plain handler runs in a separate thread and may call the source."""
        return self._source.on(action)

    @property
    def handling(self) -> HandlingPolicy:
        """See :attr:`holdfast.Source.handling`."""
        return self._source.handling

    @handling.setter
    def handling(self, policy: HandlingPolicy) -> None:
        self._source.handling = policy

    @property
    def progress(self) -> Progress:
        """Counts of stored, acknowledged and outstanding messages."""
        return self._source.progress

    @property
    def incidents(self) -> Counter[str]:
        """The number of incidents, by name."""
        return self._source.incidents

    @property
    def on_progress(self) -> Callable[[Progress], None] | None:
        """Called with the progress on every change, in the source's thread; it must not call the source."""
        return self._source.on_progress

    @on_progress.setter
    def on_progress(self, callback: Callable[[Progress], None] | None) -> None:
        self._source.on_progress = callback

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the source's loop and return its result.

        Raises:
            ConfigurationError: the source is not open, or was opened before this process was forked.
        """
        thread = self._thread
        if thread is None:
            coroutine.close()
            raise ConfigurationError(
                "the source is not open", remedy="Use it within 'with source:', or call source.open() first."
            )
        return thread.run(coroutine)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._run(self._leave(kind is None))
        self.close(10.0 if kind is None else 0.0)

    async def _leave(self, in_order: bool) -> None:
        self._source._leave(in_order)

    def open(self) -> None:
        """See :meth:`holdfast.Source.open`.

        Raises:
            ConfigurationError: the source is open already, or :meth:`holdfast.Source.open` raises it.
        """
        if self._thread is not None:
            self._thread.check()
            raise ConfigurationError("the source is already open", remedy="Open it once; any thread may then use it.")
        self._thread = LoopThread("holdfast-source")
        try:
            self._run(self._source.open())
        except BaseException:
            self._stop()
            raise

    def close(self, timeout: float = 10.0) -> None:
        """See :meth:`holdfast.Source.close`. Safe to call twice."""
        check_seconds("timeout", timeout, endless=False)
        if self._thread is None:
            return
        self._thread.check()
        try:
            self._run(self._source.close(timeout))
        finally:
            self._stop()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        if not self._is_lent:
            thread.stop()

    @overload
    def send(self, body: Body, **fields: Unpack[MessageFields]) -> Sent: ...

    @overload
    def send(
        self, body: Body, *, connection: Connection | DBConnection, **fields: Unpack[MessageFields]
    ) -> Enqueued: ...

    @_shown_as(asynchronous.Source.send)
    def send(
        self, body: Body, *, connection: Connection | DBConnection | None = None, **fields: Unpack[MessageFields]
    ) -> Sent | Enqueued:
        """See :meth:`holdfast.Source.send`."""
        if connection is not None:
            return self._source.send(body, connection=connection, **fields)
        return Sent(self, self._run(self._source.send(body, **fields)))

    call = _blocking(asynchronous.Source.call)
    request = _blocking(asynchronous.Source.request)
    reply = _blocking(asynchronous.Source.reply)
    flush = _blocking(asynchronous.Source.flush)
    end = _blocking(asynchronous.Source.end)
    next_offset = _in_loop(asynchronous.Source.next_offset)
    unconfirmed = _in_loop(asynchronous.Source.unconfirmed)
    resume = _in_loop(asynchronous.Source.resume)
    sequences = _in_loop(asynchronous.Source.sequences)


def lend(source: asynchronous.Source, thread: LoopThread) -> Source:
    """Return a blocking source for a source that is open in another owner's loop thread."""
    lent = Source.__new__(Source)
    lent._stand_before(source)
    lent._thread, lent._is_lent = thread, True
    return lent


async def _let_go() -> None:
    """Wait for pending calls, which the close has failed, to return; then cancel the rest."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        _, waiting = await asyncio.wait(calls, timeout=_PATIENCE)
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
