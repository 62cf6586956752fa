"""Whether a request is new: each number of a sender once, and each challenge for two periods."""

from __future__ import annotations

from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.endpoint.workers.request_freshness import (
    MOST_SENDERS,
    PERIOD,
    WINDOW,
    RequestFreshness,
    RequestStamps,
    parts_of,
)


def made() -> RequestFreshness:
    numbers = count(1)
    return RequestFreshness(lambda: f"challenge{next(numbers)}")


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=60))
def test_a_number_counts_once_and_only_within_the_window(numbers: list[int]) -> None:
    freshness = made()
    challenge = freshness.challenge(0.0)
    admitted: set[int] = set()
    for number in numbers:
        is_new = number not in admitted and number > max(admitted, default=0) - WINDOW
        assert freshness.admit(f"{challenge}.s.{number}", 0.0) == is_new
        admitted |= {number} if is_new else set()


def test_senders_count_apart_and_a_huge_number_costs_nothing() -> None:
    freshness = made()
    challenge = freshness.challenge(0.0)
    assert [freshness.admit(f"{challenge}.{sender}.1", 0.0) for sender in "aba"] == [True, True, False]
    assert freshness.admit(f"{challenge}.a.{10**17}", 0.0)
    assert [freshness.admit(f"{challenge}.a.{10**17 - n}", 0.0) for n in (1, WINDOW - 1, WINDOW)] == [True, True, False]
    assert not freshness.admit(f"{challenge}.a.1", 0.0)


def test_a_challenge_counts_for_two_periods_and_its_numbers_are_remembered_as_long() -> None:
    freshness = made()
    first = freshness.challenge(0.0)
    assert freshness.admit(f"{first}.s.1", PERIOD - 1)
    second = freshness.challenge(PERIOD)
    assert second != first
    assert freshness.admit(f"{first}.s.2", PERIOD) and not freshness.admit(f"{first}.s.1", PERIOD)
    assert freshness.admit(f"{second}.s.1", PERIOD)
    assert not freshness.admit(f"{first}.s.3", 2 * PERIOD)
    assert not freshness.admit(f"{second}.s.4", 9 * PERIOD), "nobody asked for long"


def test_too_many_senders_begin_another_challenge_and_no_number_counts_twice() -> None:
    freshness = made()
    challenge = freshness.challenge(0.0)
    assert all(freshness.admit(f"{challenge}.s{n}.1", 0.0) for n in range(MOST_SENDERS))
    assert not freshness.admit(f"{challenge}.one_more.1", 0.0)
    assert freshness.challenge(0.0) != challenge
    assert not freshness.admit(f"{challenge}.s1.1", 0.0) and not freshness.admit(f"{challenge}.s1.2", 0.0)


@pytest.mark.parametrize("stamp", ["", ".", "..", ".s.1", "c.s", "c.s.", "c.s.x", "c.s.-1", "c.s.1.2", "c.s.²", "c..1"])
def test_what_is_no_stamp_is_not_new(stamp: str) -> None:
    freshness = made()
    freshness.challenge(0.0)
    assert not freshness.admit(stamp.replace("c", "challenge1"), 0.0)
    assert not freshness.admit("challenge1.s." + "9" * 5000, 0.0)


def test_the_stamps_of_one_sender_never_repeat_whatever_it_learns() -> None:
    stamps = RequestStamps("s")
    assert stamps.next("http://b/1") == ".s.1"
    stamps.learn("http://b/1", "c")
    assert (stamps.next("http://b/1"), stamps.next("http://b/2")) == ("c.s.2", ".s.3")
    for number in range(MOST_SENDERS):
        stamps.learn(f"http://b/{number + 2}", "d")
    assert parts_of(stamps.next("http://b/1")) == ("", "s", 4), "forgotten, so it learns it again"
