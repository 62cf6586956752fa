"""Endpoints that are used outside of the event loop or the process that opened them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.store import open_store

ACTION = "urn:a"
NOWHERE = "http://127.0.0.1:9/"


async def _plain(call: Callable[[], Any]) -> Any:
    return call()


CALLS: dict[str, Callable[[holdfast.Source, holdfast.Sent], Awaitable[Any]]] = {
    "send": lambda source, sent: source.send("<a/>", action=ACTION),
    "request": lambda source, sent: source.request("<a/>", action=ACTION),
    "reply": lambda source, sent: source.reply("urn:none"),
    "acknowledged": lambda source, sent: sent.acknowledged(),
    "flush": lambda source, sent: source.flush(),
    "end": lambda source, sent: source.end(),
    "close": lambda source, sent: source.close(),
    "resume": lambda source, sent: _plain(source.resume),
    "unconfirmed": lambda source, sent: _plain(source.unconfirmed),
    "next_offset": lambda source, sent: _plain(source.next_offset),
    "sequences": lambda source, sent: _plain(source.sequences),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_another_loop_is_refused_at_once(name: str) -> None:
    async with holdfast.Source(NOWHERE, ":memory:") as source:
        sent = await source.send("<a/>", action=ACTION)

        async def call() -> None:
            await CALLS[name](source, sent)

        with pytest.raises(holdfast.ConfigurationError, match="another event loop") as refused:
            await asyncio.to_thread(lambda: asyncio.run(call()))
        assert "holdfast.sync.Source" in str(refused.value)
        assert source.progress.outstanding == 1


@pytest.mark.parametrize("name", [name for name in CALLS if name != "close"])
def test_a_call_after_the_end_of_the_loop_is_refused_and_the_store_can_be_closed(name: str, tmp_path: Path) -> None:
    source = holdfast.Source(NOWHERE, tmp_path / "outbox")

    async def begin() -> holdfast.Sent:
        await source.open()
        return await source.send("<a/>", action=ACTION)

    sent = asyncio.run(begin())

    async def call() -> None:
        await CALLS[name](source, sent)

    with pytest.raises(holdfast.ConfigurationError, match="loop that has ended"):
        asyncio.run(call())
    asyncio.run(source.close())
    open_store(tmp_path / "outbox").close()
    assert asyncio.run(begin()).offset == 1
    asyncio.run(begin())  # opens it again by itself
    asyncio.run(source.close())


def test_a_destination_whose_loop_has_ended_starts_and_closes_in_the_next(tmp_path: Path) -> None:
    app = holdfast.Destination(tmp_path / "inbox")
    asyncio.run(app.start())
    with pytest.raises(holdfast.ConfigurationError, match="loop that has ended"):
        asyncio.run(app.handled())
    asyncio.run(app.start())
    asyncio.run(app.close())
    open_store(tmp_path / "inbox").close()


@pytest.mark.parametrize("name", ["start", "handled", "close"])
async def test_a_destination_is_refused_in_another_loop_at_once(name: str) -> None:
    app = holdfast.Destination(":memory:")
    await app.start()
    with pytest.raises(holdfast.ConfigurationError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(getattr(app, name)()))
    await app.close()


BLOCKING: dict[str, Callable[[holdfast.sync.Source], Any]] = {
    "open": lambda source: source.open(),
    "send": lambda source: source.send("<a/>", action=ACTION),
    "request": lambda source: source.request("<a/>", action=ACTION),
    "flush": lambda source: source.flush(),
    "unconfirmed": lambda source: source.unconfirmed(),
    "close": lambda source: source.close(),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_forked_process_is_refused_its_parents_source(name: str) -> None:
    with holdfast.sync.Source(NOWHERE, ":memory:") as source:
        told = in_child(lambda: BLOCKING[name](source))
        assert told == f"ConfigurationError: the source was opened in process {os.getpid()}"


def in_child(call: Callable[[], Any]) -> str:
    """Return what a call in a forked process raised, without its remedy."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            told = "nothing"
        except BaseException as error:
            told = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told
