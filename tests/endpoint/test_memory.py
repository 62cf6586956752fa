"""What a server's process holds in memory while peers do their worst: real processes, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from processes import Process, broker

from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.testing.ports import free_ports
from holdfast.wire import decode, encode

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

MB = 1 << 20
_ids = itertools.count(1)


def _envelope(action: str) -> Envelope:
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action, message_id=f"urn:uuid:{next(_ids)}")
    envelope.to = "urn:to"
    return envelope


class Peer:
    """One connection, which posts envelopes and reads the answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, envelope: Envelope) -> bytes:
        body = encode(envelope)
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/soap+xml\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head_bytes = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head_bytes)
        return await self._reader.readexactly(int(length[1])) if length else b""

    async def create(self) -> str:
        envelope = _envelope("http://docs.oasis-open.org/ws-rx/wsrm/200702/CreateSequence")
        envelope.control = CreateSequence(ANONYMOUS_EPR, None, None)
        answer = await self.post(envelope)
        found = re.search(rb"Identifier>([^<]+)<", answer)
        assert found, answer[:2000]
        return found[1].decode()

    async def send(self, identifier: str, number: int, size: int) -> bytes:
        envelope = _envelope("urn:a")
        envelope.body = b"<m>" + b"x" * size + b"</m>"
        envelope.sequence = Sequence(identifier, number, False)
        return await self.post(envelope)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Server:
    def __init__(self, directory: Path) -> None:
        self.port, self.admin = free_ports(2)
        arguments = ("--port", str(self.port), "--admin", str(self.admin), "--store", "store")
        self.process = Process(directory, "receive", self.port, "receive", *arguments)

    async def get(self, path: str) -> dict[str, object]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return found

    async def records(self) -> int:
        """How many the queue has."""
        found = await self.get("/queues/inbox/ends")
        return sum(one["end"] for one in found["partitions"].values())  # type: ignore[attr-defined]

    async def delivered(self, count: int) -> None:
        """Wait until the queue has so many records."""
        async with asyncio.timeout(120):
            while await self.records() < count:
                await asyncio.sleep(0.1)

    async def gives_back(self, most: int) -> None:
        """Wait until the process has less memory than that."""
        async with asyncio.timeout(60):
            while self.process.resident >= most:
                await asyncio.sleep(0.1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    one = Server(tmp_path)
    await one.process.start()
    yield one
    await one.process.kill()


async def test_a_hundred_messages_of_8_megabytes_are_held_and_released_in_350_megabytes(server: Server) -> None:
    peer = Peer(server.port)
    identifier = await peer.create()
    for number in range(2, 102):
        answer = await peer.send(identifier, number, 8 * MB)
    assert b'Lower="2" Upper="101"' in answer, "all of them are held"
    held = server.process.most_resident
    answer = await peer.send(identifier, 1, 10)
    assert b'Lower="1" Upper="101"' in answer
    await server.delivered(101)
    print(f"held {held / MB:.0f}, released {server.process.most_resident / MB:.0f}")
    assert server.process.most_resident < 350 * MB
    await server.gives_back(200 * MB)
    peer.close()


async def test_others_are_answered_again_and_again_while_600_megabytes_are_released(server: Server) -> None:
    peer, other = Peer(server.port), Peer(server.port)
    identifier, others = await peer.create(), await other.create()
    for number in range(2, 42):
        answer = await peer.send(identifier, number, 15 * MB)
    assert b'Lower="2" Upper="41"' in answer, "all of them are held"
    closing = asyncio.ensure_future(peer.send(identifier, 1, 10))
    answered = 0
    async with asyncio.timeout(300):
        while await server.records() < 41 + answered:
            answer = await other.send(others, answered + 1, 10)
            assert f'Upper="{answered + 1}"'.encode() in answer
            answered += 1
    await closing
    print(f"answered {answered} while 40 were released")
    assert answered >= 5, "each batch releases one of them, and takes in what others send"
    peer.close()
    other.close()


async def test_sixty_readers_that_do_not_read_cost_less_than_400_megabytes(server: Server) -> None:
    peer = Peer(server.port)
    identifier = await peer.create()
    for number in range(1, 9):
        await peer.send(identifier, number, 15 * MB)
    await server.delivered(8)
    found = await server.get("/queues/inbox/ends")
    where = next(key for key, one in found["partitions"].items() if one["end"])  # type: ignore[attr-defined]
    print(f"received {server.process.most_resident / MB:.0f}")
    readers = [await asyncio.open_connection("127.0.0.1", server.admin) for _ in range(60)]
    question = f"GET /queues/inbox/{where}/records?from=0&to=8 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    for reader, writer in readers:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(question)
    for _ in range(20):
        await server.get("/queues/inbox/ends")
        await asyncio.sleep(0.5)
    print(f"readers {server.process.most_resident / MB:.0f}")
    assert server.process.most_resident < 400 * MB
    for _, writer in readers:
        writer.transport.abort()
    peer.close()


async def test_an_idle_connection_in_tls_costs_less_than_100_kilobytes(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    (port,) = free_ports(1)
    arguments = ("--port", str(port), "--store", "store", "--tls-cert", "server.pem")
    server = Process(tmp_path, "receive", port, "receive", *arguments)
    await server.start()
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        connections.append((reader, writer))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000)
        await reader.readuntil(b"\r\n\r\n")

    try:
        for _ in range(10):
            await ask()
        before = server.resident
        for _ in range(400):
            await ask()
        print(f"{(server.resident - before) / 400 / 1024:.0f} KB each")
        assert server.resident - before < 400 * 100 * 1024
    finally:
        await server.kill()
        for _, writer in connections:
            writer.transport.abort()


class Hostile:
    """A destination that grants every Sequence, and answers each message with 15 MB, of which the last byte is late."""

    def __init__(self) -> None:
        self.answering = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                asked = decode(await reader.readexactly(int(length[1]) if length else 0))
                if asked.control is not None:
                    granted = Envelope(asked.soap, asked.addressing, asked.rm, relates_to=asked.message_id)
                    granted.control = CreateSequenceResponse(f"urn:uuid:{next(_ids)}")
                    body = encode(granted)
                    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                else:
                    await self._answer(writer)

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        self.answering += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/soap+xml\r\n")
        writer.write(f"Content-Length: {15 * MB}\r\n\r\n".encode())
        for _ in range(15 * 16 - 1):
            writer.write(b"x" * 65_536)
            await writer.drain()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()


async def test_eight_answers_of_15_megabytes_cost_less_than_400_megabytes(tmp_path: Path) -> None:
    hostile = [Hostile() for _ in range(8)]
    first, *others = [await one.start() for one in hostile]
    more = 'queue = "inbox"\ntimeout = "60s"\n'
    lines = "".join(f'[forwarders.other{n}]\nto = "{to}"\n{more}' for n, to in enumerate(others))
    server = broker(tmp_path, first, partitions=16, more=lines)
    await server.start()
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    peer = Peer(port)
    for _ in range(32):
        identifier = await peer.create()
        for number in range(1, 5):
            await peer.send(identifier, number, 10)
    async with asyncio.timeout(120):
        while sum(one.answering for one in hostile) < 100:
            await asyncio.sleep(0.1)
    for _ in range(10):
        await asyncio.sleep(0.5)
    print(f"hostile {server.most_resident / MB:.0f}, answering {sum(one.answering for one in hostile)}")
    assert server.most_resident < 400 * MB
    await server.kill()
    for one in hostile:
        one.close()
    peer.close()


class Silent(Hostile):
    """A destination that grants every Sequence, reads each message, and answers none."""

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        self.answering += 1


async def test_a_destination_that_stays_silent_costs_less_than_400_megabytes(tmp_path: Path) -> None:
    silent = Silent()
    server = broker(tmp_path, await silent.start(), partitions=64, timeout="60s")
    await server.start()
    peer = Peer(int(server.url.rsplit(":", 1)[1].strip("/")))
    try:
        for number in range(60):
            identifier = await peer.create()
            await peer.send(identifier, 1, 15 * MB)
            print(f"{number + 1} messages: {server.most_resident / MB:.0f}, on their way {silent.answering}")
            async with asyncio.timeout(120):  # what the store has not written yet is another bound
                while server.resident >= 200 * MB:
                    await asyncio.sleep(0.05)
            assert server.most_resident < 400 * MB
        assert silent.answering >= 2
    finally:
        await server.kill()
        silent.close()
        peer.close()
