"""Which numbers the peer may have: asked before a message moves to the next Sequence. See also ``test_source``."""

from __future__ import annotations

import pytest

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH, ControlRequests
from holdfast.core.rm_source.doubt import SequenceDoubt
from holdfast.core.rm_source.flight import Flight, InFlight
from holdfast.core.rm_source.message_numbers import MessageNumbers
from holdfast.core.rm_source.waiting_requests import SequenceRequests
from holdfast.core.states.outbound import DoubtAction, DoubtEvent, DoubtState


class Doubted:
    """A Sequence with numbers 1 to 6 in flight; the request with number 4 waits for its reply."""

    def __init__(self) -> None:
        self.numbers, self.flight, self.waiting = MessageNumbers(100), Flight(), SequenceRequests()
        self.acknowledged, self.control = AcknowledgementRanges(), ControlRequests()
        self.doubt = SequenceDoubt("urn:s", self.numbers, self.flight, self.waiting, self.acknowledged, self.control)
        for number in range(1, 7):
            self.flight[number] = InFlight(0.0, 0.0, 1, 0.0)
        self.numbers.next = 7
        self.waiting.transmitted(4, "urn:m4")


def test_a_limit_below_no_number_in_flight_asks_nothing() -> None:
    one = Doubted()
    one.doubt.roll_over(6, 7, 1.0)
    assert (one.doubt.is_open, one.numbers.limit, one.control.due) == (False, 6, None)
    assert sorted(one.flight) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("limit", "refused", "left"), [(3, 0, 3), (None, 4, 3), (5, 3, 2), (2, 5, 2)])
def test_numbers_above_the_lower_of_both_limits_leave_the_flight_and_are_asked_for(
    limit: int | None, refused: int, left: int
) -> None:
    one = Doubted()
    one.doubt.roll_over(limit, refused, 1.0)
    assert sorted(one.flight) == list(range(1, left + 1)) and one.numbers.limit == left
    assert (one.doubt.state, one.control.due) == (DoubtState.ASKING, 1.0)
    assert one.doubt.resolve(DoubtEvent.SAID) is DoubtAction.MOVE
    assert not one.doubt.is_open and one.control.due is None


def test_without_a_limit_the_answer_gives_it_and_a_request_that_waits_stays_below_it() -> None:
    one = Doubted()
    one.doubt.roll_over(None, 0, 1.0)
    assert one.doubt.state is DoubtState.ASKING_FOR_LIMIT and one.numbers.limit == 6
    one.acknowledged.add(2)
    assert one.doubt.resolve(DoubtEvent.SAID) is DoubtAction.TAKE_FOR_LIMIT
    assert one.numbers.limit == 4 and sorted(one.flight) == [1, 2, 3, 4]


def test_a_peer_is_silent_after_enough_questions_or_later_with_posted_answers() -> None:
    one = Doubted()
    one.control.attempts = 2 * ANSWERED_ENOUGH
    assert not one.doubt.is_silent(in_answers=True), "nothing was asked"
    one.doubt.ask_what_else(1.0)
    for attempts in range(2 * ANSWERED_ENOUGH + 1):
        one.control.attempts = attempts
        assert one.doubt.is_silent(in_answers=True) == (attempts >= ANSWERED_ENOUGH)
        assert one.doubt.is_silent(in_answers=False) == (attempts >= 2 * ANSWERED_ENOUGH)


@pytest.mark.parametrize(("is_known", "state"), [(True, DoubtState.ASKING), (False, DoubtState.ASKING_FOR_LIMIT)])
def test_a_saved_question_is_open_again(is_known: bool, state: DoubtState) -> None:
    one = Doubted()
    one.doubt.restore(is_limit_known=is_known)
    assert one.doubt.is_open and one.doubt.state is state
