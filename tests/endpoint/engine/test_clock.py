"""The clock of an endpoint."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from holdfast import Destination
from holdfast.cluster.trust import Trust
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.worker import Worker
from holdfast.store import MemoryStore


def test_the_clock_never_goes_back_whatever_the_wall_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert clock() >= before > 1_000_000_000


async def test_a_node_with_a_wrong_clock_has_the_time_of_its_cluster() -> None:
    app = Destination(":memory:")
    trust = Trust(1)
    trust.clock_offset = time.time() - time.monotonic() - 86_400.0
    app.settings.worker = Worker(0, 1, trust=trust.of(0))
    running = RunningDestination(app.settings, MemoryStore(), Counter())
    assert abs(running.engine.clock() + 86_400.0 - time.time()) < 3600
