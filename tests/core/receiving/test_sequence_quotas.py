"""Counts of Sequences, and which of those that are over is forgotten first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.receiving.sequence_quotas import Shares


@given(st.lists(st.sampled_from(["a", "b", ""]), max_size=20))
def test_it_counts_each_party_and_all_together(parties: list[str]) -> None:
    shares = Shares(5)
    for party in parties:
        shares.opened(party)
    assert shares.open_count == len(parties)
    assert {party: shares.open_of(party) for party in "ab"} == {party: Counter(parties)[party] for party in "ab"}
    assert shares.open_of("") == 0
    for party in parties:
        shares.closed(party)
    assert (shares.open_count, shares.open_of("a"), shares._of_party) == (0, 0, Counter())


def test_the_oldest_that_is_over_is_forgotten_for_the_next() -> None:
    shares = Shares(2)
    assert [shares.remember("1"), shares.remember("2")] == [None, None]
    assert shares.remember("3") == "1"
    shares.forget("1")
    shares.forget("2")
    assert shares.remember("4") is None
    assert shares.remember("5") == "3"
