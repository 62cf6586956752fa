"""RMDestination: the rules of one inbound Sequence, each named after what it proves.

Covers core/rm_destination/saved_state.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.messages import ANONYMOUS_EPR, Fault, IncompleteSequenceBehavior
from holdfast.core.policy import Assurance, DestinationPolicy
from holdfast.core.rm_destination.destination import RMDestination, Verdict
from holdfast.core.states.inbound import DestinationEvent
from holdfast.core.versions import Versions

ALL = IncompleteSequenceBehavior


def made(rm: str = "1.1", assurance: str = "exactly-once in-order", **policy: Any) -> RMDestination:
    return RMDestination(
        "urn:d", Versions(rm), ANONYMOUS_EPR, DestinationPolicy(assurance=Assurance.parse(assurance), **policy), 0.0
    )


def store(destination: RMDestination, *numbers: int) -> list[int]:
    """Receive numbers, make them durable, and return what goes to the application, in order."""
    released = []
    for number in numbers:
        assert destination.receive(number, False, 1.0) is Verdict.NEW, number
        if not destination.hold(number) and not destination.is_too_late(number):
            destination.released(number)
            released.append(number)
        released += destination.release()
        destination.acknowledge(number)
    return released


def end(destination: RMDestination, last: int | None = None) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
    outcome = destination.end(last)
    assert outcome is not None
    destination.settle(destination.decide())
    return outcome


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    destination = made()
    assert destination.receive(1, False, 1.0) is Verdict.NEW
    assert destination.acknowledgement().ranges == ()
    destination.acknowledge(1)
    assert destination.acknowledgement().ranges == ((1, 1),)


def test_what_was_accepted_once_is_a_duplicate_even_before_it_is_durable() -> None:
    destination = made()
    assert destination.receive(1, False, 1.0) is Verdict.NEW
    assert destination.receive(1, False, 1.0) is Verdict.DUPLICATE


def test_in_order_an_early_message_is_held_until_the_gap_closes() -> None:
    destination = made()
    assert store(destination, 3, 2) == []
    assert destination.acknowledgement().ranges == ((2, 3),)
    assert store(destination, 1) == [1, 2, 3]


def test_without_order_everything_goes_on_as_it_comes() -> None:
    assert store(made(assurance="exactly-once"), 3, 1, 2) == [3, 1, 2]


def test_at_most_once_in_order_never_goes_back() -> None:
    destination = made(assurance="at-most-once in-order")
    assert store(destination, 1, 3, 2, 4) == [1, 3, 4]
    assert destination.acknowledgement().ranges == ((1, 4),)


def test_at_most_once_in_order_drops_nothing_where_replies_go_back() -> None:
    destination = made(assurance="at-most-once in-order")
    destination.offered = "urn:offered"
    assert store(destination, 1, 3, 2) == [1, 2, 3]


def test_at_most_128_ranges_are_kept_and_the_first_gap_can_always_be_closed() -> None:
    destination = made(assurance="exactly-once")
    odd = list(range(3, 3 + 2 * 127, 2))
    store(destination, *odd)
    assert len(destination.accepted) == 127
    assert destination.receive(odd[-1] + 2, False, 1.0) is Verdict.NOT_YET
    assert destination.receive(odd[-1] + 1, False, 1.0) is Verdict.NEW  # joins a range
    assert destination.receive(1, False, 1.0) is Verdict.NEW
    assert len(destination.accepted) <= 128


def test_messages_held_beyond_a_gap_are_limited_and_reported_as_buffer_remaining() -> None:
    destination = made(buffer=3)
    store(destination, 2, 3, 4)
    assert destination.acknowledgement().buffer_remaining == 0
    assert destination.receive(5, False, 1.0) is Verdict.NOT_YET
    assert store(destination, 1) == [1, 2, 3, 4]
    assert destination.acknowledgement().buffer_remaining == 3
    assert made(advertise_buffer=False).acknowledgement().buffer_remaining is None


def test_discard_entire_sequence_holds_everything_and_stays_open_beyond_its_buffer() -> None:
    destination = made(incomplete_sequence_behavior=ALL.DISCARD_ENTIRE_SEQUENCE, buffer=2)
    assert store(destination, 1, 2, 3, 4, 5) == []
    assert destination.acknowledgement().buffer_remaining == 2
    assert end(destination, 5) == ([1, 2, 3, 4, 5], [], [])


@pytest.mark.parametrize("assurance", ["exactly-once", "exactly-once in-order", "at-most-once in-order"])
@pytest.mark.parametrize(
    ("behavior", "released", "discarded"),
    [
        (ALL.NO_DISCARD, {1, 2, 4, 5}, set()),
        (ALL.DISCARD_FOLLOWING_FIRST_GAP, {1, 2}, {4, 5}),
        (ALL.DISCARD_ENTIRE_SEQUENCE, set(), {1, 2, 4, 5}),
    ],
)
def test_a_sequence_that_ends_with_a_gap_is_treated_as_its_behaviour_says(
    assurance: str, behavior: ALL, released: set[int], discarded: set[int]
) -> None:
    destination = made(assurance=assurance, incomplete_sequence_behavior=behavior)
    before = store(destination, 1, 2, 4, 5)
    after, dropped, gaps = end(destination, 5)
    assert {*before, *after} == released
    assert set(dropped) == discarded
    assert gaps == [(3, 3)]


@pytest.mark.parametrize("behavior", list(ALL))
def test_a_sequence_that_ends_without_a_gap_is_delivered_whole(behavior: ALL) -> None:
    destination = made(incomplete_sequence_behavior=behavior)
    before = store(destination, 2, 1, 3)
    after, dropped, gaps = end(destination, 3)
    assert [*before, *after] == [1, 2, 3]
    assert (dropped, gaps) == ([], [])


def test_a_missing_tail_shows_by_last_msg_number() -> None:
    destination = made()
    store(destination, 1, 2)
    assert end(destination, 4)[2] == [(3, 4)]


def test_final_is_said_in_1_1_only_and_not_before_the_end_is_durable() -> None:
    for rm, final in (("1.1", True), ("1.0", False)):
        destination = made(rm)
        store(destination, 1)
        assert not destination.acknowledgement().final
        destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
        destination.end(None)
        assert not destination.acknowledgement().final
        destination.settle(destination.decide())
        assert destination.acknowledgement().final is final


def test_a_number_above_the_limit_is_a_rollover_as_its_version_writes_it() -> None:
    for rm, named, is_over in (("1.1", 5, False), ("1.0", None, True)):
        destination = made(rm, max_message_number=5)
        fault = destination.receive(6, False, 1.0)
        assert isinstance(fault, Fault)
        assert (fault.code, fault.max_message_number, destination.is_over) == ("MessageNumberRollover", named, is_over)
        assert destination.last_fault == "MessageNumberRollover"


def test_a_number_after_last_message_is_a_fault() -> None:
    for rm, code in (("1.1", "SequenceClosed"), ("1.0", "LastMessageNumberExceeded")):
        destination = made(rm)
        assert destination.receive(2, True, 1.0) is Verdict.NEW
        fault = destination.receive(3, False, 1.0)
        assert isinstance(fault, Fault)
        assert fault.code == code


def test_a_repeated_last_message_changes_nothing() -> None:
    destination = made("1.0")
    assert destination.receive(2, True, 1.0) is Verdict.NEW
    assert destination.receive(2, True, 1.0) is Verdict.DUPLICATE
    assert destination.last_message_number == 2


def test_the_number_of_an_empty_last_message_is_passed_over_in_order() -> None:
    destination = made("1.0")
    assert destination.receive(2, True, 1.0) is Verdict.NEW
    destination.marker = 2
    destination.acknowledge(2)
    assert store(destination, 1) == [1]
    assert destination.next_in_order == 3


def test_a_closed_sequence_takes_nothing_new_and_still_acknowledges_what_it_has() -> None:
    destination = made()
    store(destination, 1)
    destination.handle(DestinationEvent.CLOSE_SEQUENCE)
    destination.end(None)
    destination.settle(destination.decide())
    assert destination.receive(1, False, 2.0) is Verdict.DUPLICATE
    fault = destination.receive(2, False, 2.0)
    assert isinstance(fault, Fault) and fault.code == "SequenceClosed"


def test_a_restart_finds_it_as_it_was() -> None:
    destination = made()
    destination.offered = "urn:offered"
    destination.replies.numbers = {1: 1}
    store(destination, 1, 3)
    destination.receive(4, False, 1.0)
    destination.hold(4)
    destination.replies.awaiting.add(4)
    again = RMDestination.from_state(destination.to_state(), [3, 4], destination.policy, 9.0)
    assert again.acknowledged.as_pairs() == ((1, 1), (3, 3))  # 4 still waits for its reply
    assert again.accepted == destination.accepted
    assert again.next_in_order == 2
    assert again.replies.numbers == {1: 1}
    assert again.offered == "urn:offered"
    assert again.receive(4, False, 9.0) is Verdict.DUPLICATE
    assert store(again, 2) == [2, 3, 4]


def test_neither_a_clock_set_back_nor_downtime_changes_when_a_sequence_expires() -> None:
    destination = made(inactivity_timeout=10.0)
    destination.expires, destination.expires_at = 60.0, 60.0
    back = RMDestination.from_state(destination.to_state(), [], destination.policy, -86_400.0)
    assert back.expires_at == -86_400.0 + 60.0
    forward = RMDestination.from_state(destination.to_state(), [], destination.policy, 50.0)
    assert forward.deadline() == 60.0  # both: ten seconds from now, and when its time is up
    assert forward.last_activity == 50.0


def test_a_repeat_that_need_not_be_held_leaves_the_advertised_buffer_as_it_is() -> None:
    destination = made()
    store(destination, 1, 2)
    assert destination.receive(2, False, 2.0, may_hold=False) is Verdict.DUPLICATE
    assert destination.acknowledgement().buffer_remaining == destination.policy.buffer
    assert destination.receive(4, False, 2.0, may_hold=False) is Verdict.NOT_YET
    assert destination.acknowledgement().buffer_remaining == 1, "the next in order needs no room"
