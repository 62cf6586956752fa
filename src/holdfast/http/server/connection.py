"""One peer's connection to the HTTP server: parses its requests, and answers them one at a time, in order.

Owns framing, the phases of a connection and the order of pipelined answers (RFC 9110, RFC 9112). Knows nothing of
listening; ``open_connections`` has what connections share, ``server_exchange`` how one request is answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final, cast

import httptools

from holdfast.http.content_spool import ContentSpool
from holdfast.http.exchange import Request, Spool
from holdfast.http.head_memory import KnownHead
from holdfast.http.server import refusals
from holdfast.http.server.descriptors import overflow
from holdfast.http.server.open_connections import OpenConnections, Peer
from holdfast.http.server.refusals import Refusal
from holdfast.http.server.request_head import origin_form, refusal_of
from holdfast.http.server.server_exchange import LARGE_BODY, STREAMING, WAITING, AnsweringConnection, ServerExchange
from holdfast.http.tls import PeerCertificate
from holdfast.http.urls import in_url

logger = logging.getLogger(__name__)

MAX_FIELDS: Final = 256
"""Header fields of a request: each takes a hundred bytes of memory besides its own, and has five at least."""

# What a connection is doing while no exchange is in progress.
NEW, IDLE, HEADER, BODY, LINGER, CLOSING = range(6)

USELESS: Final = 1e9
"""Seconds by which a connection that never brought a request counts as idle for longer than one that did."""


class Refused(Exception):
    """Stops the parser, which then says only that a callback failed. Never leaves this module."""


class Connection(asyncio.Protocol, AnsweringConnection, Peer):
    """One peer's connection: parses requests, and gives the handler one at a time, in order."""

    __slots__ = (
        "_body", "_continue", "_exchange", "_fields", "_given", "_head", "_headers", "_is_given",
        "_keep_alive", "_length", "_limits", "_method", "_old", "_parser", "_pending_bytes", "_phase",
        "_pumping", "_queue", "_reading_paused", "_refusal", "_resumed", "_since", "_spooled",
        "_stalled_since", "_target", "_unparsed", "_upgrading", "host", "peer", "certificate",
    )  # fmt: skip

    def __init__(self, server: OpenConnections, given: Request | None = None, *, is_given: bool = False) -> None:
        self.server = server
        self._is_given = is_given  # by another process, which accepted it
        self._given = given  # what another process read on it, and gave away with it
        self._limits = server.limits
        self.peer: str | None = None
        self.host = ""  # the peer's address; "" if it has none
        self.certificate: PeerCertificate | None = None
        self.write_paused = False
        self.drained: asyncio.Future[None] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._phase = NEW
        self._since = server.now
        self._exchange: ServerExchange | None = None
        self._queue: list[ServerExchange] = []
        self._refusal: Refusal | None = None
        self._pumping = False
        self._reading_paused = False
        self._stalled_since = 0.0
        self._pending_bytes = 0
        # The request being received.
        self._method = ""
        self._target = b""
        self._fields: dict[bytes, bytes] = {}  # of the section being parsed: headers, or trailers, which go nowhere
        self._headers: dict[bytes, bytes] = {}
        self._keep_alive = True
        self._old = False  # HTTP/1.0
        self._body: bytes | bytearray = b""
        self._head = 0  # bytes of an unfinished header section
        self._length = 0
        self._spooled = ContentSpool()
        self._continue = False  # the peer waits for 100 Continue
        self._upgrading = False
        self._resumed: bytes | None = None  # the target of the request with content that a second parser reads
        # Bytes received since the parser last made progress that is bounded elsewhere.
        self._unparsed = 0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # asyncio's TLS transport is one in all but name
        server = self.server
        server.counters.connections += 1
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host = peer[0]
            self.peer = f"{in_url(peer[0])}:{peer[1]}"
        limit = server.limits.max_connections
        present = len(server.connections)
        if server.secure:
            self.certificate = PeerCertificate.of(transport.get_extra_info("ssl_object"))
            present -= 1  # its handshake
        has_room = present < limit
        is_gone = not has_room and self._give()
        has_room = has_room or is_gone or server.make_room()
        server.connections.add(self)
        if server.closing or present >= limit + overflow(limit):
            # Not even room for those that are being told to go away.
            server.counters.refused["connections"] += 1
            self.abort()
        elif is_gone:
            self.abort()
        elif not has_room:
            self._refusal = refusals.TOO_MANY_CONNECTIONS
            self._refuse()
        elif self._given is not None:
            server.buffered += len(self._given.body)
            self._hold_large(len(self._given.body), len(self._given.body))
            self._phase = IDLE
            exchange = ServerExchange(self, self._given, True, False)
            exchange.is_passed_on = True
            self._hand_over(exchange)

    def _give(self) -> bool:
        """Whether another process has taken this connection over, which brought nothing yet."""
        server = self.server
        shared: socket.socket | None = self.transport.get_extra_info("socket")
        if server.give is None or server.secure or self._is_given or shared is None:
            return False
        with socket.socket(fileno=os.dup(shared.fileno())) as copy:
            return server.give(copy)

    def give_away(self, exchange: ServerExchange) -> socket.socket | None:
        """Return a copy of the socket, for another process to answer this exchange and serve the connection.

        None if the connection has other work in progress. Then call ``lose``, or continue here as before. A
        connection that another process passed to this one stays here, so no connection circulates among processes.
        """
        is_between = self._phase == IDLE and not self._queue and self._refusal is None and not self._reading_paused
        is_whole = self._exchange is exchange and exchange.keep_alive and not exchange.old
        # A TLS session cannot move to another process, and a request behind this one would be lost.
        if self._given is not None or self.server.secure or not is_between or not is_whole:
            return None
        shared: socket.socket | None = self.transport.get_extra_info("socket")
        # Two processes must not write to it.
        if shared is None or self.transport.get_write_buffer_size() or self.transport.is_closing():
            return None
        return socket.socket(fileno=os.dup(shared.fileno()))

    def lose(self, exchange: ServerExchange) -> None:
        """Drop the connection, which another process now serves, without sending the peer anything."""
        exchange.closed = True
        self.server.counters.given += 1
        self.abort()

    def leave(self) -> asyncio.Transport | None:
        if self._phase != IDLE or self._exchange or self._queue or self._refusal or self._reading_paused:
            return None
        self.server.remove(self)
        self._phase = CLOSING
        return self.transport

    def connection_lost(self, exc: Exception | None) -> None:
        server = self.server
        server.remove(self)
        server.sent(self)
        self._let_go(self._length)
        server.buffered -= self._head
        self._length = self._head = 0
        self._spooled.take()
        self._phase = CLOSING
        for waiting in self._queue:
            self._let_go(waiting.size)
        self._queue.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._let_go(exchange.size)
            exchange.closed = True
        self._wake()
        if exchange is not None:
            exchange.tell_closed()

    def pause_writing(self) -> None:
        self.write_paused = True
        self.server.unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.write_paused = False
        self.server.sent(self)
        self._wake()
        if self._exchange is None and self._phase != CLOSING:
            self._pump()

    def _wake(self) -> None:
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
        self.drained = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._phase == CLOSING:
            return  # read and dropped, so that the peer gets to read our last answer before a reset (RFC 9112 9.6)
        # Only between two messages can equal bytes be a whole request.
        between = self._phase <= IDLE and self._exchange is None and not self._queue and not self.write_paused
        if between:
            end = data.find(b"\r\n\r\n") + 4
            known = self.server.known_heads.found.get(data[:end])
            if known is not None and self._take_known(known, data, end):
                return
        self._unparsed += len(data)
        self._feed(data)
        if self._phase == HEADER:
            self._hold_head(len(data))
        if between and self._phase == IDLE and len(self._queue) == 1:
            whole = self._queue[0]
            if whole.keep_alive and not whole.old:
                self.server.known_heads.learn(data, whole.request)
        if self._exchange is not None or self.write_paused:
            # The peer pipelines: leave the rest in its socket until this one is answered.
            if not self._reading_paused:
                self._reading_paused = True
                self.transport.pause_reading()
        elif self._queue or self._refusal is not None or self._continue:
            self._pump()
        elif self._spooled.flush(self._flushed) and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _hold_head(self, size: int) -> None:
        """Count ``size`` more buffered bytes of an unfinished header section."""
        self._head += size
        self.server.buffered += size
        if self.server.buffered > self._limits.max_buffered and self._refusal is None:
            self._refusal = refusals.OUT_OF_ROOM

    def _take_known(self, known: KnownHead, data: bytes, end: int) -> bool:
        """Deliver a request with a known head without the parser, if the data is exactly one, and there is room."""
        server = self.server
        if (
            known.length > LARGE_BODY
            or len(data) - end != known.length
            or server.buffered + known.length > self._limits.max_buffered
        ):
            return False
        server.buffered += known.length
        request = Request(
            known.method, known.target, known.headers, data[end:], self.peer, server.secure, self.certificate
        )
        self._phase = IDLE
        self._hand_over(ServerExchange(self, request, True, False))
        return True

    # The parser's side.

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as offer:
                data = self._decline_upgrade() + data[offer.args[0] :]
            except httptools.HttpParserCallbackError:
                if self._refusal is None:
                    raise  # a bug in the server; the loop logs it and closes the connection
                return
            except httptools.HttpParserError:
                self._refusal = refusals.NO_TLS if data.startswith(refusals.CLIENT_HELLO) else refusals.MALFORMED
                return
        if self._unparsed > self._limits.max_header_bytes and self._phase in (HEADER, BODY):
            self._refusal = refusals.HEADER_TOO_LARGE

    def _refused(self, refusal: Refusal) -> Refused:
        self._refusal = refusal
        return Refused(refusal.text)

    def _decline_upgrade(self) -> bytes:
        """Continue in HTTP/1.1 after an offer such as h2c, which a server may ignore (RFC 9110 section 7.8).

        Returns:
            The bytes to feed to the new parser before the content.
        """
        # llhttp ends the message at the headers of an offer, without the content. A new parser that gets only the
        # framing headers reads it.
        self._upgrading = False
        self._resumed = self._target
        self._parser = httptools.HttpRequestParser(self)
        framing = b"POST / HTTP/1.1\r\n"
        for name in (b"content-length", b"transfer-encoding"):
            if name in self._headers:
                framing += name + b": " + self._headers[name] + b"\r\n"
        return framing + b"\r\n"

    def on_message_begin(self) -> None:
        self._phase = HEADER
        self._since = self.server.now
        self._target = b""

    def on_url(self, url: bytes) -> None:
        self._target += url  # it comes in pieces when the request does

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._fields
        if name in headers:
            # RFC 9112 section 3.2: a request with two Host headers is refused.
            if name == b"host":
                raise self._refused(refusals.NO_HOST)
            value = headers[name] + b", " + value
        elif len(headers) >= MAX_FIELDS:
            raise self._refused(refusals.HEADER_TOO_LARGE)
        headers[name] = value

    def on_headers_complete(self) -> None:
        self._phase = BODY
        if self._head:
            self.server.buffered -= self._head
            self._head = 0
        self._since = self.server.now
        if self._resumed is not None:
            self._target = self._resumed
            self._resumed = None
            self._fields = {}
            return
        parser = self._parser
        # What is parsed from here on are trailers, which do not become headers (RFC 9110 section 6.5.1).
        headers = self._headers = self._fields
        self._fields = {}
        self._method = parser.get_method().decode()
        self._keep_alive = parser.should_keep_alive()
        if b"connection" in headers or not self._keep_alive:
            self._check_version(parser)
        else:
            self._old = False  # without a Connection header only HTTP/1.1 keeps it alive, and no upgrade is offered
        if self._method == "CONNECT":
            raise self._refused(refusals.NO_TUNNELS)
        self._check_headers(headers)

    def _check_version(self, parser: httptools.HttpRequestParser) -> None:
        version = parser.get_http_version()
        self._old = version == "1.0"
        if version != "1.1" and not self._old:
            raise self._refused(refusals.UNKNOWN_VERSION)
        self._upgrading = parser.should_upgrade()

    def _check_headers(self, headers: dict[bytes, bytes]) -> None:
        limits = self._limits
        # What is unparsed may include the body: the exact size is counted only if the header may be too large.
        if self._unparsed > limits.max_header_bytes:
            size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
            if size > limits.max_header_bytes:
                raise self._refused(refusals.HEADER_TOO_LARGE)
        if self.server.spooling is not None:
            self._spooled.spool = self.server.spooling(self._target.decode("latin-1"), headers)
        refusal = refusal_of(headers, is_old=self._old, max_body=self._spooled.limit(limits))
        if refusal is not None:
            raise self._refused(refusal)
        self._continue = b"expect" in headers and not self._old

    def on_body(self, body: bytes) -> None:
        server = self.server
        size = len(body)
        self._unparsed = 0
        self._continue = False  # it did not wait
        if self._spooled.takes(self._length + size, self._limits.max_body):
            # What was received before stays counted: as much may wait to be written.
            before, self._body = self._body, b""
            self._spooled.add(before, body)
            if self._spooled.exceeds(self._limits):
                raise self._refused(refusals.BODY_TOO_LARGE)
            return
        self._length += size
        server.buffered += size
        has_room = self._length <= LARGE_BODY or self._hold_large(self._length, size)
        if self._length > self._limits.max_body:
            raise self._refused(refusals.BODY_TOO_LARGE)
        if not has_room or server.buffered > self._limits.max_buffered:
            raise self._refused(refusals.OUT_OF_ROOM)
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body)

    def _flushed(self, spool: Spool) -> None:
        """Continue with a spooled content, or with what follows it, after a part of it was written."""
        if self._spooled.spool is spool and self._phase not in (LINGER, CLOSING):
            self._since = self.server.now
            if spool.is_full:
                self._refusal = refusals.NO_SPACE
                self._pump()
                return
            self._spooled.flush(self._flushed)
        if self._exchange is None and not self._queue:
            self._resume_reading()

    def _hold_large(self, length: int, more: int) -> bool:
        """Count a content of that length, which has so many bytes more; whether its address may hold them."""
        if length <= LARGE_BODY:
            return True
        held = self.server.large[self.host] + (more if length - more > LARGE_BODY else length)
        self.server.large[self.host] = held
        return not self.host or held <= self._limits.max_buffered // 2 or held <= length

    def _let_go(self, size: int) -> None:
        server = self.server
        server.buffered -= size
        if size > LARGE_BODY:
            server.large[self.host] -= size
            if not server.large[self.host]:
                del server.large[self.host]

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        if len(self._queue) >= self._limits.max_pipelined:
            raise self._refused(refusals.TOO_MANY_PIPELINED)
        server = self.server
        body, self._body = self._body, b""
        if type(body) is not bytes:
            body = bytes(body)
        target = self._target if self._target.startswith(b"/") else origin_form(self._target)
        request = Request(
            self._method, target.decode("latin-1"), self._headers, body, self.peer, server.secure, self.certificate
        )
        request.spool = self._spooled.take()
        if request.spool is not None:
            self._let_go(self._length)
        self._queue.append(ServerExchange(self, request, self._keep_alive, self._old))
        self._phase = IDLE
        self._length = 0  # from here the exchange holds it
        self._unparsed = 0
        self._continue = False

    # The handler's side.

    def _pump(self) -> None:
        """Deliver complete requests one after the other, until one is not answered immediately."""
        # A handler that answers at once calls answered(), which would recurse for each pipelined request.
        if self._pumping:
            return
        self._pumping = True
        queue = self._queue
        try:
            while self._exchange is None and not self.write_paused and self._phase not in (LINGER, CLOSING):
                if queue:
                    self._hand_over(queue.pop(0))
                elif self._refusal is not None:
                    self._refuse()
                else:
                    if self._continue:
                        self._continue = False
                        # RFC 9110 section 10.1.1: only now, with room for the content.
                        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self._resume_reading()
                    break
        finally:
            self._pumping = False

    def _hand_over(self, exchange: ServerExchange) -> None:
        server = self.server
        self._exchange = exchange
        self._since = server.now
        server.counters.requests += 1
        try:
            server.handler(exchange)
        except Exception:
            self._handler_failed(exchange)

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._spooled.is_flushing:
            self._reading_paused = False
            self.transport.resume_reading()

    def _handler_failed(self, exchange: ServerExchange) -> None:
        """Answer in the handler's place; cut the connection if the handler had begun to answer."""
        self.server.counters.failures += 1
        logger.exception("the handler of %s %s failed", exchange.request.method, exchange.request.target)
        if exchange.state == WAITING:
            exchange.give_up(500, b"internal error\n")
        elif exchange.state == STREAMING:
            self.abort()

    def answered(self, exchange: ServerExchange, close: bool) -> None:
        """Continue with the next request after an exchange was answered whole, or end."""
        self._exchange = None
        self._let_go(exchange.size)
        self._since = self.server.now
        if close:
            self._end()
        elif self._queue or self._refusal is not None or self._continue or self._reading_paused:
            self._pump()

    def _end(self) -> None:
        """Close once everything written is sent."""
        for exchange in self._queue:
            self._let_go(exchange.size)
        self._queue.clear()
        self._phase = CLOSING
        self._since = self.server.now
        self.transport.close()

    def _refuse(self) -> None:
        refusal = self._refusal
        assert refusal is not None
        server = self.server
        (server.counters.timeouts if refusal.status == 408 else server.counters.refused)[refusal.reason] += 1
        if server.refusing is not None and refusal in (
            refusals.BODY_TOO_LARGE,
            refusals.UNKNOWN_CODING,
            refusals.NO_TLS,
        ):
            refusal = server.refusing(refusal, self._headers, self.peer)
        self._let_go(self._length)
        server.buffered -= self._head
        self._length = self._head = 0
        self._fields = {}
        self._body = b""
        self._spooled.take()
        body = refusal.text.encode() + b"\n"
        extra = b"".join(b"%b: %b\r\n" % header for header in refusal.all_headers())
        head = server.head(refusal.status, refusal.content_type)
        self.transport.write(b"%b%bConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (head, extra, len(body), body))
        self._phase = LINGER
        self._since = server.now
        self._resume_reading()
        # The peer reads the refusal to its end; what it still sends is read and dropped.
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # Time's side.

    @property
    def idle_since(self) -> float | None:
        """Since when it has had nothing to do, None while it has; long before that if it never brought a request."""
        if self._exchange is not None or self._queue or self._phase > HEADER:
            return None
        return self._since if self._phase == IDLE else self._since - USELESS

    def close_if_idle(self) -> None:
        if self._exchange is None and not self._queue and self._phase in (NEW, IDLE):
            self._end()

    def abort(self) -> None:
        self._phase = CLOSING
        self.transport.abort()

    def make_room(self) -> None:
        self._time_out("room")

    def sweep(self, now: float, before: float) -> None:
        """Close if too slow.

        Args:
            now: The loop's time.
            before: The time to measure from ``_since``, which may be one sweep early.
        """
        limits = self.server.limits
        # A peer that reads slowly is not cut off, only one that reads nothing: the buffer does not shrink.
        pending = self.transport.get_write_buffer_size()
        if pending == 0 or pending < self._pending_bytes or self._pending_bytes == 0:
            self._stalled_since = now
        elif now - self._stalled_since > limits.write_timeout:
            self._time_out("write")
            return
        self._pending_bytes = pending
        waited = before - self._since
        # While a request is being answered, the peer cannot be blamed for silence: only the answer is timed.
        exchange = self._exchange
        if exchange is not None:
            patience = limits.response_timeout
            if patience is not None and waited > patience and exchange.state == WAITING:
                self.server.counters.timeouts["response"] += 1
                exchange.give_up(503, b"no answer in time\n")
                exchange.tell_closed()
            return
        phase = self._phase
        if phase == IDLE:
            if waited > limits.keep_alive_timeout:
                self._time_out("keep_alive")
        elif phase == HEADER:
            if waited > limits.header_timeout:
                self._refusal = refusals.HEADER_TIMEOUT
                self._refuse()
        elif phase == BODY:
            if waited > limits.body_timeout:
                self._refusal = refusals.BODY_TIMEOUT
                self._refuse()
        elif phase == NEW:
            if waited > limits.header_timeout:
                self._time_out("header")
        elif phase == LINGER and waited > limits.linger_timeout:
            self._end()

    def _time_out(self, reason: str) -> None:
        self.server.counters.timeouts[reason] += 1
        self.abort()
