"""A source and a destination joined without sockets, in virtual time: for tests of an application's own handlers.

Both are the real thing, stores included; only HTTP and the clock are replaced. Nothing waits: when neither side has
anything to do, time jumps to the next thing that is due, so that minutes of retransmission pass in milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.endpoint.client import Source
from holdfast.endpoint.engine import Clock
from holdfast.endpoint.http_client import Response, TransportError
from holdfast.endpoint.http_exchange import Exchange, Request
from holdfast.endpoint.server import Destination
from holdfast.testing.network import Network, lossy

URL = "http://destination.test/"
GIVE_UP = 30.0
"""Virtual seconds after which the source gives up an exchange that the network swallowed without a word."""

_LOOK_EVERY = 0.0005
"""Real seconds between two looks at whether anybody is busy."""

_PATIENCE = 40
"""So many looks may find a handler running before time moves all the same: it may be waiting for time to pass."""

_SETTLE = 20
"""Turns of the loop in which whatever is on its way from one callback to the next arrives."""


@dataclass(order=True)
class _Call:
    when: float
    order: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Call it off."""
        self.cancelled = True


class VirtualClock(Clock):
    """Time that stands still while somebody is busy and jumps to the next call when nobody is.

    Args:
        now: Seconds since 1970 to begin with.
    """

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now
        self._calls: list[_Call] = []
        self._order = itertools.count()
        self.busy: list[Callable[[], bool]] = []
        """Each says whether its owner has something to do now, such as a commit: time waits for that however long."""
        self.handling: list[Callable[[], bool]] = []
        """Each says whether its owner does something that may itself be waiting for time to pass."""

    def __call__(self) -> float:
        """Now."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> _Call:
        """Make the call when it is ``when``."""
        call = _Call(max(when, self._now), next(self._order), callback)
        heapq.heappush(self._calls, call)
        return call

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual time to pass."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_at(self._now + seconds, lambda: None if woken.done() else woken.set_result(None))
        await woken

    async def run(self) -> None:
        """Move time along until cancelled."""
        waited = 0
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for _ in range(_SETTLE):
                await asyncio.sleep(0)
            if any(busy() for busy in self.busy):
                continue
            waited += 1
            if waited < _PATIENCE and any(handling() for handling in self.handling):
                continue
            waited = 0
            self._advance()

    def _advance(self) -> None:
        while self._calls:
            call = heapq.heappop(self._calls)
            if not call.cancelled:
                self._now = max(self._now, call.when)
                call.callback()
                return


class _Answer(Exchange):
    """An exchange whose answer is a future."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        named = {name.decode(): value.decode() for name, value in headers}
        if not self.response.done():
            self.response.set_result(Response(status, named, body, (content_type or b"").decode()))

    def start(
        self, status: int, content_type: bytes | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        raise NotImplementedError("a destination answers whole")

    def write(self, data: bytes) -> bool:
        raise NotImplementedError("a destination answers whole")

    async def drain(self) -> None:
        raise NotImplementedError("a destination answers whole")

    def finish(self) -> None:
        raise NotImplementedError("a destination answers whole")


class MemoryTransport:
    """Carries requests to a destination in the same process, as badly as the network says.

    Args:
        app: The destination, started.
        network: What becomes of each exchange.
        clock: Virtual time.
    """

    def __init__(self, app: Destination, network: Network, clock: VirtualClock) -> None:
        self._app = app
        self._network = network
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """See :meth:`holdfast.endpoint.http_client.HTTPClient.post`."""
        fate = self._network.fate()
        result: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        lower = {name.lower().encode(): value.encode() for name, value in headers.items()}
        for copy in fate.copies:
            request = Request("POST", "/", lower, body, "source.test", False)
            task = asyncio.ensure_future(self._carry(request, copy.request_delay, copy.response_delay, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        loses_all = all(copy.response_delay is None for copy in fate.copies)
        patience = self._network.delay() if loses_all and not fate.silent else GIVE_UP
        timer = self._clock.call_at(self._clock() + patience, lambda: _lost(result, url, bool(fate.copies)))
        try:
            return await result
        finally:
            timer.cancel()

    async def _carry(
        self, request: Request, request_delay: float, response_delay: float | None, result: asyncio.Future[Response]
    ) -> None:
        await self._clock.sleep(request_delay)
        exchange = _Answer(request)
        self._app.handle(exchange)
        response = await exchange.response
        if response_delay is not None:
            await self._clock.sleep(response_delay)
            if not result.done():
                result.set_result(response)

    async def close(self) -> None:
        """Lose what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _lost(result: asyncio.Future[Response], url: str, connected: bool) -> None:
    if not result.done():
        result.set_exception(TransportError(f"the test network lost the exchange with {url}", connected=connected))


@contextlib.asynccontextmanager
async def pair(
    app: Destination, *, network: Network | None = None, store: Path | None = None, **options: Any
) -> AsyncIterator[Source]:
    """A source whose messages go to ``app``, over no socket, in virtual time.

    Args:
        app: The application's destination, not started; it is started here, and closed at the end.
        network: How bad it is, e.g. ``lossy(0.3, seed=7)``; perfect if None.
        store: A directory for both stores; in memory if None.
        options: For the :class:`holdfast.Source`.

    Yields:
        The source, open. Leaving waits, in virtual time, until the destination has and has handled everything sent.
    """
    clock = VirtualClock()
    before = app.store_location, app.clock
    app.store_location = store / "destination" if store is not None else ":memory:"
    app.clock = clock
    transport = MemoryTransport(app, network or lossy(0.0), clock)
    place = store / "source" if store is not None else ":memory:"
    source = Source(URL, store=place, transport=transport, clock=clock, **options)
    clock.busy += [lambda: app.is_committing, lambda: source.is_busy]
    clock.handling.append(lambda: app.is_busy)
    moving = asyncio.ensure_future(clock.run())
    try:
        await app.start()
        async with source:
            yield source
            await source.flush()
        while app.is_busy:
            await clock.sleep(0.01)
    finally:
        await app.close(0.0)
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        app.store_location, app.clock = before
