"""Connections from their first moment until their TLS handshake is over.

The event loop tells a protocol of its connection only after the handshake; but each is a descriptor from the beginning,
and whoever opens connections and says nothing must not get them all. So they are accepted, and counted, here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.http.descriptors import backlog
from holdfast.http.server_connection import USELESS, Connection

if TYPE_CHECKING:
    from holdfast.http.server import HTTPServer

logger = logging.getLogger(__name__)

ACCEPT_PAUSE = 1.0
"""Seconds until connections are accepted again after the system would not give one."""


class TLSListener:
    """Accepts connections and begins their handshakes.

    Args:
        server: Who they are for.
        context: What to speak TLS with.
        bound: Sockets that are bound, but on which nobody listens.
    """

    def __init__(self, server: HTTPServer, context: ssl.SSLContext, bound: Iterable[socket.socket]) -> None:
        self._server = server
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in bound]
        for one in self._sockets:
            one.setblocking(False)
            one.listen(backlog(server.limits.max_connections))
            self._loop.add_reader(one.fileno(), self._accept, one)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(backlog(self._server.limits.max_connections)):
            try:
                connection, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted: %s", error)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(ACCEPT_PAUSE, self._resume, listener)
                return
            connection.setblocking(False)
            give = self._server.give
            if give is not None and give(connection):
                connection.close()
            else:
                self.take(connection)

    def take(self, connection: socket.socket) -> None:
        """Begin the handshake of a connection."""
        Handshake(self._server, self.context, connection)

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Accept no more."""
        for one in self._sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one.fileno())
                one.close()


class Handshake:
    """One connection in its handshake; among the server's connections, as they are.

    Args:
        server: Whose it is.
        context: What to speak TLS with.
        connection: The accepted socket.
    """

    def __init__(self, server: HTTPServer, context: ssl.SSLContext, connection: socket.socket) -> None:
        self._server = server
        self._since = server.now
        limit = server.limits.max_connections
        if server.closing or (len(server.connections) >= limit and not server.make_room()):
            server.counters.connections += 1
            server.counters.refused["connections"] += 1
            connection.close()
            return
        server.connections.add(self)
        self._is_ours = True  # the socket, until the loop has it
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(context, connection))
        self._task.add_done_callback(lambda _task: self._done(connection))

    async def _shake_hands(self, context: ssl.SSLContext, connection: socket.socket) -> None:
        self._is_ours = False
        seconds = self._server.limits.header_timeout
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection, connection, ssl=context, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except OSError as error:  # TLS's own errors, and that it took too long, are such
            logger.debug("no TLS: %s", error)

    def _done(self, connection: socket.socket) -> None:
        self._server.remove(self)
        if self._is_ours:
            connection.close()

    def _connection(self) -> Connection:
        return Connection(self._server)

    @property
    def idle_since(self) -> float | None:
        """As for a Connection: none of these has brought a request."""
        return self._since - USELESS

    def make_room(self) -> None:
        """Close, for somebody who may have more to do."""
        self._server.counters.timeouts["room"] += 1
        self.abort()

    def close_if_idle(self) -> None:
        """Close: it is idle."""
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._task.cancel()

    def sweep(self, now: float, before: float) -> None:
        """Nothing to do: the event loop watches over the handshake's time."""
