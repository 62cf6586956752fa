"""Opening a store off the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from holdfast.endpoint.engine.opening import in_thread, open_off_loop
from holdfast.exceptions import ConfigurationError, StoreAway, StoreLocked
from holdfast.store import MemoryStore, Store, open_store


async def test_a_store_whose_opening_was_cancelled_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_go = threading.Event(), threading.Event()

    def slowly(location: Path, *, turn: object) -> Store:
        entered.set()
        assert may_go.wait(60)
        return open_store(location)

    monkeypatch.setattr("holdfast.endpoint.engine.opening.open_store", slowly)
    opening = asyncio.create_task(open_off_loop(tmp_path / "store"))
    await asyncio.to_thread(entered.wait, 60)
    opening.cancel()
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    (await open_off_loop(tmp_path / "store")).close()
    given = MemoryStore()
    assert await open_off_loop(given) is given


@pytest.mark.parametrize("error", [StoreAway("away"), ConfigurationError("wrong"), StoreLocked("locked")])
@pytest.mark.parametrize("cancels", [1, 2])
async def test_nobody_hears_of_the_error_of_an_opening_that_was_cancelled(
    error: Exception, cancels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_go = threading.Event(), threading.Event()

    def failing(*_arguments: object, **_named: object) -> Store:
        entered.set()
        assert may_go.wait(60)
        raise error

    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    monkeypatch.setattr("holdfast.endpoint.engine.opening.open_store", failing)
    for call in (lambda: open_off_loop(":memory:"), lambda: in_thread(failing)):
        entered.clear()
        may_go.clear()
        running = asyncio.create_task(call())
        await asyncio.to_thread(entered.wait, 60)
        for _ in range(cancels):
            running.cancel()
            await asyncio.sleep(0)
        may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        del running
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    gc.collect()
    assert heard == []
