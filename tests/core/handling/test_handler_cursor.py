"""HandlerCursor: what the handler gets next, what is due again, and what a restart remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.handling.handler_cursor import HandlerCursor, HandlingPolicy


def cursor(*sequences: str, in_order: bool = True, policy: HandlingPolicy | None = None) -> HandlerCursor:
    made = HandlerCursor(policy or HandlingPolicy(), in_order)
    for offset, sequence in enumerate(sequences):
        made.offer(offset, sequence)
    return made


def take_all(made: HandlerCursor, now: float = 0.0) -> list[int]:
    taken = []
    while (offset := made.take(now)) is not None:
        taken.append(offset)
    return taken


def test_in_order_one_record_of_a_sequence_at_a_time_while_others_go_on() -> None:
    made = cursor("a", "b", "a", "b", "c")
    assert take_all(made) == [0, 1, 4]
    made.finished(1)
    assert take_all(made) == [3]
    made.finished(0)
    assert take_all(made) == [2]


def test_without_order_all_may_be_taken_at_once() -> None:
    assert take_all(cursor("a", "a", "a", in_order=False)) == [0, 1, 2]


def test_a_failed_record_is_due_after_a_growing_backoff_and_ends_as_a_dead_letter() -> None:
    made = cursor("a", policy=HandlingPolicy(attempts=3, backoff=1.0, backoff_cap=1.5))
    assert made.take(0.0) == 0
    assert made.attempts(0) == 1
    assert made.failed(0, 0.0)
    assert made.deadline() == 1.0
    assert made.take(0.9) is None
    assert made.take(1.0) == 0
    assert made.failed(0, 1.0)
    assert made.deadline() == 2.5  # two seconds, but for the cap
    assert made.take(2.5) == 0
    assert not made.failed(0, 2.5)
    made.finished(0)
    assert made.floor == 1
    assert made.deadline() is None


def test_without_a_limit_of_attempts_retries_go_on_with_bounded_pauses() -> None:
    made = cursor("a", policy=HandlingPolicy(attempts=None, backoff_cap=30.0))
    now = 0.0
    for _ in range(2000):
        assert made.take(now) == 0
        assert made.failed(0, now)
        due = made.deadline()
        assert due is not None and now < due <= now + 30.0
        now = due


def test_a_sequence_waits_for_its_failed_record_and_others_do_not() -> None:
    made = cursor("a", "a", "b")
    assert made.take(0.0) == 0
    assert made.failed(0, 0.0)
    assert take_all(made) == [2]


def test_a_restart_offers_again_what_was_not_finished_and_skips_what_was() -> None:
    made = cursor("a", "b", "c")
    assert take_all(made) == [0, 1, 2]
    made.finished(1)
    again = HandlerCursor(HandlingPolicy(), True, made.to_state())
    assert again.next_offset == 0
    for offset, sequence in enumerate("abc"):
        again.offer(offset, sequence)
    assert take_all(again) == [0, 2]
    assert again.is_done(1) and not again.is_done(0)


def test_it_takes_no_more_than_it_looks_ahead() -> None:
    made = cursor("a", "b", policy=HandlingPolicy(ahead=2))
    assert not made.has_room
    assert take_all(made) == [0, 1]
    made.finished(1)
    assert not made.has_room  # the first is unfinished
    made.finished(0)
    assert made.has_room


def test_offsets_are_offered_one_after_the_other() -> None:
    with pytest.raises(AssertionError):
        HandlerCursor(HandlingPolicy(), True).offer(3, "a")


@given(st.lists(st.sampled_from("abc"), max_size=12), st.randoms(use_true_random=False))
def test_each_sequence_is_handled_in_order_and_once_whatever_finishes_first(
    sequences: list[str], chance: object
) -> None:
    made = cursor(*sequences)
    handled: list[int] = []
    running: list[int] = []
    while True:
        running += take_all(made)
        if not running:
            break
        offset = running.pop(chance.randrange(len(running)))  # type: ignore[attr-defined]
        handled.append(offset)
        made.finished(offset)
    assert sorted(handled) == list(range(len(sequences)))
    for name in "abc":
        mine = [offset for offset in handled if sequences[offset] == name]
        assert mine == sorted(mine)
    assert made.floor == len(sequences)
