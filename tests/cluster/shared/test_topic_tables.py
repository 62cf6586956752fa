"""Tables that the nodes of a cluster on Kafka share: on a fake topic, and on a real one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from shared_topics import FakeTopic, TopicLog

from holdfast.cluster.group.pictures import topic_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.shared import topic_tables as module
from holdfast.cluster.shared.tables import TablesAway
from holdfast.cluster.shared.topic_tables import TopicTables
from holdfast.store.kafka.address import read_kafka_address

SCHEMA = "CREATE TABLE IF NOT EXISTS things (space text, name text, color text, size double, PRIMARY KEY (space, name))"
OTHER = "CREATE TABLE IF NOT EXISTS others (name bytea PRIMARY KEY)"
ADD = "INSERT INTO things VALUES (:space, :name, :color, 1.5) ON CONFLICT DO NOTHING RETURNING 1"
PAINT = "UPDATE things SET color = :color WHERE name = :name"
REMOVE = "DELETE FROM things WHERE name = :name"
ALL = "SELECT name, color FROM things ORDER BY name"


class Process:
    """A process with the tables."""

    def __init__(self, log: TopicLog) -> None:
        self.topic = FakeTopic(log)
        self.tables = TopicTables(lambda: self.topic)

    def run(self, *statements: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.tables.run(SCHEMA, *statements, **values)

    def add(self, name: str, color: str = "red") -> bool:
        return bool(self.run(ADD, name=name, color=color))


@pytest.fixture
def log() -> TopicLog:
    return TopicLog()


def test_a_row_that_one_process_added_all_processes_have_also_later_ones(log: TopicLog) -> None:
    one, two = Process(log), Process(log)
    assert two.run(ALL) == []
    assert one.add("a") and not two.add("a", "blue")
    assert [each.run(ALL) for each in (one, two, Process(log))] == [[("a", "red")]] * 3
    two.run(PAINT, name="a", color="green")
    assert one.run(ALL) == [("a", "green")]
    one.run(REMOVE, name="a")
    assert Process(log).run(ALL) == [] and log.content() == {}


def test_of_two_processes_that_add_a_row_at_once_the_first_in_the_topic_does(log: TopicLog) -> None:
    one, two = Process(log), Process(log)
    added: list[bool] = []
    assert not one.run(ALL) and not two.run(ALL)
    one.topic.before_write = lambda: added.append(two.add("a", "blue"))
    added.append(one.add("a"))
    assert added == [True, False]
    assert [each.run("SELECT count(*) FROM things") for each in (one, two)] == [[(1,)]] * 2


def test_a_row_added_later_than_ours_does_not_matter_even_if_both_are_read_at_once(log: TopicLog) -> None:
    one, two = Process(log), Process(log)
    assert not one.run(ALL)
    two.topic.lag = 99
    assert not two.run(ALL)

    def other(wait: float) -> None:
        one.topic.hear_outcomes = heard  # type: ignore[method-assign]
        added.append(two.add("a", "blue"))
        heard(wait)

    added: list[bool] = []
    heard, one.topic.hear_outcomes = one.topic.hear_outcomes, other  # type: ignore[method-assign]
    added.append(one.add("a"))
    assert added == [False, True]


def test_what_is_not_found_is_looked_for_up_to_the_end_of_the_topic(log: TopicLog) -> None:
    one, two = Process(log), Process(log)
    two.topic.lag = 99
    assert not two.run(ALL)
    one.add("a")
    assert two.run("SELECT 1 FROM things WHERE name = 'a'") == [(1,)]
    one.add("b")
    assert two.run(ALL) == [("a", "red")], "what was found may be a moment old"


def test_a_change_that_fails_leaves_the_tables_as_the_topic_is(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 1e6)
    one = Process(log)
    one.add("a")
    one.topic.refuses = True
    with pytest.raises(TablesAway, match="was not written"):
        one.add("b")
    one.topic.refuses = False
    with pytest.raises(TablesAway, match="a moment ago"):
        one.run(ALL)
    one.tables._away_until = 0.0
    assert one.run(ALL) == [("a", "red")]
    log.is_away = True
    with pytest.raises(TablesAway, match="no answer"):
        one.add("c")


def test_many_rows_are_written_a_part_at_a_time(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    one = Process(log)
    numbers = "WITH RECURSIVE n(x) AS (SELECT 0 UNION SELECT x + 1 FROM n WHERE x < 9) INSERT INTO things "
    one.run(numbers + "SELECT '', 'n' || x, 'red', x FROM n")
    assert len(log.content()) == len(Process(log).run(ALL)) == 10
    one.run("UPDATE things SET name = 'm' || name WHERE size < 5")
    assert len(log.content()) == 10 and Process(log).run(ALL)[0] == ("mn0", "red")
    one.run("DELETE FROM things")
    assert log.content() == {}


def test_rows_of_a_table_that_is_made_later_are_kept(log: TopicLog) -> None:
    one, two = Process(log), Process(log)
    assert two.tables.run(OTHER, "SELECT count(*) FROM others") == [(0,)]
    one.add("a")
    one.add("b")
    one.run(REMOVE, name="b")
    two.tables.run(OTHER, "INSERT INTO others VALUES (:name)", name=b"\0\xff")
    assert two.run(ALL) == [("a", "red")]
    assert one.tables.run(OTHER, "SELECT name FROM others") == [(b"\0\xff",)]


def test_what_is_no_row_has_no_effect(log: TopicLog) -> None:
    one = Process(log)
    one.add("a")
    key = log.records[0][0]
    wrong = [("", b""), ("things", b"x"), ("things zz", b"12345678\x90"), ("things 90", b"12345678\x90"), (key, b"")]
    log.records += [(*record, 0.0) for record in [*wrong, (key, b"12345678\xc1"), ("things 90", None)]]
    assert one.run(ALL) == Process(log).run(ALL) == [("a", "red")]


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "paint", "remove"]), st.integers(0, 2)))


@given(STEPS, st.lists(st.booleans(), min_size=1))
def test_processes_that_change_rows_in_any_order_have_the_same_rows(
    steps: list[tuple[int, str, int]], nested: list[bool]
) -> None:
    """A step may come in the middle of the one before it."""
    log = TopicLog()
    processes = [Process(log) for _ in range(3)]
    run = {"add": ADD, "paint": PAINT, "remove": REMOVE}

    def make(at: int) -> None:
        done.add(at)
        who, what, name = steps[at]
        processes[who].run(run[what], name=str(name), color=str(at))

    done: set[int] = set()
    for at, (who, *_) in enumerate(steps):
        if at in done:
            continue
        after = at + 1
        if after < len(steps) and nested[at % len(nested)] and steps[after][0] != who:
            processes[who].topic.before_write = lambda after=after: make(after)
        make(at)
        processes[who].topic.before_write = lambda: None
    ends = [each.run("SELECT 1 WHERE 0") or each.run(ALL) for each in (*processes, Process(log))]
    assert ends.count(ends[0]) == 4


@pytest.mark.nightly
def test_of_live_processes_that_add_a_row_at_once_one_does(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    address = read_kafka_address(kafka_nodes(1).new_url(tmp_path / "cache"))
    name = topic_of(address, "security")
    topic = SharedTopic(address, name)
    topic.open(creates=True)
    several = [TopicTables(lambda: SharedTopic(address, name)) for _ in range(4)]

    def add(one: TopicTables, number: int) -> bool:
        while True:
            try:
                return bool(one.run(SCHEMA, ADD, name=f"n{number}", color="red"))
            except TablesAway:
                pass

    with ThreadPoolExecutor(len(several)) as threads:
        for number in range(50):
            assert sum(threads.map(lambda one, number=number: add(one, number), several)) == 1
    assert [one.run(SCHEMA, "SELECT count(*) FROM things") for one in several] == [[(50,)]] * 4
    assert abs(topic_clock(several[0]) - 1e9) > 1e6, "Kafka stored its own time"
    topic.close()


def topic_clock(tables: TopicTables) -> float:
    [(clock,)] = tables.run(SCHEMA, "SELECT :clock")
    return float(clock)
