"""A broker that is asked for more than it can take, or by who means it no good: it pushes back, and others go on."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import ACTION, Load, Process, broker, check_exact, kept, service
from waiting import until

import holdfast
from holdfast import Destination, RetransmissionPolicy, Source, SourcePolicy
from holdfast.broker.config import ForwarderConfig, QueueConfig
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, Envelope, Sequence
from holdfast.core.versions import Versions
from holdfast.outages import Trouble
from holdfast.testing.ports import free_ports
from holdfast.wire import content_type, decode, encode

pytestmark = pytest.mark.timeout(600)

VERSIONS = Versions()
QUICK = SourcePolicy(
    retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.3),
    window=32,
    initial_window=32,
    poll_interval=0.2,
)
HOSTILE = "127.0.0.2"
"""Where those come from who mean no good: another party than the others, by its address."""
LIMITS = """
[sequences]
max_sequences = 60
max_party_sequences = 30
[limits.http]
max_connections = 128
max_body = "64kB"
max_buffered = "1MB"
header_timeout = "5s"
body_timeout = "2s"
"""


# --- somebody who speaks HTTP and SOAP, and need not do it well -----------------------------------------------------


class Answer:
    """An HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def envelope(self) -> Envelope:
        """What it carries."""
        return decode(self.body)


class Peer:
    """One connection.

    Args:
        url: Where to.
        host: The address to come from.
    """

    def __init__(self, url: str, host: str = "127.0.0.1") -> None:
        self._url, self._host = url, host

    async def __aenter__(self) -> Peer:
        port = int(self._url.rpartition(":")[2].strip("/"))
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(self._host, 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, content: bytes, *, length: int | None = None) -> Answer:
        """Send a request, whose length may be said wrongly, and read the answer."""
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type(VERSIONS.soap)}\r\n"
        self.writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % (length or len(content)) + content)
        return await self.read()

    async def read(self) -> Answer:
        """The next answer."""
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)


names = itertools.count()


def create() -> bytes:
    """A CreateSequence of its own."""
    envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, control=CreateSequence(ANONYMOUS_EPR))
    envelope.message_id, envelope.to, envelope.reply_to = f"urn:create:{next(names)}", "http://x/", ANONYMOUS_EPR
    return encode(envelope)


def message(identifier: str, number: int, text: str = "") -> bytes:
    """A message of a Sequence."""
    envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, ACTION, f"urn:m:{next(names)}")
    envelope.to, envelope.sequence = "http://x/", Sequence(identifier, number)
    envelope.body = f"<x xmlns='urn:hostile'>{text}</x>".encode()
    return encode(envelope)


@asynccontextmanager
async def processes(directory: Path, more: str = LIMITS) -> AsyncIterator[tuple[Process, Process]]:
    """A broker with narrow limits, and a service behind it."""
    behind = service(directory)
    middle = broker(directory, behind.url, more=more)
    try:
        await behind.start()
        await middle.start()
        yield middle, behind
    finally:
        await middle.kill()
        await behind.kill()


async def all_of(calls: Iterable[Any], at_once: int = 40) -> list[Any]:
    """What each gives, so many at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(call: Any) -> Any:
        async with room:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


# --- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_hostile_peers_are_bounded_and_refused_while_others_messages_go_through(tmp_path: Path) -> None:
    async with processes(tmp_path) as (middle, behind):
        async with Source(middle.url, tmp_path / "outbox", policy=QUICK, offer=False) as source:
            load = Load(source)
            running = asyncio.ensure_future(load.run())
            await load.more(100)
            before = middle.resident
            told: Counter[str] = Counter()
            await flood_of_sequences(middle.url, told)
            await absurd_messages(middle.url, told)
            await wrong_sizes(middle.url, told)
            await half_open(middle.url, load, told)
            await load.more(100)
            grown = middle.most_resident - before
            load.stop()
            await running
        assert told["granted"] == 30, "a party's share"
        assert told["refused"] == 270
        assert told["taken"] == 2, "number 1, and one early one that may be held"
        assert told["too large"] == 20
        assert grown < 100 << 20, f"{grown >> 20} MiB"
        count = load.sent.total()
        await until(lambda: len([one for part in kept(tmp_path / "service") for one in part]) >= count + 1, 120)
        await middle.end()
        await behind.end()
        assert check_exact(kept(tmp_path / "service"), load.sent) == [b"<x xmlns='urn:hostile'>first</x>"]


async def flood_of_sequences(url: str, told: Counter[str]) -> None:
    """Ask for ten times as many Sequences as one party may have."""

    async def ask() -> None:
        async with Peer(url, HOSTILE) as peer:
            answer = (await peer.post(create())).envelope
            told["refused" if answer.fault is not None else "granted"] += 1

    await all_of(ask() for _ in range(300))


async def absurd_messages(url: str, told: Counter[str]) -> None:
    """Numbers that cannot be, that are far ahead, Sequences that are not: none is taken, each is answered."""
    async with Peer(url, "127.0.0.3") as peer:
        identifier = re.search(rb"Identifier>([^<]+)<", (await peer.post(create())).body)
        assert identifier is not None
        name = identifier[1].decode()
        ranges = (await peer.post(message(name, 1, "first"))).envelope.acknowledgements[0].ranges
        for number in (3, 1 + 257 + 1, 5_000, 2**40, 2**63 - 1):
            ranges = (await peer.post(message(name, number))).envelope.acknowledgements[0].ranges
        assert ranges == ((1, 1), (3, 3))
        told["taken"] += sum(upper - lower + 1 for lower, upper in ranges)
        for number in (0, 2**63, 10**30, -1):
            content = message(name, 4).replace(b"MessageNumber>4<", b"MessageNumber>%d<" % number)
            assert b">%d<" % number in content
            assert (await peer.post(content)).envelope.fault is not None
        for number in range(200):
            fault = (await peer.post(message(f"urn:nobody:{number}", 1))).envelope.fault
            assert fault is not None and "UnknownSequence" in fault.code


async def wrong_sizes(url: str, told: Counter[str]) -> None:
    """Contents that are larger than they may be are refused before they are read."""

    async def ask() -> None:
        async with Peer(url, HOSTILE) as peer:
            answer = await peer.post(b"<x/>", length=100_000_000)
            told["too large"] += b"larger than this endpoint accepts" in answer.body

    await all_of(ask() for _ in range(20))


async def half_open(url: str, load: Load, told: Counter[str]) -> None:
    """Twice as many connections as there may be: silent ones, and requests that come letter by letter."""
    port = int(url.rpartition(":")[2].strip("/"))
    opened = []
    for number in range(256):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HOSTILE, 0))
        except OSError:
            continue
        if number % 2:
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n<slow")
        opened.append(writer)
    await load.more(100)  # they do not keep anybody out for longer than a request may take
    for writer in opened:
        writer.close()


async def test_beyond_the_last_connection_a_peer_hears_when_to_return_and_gets_through(
    tmp_path: Path,
) -> None:
    more = LIMITS.replace("128", "8").replace('body_timeout = "2s"', 'body_timeout = "60s"')
    async with processes(tmp_path, more) as (middle, _):
        holders = await hold(middle.url, 8)
        async with Source(middle.url, ":memory:", policy=QUICK) as source:
            sent = await source.send("<a/>", action=ACTION)
            await until(lambda: "503" in source.progress.problem)
            async with Peer(middle.url) as peer:
                refused = await peer.read()
                assert refused.status == 503 and refused.headers["retry-after"] in ("1", "2", "3")
            for holder in holders:
                holder.writer.close()
            await sent.acknowledged(60)


async def test_many_more_sources_than_it_can_take_at_once_are_pushed_back_and_lose_nothing(tmp_path: Path) -> None:
    """Each of 80 sends its next message as soon as the last is acknowledged; there is room for 16 at a time, and for
    none until each was refused."""
    more = LIMITS.replace("128", "16").replace("max_sequences = 60", "max_sequences = 200")
    more = more.replace('body_timeout = "2s"', 'body_timeout = "60s"')
    async with processes(tmp_path, more.replace("max_party_sequences = 30", "max_party_sequences = 200")) as both:
        middle, behind = both
        told: Counter[int] = Counter()
        holders = await hold(middle.url, 16)
        sending = asyncio.gather(*(impatient(middle.url, str(name), 8, told) for name in range(80)))
        await until(lambda: told[503] >= 80)
        for holder in holders:
            holder.writer.close()
        await sending
        assert set(told) <= {200, 202, 503}
        await until(lambda: sum(map(len, kept(tmp_path / "service"))) >= 80 * 8, 120)
        async with Peer(middle.url) as peer:  # at once, when the load is over
            assert (await peer.post(create())).envelope.fault is None
        await middle.end()
        await behind.end()
        bodies = [one.body.decode() for part in kept(tmp_path / "service") for one in part]
        assert len(bodies) == len(set(bodies)) == 80 * 8
        for name in range(80):
            numbers = [int(body.partition("-")[2].partition("<")[0]) for body in bodies if f">{name}-" in body]
            assert numbers == list(range(1, 9))


async def hold(url: str, count: int) -> list[Peer]:
    """So many connections, each with a request that does not end."""
    holders = []
    for _number in range(count):
        peer = await Peer(url, HOSTILE).__aenter__()
        peer.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        holders.append(peer)
    for holder in holders:  # one that brought nothing yet would be closed to make room
        assert (await holder.read()).status == 100
        holder.writer.write(b"<slow")
    return holders


async def impatient(url: str, name: str, count: int, told: Counter[int]) -> None:
    """A source that does nothing but send, with a connection of its own each time it is refused."""
    identifier, number = "", 1
    while number <= count:
        try:
            async with Peer(url) as peer:
                while number <= count:
                    answer = await peer.post(
                        message(identifier, number, f"{name}-{number}") if identifier else create()
                    )
                    told[answer.status] += 1
                    if answer.status == 503:
                        assert answer.headers["retry-after"]
                        break
                    if identifier:
                        number += any(low <= number <= up for low, up in answer.envelope.acknowledgements[0].ranges)
                    else:
                        found = re.search(rb"Identifier>([^<]+)<", answer.body)
                        assert found is not None, answer.body
                        identifier = found[1].decode()
        except (OSError, asyncio.IncompleteReadError):
            told[503] += 1  # the refusal was cut off
        await asyncio.sleep(0.02)


def service_that_keeps(got: list[bytes]) -> Destination:
    """A destination whose handler keeps what it was given."""
    app = Destination(":memory:")

    @app.on(ACTION)
    async def take(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    return app


async def test_a_full_queue_holds_its_sources_back_until_the_destination_is_there(
    run_broker: Any, run_service: Any
) -> None:
    (port,) = free_ports(1)
    forwarders = (ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),)
    running = await run_broker(queues=(QueueConfig("inbox", max_messages=50),), forwarders=forwarders)
    queue = running.destination.running.queue
    bodies = [b"<n>%d</n>" % number for number in range(300)]
    got: list[bytes] = []
    async with Source(running.service.url, ":memory:", policy=QUICK) as source:
        await asyncio.gather(*(source.send(body, action=ACTION) for body in bodies))
        await until(lambda: sum(queue.records.ends) == 50)
        before = running.destination.incidents["message.not_held"]
        await until(lambda: source.progress.acknowledged == 50)
        await asyncio.sleep(1.0)
        refused = running.destination.incidents["message.not_held"] - before
        assert sum(queue.records.ends) == 50
        assert refused <= 64, "held back by BufferRemaining: not sent again and again"
        assert running.destination.incidents["queue.full"] == 1
        await run_service(service_that_keeps(got), port)
        await source.flush(60)
    await until(lambda: len(got) == 300)
    assert got == bodies
    assert running.destination.incidents["queue.writable"] >= 1


async def test_a_full_disk_tells_sources_when_to_return_and_forwards_the_backlog(
    run_broker: Any, run_service: Any
) -> None:
    (port,) = free_ports(1)
    running = await run_broker(forwarders=(ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),))
    got: list[bytes] = []
    async with Source(running.service.url, ":memory:", policy=QUICK) as source:
        await (await source.send("<n>1</n>", action=ACTION)).acknowledged(60)
        running.destination.running.store.trouble = Trouble("The disk is full.", "Free space there.")
        sent = await source.send("<n>2</n>", action=ACTION)
        await until(lambda: "503" in source.progress.problem)
        assert "No new messages are accepted for now" in source.progress.problem
        assert re.search("the next attempt follows in ([5-9]|10) s", source.progress.problem)
        await run_service(service_that_keeps(got), port)
        await until(lambda: got == [b"<n>1</n>"])
        running.destination.running.store.trouble = None
        await sent.acknowledged(60)
    await until(lambda: got == [b"<n>1</n>", b"<n>2</n>"])
