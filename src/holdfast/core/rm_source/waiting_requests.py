"""Requests: an index by MessageID of the requests of every outbound Sequence that wait for a reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.rm_source.source import RMSource


class Requests:
    """MessageID -> the Sequences, and the numbers in them, of the requests that have it.

    There may be several: a record may be forwarded to two addresses, and an application may use a MessageID twice.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[RMSource, int]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, message_id: str, source: RMSource, number: int) -> None:
        """Add message ``number`` of a Sequence, a request that may have been transmitted."""
        self._found.setdefault(message_id, []).append((source, number))

    def remove(self, message_id: str, source: RMSource, number: int) -> None:
        """Remove a request that no longer waits for its reply."""
        found = self._found[message_id]
        found.remove((source, number))
        if not found:
            del self._found[message_id]

    def found_before(self, message_id: str, source: RMSource, number: int) -> None:
        """Add message ``number``, a request without a reply that an earlier run may have transmitted."""
        source.requests_before[number] = message_id
        self.add(message_id, source, number)

    def named(self, source: RMSource, ranges: tuple[tuple[int, int], ...]) -> None:
        """Mark the requests in ``ranges`` as transmitted, before the source processes their acknowledgement.

        A request is acknowledged only with its reply.
        """
        before = source.requests_before
        for lower, upper in ranges if before else ():
            first, last = max(lower, source.next_number), min(upper, source.sent_before)
            if last - first < len(before):
                found = [number for number in range(first, last + 1) if number in before]
            else:
                found = [number for number in before if first <= number <= last]
            for number in found:
                source.unreplied[number] = before.pop(number)

    def forget(self, source: RMSource) -> None:
        """Remove every request of a Sequence that was abandoned: the source no longer expects replies to it."""
        for waiting in (source.unreplied, source.requests_before):
            for number, message_id in waiting.items():
                self.remove(message_id, source, number)
            waiting.clear()

    def find(self, message_id: str, may_be: Callable[[RMSource], bool]) -> tuple[RMSource, int] | None:
        """Return the first request with that MessageID and no reply.

        ``may_be``: whether the request may be in the given Sequence.
        """
        for source, number in self._found.get(message_id, ()):
            if number not in source.replying and may_be(source):
                return source, number
        return None
