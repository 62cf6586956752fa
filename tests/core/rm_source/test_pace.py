"""The pace of one outbound Sequence."""

from __future__ import annotations

from holdfast.core.policy import SourcePolicy
from holdfast.core.rm_source.flight import Flight, InFlight
from holdfast.core.rm_source.pace import Pace
from holdfast.core.rm_source.window import Early


def pace(window: int = 8) -> Pace:
    return Pace(SourcePolicy(initial_window=window, window=window), 0.0)


def entry(attempts: int = 1, **fields: int) -> InFlight:
    return InFlight(1.0, 2.0, attempts, 1.0, **fields)


def test_the_peers_buffer_narrows_the_window_and_never_widens_it() -> None:
    one = pace()
    assert one.size == 8
    one.buffer_remaining = 3
    assert one.size == 3
    one.buffer_remaining = 99
    assert one.size == 8


def test_a_message_that_arrived_after_an_empty_answer_shows_that_early_ones_stay() -> None:
    one = pace()
    answered = entry()
    answered.answered = True
    one.arrived(answered, 1.5)
    assert one.window.early is Early.TAKES


def test_a_drop_counts_once_and_not_behind_a_loss() -> None:
    one = pace()
    dropped = entry(behind=1)
    one.dropped(dropped, 2.0)
    one.dropped(dropped, 2.0)
    assert (dropped.drops, one.window.early, one.size) == (1, Early.DROPS, 4)
    other = pace()
    other.arrived_again(3, entry(attempts=2))
    other.dropped(entry(behind=2), 2.0)
    assert (other.window.early, other.size) == (Early.UNKNOWN, 8)


def test_lost_messages_leave_no_faster_than_the_halved_window_allows() -> None:
    one, flight = pace(4), Flight()
    for number in range(1, 5):
        flight[number] = entry()
    assert one.limited(flight, [1, 2, 3, 4], 9.0) == [1, 2]
    assert (flight[3].waits_for, flight[4].waits_for) == (2, 2)


def test_a_request_that_arrived_is_asked_for_again_whatever_the_window() -> None:
    one, flight = pace(1), Flight()
    for number in (1, 2):
        flight[number] = entry()
        flight[number].arrived_at = 1.5
    assert one.limited(flight, [1, 2], 9.0) == [1, 2]
