"""What all connections of one server share: its limits, what they hold, and the beginnings of their answers.

Knows no listener and no parser: of a connection, only that it can be closed.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from holdfast.http.exchange import Exchange, Handler, HTTPLimits, Spooling, check_headers
from holdfast.http.head_memory import KnownHeads
from holdfast.http.server.refusals import Refusing

HEAD_CACHE: Final = 256


class Peer(ABC):
    """One connection of a server, perhaps still in its TLS handshake."""

    __slots__ = ()

    @property
    @abstractmethod
    def idle_since(self) -> float | None:
        """Since when it has had nothing to do; None: it has something to do."""

    @abstractmethod
    def make_room(self) -> None:
        """Close, to make room for another connection."""

    @abstractmethod
    def close_if_idle(self) -> None:
        """Close unless an exchange is in progress; then close after it."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""

    @abstractmethod
    def sweep(self, now: float, before: float) -> None:
        """Close if it has taken too long for anything. A note of the time may be as old as from ``before``."""


@dataclass(slots=True)
class HTTPCounters:
    """What a server has done since it started; only ever grows.

    Attributes:
        connections: Connections taken.
        requests: Whole requests handed to the handler.
        refused: Refusals by reason: ``connections``, ``malformed``, ``header_size``, ``body_size``, ``memory``,
            ``space``, ``encoding``, ``expectation``, ``method``, ``version``, ``pipelined``, ``tls`` (no
            handshake, or a failed one).
        timeouts: Connections closed by reason: ``header``, ``body``, ``keep_alive``, ``write``, ``response``,
            ``room`` (idle ones, when there were too many), ``unsent`` (those that read too slowly, when too much was
            unread).
        failures: Handlers that raised.
        given: Connections given to another process.
    """

    connections: int = 0
    requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    timeouts: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    given: int = 0

    @property
    def rejected(self) -> int:
        """Total number of refusals."""
        return sum(self.refused.values())


class OpenConnections:
    """The connections of one server, and what they share."""

    def __init__(self) -> None:
        self.limits = HTTPLimits()
        self.counters = HTTPCounters()
        self.secure = False
        self.closing = False
        self.now = 0.0  # the loop's time at the last sweep
        self.buffered = 0  # bytes of request contents held by all connections
        self.large: Counter[str] = Counter()  # of these, contents above 64 KB, by address
        self._unsent: dict[Peer, int] = {}  # what peers have not read, the one first that waits longest
        self._unsent_bytes = 0
        self.handler: Handler = _no_handler
        self.connections: set[Peer] = set()
        self.heads: dict[tuple[int, bytes | None], bytes] = {}  # what `head` made since the Date changed
        self.known_heads = KnownHeads()
        self.refusing: Refusing | None = None
        """Answers, in an endpoint's format, requests with too large or encoded content, or with TLS where the port
        uses plain HTTP or the reverse; None: as plain text."""
        self.spooling: Spooling | None = None
        """Says where the large content of a request goes; None: every content is kept in memory."""
        self.on_failed_handshake: Callable[[str, str | None], None] | None = None
        """Called with the reason and the peer when a TLS handshake fails that the client can be set right about."""
        self.give: Callable[[socket.socket], bool] | None = None
        """Gives a connection that brought nothing yet to another process that has fewer, closing nothing; whether it
        did. None: there is no other."""
        self._date = b""
        self._emptied: asyncio.Event = asyncio.Event()

    def unsent(self, connection: Peer, size: int) -> None:
        """The connection's peer has not read so many bytes; if that is too much with those of others, those that have
        waited longest are closed. One answer may be larger than all may have."""
        self._unsent[connection] = size
        self._unsent_bytes += size
        while self._unsent_bytes > self.limits.max_unsent and len(self._unsent) > 1:
            slowest = next(iter(self._unsent))
            self.sent(slowest)
            self.counters.timeouts["unsent"] += 1
            slowest.abort()

    def sent(self, connection: Peer) -> None:
        """Record that the connection's peer has read its data, or has disconnected."""
        self._unsent_bytes -= self._unsent.pop(connection, 0)

    def remove(self, connection: Peer) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    def make_room(self) -> bool:
        """Close some of the connections that have had nothing to do for longest, when a new one would be one too many.

        Returns:
            Whether there were any.
        """
        idle = [(since, id(one), one) for one in self.connections if (since := one.idle_since) is not None]
        # Some at a time, so that a wave of connections does not look through all of them for each.
        idle = heapq.nsmallest(1 + self.limits.max_connections // 64, idle)
        for _, _, connection in idle:
            self.connections.discard(connection)
            connection.make_room()
        return bool(idle)

    def sweep(self, now: float, interval: float) -> None:
        """Close the connections that are too slow, and renew the Date header.

        Args:
            now: The loop's time.
            interval: Seconds between two calls.
        """
        self.now = now
        date = formatdate(usegmt=True).encode()
        if date != self._date:
            self._date = date
            self.heads.clear()
        # A note of `now` may be one sweep old when it is made; subtracting that much never closes anyone early.
        for connection in list(self.connections):
            connection.sweep(now, now - interval)

    def head(self, status: int, content_type: bytes | None) -> bytes:
        """Return the status line and the common headers of answers of this kind."""
        check_headers(content_type, ())
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        head = f"HTTP/1.1 {status} {phrase}\r\nServer: holdfast\r\nDate: ".encode() + self._date + b"\r\n"
        if content_type is not None:
            head += b"Content-Type: " + content_type + b"\r\n"
        # Handlers choose status and type, but a relayed answer's type is a peer's.
        if len(self.heads) >= HEAD_CACHE:
            self.heads.clear()
        self.heads[(status, content_type)] = head
        return head


def _no_handler(exchange: Exchange) -> None:
    raise RuntimeError("the server has not been started")
