"""Connections from their first moment until their TLS handshake is over.

The event loop reports a connection to its protocol only after the handshake; but each uses a descriptor from the
beginning, and a client that opens silent connections must not use up all descriptors. So this module accepts and counts
them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Iterable

from holdfast.http.reasons import why_no_handshake
from holdfast.http.server.connection import USELESS, Connection
from holdfast.http.server.descriptors import backlog
from holdfast.http.server.open_connections import OpenConnections, Peer
from holdfast.http.server.refusals import CLIENT_HELLO, NEEDS_TLS
from holdfast.http.tls_transport import TLSTransport

logger = logging.getLogger(__name__)

ACCEPT_PAUSE = 1.0
"""Seconds until connections are accepted again after the system would not give one."""


MOST_PLAIN = 16_384
"""Octets that are read at once of a request in plain HTTP."""
LINGER_SECONDS = 1.0
"""Seconds that the client of such a request has to read its answer."""

_CONTENT_TYPE = re.compile(rb"(?i)\r\ncontent-type:[ \t]*([^\r\n]{1,200})")


async def _first_octets(connection: socket.socket) -> bytes:
    """Return the client's first octets without consuming them; b"" if it ended the connection."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv(len(CLIENT_HELLO), socket.MSG_PEEK)


def _name_of(connection: socket.socket) -> str | None:
    """Return the client's address and port; None if it has none, or has disconnected."""
    try:
        name = connection.getpeername()
    except OSError:
        return None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else None


class TLSListener:
    """Accepts connections and begins their handshakes.

    Args:
        bound: Sockets that are bound but do not listen yet.
    """

    def __init__(self, server: OpenConnections, context: ssl.SSLContext, bound: Iterable[socket.socket]) -> None:
        self._server = server
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in bound]
        for one in self._sockets:
            one.setblocking(False)
            one.listen(backlog(server.limits.max_connections))
            self._loop.add_reader(one.fileno(), self._accept, one)

    def _accept(self, listener: socket.socket) -> None:
        # At most a backlog at a time, so the loop serves others in between.
        for _ in range(backlog(self._server.limits.max_connections)):
            try:
                connection, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted: %s", error)
                self._loop.remove_reader(listener.fileno())
                # The connection stays in the backlog: without the pause, the loop would be called again at once.
                self._loop.call_later(ACCEPT_PAUSE, self._resume, listener)
                return
            connection.setblocking(False)
            give = self._server.give
            if give is not None and give(connection):
                connection.close()
            else:
                self.take(connection)

    def take(self, connection: socket.socket) -> None:
        Handshake(self._server, self.context, connection)

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Stop accepting connections."""
        for one in self._sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one.fileno())
                one.close()


class Handshake(Peer):
    """One connection in its handshake; it counts among the server's connections."""

    def __init__(self, server: OpenConnections, context: ssl.SSLContext, connection: socket.socket) -> None:
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
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._server.limits.header_timeout
        peer = _name_of(connection)
        try:
            async with asyncio.timeout_at(ends):
                first = await _first_octets(connection)
                # An HTTP method: letters, where TLS begins with 0x16.
                if first and not CLIENT_HELLO.startswith(first) and first.isalpha():
                    await self._refuse_plain(connection, peer)
                    return
            self._is_ours = False
            tls = TLSTransport(Connection(self._server), context, server_side=True)
            await loop.connect_accepted_socket(lambda: tls, connection)
            # A second at least, however long the first octets took.
            async with asyncio.timeout_at(max(ends, loop.time() + 1.0)):
                await tls.shake_hands()
        except ssl.SSLError as error:
            self._server.counters.refused["tls"] += 1
            told, reason = self._server.on_failed_handshake, why_no_handshake(error)
            if told is not None and reason:
                told(reason, peer)
        except OSError as error:  # that it took too long is one
            logger.debug("no TLS: %s", error)

    async def _refuse_plain(self, connection: socket.socket, peer: str | None) -> None:
        """Answer a request in plain HTTP; a client that is only cut off would try it again and again."""
        loop, server = asyncio.get_running_loop(), self._server
        server.counters.refused["tls"] += 1
        request = await loop.sock_recv(connection, MOST_PLAIN)
        media = _CONTENT_TYPE.search(request)
        refusal = NEEDS_TLS
        if server.refusing is not None:
            refusal = server.refusing(refusal, {b"content-type": media[1]} if media else {}, peer)
        head, body = server.head(refusal.status, refusal.content_type), refusal.text.encode() + b"\n"
        answer = b"%bConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        await loop.sock_sendall(connection, answer)
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LINGER_SECONDS):  # what is unread when it is closed would reset the answer
            while await loop.sock_recv(connection, MOST_PLAIN):
                pass

    def _done(self, connection: socket.socket) -> None:
        self._server.remove(self)
        if self._is_ours:
            connection.close()

    @property
    def idle_since(self) -> float | None:
        """As for a Connection: none of these has brought a request."""
        return self._since - USELESS

    def make_room(self) -> None:
        self._server.counters.timeouts["room"] += 1
        self.abort()

    def close_if_idle(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._task.cancel()

    def sweep(self, now: float, before: float) -> None:
        """Do nothing: the event loop limits the time of a handshake."""
