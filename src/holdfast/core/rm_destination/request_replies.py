"""Which requests of one inbound Sequence await a reply, and which have one."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State

ANSWERED_RANGES = 64
"""Ranges of requests remembered beyond the acknowledgement of their replies, as repeats may still arrive."""


class RequestReplies:
    """The requests of one inbound Sequence, by message number, and the progress of their replies."""

    __slots__ = ("answered", "awaiting", "heard", "numbers", "replying", "waived")

    def __init__(self) -> None:
        self.awaiting: set[int] = set()
        """Accepted requests that stay unacknowledged until their reply is durable.

        If the reply goes to an address, the request stays here until the requester acknowledges the reply, and only
        then is the end reported. These requests and their replies outlive the end of the Sequence.
        """
        self.waived: set[int] = set()
        """Requests of a Sequence that its source ended before their replies: acknowledged, and answered on request."""
        self.replying: set[int] = set()
        """Requests with a reply, or its absence, in a batch that is being stored. They await it until it is durable,
        and are saved with that batch as no longer awaiting it."""
        self.numbers: dict[int, int] = {}
        """Message number -> number of its reply in the opposite direction, while that is unacknowledged."""
        self.heard: dict[int, bool] = {}
        """Requests with acknowledged replies, as recorded in a batch that is being stored: until then they are answered
        as before. Number -> whether the reply went in the answer to its request."""
        self.answered = AcknowledgementRanges()
        """Requests with acknowledged replies that went in their answers, kept to recognize late repeats."""

    def __contains__(self, number: int) -> bool:
        """Whether a message is a request that awaits a reply, has one, or had one."""
        is_awaited = number in self.awaiting or number in self.waived
        return is_awaited or number in self.numbers or number in self.heard or number in self.answered

    def is_unanswered(self, number: int) -> bool:
        """Whether a request's reply has yet to be made."""
        is_awaited = number in self.awaiting or number in self.waived
        return is_awaited and number not in self.replying and number not in self.numbers

    @property
    def unanswered(self) -> set[int]:
        """Requests with replies that have yet to be made."""
        return (self.awaiting | self.waived).difference(self.numbers, self.replying)

    def waive(self) -> None:
        """Await no reply, as the source ended the Sequence."""
        self.waived |= self.unanswered | (self.awaiting & self.replying)
        self.awaiting.clear()

    def hear(self, number: int) -> bool:
        """Record the durable acknowledgement of a reply; return whether its request can be acknowledged now."""
        self.numbers.pop(number, None)
        if self.heard.pop(number):
            _remember(self.answered, (number,))
            return False
        return number in self.awaiting

    # --- saved state ----------------------------------------------------------------------------------------------

    def save(self, state: State) -> None:
        """Add everything that differs from an ordinary one-way Sequence to the state to save."""
        if self.awaiting:
            state["awaiting"] = list(self.awaiting.difference(self.replying, self.heard))
        if self.waived:
            state["waived"] = list(self.waived.difference(self.replying))
        if self.numbers:
            heard = self.heard
            state["replies"] = [part for pair in self.numbers.items() if pair[0] not in heard for part in pair]
        if self.heard or len(self.answered):
            answered = self.answered.copy()
            _remember(answered, (number for number, was_answered in self.heard.items() if was_answered))
            state["answered"] = answered.to_state()

    def restore(self, state: State) -> None:
        """Restore what :meth:`save` added."""
        self.awaiting = set(state["awaiting"])
        self.waived = set(state.get("waived", ()))
        self.answered = AcknowledgementRanges.from_state(state.get("answered", []))
        replies = state["replies"]
        self.numbers = dict(zip(replies[0::2], replies[1::2], strict=True))


def _remember(answered: AcknowledgementRanges, numbers: Iterable[int]) -> None:
    """Add the numbers; beyond the limit, forget the lowest, oldest ranges."""
    for number in numbers:
        answered.add(number)
    for _ in range(len(answered) - ANSWERED_RANGES):
        answered.discard_lowest()
