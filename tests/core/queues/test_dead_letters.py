"""Dead letters: each is there once until it is over, and asked for until it was handed over, whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.commit import GroupCommit
from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.dead_letters import LETTERS, DeadLetters, Letter
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.records import Batch, Record
from holdfast.store.memory import MemoryStore


def letter(name: str) -> Letter:
    return Letter(Record("urn:s", 1, "urn:a", name.encode(), 0.0), "it failed", 1, 0.0)


class Home:
    """Dead letters over a store."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.commit = GroupCommit()
        self.effects: list[Any] = []
        self.letters = DeadLetters(lambda letter: letter.record, lambda record: Letter(record, "", 0, None))
        self.letters.join(self.commit, self.effects, self.store.read)
        self.letters.recover(self.store.load(), 0.0)

    def settle(self) -> None:
        self.store.commit(self.commit.take())
        self.commit.durable(0.0)

    @property
    def there(self) -> dict[int, str]:
        """Number -> name of each letter that is there."""
        found: dict[int, str] = {}
        for first, end in self.letters.ranges():
            for number, one in self.store.read(DEAD_LETTERS, 0, first, end):
                found[number] = one.body.decode()
        return found


def filled(count: int) -> Home:
    home = Home()
    for number in range(count):
        home.letters.add(letter(f"m{number}"))
    home.settle()
    return home


def test_a_letter_is_there_when_it_is_durable_and_for_ever() -> None:
    home = Home()
    assert home.letters.add(letter("m0")) == 0
    assert (home.letters.count, home.letters.is_there(0)) == (0, False)
    home.settle()
    assert (home.letters.count, home.letters.is_there(0)) == (1, True)
    again = Home(home.store)
    assert again.there == {0: "m0"}
    assert again.letters.add(letter("m1")) == 1


def test_what_is_over_is_deleted_when_all_before_it_is_over_too() -> None:
    home = filled(4)
    assert home.letters.discard(2) == 1
    assert home.letters.discard(2) == 0
    home.settle()
    assert home.there == {0: "m0", 1: "m1", 3: "m3"}
    assert len(home.store.read(DEAD_LETTERS, 0, 0, 9)) == 4
    home.letters.discard(0)
    home.letters.discard(1)
    home.settle()
    assert [number for number, _ in home.store.read(DEAD_LETTERS, 0, 0, 9)] == [3]
    assert Home(home.store).there == {3: "m3"}
    assert Home(home.store).letters.discard() == 1


def test_asking_is_durable_and_is_over_with_the_letter() -> None:
    home = filled(3)
    assert home.letters.ask(1) == 1
    assert home.letters.ask(7) == 0
    home.settle()
    home = Home(home.store)
    assert (home.letters.next_asked(), home.letters.asked) == (1, 1)
    assert home.letters.failed_again(1, letter("m1")) == 3
    home.settle()
    for one in (home, Home(home.store)):
        assert one.there == {0: "m0", 2: "m2", 3: "m1"}
        assert one.letters.next_asked() is None
    assert home.letters.ask() == 3
    assert [home.letters.next_asked(), home.letters.discard(0), home.letters.next_asked()] == [0, 1, 2]


def test_a_letter_that_was_given_up_while_it_was_tried_again_does_not_come_back() -> None:
    home = filled(1)
    home.letters.ask(0)
    home.letters.discard(0)
    assert home.letters.failed_again(0, letter("m0")) is None
    home.settle()
    assert Home(home.store).there == {}


def test_very_many_letters_cost_memory_only_where_single_ones_are_over() -> None:
    home = Home()
    home.letters.partitions[0].durable_end = home.letters.partitions[0].end = 10_000_000
    assert home.letters.ask() == 10_000_000
    home.letters.discard(5_000_000)
    assert list(home.letters.ranges()) == [(0, 5_000_000), (5_000_001, 10_000_000)]
    assert len(str(home.commit.batch.cursors[DEAD_LETTERS, 0, LETTERS])) < 200
    assert home.letters.discard() == 9_999_999
    assert (home.letters.count, home.letters.asked) == (0, 0)


def test_a_saved_state_that_cannot_be_understood_is_set_aside_and_no_letter_is_lost() -> None:
    for state in ({"over": [5, 1]}, {"over": "all"}, {"over": [1, 99], "asked": []}, {"asked": [1]}):
        home = filled(2)
        home.store.commit(Batch(cursors={(DEAD_LETTERS, 0, LETTERS): state}))
        again = Home(home.store)
        assert again.there == {0: "m0", 1: "m1"}
        assert again.effects, "it is told"
        again.settle()
        assert again.store.load().cursors[DEAD_LETTERS, 0, ASIDE + LETTERS] == state


class Crashes(RuleBasedStateMachine):
    """Letters come, are asked for, handled, fail again and are given up, while the process ends at any moment: what was
    durable holds, and every message that is not over is there exactly once."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Home()
        self.made = 0
        self.open: set[str] = set()
        self.durable: set[str] = set()
        self.asked: set[str] = set()
        self.durable_asked: set[str] = set()

    @rule()
    def comes(self) -> None:
        self.home.letters.add(letter(f"m{self.made}"))
        self.open.add(f"m{self.made}")
        self.made += 1

    @rule()
    def becomes_durable(self) -> None:
        self.home.settle()
        self.durable, self.durable_asked = set(self.open), set(self.asked)

    @rule()
    def crashes(self) -> None:
        self.home = Home(self.home.store)
        self.open, self.asked = set(self.durable), set(self.durable_asked)

    @precondition(lambda self: self.home.letters.count)
    @rule(data=st.data(), what=st.sampled_from(["ask", "discard", "again"]))
    def one(self, data: st.DataObject, what: str) -> None:
        number, name = data.draw(st.sampled_from(sorted(self.home.there.items())))
        if what == "ask":
            assert self.home.letters.ask(number) == 1
            self.asked.add(name)
        elif what == "discard":
            assert self.home.letters.discard(number) == 1
            self.open.discard(name)
            self.asked.discard(name)
        else:
            self.home.letters.failed_again(number, letter(name))
            self.asked.discard(name)

    @rule(what=st.sampled_from(["ask", "discard"]))
    def every(self, what: str) -> None:
        names = set(self.home.there.values())
        if what == "ask":
            assert self.home.letters.ask() == len(names)
            self.asked |= names
        else:
            assert self.home.letters.discard() == len(names)
            self.open -= names
            self.asked -= names

    @invariant()
    def each_is_there_once(self) -> None:
        home = Home(self.home.store)
        assert sorted(home.there.values()) == sorted(self.durable)
        asked = {name for number, name in home.there.items() if home.letters.is_asked(number)}
        assert asked == self.durable_asked
        assert home.letters.count == len(self.durable)


TestCrashes = Crashes.TestCase
