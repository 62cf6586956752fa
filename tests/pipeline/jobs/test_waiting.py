"""A long batch is reported every few seconds; an idle run is silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.pipeline.jobs.waiting import EVERY, Waiting


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
