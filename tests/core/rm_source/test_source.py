"""RMSource and the retransmission timer: numbers, windows, acknowledgements, and the way to the end.

Covers core/rm_source/saved_state.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy, RoundTrip
from holdfast.core.rm_source.source import RMSource
from holdfast.core.states.outbound import DoubtAction, DoubtEvent, Request, SourceAction, SourceEvent, SourceState
from holdfast.core.versions import Versions

EVERY_RECORD = dict.fromkeys(range(10_000), Record("key", 0, "urn:a", b"<x/>", 0.0))
"""All are in memory."""


def opened(available: int = 0, rm: str = "1.1", **policy: Any) -> RMSource:
    source = RMSource("urn:local", "key", Versions(rm), SourcePolicy(**policy), 0.0)
    source.create(0.0)
    assert source.request_to_send(0.0, 0.0) is Request.CREATE
    assert source.created("urn:s", None, 0.0)
    assert source.handle(SourceEvent.GRANT_DURABLE) is SourceAction.BEGIN
    source.numbers.available = available
    source.numbers.mark = source.numbers.durable_mark = 1 << 20
    return source


def send(source: RMSource, now: float = 0.0) -> list[int]:
    if source.handle(SourceEvent.TURN) is not SourceAction.TRANSMIT:
        return []
    numbers = source.numbers_to_send(now, EVERY_RECORD)
    for number in numbers:
        source.sent(number, None, 0.0, now)
    return numbers


def roll_over(source: RMSource, limit: int | None, refused: int, now: float) -> None:
    assert source.handle(SourceEvent.ROLLOVER_FAULT) is SourceAction.STOP_NUMBERING
    source.doubt.roll_over(limit, refused, now)


def end(source: RMSource, now: float) -> None:
    """Take the next step towards the end, save it and have every reply."""
    if source.proceed():
        source.end_saved()
    source.tell_end(now)


def acknowledge(source: RMSource, *ranges: tuple[int, int], now: float = 0.1, **more: Any) -> list[tuple[int, int]]:
    action, newly = source.receive_acknowledgement(SequenceAcknowledgement("urn:s", ranges, **more), now)
    assert action not in (None, SourceAction.RAISE_INVALID_ACKNOWLEDGEMENT)
    return newly


def test_no_more_than_the_window_is_in_flight_and_it_grows_with_what_is_acknowledged() -> None:
    source = opened(20, initial_window=2, window=4)
    assert send(source) == [1, 2]
    assert send(source) == []
    assert acknowledge(source, (1, 2)) == [(1, 2)]
    assert send(source, 0.1) == [3, 4, 5, 6]
    acknowledge(source, (1, 6), now=0.2)
    assert len(send(source, 0.2)) == 4


def test_only_durable_messages_are_sent() -> None:
    source = opened(1)
    assert send(source) == [1]
    source.numbers.available = 2
    assert send(source) == [2]


def test_the_peers_buffer_closes_the_window_and_polling_finds_it_open_again() -> None:
    source = opened(9, initial_window=4, poll_interval=3.0, keep_alive=100.0)
    send(source)
    acknowledge(source, (1, 4), buffer_remaining=0)
    assert send(source, 0.1) == []
    assert source.deadline() == pytest.approx(3.0, abs=0.2)
    assert source.request_to_send(0.0, 3.5) is Request.ACK_REQUESTED
    acknowledge(source, (1, 4), buffer_remaining=2, now=3.6)
    assert send(source, 3.6) == [5, 6]


def test_acknowledgements_merge_and_an_older_one_takes_nothing_back() -> None:
    source = opened(4, initial_window=4)
    send(source)
    assert acknowledge(source, (1, 1), (3, 3)) == [(1, 1), (3, 3)]
    assert acknowledge(source, (1, 1)) == []
    assert acknowledge(source, (1, 4)) == [(2, 2), (4, 4)]
    assert source.is_complete


@pytest.mark.parametrize(
    "acknowledgement",
    [
        SequenceAcknowledgement("urn:s", ((1, 9),)),
        SequenceAcknowledgement("urn:s", ((2, 1),)),
        SequenceAcknowledgement("urn:s", ((0, 1),)),
        SequenceAcknowledgement("urn:s", ((1, 1),), nacks=(2,)),
        SequenceAcknowledgement("urn:s", (), nacks=(9,)),
        SequenceAcknowledgement("urn:s", tuple((n, n) for n in range(1, 400, 2))),
    ],
)
def test_an_invalid_acknowledgement_is_refused_and_changes_nothing(
    acknowledgement: SequenceAcknowledgement,
) -> None:
    source = opened(3, initial_window=3)
    send(source)
    action, newly = source.receive_acknowledgement(acknowledgement, 0.1)
    assert action is SourceAction.RAISE_INVALID_ACKNOWLEDGEMENT
    assert newly == []
    assert source.acknowledged.count == 0


def test_none_acknowledges_nothing_and_is_a_sign_of_life() -> None:
    source = opened(2)
    send(source)
    assert acknowledge(source, now=5.0) == []
    assert source.life.last_heard == 5.0


def test_a_nack_is_answered_by_that_message_at_once() -> None:
    source = opened(3, initial_window=3)
    send(source)
    assert acknowledge(source, nacks=(2,), now=0.2) == []
    assert send(source, 0.2) == [2]


def test_an_unacknowledged_message_is_due_after_a_timeout_that_grows() -> None:
    policy = RetransmissionPolicy(initial=1.0, floor=0.5, cap=3.0, jitter=0.0)
    source = opened(1, retransmission=policy)
    source.pace.round_trip = RoundTrip(policy)
    send(source)
    for due in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 11.0):
        assert source.deadline() == due
        assert send(source, due - 0.01) == []
        assert send(source, due) == [1]


def test_a_transport_that_surely_failed_is_tried_again_soon() -> None:
    source = opened(1, retransmission=RetransmissionPolicy(initial=10.0, floor=0.5, jitter=0.0))
    source.pace.round_trip = RoundTrip(source.policy.retransmission)
    send(source)
    source.not_delivered(1, 0.0)
    assert source.deadline() == 0.5


def test_a_request_is_not_acknowledged_before_its_reply_is_durable() -> None:
    source = opened(1)
    (number,) = source.numbers_to_send(0.0, EVERY_RECORD)
    source.sent(number, "urn:m1", 0.0, 0.0)
    assert acknowledge(source, (1, 1)) == []
    assert not source.is_complete
    assert source.replied(1, 0.2)
    assert source.is_complete
    assert not source.replied(1, 0.3)


def test_a_reply_on_its_way_to_the_store_is_saved_as_acknowledged_with_it() -> None:
    source = opened(1)
    source.sent(source.numbers_to_send(0.0, EVERY_RECORD)[0], "urn:m1", 0.0, 0.0)
    source.waiting.replying.add(1)
    again = RMSource.from_state(source.to_state(), source.policy, 1, 1.0)
    assert again.is_complete


def test_the_limit_makes_the_sequence_full_and_a_rollover_fault_lowers_it() -> None:
    full = opened(9, max_message_number=3, initial_window=8, window=8)
    assert send(full) == [1, 2, 3]
    assert full.state is SourceState.ROLLOVER
    assert full.numbers.is_full
    for source in (full, opened(9, initial_window=8, window=8)):
        send(source)
        acknowledge(source, (1, 1))
        roll_over(source, 2, 3, 0.2)
        assert source.numbers.is_full
        assert sorted(source.flight) == [2]
        acknowledge(source, (1, 2))
        assert not source.is_complete, "it may have taken more before it lowered its limit"
        assert source.request_to_send(0.0, 0.3) is Request.ACK_REQUESTED
        acknowledge(source, (1, 2))
        assert source.is_complete


def test_a_rollover_without_a_limit_ends_before_the_refused_number() -> None:
    source = opened(9, initial_window=8, window=8)
    send(source)
    acknowledge(source, (1, 2))
    roll_over(source, None, 6, 0.2)
    assert sorted(source.flight) == [3, 4, 5], "they may have arrived, and are sent again in this Sequence only"
    roll_over(source, None, 5, 0.3)
    assert sorted(source.flight) == [3, 4]
    assert source.request_to_send(0.0, 0.3) is Request.ACK_REQUESTED
    assert acknowledge(source, (1, 4), (7, 7), now=0.4) == [(3, 4), (7, 7)], "7 came before the limit was lowered"
    assert source.is_complete
    assert 7 in source.acknowledged


def test_with_the_refused_number_unknown_nothing_moves_before_an_acknowledgement() -> None:
    source = opened(9, initial_window=4)
    send(source)
    roll_over(source, None, 0, 0.2)
    assert sorted(source.flight) == [1, 2, 3, 4]
    assert not source.is_complete and send(source, 0.2) == []
    again = RMSource.from_state(source.to_state(), source.policy, 9, 0.2)
    for one in (source, again):
        assert one.request_to_send(0.0, 0.3) is Request.ACK_REQUESTED
        acknowledge(one, (1, 3), now=0.4)
        assert one.numbers.limit == 3
        assert send(one, 0.5) == []
        assert one.numbers.is_full and one.is_complete


def test_a_peer_is_asked_for_what_it_has_also_when_the_last_number_leaves_meanwhile() -> None:
    """As after a restart: the limit was lowered and saved, and what is below it goes once more."""
    source = opened(9, initial_window=4)
    source.numbers.limit = 2
    source.doubt.ask_what_else(0.1)
    assert send(source, 0.2) == [1, 2] and source.state is SourceState.ROLLOVER
    assert source.request_to_send(0.0, 0.3) is Request.ACK_REQUESTED
    acknowledge(source, (1, 2), now=0.4)
    assert source.is_complete and not source.doubt.is_open


def test_a_peer_that_does_not_acknowledge_is_asked_again_and_then_silent() -> None:
    source = opened(9, initial_window=4)
    send(source)
    roll_over(source, 2, 3, 0.2)
    now = 0.2
    for _ in range(3):
        assert not source.doubt.is_silent(in_answers=True)
        while source.request_to_send(0.0, now) is None:
            now = source.deadline() or 0.0
            send(source, now)
    assert source.doubt.is_silent(in_answers=True) and not source.doubt.is_silent(in_answers=False)
    assert source.doubt.resolve(DoubtEvent.SAYS_NOTHING) is DoubtAction.MOVE
    acknowledge(source, (1, 2), now=now)
    assert source.is_complete


def test_in_1_1_it_closes_then_terminates_and_last_msg_number_stays_what_it_was() -> None:
    source = opened(2, initial_window=2)
    send(source)
    source.want_end()
    assert not source.proceed()
    assert source.request_to_send(0.0, 0.0) is None
    acknowledge(source, (1, 2))
    assert source.proceed()
    assert source.request_to_send(0.0, 0.1) is None, "that it ends is not durable"
    source.end_saved()
    source.tell_end(0.1)
    assert source.request_to_send(0.0, 0.1) is Request.CLOSE
    source.numbers.available = 5
    assert source.is_complete
    assert send(source, 0.1) == []


def test_in_1_0_the_number_of_last_message_is_durable_and_never_reused() -> None:
    source = opened(1, rm="1.0")
    send(source)
    source.want_end()
    acknowledge(source, (1, 1))
    assert source.proceed()
    assert source.numbers.last == 2
    assert send(source, 0.1) == []  # not before it is saved
    source.end_saved()
    source.numbers.available = 2  # submitted meanwhile: for the next Sequence
    assert send(source, 0.2) == [2]
    acknowledge(source, (1, 2), now=0.3)
    assert source.records_done == 1
    end(source, 0.3)
    assert source.request_to_send(0.0, 0.3) is Request.TERMINATE


def test_after_a_crash_numbers_stay_and_unacknowledged_messages_are_sent_again() -> None:
    source = opened(5, initial_window=5)
    send(source)
    acknowledge(source, (1, 2), (4, 4))
    again = RMSource.from_state(source.to_state(), source.policy, 5, 9.0)
    assert again.numbers.start == source.numbers.start
    assert send(again, 9.0) == [3, 5]
    assert acknowledge(again, (1, 5), now=9.1) == [(3, 3), (5, 5)]


def test_after_its_store_was_put_back_it_ends_with_what_it_has_and_hears_of_no_more() -> None:
    source = opened(5)
    assert send(source) == [1, 2, 3, 4]
    acknowledge(source, (1, 2))
    for restart in range(3):
        source = RMSource.from_state(source.to_state(), source.policy, 5 + restart, 10.0)
        if not restart:
            source.numbers.restored()
        assert (source.numbers.limit, source.numbers.is_full) == (5, False)
        heard = source.numbers.known_part(SequenceAcknowledgement("urn:s", ((1, 3), (5, 9), (12, 12))))
        assert heard.ranges == ((1, 3), (5, 5))
    assert send(source, 10.0) == [3, 4, 5]  # and not 6, which another message had
    acknowledge(source, *source.numbers.known_part(SequenceAcknowledgement("urn:s", ((1, 40),))).ranges, now=10.1)
    assert source.numbers.is_full and source.is_complete


def test_a_sequence_that_waited_to_be_durable_does_not_wait_for_ever_after_a_crash() -> None:
    source = RMSource("urn:local", "key", Versions(), SourcePolicy(), 0.0)
    source.create(0.0)
    assert source.created("urn:s", None, 0.0)
    source.numbers.available = source.numbers.mark = 1
    assert send(source) == []
    again = RMSource.from_state(source.to_state(), source.policy, 1, 9.0)
    assert send(again, 9.0) == [1]


def test_an_unanswered_keep_alive_is_not_repeated_at_once() -> None:
    source = opened(0, keep_alive=100.0)
    now = 0.0
    asked = []
    for _ in range(4):
        now = source.deadline() or 0.0
        assert source.request_to_send(0.0, now) is Request.ACK_REQUESTED
        assert source.request_to_send(0.0, now) is None
        asked.append(now)
    assert all(later - earlier >= 50.0 for earlier, later in itertools.pairwise(asked))


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 60), st.floats(0, 0.999))
def test_every_delay_lies_between_floor_and_cap_and_its_jitter(
    samples: list[float], attempts: int, jitter: float
) -> None:
    policy = RetransmissionPolicy(floor=0.5, cap=30.0, jitter=0.1)
    estimate = RoundTrip(policy)
    for sample in samples:
        estimate.sample(sample)
    assert policy.floor <= estimate.timeout <= policy.cap
    assert policy.floor <= estimate.delay(attempts, jitter) <= policy.cap * 1.1


@pytest.mark.parametrize(("steady", "delays"), [(6, [1, 1, 1, 1, 1, 1, 2, 4]), (1, [1, 2, 4, 8, 16, 16, 16, 16])])
def test_the_delay_doubles_after_so_many_steady_transmissions(steady: int, delays: list[float]) -> None:
    estimate = RoundTrip(RetransmissionPolicy(initial=1.0, cap=16.0, steady=steady))
    assert [estimate.delay(attempt, 0.0) for attempt in range(1, 9)] == delays


def test_the_estimate_follows_the_round_trip_and_ignores_a_clock_that_went_back() -> None:
    estimate = RoundTrip(RetransmissionPolicy(floor=0.0))
    for _ in range(100):
        estimate.sample(0.2)
    estimate.sample(-5.0)
    assert estimate.timeout == pytest.approx(0.2, abs=0.01)


def asking(source: RMSource, now: float = 0.0) -> dict[int, bool]:
    """What leaves now, and whether it asks for an acknowledgement."""
    numbers = source.numbers_to_send(now, EVERY_RECORD)
    asked = {}
    for number in numbers:
        asked[number] = source.asks_with(number, is_last=number == numbers[-1])
        source.sent(number, None, 0.0, now, asks=asked[number])
    return asked


def test_the_last_message_that_there_is_asks_for_an_acknowledgement() -> None:
    source = opened(3, initial_window=8, window=8)
    assert asking(source) == {1: False, 2: False, 3: True}
    source.numbers.available = 4
    assert asking(source, 0.1) == {4: True}, "whatever asked before was asked before this one"


def test_where_more_waits_than_the_window_lets_go_one_of_each_round_trip_asks() -> None:
    source = opened(20, initial_window=4, window=8)
    assert asking(source) == {1: False, 2: False, 3: False, 4: True}
    acknowledge(source, (1, 1))
    assert asking(source, 0.2) == {5: False, 6: False}, "4 asks already"
    source.transmissions.answered(4, 1.0, in_answers=True)
    acknowledge(source, (1, 4), now=0.3)
    assert list(asking(source, 0.3).values()).count(True) == 1


def test_whatever_is_sent_again_asks_for_an_acknowledgement() -> None:
    source = opened(9, initial_window=4, window=4, retransmission=RetransmissionPolicy(initial=1.0, floor=0.5, cap=1.0))
    asking(source)
    for now in (2.0, 4.0, 6.0):
        again = asking(source, now)
        assert again and all(again.values())


def test_a_message_is_silent_if_its_answer_is_empty_and_nothing_below_is_missing() -> None:
    source = opened(3, initial_window=3)
    send(source)
    assert [source.silence(1), source.silence(2), source.silence(1)] == [1, 0, 2]
    acknowledge(source, (1, 1))
    assert [source.silence(1), source.silence(2)] == [0, 1]
