"""Index of the requests that wait for a reply, by MessageID, over all Sequences of one side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.core.rm_source.saved_state import OutboundSequence

S = TypeVar("S", bound=OutboundSequence)


class Requests(Generic[S]):
    """MessageID -> the Sequences, and the numbers in them, of the requests that have it.

    There may be several: a record may be forwarded to two addresses, and an application may use a MessageID twice.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[S, int]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, message_id: str, source: S, number: int) -> None:
        """Add message ``number`` of a Sequence, a request that may have been transmitted."""
        self._found.setdefault(message_id, []).append((source, number))

    def remove(self, message_id: str, source: S, number: int) -> None:
        """Remove a request that no longer waits for its reply."""
        found = self._found[message_id]
        found.remove((source, number))
        if not found:
            del self._found[message_id]

    def found_before(self, message_id: str, source: S, number: int) -> None:
        """Add message ``number``, a request without a reply that an earlier run may have transmitted."""
        source.waiting.before[number] = message_id
        self.add(message_id, source, number)

    def forget(self, source: S) -> None:
        """Remove every request of a Sequence that was abandoned: the source no longer expects replies to it."""
        for waiting in (source.waiting.unreplied, source.waiting.before):
            for number, message_id in waiting.items():
                self.remove(message_id, source, number)
            waiting.clear()

    def find(self, message_id: str, may_be: Callable[[S], bool]) -> tuple[S, int] | None:
        """Return the first request with that MessageID and no reply.

        ``may_be``: whether the request may be in the given Sequence.
        """
        for source, number in self._found.get(message_id, ()):
            if number not in source.waiting.replying and may_be(source):
                return source, number
        return None
