"""GroupCommit and Deadlines: what is said when, and what is due when."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

import pytest
from asked import Endpoint
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.commit import GroupCommit, changing
from holdfast.core.deadlines import Deadlines
from holdfast.core.messages import ANONYMOUS_EPR, Offer
from holdfast.core.protocol import RMProtocol
from holdfast.core.sending.outboxes.records import replies_queue
from holdfast.core.sinks.staging import Sinks
from holdfast.core.steering import Steering
from holdfast.exceptions import ConfigurationError, StoreFailed


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


def test_a_sequence_lives_with_the_partition_of_its_messages() -> None:
    endpoint = Endpoint()
    first = endpoint.create(offer=Offer("urn:offered", ANONYMOUS_EPR))
    second = endpoint.create("urn:other")
    endpoint.request(first, 1)
    endpoint.reply(1)
    endpoint.send(second, 2)
    loaded, replies = endpoint.store.load(), (replies_queue("urn:offered"), 0)
    (source,) = loaded.sequences.keys() - {first, second}
    assert loaded.homes == {first: ("inbox", 0), second: ("inbox", 0), source: replies}
    assert loaded.sequences[first]["offered"] == "urn:offered"
    assert loaded.held == {second: [2]}
    assert loaded.sequences[source]["identifier"] == "urn:offered"
    assert loaded.bounds[replies] == (0, 1)


def test_where_a_sequence_of_an_older_store_lives_is_said_when_it_is_recovered() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:offered", ANONYMOUS_EPR))
    endpoint.request(identifier, 1)
    endpoint.reply(1)
    homes = endpoint.store.load().homes
    assert len(homes) == 2
    endpoint.store._homes.clear()  # as it was before homes were kept
    again = endpoint.restart()
    assert again.store.load().homes == {}
    again.settle()
    assert again.store.load().homes == homes
    assert not again.restart().protocol.wants_commit


UNMARKED = {
    # Calls of the engine, where every error ends the endpoint, and calls that change nothing.
    RMProtocol: {
        "batch_durable",
        "deadline",
        "pump",
        "received",
        "records_read",
        "recover",
        "restored",
        "save_progress",
        "stop",
        "take_batch",
        "take_effects",
    },
    Sinks: {"deadline", "is_published", "pump", "recover", "restored", "sink", "use"},
    Steering: {"check_deletable", "forwarders_behind", "position", "would_drop"},
}


@pytest.mark.parametrize("kind", UNMARKED, ids=lambda kind: kind.__name__)
def test_each_call_that_changes_the_core_ends_the_endpoint_if_it_fails(kind: type) -> None:
    public = {name: one for name, one in vars(kind).items() if isfunction(one) and not name.startswith("_")}
    assert {name for name, one in public.items() if not hasattr(one, "__wrapped__")} == UNMARKED[kind]


@pytest.mark.parametrize("error", [KeyError("a bug"), StoreFailed("not of a caller"), ConfigurationError("refused")])
def test_every_error_except_a_refusal_ends_the_endpoint_and_reaches_the_caller(error: Exception) -> None:
    class Part:
        commit = GroupCommit()

        @changing
        def change(self) -> None:
            raise error

    failures: list[Exception] = []
    Part.commit.fail = failures.append
    with pytest.raises(type(error)):
        Part().change()
    assert failures == ([] if isinstance(error, ConfigurationError) else [error])
