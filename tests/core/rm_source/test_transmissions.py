"""What transmissions, answers and acknowledgements mean for the numbers in flight."""

from __future__ import annotations

import pytest

from holdfast.core.policy import SourcePolicy
from holdfast.core.rm_source.flight import Flight
from holdfast.core.rm_source.pace import Pace
from holdfast.core.rm_source.transmissions import Transmissions
from holdfast.core.rm_source.waiting_requests import SequenceRequests


class Sent:
    """Four messages that left at 1.0."""

    def __init__(self) -> None:
        self.flight, self.waiting = Flight(), SequenceRequests()
        self.pace = Pace(SourcePolicy(initial_window=8, window=8), 0.0)
        self.transmissions = Transmissions(self.flight, self.waiting, self.pace)
        for number in (1, 2, 3, 4):
            self.flight.begin(number, None, 1.0)
            self.transmissions.sent(number, 0.0, 1.0, asks=number == 4)


def test_each_transmission_counts_and_knows_what_is_in_front_of_it() -> None:
    one = Sent()
    assert [entry.behind for entry in one.flight.values()] == [0, 1, 1, 1]
    assert one.flight.asking == {4}
    assert one.transmissions.sent(4, 0.0, 2.0, asks=False) == 2
    assert one.flight.asking == set()


def test_acknowledged_numbers_leave_the_flight_however_many_are_named() -> None:
    one = Sent()
    one.transmissions.acknowledged([(1, 2), (4, 10**9)], 1.5)
    assert [*one.flight] == [3]


def test_what_was_answered_before_a_resent_number_arrived_is_due_at_once() -> None:
    one = Sent()
    one.flight[2].answered = True
    one.transmissions.sent(1, 0.0, 1.4, asks=True)
    one.transmissions.acknowledged([(1, 1)], 1.6)
    assert one.flight[2].due == 1.6
    assert one.flight[3].due > 1.6


@pytest.mark.parametrize("in_answers", [True, False])
def test_an_answered_message_behind_a_gap_waits_for_it_if_answers_acknowledge(in_answers: bool) -> None:
    one = Sent()
    one.transmissions.answered(3, 1.2, in_answers=in_answers)
    assert one.flight[3].answered
    assert one.flight[3].waits_for == (1 if in_answers else 0)


def test_a_request_whose_reply_is_being_stored_counts_as_arrived() -> None:
    one = Sent()
    one.waiting.transmitted(2, "urn:m2")
    one.waiting.replying.add(2)
    one.transmissions.answered(2, 1.2, in_answers=True)
    assert not one.flight[2].answered
    one.transmissions.replied(2, 1.4)
    assert 2 not in one.flight
