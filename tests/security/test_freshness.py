"""Freshness: how long a message counts, and how far two clocks may differ."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.exceptions import ConfigurationError
from holdfast.security.freshness import Freshness
from holdfast.security.header import Invalid, Timestamp

NOW = 1_800_000_000.0
SECONDS = st.integers(0, 8_000_000).map(lambda eighths: eighths / 8)
"""Exact as floats, also when they are added to the time."""


def accepts(freshness: Freshness, created: float | None, expires: float | None) -> bool:
    try:
        freshness.check(Timestamp(created, expires), NOW)
    except Invalid:
        return False
    return True


@given(life=SECONDS.filter(bool), skew=SECONDS, age=SECONDS, is_early=st.booleans())
def test_a_message_is_fresh_between_what_the_two_clocks_may_differ(
    life: float, skew: float, age: float, is_early: bool
) -> None:
    created = NOW + age if is_early else NOW - age
    expected = age <= skew if is_early else age <= life + skew
    assert accepts(Freshness(life, skew), created, None) is expected


@given(life=SECONDS.filter(bool), skew=SECONDS, age=SECONDS)
def test_what_is_fresh_is_still_remembered(life: float, skew: float, age: float) -> None:
    """Otherwise a message could be sent twice: once when it is forgotten, but not yet too old."""
    freshness = Freshness(life, skew)
    assert not accepts(freshness, NOW - age, None) or freshness.until(NOW - age) >= NOW


@pytest.mark.parametrize(
    ("created", "expires", "is_fresh"),
    [
        (None, None, True),
        (NOW, NOW + 300, True),
        (NOW - 300, NOW - 60, True),
        (NOW - 300, NOW - 61, False),
        (NOW + 30, NOW + 20, False),
        (None, NOW - 59, True),
        (None, NOW - 61, False),
    ],
)
def test_the_sender_may_write_a_shorter_life(created: float | None, expires: float | None, is_fresh: bool) -> None:
    assert accepts(Freshness(), created, expires) is is_fresh


@pytest.mark.parametrize("wrong", [None, -1, math.nan, math.inf, "5m", True])
@pytest.mark.parametrize("name", ["life", "skew"])
def test_what_is_no_number_of_seconds_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"Freshness\.{name}"):
        Freshness(**{name: wrong})


def test_a_message_that_counts_for_no_time_is_refused_and_clocks_may_agree() -> None:
    assert accepts(Freshness(skew=0), NOW, None)
    with pytest.raises(ConfigurationError, match=r"Freshness\.life"):
        Freshness(life=0)
