"""HeadMemory: heads of HTTP messages seen before. Peers repeat theirs byte for byte, and finding one is cheap.

Owns what may be remembered, and its bounds. Knows no connection.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

MAX_HEAD_BYTES: Final = 2048

Head = TypeVar("Head")
"""Result of parsing a head, which is the same for equal bytes at the start of any message."""


class HeadMemory(Generic[Head]):
    """Heads of messages that came whole with their content, of a length that the head declares.

    Args:
        most: Heads that are remembered at a time.

    Attributes:
        found: By the head's bytes, the empty line included.
    """

    def __init__(self, most: int) -> None:
        self._most = most
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
        if end > MAX_HEAD_BYTES or len(data) - end != length or declared != str(length):
            return
        if len(self.found) >= self._most:
            self.found.clear()
        self.found[data[:end]] = head
