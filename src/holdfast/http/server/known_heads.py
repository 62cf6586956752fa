"""Request heads seen before: peers repeat theirs octet for octet, and finding one costs a fraction of parsing it.

Owns what may be remembered, and its bounds. Knows no connection; ``server_connection`` says when a request begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.http.exchange import Request

MAX_HEADS: Final = 256
MAX_HEAD_BYTES: Final = 2048


@dataclass(frozen=True, slots=True)
class KnownHead:
    """What the parser made of a head; the same bytes mean the same wherever a request may begin."""

    method: str
    target: str
    headers: Mapping[bytes, bytes]
    length: int


class KnownHeads:
    """Heads of requests that came whole with their content, of a length that the head declares.

    Attributes:
        found: By the head's bytes, the empty line included.
    """

    def __init__(self) -> None:
        self.found: dict[bytes, KnownHead] = {}

    def learn(self, data: bytes, request: Request) -> None:
        """Remember a head if it states plainly where its request ends.

        Args:
            data: The bytes fed to a parser that was between two requests.
            request: The one request that the parser made of it; the connection continues after it.
        """
        headers = request.headers
        end = data.find(b"\r\n\r\n") + 4
        length = len(data) - end
        declared = headers.get(b"content-length", b"0")
        if end > MAX_HEAD_BYTES or length != len(request.body) or declared != b"%d" % length:
            return
        if b"expect" in headers or b"transfer-encoding" in headers or b"upgrade" in headers:
            return
        if len(self.found) >= MAX_HEADS:
            self.found.clear()
        self.found[data[:end]] = KnownHead(request.method, request.target, headers, length)
