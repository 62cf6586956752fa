"""How many partitions each node should own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.shares import cut_off_among, cut_off_by, shares, shares_of, surplus

OWNED = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 64), min_size=1, max_size=12)


@given(OWNED, st.integers(1, 64))
def test_the_shares_are_even_and_include_every_partition(owned: dict[str, int], partitions: int) -> None:
    found = shares(owned, partitions)
    assert found.keys() == owned.keys()
    assert sum(found.values()) == partitions
    assert max(found.values()) - min(found.values()) <= 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=8))
def test_what_an_operator_moved_stays_and_the_rest_is_even(nodes: list[tuple[int, int]]) -> None:
    owned = {f"n{number}": moved + others for number, (moved, others) in enumerate(nodes)}
    pinned = {f"n{number}": moved for number, (moved, _) in enumerate(nodes)}
    found = shares(owned, sum(owned.values()), pinned)
    assert found.keys() == owned.keys() and sum(found.values()) == sum(owned.values())
    assert all(found[name] >= pinned[name] for name in found)
    least = min(found.values())
    assert all(found[name] <= max(pinned[name], least + 1) for name in found)


def test_nodes_divide_what_an_operator_left_to_them() -> None:
    assert shares({"a": 4, "b": 2, "c": 0}, 6, {"a": 4}) == {"a": 4, "b": 1, "c": 1}


@given(OWNED)
def test_even_shares_stay_where_they_are(owned: dict[str, int]) -> None:
    even = shares(owned, sum(owned.values())) if sum(owned.values()) else {}
    assert shares(even, sum(even.values())) == even


@given(OWNED, st.data())
def test_failing_nodes_take_nothing_and_those_cut_off_keep_nothing(owned: dict[str, int], data: st.DataObject) -> None:
    some = st.sets(st.sampled_from(sorted(owned)))
    failing, cut_off, partitions = data.draw(some), data.draw(some), max(1, sum(owned.values()))
    found = shares_of(owned, partitions, failing, cut_off)
    assert found.keys() == owned.keys() and sum(found.values()) == partitions
    if owned.keys() - failing - cut_off:
        assert not any(found[name] for name in cut_off)
        assert all(found[name] <= owned[name] for name in failing)
    else:
        assert found == shares(owned, partitions)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_nodes_that_give_a_quarter_and_take_what_is_free_become_even(owned: list[int]) -> None:
    counts = {f"n{number}": count for number, count in enumerate(owned)}
    partitions = sum(owned)
    for _ in range(60):
        wanted = shares(counts, partitions)
        given_away = {name: surplus(count, wanted[name]) for name, count in counts.items()}
        free = sum(given_away.values())
        counts = {name: count - given_away[name] for name, count in counts.items()}
        for name in sorted(counts):
            taken = min(free, max(0, wanted[name] - counts[name]))
            counts[name] += taken
            free -= taken
        assert not free
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_node_is_cut_off_by_those_that_cannot_reach_it_if_they_are_most() -> None:
    unreachable = {"a": ["b", "c"], "b": ["c"], "c": ["a"], "d": []}
    assert [cut_off_by(name, unreachable) for name in "abcdx"] == [(), (), ("a", "b"), (), ()]
    assert cut_off_among(unreachable) == {"c"}
    assert cut_off_by("a", {"a": ["a"]}) == ("a",), "a node that cannot reach itself"


def test_without_nodes_there_are_no_shares() -> None:
    assert shares({}, 24) == {}


def test_a_node_gives_at_most_a_quarter_at_a_time_and_at_least_one() -> None:
    assert [surplus(owned, 0) for owned in (0, 1, 4, 5, 24)] == [0, 1, 1, 2, 6]
    assert surplus(24, 22) == 2
    assert surplus(3, 8) == 0
