"""Opening a store off the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast.endpoint.engine.opening import open_off_loop
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
