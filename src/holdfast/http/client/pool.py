"""The connections to one origin: who may use which, who waits for one, and how one is made.

A task makes each connection; a request that finds a free one needs none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.http.client.answer_room import room_of
from holdfast.http.client.connection import Call, ClientConnection, OriginAnswers
from holdfast.http.client.proxies import Proxy, open_plain, open_tunnel
from holdfast.http.outcome import AnswerSpooling
from holdfast.http.reasons import why_not_connected
from holdfast.http.tls_transport import TLSTransport
from holdfast.http.urls import Origin

Dial = Callable[[asyncio.Protocol], Awaitable[object]]
"""Makes a connection for a protocol, or raises an OSError."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What one origin may use. Times are seconds, sizes bytes.

    Attributes:
        connections: Connections at a time; further requests wait for one.
        max_response: Largest answer's content.
        connect_timeout: To make a connection, name resolution and TLS handshake included.
        keep_alive: How long an idle connection is kept; shorter than servers keep theirs, so that they seldom close
            one in the moment it is used.
    """

    connections: int
    max_response: int
    connect_timeout: float
    keep_alive: float


class Pool:
    """All connections to one origin.

    Args:
        proxy: The proxy to use; None for direct connections.
        context: TLS for an https origin.
        limits: The limits of its connections and times.
        has_room: Whether one more connection may be made, counting the connections of other pools.
        dial: Makes its connections; None: they are made here.
        spooling: Returns where the content of a large answer goes; None: all of them are in memory.
        trust_settings: The settings that name the authorities of ``context``.
    """

    def __init__(
        self,
        origin: Origin,
        proxy: Proxy | None,
        context: ssl.SSLContext | None,
        limits: PoolLimits,
        has_room: Callable[[], bool],
        dial: Dial | None = None,
        spooling: AnswerSpooling | None = None,
        *,
        trust_settings: str,
    ) -> None:
        self.origin = origin
        room = room_of(asyncio.get_running_loop())
        self._shared = OriginAnswers(origin, limits.max_response, room, spooling)
        self._proxy = proxy
        self._context = context
        self._trust_settings = trust_settings
        self._limits = limits
        self._has_room = has_room
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._free: list[ClientConnection] = []
        self._connections: set[ClientConnection] = set()
        self._waiting: deque[Call] = deque()
        self._connecting: set[asyncio.Task[ClientConnection | Exception]] = set()
        self._is_closed = False

    def use(self, context: ssl.SSLContext) -> None:
        """Use another TLS context for new connections to an https origin."""
        if self._context is not None:
            self._context = context

    @property
    def forwarder(self) -> Proxy | None:
        """The proxy that receives each request's full URL; None if the proxy only carries bytes for TLS."""
        return self._proxy if self._context is None else None

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return len(self._connections) + len(self._connecting)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing left that time could change."""
        return not (self._connections or self._waiting or self._connecting)

    def send(self, call: Call) -> None:
        """Send now if a connection is free, else as soon as there is one."""
        if self._free and not self._waiting:
            self._free.pop().send(call)
            return
        self._waiting.append(call)
        self._connect_if_wanted()

    def _offer(self, connection: ClientConnection) -> None:
        while self._waiting:
            call = self._waiting.popleft()
            if not call.is_over:
                connection.send(call)
                return
        connection.idle_since = self._loop.time()
        self._free.append(connection)

    def _remove(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        self._connect_if_wanted()

    def sweep(self, now: float) -> None:
        """Give up what has taken too long, and close what was idle for long."""
        for connection in list(self._connections):
            call = connection.call
            if call is not None and call.deadline <= now:
                connection.fail(f"{call.url} did not respond in time")
        while self._waiting and (self._waiting[0].is_over or self._waiting[0].deadline <= now):
            call = self._waiting.popleft()
            call.fail(f"{call.url} did not respond in time", connected=False)
        for connection in [one for one in self._free if now - one.idle_since >= self._limits.keep_alive]:
            connection.abort()
        self._connect_if_wanted()

    def close_idle(self) -> bool:
        """Close the connection that has been idle for longest; whether there was one."""
        if self._free:
            self._free[0].abort()
            return True
        return False

    async def close(self) -> None:
        """Close everything; what is in progress fails."""
        self._is_closed = True
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(f"the client for {call.url} was closed", connected=False)
        for connection in list(self._connections):
            if connection.call is not None:
                connection.fail(f"the client for {connection.call.url} was closed")
            else:
                connection.abort()

    # --- making connections ---------------------------------------------------------------------------------------

    def _connect_if_wanted(self) -> None:
        under_way = len(self._connecting)
        room = self._limits.connections - len(self._connections) - under_way
        if not self._is_closed and room > 0 and len(self._waiting) > under_way and self._has_room():
            task = self._loop.create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connected)

    async def _connect(self) -> ClientConnection | Exception:
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                return await self._open()
        except (OSError, ValueError) as error:
            return error

    def _connected(self, task: asyncio.Task[ClientConnection | Exception]) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            return
        made = task.result()
        if isinstance(made, Exception):
            self._not_connected(made)
        elif self._is_closed:
            made.transport.abort()
        elif made.transport.is_closing():
            self._not_connected(ConnectionResetError("the peer closed each new connection at once"))
        else:
            self._connections.add(made)
            self._offer(made)

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._shared, self._offer, self._remove)

    async def _open(self) -> ClientConnection:
        if self._dial is not None:
            dialled = self._connection()
            await self._dial(dialled)
            return dialled
        if self._proxy is not None:
            if self._context is not None:
                return await open_tunnel(self._proxy, self.origin, self._context, self._connection)
            _, plain = await open_plain(self._proxy, self._connection)
            return plain
        connection = self._connection()
        if self._context is None:
            await self._loop.create_connection(lambda: connection, self.origin.host, self.origin.port)
            return connection
        tls = TLSTransport(connection, self._context, server_hostname=self.origin.host)
        await self._loop.create_connection(lambda: tls, self.origin.host, self.origin.port)
        await tls.shake_hands()
        return connection

    def _not_connected(self, error: Exception) -> None:
        """Fail the calls that wait for a first connection; calls that can use an existing connection keep waiting."""
        if self._connections:
            return
        waiting, self._waiting = self._waiting, deque()
        is_first, settings = not self._shared.has_answered, self._trust_settings
        for call in waiting:
            reason = why_not_connected(call.url, error, is_first=is_first, trust_settings=settings)
            call.fail(reason, connected=False)
