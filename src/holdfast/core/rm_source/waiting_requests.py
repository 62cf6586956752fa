"""Requests: those of every outbound Sequence that wait for a reply, by MessageID, so that a reply finds the one that it
answers without looking at each."""

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
        """Message ``number`` of a Sequence is a request that may have been transmitted."""
        self._found.setdefault(message_id, []).append((source, number))

    def remove(self, message_id: str, source: RMSource, number: int) -> None:
        """It waits for its reply no more."""
        found = self._found[message_id]
        found.remove((source, number))
        if not found:
            del self._found[message_id]

    def found_before(self, message_id: str, source: RMSource, number: int) -> None:
        """Message ``number``, which an earlier run may have transmitted, is a request without a reply."""
        source.requests_before[number] = message_id
        self.add(message_id, source, number)

    def named(self, source: RMSource, ranges: tuple[tuple[int, int], ...]) -> None:
        """Before an acknowledgement is taken in: what it names was transmitted, and is acknowledged with its reply if
        it is a request."""
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
        """It is given up: no reply to it is awaited."""
        for waiting in (source.unreplied, source.requests_before):
            for number, message_id in waiting.items():
                self.remove(message_id, source, number)
            waiting.clear()

    def find(self, message_id: str, may_be: Callable[[RMSource], bool]) -> tuple[RMSource, int] | None:
        """The first with that MessageID whose reply is not here; ``may_be``: whether it may be in that Sequence."""
        for source, number in self._found.get(message_id, ()):
            if number not in source.replying and may_be(source):
                return source, number
        return None
