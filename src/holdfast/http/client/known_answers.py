"""Heads of answers seen before, in a :class:`HeadMemory`.

Owns which answers may be remembered. Knows no connection; ``connection`` says when an answer begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.http.head_memory import HeadMemory
from holdfast.http.outcome import Response

MAX_HEADS: Final = 64


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Result of parsing a head, which is the same for equal bytes at the start of any answer."""

    status: int
    headers: Mapping[str, str]
    length: int


class KnownAnswers(HeadMemory[KnownAnswer]):
    """Heads of answers that arrived whole, with a declared length, on connections that continue."""

    def __init__(self) -> None:
        super().__init__(MAX_HEADS)

    def learn(self, data: bytes, response: Response) -> None:
        """Remember a head if it states plainly where its answer ends.

        Args:
            data: The bytes fed to a parser that was before an answer.
            response: The one answer that the parser made of it; the connection continues after it.
        """
        headers, length = response.headers, len(response.body)
        if "transfer-encoding" in headers or "upgrade" in headers:
            return
        known = KnownAnswer(response.status, headers, length)
        self.remember(data, length, headers.get("content-length"), known)
