"""Replies to an address that their requester never acknowledges, and the others, which do not depend on them.

Covers core/rm_source/flight.py and core/sending/exchanges.py.
"""

from __future__ import annotations

from typing import Any

import pytest
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

    def __init__(self, deaf: set[int], rm: str = "1.1", **policy: Any) -> None:
        self._deaf = deaf
        self.accepted = AcknowledgementRanges()
        self.told: list[tuple[tuple[int, int], ...]] = []
        """The ranges of the acknowledgements that came alone."""
        self.endpoint = Endpoint(rm, allows=lambda _: True, **policy)
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


# --- for how long -----------------------------------------------------------------------------------------------------

TIMEOUT = 600.0
EVERY_ANSWER = pytest.mark.parametrize("answers", ["empty", "none"])
"""What the address of the requester does with a reply: it answers with an empty 202, or not at all."""


def spend(requester: Requester, seconds: float, answers: str) -> list[int]:
    """Let time pass, in which the requester asks nothing and sends its acknowledgements; the replies sent to it."""
    arrived: list[int] = []
    for _ in range(int(seconds)):
        endpoint = requester.endpoint
        if answers == "none":
            sent, endpoint.transmitted = endpoint.transmitted, []
            for one in sent:
                endpoint.protocol.failed(one, endpoint.now, "connection refused")
                endpoint.settle()
            arrived += [one.number for one in sent if one.number]
            endpoint.pass_time(1.0)
        else:
            arrived += requester.listen(1.0)
    return arrived


def left_alone(requester: Requester) -> list[tuple[int, dict[str, Any]]]:
    found = [one for one in requester.endpoint.incidents if one.name == "reply.not_acknowledged"]
    return [(one.number, dict(one.detail or {})) for one in found]


@EVERY_ANSWER
@pytest.mark.parametrize("rm", ["1.0", "1.1", "1.2"])
def test_a_reply_is_retransmitted_for_the_inactivity_timeout_and_then_on_demand(rm: str, answers: str) -> None:
    requester = Requester({1}, rm=rm, inactivity_timeout=TIMEOUT)
    requester.call(1)
    requester.endpoint.reply(1)
    arrived: list[int] = []
    for number in range(2, 8):  # the requester exists: it goes on to ask
        arrived += spend(requester, TIMEOUT / 5, answers)
        requester.call(number)
        requester.endpoint.reply(number)
    assert arrived.count(1) > 20
    ((number, detail),) = left_alone(requester)[:1]
    assert (number, detail["to"]) == (1, HERE.address)
    assert TIMEOUT <= detail["seconds"] < TIMEOUT + 20
    assert detail["attempts"] == arrived.count(1)
    later = spend(requester, TIMEOUT / 3, answers)
    assert 1 not in later
    # The requester repeats the request: it gets the reply again, for as long again.
    requester.call(1)
    assert 1 in spend(requester, 30, answers)
    assert [one for one, _ in left_alone(requester)].count(1) == 1
    # Acknowledged at last: nothing is left of it.
    while 1 not in requester.accepted or requester.accepted.highest < 7:
        requester.accepted.add_range(1, max(arrived + spend(requester, 5, answers)))
        requester.endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", tuple(requester.accepted)),))
    spend(requester, 5, answers)  # what had left before
    assert not spend(requester, 60, answers)
    source = requester.endpoint.protocol.outbound.outboxes["urn:o"].source
    assert source is not None and not source.flight and not source.flight.left_alone


def test_a_nack_brings_a_reply_that_is_no_longer_retransmitted() -> None:
    requester = Requester({1}, inactivity_timeout=TIMEOUT)
    requester.call(1)
    requester.endpoint.reply(1)
    for number in (2, 3):
        spend(requester, TIMEOUT * 0.7, "empty")
        requester.call(number)
        requester.endpoint.reply(number)
    assert [one for one, _ in left_alone(requester)] == [1]
    requester.endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", nacks=(1,)),))
    assert 1 in requester.listen(1.0)


def test_without_an_inactivity_timeout_a_reply_is_retransmitted_without_end() -> None:
    requester = Requester({1}, inactivity_timeout=None)
    requester.call(1)
    requester.endpoint.reply(1)
    spend(requester, 3 * 86_400 / 100, "empty")
    assert 1 in requester.listen(30.0) and not left_alone(requester)


def test_a_reply_that_is_acknowledged_in_time_is_not_reported() -> None:
    requester = Requester(set(), inactivity_timeout=TIMEOUT)
    for number in range(1, 5):
        requester.call(number)
        requester.endpoint.reply(number)
        spend(requester, TIMEOUT * 0.9, "empty")
    assert not left_alone(requester) and requester.accepted.highest == 4
