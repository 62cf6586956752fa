"""The outcome of a request: an answer, or an error. Knows no socket."""

from __future__ import annotations

import asyncio
import codecs
import html
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


def one_outcome() -> tuple[asyncio.Future[Outcome], Done]:
    """Return a future for the outcome of one request, and the call that sets it, also after its waiter has gone."""
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    return outcome, lambda told: None if outcome.done() else outcome.set_result(told)


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


_MOST_READ = 16_384
"""Bytes of a page that are read. Styles may come before its text."""
_MOST_TOLD = 200
"""Characters of an answer that an error or a log quotes."""
_INVISIBLE = ("script", "style", "!--")


def words_of(response: Response) -> str:
    """Return what an answer that is not SOAP says to a reader, on one line: "" if it is not known to be for readers.

    It is the first line of a plain text, or the beginning of an HTML page's text. An answer to http at a port for https
    says so, whatever its media type.
    """
    if response.status == 400 and any(one in response.body[:2000] for one in _ASKS_FOR_TLS):
        return NEEDS_HTTPS
    media, start = response.content_type.lower(), response.body[:_MOST_READ].lstrip()
    if media.startswith("text/plain"):
        words = start[:_MOST_TOLD].decode("utf-8", "replace").partition("\n")[0]
    elif "html" in media or start[:14].lower().startswith((b"<!doctype html", b"<html")):
        # A page that repeats the request, such as a debugger's, must not bring a password into a log: see _visible.
        words = html.unescape(_visible(_decoded(start))).partition("<")[0]
    else:
        return ""
    return "".join(filter(str.isprintable, " ".join(words.split())))[:_MOST_TOLD].strip()


def _decoded(page: bytes) -> str:
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(page)  # its last character may be cut
    except UnicodeDecodeError:
        return page.decode("cp1252", "replace")


def _visible(page: str) -> str:
    """Return the text of an HTML page, with its character references, up to the first element of other XML."""
    words, hidden = list[str](), ""
    for part in page.split("<"):
        tag, _, text = part.partition(">")
        if not hidden and ":" in "".join(tag.split()[:1]):
            break
        hidden = hidden or next((one for one in _INVISIBLE if tag.lower().startswith(one)), "")
        if hidden == "!--":
            _, end, text = part.partition("-->")
        else:
            end = f"/{hidden}" if tag.lower().startswith(f"/{hidden}") else ""
        if not hidden or end:
            hidden = ""
            words.append(text)
    return " ".join(words)
