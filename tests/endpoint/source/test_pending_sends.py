"""Who waits for a message is told once, each by himself, and leaves nothing behind when he stops waiting.

Covers endpoint/source/sent.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Destination, NotAcknowledged, Source
from holdfast.testing.ports import free_ports


async def test_several_may_wait_for_one_message_and_a_cancelled_waiter_stops_no_other(serve: Any) -> None:
    (port,) = free_ports(1)
    async with Source(f"http://127.0.0.1:{port}/", ":memory:") as source:
        sent = await source.send("<a/>", action="urn:a")
        waiting = [asyncio.ensure_future(sent.acknowledged()) for _ in range(3)]
        with pytest.raises(NotAcknowledged):
            await sent.acknowledged(0.001)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        (lane,) = source._running.calls.lanes.values()
        assert [len(those) for those in lane.acknowledged.values()] == [2]
        await serve(Destination(":memory:"), port=port)
        await asyncio.wait_for(asyncio.gather(*waiting[1:]), 60)
        assert lane.acknowledged == {}


async def test_who_stops_waiting_leaves_nothing_behind() -> None:
    async with Source("http://127.0.0.1:9/", ":memory:") as source:
        sent = await source.send("<a/>", action="urn:a")
        for _ in range(3):
            with pytest.raises(NotAcknowledged):
                await sent.acknowledged(0.001)
        (lane,) = source._running.calls.lanes.values()
        assert lane.acknowledged == {}
        assert lane.submitted == {}
