"""Pages of records, dead letters and outbox messages, and blocks for readers: two are made at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from admin_client import ACTION, Client
from waiting import until

from holdfast import Destination, HandlingPolicy, Message
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.endpoint.admin.data_plane.record_stream import READING_AT_A_TIME


class Gate:
    """Lets reads of a store begin, and end when it is opened; knows how many there were at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._opened = threading.Event()

    def around(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*arguments: Any) -> Any:
            if getattr(self._inside, "reads", False):
                return read(*arguments)  # a store's read may call another of its own
            self._inside.reads = True
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            self._opened.wait(60)
            try:
                return read(*arguments)
            finally:
                self._inside.reads = False
                with self._lock:
                    self.now -= 1

        return reading

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
async def admin(serve: Any, tmp_path: Any) -> AsyncIterator[Client]:
    """A destination that keeps three messages, which are dead letters too."""
    app = Destination(
        tmp_path / "inbox", partitions=1, queues={"inbox": RetentionPolicy(3600.0)}, handling=HandlingPolicy(attempts=1)
    )

    @app.on(ACTION)
    def fail(message: Message) -> None:
        raise ValueError(message.body.text)

    service = await serve(app)
    async with aiohttp.ClientSession() as session:
        client = Client(session, service.admin_url, service)
        await client.send(3)
        await until(lambda: app.running.dead_letters.count == 3)
        yield client


@pytest.mark.parametrize(
    "paths",
    [
        ["/dead-letters?whole=true"] * 6,
        ["/queues/inbox/0/messages"] * 6,
        ["/dead-letters?whole=true", "/queues/inbox/0/messages", "/queues/inbox/0/records?from=0&to=3"] * 2,
    ],
    ids=["dead letters", "messages", "all of them"],
)
async def test_two_pages_or_blocks_are_read_at_a_time(
    admin: Client, monkeypatch: pytest.MonkeyPatch, paths: list[str]
) -> None:
    gate, store = Gate(), admin.app.running.store
    monkeypatch.setattr(store, "read", gate.around(store.read))
    monkeypatch.setattr(store, "read_encoded", gate.around(store.read_encoded))
    asked = [asyncio.ensure_future(admin.ask(path)) for path in paths]
    await until(lambda: gate.now == READING_AT_A_TIME)
    for _ in range(100):
        await asyncio.sleep(0)  # whoever may read begins now
    status, _ = await admin.ask("/healthz")
    assert status == 200, "others do not wait for them"
    gate.open()
    answers = await asyncio.gather(*asked)
    assert [status for status, _ in answers] == [200] * 6
    assert gate.most == READING_AT_A_TIME
