"""Which node has a baton, by the notes in the order of their topic. What nodes do with it: ``test_membership.py``."""

from __future__ import annotations

from itertools import permutations

import pytest

from holdfast.cluster.group.batons import BatonNote, Batons

HOLD = 2.0


def batons(node: str = "a") -> Batons:
    return Batons(node, 1.5, 2, HOLD)


def take(node: str, after: int, epoch: int = 1, *, is_free: bool = False) -> BatonNote:
    return BatonNote(0, node, 1.5, epoch, after, is_free)


def written(of: Batons, *, is_free: bool = False, now: float = 0.0) -> BatonNote:
    note = of.write(0, 1, now, is_free=is_free)
    assert note is not None
    return note


@pytest.mark.parametrize("order", [*permutations("abc")])
def test_of_nodes_that_take_a_baton_at_once_the_first_has_it_and_all_agree(order: tuple[str, ...]) -> None:
    nodes = {name: batons(name) for name in "abc"}
    notes = {name: written(node) for name, node in nodes.items()}
    for offset, name in enumerate(order):
        for node in nodes.values():
            node.read(offset, notes[name], 0.0)
    assert [name for name, node in nodes.items() if node.has(0, 1)] == [order[0]]
    assert {node.taker(0) for node in nodes.values()} == {(order[0], 1.5)}
    assert not any(node.may_take(0) for node in nodes.values()), "what Kafka leaves of these notes could be misread"


def test_a_released_baton_may_be_taken_and_another_one_only_by_its_node() -> None:
    a, b = batons("a"), batons("b")

    def read(offset: int, note: BatonNote) -> tuple[bool, bool]:
        a.read(offset, note, 0.0)
        b.read(offset, note, 0.0)
        return a.may_take(0), b.may_take(0)

    assert (a.may_take(0), b.may_take(0)) == (False, False), "no node has taken it, but one may act without"
    assert read(0, written(a)) == (True, False)
    assert a.has(0, 1) and not a.has(0, 2) and not b.has(0, 1)
    assert read(1, written(a, is_free=True)) == (True, True)
    assert not a.has(0, 1) and not a.may_release(0) and a.taker(0) is None
    assert read(2, written(b)) == (False, True)
    assert read(3, take("a", 1, is_free=True)) == (False, False), "a late note says nothing, but hides the one before"
    assert b.has(0, 1) and not b.may_release(0)


def test_a_node_that_started_later_does_not_count_the_first_note_that_is_left() -> None:
    """The notes before it were deleted, so nobody knows whether it followed the last one."""
    late = batons("c")
    late.read(7, take("a", 5, is_free=True), 0.0)
    assert not late.may_take(0) and late.taker(0) is None
    late.read(9, written(late), 0.0)
    assert late.has(0, 1)


def test_notes_that_are_read_again_change_nothing() -> None:
    a = batons()
    notes = [written(a)]
    a.read(0, notes[0], 0.0)
    notes.append(take("b", 0))
    a.read(1, notes[1], 0.0)
    for offset, note in enumerate(notes):
        a.read(offset, note, 0.0)
    assert not a.has(0, 1) and a.taker(0) == ("b", 1.5)


def test_an_own_note_that_comes_back_after_a_hold_does_not_count() -> None:
    """Meanwhile Kafka may have deleted a note that came before it."""
    for late, has in ((HOLD, True), (HOLD + 0.1, False)):
        a = batons()
        a.read(0, written(a, now=10.0), 10.0 + late)
        assert (a.has(0, 1), a.may_release(0)) == (has, has)


def test_a_note_is_written_again_when_it_has_not_come_back_for_a_hold() -> None:
    a = batons()
    note = written(a, now=10.0)
    assert a.write(0, 1, 10.0 + HOLD, is_free=False) is None
    assert a.write(1, 1, 10.0, is_free=False) is not None, "that is another baton"
    assert written(a, now=10.1 + HOLD) == note
    a.read(0, note, 12.5)
    assert a.has(0, 1)


def test_it_is_quiet_when_looks_have_lasted_for_a_hold_since_the_last_note() -> None:
    a = batons()
    assert a.is_quiet(0, 0.0), "there is no note"
    a.read(0, take("b", -1), 10.0)
    found = []
    for sent, answered in ((9.0, 20.0), (20.1, 20.5), (20.5 + HOLD, 23.0), (20.6 + HOLD, 23.0)):
        a.looked(sent, answered)
        found.append(a.is_quiet(0, sent))
    assert found == [False, False, False, True]
    a.read(1, take("c", -1), 30.0)
    assert not a.is_quiet(0, 40.0), "also one that does not count"
