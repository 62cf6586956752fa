"""NodeStreams: the messages that this process passes on to the workers of other nodes, in frames.

All messages for one worker go over one connection. Those of one turn of the event loop are one write with one proof,
and so are the answers. A connection is replaced after a while, and when the other side says nothing for too
long: what it was asked may still be answered there, and later requests have a new one. A node of a version without
frames gets each request in HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from holdfast.endpoint.workers.frames.packets import MOST_ANSWERS, FrameReader, FramesError, FrameWriter, decode_answer
from holdfast.http.outcome import Done, Outcome, Response, TransportError

MOST_FRAMED: Final = 128 * 1024
"""Bytes of a request in a frame. A larger one has a request in HTTP."""
RENEWAL: Final = 40.0
"""Seconds after which later requests use a new connection."""
KEEP_ALIVE: Final = 15.0
"""Seconds that an idle connection stays open."""
SILENCE: Final = 4.0
"""Seconds without a byte from the other side, though requests wait, after which later ones use a new connection."""
LOOK: Final = 1.0
"""Seconds between two looks at all connections. Where requests wait, an empty packet asks for a sign of life."""
WITHOUT_FRAMES: Final = 30.0
"""Seconds until a node that does not know frames is asked again: it may have been replaced by a newer version."""
MISDIRECTED: Final = 421
"""Status of an answer by a process that may not act for the worker: it has moved, or is starting."""
NO_FRAMES: Final = MISDIRECTED
"""Status of the answer of a node that does not know frames, or has too many connections: an older node finds no worker
of the name in the request."""
NOT_HERE: Final = 404
"""Status of the answer of a node that does not have the worker."""


class NodeStream(asyncio.Protocol):
    """The requests to one worker, on one connection.

    Args:
        place: The URL of the worker at its node.
        patience: Seconds for an answer.
    """

    def __init__(self, place: str, patience: float) -> None:
        self.place = place
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._begun = self._heard = self._used = self._loop.time()
        self._waiting: list[tuple[bytes, Done]] = []  # until the connection is open
        self._open: dict[int, tuple[Done, float]] = {}  # number -> what gets the answer, and until when
        self._ready: list[tuple[int, bytes]] = []  # not written yet
        self._count = 0
        self.is_over = False

    def use_keys(self, requests: bytes, answers: bytes) -> None:
        self._writer, self._reader = FrameWriter(requests), FrameReader(answers, MOST_ANSWERS)

    def send(self, content: bytes, done: Done) -> None:
        """Send a request. ``done`` gets the answer or the error."""
        if self._transport is None:
            self._waiting.append((content, done))
            return
        self._used = self._loop.time()
        # An idle connection has nothing to say: its silence begins to count now.
        if not self._open:
            self._heard = self._used
        self._count += 1
        self._open[self._count] = (done, self._used + self._patience)
        if not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append((self._count, content))

    def _flush(self) -> None:
        frames, self._ready = self._ready, []
        self._write(frames)

    def _write(self, frames: list[tuple[int, bytes]]) -> None:
        # The connection may have been lost since the frames were added, and uvloop's transport then raises.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._writer.pack(frames))

    def take_waiting(self) -> list[tuple[bytes, Done]]:
        """Return the requests that wait for the connection, to send them in another way."""
        waiting, self._waiting = self._waiting, []
        self.is_over = self._transport is None
        return waiting

    def look(self, now: float) -> bool:
        """Give up what has waited for too long, and ask for a sign of life.

        Returns:
            Whether later requests may use this connection.
        """
        while self._open:
            number, (done, deadline) = next(iter(self._open.items()))
            if deadline > now:
                break
            del self._open[number]
            done(TransportError(f"{self.place} did not respond in time", connected=True))
        is_waiting = bool(self._open or self._waiting)
        if not is_waiting and now - self._used > KEEP_ALIVE:
            self.close()
        elif self._open and now - self._heard >= LOOK:
            self._write([])
        is_silent = is_waiting and now - self._heard > SILENCE
        # Well before the other side stops accepting (ACCEPTING of the session).
        return not (self.is_over or is_silent or now - self._begun > RENEWAL)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing."""
        return not (self._open or self._waiting)

    def fail(self, error: TransportError) -> None:
        """End all its requests with an error."""
        self.is_over = True
        waiting, self._waiting = self._waiting, []
        asked, self._open = self._open, {}
        for done in [*(done for _, done in waiting), *(done for done, _ in asked.values())]:
            done(error)

    def close(self) -> None:
        """Close the connection; what is in progress fails."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()
        self.fail(TransportError(f"the connection to {self.place} was closed", connected=True))

    # --- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begun = self._heard = self._loop.time()
        for content, done in self.take_waiting():
            self.send(content, done)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            answers = [(number, decode_answer(content)) for number, content in self._reader.feed(data)]
        except (FramesError, ValueError) as error:
            assert self._transport is not None
            self._transport.abort()
            self.fail(TransportError(f"{self.place} sent {error}", connected=True))
            return
        for number, answer in answers:
            asked = self._open.pop(number, None)
            if asked is not None:
                asked[0](answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(TransportError(f"the connection to {self.place} was lost: {error or 'it ended'}", connected=True))


class NodeStreams:
    """The connections with frames to all workers at other nodes.

    Args:
        start: Asks a node (its URL) for a connection with frames to a worker (its number), for a stream. The last
            argument gets the answer.
        ask: Sends one request to a worker, in HTTP.
        patience: Seconds for an answer.
    """

    def __init__(
        self,
        start: Callable[[str, int, NodeStream, Done], None],
        ask: Callable[[str, bytes, Done], None],
        patience: float,
    ) -> None:
        self._start, self._ask, self._patience = start, ask, patience
        self._streams: dict[str, NodeStream] = {}
        self._replaced: set[NodeStream] = set()
        self._without: dict[str, float] = {}  # URL of a node without frames -> until when
        self._timer: asyncio.TimerHandle | None = None

    def send(self, url: str, number: int, content: bytes, done: Done) -> None:
        """Send a request to a worker of a node. ``done`` gets the answer or the error."""
        place = f"{url}/{number}"
        stream = self._streams.get(place)
        if stream is not None and not stream.is_over:
            stream.send(content, done)
            return
        until = self._without.get(url)
        if until is not None and asyncio.get_running_loop().time() < until:
            self._ask(place, content, done)
            return
        stream = self._streams[place] = NodeStream(place, self._patience)
        stream.send(content, done)  # first, because the connection may be refused before this returns
        self._open(url, number, stream)

    def _open(self, url: str, number: int, stream: NodeStream) -> None:
        def told(outcome: Outcome) -> None:
            if isinstance(outcome, TransportError):
                stream.fail(outcome)
            elif outcome.status == NO_FRAMES:
                self._without[url] = asyncio.get_running_loop().time() + WITHOUT_FRAMES
                for content, done in stream.take_waiting():
                    self._ask(stream.place, content, done)
            elif outcome.status == NOT_HERE:
                for _, done in stream.take_waiting():
                    done(Response(MISDIRECTED, {}, b""))
            elif not stream.is_open:
                stream.fail(TransportError(f"{stream.place} answered {outcome.status}", connected=True))

        self._start(url, number, stream, told)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for place, stream in list(self._streams.items()):
            if not stream.look(loop.time()):
                del self._streams[place]
                self._replaced.add(stream)
        for stream in list(self._replaced):
            stream.look(loop.time())
            if stream.is_idle:
                stream.close()
                self._replaced.discard(stream)
        self._without = {url: until for url, until in self._without.items() if until > loop.time()}
        any_left = self._streams or self._replaced
        self._timer = loop.call_later(LOOK, self._look) if any_left else None

    def close(self) -> None:
        """Close all connections; what is in progress fails."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in (*self._streams.values(), *self._replaced):
            stream.close()
