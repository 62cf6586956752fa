"""What a message costs a destination, counted rather than timed: commits, and what the event loop is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Destination, Versions
from holdfast.core.messages import Envelope, Sequence
from holdfast.store import writer
from holdfast.wire import action_of, encode, http_headers

ACTION = "urn:test:submit"
COUNT = 20
COUNTED = ("call_at", "call_later", "call_soon", "call_soon_threadsafe", "create_future", "create_task")


class Connections:
    """So many Sequences, each on a connection of its own, without a loop: what is counted is the destination's."""

    def __init__(self, host: str, port: int, identifiers: list[str]) -> None:
        self._identifiers = identifiers
        self._sockets = [socket.create_connection((host, port)) for _ in identifiers]

    def send(self, number: int) -> None:
        """The message with that number in each Sequence."""
        versions = Versions()
        for identifier, connection in zip(self._identifiers, self._sockets, strict=True):
            envelope = Envelope(versions.soap, versions.addressing, versions.rm, to="urn:test:destination")
            envelope.action, envelope.body, envelope.sequence = ACTION, b"<a/>", Sequence(identifier, number)
            body = encode(envelope)
            headers = http_headers(versions.soap, action_of(envelope))
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"POST / HTTP/1.1\r\nHost: here\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    async def answers(self) -> list[bytes]:
        """What comes back, a read for each; for as long as it takes the loop only turns."""
        found = []
        for connection in self._sockets:
            while True:
                with contextlib.suppress(BlockingIOError):
                    found.append(connection.recv(65536, socket.MSG_DONTWAIT))
                    break
                await asyncio.sleep(0)
        return found

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts what the running loop is asked for."""
    loop = asyncio.get_running_loop()
    counts: Counter[str] = Counter()

    def counting(name: str, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in COUNTED:
            patch.setattr(loop, name, counting(name, getattr(loop, name)))
        yield counts


async def test_messages_that_come_together_cost_one_commit_and_no_task_each(
    serve: Any, peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LONGEST_WAIT", 60.0)
    service = await serve(Destination(":memory:", partitions=1))
    identifiers = []
    for _ in range(COUNT):
        one = peer(service.url)
        await one.create()
        identifiers.append(one.identifier)
    connections = Connections("127.0.0.1", service._server.port, identifiers)
    try:
        connections.send(1)
        await connections.answers()
        commits = service.app.running.engine.commits.batches
        with counted(monkeypatch) as counts:
            connections.send(2)
            answers = await connections.answers()
    finally:
        connections.close()
    assert all(answer.startswith(b"HTTP/1.1 200") and b'Upper="2"' in answer for answer in answers)
    # The engine hears of all of them at once; a sweep of the server's or a look at the store may fall in between.
    assert service.app.running.engine.commits.batches - commits == 1
    assert counts["create_task"] == counts["create_future"] == counts["call_soon_threadsafe"] == 0
    assert counts["call_at"] + counts["call_later"] < COUNT / 2
    assert counts["call_soon"] < COUNT / 2
