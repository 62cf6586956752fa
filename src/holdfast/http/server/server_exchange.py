"""The answer to one request of a connection: its head, its framing and its pieces."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from holdfast.http.exchange import Exchange, Headers, Request, check_headers
from holdfast.http.server.open_connections import OpenConnections

LARGE_BODY: Final = 64 * 1024
"""From this size a body is written on its own rather than copied behind its head."""

WAITING, STREAMING, ANSWERED = range(3)


class AnsweringConnection(ABC):
    """What an exchange does with the connection that its request came on.

    Attributes:
        server: What the connections of the server share.
        transport: Where answers are written.
        write_paused: Whether the peer reads too slowly.
        drained: Done when it has read enough; None: no exchange waits for that.
    """

    __slots__ = ("drained", "server", "transport", "write_paused")

    server: OpenConnections
    transport: asyncio.Transport
    write_paused: bool
    drained: asyncio.Future[None] | None

    @abstractmethod
    def give_away(self, exchange: ServerExchange) -> socket.socket | None:
        """Return a copy of the socket for another process, None if the connection must stay here."""

    @abstractmethod
    def lose(self, exchange: ServerExchange) -> None:
        """Forget the connection, which another process has."""

    @abstractmethod
    def leave(self) -> asyncio.Transport | None:
        """Return the transport for another protocol, which serves the peer from now on; None if there is more to do."""

    @abstractmethod
    def answered(self, exchange: ServerExchange, close: bool) -> None:
        """Continue after the answer, or close."""


class ServerExchange(Exchange):
    """An exchange of this server's; see Exchange."""

    # Defaults on the class: most exchanges change none but the state.
    state = WAITING
    _chunked = False

    def __init__(self, connection: AnsweringConnection, request: Request, keep_alive: bool, old: bool) -> None:
        self._connection = connection
        self.request = request
        self.size = len(request.body)  # what the server holds for it, whatever its handler makes of the request
        self.keep_alive = keep_alive
        self.old = old

    def give_away(self, give: Callable[[socket.socket, Request], bool]) -> bool:
        connection = self._connection
        copy = connection.give_away(self)
        if copy is None:
            return False
        with copy:
            if not give(copy, self.request):
                return False
        connection.lose(self)
        return True

    def switch(self, protocol: asyncio.Protocol) -> bool:
        transport = self._connection.leave() if self.state == ANSWERED else None
        if transport is None:
            return False
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return True

    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()) -> None:
        if self.closed:
            return
        if self.state != WAITING:
            raise RuntimeError("this exchange has already been answered")
        connection = self._connection
        server = connection.server
        head = server.heads.get((status, content_type)) or server.head(status, content_type)
        if headers:
            head += _lines(headers)
        close = not self.keep_alive or server.closing
        if close:
            head += b"Connection: close\r\n"
        # HTTP/1.0 closes unless this header says otherwise (RFC 9112 section 9.3).
        elif self.old:
            head += b"Connection: keep-alive\r\n"
        self.state = ANSWERED
        if status == 204 or status == 304:
            connection.transport.write(head + b"\r\n")  # these have no content, and declare none (RFC 9110 section 8.6)
        elif self.request.method == "HEAD":
            connection.transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
        elif len(body) < LARGE_BODY:
            connection.transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            connection.transport.write(b"%bContent-Length: %d\r\n\r\n" % (head, len(body)))
            connection.transport.write(body)
        connection.answered(self, close)

    def start(self, status: int, content_type: bytes | None = None, headers: Headers = ()) -> None:
        if self.closed:
            return
        if self.state != WAITING:
            raise RuntimeError("this exchange has already been answered")
        head = self._connection.server.head(status, content_type) + _lines(headers)
        self._chunked = not self.old
        if self.old:
            self.keep_alive = False  # only the connection's end can end it (RFC 9112 section 6.3)
        if self._chunked:
            head += b"Transfer-Encoding: chunked\r\n"
        if not self.keep_alive:
            head += b"Connection: close\r\n"
        self.state = STREAMING
        self._connection.transport.write(head + b"\r\n")

    def write(self, data: bytes) -> bool:
        if self.closed:
            return True
        if self.state != STREAMING:
            raise RuntimeError("this exchange is not being answered in pieces")
        if not data or self.request.method == "HEAD":
            return True
        if self._chunked:  # copied: a separate write of each piece would be a system call, which costs more
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.transport.write(data)
        return not self._connection.write_paused

    async def drain(self) -> None:
        connection = self._connection
        while connection.write_paused and not self.closed:
            if connection.drained is None:
                connection.drained = asyncio.get_running_loop().create_future()
            # Shielded: several writers wait for the same future.
            await asyncio.shield(connection.drained)

    def finish(self) -> None:
        if self.closed:
            return
        if self.state != STREAMING:
            raise RuntimeError("this exchange is not being answered in pieces")
        self.state = ANSWERED
        if self._chunked and self.request.method != "HEAD":
            self._connection.transport.write(b"0\r\n\r\n")
        self._connection.answered(self, not self.keep_alive or self._connection.server.closing)

    def give_up(self, status: int, why: bytes) -> None:
        """Answer in the place of a handler that did not, and close the connection."""
        self.keep_alive = False
        self.respond(status, why, b"text/plain")
        self.closed = True

    def tell_closed(self) -> None:
        """Call ``on_close``, once, unless the answer was given whole."""
        callback, self.on_close = self.on_close, None
        if callback is not None:
            callback()


def _lines(headers: Headers) -> bytes:
    check_headers(None, headers)
    return b"".join([b"%b: %b\r\n" % header for header in headers])
