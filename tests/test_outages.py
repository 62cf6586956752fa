"""Trouble, and when a log has it."""

from __future__ import annotations

import pytest

from holdfast.outages import Outage, Trouble


@pytest.mark.parametrize("what", ["no answer", "No answer.", "it ended with:", "e.g. 5 s"])
@pytest.mark.parametrize("remedy", ["", "Check the network.", "Wait"])
def test_a_problem_and_its_remedy_stay_apart_however_they_end(what: str, remedy: str) -> None:
    trouble = Trouble(what, remedy)
    assert (trouble.what, trouble.remedy) == (what, remedy)
    assert str(trouble) == (f"{what.rstrip('.:')}. {remedy}" if remedy else what)


def test_an_outage_is_logged_at_its_beginning_and_once_for_each_further_remedy() -> None:
    now = [10.0]
    outage = Outage(lambda: now[0])
    assert outage.end() is None
    steps = [("", True), ("", False), ("a", True), ("", False), ("b", True), ("a", False)]
    for _ in range(2):
        for remedy, is_logged in steps:
            now[0] += 1.0
            assert outage.go_on(Trouble(f"at {now[0]}", remedy)) is is_logged
        assert outage.trouble == Trouble(f"at {now[0]}", "a")
        assert (outage.end(), outage.trouble) == (5.0, None)
