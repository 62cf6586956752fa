"""The HTTP server's own answers: which requests it does not pass to a handler, with what status and text.

Values only; ``server_connection`` decides when each is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.http.outcome import NEEDS_HTTPS
from holdfast.http.retry_after import retry_after


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server's own answer to a request that it passes to no handler; the connection ends with it."""

    status: int
    reason: str
    text: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"text/plain"
    retry_after: int = 0

    def all_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return its headers, with a Retry-After of about its seconds unless they are 0."""
        return (*self.headers, *retry_after(self.retry_after))


Refusing = Callable[[Refusal, Mapping[bytes, bytes], str | None], Refusal]
"""``refusing(refusal, headers, peer)`` returns the answer to send instead, once the headers were read.

For an endpoint with peers that expect answers of another kind.
"""


CLIENT_HELLO: Final = b"\x16\x03"
"""First octets of a TLS client."""

TOO_MANY_CONNECTIONS: Final = Refusal(503, "connections", "too many connections, retry later", retry_after=1)
OUT_OF_ROOM: Final = Refusal(503, "memory", "too much data is being received, retry later", retry_after=1)
NO_SPACE: Final = Refusal(503, "space", "the disk or database has no room for the content, retry later", retry_after=10)
TOO_MANY_PIPELINED: Final = Refusal(503, "pipelined", "too many requests sent ahead of their responses", retry_after=1)
MALFORMED: Final = Refusal(400, "malformed", "not an HTTP/1.1 request")
NEEDS_TLS: Final = Refusal(400, "tls", NEEDS_HTTPS)
NO_TLS: Final = Refusal(400, "malformed", "this port speaks http: change https to http in the URL")
NO_HOST: Final = Refusal(400, "malformed", "exactly one Host header is needed")
HEADER_TOO_LARGE: Final = Refusal(431, "header_size", "the request line and headers are too large")
BODY_TOO_LARGE: Final = Refusal(413, "body_size", "the content is too large")
UNKNOWN_CODING: Final = Refusal(
    415, "encoding", "content encodings are not supported", ((b"Accept-Encoding", b"identity"),)
)
UNKNOWN_TRANSFER: Final = Refusal(501, "encoding", "no transfer coding except chunked is supported")
UNKNOWN_EXPECTATION: Final = Refusal(417, "expectation", "no expectation except 100-continue is supported")
NO_TUNNELS: Final = Refusal(405, "method", "this server is not a proxy")
UNKNOWN_VERSION: Final = Refusal(505, "version", "HTTP/1.1 and HTTP/1.0 are supported")
HEADER_TIMEOUT: Final = Refusal(408, "header", "the headers took too long")
BODY_TIMEOUT: Final = Refusal(408, "body", "the content took too long")
