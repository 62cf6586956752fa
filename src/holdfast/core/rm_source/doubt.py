"""SequenceDoubt: which numbers of one outbound Sequence the peer may have, while that is unknown.

The peer lowered the limit of the Sequence, or refuses one of its messages permanently. No message moves to the next
Sequence before the peer has reported the numbers that it has.
"""

from __future__ import annotations

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH, ControlRequests
from holdfast.core.rm_source.flight import Flight
from holdfast.core.rm_source.message_numbers import MessageNumbers
from holdfast.core.rm_source.waiting_requests import SequenceRequests
from holdfast.core.states.outbound import DOUBT_TABLE, DoubtAction, DoubtEvent, DoubtState
from holdfast.core.states.table import step


class SequenceDoubt:
    """The question which numbers the peer has, of one outbound Sequence.

    Args:
        name: The Sequence's name in the store, for errors.
    """

    __slots__ = ("_acknowledged", "_control", "_flight", "_name", "_numbers", "_waiting", "state")

    def __init__(
        self,
        name: str,
        numbers: MessageNumbers,
        flight: Flight,
        waiting: SequenceRequests,
        acknowledged: AcknowledgementRanges,
        control: ControlRequests,
    ) -> None:
        self._name = name
        self._numbers, self._flight, self._waiting = numbers, flight, waiting
        self._acknowledged, self._control = acknowledged, control
        self.state = DoubtState.NONE

    @property
    def is_open(self) -> bool:
        """Whether the source waits to learn which unacknowledged numbers the peer has."""
        return self.state is not DoubtState.NONE

    def handle(self, event: DoubtEvent) -> DoubtAction | None:
        action, self.state = step(DOUBT_TABLE, self.state, event, f"the doubt of the outbound Sequence {self._name}")
        return action

    def roll_over(self, max_message_number: int | None, refused: int, now: float) -> None:
        """Process the peer's MessageNumberRollover: numbers above its limit go to the next Sequence (WS-RM 4.5).

        The peer may have accepted some of them before it lowered its limit. The source therefore asks which ones it has
        (AckRequested) before any message moves.

        Args:
            max_message_number: The limit in the fault, None without one.
            refused: The number that the peer refused, 0 if unknown.
        """
        numbers = self._numbers
        # Saved as sent before the limit drops: the peer may acknowledge numbers above it, which is then no error.
        numbers.keep_sent()
        # The refused number proves a limit below it, whether the fault names another one or none.
        limits = [limit for limit in (max_message_number, refused - 1 if refused else None) if limit is not None]
        if not limits and numbers.limit < numbers.sent_before:
            return  # a late fault for a number above the limit, which is already known
        is_left_behind = self.lower_limit(min(limits) if limits else numbers.sent_before)
        if is_left_behind or not limits:
            self._ask(DoubtEvent.LEFT_BEHIND if limits else DoubtEvent.LIMIT_UNKNOWN, now)

    def ask_what_else(self, now: float) -> None:
        """Ask the peer which other numbers it has, because it refuses one message permanently."""
        self._ask(DoubtEvent.REFUSED_FOR_GOOD, now)

    def _ask(self, event: DoubtEvent, now: float) -> None:
        if self.handle(event) is DoubtAction.ASK:
            self._control.begin(now)

    def lower_limit(self, limit: int) -> bool:
        """Lower the limit, remove the numbers above it from flight, and return whether there were any."""
        self._numbers.lower_limit(limit)
        above = [number for number in self._flight if number > self._numbers.limit]
        for number in above:
            self._flight.remove(number)
            # It is not in flight any more, but its reply may still come.
            self._waiting.set_back(number)
        return bool(above)

    def is_silent(self, *, in_answers: bool) -> bool:
        """Whether the peer has left enough questions about its numbers without an acknowledgement.

        If acknowledgements come on another connection (not ``in_answers``), they follow the empty answer to the
        question, so the source asks more often.
        """
        return self.is_open and self._control.attempts >= (ANSWERED_ENOUGH if in_answers else 2 * ANSWERED_ENOUGH)

    def resolve(self, event: DoubtEvent) -> DoubtAction | None:
        """End the doubt: unacknowledged numbers above the limit may move to the next Sequence.

        The peer has reported its numbers, or the answer is no longer needed. After LOSE, the answer remains unknown.
        """
        action = self.handle(event)
        if action is DoubtAction.MOVE or action is DoubtAction.TAKE_FOR_LIMIT:
            self._control.stop()
        if action is DoubtAction.TAKE_FOR_LIMIT:
            # A request counts as acknowledged only with its reply, so a request that waits may have arrived.
            self.lower_limit(max(self._acknowledged.highest, *self._waiting.unreplied, 0))
        return action

    def restore(self, *, is_limit_known: bool) -> None:
        """Restore a saved question, which the peer has not answered."""
        self.state = DoubtState.ASKING if is_limit_known else DoubtState.ASKING_FOR_LIMIT
