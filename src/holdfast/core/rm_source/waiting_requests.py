"""Requests of one Sequence that wait for a reply."""

from __future__ import annotations

from holdfast.core.rm_source.message_numbers import MessageNumbers


class SequenceRequests:
    """The requests of one outbound Sequence that wait for a reply. They are acknowledged only together with it."""

    __slots__ = ("before", "replying", "unreplied")

    def __init__(self) -> None:
        self.unreplied: dict[int, str] = {}
        """Transmitted requests: number -> MessageID."""
        self.before: dict[int, str] = {}
        """Requests that may have been transmitted before, and are not in flight now: by an earlier run, or above the
        limit. Number -> MessageID."""
        self.replying: set[int] = set()
        """Requests with a reply in a batch that is being stored; saved as acknowledged in that same batch, so that the
        source never repeats a request to a destination that may have forgotten its reply."""

    def transmitted(self, number: int, message_id: str) -> bool:
        """Add a request that is transmitted now, and return whether it is a new one."""
        if number in self.unreplied:
            return False
        is_new = self.before.pop(number, None) is None
        self.unreplied[number] = message_id
        return is_new

    def replied(self, number: int) -> str | None:
        """Remove a request once its reply is durable, and return its MessageID; None if it did not wait."""
        self.replying.discard(number)
        return self.unreplied.pop(number, None) or self.before.pop(number, None)

    def set_back(self, number: int) -> None:
        """Remove a request from those in flight: its number is above the limit."""
        if number in self.unreplied:
            self.before[number] = self.unreplied.pop(number)

    def unreplied_within(self, lower: int, upper: int) -> list[int]:
        # The shorter of the two: a range may have any length, and so may the number of requests.
        if upper - lower < len(self.unreplied):
            return [number for number in range(lower, upper + 1) if number in self.unreplied]
        return [number for number in self.unreplied if lower <= number <= upper]

    def named(self, ranges: tuple[tuple[int, int], ...], numbers: MessageNumbers) -> None:
        """Mark the requests in ``ranges`` as transmitted, before the source processes their acknowledgement.

        A request is acknowledged only with its reply.
        """
        before = self.before
        # Only after a restart, or above a lowered limit, is there anything to look for.
        for lower, upper in ranges if before else ():
            first, last = max(lower, numbers.next), min(upper, numbers.sent_before)
            if last - first < len(before):
                found = [number for number in range(first, last + 1) if number in before]
            else:
                found = [number for number in before if first <= number <= last]
            for number in found:
                self.unreplied[number] = before.pop(number)
