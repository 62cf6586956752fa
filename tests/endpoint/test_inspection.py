"""What a person is shown of a Sequence, from states that real endpoints saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast import Destination, Source
from holdfast.endpoint.admin.stopped import StoppedStore
from holdfast.endpoint.inspection import describe_protocol
from holdfast.store.rocksdb.store import RocksDBStore

ACTION = "urn:test:submit"


def look(path: Path, now: float) -> list[dict[str, Any]]:
    store = RocksDBStore(path, read_only=True)
    try:
        return describe_protocol(StoppedStore(store).engine.protocol, now)
    finally:
        store.close()


async def test_a_store_is_described_while_it_is_open_with_gaps_and_held_messages(
    serve: Any, peer: Any, tmp_path: Path
) -> None:
    app = Destination(tmp_path / "inbox")
    one = peer((await serve(app)).url)
    await one.create()
    for number in (1, 2, 5, 7):
        await one.message(number)
    await app.running.engine.settled()
    (shown,) = look(tmp_path / "inbox", app.running.engine.clock() + 90)
    assert shown["identifier"] == one.identifier
    assert (shown["role"], shown["state"], shown["acks_to"]) == ("destination", "created", "anonymous")
    assert (shown["ranges"], shown["gaps"]) == ("1-2 5-5 7-7", "3-4 6-6")
    assert (shown["count"], shown["highest"], shown["waiting"], shown["next_in_order"]) == (4, 7, 2, 3)
    assert shown["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.2"
    assert 90 <= shown["age"] < 120
    assert json.loads(json.dumps(shown)) == shown


async def test_a_source_and_its_offered_sequence_are_described(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:")
    app.on(ACTION)(lambda message: "<done/>")
    url = (await serve(app)).url
    async with Source(url, tmp_path / "outbox", offer=True) as source:
        for _ in range(3):
            await source.request("<a/>", action=ACTION, sequence_key="UA", timeout=60)
        (live,) = source.sequences()
        assert (live["role"], live["key"], live["count"], live["ranges"]) == ("source", "UA", 3, "1-3")
        inbound, outbound = sorted(look(tmp_path / "outbox", 0.0), key=lambda one: one["role"])
        assert (inbound["role"], outbound["role"]) == ("destination", "source")
        assert inbound["age"] == outbound["age"] == 0.0, "a clock that is behind shows no negative age"
        assert (live["waiting"], live["to"]) == (0, url)
        assert outbound["identifier"] == live["identifier"]


async def test_why_replies_are_stopped_is_shown_of_a_running_destination(serve: Any) -> None:
    app = Destination(":memory:")
    app.on(ACTION)(lambda message: "<done/>")
    async with Source((await serve(app)).url, ":memory:", offer=True) as source:
        await source.request("<a/>", action=ACTION, timeout=60)
        (replies,) = app.running.engine.protocol.outbound.outboxes.values()
        replies.lifecycle.stop("Sender")
        described = describe_protocol(app.running.engine.protocol, app.running.engine.clock())
        (shown,) = [one for one in described if one["role"] == "source"]
        assert (shown["key"], shown["suspended"]) == (replies.key, "Sender")
        replies.lifecycle.resume()


async def test_messages_that_wait_for_a_sequence_are_shown_with_the_reason(
    tmp_path: Path,
) -> None:
    url = "http://127.0.0.1:9/"
    async with Source(url, tmp_path / "outbox") as source:
        for _ in range(3):
            await source.send("<a/>", action=ACTION, sequence_key="UA")
        (live,) = source.sequences()
        (kept,) = look(tmp_path / "outbox", 0.0)
        for shown in (live, kept):
            assert shown["state"] in ("none", "creating")
            assert (shown["identifier"], shown["key"], shown["to"], shown["waiting"]) == ("", "UA", url, 3)
            assert (shown["ranges"], shown["count"]) == ("none", 0)
