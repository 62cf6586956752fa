"""A Source whose destination takes messages in order only and drops, with an empty answer, what follows a gap."""

from __future__ import annotations

from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.source import RMSource
from holdfast.core.states import Request, SourceAction, SourceEvent
from holdfast.core.versions import RM, SOAP, Addressing, Versions

EVERY_RECORD = dict.fromkeys(range(10_000), Record("key", 0, "urn:a", b"<x/>", 0.0))
"""All are in memory."""


def open_source(available: int, rm: RM = RM.V1_1) -> RMSource:
    versions = Versions(rm, Addressing.V2005_08, SOAP.V1_2)
    source = RMSource("urn:local", "key", versions, SourcePolicy(), 0.0)
    source.create(0.0)
    assert source.request_to_send(0.0, 0.0) is Request.CREATE
    assert source.created("urn:sequence", None, 0.1)
    source.handle(SourceEvent.GRANT_DURABLE)
    source.available = available
    source.mark = source.durable_mark = 1 << 20
    return source


def transmit(source: RMSource, now: float) -> list[int]:
    numbers = source.numbers_to_send(now, EVERY_RECORD)
    for number in numbers:
        source.sent(number, None, 0.0, now)
    return numbers


def acknowledge(source: RMSource, upper: int, now: float) -> None:
    ack = SequenceAcknowledgement("urn:sequence", ((1, upper),))
    assert source.receive_acknowledgement(ack, now)[0] is SourceAction.MARK


def test_what_was_dropped_behind_a_gap_follows_as_soon_as_the_gap_is_filled_and_not_before() -> None:
    source = open_source(4)
    assert transmit(source, 1.0) == [1, 2, 3, 4]
    for number in (2, 3, 4):
        source.answered(number, in_answers=True)
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
    source.answered(2, in_answers=False)
    assert transmit(source, 60.0) == [1, 2]


def test_a_message_behind_a_gap_does_not_back_off_for_it() -> None:
    source = open_source(2)
    transmit(source, 1.0)
    for round_ in range(8):
        source.answered(2, in_answers=True)
        source.flight[2].waits_for = 0  # as if the gap had been filled and another one opened
        source.flight[2].due = now = 100.0 * (round_ + 1)
        source.flight[1].due = now + 1
        assert transmit(source, now) == [2]
    assert source.flight[2].due - now == source.round_trip.delay(1, 0.0)


def test_a_create_sequence_whose_connection_broke_is_repeated_before_its_timeout() -> None:
    versions = Versions(RM.V1_1, Addressing.V2005_08, SOAP.V1_2)
    source = RMSource("urn:local", "key", versions, SourcePolicy(), 0.0)
    source.create(0.0)
    source.request_to_send(0.0, 0.0)
    assert source.due == source.policy.retransmission.initial
    source.not_delivered(0, 0.0)
    assert source.due == source.policy.retransmission.floor


def test_what_fills_a_gap_is_sent_though_the_buffer_is_full_as_nothing_else_would_empty_it() -> None:
    source = open_source(3)
    assert transmit(source, 1.0) == [1, 2, 3]
    state = source.to_state()
    state["mark"] = 3
    after = RMSource.from_state(state, SourcePolicy(), 3, 2.0)
    ack = SequenceAcknowledgement("urn:sequence", ((1, 1), (3, 3)), buffer_remaining=0)
    assert after.receive_acknowledgement(ack, 2.0)[0] is SourceAction.MARK
    assert transmit(after, 2.0) == [2]
    assert transmit(after, 2.0) == []
