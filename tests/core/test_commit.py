"""GroupCommit and Deadlines: what is said when, and what is due when."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.commit import GroupCommit
from holdfast.core.timers import Deadlines


class Sequence:
    def __init__(self) -> None:
        self.value = 0

    def to_state(self) -> dict[str, Any]:
        return {"value": self.value}


def test_a_call_is_made_once_its_batch_is_durable_and_not_before_an_older_one() -> None:
    commit, said = GroupCommit(), list[str]()
    commit.then(lambda now: said.append(f"first at {now:g}"))
    commit.take()
    commit.then(lambda now: said.append(f"second at {now:g}"))
    commit.take()
    assert said == []
    commit.durable(1.0)
    assert said == ["first at 1"]
    commit.durable(2.0)
    assert said == ["first at 1", "second at 2"]


def test_a_sequence_is_saved_once_as_it_is_when_the_batch_is_taken() -> None:
    commit, sequence = GroupCommit(), Sequence()
    commit.save("urn:a", sequence)
    sequence.value = 1
    commit.save("urn:a", sequence)
    sequence.value = 2
    batch = commit.take()
    assert batch.sequences == {"urn:a": {"value": 2}}
    assert not commit.is_wanted


def test_what_is_forgotten_is_not_saved_by_the_same_batch() -> None:
    commit = GroupCommit()
    commit.save("urn:a", Sequence())
    commit.forget("urn:a")
    assert commit.take().sequences == {"urn:a": None}


def test_a_call_alone_is_reason_enough_for_a_batch() -> None:
    commit = GroupCommit()
    assert not commit.is_wanted
    commit.then(lambda now: None)
    assert commit.is_wanted


def test_what_was_asked_for_while_a_batch_is_on_its_way_goes_into_the_next() -> None:
    commit, said = GroupCommit(), list[str]()
    commit.then(lambda now: commit.then(lambda later: said.append("inner")))
    commit.take()
    commit.durable(1.0)
    assert said == []
    commit.take()
    commit.durable(2.0)
    assert said == ["inner"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=20))
def test_every_deadline_is_due_at_its_earliest_time_and_once(wanted: list[tuple[str, int]]) -> None:
    deadlines, model = Deadlines(), dict[str, int]()
    for key, time in wanted:
        deadlines.want(key, time)
        model[key] = min(time, model.get(key, time))
    assert deadlines.next() == (min(model.values()) if model else None)
    for now in range(21):
        assert sorted(deadlines.due(now)) == sorted(key for key, time in model.items() if time == now)
    assert deadlines.next() is None


def test_a_forgotten_deadline_is_never_due_and_none_wants_nothing() -> None:
    deadlines = Deadlines()
    deadlines.want("a", 1.0)
    deadlines.want("b", None)
    deadlines.forget("a")
    assert deadlines.next() is None
    assert deadlines.due(10.0) == []
