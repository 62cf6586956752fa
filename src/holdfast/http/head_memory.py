"""Heads of HTTP messages seen before. Peers repeat theirs byte for byte, and finding one is cheap.

Owns which heads may be remembered, and their bounds. Knows no connection; ``connection`` of the client and the server
says when a message begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from holdfast.http.exchange import Request
from holdfast.http.outcome import Response

MAX_HEAD_BYTES: Final = 2048

Head = TypeVar("Head")
"""Result of parsing a head, which is the same for equal bytes at the start of any message."""


@dataclass(frozen=True, slots=True)
class KnownHead:
    method: str
    target: str
    headers: Mapping[bytes, bytes]
    length: int


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    status: int
    headers: Mapping[str, str]
    length: int


class HeadMemory(Generic[Head]):
    """Heads of messages that came whole with their content, of a length that the head declares.

    Attributes:
        found: By the head's bytes, the empty line included.
    """

    most: int
    """Heads that are remembered at a time."""

    def __init__(self) -> None:
        self.found: dict[bytes, Head] = {}

    def remember(self, data: bytes, length: int, declared: str | None, head: Head) -> None:
        """Remember a head if it states plainly where its message ends.

        Args:
            data: The bytes fed to a parser that was between two messages. They are one message.
            length: The bytes of its content.
            declared: Its Content-Length.
            head: What the parser made of it.
        """
        end = data.find(b"\r\n\r\n") + 4
        # Only a head that gives the length in plain digits, so that equal bytes always mean an equal message.
        if end > MAX_HEAD_BYTES or len(data) - end != length or declared != str(length):
            return
        # All at once: a peer that varies its heads must not cost more than this.
        if len(self.found) >= self.most:
            self.found.clear()
        self.found[data[:end]] = head


class KnownHeads(HeadMemory[KnownHead]):
    most = 256

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of the one request that the parser made of ``data``; the connection continues after it."""
        headers, length = request.headers, len(request.body)
        # These change what follows the head, so the parser must see them.
        if b"expect" in headers or b"transfer-encoding" in headers or b"upgrade" in headers:
            return
        declared = headers.get(b"content-length", b"0").decode("latin-1")
        self.remember(data, length, declared, KnownHead(request.method, request.target, headers, length))


class KnownAnswers(HeadMemory[KnownAnswer]):
    most = 64

    def learn(self, data: bytes, response: Response) -> None:
        """Remember the head of the one answer that the parser made of ``data``; the connection continues after it."""
        headers, length = response.headers, len(response.body)
        if "transfer-encoding" not in headers and "upgrade" not in headers:
            known = KnownAnswer(response.status, headers, length)
            self.remember(data, length, headers.get("content-length"), known)
