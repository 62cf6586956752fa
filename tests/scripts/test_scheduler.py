"""Which worker runs which test: all tests run, also if a worker dies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Worker:
    """Begins a test when it knows the next one, or that there is none, as one of xdist does."""

    def __init__(self, scheduler: Any, number: int, tests: list[str]) -> None:
        self.gateway, self.shutting_down, self.sent, self.done = SimpleNamespace(id=f"gw{number}"), False, [], 0
        self.scheduler = scheduler
        scheduler.add_node(self)
        scheduler.add_node_collection(self, tests)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def runs_a_test(self) -> bool:
        if self.done + (not self.shutting_down) >= len(self.sent):
            return False
        self.done += 1
        self.scheduler.mark_test_complete(self, self.sent[self.done - 1])
        return True


@pytest.mark.parametrize("tests", range(2, 10))
def test_a_run_ends_in_which_a_worker_has_died(pytestconfig: pytest.Config, tests: int) -> None:
    make = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py")).pytest_xdist_make_scheduler
    config = SimpleNamespace(
        rootpath=ROOT, option=SimpleNamespace(), getvalue={"dist": "load", "tx": ["popen", "popen"]}.__getitem__
    )
    names = [f"tests/test_patterns.py::test_{number}" for number in range(tests)]
    for dies_after in range(tests):
        scheduler = make(config, None)
        mortal, other = [Worker(scheduler, number, names) for number in range(2)]
        scheduler.schedule()
        while mortal.done < dies_after and mortal.runs_a_test():
            pass
        scheduler.remove_node(mortal)
        heir = Worker(scheduler, 2, names)
        scheduler.schedule()
        while any([other.runs_a_test(), heir.runs_a_test()]):
            pass
        assert not scheduler.has_pending
        assert other.shutting_down and heir.shutting_down
