"""The outcome of a request: an answer, or an error. Knows no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.exceptions import HoldfastError
from holdfast.http.exchange import Spool

NEEDS_HTTPS: Final = "this port speaks https: change http to https in the URL"


class TransportError(HoldfastError):
    """A request that brought no usable HTTP answer.

    Args:
        message: What happened, with the URL.
        connected: False when the request surely was not sent; True when the peer may have got and processed it.
        status: The HTTP status code if there was an answer, else 0.
        remedy: What to do about it.
        is_too_large: Whether the answer exceeds a limit of this side, so that it can never be read.
    """

    def __init__(
        self, message: str, *, connected: bool, status: int = 0, remedy: str = "", is_too_large: bool = False
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.connected = connected
        self.status = status
        self.is_too_large = is_too_large


class Streamed(Protocol):
    """The content of a request that is too large for memory. Each iteration reads it from the beginning.

    Attributes:
        size: Its bytes.
    """

    size: int

    def __iter__(self) -> Iterator[bytes]:
        """Return its pieces; called in a thread."""
        ...


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer, whole.

    Attributes:
        status: The status code; never a redirect.
        headers: Lower-case names to values; values of a repeated name are joined with ``", "`` (RFC 9110 section 5.3).
        body: The content, at most the client's ``max_response`` bytes; b"" if it is in ``spool``.
        spool: Has the content if it was too large for memory.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    claim: object = field(default=None, repr=False, compare=False)
    """The room that a large answer takes, which ends with it."""
    spool: Spool | None = None

    @property
    def content_type(self) -> str:
        """The Content-Type header's value with its parameters, "" without that header."""
        return self.headers.get("content-type", "")


AnswerSpooling = Callable[[Mapping[str, str]], Spool | None]
"""Returns where the content of an answer with these headers goes if it is large; None: to memory."""

Outcome = Response | TransportError
"""Result of a request."""

Done = Callable[[Outcome], None]
"""Called once, in the event loop's thread, with the outcome of a request."""

Switch = Callable[[Response], asyncio.Protocol | None]
"""Returns the protocol that has a connection after this answer; None: HTTP."""


class Transport(Protocol):
    """Carrier of requests: :class:`~holdfast.http.client.client.HTTPClient`, or a substitute in tests."""

    def request(self, method: str, url: str, body: bytes | Streamed, headers: Mapping[str, str], done: Done) -> None:
        """Send once; see :meth:`~holdfast.http.client.client.HTTPClient.request`."""
        ...

    async def close(self) -> None:
        """Close its connections. Requests in flight fail."""
        ...


_ASKS_FOR_TLS = (b"this port speaks https", b"sent to HTTPS port", b"SSL-enabled server port", b"requires TLS")
"""What Holdfast, nginx, Apache and Tomcat answer to http at a port for https."""


def first_line(response: Response) -> str:
    """Return the first line of a plain-text answer, which is written for readers; "" for any other answer.

    An answer to http at a port for https says so, whatever its media type.
    """
    if response.status == 400 and any(one in response.body[:2000] for one in _ASKS_FOR_TLS):
        return NEEDS_HTTPS
    if not response.content_type.lower().startswith("text/plain"):
        return ""
    text = response.body[:200].decode("utf-8", "replace").strip()
    return "".join(character for character in text.partition("\n")[0] if character.isprintable())
