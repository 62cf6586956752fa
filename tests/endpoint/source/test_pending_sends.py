"""Who waits for a message is told once, each by himself, and leaves nothing behind when he stops waiting.

Covers endpoint/source/sent.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Destination, DestinationPolicy, NotAcknowledged, Source, SourcePolicy
from holdfast.core.events import Ended, Stopped, Unheard
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.endpoint.source.pending_sends import NO_ROOM, Progress, note_failure, note_room
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


async def test_each_silent_message_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Source("http://127.0.0.1:9/", ":memory:") as source:
        for key in ("a", "b"):
            await source.send("<a/>", action="urn:a", sequence_key=key)
        for identifier in ("urn:1", "urn:2"):
            for number in (1, 2, 1, 2, 3, 0, 3, 0):  # 0: the end of the Sequence
                for key in ("a", "b"):
                    source._running.calls.tell(Unheard(key, identifier, number, 3, wants_reply=False, seconds=1.0))
    lines = [record.message for record in caplog.records if "destination.silent" in record.message]
    assert len(lines) == 16
    assert len([line for line in lines if "message_number=0" in line]) == 4


async def test_what_happens_to_the_replies_of_callbacks_is_no_problem_of_the_program() -> None:
    """A service may offer a Sequence for them. It has no lane, and an error would end the turn of the engine."""
    key = "urn:offered:1"
    async with Source("http://127.0.0.1:9/", ":memory:") as source:
        for effect in (
            Ended(key),
            Unheard(key, "urn:1", 0, 3, wants_reply=False, seconds=1.0),
            Stopped(key, "code", "reason", 0, 1),
        ):
            source._running.calls.tell(effect)
        assert source.progress.problem == "" and not source._running.calls.lanes


def test_a_full_buffer_is_the_problem_only_while_there_is_no_other() -> None:
    progress = Progress()
    assert note_room(progress, has_room=False) and progress.problem == NO_ROOM
    assert not note_room(progress, has_room=False)
    assert note_room(progress, has_room=True) and progress.problem == ""
    note_failure(progress, "connection refused")
    assert not note_room(progress, has_room=False) and progress.problem == "connection refused"


async def test_a_source_says_that_the_queue_of_its_destination_is_full(serve: Any) -> None:
    app = Destination(":memory:", partitions=1, policy=DestinationPolicy(advertise_buffer=True))
    service = await serve(app)
    inbound = app.running.engine.protocol.inbound
    inbound.limits["inbox"] = QueueLimit(inbound.queue, 1)
    source, full = Source(service.url, ":memory:", policy=SourcePolicy(poll_interval=0.05)), asyncio.Event()
    source.on_progress = lambda seen: full.set() if seen.problem == NO_ROOM else None
    async with source:
        for number in range(3):
            await source.send(f"<n>{number}</n>", action="urn:a")
        await asyncio.wait_for(full.wait(), 60)
        inbound.limits.clear()
        await source.flush(60)
        assert source.progress.problem == ""
