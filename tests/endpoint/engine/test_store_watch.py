"""The watch over a store: what it logs. The health check and hanging stores are in test_damage."""

from __future__ import annotations

import pytest
from waiting import until

from holdfast.core.queues.queue import Queue
from holdfast.endpoint.engine import store_watch
from holdfast.endpoint.engine.engine import Engine
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore


async def test_a_store_that_fails_is_not_reported_as_available_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_watch, "_WATCH_SECONDS", 0.01)
    store = MemoryStore()
    engine = Engine(store, lambda effect: None, lambda error: None)
    engine.start(Queue("inbox"))
    watch = engine._watch
    assert watch is not None
    store.trouble = "the disk is full"
    await until(lambda: "store.unavailable" in caplog.text)
    engine.fail(StoreFailed("the disk is gone"))
    assert watch._next is None, "it looks no longer"
    assert "store.available" not in caplog.text
    await engine.stop()
