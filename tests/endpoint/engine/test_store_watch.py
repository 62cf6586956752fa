"""The watch over a store: what it logs. The health check and hanging stores are in test_damage."""

from __future__ import annotations

import pytest
from waiting import until

from holdfast.core.queues.queue import Queue
from holdfast.endpoint.engine import store_watch
from holdfast.endpoint.engine.engine import Engine
from holdfast.exceptions import StoreFailed
from holdfast.outages import Trouble
from holdfast.store import MemoryStore


async def test_a_problem_is_logged_again_if_there_is_something_else_to_do(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    engine = Engine(store, lambda effect: None, lambda error: None)
    engine.start(Queue("inbox"))
    watch = engine._watch
    assert watch is not None
    refused = Trouble("Kafka does not serve: refused login.", "Check the password.")
    silent = [Trouble(f"no answer for {seconds} s", "Check Kafka.") for seconds in (3, 4)]
    for trouble in (*silent, refused, silent[0], refused, None, refused):
        store.trouble = trouble
        watch._look()
    told = [one.getMessage() for one in caplog.records if one.name.startswith("holdfast")]
    kinds = [next(word for word in ("unavailable", "available") if f"event='store.{word}'" in one) for one in told]
    assert kinds == ["unavailable", "unavailable", "available", "unavailable"]
    assert ["Check Kafka." in one for one in told] == [True, False, False, False]
    assert ["Check the password." in one for one in told] == [False, True, False, True]
    await engine.stop()


async def test_a_store_that_fails_is_not_reported_as_available_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_watch, "_WATCH_SECONDS", 0.01)
    store = MemoryStore()
    engine = Engine(store, lambda effect: None, lambda error: None)
    engine.start(Queue("inbox"))
    watch = engine._watch
    assert watch is not None
    store.trouble = Trouble("the disk is full", "Free space there.")
    await until(lambda: "store.unavailable" in caplog.text)
    engine.fail(StoreFailed("the disk is gone"))
    assert watch._next is None, "it looks no longer"
    assert "store.available" not in caplog.text
    await engine.stop()
