"""Clocks of nodes that differ from the one that all of them ask."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crew import wait_until
from hypothesis import given
from hypothesis import strategies as st
from live_nodes import Node

from holdfast.cluster.operating.engines import engine_of
from holdfast.cluster.trust import MOST_APART, ClockCheck

DELAYS = st.tuples(st.floats(0, 300), st.floats(0, 300))
DAY = 86_400


@given(st.floats(-2e5, 2e5), st.lists(DELAYS, min_size=1), st.floats(-2e5, 2e5))
def test_a_slow_answer_hides_a_difference_but_never_looks_like_one(
    ahead: float, delays: list[tuple[float, float]], later: float
) -> None:
    check, now = ClockCheck(), 1.8e9
    for one in (ahead, later):
        for there, back in delays:
            check.compare(now + one, now + there, now + there + back + one)
            now += there + back
    if abs(later) <= MOST_APART / 2:
        assert abs(check.ahead) <= MOST_APART + 300
    check.compare(now + later, now, now + later)
    assert abs(check.ahead - later) <= MOST_APART + 1
    told: list[tuple[Any, ...]] = []
    for there, back in delays:
        before = check.ahead
        check.compare(now + later, now + there, now + there + back + later)
        check.report_change(before, lambda *what, **_fields: told.append(what), "a")
        now += there + back
    assert not told, "what is known does not change with the time of an answer"


@given(st.floats(-MOST_APART, MOST_APART), st.lists(DELAYS, min_size=1))
def test_a_clock_that_is_nearly_right_is_never_reported(ahead: float, delays: list[tuple[float, float]]) -> None:
    check = ClockCheck()
    for there, back in delays:
        check.compare(1.8e9 + ahead, 1.8e9 + there, 1.8e9 + there + back + ahead)
        assert check.ahead == 0


def test_a_difference_is_logged_when_it_begins_and_when_it_ends() -> None:
    told: list[tuple[Any, ...]] = []
    check = ClockCheck()
    for ahead in (0, 11, 13, 30, 9, 3, -DAY):
        before = check.ahead
        check.compare(ahead, 0, ahead)
        check.report_change(before, lambda _level, event, **fields: told.append((event, fields.get("seconds"))), "a")
    assert told == [
        ("cluster.clock_differs", 11),
        ("cluster.clock_differs", 30),
        ("cluster.clock_agrees", None),
        ("cluster.clock_differs", -DAY),
    ]


@pytest.fixture(params=["postgresql", pytest.param("kafka", marks=pytest.mark.nightly)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        kafka_nodes: Callable[[int], Any] = request.getfixturevalue("kafka_nodes")
        return str(kafka_nodes(1).new_url(tmp_path / "cache-{node}", partitions=4))
    return str(request.getfixturevalue("servers")("postgresql").new_url())


def test_a_node_with_a_wrong_clock_says_so_and_the_status_warns(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        for name, offset in (("a", "0"), ("b", str(-2 * DAY))):
            monkeypatch.setenv("CLOCK_OFFSET", offset)
            node = Node(location, name, 4, 3.0)
            stack.callback(node.kill)
        node.wait(lambda: node.logged("cluster.clock_differs"))
        (said,) = node.logged("cluster.clock_differs")
        assert said["node"] == "b" and abs(said["seconds"] + 2 * DAY) < 60

        def clocks() -> list[str]:
            return [one for one in engine_of(location).read_status(location).warnings if "clock" in one]

        # Before it has partitions: the clocks of their processes leave the difference out.
        node.wait(lambda: node.view["mine"])
        node.trust()
        assert abs(node.events("trust")[-1]["clock_ahead"] + 2 * DAY) < 60
        wait_until(lambda: len(clocks()) == 1)
        assert clocks()[0].startswith("The clock of node b is 172,") and " s behind that of " in clocks()[0]
