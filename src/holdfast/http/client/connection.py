"""One connection of the client: writes a request, parses the answer, and says when it may serve the next.

Owns framing (RFC 9112) and the limits on an answer. One request is in progress at a time: nothing is pipelined, for an
answer that never comes would hold up those behind it. No task and no timer; time is its pool's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urljoin

import httptools

from holdfast.http.client.answer_room import SMALL_ANSWER, AnswerRoom, Claim
from holdfast.http.content_spool import ContentSpool
from holdfast.http.exchange import HTTPLimits, Spool
from holdfast.http.head_memory import KnownAnswers
from holdfast.http.outcome import AnswerSpooling, Done, Outcome, Response, Streamed, Switch, TransportError
from holdfast.http.reasons import why_not_answered
from holdfast.http.urls import Origin

REDIRECTS = (301, 302, 303, 307, 308)
LARGE_BODY = 64 * 1024
"""From this size a body is written on its own rather than copied behind its head."""
MAX_HEAD_BYTES = 64 * 1024
"""The largest status line and header section of an answer, and as much of what carries no content within it."""
MAX_ATTACHMENTS = HTTPLimits().max_attachments
"""Largest content of an answer that is spooled: as large as that of a request."""
MAX_FIELDS = 256
"""Header fields of an answer: each takes a hundred bytes of memory besides its own, and has five at least."""


class Call:
    """A request that receives exactly one outcome.

    Args:
        head: The request line and the headers, with the empty line.
        done: Called with the outcome.
        deadline: The loop's time by which it must be over.
        timeout: Seconds by which the deadline moves with each piece of a streamed content.
        switch: Returns the protocol that has the connection after an answer; None: HTTP.
    """

    __slots__ = ("_done", "_timeout", "body", "deadline", "head", "is_over", "switch", "url")

    def __init__(
        self,
        url: str,
        head: bytes,
        body: bytes | Streamed,
        done: Done,
        deadline: float,
        timeout: float = 0.0,
        switch: Switch | None = None,
    ) -> None:
        self.url = url
        self.head = head
        self.body = body
        self.deadline = deadline
        self._timeout = timeout
        self.switch = switch
        self.is_over = False
        self._done = done

    def moved(self, now: float) -> None:
        """Begin its timeout again: a piece of its content was written."""
        self.deadline = now + self._timeout

    def end(self, outcome: Outcome) -> None:
        """Report the result of the call, once."""
        if not self.is_over:
            self.is_over = True
            self._done(outcome)

    def fail(
        self, message: str, *, connected: bool, status: int = 0, remedy: str = "", is_too_large: bool = False
    ) -> None:
        """Report the failure of the call."""
        error = TransportError(message, connected=connected, status=status, remedy=remedy, is_too_large=is_too_large)
        self.end(error)


class OriginAnswers:
    """What all connections to one origin share about its answers.

    Args:
        max_response: Largest answer's content.
        room: Bytes that answers may take.
        spooling: Returns where the content of a large answer goes; None: all of them are in memory.
    """

    __slots__ = ("answers", "has_answered", "max_response", "origin", "room", "spooling")

    def __init__(
        self, origin: Origin, max_response: int, room: AnswerRoom, spooling: AnswerSpooling | None = None
    ) -> None:
        self.spooling = spooling
        self.origin = origin
        self.max_response = max_response
        self.room = room
        self.answers = KnownAnswers()
        self.has_answered = False
        """Whether anything was ever answered: then it speaks what we speak."""


class ClientConnection(asyncio.Protocol):
    """A connection, to be given one call after the other.

    Args:
        free: Called when it may serve the next call.
        closed: Called when it is closed, perhaps twice.
    """

    __slots__ = (
        "_body", "_claim", "_closed", "_fields", "_free", "_is_complete", "_is_surplus", "_keeps_alive", "_length",
        "_parser", "_response", "_room", "_shared", "_silent", "_spooled", "_status", "_streaming", "call",
        "idle_since", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self,
        shared: OriginAnswers,
        free: Callable[[ClientConnection], None],
        closed: Callable[[ClientConnection], None],
    ) -> None:
        self._shared = shared
        self._free = free
        self._closed = closed
        self.call: Call | None = None
        self.idle_since = 0.0
        self._room = asyncio.Event()
        self._room.set()
        self._streaming: asyncio.Task[None] | None = None
        self._spooled = ContentSpool()
        self._parser = httptools.HttpResponseParser(self)
        self._expect()

    def _expect(self) -> None:
        self._fields: dict[str, str] = {}
        self._body: bytes | bytearray = b""
        self._claim: Claim | None = None
        self._length = 0
        self._status = 0
        self._silent = 0  # bytes since the parser last made progress that is bounded elsewhere
        self._keeps_alive = False
        self._is_complete = False
        self._is_surplus = False
        self._response: Response | None = None

    def send(self, call: Call) -> None:
        """Write the request; its call receives the answer."""
        self.call = call
        if not isinstance(call.body, bytes):
            self.transport.write(call.head)
            self._streaming = asyncio.get_running_loop().create_task(self._stream(call, call.body))
        elif len(call.body) < LARGE_BODY:
            self.transport.write(call.head + call.body)
        else:
            self.transport.write(call.head)
            self.transport.write(call.body)
        call.body = b""  # the transport has it until it is written; an answer may take long after that

    async def _stream(self, call: Call, content: Streamed) -> None:
        """Write a content piece by piece, as fast as the peer reads it."""
        loop = asyncio.get_running_loop()
        pieces, left = iter(content), content.size
        try:
            while (piece := await loop.run_in_executor(None, next, pieces, b"")) and self.call is call:
                self.transport.write(piece)
                call.moved(loop.time())
                left -= len(piece)
                if not left:
                    self._streaming = None  # an answer may come before the source says that this was all
                await self._room.wait()
        except Exception as error:
            if self.call is call:
                self.fail(f"the content of a request to {call.url} cannot be read: {error}")
        finally:
            if self._streaming is asyncio.current_task():  # not that of the next request
                self._streaming = None

    def fail(self, message: str, *, status: int = 0, remedy: str = "", is_too_large: bool = False) -> None:
        """End the call in progress with an error, and close the connection, since its later bytes are unpredictable."""
        call, self.call = self.call, None
        self.abort()
        if call is not None:
            call.fail(message, connected=True, status=status, remedy=remedy, is_too_large=is_too_large)

    def abort(self) -> None:
        self._drop_claim()
        self._closed(self)
        self.transport.abort()

    def _drop_claim(self) -> None:
        self._spooled.take()
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end()

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed(self)
        self._room.set()
        call = self.call
        if call is None:
            self._drop_claim()
            return
        if error is None and self._status >= 200 and self._ends_with_connection:
            self._finish()
            self._told(b"")
            return
        self.call = None
        self._drop_claim()
        if self._status or self._silent:
            reason = f"{call.url} closed the connection in the middle of its response"
        else:
            reason = why_not_answered(call.url, error, is_first=not self._shared.has_answered)
        call.fail(reason, connected=True)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:
            self.abort()  # no request is open: these bytes would look like the next answer
            return
        is_fresh = not self._silent and not self._status
        if is_fresh:
            end = data.find(b"\r\n\r\n") + 4
            known = self._shared.answers.found.get(data[:end])
            # The whole answer in one piece, with a head that came before: no parser.
            if known is not None and len(data) - end == known.length:
                self._tell(Response(known.status, known.headers, data[end:]), is_plain=True)
                return
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(f"{call.url} requests a protocol other than HTTP")
            return
        except httptools.HttpParserError as error:
            if self.call is not None and not self._is_complete:
                self.fail(f"{call.url} sent a response that is not HTTP: {_first_words(error)}")
                return
            self._is_surplus = True
        if self._is_complete:
            self._told(data if is_fresh else b"")
        elif self.call is None:
            return
        elif self._spooled.flush(self._flushed) or self._spooled.is_flushing:
            self.transport.pause_reading()
        elif self._silent > MAX_HEAD_BYTES:
            self.fail(f"{call.url} sent more than {MAX_HEAD_BYTES} bytes of headers", status=self._status)

    # --- the parser's side ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status or self.call is None:
            return  # a trailer, which says nothing to us
        if len(self._fields) >= MAX_FIELDS:
            self.fail(f"{self.call.url} sent more than {MAX_FIELDS} header fields")
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        before = self._fields.get(key)
        self._fields[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        if self._is_complete or self.call is None:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._silent = 0
        encoding = self._fields.get("content-encoding", "identity").lower()
        # The request asked for identity (RFC 9110 section 12.5.3).
        if encoding not in ("", "identity"):
            self.fail(
                f"{self.call.url} responded with the content encoding {encoding}, which was not requested",
                status=self._status,
            )
            return
        if self._shared.spooling is not None:
            self._spooled.spool = self._shared.spooling(self._fields)
        if (self._declared or 0) > self._limit:
            self._too_large()

    def on_body(self, data: bytes) -> None:
        if self._is_complete or self.call is None:
            return
        self._silent = 0
        self._length += len(data)
        if self._length > self._limit:
            self._too_large()
            return
        if self._spooled.takes(self._length, self._shared.max_response):
            before, self._body = self._body, b""
            self._spooled.add(before, data)
            return
        # Small answers need no room, and most are small.
        if self._length > SMALL_ANSWER and self._claim is None:
            self._claim_room()
        if not self._body:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data

    @property
    def _limit(self) -> int:
        return self._shared.max_response if self._spooled.spool is None else MAX_ATTACHMENTS

    def _flushed(self, spool: Spool) -> None:
        """Continue with a spooled content after a part of it was written."""
        call = self.call
        if call is None:
            return
        if self._spooled.spool is spool:  # and not of an earlier answer
            if spool.is_full:
                self.fail(f"the attachments of the response of {call.url} cannot be stored now", status=self._status)
                return
            call.moved(asyncio.get_running_loop().time())
        if not self._spooled.flush(self._flushed) and (self._claim is None or self._claim.is_granted):
            self.transport.resume_reading()

    @property
    def _declared(self) -> int | None:
        declared = self._fields.get("content-length", "")
        return int(declared) if declared.isdigit() else None

    def _claim_room(self) -> None:
        # A chunked answer may have any length, so it claims the most.
        size = self._shared.max_response if self._declared is None else self._declared
        if self._spooled.spool is not None:
            size = min(size, self._spooled.spool.begins_at)
        self._claim = self._shared.room.claim(self._shared.origin, size, self.transport.resume_reading)
        if not self._claim.is_granted:
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._is_complete or self.call is None:
            return
        if self._status < 200:  # 100 Continue, 103 Early Hints: the answer itself is still to come
            self._fields = {}
            self._status = 0
            return
        self._keeps_alive = self._parser.should_keep_alive()
        self._finish()

    # --- the answer -----------------------------------------------------------------------------------------------

    @property
    def _ends_with_connection(self) -> bool:
        """Whether the content has no other end than the connection's (RFC 9112 section 6.3)."""
        return "content-length" not in self._fields and "transfer-encoding" not in self._fields

    def _finish(self) -> None:
        self._is_complete = True
        spool = self._spooled.take()
        self._response = Response(self._status, self._fields, bytes(self._body), self._claim, spool)
        self._claim = None  # the answer has it
        self._body = b""

    def _told(self, data: bytes) -> None:
        """The answer is here, and the parser is done with what came: ``data``, if the answer came in that alone."""
        response = self._response
        assert response is not None
        is_plain = self._keeps_alive and not self._is_surplus
        self._expect()
        if is_plain and data and response.spool is None:
            self._shared.answers.learn(data, response)
        self._tell(response, is_plain=is_plain)

    def _tell(self, response: Response, *, is_plain: bool) -> None:
        """Report the answer, and continue, or close unless another may follow it."""
        call = self.call
        assert call is not None
        self.call = None
        self._shared.has_answered = True
        # What came before the request was written whole was said without having read it.
        if is_plain and self._streaming is None and not self.transport.get_write_buffer_size():
            self._go_on(call, response)
        else:
            self.abort()
        if response.status in REDIRECTS:
            location = response.headers.get("location")
            target = _absolute(call.url, location) if location else ""
            call.fail(
                f"{call.url} responded with {response.status}: it has moved" + (f" to {target}" if target else ""),
                connected=True,
                status=response.status,
                remedy=f"If that is correct, use {target} instead." if target else "Ask its owner for the new URL.",
            )
        else:
            call.end(response)

    def _go_on(self, call: Call, response: Response) -> None:
        """Make the connection free for the next request, or give it to the protocol that its request wants."""
        protocol = call.switch(response) if call.switch is not None else None
        if protocol is None:
            self._free(self)
            return
        self._closed(self)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def _too_large(self) -> None:
        assert self.call is not None
        message = f"{self.call.url} responded with {self._status} and more than {self._limit:,} bytes"
        self.fail(message, status=self._status, is_too_large=True)


def _first_words(error: Any) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _absolute(url: str, location: str) -> str:
    """Return the URL that a Location header names, which may be relative (RFC 9110 section 10.2.2)."""
    try:
        return urljoin(url, location)
    except ValueError:
        return location
