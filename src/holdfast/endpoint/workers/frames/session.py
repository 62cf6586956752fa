"""NodeSession: the messages that another node passes on over one connection, in frames.

A session accepts packets for a minute, by the clock of this process. So packets that an attacker held back, or that a
node sends after a long pause, do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

from holdfast.endpoint.logs import LineLimit, log
from holdfast.endpoint.workers.frames.packets import MOST_REQUESTS, FrameReader, FramesError, FrameWriter, answer_head
from holdfast.http.direct import WholeExchange
from holdfast.http.exchange import Handler, Request

logger = logging.getLogger(__name__)

ACCEPTING: Final = 60.0
"""Seconds after its beginning for which it accepts packets."""
ANSWERING: Final = 100.0
"""Seconds more for which it sends answers: longer than the other side waits for one."""
MOST_BYTES: Final = 512 * 1024
"""Bytes of requests without an answer, above which it stops reading."""
MOST_OPEN: Final = 4096
"""Number of requests without an answer, above which it stops reading."""


class NodeSession(asyncio.Protocol):
    """One connection of another node.

    Args:
        keys: Of the requests, and of the answers.
        peer: The address of the other node, for the log.
        take: Answers a message; the content of the request is the message as a node encodes it.
        over: Called when the connection has ended.
        refusals: Bounds the lines of the log about refused packets, of all connections together.
    """

    def __init__(
        self,
        keys: tuple[bytes, bytes],
        peer: str | None,
        take: Handler,
        over: Callable[[NodeSession], None],
        refusals: LineLimit,
    ) -> None:
        self._reader, self._writer = FrameReader(keys[0], MOST_REQUESTS), FrameWriter(keys[1])
        self._peer, self._take, self._over = peer, take, over
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + ACCEPTING
        self._open: dict[int, FramedExchange] = {}
        self._bytes = 0
        self._ready: list[tuple[int, bytes]] = []
        self._is_due = self._is_paused = self._is_ending = False
        self._is_full = False

    def answer(self, number: int, size: int, content: bytes) -> None:
        """Send an answer, with the others of this turn of the event loop."""
        if self._open.pop(number, None) is None:
            return  # the connection has ended
        self._bytes -= size
        self._ready.append((number, content))
        if not self._is_due:
            self._be_due()
        if self._is_paused:
            self._see_to_reading()

    def end(self) -> None:
        """Accept no further packets, and close after the last answer."""
        self._is_ending = True
        self._see_to_reading()
        self._close_if_over()

    def abort(self) -> None:
        self._transport.abort()

    def _be_due(self) -> None:
        self._is_due = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        frames, self._ready = self._ready, []
        if not self._transport.is_closing():
            self._transport.write(self._writer.pack(frames))
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._is_ending and not self._open and not self._ready:
            self._transport.close()

    def _see_to_reading(self) -> None:
        """Stop reading while there is no room, and continue."""
        wants = not (self._is_full or self._is_ending or self._bytes > MOST_BYTES or len(self._open) > MOST_OPEN)
        if wants == self._is_paused and not self._transport.is_closing():
            self._is_paused = not wants
            (self._transport.resume_reading if wants else self._transport.pause_reading)()

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(ACCEPTING + ANSWERING, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._is_ending or self._loop.time() > self._until:
            self._transport.abort()
            return
        try:
            frames = self._reader.feed(data)
        except FramesError as error:
            refuse_packet(self._refusals, self._peer, str(error))
            self._transport.abort()
            return
        if not frames and not self._is_due:
            self._be_due()  # an empty packet: the other side asks for a sign of life
        for number, content in frames:
            exchange = FramedExchange(self, number, content, self._peer)
            self._open[number] = exchange
            self._bytes += exchange.size
            try:
                self._take(exchange)
            except Exception:
                logger.exception("the handler of a message from the node at %s failed", self._peer)
                exchange.respond(500)
        self._see_to_reading()

    def pause_writing(self) -> None:
        self._is_full = True
        self._see_to_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self._see_to_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._over(self)
        lost, self._open = self._open, {}
        for exchange in lost.values():
            exchange.lose()


def refuse_packet(refusals: LineLimit, peer: str | None, reason: str) -> None:
    if (left_out := refusals.admit()) is not None:
        remedy = f"Find out what changes or repeats the bytes between the nodes: it sent {reason}"
        log.warning("cluster.request_refused", peer=peer, remedy=remedy, left_out=left_out)


class FramedExchange(WholeExchange):
    """One request of a session.

    Args:
        peer: The address of the other node.
    """

    def __init__(self, session: NodeSession, number: int, content: bytes, peer: str | None) -> None:
        super().__init__(Request("POST", "/message", {}, content, peer, False))
        self.size = len(content)
        self._session = session
        self._number = number

    def answer(self, status: int, body: bytes, content_type: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the answer to the other node."""
        self._session.answer(self._number, self.size, answer_head(status, content_type, tuple(headers)) + body)
