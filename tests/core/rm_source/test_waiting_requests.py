"""Requests of one Sequence that wait for a reply. The index over all Sequences: ``tests/core/sending``."""

from __future__ import annotations

from holdfast.core.rm_source.message_numbers import MessageNumbers
from holdfast.core.rm_source.waiting_requests import SequenceRequests


def test_a_request_is_new_unless_it_waits_or_waited_before() -> None:
    waiting = SequenceRequests()
    waiting.before[2] = "urn:m2"
    assert [waiting.transmitted(number, f"urn:m{number}") for number in (1, 1, 2)] == [True, False, False]
    assert waiting.unreplied == {1: "urn:m1", 2: "urn:m2"} and not waiting.before


def test_a_reply_completes_a_request_wherever_it_waits() -> None:
    waiting = SequenceRequests()
    waiting.transmitted(1, "urn:m1")
    waiting.before[2] = "urn:m2"
    waiting.replying.add(1)
    assert [waiting.replied(number) for number in (1, 2, 3)] == ["urn:m1", "urn:m2", None]
    assert not waiting.replying


def test_a_request_above_the_limit_waits_as_one_sent_before() -> None:
    waiting = SequenceRequests()
    waiting.transmitted(1, "urn:m1")
    waiting.set_back(1)
    waiting.set_back(7)
    assert (waiting.unreplied, waiting.before) == ({}, {1: "urn:m1"})


def test_unreplied_requests_of_a_range_are_found_however_wide_it_is() -> None:
    waiting = SequenceRequests()
    for number in (2, 5, 9):
        waiting.transmitted(number, f"urn:m{number}")
    assert waiting.unreplied_within(5, 6) == [5]
    assert waiting.unreplied_within(3, 10**9) == [5, 9]


def test_an_acknowledgement_names_requests_of_an_earlier_run_as_transmitted() -> None:
    waiting, numbers = SequenceRequests(), MessageNumbers(99)
    numbers.next, numbers.sent_before = 3, 6
    waiting.before = {number: f"urn:m{number}" for number in (2, 4, 6, 8)}
    waiting.named(((1, 4), (6, 10**9)), numbers)
    assert ([*waiting.unreplied], [*waiting.before]) == ([4, 6], [2, 8])
