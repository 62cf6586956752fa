"""A handler's view of HTTP: one request and its one answer, whichever server serves it.

Owns the vocabulary shared by Holdfast's own server (``server``) and the ASGI adapter (``asgi``): Request,
Exchange, Handler and the limits. Knows nothing of sockets or parsers.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.exceptions import ConfigurationError
from holdfast.http.tls import PeerCertificate
from holdfast.settings import Bytes, Seconds, check_settings

Headers = Sequence[tuple[bytes, bytes]]
"""Headers of an answer: names and values."""


class Spool(Protocol):
    """Takes the content of a message that is too large for memory, piece by piece.

    Attributes:
        begins_at: Bytes of a content from which it is spooled. As many of it are then in memory.
        drops_up_to: Bytes of the largest content that is received although it is beyond the listener's limits. The part
            beyond them is dropped. 0: such a content is refused.
    """

    begins_at: int
    drops_up_to: int

    def add(self, data: bytes) -> None:
        """Add a piece, in the event loop's thread."""
        ...

    @property
    def wants_flush(self) -> bool:
        """Whether :meth:`flush` should follow before more is added."""
        ...

    def flush(self) -> None:
        """Write what was added, in another thread."""
        ...

    def drop(self) -> None:
        """Keep no more than the headers need: the content is beyond the listener's limits."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether it could not be written: for now, there is no room for the content."""
        ...


Spooling = Callable[[str, Mapping[bytes, bytes]], Spool | None]
"""Returns where the content of a request with that target and these headers goes if it is large; None: to memory."""


@dataclass(slots=True)
class Request:
    """One HTTP request, whole.

    Attributes:
        method: Upper-case method name.
        target: Path and query as they came, still percent-encoded; below a mount point, relative to it.
        headers: Lower-case names to values; values of a repeated name are joined with ``b", "`` (RFC 9110 section 5.3).
            Not to be changed: requests with the same head share them.
        body: The content, its transfer coding removed; b"" if it is in ``spool``.
        peer: ``"address:port"`` of the other end, None if unknown.
        secure: Whether it came over TLS.
        certificate: What the other end showed to prove who it is, None if it was not asked to.
        mount: The path that the target is relative to, as ASGI's ``root_path``.
        user: The user name that the content proved, "" for none. The server leaves it empty; who checks the proof
            sets it.
        session: The security session that the content proved to belong to, "" for none; set like the user.
        spool: Has the content if it was too large for memory.
    """

    method: str
    target: str
    headers: Mapping[bytes, bytes]
    body: bytes
    peer: str | None
    secure: bool
    certificate: PeerCertificate | None = None
    mount: str = ""
    user: str = ""
    session: str = ""
    spool: Spool | None = None

    @property
    def path(self) -> str:
        """The path that the peer requested here, still percent-encoded, with that of the mount point."""
        path = self.target.partition("?")[0]
        return f"{self.mount}{path if path.startswith('/') else '/'}"


class Exchange(ABC):
    """One request waiting for its answer, which is given exactly once, now or later, from the event loop's thread.

    Either ``respond`` once, or ``start``, any number of ``write`` and ``finish``. When the peer has gone all of them do
    nothing, so a handler need not check first.

    Attributes:
        closed: The peer has gone; no answer can reach it.
        on_close: Called once, without arguments, if the peer goes before the answer was given whole.
        notes: The handler's own data, kept until the exchange is answered.
        is_passed_on: Another process of the same server received the request first, and passed it on.
        is_relayed: That process waits for the answer, and asks another one instead if the answer is 421.
        is_package: The handler's note that the content of the request has several parts.
    """

    request: Request
    closed: bool = False
    is_passed_on: bool = False
    is_relayed: bool = False
    is_package: bool = False
    on_close: Callable[[], None] | None = None
    notes: Any = None

    def give_away(self, give: Callable[[socket.socket, Request], bool]) -> bool:
        """Transfer this exchange and its connection to another process.

        Args:
            give: Passes on a copy of the connection's socket, closed afterwards, and the request; returns whether it
                could.

        Returns:
            Whether the other process has it; then do not answer here. A connection that uses TLS, has more requests in
            progress, or was given away once, cannot be given away.
        """
        return False

    def switch(self, protocol: asyncio.Protocol) -> bool:
        """Let another protocol serve the connection, after this exchange was answered whole.

        Returns:
            Whether it does. Otherwise, the connection ends, or continues with HTTP.
        """
        return False

    @property
    def wants_content(self) -> bool:
        """Whether what is written reaches the peer: its connection is open, and it did not ask by HEAD."""
        return not self.closed and self.request.method != "HEAD"

    @abstractmethod
    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()) -> None:
        """Answer whole.

        Args:
            status: The HTTP status code, 200 to 599.
            body: The content; its length is declared, even when it is empty.
            content_type: The Content-Type header's value, None for none.
            headers: Further headers, names and values; framing headers are not among them.

        Raises:
            RuntimeError: It was answered before.
            ValueError: A header holds a line break.
        """

    @abstractmethod
    def start(self, status: int, content_type: bytes | None = None, headers: Headers = ()) -> None:
        """Begin an answer of unknown length; arguments and errors as for ``respond``."""

    @abstractmethod
    def write(self, data: bytes) -> bool:
        """Send a piece of a started answer.

        Returns:
            Whether there is room for more; when False, ``await drain()`` before writing again.

        Raises:
            RuntimeError: The answer was not started, or is finished.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Wait until there is room for more to write, or the peer has gone."""

    @abstractmethod
    def finish(self) -> None:
        """End a started answer.

        Raises:
            RuntimeError: The answer was not started, or is finished.
        """


Handler = Callable[[Exchange], None]
"""Takes an exchange and returns at once; the answer may be given before it returns or later."""


@dataclass(frozen=True, slots=True)
class HTTPLimits:
    """What one listener lets its peers use. Times are seconds, sizes bytes.

    Attributes:
        max_body: Largest request content; more is refused before it is read: a SOAP message with a fault, anything
            else with 413.
        max_attachments: Largest content of a SOAP message with attachments, if that is more than ``max_body``. Beyond
            1 MB it goes to the store while it arrives, and ``body_timeout`` applies to each megabyte.
            If a reply to this endpoint is larger, its content is dropped, and its requester receives a fault.
        max_header_bytes: Largest request line and header section; more is refused with 431.
        max_buffered: All request contents held at a time, over all connections, until they are answered, and header
            sections that are not complete; more is refused with 503. Contents above 64 KB from one address may be half
            of that, or a single one.
        max_unsent: Total bytes written that peers have not read yet, beyond 64 KB of each; above it, the server closes
            the connection that has waited longest. A reply is kept, and its requester asks again.
        max_connections: Connections at a time; more are refused with 503.
        max_pipelined: Requests one peer may send ahead of their answers.
        header_timeout: From a request's first byte (or the connection's opening) to the end of its headers.
        body_timeout: From the end of the headers to the end of the content.
        keep_alive_timeout: How long an idle connection stays open.
        write_timeout: How long a peer may read nothing of an answer.
        response_timeout: How long a handler may take to answer, or to begin to; None for no limit.
        linger_timeout: How long the server continues to read, and drop, bytes after a refusal, so that the peer can
            read the reason.

    Raises:
        ConfigurationError: for an invalid number, or two that contradict each other.
    """

    max_body: Bytes = 16 * 1024 * 1024
    max_attachments: Bytes = 2 * 1024 * 1024 * 1024
    max_header_bytes: Bytes = 64 * 1024
    max_buffered: Bytes = 256 * 1024 * 1024
    max_unsent: Bytes = 64 * 1024 * 1024
    max_connections: int = 4096
    max_pipelined: int = 16
    header_timeout: Seconds = 15.0
    body_timeout: Seconds = 60.0
    keep_alive_timeout: Seconds = 75.0
    write_timeout: Seconds = 30.0
    response_timeout: Seconds | None = None
    linger_timeout: Seconds = 2.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_body > self.max_buffered:
            raise ConfigurationError(
                f"HTTPLimits.max_body is {self.max_body:,}, but max_buffered is only {self.max_buffered:,}",
                remedy="A request of max_body bytes could never be received: raise max_buffered as well.",
            )


def check_headers(content_type: bytes | None, headers: Headers) -> None:
    """Refuse header names and values that would end their line early (RFC 9110 section 5.5).

    Raises:
        ValueError: One of them holds a carriage return, a line feed or a NUL.
    """
    for value in (content_type or b"", *(part for header in headers for part in header)):
        # A line break would begin another header, or another answer.
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise ValueError(f"a header must not contain a line break: {value!r}")
