"""Request heads seen before, in a :class:`HeadMemory`.

Owns which requests may be remembered. Knows no connection; ``connection`` says when a request begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.http.exchange import Request
from holdfast.http.head_memory import HeadMemory

MAX_HEADS: Final = 256


@dataclass(frozen=True, slots=True)
class KnownHead:
    """Result of parsing a head, which is the same for equal bytes at the start of any request."""

    method: str
    target: str
    headers: Mapping[bytes, bytes]
    length: int


class KnownHeads(HeadMemory[KnownHead]):
    """Heads of requests that came whole with their content, of a length that the head declares."""

    def __init__(self) -> None:
        super().__init__(MAX_HEADS)

    def learn(self, data: bytes, request: Request) -> None:
        """Remember a head if it states plainly where its request ends.

        Args:
            data: The bytes fed to a parser that was between two requests.
            request: The one request that the parser made of it; the connection continues after it.
        """
        headers, length = request.headers, len(request.body)
        if b"expect" in headers or b"transfer-encoding" in headers or b"upgrade" in headers:
            return
        declared = headers.get(b"content-length", b"0").decode("latin-1")
        self.remember(data, length, declared, KnownHead(request.method, request.target, headers, length))
