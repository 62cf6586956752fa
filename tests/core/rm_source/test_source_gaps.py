"""A Source whose destination takes messages in order only and drops, with an empty answer, what follows a gap."""

from __future__ import annotations

from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.rm_source.window import PRICE, Early
from holdfast.core.states.outbound import Request, SourceAction, SourceEvent
from holdfast.core.versions import RM, SOAP, Addressing, Versions

EVERY_RECORD = dict.fromkeys(range(10_000), Record("key", 0, "urn:a", b"<x/>", 0.0))
"""All are in memory."""


def open_source(available: int) -> RMSource:
    versions = Versions(RM.V1_1, Addressing.V2005_08, SOAP.V1_2)
    source = RMSource("urn:local", "key", versions, SourcePolicy(), 0.0)
    source.create(0.0)
    assert source.request_to_send(0.0, 0.0) is Request.CREATE
    assert source.created("urn:sequence", None, 0.1)
    source.handle(SourceEvent.GRANT_DURABLE)
    source.numbers.available = available
    source.numbers.mark = source.numbers.durable_mark = 1 << 20
    return source


def transmit(source: RMSource, now: float) -> list[int]:
    numbers = source.numbers_to_send(now, EVERY_RECORD)
    for number in numbers:
        source.sent(number, None, 0.0, now)
    return numbers


def acknowledge(source: RMSource, upper: int, now: float) -> None:
    ack = SequenceAcknowledgement("urn:sequence", ((1, upper),))
    assert source.receive_acknowledgement(ack, now)[0] is SourceAction.MARK


def test_messages_dropped_behind_a_gap_follow_once_the_gap_is_filled() -> None:
    source = open_source(4)
    assert transmit(source, 1.0) == [1, 2, 3, 4]
    for number in (2, 3, 4):
        source.transmissions.answered(number, 1.0, in_answers=True)
    source.not_delivered(1, 1.1)

    assert transmit(source, 60.0) == [1]  # however late it is: the others wait for it
    acknowledge(source, 1, 60.1)
    assert source.deadline() == float("-inf")
    first = transmit(source, 60.1)
    assert first[0] == 2
    for number in (2, 3, 4):
        acknowledge(source, number, 60.2)
        transmit(source, 60.2)
    assert source.is_complete


def test_with_an_acknowledging_listener_an_empty_answer_says_nothing_about_a_gap() -> None:
    source = open_source(2)
    assert transmit(source, 1.0) == [1, 2]
    source.transmissions.answered(2, 1.0, in_answers=False)
    assert transmit(source, 60.0) == [1, 2]


def test_a_message_behind_a_gap_does_not_back_off_for_it() -> None:
    source = open_source(2)
    transmit(source, 1.0)
    for round_ in range(8):
        source.transmissions.answered(2, 1.0, in_answers=True)
        source.flight[2].waits_for = 0  # as if the gap had been filled and another one opened
        source.flight[2].due = now = 100.0 * (round_ + 1)
        source.flight[1].due = now + 1
        assert transmit(source, now) == [2]
    assert source.flight[2].due - now == source.pace.round_trip.delay(1, 0.0)


def test_a_create_sequence_whose_connection_broke_is_repeated_before_its_timeout() -> None:
    versions = Versions(RM.V1_1, Addressing.V2005_08, SOAP.V1_2)
    source = RMSource("urn:local", "key", versions, SourcePolicy(), 0.0)
    source.create(0.0)
    source.request_to_send(0.0, 0.0)
    assert source.control.due == source.policy.retransmission.initial
    source.not_delivered(0, 0.0)
    assert source.control.due == source.policy.retransmission.floor


def test_a_message_that_fills_a_gap_is_sent_though_the_buffer_is_full() -> None:
    source = open_source(3)
    assert transmit(source, 1.0) == [1, 2, 3]
    state = source.to_state()
    state["mark"] = 3
    after = RMSource.from_state(state, SourcePolicy(), 3, 2.0)
    ack = SequenceAcknowledgement("urn:sequence", ((1, 1), (3, 3)), buffer_remaining=0)
    assert after.receive_acknowledgement(ack, 2.0)[0] is SourceAction.MARK
    assert transmit(after, 2.0) == [2]
    assert transmit(after, 2.0) == []


def racing() -> RMSource:
    """The destination takes 1 and drops 2, 3 and 4, which overtook it."""
    source = open_source(10_000)
    assert transmit(source, 1.0) == [1, 2, 3, 4]
    for number in (2, 3, 4):
        source.transmissions.answered(number, 1.01, in_answers=True)
    acknowledge(source, 1, 1.02)
    return source


def test_a_message_that_overtook_another_goes_again_at_once() -> None:
    source = open_source(2)
    transmit(source, 1.0)
    acknowledge(source, 1, 1.02)
    assert transmit(source, 1.02) == []
    source.transmissions.answered(2, 1.03, in_answers=True)
    assert transmit(source, 1.03) == [2]
    source.transmissions.answered(2, 1.05, in_answers=True)
    assert transmit(source, 1.05) == [], "it was sent behind no other: an empty answer says nothing of a gap"
    assert source.deadline() is not None


def test_a_late_answer_means_nothing_if_acknowledgements_come_to_a_listener() -> None:
    source = open_source(2)
    transmit(source, 1.0)
    acknowledge(source, 1, 1.02)
    source.transmissions.answered(2, 1.03, in_answers=False)
    assert transmit(source, 1.03) == []


def test_a_request_whose_reply_is_being_stored_was_not_dropped() -> None:
    source = open_source(8)
    for number in source.numbers_to_send(1.0, EVERY_RECORD):
        source.sent(number, f"urn:m:{number}", 0.0, 1.0)
    window = source.pace.size
    for number in (1, 2, 3):
        source.waiting.replying.add(number)
        source.transmissions.answered(number, 1.01, in_answers=True)
        source.replied(number, 1.02)
    assert (source.pace.window.early, source.pace.size) == (Early.UNKNOWN, window + 3)
    assert source.numbers_to_send(1.02, EVERY_RECORD) == [5, 6, 7, 8]


def test_a_message_dropped_in_a_race_halves_the_window_and_goes_first() -> None:
    source = racing()
    assert source.pace.size == 5
    assert transmit(source, 1.02) == [2, 3]
    assert source.pace.size == 2
    source.transmissions.answered(3, 1.03, in_answers=True)
    assert transmit(source, 1.03) == [], "what is new would be dropped behind the gap"
    acknowledge(source, 2, 1.04)
    assert transmit(source, 1.04) == [3], "of the second race the window is one"
    assert source.pace.size == 1


def test_with_a_window_of_one_numbers_go_alone_until_the_drops_are_paid_for() -> None:
    source = racing()
    now, together = 1.02, []
    for number in range(2, 400):
        numbers = transmit(source, now)
        assert number in numbers or number in source.flight
        for early in [one for one in numbers if one > number]:
            together.append(early)
            source.transmissions.answered(early, now + 0.001, in_answers=True)
        now += 0.01
        acknowledge(source, number, now)
    assert 3 <= len(together) <= 10 + 400 / PRICE


def test_a_gap_that_a_loss_made_counts_as_no_race() -> None:
    source = open_source(10)
    transmit(source, 1.0)
    for number in (2, 3, 4):
        source.transmissions.answered(number, 1.1, in_answers=True)
    assert transmit(source, 2.5) == [1]
    acknowledge(source, 1, 2.6)
    transmit(source, 2.6)
    assert source.pace.window.early is Early.UNKNOWN


def test_an_acknowledgement_above_a_gap_shows_that_early_messages_are_taken() -> None:
    source = racing()
    transmit(source, 1.02)
    ack = SequenceAcknowledgement("urn:sequence", ((1, 1), (3, 3)))
    source.receive_acknowledgement(ack, 1.03)
    assert source.pace.window.early is Early.TAKES
    source.transmissions.answered(2, 1.04, in_answers=True)
    assert 2 not in transmit(source, 1.04)


def test_a_late_acknowledgement_of_an_empty_answer_shows_that_early_ones_stay() -> None:
    source = open_source(40)
    transmit(source, 1.0)
    source.transmissions.answered(1, 1.01, in_answers=True)
    source.transmissions.answered(2, 1.01, in_answers=True)
    acknowledge(source, 3, 1.02)
    assert source.pace.window.early is Early.TAKES
    source.transmissions.answered(4, 1.03, in_answers=True)
    assert 4 not in transmit(source, 1.03), "it may be acknowledged later, too"


def test_a_request_whose_reply_is_not_ready_is_not_taken_for_one_that_was_dropped() -> None:
    for seconds, again in ((0.1, [2]), (30.0, [])):
        source = open_source(2)
        for number in source.numbers_to_send(1.0, EVERY_RECORD):
            source.sent(number, f"urn:m:{number}", 0.0, 1.0)
        source.replied(1, 1.05)
        source.flight.ended(1, None)
        source.flight.ended(2, 1.0 + seconds + 0.5)
        source.transmissions.answered(2, 1.0 + seconds, in_answers=True)
        assert source.numbers_to_send(1.0 + seconds, EVERY_RECORD) == again


def test_a_message_that_was_dropped_is_not_called_unheard() -> None:
    source = open_source(2)
    transmit(source, 1.0)
    acknowledge(source, 1, 1.02)
    source.transmissions.answered(2, 1.03, in_answers=True)
    assert source.silence(2) == 0
