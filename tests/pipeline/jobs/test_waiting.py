"""A long batch, or a long command, is reported every few seconds; an idle run is silent."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.pipeline.jobs.waiting import EVERY, Waiting, progress_reported


def test_a_long_batch_is_reported_every_few_seconds_and_an_idle_run_is_silent() -> None:
    now, told = [0.0], list[str]()
    asked: list[int] = []
    waiting = Waiting(told.append, lambda: now[0])

    def look(is_active: bool, batches: int, seconds: float, *, has_data: bool = True) -> list[str]:
        class Query(SimpleNamespace):
            @property
            def status(self) -> dict[str, Any]:
                asked.append(1)
                return {"isTriggerActive": is_active, "isDataAvailable": has_data, "message": "Processing new data"}

        told.clear()
        for _ in range(round(seconds)):
            now[0] += 1
            waiting.look({"orders": Query()}, batches)
        return list(told)

    line = "no batch has ended for {} s; orders: Processing new data"
    assert look(True, 0, 2.5 * EVERY) == [line.format(10), line.format(20)]
    assert look(True, 1, EVERY) == []  # a batch has ended
    assert look(True, 1, 1) == [line.format(10)]
    assert look(False, 1, 2 * EVERY) == []
    assert look(True, 1, 3 * EVERY, has_data=False) == [], "it asks for the ends of its queues"
    assert look(True, 1, EVERY) == [line.format(10)]
    assert len(asked) <= 10


def test_a_command_reports_what_spark_does_until_its_end() -> None:
    stages = {
        1: SimpleNamespace(numTasks=1_000, numCompletedTasks=3),
        2: SimpleNamespace(numTasks=8, numCompletedTasks=8),
    }
    active, seen, told = list[int](), threading.Semaphore(0), list[str]()

    def tell(line: str) -> None:
        told.append(re.sub(r"\d+ s", "N s", line))
        seen.release()

    tracker = SimpleNamespace(getActiveStageIds=lambda: list(active), getStageInfo=stages.get)
    with progress_reported(tracker, tell, every=0.001):
        seen.acquire()
        active += [1, 2, 3]  # the third has ended meanwhile
        while told[-1] == "still working, N s":
            seen.acquire()
    assert set(told) == {
        "still working, N s",
        "still working, N s; 11 of Spark's current 1,008 tasks are done",
    }


def test_a_command_reports_nothing_of_a_spark_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = threading.Semaphore(0), list[str]()
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)

    def stages() -> list[int]:
        asked.release()
        raise ConnectionError("Spark has ended")

    tracker = SimpleNamespace(getActiveStageIds=stages, getStageInfo={}.get)
    with progress_reported(tracker, told.append, every=0.001):
        asked.acquire()
    assert (told, uncaught) == ([], [])
    assert "progress" not in [one.name for one in threading.enumerate()]
