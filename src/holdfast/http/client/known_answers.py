"""Heads of answers seen before: a peer repeats its own octet for octet, and finding one costs a fraction of parsing it.

Owns what may be remembered, and its bounds. Knows no connection; ``client_connection`` says when an answer begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.http.outcome import Response

MAX_HEADS: Final = 64
MAX_HEAD_BYTES: Final = 2048


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """What the parser made of a head; the same bytes mean the same wherever an answer may begin."""

    status: int
    headers: Mapping[str, str]
    length: int


class KnownAnswers:
    """Heads of answers that arrived whole, with a declared length, on connections that continue.

    Attributes:
        found: By the head's bytes, the empty line included.
    """

    def __init__(self) -> None:
        self.found: dict[bytes, KnownAnswer] = {}

    def learn(self, data: bytes, response: Response) -> None:
        """Remember a head if it states plainly where its answer ends.

        Args:
            data: The bytes fed to a parser that was before an answer.
            response: The one answer that the parser made of it; the connection continues after it.
        """
        end = data.find(b"\r\n\r\n") + 4
        length = len(data) - end
        declared = response.headers.get("content-length")
        if end > MAX_HEAD_BYTES or length != len(response.body) or declared != str(length):
            return
        if "transfer-encoding" in response.headers or "upgrade" in response.headers:
            return
        if len(self.found) >= MAX_HEADS:
            self.found.clear()
        self.found[data[:end]] = KnownAnswer(response.status, response.headers, length)
