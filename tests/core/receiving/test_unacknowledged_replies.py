"""Replies to an address that their requester never acknowledges, and the others, which do not depend on them.

Covers core/rm_source/flight.py.
"""

from __future__ import annotations

from typing import Any

from asked import Endpoint
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import (
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Offer,
    SequenceAcknowledgement,
)
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH

HERE = EndpointReference("http://s/decoupled")
LAST = 12
PATIENCE = 60.0
"""Seconds that a call of the requester's waits for its reply: CXF's default."""


class Requester:
    """A requester with an address, which answers every message with an empty 202.

    Args:
        deaf: The numbers of the replies that it never accepts, as CXF's client after a call that has failed.
    """

    def __init__(self, deaf: set[int]) -> None:
        self._deaf = deaf
        self.accepted = AcknowledgementRanges()
        self.told: list[tuple[tuple[int, int], ...]] = []
        """The ranges of the acknowledgements that came alone."""
        self.endpoint = Endpoint(allows=lambda _: True)
        create = CreateSequence(HERE, offer=Offer("urn:o", HERE))
        self.endpoint.ask(control=create, message_id="urn:c", reply_to=HERE, to="http://d/")
        (granted,) = self._take()
        assert isinstance(granted, CreateSequenceResponse)
        self.identifier = granted.identifier

    def _take(self) -> list[Any]:
        """Answer what was transmitted; return the numbers of the replies, or the protocol messages."""
        endpoint, taken = self.endpoint, []
        sent, endpoint.transmitted = endpoint.transmitted, []
        for one in sent:
            endpoint.protocol.received(one, None, endpoint.now)
            endpoint.settle()
            taken.append(one.number or one.envelope.control)
            if not one.number:
                self.told.extend(each.ranges for each in one.envelope.acknowledgements)
        return taken

    def call(self, number: int, **fields: Any) -> None:
        self.endpoint.send(self.identifier, number, message_id=f"urn:m{number}", reply_to=HERE, **fields)

    def listen(self, seconds: float) -> list[int]:
        """Let time pass, accept replies and acknowledge them; return the numbers of those that arrived."""
        arrived: list[int] = []
        for _ in range(int(seconds / 0.5)):
            numbers = [one for one in self._take() if isinstance(one, int)]
            arrived += numbers
            for number in set(numbers) - self._deaf:
                self.accepted.add(number)
                said = SequenceAcknowledgement("urn:o", tuple(self.accepted))
                self.endpoint.ask(acknowledgements=(said,))
            self.endpoint.pass_time(0.5)
        return arrived


@given(st.sets(st.integers(1, LAST)), st.booleans())
def test_a_reply_that_is_never_acknowledged_holds_back_no_other(deaf: set[int], at_once: bool) -> None:
    requester = Requester(deaf)
    for number in range(1, LAST + 1):
        requester.call(number)
        requester.endpoint.reply(number)
        if not at_once:
            assert number in requester.listen(PATIENCE), "its first transmission has waited for no other reply"
    arrived = requester.listen(2 * PATIENCE)
    assert [number for number in range(1, LAST + 1) if number not in requester.accepted] == sorted(deaf)
    assert deaf <= {*arrived}, "they are repeated as long as the requester exists"


def test_a_reply_counts_towards_the_window_until_it_was_answered_several_times() -> None:
    requester = Requester({1})
    requester.call(1)
    requester.endpoint.reply(1)
    outbox = requester.endpoint.protocol.outbound.outboxes["urn:o"]
    assert outbox.source is not None
    flight, seen = outbox.source.flight, []
    for _ in range(40):
        seen += requester.listen(0.5)
        assert flight.counted == (len(seen) < ANSWERED_ENOUGH)
    assert len(seen) > ANSWERED_ENOUGH and flight.bytes == 0


def test_a_repeated_request_brings_its_reply_at_once_and_not_faster_than_the_minimum() -> None:
    requester = Requester({1, 2})
    for number in (1, 2):
        requester.call(number)
        requester.endpoint.reply(number)
    requester.listen(PATIENCE)  # the pauses have grown
    arrived = []
    for _ in range(8):
        requester.call(2)
        arrived += requester.listen(1.0)
    assert arrived.count(2) == 8 and arrived.count(1) < 4
    before = len(requester.endpoint.transmitted)
    for _ in range(50):
        requester.call(2)
    assert len(requester.endpoint.transmitted) == before
