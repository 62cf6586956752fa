"""The clock of an endpoint."""

from __future__ import annotations

import pytest

from holdfast.endpoint.engine.clock import Clock


def test_the_clock_never_goes_back_whatever_the_wall_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert clock() >= before > 1_000_000_000
