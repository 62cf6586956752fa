"""The HTTP/1.1 server of our own: one asyncio.Protocol per connection on httptools, no task or timer per request.

Owns listening; ``open_connections`` has what connections share, ``connection`` one of them. It hands each whole request
to one handler as an Exchange. Runs on any asyncio loop, fastest on uvloop (see ``event_loop_factory``).

One timer per server, the sweep, does everything that depends on time: it closes connections that are too slow, and
renews the Date header. A connection only notes the sweep's last reading of the clock when its phase changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.http.exchange import Exchange, Handler, HTTPLimits, Request
from holdfast.http.server.connection import Connection
from holdfast.http.server.descriptors import backlog
from holdfast.http.server.handshakes import TLSListener
from holdfast.http.server.open_connections import HTTPCounters, OpenConnections

__all__ = ["Exchange", "HTTPCounters", "HTTPLimits", "HTTPServer", "Handler", "Request", "event_loop_factory"]


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The fastest event loop installed, for ``asyncio.Runner(loop_factory=...)``.

    Returns:
        uvloop's loop class where uvloop is installed, None (asyncio's own choice) elsewhere.
    """
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class HTTPServer(OpenConnections):
    """Listens on one address and hands every request to one handler.

    ``counters`` may be read at any time, for metrics.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sweep_seconds = 1.0
        self._sweeper: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []
        self._tls: TLSListener | None = None

    async def start(
        self,
        handler: Handler,
        host: str | None,
        port: int,
        *,
        sockets: Iterable[socket.socket] = (),
        ssl_context: ssl.SSLContext | None = None,
        limits: HTTPLimits | None = None,
    ) -> None:
        """Listen, and serve from now on.

        Args:
            handler: Called in the event loop's thread with every exchange; must not block.
            host: Address or name to listen on, None for all addresses.
            port: TCP port, 0 for any free one (see ``port``).
            sockets: Listen on these instead, of which other processes may have copies: TCP or Unix ones, bound
                already. Closing leaves the others' copies open.
            ssl_context: Speak TLS with it; None for plain HTTP.
            limits: What peers may use, the defaults if None.

        Raises:
            OSError: The address cannot be listened on.
            RuntimeError: It was started before.
        """
        if self._servers:
            raise RuntimeError("this server has already been started")
        loop = asyncio.get_running_loop()
        self.handler = handler
        self.limits = limits = limits or HTTPLimits()
        self.secure = ssl_context is not None
        more: dict[str, Any] = {
            "backlog": backlog(limits.max_connections),
            "start_serving": ssl_context is None,
        }
        for one in sockets:
            if one.family == socket.AF_UNIX:
                # The path is for the next process that listens at it.
                stays: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
                self._servers.append(await loop.create_unix_server(self._connection, sock=one, **more, **stays))
            else:
                self._servers.append(await loop.create_server(self._connection, sock=one, **more))
        if not self._servers:
            self._servers.append(await loop.create_server(self._connection, host, port, **more))
        if ssl_context is not None:
            self._tls = TLSListener(self, ssl_context, self.sockets)
        self._sweep_seconds = _sweep_seconds(limits)
        self._sweep(loop)

    def use(self, limits: HTTPLimits, ssl_context: ssl.SSLContext | None) -> None:
        """Use these settings for new connections. Existing connections keep theirs.

        Args:
            limits: The limits for peers.
            ssl_context: The new TLS context, if the server used TLS before.
        """
        self.limits = limits
        self._sweep_seconds = _sweep_seconds(limits)
        if self._tls is not None and ssl_context is not None:
            self._tls.context = ssl_context

    def _connection(self) -> Connection:
        return Connection(self)

    async def adopt(self, connection: socket.socket, request: Request | None) -> None:
        """Serve a connection that another process accepted, and gave away with the first request it read there, or
        before it brought any.

        Raises:
            OSError: It is lost.
        """
        loop = asyncio.get_running_loop()
        if self._tls is not None:
            self._tls.take(connection)
            return
        await loop.connect_accepted_socket(lambda: Connection(self, request, is_given=True), connection)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets; empty before ``start`` and after ``close``."""
        return tuple(one for server in self._servers for one in server.sockets)

    @property
    def port(self) -> int:
        """The TCP port listened on.

        Raises:
            RuntimeError: It is not listening.
        """
        for listener in self.sockets:
            number: int = listener.getsockname()[1]
            return number
        raise RuntimeError("this server is not listening")

    async def close(self, grace: float = 0.0) -> None:
        """Stop: take no new connection, close idle ones, give the others a while, then close them too.

        Args:
            grace: How many seconds exchanges in progress (and requests that are being received) have to be answered.
        """
        if not self._servers or self.closing:
            return
        self.closing = True
        loop = asyncio.get_running_loop()
        for listener in self.sockets:
            loop.remove_reader(listener.fileno())
        if self._tls is not None:
            self._tls.close()
        # A connection that asyncio has accepted but not delivered yet would be lost in close(): open and without an
        # owner.
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        await self._empty(grace)
        for connection in list(self.connections):
            connection.abort()
        await self._empty(max(1.0, grace))
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            await server.wait_closed()

    async def _empty(self, seconds: float) -> None:
        self._emptied.clear()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), seconds)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(self._sweep_seconds, self._sweep, loop)
        self.sweep(loop.time(), self._sweep_seconds)


def _sweep_seconds(limits: HTTPLimits) -> float:
    """Return the interval at which to look for expired connections."""
    timeouts = (limits.header_timeout, limits.body_timeout, limits.keep_alive_timeout, limits.write_timeout)
    shortest = min(*timeouts, limits.linger_timeout, limits.response_timeout or 4.0)
    # A quarter of the shortest time, so that none is exceeded by much.
    return min(1.0, max(0.005, shortest / 4))
