"""A source or a destination that is opened or closed twice, or at once by several tasks, or cancelled in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ConfigurationError, Destination, Progress, Source

URL = "http://127.0.0.1:9/"
EACH_STORE = pytest.mark.parametrize("store", [":memory:", "store"])


@EACH_STORE
async def test_a_source_that_is_open_is_not_opened_again(store: str, tmp_path: Path) -> None:
    """The first one would continue to send, unseen, and its store would stay locked."""
    source = Source(URL, store if store == ":memory:" else tmp_path / store)
    await source.open()
    with pytest.raises(ConfigurationError, match="the source is already open"):
        await source.open()
    with pytest.raises(ConfigurationError, match="the source is already open"):
        async with source:
            pytest.fail("it runs")
    assert source._is_open
    await source.close(0)
    errors = await asyncio.gather(source.open(), source.open(), return_exceptions=True)
    assert [type(one) for one in errors if one is not None] == [ConfigurationError]
    await source.close(0)


async def test_the_progress_begins_with_each_opening(tmp_path: Path) -> None:
    source = Source(URL, tmp_path / "outbox")
    progress = source.progress
    await source.open()
    await source.send("<a/>", action="urn:a")
    assert (progress.stored, progress.outstanding) == (1, 1)
    for _ in range(2):
        await source.close(0)
        await source.open()
        assert progress == source.progress == Progress(outstanding=1)
    await source.close(0)


@EACH_STORE
async def test_a_second_close_waits_for_the_first(store: str, tmp_path: Path) -> None:
    place = store if store == ":memory:" else tmp_path / store
    endpoints: list[Any] = [Source(URL, place), Destination(place if store == ":memory:" else tmp_path / "inbox")]
    for endpoint in endpoints:
        start = endpoint.open if isinstance(endpoint, Source) else endpoint.start

        async def close_and_start(endpoint: Any = endpoint, start: Any = start) -> None:
            await endpoint.close(0)
            await start()

        await start()
        await asyncio.gather(endpoint.close(0), close_and_start())
        await endpoint.close(0)


@pytest.mark.parametrize("fails", ["cancelled", "sender", "journal", "handlers"])
async def test_a_destinations_close_that_fails_leaves_no_store_locked(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, began = Destination(tmp_path / "inbox"), asyncio.Event()

    @app.on()
    async def slow(message: holdfast.Message) -> None:
        began.set()
        await asyncio.Event().wait()

    async def broken(*_: object) -> None:
        raise OSError("broken")

    await app.start()
    running = app.running
    assert running.dispatcher is not None and running.journal is not None
    if fails == "cancelled":
        hanging = asyncio.get_running_loop().create_future()
        running.dispatcher._running.add(hanging)
        closing = asyncio.ensure_future(app.close(3600))
        while running.stage != "handlers to return":
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert hanging.cancelled()
    else:
        one: Any = {"sender": running.sender, "journal": running.journal, "handlers": running.dispatcher}[fails]
        monkeypatch.setattr(one, "close" if fails == "journal" else "stop", broken)
        with pytest.raises(OSError, match="broken"):
            await app.close(0)
    again = Destination(tmp_path / "inbox")
    await again.start()
    await again.close(0)


@pytest.mark.parametrize("fails", ["cancelled", "_sender", "_callbacks", "engine"])
async def test_a_sources_close_that_fails_leaves_no_store_locked(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("broken")

    source = Source(URL, tmp_path / "outbox")
    await source.open()
    running = source._running
    if fails == "cancelled":
        ending = asyncio.Event()

        async def hanging(_timeout: float) -> None:
            ending.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(running, "_end_finished", hanging)
        closing = asyncio.ensure_future(source.close())
        await ending.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    else:
        monkeypatch.setattr(getattr(running, fails), "stop", broken)
        with pytest.raises(OSError, match="broken"):
            await source.close(0)
    async with Source(URL, tmp_path / "outbox") as again:
        assert again._is_open
