"""How a request reaches the process that serves its owner, whatever happens to that process meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.endpoint.workers.passage import LONGEST_WAIT, PATIENCE, Move, Passage

HERE, THERE = "http://worker-0", "http://node-b/0"


def ask(passage: Passage, place: str | None, now: float) -> bool:
    """Ask worker 0, which is at one place."""
    return passage.ask(lambda number: place if number == 0 else None, lambda: None, now) == 0


def look(passage: Passage, place: str | None, now: float) -> Move:
    return passage.look(lambda number: place if number == 0 else None, now)


def test_a_request_that_any_worker_may_answer_goes_to_one_that_is_served() -> None:
    passage = Passage(0.0, None)
    assert passage.ask(lambda _: HERE, lambda: None, 0.0) is None
    assert passage.ask(lambda _: HERE, lambda: 3, 0.0) == 3
    assert passage.asked == (3, HERE)


def test_a_lost_request_is_sent_again_at_once_and_then_at_the_next_looks() -> None:
    passage = Passage(0.0, 0)
    assert ask(passage, HERE, 0.0) and passage.attempt == 1
    assert passage.failed("reset", 0.1, is_lost=True) is Move.ASK
    assert ask(passage, HERE, 0.1) and passage.attempt == 2
    assert passage.failed("reset", 0.2, is_lost=True) is Move.NOTHING
    assert look(passage, None, 0.3) is Move.ASK


def test_a_process_without_the_worker_is_not_asked_again_before_the_next_look() -> None:
    passage = Passage(0.0, 0)
    ask(passage, THERE, 0.0)
    assert passage.failed("it has moved", 0.1, is_lost=False) is Move.NOTHING
    assert look(passage, None, 0.2) is Move.ASK


def test_a_request_follows_its_worker_and_waits_while_that_is_nowhere() -> None:
    passage = Passage(0.0, 0)
    ask(passage, THERE, 0.0)
    assert look(passage, THERE, 30.0) is Move.NOTHING
    assert look(passage, None, 31.0) is Move.NOTHING
    assert look(passage, HERE, 32.0) is Move.ASK


def test_a_failure_long_after_the_sending_has_a_time_of_its_own() -> None:
    passage = Passage(0.0, 0)
    assert not ask(passage, None, 0.0)
    assert ask(passage, HERE, 1.0)
    assert passage.failed("reset", 40.0, is_lost=True) is Move.ASK
    assert look(passage, None, 40.0 + LONGEST_WAIT) is Move.ASK
    assert look(passage, None, 40.1 + LONGEST_WAIT) is Move.GIVE_UP


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.sampled_from(["lost", "moved"])), min_size=1, max_size=60))
def test_whatever_fails_a_request_is_given_up_in_time(failures: list[tuple[float, str]]) -> None:
    passage, now = Passage(0.0, 0), 0.0
    for seconds, what in failures:
        since = passage.failed_at
        if not ask(passage, HERE, now):
            break
        now += seconds
        passage.failed(what, now, is_lost=what == "lost")
        assert passage.failed_at is not None and passage.failed_at in (since, now)
        move = look(passage, None, now)
        assert (move is Move.GIVE_UP) == (now > passage.failed_at + LONGEST_WAIT or now > PATIENCE)
        if move is Move.GIVE_UP:
            break
