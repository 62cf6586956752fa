"""Serves a handler of exchanges inside any ASGI server: Starlette, FastAPI, uvicorn, hypercorn.

Owns the translation between ASGI's HTTP messages and an Exchange. Leaves sockets, framing and slow peers to the server
around it; the limit on the content and its time are kept here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from holdfast.http.content_spool import ContentSpool
from holdfast.http.exchange import Exchange, Handler, Headers, HTTPLimits, Request, Spooling, check_headers
from holdfast.http.server.refusals import (
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    MALFORMED,
    NO_SPACE,
    OUT_OF_ROOM,
    UNKNOWN_CODING,
    Refusal,
    Refusing,
)
from holdfast.http.tls import PeerCertificate
from holdfast.http.urls import in_url

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]

HIGH_WATER = 64 * 1024
"""Bytes written but not yet taken by the ASGI server from which ``write`` asks for a pause."""
LONGEST_LENGTH = 19
"""Digits of a Content-Length that is looked at; one with more is too large."""


class Buffered:
    """The bytes of request contents held at a time, over all requests that share this object.

    Args:
        most: Maximum bytes; requests beyond it are refused.
    """

    def __init__(self, most: int) -> None:
        self.held = 0
        self._most = most

    def fits(self, size: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.held + size <= self._most


async def serve_asgi(
    handler: Handler,
    scope: Scope,
    receive: Receive,
    send: Send,
    limits: HTTPLimits | None = None,
    buffered: Buffered | None = None,
    refusing: Refusing | None = None,
    spooling: Spooling | None = None,
) -> None:
    """Serve one ASGI ``http`` scope: read the request, give it to the handler, send its answer when it comes.

    Args:
        handler: Called in the event loop's thread with the exchange; must not block.
        scope: ASGI's description of the request; its ``root_path`` is removed from the request's target.
        receive: ASGI's source of the content and of the disconnect.
        send: ASGI's sink for the answer.
        limits: ``max_body``, ``max_attachments``, ``body_timeout`` and ``response_timeout`` apply; None: the defaults.
        buffered: The bytes held of all requests together, at most the limits' ``max_buffered``; shared by all
            calls that serve one application. None: this request is the only one.
        refusing: Answers a request with too large or encoded content in the endpoint's format; None: as plain text.
        spooling: Returns where the content of a request goes if it is large; None: all contents are in memory.

    Raises:
        ValueError: The scope is not an ``http`` one.
    """
    if scope["type"] != "http":
        raise ValueError(f"this application serves http scopes, not {scope['type']!r}")
    limits = limits or HTTPLimits()
    content = _Content(limits, buffered or Buffered(limits.max_buffered))
    try:
        await _serve(handler, scope, receive, send, limits, content, refusing, spooling)
    finally:
        content.release()


async def _serve(
    handler: Handler,
    scope: Scope,
    receive: Receive,
    send: Send,
    limits: HTTPLimits,
    content: _Content,
    refusing: Refusing | None,
    spooling: Spooling | None,
) -> None:
    headers = _headers(scope)
    request = _request(scope, headers, b"")
    body: bytes | None = None
    try:
        _check_head(headers)
        if spooling is not None:
            content.spooled.spool = spooling(request.target, headers)
        # Before the first byte is read.
        content.check_declared(int(headers.get(b"content-length", b"0")))
        body = await content.read(receive)
    except TimeoutError:
        await _refuse(send, BODY_TIMEOUT)
    except _Refused as refused:
        refusal = refused.refusal
        if refusing is not None and refusal in (BODY_TOO_LARGE, UNKNOWN_CODING):
            refusal = refusing(refusal, headers, request.peer)
        await _refuse(send, refusal)
    if body is not None:
        request.body, request.spool = body, content.spooled.take()
        await _answer(handler, ASGIExchange(request), receive, send, limits)


class ASGIExchange(Exchange):
    """An exchange answered through ASGI; see Exchange. Answers are queued until the serving coroutine sends them."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.finished = False
        self._started = False
        self._answered = False
        self._queue: list[ASGIMessage] = []
        self._queued_bytes = 0
        self._ready = asyncio.Event()
        self._drained = asyncio.Event()

    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()) -> None:
        if self.closed:
            return
        length = (b"content-length", b"%d" % len(body))
        self._begin(status, content_type, (*headers, length) if status not in (204, 304) else headers)
        self._put(b"" if self.request.method == "HEAD" else body, last=True)

    def start(self, status: int, content_type: bytes | None = None, headers: Headers = ()) -> None:
        if self.closed:
            return
        self._begin(status, content_type, headers)
        self._started = True
        self._ready.set()

    def write(self, data: bytes) -> bool:
        if self.closed:
            return True
        self._check_started()
        if data and self.request.method != "HEAD":
            self._put(data, last=False)
        return self._queued_bytes < HIGH_WATER

    async def drain(self) -> None:
        while self._queued_bytes >= HIGH_WATER and not self.closed:
            self._drained.clear()
            await self._drained.wait()

    def finish(self) -> None:
        if self.closed:
            return
        self._check_started()
        self._put(b"", last=True)

    @property
    def answered(self) -> bool:
        return self._answered

    def _begin(self, status: int, content_type: bytes | None, headers: Headers) -> None:
        if self._answered:
            raise RuntimeError("this exchange has already been answered")
        check_headers(content_type, headers)
        self._answered = True
        lines = [(name.lower(), value) for name, value in headers]
        if content_type is not None:
            lines.append((b"content-type", content_type))
        self._queue.append({"type": "http.response.start", "status": status, "headers": lines})

    def _check_started(self) -> None:
        if not self._started or self.finished:
            raise RuntimeError("this exchange is not being answered in pieces")

    def _put(self, data: bytes, *, last: bool) -> None:
        self._queue.append({"type": "http.response.body", "body": data, "more_body": not last})
        self._queued_bytes += len(data)
        self.finished = last
        self._ready.set()

    async def send_answer(self, send: Send) -> None:
        """Send what is queued, as it comes, until the answer is whole."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            queue, self._queue = self._queue, []
            for message in queue:
                await send(message)
                self._queued_bytes -= len(message.get("body", b""))
            self._drained.set()
            if self.finished and not self._queue:
                return

    def close(self) -> None:
        """Report to the handler that the peer has gone or no longer waits."""
        self.closed = True
        self._drained.set()
        callback, self.on_close = self.on_close, None
        if callback is not None:
            callback()


class _Refused(Exception):
    """The request is not handed over. Never leaves this module."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class _Content:
    """One request's content, counted from its first byte until the request is answered."""

    def __init__(self, limits: HTTPLimits, buffered: Buffered) -> None:
        self.spooled = ContentSpool()
        self._limits = limits
        self._buffered = buffered
        self._size = 0

    def check_declared(self, size: int) -> None:
        """Refuse what could not be held before it is read."""
        if size > self.spooled.limit(self._limits):
            raise _Refused(BODY_TOO_LARGE)
        spool = self.spooled.spool
        if not self._buffered.fits(size if spool is None else min(size, spool.begins_at)):
            raise _Refused(OUT_OF_ROOM)

    async def read(self, receive: Receive) -> bytes | None:
        """Return the whole content, b"" if it was spooled; None if the peer disconnected before its end.

        Raises:
            TimeoutError: It did not arrive in time.
        """
        pieces = bytearray()
        async with asyncio.timeout(self._limits.body_timeout) as timer:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                piece = message.get("body", b"")
                if self.spooled.takes(self._size + len(piece), self._limits.max_body):
                    # What was received before stays counted: as much may wait to be written.
                    self.spooled.add(pieces, piece)
                    pieces = bytearray()
                    await self._write_spooled(timer)
                else:
                    self._hold(len(piece))
                    pieces += piece
                if not message.get("more_body", False):
                    return bytes(pieces)

    def _hold(self, size: int) -> None:
        self._size += size
        self._buffered.held += size
        if self._size > self._limits.max_body:
            raise _Refused(BODY_TOO_LARGE)
        if not self._buffered.fits(0):
            raise _Refused(OUT_OF_ROOM)

    async def _write_spooled(self, timer: asyncio.Timeout) -> None:
        """Write what was spooled, if it is enough, before more is received; then the time begins again."""
        spool = self.spooled.spool
        assert spool is not None
        if self.spooled.exceeds(self._limits):
            raise _Refused(BODY_TOO_LARGE)
        if spool.wants_flush:
            # The time of the disk is not the peer's.
            timer.reschedule(None)
            await asyncio.to_thread(spool.flush)
            timer.reschedule(asyncio.get_running_loop().time() + self._limits.body_timeout)
        if spool.is_full:
            raise _Refused(NO_SPACE)

    def release(self) -> None:
        self._buffered.held -= self._size
        self._size = 0


def _headers(scope: Scope) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = bytes(raw_name).lower(), bytes(raw_value)
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _check_head(headers: dict[bytes, bytes]) -> None:
    if not headers.get(b"content-length", b"0").isdigit():
        raise _Refused(MALFORMED)
    if len(headers.get(b"content-length", b"")) > LONGEST_LENGTH:
        raise _Refused(BODY_TOO_LARGE)
    if headers.get(b"content-encoding", b"identity").lower() not in (b"", b"identity"):
        raise _Refused(UNKNOWN_CODING)


def _request(scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Request:
    raw = scope.get("raw_path")
    # The raw path, because a decoded one cannot be encoded as it came.
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    root = quote(scope.get("root_path", "").rstrip("/"))
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    query = scope.get("query_string", b"").decode("latin-1")
    client = scope.get("client")
    peer = None
    if client is not None:
        host, port = client
        peer = f"{in_url(host)}:{port}"
    target = (path or "/") + (f"?{query}" if query else "")
    is_secure = scope.get("scheme", "http") == "https"
    return Request(scope["method"], target, headers, body, peer, is_secure, _certificate(scope), root)


def _certificate(scope: Scope) -> PeerCertificate | None:
    """Return the client's certificate, if the ASGI server reports it (ASGI's TLS extension)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    chain = tls.get("client_cert_chain")
    if not chain or tls.get("client_cert_error"):
        return None
    return PeerCertificate.of_pem(chain[0], tls.get("client_cert_name") or "")


async def _answer(handler: Handler, exchange: ASGIExchange, receive: Receive, send: Send, limits: HTTPLimits) -> None:
    try:
        handler(exchange)
    except Exception:
        logger.exception("the handler of %s %s failed", exchange.request.method, exchange.request.target)
        if exchange.answered and not exchange.finished:
            exchange.close()
            raise  # its answer is cut off, which only the server around us can show
        if not exchange.answered:
            exchange.respond(500, b"internal error\n", b"text/plain")
    if exchange.finished:
        await exchange.send_answer(send)
        return
    # Two tasks: a peer that disconnects is noticed while its answer is awaited.
    sending = asyncio.create_task(exchange.send_answer(send))
    watching = asyncio.create_task(_disconnected(receive))
    tasks: set[asyncio.Task[None]] = {sending, watching}
    try:
        await asyncio.wait(tasks, timeout=limits.response_timeout, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() and not watching.done():
            if not exchange.answered:
                exchange.respond(503, b"no answer in time\n", b"text/plain")
                exchange.close()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        if not exchange.finished:
            exchange.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = refusal.text.encode() + b"\n"
    headers = [
        (b"content-type", refusal.content_type),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *((name.lower(), value) for name, value in refusal.all_headers()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
