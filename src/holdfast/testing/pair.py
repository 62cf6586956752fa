"""A source and a destination connected without sockets, in virtual time, to test an application's handlers.

Both are the real objects, stores included; only HTTP and the clock are replaced. When both sides are idle, time jumps
to the next scheduled call, so that minutes of retransmission pass in milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.source import sync
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.source import Source
from holdfast.endpoint.source.wsdl import check_options
from holdfast.exceptions import ConfigurationError, NotAcknowledged, StoreLocked
from holdfast.http.direct import DirectExchange
from holdfast.http.exchange import Request
from holdfast.http.outcome import Done, Outcome, Streamed, TransportError
from holdfast.settings import brief_value, check_seconds
from holdfast.simulation.nodes.network import Network, lossy

URL = "http://destination.test/"
GIVE_UP = 30.0
"""Virtual seconds after which the source abandons an exchange that the network silently lost."""

_LOOK_EVERY = 0.0005
"""Real seconds between two checks of whether both sides are idle."""

_SETTLE = 20
"""Turns of the event loop that let pending callbacks finish."""


@dataclass(order=True)
class _Call:
    when: float
    order: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock(Clock):
    """Virtual time. It stands still while an endpoint is busy and otherwise jumps to the next scheduled call.

    Args:
        now: Initial time in seconds since 1970.
    """

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now
        self._calls: list[_Call] = []
        self._order = itertools.count()
        self.busy: list[Callable[[], bool]] = []
        """Functions that return whether their owner is busy now, for example with a commit. Time waits for that without
        limit."""
        self.handling: list[Callable[[], bool]] = []
        """Functions that return whether their owner does work that takes real time, and may itself wait for virtual
        time to pass. Meanwhile virtual time passes as fast as real time."""

    def __call__(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> _Call:
        """Schedule a call at the time ``when``."""
        call = _Call(max(when, self._now), next(self._order), callback)
        heapq.heappush(self._calls, call)
        return call

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual time to pass."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_at(self._now + seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    async def run(self) -> None:
        """Advance time until cancelled."""
        ahead: float | None = None
        """Virtual time minus real time, while something takes real time."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for _ in range(_SETTLE):
                await asyncio.sleep(0)
            if any(busy() for busy in self.busy):
                continue
            if any(handling() for handling in self.handling):
                ahead = self._now - monotonic() if ahead is None else ahead
                self._advance(monotonic() + ahead)
            else:
                ahead = None
                self._advance(math.inf)

    def _advance(self, most: float) -> None:
        while self._calls and self._calls[0].when <= most:
            call = heapq.heappop(self._calls)
            if not call.cancelled:
                self._now = max(self._now, call.when)
                call.callback()
                return


class MemoryTransport:
    """Carries requests to a destination in the same process, with the faults of the network."""

    def __init__(self, app: Destination, network: Network, clock: VirtualClock) -> None:
        self._app = app
        self._network = network
        self._clock = clock
        self._tasks = BackgroundTasks()

    def request(self, method: str, url: str, body: bytes | Streamed, headers: Mapping[str, str], done: Done) -> None:
        """See :meth:`holdfast.http.client.client.HTTPClient.request`."""
        whole = body if isinstance(body, bytes) else b"".join(body)
        self._tasks.start(self._exchange(method, url, whole, headers, done))

    async def _exchange(self, method: str, url: str, body: bytes, headers: Mapping[str, str], done: Done) -> None:
        fate = self._network.fate()
        result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        lower = {name.lower().encode(): value.encode() for name, value in headers.items()}
        for copy in fate.copies:
            request = Request(method, "/", lower, body, "source.test", False)
            self._tasks.start(self._carry(request, copy.request_delay, copy.response_delay, result))
        loses_all = all(copy.response_delay is None for copy in fate.copies)
        patience = self._network.delay() if loses_all and not fate.silent else GIVE_UP
        timer = self._clock.call_at(self._clock() + patience, lambda: _lost(result, url, bool(fate.copies)))
        try:
            done(await result)
        finally:
            timer.cancel()

    async def _carry(
        self,
        request: Request,
        request_delay: float,
        response_delay: float | None,
        result: asyncio.Future[Outcome],
    ) -> None:
        await self._clock.sleep(request_delay)
        exchange = DirectExchange(request)
        self._app.handle(exchange)
        response = await exchange.response
        if response_delay is not None:
            await self._clock.sleep(response_delay)
            if not result.done():
                result.set_result(response)

    async def close(self) -> None:
        """Lose the exchanges in progress."""
        await self._tasks.cancel()


def _lost(result: asyncio.Future[Outcome], url: str, connected: bool) -> None:
    if not result.done():
        result.set_result(TransportError(f"the test network lost the exchange with {url}", connected=connected))


def _several(count: int) -> str:
    return f"{count:,} messages are" if count != 1 else "a message is"


def _failure(app: Destination) -> str:
    dispatcher = app.running.dispatcher
    failure = dispatcher.last_failure if dispatcher is not None else ""
    return f". A handler raised last: {failure}" if failure else ""


class NotEntered(ConfigurationError, AttributeError):
    """A pair is used as a source."""


class Pair:
    """The result of :func:`pair`: ``async with`` gives a :class:`holdfast.Source`, ``with`` the blocking one.

    Args:
        app, network, store, patience, options: See :func:`pair`.
    """

    def __init__(
        self, app: Destination, network: Network, store: Path | None, patience: float, options: dict[str, Any]
    ) -> None:
        check_seconds("patience", patience, zero=False, endless=False)
        check_class("network", network, Network)
        check_class("store", store, Path)
        check_options("pair", options)
        check_class("http", options.get("http"), SourceHTTP)
        if not isinstance(app, Destination):
            raise ConfigurationError(
                f"{brief_value(app)} is not a holdfast.Destination", remedy="Pass your Destination: pair(app)."
            )
        self._app = app
        self._network = network
        self._store = store
        self._patience = patience
        self._options = options
        self._running: contextlib.AbstractAsyncContextManager[Source] | None = None
        self._thread: sync.LoopThread | None = None
        self.is_open = False
        """Whether its block runs: its stores are open."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Pair' object has no attribute {name!r}")
        raise NotEntered(
            f"the pair is no source, so it has no {name!r}: the block of the pair gives the source",
            remedy="Write 'with pair(app) as source:', or 'async with' in an asynchronous test.",
        )

    async def __aenter__(self) -> Source:
        if self.is_open:
            raise ConfigurationError("the pair is open already", remedy="Make another with pair(app).")
        self._running = self._run()
        return await self._running.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(*raised)

    def __enter__(self) -> sync.Source:
        self._thread = sync.LoopThread("holdfast-pair")
        try:
            return sync.lend(self._thread.run(self.__aenter__()), self._thread)
        except BaseException:
            self._thread.stop()
            raise

    def __exit__(self, *raised: Any) -> bool | None:
        assert self._thread is not None
        try:
            return self._thread.run(self.__aexit__(*raised))
        finally:
            self._thread.stop()

    @contextlib.asynccontextmanager
    async def _run(self) -> AsyncIterator[Source]:
        app, clock = self._app, VirtualClock()
        before = replace(app.settings)
        app.settings.location = self._store / "destination" if self._store is not None else ":memory:"
        app.settings.clock = clock
        transport = MemoryTransport(app, self._network, clock)
        place = self._store / "source" if self._store is not None else ":memory:"
        http = replace(self._options.get("http") or SourceHTTP(), transport=transport)
        source = Source(URL, store=place, **{**self._options, "http": http})
        source.clock = clock
        if app.settings.wsdl.is_given:
            source._described_by(app._documents(), None)
        clock.busy.append(lambda: source._is_busy)
        moving = asyncio.ensure_future(clock.run())
        try:
            await self._start(app)
            clock.busy.append(lambda: app.running.is_committing)
            clock.handling.append(lambda: app.running.is_busy)
            async with source:
                self.is_open = True
                yield source
                await self._within_patience(
                    clock, source.flush(), lambda: f"{_several(source.progress.outstanding)} not acknowledged"
                )
                await self._within_patience(
                    clock, app.handled(), lambda: f"{_several(app.unhandled)} not handled", partial(_failure, app)
                )
        finally:
            self.is_open = False
            await app.close(0.0)
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            app.settings = before

    async def _start(self, app: Destination) -> None:
        try:
            await app.start()
        except StoreLocked as error:
            raise StoreLocked(
                error.message,
                remedy="Perhaps another pair has its stores there, and is open. Give each pair its own directory: "
                'pair(app, store=tmp_path / "second").',
            ) from None

    async def _within_patience(
        self,
        clock: VirtualClock,
        waiting: Coroutine[Any, Any, None],
        what: Callable[[], str],
        why: Callable[[], str] = str,
    ) -> None:
        task = asyncio.ensure_future(waiting)
        given_up = False

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            task.cancel()

        timer = clock.call_at(clock() + self._patience, give_up)
        try:
            await task
        except asyncio.CancelledError:
            if not given_up:
                raise  # the test itself was cancelled
            raise NotAcknowledged(
                f"{what()} after {self._patience:,.0f} s of virtual time{why()}",
                remedy="Check that the network recovers, that the handler succeeds in the end, and that its "
                "attempts are limited. If it only takes longer: pair(…, patience=…), in seconds of virtual "
                "time.",
            ) from None
        finally:
            timer.cancel()


def pair(
    app: Destination,
    *,
    network: Network | None = None,
    store: Path | None = None,
    patience: float = 3600.0,
    **options: Any,
) -> Pair:
    """A source that sends to ``app`` without a socket, in virtual time: ``async with pair(app) as source``.

    A test that is not asynchronous uses ``with pair(app) as source`` and gets the blocking source. At the end of the
    block, the pair waits in virtual time until the destination has every message and has finished it. A message is
    finished when it is handled, after as many attempts as it needs, or is a dead letter. Within the block, ``await
    app.handled()`` waits for the same. If the app has a ``wsdl``, the source can :meth:`~holdfast.Source.call` its
    operations by name.

    Args:
        app: The application's destination, not started. The pair starts it, and closes it at the end.
        network: The faults of the network, e.g. ``lossy(0.3, seed=7)``; a perfect network if None.
        store: A directory for both stores; in memory if None.
        patience: The longest wait at the end of the block, in seconds of virtual time, for each of the two conditions.
            While a handler runs, virtual time passes as fast as real time.
        options: For the :class:`holdfast.Source`.

    Raises:
        NotAcknowledged: at the end of the block, if a message has not arrived or is not handled in that time.
    """
    return Pair(app, network or lossy(0.0), store, patience, options)
