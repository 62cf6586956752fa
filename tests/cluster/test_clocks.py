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
from holdfast.cluster.trust import MOST_APART, ClockCheck, Trust, wall_offset
from holdfast.endpoint.engine.clock import Clock

DELAYS = st.tuples(st.floats(0, 300), st.floats(0, 300))
DAY = 86_400


STEPS = st.floats(-2e5, 2e5)
TRUE = 1.8e9
"""The true offset: the monotonic clock begins at 0."""


@given(STEPS, st.lists(DELAYS, min_size=1), STEPS)
def test_a_slow_answer_hides_a_difference_but_never_looks_like_one(
    ahead: float, delays: list[tuple[float, float]], later: float
) -> None:
    check, now = ClockCheck(), 0.0
    for one in (ahead, later):
        for there, back in delays:
            check.compare(now, TRUE + now + there, now + there + back, TRUE + one)
            now += there + back
    if abs(later) <= MOST_APART / 2:
        assert abs(check.ahead) <= MOST_APART + 300
    check.compare(now, TRUE + now, now, TRUE + later)
    assert abs(check.ahead - later) <= MOST_APART + 1
    told: list[tuple[Any, ...]] = []
    for there, back in delays:
        before = check.ahead
        check.compare(now, TRUE + now + there, now + there + back, TRUE + later)
        check.report_change(before, lambda *what, **_fields: told.append(what), "a")
        now += there + back
    assert not told, "what is known does not change with the time of an answer"


@given(st.floats(0.001 - MOST_APART, MOST_APART - 0.001), st.lists(DELAYS, min_size=1))
def test_a_clock_that_is_nearly_right_is_never_reported(ahead: float, delays: list[tuple[float, float]]) -> None:
    check = ClockCheck()
    for there, back in delays:
        check.compare(0.0, TRUE + there, there + back, TRUE + ahead)
        assert check.ahead == 0


@given(st.lists(st.tuples(DELAYS, STEPS), min_size=1), STEPS)
def test_a_process_has_the_time_of_the_cluster_whenever_the_wall_clock_is_set(
    looks: list[tuple[tuple[float, float], float]], last: float
) -> None:
    """The time of a process is at most as wrong as its node's fastest answer was slow, and errors do not add up."""
    check, trust, now = ClockCheck(), Trust(1), 0.0
    assert trust.clock_offset is None
    for (there, back), wrong in looks:
        check.compare(now, TRUE + now + there, now + there + back, TRUE + wrong)
        now += there + back
        trust.clock_offset = check.offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: TRUE + now + last)
        patch.setattr("time.monotonic", lambda: now)
        clock = Clock(trust.clock_offset)
        assert abs(clock() - TRUE - now) <= min(there + back for (there, back), _ in looks) + 0.001


def test_a_difference_is_logged_when_it_begins_and_when_it_ends() -> None:
    told: list[tuple[Any, ...]] = []
    check = ClockCheck()
    for ahead in (0, 11, 13, 30, 9, 3, -DAY):
        before = check.ahead
        check.compare(0, 0, 0, ahead)
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

        node.wait(lambda: node.view["mine"])
        for told in node.events("view"):
            if told["view"]["mine"] or told["view"]["preparing"]:  # a process for them starts now
                assert abs(told["clock_offset"] - wall_offset()) < 60
        wait_until(lambda: len(clocks()) == 1)
        assert clocks()[0].startswith("The clock of node b is 172,") and " s behind that of " in clocks()[0]
