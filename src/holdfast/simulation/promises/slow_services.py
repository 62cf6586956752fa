"""Promises between a requester and a service while a handler takes longer than the retransmission timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.messages import Acknowledge, Envelope
from holdfast.simulation.nodes.node import STRANGER, Arrival, Journey
from holdfast.simulation.promises.invariant import InvariantViolation, is_requeued

if TYPE_CHECKING:
    from holdfast.simulation.world import World

Key = tuple[int, int, str, int]
"""A sender and its run, a Sequence, and a message number."""
OPEN = "RepeatedAfterItsExchange"
ANSWER = "AnswerHasTheReply"


class OpenRequests:
    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[Key, Journey] = {}
        self._doubled: set[Key] = set()

    def sent(self, journey: Journey) -> None:
        """Record an HTTP request that an endpoint sends.

        Raises:
            InvariantViolation: an open exchange already carries the request. A reply in that exchange would then have
                no matching request (CXF's server drops it).
        """
        sequence = journey.transmit.envelope.sequence
        if sequence is None or not self._awaits_reply(journey):
            return
        key = (journey.sender, journey.run, sequence.identifier, sequence.message_number)
        before = self._open.get(key)
        if before is not None and key not in self._doubled and not (before.is_answered or before.has_failed):
            body = journey.transmit.envelope.body.decode()
            raise InvariantViolation(OPEN, f"#{journey.number} repeats {body}, which #{before.number} still carries")
        self._open[key] = journey

    def concluded(self, journey: Journey) -> None:
        """Record the answer to an HTTP request.

        The network may duplicate an answer, and the sender takes the copy for the answer to a later request. A repeat
        after that is no violation.
        """
        sequence = journey.transmit.envelope.sequence
        if journey.is_answered and sequence is not None:
            self._doubled.add((journey.sender, journey.run, sequence.identifier, sequence.message_number))

    def answered(self, arrival: Arrival, answer: Envelope | None) -> None:
        """Check an endpoint's answer to an HTTP request.

        Raises:
            InvariantViolation: the answer is an acknowledgement that omits the request. Metro takes it for the reply,
                and WCF ends its session.
        """
        sequence = arrival.journey.transmit.envelope.sequence
        if answer is None or sequence is None or not isinstance(answer.control, Acknowledge):
            return
        if arrival.journey.sender == STRANGER or not self._awaits_reply(arrival.journey):
            return
        number = sequence.message_number
        named = [one for one in answer.acknowledgements if one.identifier == sequence.identifier]
        if not any(lower <= number <= upper for one in named for lower, upper in one.ranges):
            body = arrival.journey.transmit.envelope.body.decode()
            raise InvariantViolation(ANSWER, f"the answer to {body} is an acknowledgement without it")

    def _awaits_reply(self, journey: Journey) -> bool:
        body = journey.transmit.envelope.body
        return body in self._world.ledger.wants_reply and not is_requeued(self._world, body)
