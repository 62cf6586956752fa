"""Where a reader's next batch ends: the oldest records of all partitions, what is compared, and what is waited for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_client import Client

from holdfast import Destination
from holdfast.core.records import Batch, Record
from holdfast.store import MemoryStore, Store, open_store

QUEUES = ("inbox", "orders")
PARTITIONS = 3


def backlog(seed: int) -> dict[tuple[str, int], list[float]]:
    """Times of delivery, in order in each partition."""
    chance = random.Random(seed)
    times = {}
    for queue in QUEUES:
        for partition in range(PARTITIONS):
            at, found = 1.7e9 + chance.uniform(0, 4000), []
            for _ in range(chance.choice([0, 5, 40])):
                at += chance.choice([0.0, 0.0, 0.001, 1.0, 300.0])
                found.append(round(at, 6))
            times[queue, partition] = found
    return times


def fill(store: Store, times: dict[tuple[str, int], list[float]]) -> None:
    for (queue, partition), delivered in times.items():
        records = [Record("urn:s", n + 1, "urn:a", b"<m/>", at) for n, at in enumerate(delivered)]
        store.commit(Batch(appends=[(queue, partition, offset, one) for offset, one in enumerate(records)]))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def served(serve: Any, session: aiohttp.ClientSession, store: Store) -> tuple[Client, dict[str, str]]:
    """Who asks, and the queues' epochs."""
    service = await serve(Destination(store, partitions=PARTITIONS, queues={"inbox": None, "orders": None}))
    client = Client(session, service.admin_url, service)
    _, queues = await client.ask("/queues")
    return client, {name: one["epoch"] for name, one in queues["queues"].items()}


async def ask(client: Client, **asked: Any) -> tuple[int, Any]:
    return await client.ask("/next-positions", "POST", json=asked)


@pytest.mark.parametrize("seed", range(8))
async def test_batches_hold_the_oldest_records_of_all_queues(
    serve: Any, session: aiohttp.ClientSession, seed: int, tmp_path: Path
) -> None:
    times = backlog(seed)
    store = MemoryStore() if seed else open_store(str(tmp_path / "store"))
    fill(store, times)
    client, epochs = await served(serve, session, store)
    stands: dict[str, Any] = {name: {"epoch": epochs[name], "offsets": {}, "fingerprints": {}} for name in QUEUES}
    most, guess, batches = 10, None, []
    while True:
        status, answer = await ask(client, queues=stands, most=most, guess=guess)
        assert status == 200, answer
        batch, guess = [], answer["guess"]
        for (queue, partition), delivered in times.items():
            start = stands[queue]["offsets"].get(str(partition), 0)
            batch += delivered[start : answer["queues"][queue]["offsets"][str(partition)]]
        if not batch:
            break
        batches.append(batch)
        for name, one in answer["queues"].items():
            stands[name] |= {"offsets": one["offsets"]}
            if one["fingerprints"]:
                stands[name]["fingerprints"] = {p: text for p, text in one["fingerprints"].items() if text}
    assert sorted(chain.from_iterable(batches)) == sorted(chain.from_iterable(times.values()))
    assert all(len(one) <= most for one in batches)
    for before, after in pairwise(batches):
        assert max(before) <= min(after)


async def test_what_a_reader_has_read_is_compared_and_told_for_the_next_time(
    serve: Any, session: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    fill(store, {("inbox", 0): [1.7e9] * 5, ("inbox", 1): [1.7e9] * 5})
    client, epochs = await served(serve, session, store)
    known = (await client.ask("/queues/inbox/fingerprints?at=0:3,0:5,1:5"))[1]["fingerprints"]
    third = (await client.ask("/queues/inbox/fingerprints?at=0:3"))[1]["fingerprints"]
    inbox = {"epoch": epochs["inbox"], "offsets": {"0": 3}, "fingerprints": third}
    status, answer = await ask(client, queues={"inbox": inbox, "gone": inbox})
    assert (status, list(answer["queues"])) == (200, ["inbox"])
    found = answer["queues"]["inbox"]
    assert (found["offsets"], found["fingerprints"]) == ({"0": 5, "1": 5, "2": 0}, {**known, "2": ""})
    another = inbox | {"fingerprints": {"0": "0123456789abcdef"}}
    status, told = await ask(client, queues={"inbox": another})
    assert (status, "older copy" in told["error"]) == (409, True)
    nothing_new = another | {"offsets": found["offsets"]}
    status, answer = await ask(client, queues={"inbox": nothing_new})
    assert (status, answer["queues"]["inbox"]["fingerprints"]) == (200, {}), "nothing is compared where nothing is new"


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"epoch": "another"}, 409, "epoch"),
        ({"offsets": {"9": 0}}, 400, "partition"),
        ({"until": {"9": 0}}, 400, "partition"),
        ({"until": {"0": 6}}, 416, "ends at 5"),
    ],
)
async def test_what_a_reader_cannot_mean_is_refused(
    serve: Any, session: aiohttp.ClientSession, changed: dict[str, Any], status: int, text: str
) -> None:
    store = MemoryStore()
    fill(store, {("inbox", 0): [1.7e9] * 5})
    client, epochs = await served(serve, session, store)
    found, told = await ask(client, queues={"inbox": {"epoch": epochs["inbox"]} | changed})
    assert (found, text in told["error"], bool(told["remedy"])) == (status, True, True)


async def test_a_reader_may_say_where_to_end_and_ask_for_the_other_queues(
    serve: Any, session: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    fill(store, {("inbox", 0): [1.7e9] * 5, ("inbox", 1): [1.6e9] * 5})
    client, epochs = await served(serve, session, store)
    inbox = {"epoch": epochs["inbox"], "offsets": {"0": 1}}
    status, answer = await ask(client, queues={"inbox": inbox | {"until": {"0": 3}}}, others=True, most=100)
    assert (status, answer["queues"]["inbox"]["offsets"]) == (200, {"0": 3})
    assert answer["queues"]["orders"] == {
        "epoch": epochs["orders"],
        "partitions": {str(one): {"first": 0, "end": 0} for one in range(PARTITIONS)},
    }
    status, answer = await ask(client, queues={"inbox": inbox | {"until": {}}})
    assert (status, answer["queues"]["inbox"]["offsets"]) == (200, {})
    ahead = inbox | {"offsets": {"0": 9}}
    status, answer = await ask(client, queues={"inbox": ahead})
    assert (status, answer["queues"]["inbox"]["offsets"]["0"]) == (200, 5), "the reader sees that this is less"


async def test_an_answer_waits_until_there_are_enough_records_or_some_are_deleted(
    serve: Any, session: aiohttp.ClientSession, peer: Any
) -> None:
    service = await serve(Destination(MemoryStore(), partitions=1, queues={"inbox": "7d"}))
    client = Client(session, service.admin_url, service)
    inbox = {"epoch": await client.epoch()}
    status, answer = await ask(client, queues={"inbox": inbox}, wait=0.01)
    assert (status, answer["queues"]["inbox"]["offsets"]) == (200, {"0": 0})
    waiting = asyncio.ensure_future(ask(client, queues={"inbox": inbox}, least=2, wait=60))
    await client.send(1)
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await client.send(1)
    assert (await waiting)[1]["queues"]["inbox"]["offsets"] == {"0": 2}
    assert (await client.ask("/queues/inbox/purge", "POST"))[0] == 200
    status, answer = await ask(client, queues={"inbox": inbox}, least=2, wait=60)
    assert answer["queues"]["inbox"]["partitions"] == {"0": {"first": 2, "end": 2}}
