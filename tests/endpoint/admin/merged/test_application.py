"""What one admin listener answers for two workers, both in this process, over real sockets: what each has, as one.

Covers endpoint/admin/merged/next_positions.py, endpoint/worker.py, endpoint/admin/merged/stores.py and
client/stopped_store.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import struct
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import aiohttp
import msgspec
import pytest
from admin_client import ACTION, Client

from holdfast import Destination, HandlingPolicy, JournalPolicy, Message
from holdfast.client.stopped_store import StoreTransport
from holdfast.core.versions import Versions
from holdfast.endpoint.admin.merged import application as joined_admin
from holdfast.endpoint.journal import writer as room
from holdfast.endpoint.journal.files import segments
from holdfast.endpoint.journal.parquet import to_parquet_all
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.endpoint.worker import Worker, identifier_of, worker_of
from holdfast.endpoint.workers.placement import Loads, Placement, Placements
from holdfast.endpoint.workers.routing import Place
from holdfast.endpoint.workers.supervisor import Post
from holdfast.exceptions import StoreLocked
from holdfast.pipeline.reader.journal import JournalReader
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.store import open_store

COUNT, SIZE = 2, 2
SINKS = [f"s{number}" for number in range(6)]
"""Of which each worker has three, by their hashes."""


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def posts(directory: str) -> list[Post]:
    """What the supervisor would give each worker."""
    paths = tuple(f"{directory}/{number}" for number in range(COUNT))
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in paths]
    for _, giving in pairs:
        giving.setblocking(False)
    loads, placements, made = Loads(COUNT), Placements(), []
    placements.set(Placement(frozenset(range(COUNT))))
    for number, path in enumerate(paths):
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inbox.bind(path)
        inbox.listen(64)
        giving = tuple(one for _, one in pairs)
        place = Place(Worker(number, COUNT), paths, inbox, pairs[number][0], giving, loads, placements)
        control, _ = socket.socketpair()
        made.append(Post(place, control, directory, [listening()], [listening()], lambda: 0))
    return made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


Crew = Callable[..., Awaitable[list[Client]]]


@pytest.fixture
async def crew(session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crew]:
    """Serves two workers of one destination; gives who asks the admin listener of each."""
    monkeypatch.setattr(room, "WRITE_EVERY", 0.02)
    services: list[Service] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:  # The path of a socket has to be short.

        async def start(make: Callable[[], Destination] | None = None) -> list[Client]:
            for post in posts(directory):
                app = make() if make else Destination(tmp_path / "inbox", partitions=SIZE, queues={"inbox": "7d"})
                services.append(Service(app, Listeners(port=0, admin=AdminListener(port=0)), post))
                await services[-1].start()
            return [Client(session, service.admin_url, service) for service in services]

        yield start
        for service in services:
            await service.close(0.5)
            for one in (*service.post.place.giving, service.post.place.taking, service.post.control):
                one.close()


async def filled(crew: Crew, peer: Any, **options: Any) -> tuple[list[Client], list[str]]:
    """Two workers, worker w with a Sequence of w + 2 messages; and the Identifiers of these."""
    clients = await crew(**options)
    identifiers = []
    for number, client in enumerate(clients):
        one = await sequence_at(number, peer(client.service.url))
        for message in range(1, number + 3):
            await one.message(message)
        identifiers.append(one.identifier)
    return clients, identifiers


async def sequence_at(worker: int, peer: Any) -> Any:
    """A peer with a Sequence of that worker."""
    names = (f"urn:test:{worker}:{count}" for count in itertools.count())
    await peer.create(message_id=next(name for name in names if crc32(name.encode()) % COUNT == worker))
    assert worker_of(peer.identifier) == worker
    return peer


async def pages(client: Client, path: str, rows: str, word: str = "after") -> list[dict[str, Any]]:
    """All rows of a list, asked for one at a time."""
    found, after = [], None
    while True:
        status, page = await client.ask(f"{path}?limit=1" + (f"&{word}={quote(str(after))}" if after else ""))
        assert status == 200
        assert len(page[rows]) <= 1
        found += page[rows]
        after = page["next"]
        if after is None:
            return found


async def test_the_stores_of_several_workers_answer_together_as_their_listener_does(
    crew: Crew, peer: Any, tmp_path: Path
) -> None:
    clients, identifiers = await filled(crew, peer)
    paths = [f"/sequences/{identifiers[1]}", "/sequences?limit=1", "/dead-letters", "/outbox", "/queues/inbox/ends"]
    paths += ["/sequences"]
    paths += [f"/queues/inbox/{number}/messages" for number in range(COUNT * SIZE)]
    told = [await clients[0].ask(path) for path in paths]

    def ask_stores() -> list[tuple[int, Any]]:
        transport = StoreTransport(str(tmp_path / "inbox"))
        try:
            answers = [transport.send("GET", path, None) for path in (*paths, "/queues/inbox/9/messages", "/reload")]
            return [(status, json.loads(body)) for status, body in answers]
        finally:
            transport.close()

    *stored, missing, unknown = await asyncio.to_thread(ask_stores)
    moment = re.compile(r'"(?:age|idle|last_heard|flight)": [^,}]*')
    for path, (status, content), of_stores in zip(paths, told, stored, strict=True):
        known = [moment.sub("", json.dumps(one)) for one in ((status, content), of_stores)]
        assert status == 200 and known[0] == known[1], path
    assert (missing[0], "The partitions are 0 to 3" in str(missing) or "4 partitions" in str(missing)) == (404, True)
    assert (unknown[0], "a stopped store cannot answer" in unknown[1]["error"]) == (409, True)


def test_a_change_of_stopped_stores_tells_what_was_done_if_one_is_in_use(tmp_path: Path) -> None:
    first, second = (open_store(Worker(number, COUNT).store_of(tmp_path / "inbox")) for number in range(COUNT))
    first.close()
    transport = StoreTransport(str(tmp_path / "inbox"))
    with pytest.raises(StoreLocked, match="done in 1 of 2 workers"):
        transport.send("POST", "/dead-letters/all/discard", None)
    transport.close()
    second.close()


async def test_whoever_is_asked_the_answer_is_the_same(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    for path in (
        "/healthz",
        "/readyz",
        "/queues",
        "/queues/inbox/ends",
        "/queues/inbox/cursors",
        "/cursors",
        "/forwarders",
        "/sinks",
    ):
        one, other = [await client.ask(path) for client in clients]
        assert one[0] == other[0] == 200, path
        assert one == other, path


async def test_sequences_of_both_are_listed_and_each_is_shown_and_ended_where_it_is(crew: Crew, peer: Any) -> None:
    clients, identifiers = await filled(crew, peer)
    listed = await pages(clients[0], "/sequences", "sequences")
    assert [one["identifier"] for one in listed] == identifiers
    for number, identifier in enumerate(identifiers):
        for client in clients:
            status, shown = await client.ask(f"/sequences/{quote(identifier, safe='')}")
            assert (status, shown["identifier"], shown["partition"] // SIZE) == (200, identifier, number)
    status, closed = await clients[0].ask(f"/sequences/{quote(identifiers[1], safe='')}/close", "POST")
    assert (status, closed["state"]) == (200, "closed")
    status, told = await clients[1].ask("/sequences/urn:nobody")
    assert (status, told["error"]) == (404, "no Sequence urn:nobody")


async def test_a_sequence_with_an_identifier_of_a_worker_of_the_peer_is_shown(crew: Crew, peer: Any) -> None:
    clients = await crew()
    one = peer(clients[0].service.url)
    for number in range(COUNT):
        offered = ""
        while not offered or worker_of(one.identifier) == number:
            offered = identifier_of(number, uuid.uuid4().int)
            await one.create(offer=offered)
        for client in clients:
            status, shown = await client.ask(f"/sequences/{quote(offered, safe='')}")
            assert (status, shown["identifier"]) == (200, offered)


async def test_a_queue_is_one_queue_with_the_partitions_of_both(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    _, queue = await clients[0].ask("/queues/inbox")
    assert (queue["records"], sorted(queue["partitions"])) == (5, ["0", "1", "2", "3"])
    ends = {int(one): bounds["end"] for one, bounds in queue["partitions"].items()}
    assert (ends[0] + ends[1], ends[2] + ends[3]) == (2, 3)
    epoch = await clients[1].epoch()
    after = ",".join(f"{one}:{end}" for one, end in ends.items())
    for partition, end in ends.items():
        status, peeked = await clients[0].ask(f"/queues/inbox/{partition}/messages")
        assert (status, peeked["partition"], len(peeked["messages"])) == (200, partition, end)
        status, blocks = await clients[0].ask(f"/queues/inbox/{partition}/records?from=0&to={end}&epoch={epoch}")
        assert (status, len(blocks) > 0) == (200, True)
    status, told = await clients[0].ask(f"/queues/inbox/{partition}/records?from=0&to={end + 1}&epoch={epoch}")
    assert (status, told["remedy"]) == (416, "Request fewer records.")
    assert f"partition {partition} ends at {end}" in told["error"], "by the number that the reader knows"
    status, prints = await clients[0].ask(f"/queues/inbox/fingerprints?epoch={epoch}&at={after}")
    assert sorted(prints["fingerprints"]) == ["0", "1", "2", "3"]
    known = ",".join(f"{one}:{ends[int(one)]}:{text}" for one, text in prints["fingerprints"].items() if text)
    assert (await clients[1].ask(f"/queues/inbox/ends?epoch={epoch}&known={known}"))[0] == 200
    status, told = await clients[0].ask("/queues/inbox/ends?epoch=another")
    assert (status, epoch in told["error"]) == (409, True)
    assert (await clients[0].ask("/queues/nowhere/ends?epoch=another"))[0] == 404
    assert (await clients[0].ask("/queues/inbox/4/messages"))[0] == 404
    assert (await clients[0].ask("/queues/inbox/offsets?at=9:0"))[0] == 400


async def test_who_waits_for_more_is_answered_when_either_has_it(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    _, ends = await clients[0].ask("/queues/inbox/ends")
    offsets = {one: bounds["end"] for one, bounds in ends["partitions"].items()}
    asked = {"queues": {"inbox": {"epoch": ends["epoch"], "offsets": offsets}}, "wait": 60}
    waits = asyncio.ensure_future(clients[0].ask("/next-positions", "POST", json=asked))
    one = peer(clients[0].service.url)
    await one.create()
    await one.message(1)
    _, more = await asyncio.wait_for(waits, 60)
    found = more["queues"]["inbox"]
    assert sum(found["offsets"].values()) == 6
    assert {one: bounds["end"] for one, bounds in found["partitions"].items()} == found["offsets"]
    asked["queues"]["inbox"]["offsets"] = found["offsets"]
    status, same = await clients[1].ask("/next-positions", "POST", json=asked | {"wait": 0.05})
    assert (status, same["queues"]["inbox"]) == (200, {**found, "fingerprints": {}})


async def test_a_limited_batch_holds_the_oldest_records_of_both(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    epoch = await clients[0].epoch()
    delivered = {}
    for partition in range(COUNT * SIZE):
        _, found = await clients[0].ask(f"/queues/inbox/{partition}/messages")
        delivered[str(partition)] = [one["received_at"] for one in found["messages"]]
    stands: dict[str, Any] = {"epoch": epoch, "offsets": {}, "fingerprints": {}}
    batches: list[list[float]] = []
    guess = None
    for turn in range(6):
        asked = {"queues": {"inbox": stands}, "most": 1, "guess": guess, "others": True}
        status, answer = await clients[turn % 2].ask("/next-positions", "POST", json=asked)
        assert status == 200, answer
        found, guess = answer["queues"]["inbox"], answer["guess"]
        before = stands["offsets"]
        new = {one: times[before.get(one, 0) : found["offsets"][one]] for one, times in delivered.items()}
        batches.append([at for times in new.values() for at in times])
        stands["offsets"] = found["offsets"]
        stands["fingerprints"] |= {one: text for one, text in found["fingerprints"].items() if text}
    assert batches == [[at] for at in sorted(at for times in delivered.values() for at in times)] + [[]]
    last = ",".join(f"{one}:{at}" for one, at in stands["offsets"].items())
    _, prints = await clients[0].ask(f"/queues/inbox/fingerprints?epoch={epoch}&at={last}")
    assert stands["fingerprints"] == {one: text for one, text in prints["fingerprints"].items() if text}
    again = {"epoch": epoch, "until": {one: min(1, at) for one, at in stands["offsets"].items()}}
    status, answer = await clients[1].ask("/next-positions", "POST", json={"queues": {"inbox": again}, "most": 9})
    assert (status, answer["queues"]["inbox"]["offsets"]) == (200, again["until"])
    wrong = {"epoch": epoch, "fingerprints": dict.fromkeys(prints["fingerprints"], "0123456789abcdef")}
    wrong["offsets"] = dict.fromkeys(prints["fingerprints"], 1)
    assert (await clients[0].ask("/next-positions", "POST", json={"queues": {"inbox": wrong}}))[0] == 409
    for name, status in (("inbox", 409), ("nowhere", 200)):
        asked = {"queues": {name: {"epoch": "another"}}}
        assert (await clients[0].ask("/next-positions", "POST", json=asked))[0] == status


async def test_a_readers_cursor_stands_in_both_and_is_moved_back_in_one(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    _, ends = await clients[0].ask("/queues/inbox/ends")
    offsets = {one: bounds["end"] for one, bounds in ends["partitions"].items()}
    assert await clients[0].put("r", offsets) == (200, {"offsets": offsets})
    assert (await clients[1].ask("/queues/inbox/cursors/r"))[1]["offsets"] == offsets
    assert (await clients[0].put("r", offsets, "another"))[0] == 409
    last = max(one for one, end in offsets.items() if end)
    reset = {"offset": 0, "partition": int(last)}
    assert (await clients[0].ask("/queues/inbox/cursors/r/reset", "POST", json=reset))[1] == {
        "offsets": {last: 0},
        "before": {last: 3},
    }
    _, listed = await clients[0].ask("/cursors")
    assert [(one["name"], one["lag"]) for one in listed["cursors"]] == [("r", offsets[last])]
    status, told = await clients[0].ask("/queues/inbox/cursors/r/reset", "POST", json={"offset": 0})
    assert (status, "partition" in told["remedy"]) == (400, True)
    assert (await clients[0].ask("/queues/inbox/cursors/r", "DELETE"))[0] == 204
    assert (await clients[1].ask("/queues/inbox/cursors/r"))[0] == 404
    status, told = await clients[1].ask("/queues/inbox/purge", "POST", json={"below": 1})
    assert (status, "partition" in told["remedy"]) == (400, True)
    status, planned = await clients[1].ask(
        "/queues/inbox/purge", "POST", json={"partition": int(last), "dry_run": True}
    )
    assert (status, planned["records"]) == (200, offsets[last])
    status, purged = await clients[1].ask("/queues/inbox/purge", "POST")
    assert (status, purged["records"], purged["left"]) == (200, 5, 0)


async def test_dead_letters_of_both_have_numbers_of_their_own(crew: Crew, peer: Any, tmp_path: Path) -> None:
    def make() -> Destination:
        app = Destination(tmp_path / "inbox", partitions=SIZE, handling=HandlingPolicy(attempts=1))

        @app.on(ACTION)
        async def fails(message: Message) -> None:
            raise ValueError("no")

        return app

    clients, _ = await filled(crew, peer, make=make)
    for client in clients:
        await asyncio.wait_for(client.app.handled(), 60)
    letters = [one["letter"] for one in await pages(clients[1], "/dead-letters", "dead_letters", "from")]
    assert letters == [0, 1, 10**12, 10**12 + 1, 10**12 + 2]
    for start, there in ((1, letters[1:]), (10**12 + 1, letters[3:]), (7 * 10**12, [])):
        _, page = await clients[0].ask(f"/dead-letters?from={start}&limit=9")
        assert ([one["letter"] for one in page["dead_letters"]], page["count"]) == (there, 5)
    for letter in letters:
        assert (await clients[0].ask(f"/dead-letters/{letter}"))[1]["letter"] == letter
    assert (await clients[0].ask(f"/dead-letters/{letters[3]}/discard", "POST"))[1] == {"discarded": 1, "count": 4}
    assert [client.app.running.dead_letters.count for client in clients] == [2, 2]
    status, told = await clients[0].ask(f"/dead-letters/{letters[3]}")
    assert (status, told["error"]) == (404, f"the dead letter {letters[3]} does not exist")
    assert (await clients[0].ask("/dead-letters/all/discard", "POST"))[1] == {"discarded": 4, "count": 0}
    for missing in ("/outbox/1:http://a/", "/outbox/http:%2F%2Fa"):
        assert (await clients[0].ask(missing))[0] == 404


async def test_each_outbox_has_a_key_of_its_own_which_all_requests_take(crew: Crew, peer: Any) -> None:
    """One worker's partition 0 has the key of the other's, without the number of the worker."""
    clients = await crew()
    for client in clients:
        running = client.app.running
        for partition in range(SIZE):
            key, versions = f"forwarder/next/{partition}", [(Versions("1.1"), False)]
            running.engine.protocol.outbound.forward(key, "http://127.0.0.1:9/", versions, running.queue, partition)
        running.engine.touch()
    for number, client in enumerate(clients):
        one = await sequence_at(number, peer(client.service.url))
        await one.message(1)
    listed = (await clients[0].ask("/forwarders"))[1]["forwarders"]
    keys = [one["key"] for one in listed]
    assert sorted(keys) == ["1:forwarder/next/0", "1:forwarder/next/1", "forwarder/next/0", "forwarder/next/1"]
    for key in keys:
        status, told = await clients[1].ask(f"/forwarders/{quote(key, safe='')}/suspend", "POST", json={"reason": key})
        assert (status, [one["key"] for one in told["forwarders"]]) == (200, [key])
    listed = (await clients[1].ask("/forwarders"))[1]["forwarders"]
    assert [(one["key"], one["suspended"]) for one in listed] == [(one["key"], one["key"]) for one in listed]
    waiting = (await clients[0].ask("/outbox"))[1]["messages"]
    assert {one["key"] for one in waiting} <= set(keys) and len(waiting) == COUNT
    for message in waiting:
        assert message["message"] == f"{message['key']}/{message['offset']}"
        for client in clients:
            status, told = await client.ask(f"/outbox/retry?key={quote(message['key'], safe='')}", "POST")
            assert (status, told["count"]) == (200, COUNT), "the other worker's message waits too"
    assert (await clients[0].ask("/outbox/retry?key=2:forwarder/next/0", "POST"))[0] == 404
    status, told = await clients[0].ask(f"/outbox/{quote(waiting[0]['message'], safe='')}/discard", "POST")
    assert (status, told["count"]) == (200, COUNT - 1)


async def test_a_sink_is_at_one_of_them_whoever_is_asked(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    row = msgspec.msgpack.encode(["k", "inbox", None, "urn:a", None, b"<a/>", None, None, None])
    data = struct.pack(">I", len(row)) + row + struct.pack(">IQ", 2**32 - 1, 1)
    for number, sink in enumerate(SINKS):
        one, other = clients[number % 2], clients[1 - number % 2]
        status, told = await one.ask(f"/sinks/{sink}/parts?query=q&batch=0&token=t", "POST", data=data)
        assert (status, told["rows"]) == (200, 1)
        asked = {"query": "q", "tokens": ["t"], "rows": 1}
        assert (await other.ask(f"/sinks/{sink}/batches/0", "POST", json=asked))[1] == {
            "published": True,
            "rows": 1,
            "attempt": "",
        }
        assert (await one.ask(f"/sinks/{sink}"))[1]["batch"] == 0
    listed = await pages(clients[0], "/sinks", "sinks")
    assert sorted(one["name"] for one in listed) == SINKS
    assert {worker_of(one["sequence"]) for one in listed} == {0, 1}
    assert (await clients[0].ask("/sinks/s1", "DELETE")) == (204, b"")
    assert (await clients[1].ask("/sinks/s1"))[0] == 404


def journal_of(admin: str) -> list[dict[str, Any]]:
    """The events, as a batch read of Spark's gets them."""
    reader = JournalReader(ReadOptions.parse({"broker": admin, "read": "journal", "awaySeconds": "0"}))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


async def test_the_journal_of_both_is_one_and_each_file_comes_from_whose_it_is(
    crew: Crew, peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_admin, "RELAYED", 500)
    policy = JournalPolicy(file_size=1)
    clients, _ = await filled(
        crew,
        peer,
        make=lambda: Destination(tmp_path / "inbox", partitions=SIZE, queues={"inbox": "7d"}, journal=policy),
    )
    for client in clients:
        await client.app.running.journal.close()
    places = [tmp_path / "inbox" / "journal", tmp_path / "inbox" / "worker-1" / "journal"]
    to_parquet_all(places[0])
    there = [(number, one) for number, place in enumerate(places) for one in segments(place)]
    listed = await pages(clients[0], "/journal", "files")
    assert [one["file"] for one in listed] == [f"1:{one.file}" if number else one.file for number, one in there]
    assert [one["worker"] for one in listed] == [number for number, _ in there]
    assert {number for number, _ in there} == {0, 1}
    _, whole = await clients[1].ask("/journal")
    assert (whole["count"], whole["bytes"]) == (len(there), sum(one.size for _, one in there))
    for shown, (_, one) in zip(listed, there, strict=True):
        content = one.path.read_bytes()
        for client in clients:
            assert await client.ask(f"/journal/{quote(shown['file'])}") == (200, content)
            assert (await client.ask(f"/journal/{quote(shown['file'])}?from=3&to=90"))[1] == content[3:90]
    rows = await asyncio.to_thread(journal_of, clients[1].url)
    assert {(row["worker"], row["number"]) for row in rows if row["event"] == "delivered"} == {
        (number, message) for number in range(COUNT) for message in range(1, number + 3)
    }
    to_parquet_all(places[1])
    status, told = await clients[0].ask(f"/journal/{quote(listed[-1]['file'])}")
    assert (status, told["file"]) == (404, f"1:{segments(places[1])[-1].file}")
    assert (await clients[0].ask(f"/journal/{quote(told['file'])}?to=4"))[1] == b"PAR1"
    size = told["bytes"]
    status, told = await clients[0].ask(f"/journal/{quote(told['file'])}?to={size + 1}")
    assert (status, told["bytes"]) == (416, size)
    for nothing in ("1:../CURRENT", "2:x.parquet", "1:_lock", "9999999999:x.parquet"):
        assert (await clients[0].ask(f"/journal/{quote(nothing, safe='')}"))[0] == 404


async def test_what_a_worker_that_is_away_has_is_told_to_be_missing(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    await clients[1].service._neighbours._inbox.close(0.0)
    clients[1].service.post.place.inbox.close()
    for path in (
        "/healthz",
        "/sequences",
        "/queues/inbox",
        "/queues/inbox/2/records?from=0&to=0",
        "/journal/1:x.parquet",
    ):
        status, told = await clients[0].ask(path)
        assert (status, "worker 1 does not answer" in told["error"]) == (503, True), path
    status, metrics = await clients[0].ask("/metrics")
    told = [line for line in metrics.splitlines() if b'worker="1"' in line]
    assert (status, b'worker="0"' in metrics, told) == (200, True, [b'holdfast_worker_up{worker="1"} 0.0'])


async def test_a_worker_that_dies_before_or_while_it_sends_leaves_its_part_out(crew: Crew, tmp_path: Path) -> None:
    clients = await crew()
    await clients[1].service._neighbours._inbox.close(0.0)
    clients[1].service.post.place.inbox.close()
    Path(clients[1].service.post.place.paths[1]).unlink()
    said = b""

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        writer.transport.abort()

    async with await asyncio.start_unix_server(dies, clients[1].service.post.place.paths[1]):
        status, told = await clients[0].ask("/journal/1:x.parquet")
        assert (status, "worker 1 does not answer" in told["error"]) == (503, True)
        said = b"HTTP/1.0 200 OK\r\n\r\nhalf of it"
        assert await clients[0].ask("/journal/1:x.parquet?to=100") == (200, b"half of it")


async def test_metrics_say_whose_they_are(crew: Crew, peer: Any) -> None:
    clients, _ = await filled(crew, peer)
    _, metrics = await clients[1].ask("/metrics")
    found = re.findall(r'^holdfast_messages_accepted_total\{[^}]*worker="(.)"\} (.*)$', metrics.decode(), re.MULTILINE)
    assert found == [("0", "2.0"), ("1", "3.0")]
    found = re.findall(r'^holdfast_queue_records\{partition="(.)",queue="inbox"', metrics.decode(), re.MULTILINE)
    assert len(found) == len(set(found)), "a partition has one number in all workers"
    assert found == [str(number) for number in range(len(found))]
