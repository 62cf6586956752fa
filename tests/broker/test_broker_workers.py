"""A broker of several processes, some of which are killed: what it took reaches the service once and in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from crew import Crew
from waiting import until

import holdfast
from holdfast import Destination, DestinationHTTP
from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

CONFIG = """
store = "inbox"
partitions = 2
[listen]
port = 0
[admin]
enabled = false
[queues.orders]
[forwarders.next]
queue = "orders"
to = "{url}"
"""


async def send(url: str, name: int, count: int) -> None:
    async with holdfast.Source(url, ":memory:") as source:
        for number in range(count):
            await source.send(b"<n>%d-%d</n>" % (name, number), action="urn:test:submit")
        await source.flush(60)


async def test_killed_workers_of_a_broker_forward_each_message_once_and_in_order(
    run_service: Any, tmp_path: Path
) -> None:
    got: list[tuple[int, int]] = []
    app = Destination(":memory:")

    @app.on("urn:test:submit")
    async def submit(message: holdfast.Message) -> None:
        name, number = str(message.body.text).split("-")
        got.append((int(name), int(number)))

    service = await run_service(app)
    server = Crew(tmp_path, "--workers", "2", broker=CONFIG.format(url=service.url))
    try:
        url = await asyncio.to_thread(server.url)
        sending = asyncio.gather(*(send(url, name, 200) for name in range(6)))
        chance = random.Random(2)
        for _ in range(4):
            await asyncio.to_thread(server.kill, chance.randrange(2))
        await sending
        await until(lambda: len(got) >= 6 * 200)
        assert await asyncio.to_thread(server.end) == 0
    finally:
        server.clean()
    for name in range(6):
        assert [number for one, number in got if one == name] == list(range(200))
    assert len(got) == 6 * 200


async def ask(url: str, name: int, count: int) -> list[str]:
    """Replies to so many requests, each waited for."""
    async with holdfast.Source(url, ":memory:", offer=bool(name % 2)) as source:
        replies = []
        for number in range(count):
            reply = await source.request(b"<n>%d-%d</n>" % (name, number), action="urn:test:ask")
            replies.append(str(reply.body.text))
        return replies


@pytest.mark.parametrize(
    ("offer", "has_address"),
    [
        pytest.param("true", False, marks=pytest.mark.nightly),
        pytest.param("true", True, marks=pytest.mark.nightly),
        ("false", True),
    ],
)
async def test_replies_come_back_through_a_broker_whose_workers_are_killed(
    run_service: Any, tmp_path: Path, offer: str, has_address: bool
) -> None:
    # One address for all workers: what is posted there finds the worker that sent the request.
    port = free_ports(1)[0]
    address = f"http://127.0.0.1:{port}/replies"
    app = Destination(":memory:", http=DestinationHTTP(allow_addresses=[address]))

    @app.on("urn:test:ask")
    async def answer(message: holdfast.Message) -> str:
        return f"<r>{message.body.text}</r>"

    service = await run_service(app)
    config = CONFIG.replace("port = 0", f"port = {port}").format(url=service.url) + f"offer = {offer}\n"
    config += f'address = "{address}"\n' if has_address else ""
    server = Crew(tmp_path, "--workers", "2", broker=config)
    try:
        url = await asyncio.to_thread(server.url)
        asking = asyncio.gather(*(ask(url, name, 20) for name in range(4)))
        chance = random.Random(5)
        for _ in range(2):
            await asyncio.to_thread(server.kill, chance.randrange(2))
        assert await asking == [[f"{name}-{number}" for number in range(20)] for name in range(4)]
        assert await asyncio.to_thread(server.end) == 0
    finally:
        server.clean()


def look(admin: str, path: str, body: object = None) -> Any:
    """What the admin listener answers; to a POST, if there is a body."""
    content = json.dumps(body).encode() if body is not None else None
    with urlopen(admin + path, content, timeout=240) as answer:
        return json.loads(answer.read())


async def test_forwarders_of_all_workers_are_shown_and_steered_as_one(run_service: Any, tmp_path: Path) -> None:
    got: list[str] = []
    app = Destination(":memory:")

    @app.on("urn:test:submit")
    async def submit(message: holdfast.Message) -> None:
        got.append(str(message.body.text))

    service = await run_service(app)
    config = CONFIG.replace("enabled = false", "port = 0").format(url=service.url)
    server = Crew(tmp_path, "--workers", "2", broker=config)

    def steer(how: str) -> set[bool]:
        rows = look(admin, f"/forwarders/next/{how}", {"reason": "a test"} if how == "suspend" else {})["forwarders"]
        assert sorted(row["partition"] for row in rows) == [0, 1, 66, 67], "64 of each worker's are for sessions"
        return {bool(row["suspended"]) for row in rows}

    try:
        url, admin = await asyncio.to_thread(lambda: (server.url(), server.url()))
        listed = await asyncio.to_thread(look, admin, "/forwarders")
        assert [listed["count"], len(listed["forwarders"]), listed["next"]] == [4, 4, None]
        assert await asyncio.to_thread(steer, "suspend") == {True}
        await asyncio.gather(*(send(url, name, 3) for name in range(8)))
        shown = await asyncio.to_thread(look, admin, "/queues/orders")
        assert shown["records"] == 24
        lags = {cursor["name"]: cursor["lag"] for cursor in shown["cursors"]}
        assert sum(lags.values()) == 24
        rows = (await asyncio.to_thread(look, admin, "/forwarders"))["forwarders"]
        assert lags == {f"outbound/{row['key']}": row["waiting"] for row in rows}, "as many idle ones in both"
        listed = await asyncio.to_thread(look, admin, "/cursors")
        assert {one["name"]: one["lag"] for one in listed["cursors"]} == lags
        nowhere = {"to": "earliest", "dry_run": True}
        for row in rows:
            path = quote(f"outbound/{row['key']}", safe="")
            stands = await asyncio.to_thread(look, admin, f"/queues/orders/cursors/{path}/reset", nowhere)
            shown_alone = await asyncio.to_thread(look, admin, f"/queues/orders/cursors/{path}")
            assert list(stands["offsets"]) == list(shown_alone["offsets"]) == [str(row["partition"])]
        assert got == []
        assert await asyncio.to_thread(steer, "resume") == {False}
        await until(lambda: len(got) == 24)
        filled = [int(one) for one, bounds in shown["partitions"].items() if bounds["end"]]
        moved = {"to": "latest", "partition": filled[-1]}
        stands = await asyncio.to_thread(look, admin, "/forwarders/next/reset", moved)
        assert list(stands["offsets"]) == [str(filled[-1])]
    finally:
        server.clean()
