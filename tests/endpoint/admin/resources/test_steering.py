"""Steering over HTTP: Sequences, queues, cursors and forwarders, by an operator who asks a running destination.

Covers endpoint/admin/resources/forwarders.py, endpoint/admin/resources/queues.py, endpoint/admin/resources/rates.py and
endpoint/admin/resources/sequences.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from admin_client import ACTION, Client

from holdfast import (
    Destination,
    DestinationHTTP,
    HandlingPolicy,
    MessageContext,
    ProcessingError,
    Processor,
    Versions,
)
from holdfast.core.messages import Envelope, Fault
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports
from holdfast.wire import content_type, decode, encode

NEW = Versions("1.1")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def admin(serve: Any, session: aiohttp.ClientSession, tmp_path: Any) -> Client:
    """Of a destination without handlers, so that its queue keeps everything."""
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    return Client(session, service.admin_url, service)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


# --- Sequences ----------------------------------------------------------------------------------------------------


async def test_sequences_come_in_pages_and_are_found_by_role_state_and_text(admin: Client, peer: Any) -> None:
    sources = [peer(admin.service.url) for _ in range(5)]
    for source in sources:
        await source.create()
    await admin.ask(f"/sequences/{sources[0].identifier}/close", "POST")
    seen: list[str] = []
    path = "/sequences?limit=2"
    while True:
        status, answer = await admin.ask(path)
        assert (status, answer["count"]) == (200, 5)
        assert len(answer["sequences"]) <= 2
        seen += [one["identifier"] for one in answer["sequences"]]
        if answer["next"] is None:
            break
        path = f"/sequences?limit=2&after={quote(answer['next'])}"
    assert seen == sorted(source.identifier for source in sources)
    for query, count in (
        ("state=closed", 1),
        ("state=created", 4),
        ("role=source", 0),
        ("role=destination", 5),
        (f"find={sources[3].identifier[-12:]}", 1),
    ):
        assert (await admin.ask(f"/sequences?{query}"))[1]["count"] == count, query


async def test_a_suspended_sequence_is_left_unacknowledged_and_goes_on_when_it_is_resumed(
    admin: Client, peer: Any, serve: Any, tmp_path: Any
) -> None:
    source = peer(admin.service.url)
    await source.create()
    assert (await source.message(1)).ranges == ((1, 1),)
    path = f"/sequences/{source.identifier}"
    status, shown = await admin.ask(f"{path}/suspend", "POST", json={"reason": "too fast"})
    assert (status, shown["suspended"]) == (200, "held back: too fast")
    assert (await source.message(2)).ranges == ((1, 1),), "not accepted: its source sends it again"
    assert (await source.message(1)).ranges == ((1, 1),)
    await admin.service.close()

    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    admin, source.url = Client(admin.session, service.admin_url, service), service.url
    assert (await admin.ask(path))[1]["suspended"] == "held back: too fast", "it was durable before it was answered"
    assert (await source.message(2)).ranges == ((1, 1),)
    status, shown = await admin.ask(f"{path}/resume", "POST")
    assert (status, shown["suspended"]) == (200, "")
    assert (await source.message(2)).ranges == ((1, 2),)
    status, answer = await admin.ask(f"{path}/resume", "POST")
    assert (status, "not suspended" in answer["error"]) == (409, True)


async def test_who_steers_is_told_in_the_log(admin: Client, peer: Any, caplog: Any) -> None:
    source = peer(admin.service.url)
    await source.create()
    with caplog.at_level("INFO", logger="holdfast"):
        await admin.ask(f"/sequences/{source.identifier}/suspend", "POST", json={"reason": "why not"})
        await admin.ask("/sequences")
    told = [line for line in caplog.text.splitlines() if "admin.request" in line]
    assert len(told) == 1
    assert source.identifier in told[0]
    assert "127.0.0.1" in told[0]
    assert "why not" in caplog.text


# --- queues -------------------------------------------------------------------------------------------------------


async def test_a_queue_is_shown_with_its_age_and_cursors(admin: Client) -> None:
    await admin.send(3)
    await admin.put("spark", {"0": 1})
    status, shown = await admin.ask("/queues/inbox")
    assert (status, shown["records"], shown["bytes"]) == (200, 3, None)
    assert shown["age"] >= 0
    assert [(one["name"], one["lag"]) for one in shown["cursors"]] == [("spark", 2)]
    assert (await admin.ask("/queues/other"))[0] == 404
    status, answer = await admin.ask("/cursors")
    assert [(one["queue"], one["name"], one["lag"]) for one in answer["cursors"]] == [("inbox", "spark", 2)]


async def test_bytes_are_told_where_the_retention_counts_them(serve: Any, session: Any) -> None:
    service = await serve(Destination(":memory:", partitions=1, queues={"inbox": "none 1GB"}))
    admin = Client(session, service.admin_url, service)
    assert (await admin.ask("/queues/inbox"))[1]["bytes"] == 0


async def test_records_are_looked_at_in_pages_and_no_cursor_moves(admin: Client) -> None:
    await admin.send(5)
    await admin.put("spark", {"0": 0})
    status, answer = await admin.ask("/queues/inbox/0/messages?limit=2")
    assert status == 200
    assert [(one["offset"], one["message_number"], one["body"]) for one in answer["messages"]] == [
        (0, 1, "<n>0</n>"),
        (1, 2, "<n>1</n>"),
    ]
    assert (answer["first"], answer["end"], answer["next"]) == (0, 5, 2)
    _, answer = await admin.ask("/queues/inbox/0/messages?from=3&body_bytes=3")
    assert [(one["body"], one["bytes"]) for one in answer["messages"]] == [("<n>", 8)] * 2
    assert answer["next"] is None
    assert (await admin.ask("/queues/inbox/0/messages?from=5"))[1]["messages"] == []
    assert (await admin.ask("/queues/inbox/cursors/spark"))[1]["offsets"] == {"0": 0}


async def test_a_purge_says_first_what_it_would_delete_and_then_does_it_for_good(
    admin: Client, serve: Any, tmp_path: Any
) -> None:
    await admin.send(10)
    await admin.put("spark", {"0": 4})
    asked = {"below": 7, "partition": 0, "dry_run": True}
    status, answer = await admin.ask("/queues/inbox/purge", "POST", json=asked)
    unread = [{"partition": 0, "cursor": "spark", "kind": "reader", "records": 3}]
    assert (status, answer["records"], answer["unread"]) == (200, 7, unread)
    assert (await admin.ask("/queues/inbox"))[1]["records"] == 10
    status, answer = await admin.ask("/queues/inbox/purge", "POST", json=asked | {"dry_run": False})
    assert (status, answer["records"], answer["left"]) == (200, 7, 0)
    await admin.service.close()
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    again = Client(admin.session, service.admin_url, service)
    assert (await again.ask("/queues/inbox"))[1]["partitions"] == {"0": {"first": 7, "end": 10}}
    assert (await again.ask("/queues/inbox/purge", "POST"))[1]["records"] == 3
    assert (await again.ask("/queues/inbox/0/messages?from=2"))[0] == 410


async def test_unhandled_records_are_purged_only_by_force_and_the_log_names_who(
    serve: Any, session: Any, peer: Any
) -> None:
    app = Destination(":memory:", partitions=1, queues={"inbox": "7d"}, handling=HandlingPolicy(concurrency=1))
    may_end = threading.Event()
    handled = []

    @app.on(ACTION)
    def handle(message: Any) -> str:
        assert may_end.wait(60)
        handled.append(message.message_number)
        return "<done/>"

    service = await serve(app)
    admin = Client(session, service.admin_url, service)
    source = peer(service.url)
    await source.create()
    asked = [asyncio.ensure_future(source.message(number, message_id=f"urn:m:{number}")) for number in (1, 2, 3)]
    await until(lambda: app.running.queue.records.ends == [3])
    status, answer = await admin.ask("/queues/inbox/purge", "POST")
    assert (status, "handler still needs 3" in answer["error"]) == (409, True)
    assert "force" in answer["remedy"]
    status, answer = await admin.ask("/queues/inbox/purge", "POST", json={"force": True})
    assert (status, answer["records"], answer["left"]) == (200, 0, 3), "the first is with its handler"
    may_end.set()
    answers = await asyncio.gather(*asked)
    assert handled == [1]
    assert [one.envelope.fault is not None for one in answers] == [False, True, True]
    await app.handled()
    await until(lambda: app.running.queue.records.firsts == [3])


# --- cursors ------------------------------------------------------------------------------------------------------


async def test_a_readers_cursor_is_moved_to_an_offset_an_end_or_a_time(admin: Client) -> None:
    await admin.send(3)
    between = admin.app.running.engine.clock()
    await until(lambda: admin.app.running.engine.clock() > between)
    await admin.send(2)
    await admin.put("spark", {"0": 5})
    path = "/queues/inbox/cursors/spark/reset"
    for asked, offset in (
        ({"offset": 2}, 2),
        ({"to": "latest"}, 5),
        ({"to": "earliest"}, 0),
        ({"time": between}, 3),
        ({"time": 0}, 0),
        ({"time": time.time() + 1000}, 5),
        ({"offset": 99}, 5),
    ):
        before = (await admin.ask("/queues/inbox/cursors/spark"))[1]["offsets"]
        moved = (200, {"offsets": {"0": offset}, "before": before})
        assert await admin.ask(path, "POST", json={**asked, "dry_run": True}) == moved, asked
        assert (await admin.ask("/queues/inbox/cursors/spark"))[1]["offsets"] == before
        assert await admin.ask(path, "POST", json=asked) == moved, asked
        assert (await admin.ask("/queues/inbox/cursors/spark"))[1]["offsets"] == {"0": offset}


async def test_handlers_are_given_again_what_is_still_there(serve: Any, session: Any) -> None:
    app = Destination(":memory:", partitions=1, queues={"inbox": "7d"}, handling=HandlingPolicy(attempts=1))
    handled: list[int] = []
    app.on(ACTION)(lambda message: handled.append(message.message_number))
    service = await serve(app)
    admin = Client(session, service.admin_url, service)
    await admin.send(4)
    await app.handled()
    assert handled == [1, 2, 3, 4]
    path = "/queues/inbox/cursors/handler/reset"
    moved = (200, {"offsets": {"0": 2}, "before": {"0": 4}})
    assert await admin.ask(path, "POST", json={"offset": 2, "dry_run": True}) == moved
    assert await admin.ask(path, "POST", json={"offset": 2}) == moved
    await app.handled()
    assert handled == [1, 2, 3, 4, 3, 4]
    await admin.send(1)
    await app.handled()
    assert handled == [1, 2, 3, 4, 3, 4, 1]
    status, answer = await admin.ask(path, "POST", json={"offset": 9})
    assert (status, "cannot skip records" in answer["error"]) == (409, True)


# --- forwarders ---------------------------------------------------------------------------------------------------


class Refusing(Processor):
    """Refuses each message of an application."""

    def inbound(self, context: MessageContext) -> None:
        if context.is_application:
            raise ProcessingError("Not today.")


async def forwarded(serve: Any, session: Any, peers: str) -> tuple[Client, Any]:
    """A destination that forwards its queue to another."""
    service = await serve(
        Destination(":memory:", partitions=2, http=DestinationHTTP(allow_addresses=[peers]), queues={"inbox": "7d"})
    )
    app = service.app
    for partition in (0, 1):
        app.running.engine.protocol.outbound.forward(
            f"forwarder/next/{partition}", peers, [(NEW, False)], app.running.queue, partition
        )
    app.running.engine.touch()
    return Client(session, service.admin_url, service), service


async def test_a_forwarder_of_which_a_partition_is_stopped_says_so_when_it_is_resumed(serve: Any, session: Any) -> None:
    service = await serve(Destination(":memory:", partitions=1))
    admin, _ = await forwarded(serve, session, service.url)
    protocol = admin.app.running.engine.protocol
    stopped = list(protocol.outbound.outboxes.values())[-1]
    stopped.stop("HTTP 404", "it is not there", admin.app.running.engine.clock())
    await admin.app.running.engine.durable()
    _, answer = await admin.ask(f"/forwarders/{quote(stopped.key, safe='')}")
    assert [(one["stopped"], one["stopped_for"]) for one in answer["forwarders"]] == [("HTTP 404", "it is not there")]
    assert await admin.ask("/readyz") == (200, {"status": "ready", "stopped": ["next"]})
    status, answer = await admin.ask("/forwarders/next/resume", "POST")
    assert status == 409
    assert "is stopped, not suspended: HTTP 404" in answer["error"]
    assert "holdfast outbox retry" in answer["remedy"]


async def test_a_message_that_the_destination_refuses_is_shown(serve: Any, session: Any) -> None:
    service = await serve(Destination(":memory:", partitions=1, processors=[Refusing()]))
    admin, _ = await forwarded(serve, session, service.url)
    await admin.send(1)

    async def refusals() -> list[dict[str, Any]]:
        _, answer = await admin.ask("/forwarders")
        return [shown for one in answer["forwarders"] for shown in one["refusals"]]

    async with asyncio.timeout(60):
        while not (found := await refusals()):
            await asyncio.sleep(0.05)
    (shown,) = found
    assert (shown["offset"], shown["number"], shown["reason"]) == (0, 1, "Not today.")
    assert shown["sequence"] and shown["action"] and shown["code"] and shown["times"] >= 1
    assert shown["since"] <= admin.app.running.engine.clock()


async def test_the_last_answer_to_a_forwarder_is_shown_while_something_is_wrong_with_it(
    serve: Any, session: Any
) -> None:
    (port,) = free_ports(1)
    admin, _ = await forwarded(serve, session, f"http://127.0.0.1:{port}/")
    await admin.send(1)

    async def last_answers(text: str) -> None:
        """Wait until it is shown for the partition that has something to send; "" for nothing."""
        async with asyncio.timeout(60):
            while True:
                _, answer = await admin.ask("/forwarders")
                found = [one["last_answer"] for one in answer["forwarders"] if one["waiting"] or not text]
                if all(text in (one or "") if text else one is None for one in found):
                    return
                await asyncio.sleep(0.05)

    def refuse(exchange: Exchange) -> None:
        asked = decode(exchange.request.body)
        fault = Fault("Receiver", "the database is away", sender=False)
        answer = Envelope(asked.soap, asked.addressing, asked.rm, fault=fault, relates_to=asked.message_id)
        exchange.respond(500, encode(answer), content_type(asked.soap).encode())

    await last_answers("Connection refused")
    server = HTTPServer()
    await server.start(refuse, "127.0.0.1", port)
    await last_answers("fault Receiver: the database is away")
    await server.close()
    await serve(Destination(":memory:", partitions=1), port=port)
    await last_answers("")


async def test_a_forwarder_is_held_back_in_all_partitions_and_goes_on(serve: Any, session: Any) -> None:
    service = await serve(last := Destination(":memory:", partitions=1))
    admin, _ = await forwarded(serve, session, service.url)
    status, answer = await admin.ask("/forwarders/next/suspend", "POST", json={"reason": "maintenance"})
    assert status == 200
    assert [(one["name"], one["state"], one["suspended"]) for one in answer["forwarders"]] == [
        ("next", "suspended", "maintenance")
    ] * 2
    await admin.send(6)
    _, answer = await admin.ask("/forwarders")
    assert sum(one["waiting"] for one in answer["forwarders"]) == 6
    assert last.running.accepted == 0
    assert (await admin.ask("/forwarders/next/resume", "POST"))[0] == 200
    await until(lambda: last.running.accepted == 6)
    assert (await admin.ask("/forwarders/next/resume", "POST"))[0] == 409
    await until(
        lambda: all(one.records.is_empty for one in admin.app.running.engine.protocol.outbound.outboxes.values())
    )
    _, answer = await admin.ask("/forwarders/next")
    assert [one["waiting"] for one in answer["forwarders"]] == [0, 0]


async def test_a_forwarder_sends_again_what_it_is_put_back_to_in_another_sequence(serve: Any, session: Any) -> None:
    service = await serve(last := Destination(":memory:", partitions=1))
    admin, _ = await forwarded(serve, session, service.url)
    await admin.send(4)
    await until(lambda: last.running.accepted == 4)
    await until(
        lambda: all(one.records.is_empty for one in admin.app.running.engine.protocol.outbound.outboxes.values())
    )
    (before,) = [one for one in (await admin.ask("/forwarders"))[1]["forwarders"] if one["sequence"]]
    status, answer = await admin.ask("/forwarders/next/reset", "POST", json={"to": "earliest"})
    assert (status, answer["offsets"]) == (200, {"0": 0, "1": 0})
    await until(lambda: last.running.accepted == 8)
    (after,) = [one for one in (await admin.ask("/forwarders"))[1]["forwarders"] if one["sequence"]]
    assert after["sequence"] != before["sequence"]
    status, shown = await admin.ask(f"/sequences/{after['sequence']}")
    assert (status, shown["role"], shown["flight"]["next_number"]) == (200, "source", 5)
    status, _ = await admin.ask(f"/sequences/{after['sequence']}/close", "POST")
    assert status == 200
    await until(lambda: admin.app.incidents["sequence.terminated"] >= 1)
    await admin.send(2)
    await until(lambda: last.running.accepted == 10)


async def test_what_a_forwarder_has_still_to_send_is_purged_only_by_force(serve: Any, session: Any) -> None:
    service = await serve(last := Destination(":memory:", partitions=1))
    admin, _ = await forwarded(serve, session, service.url)
    await admin.ask("/forwarders/next/suspend", "POST")
    await admin.send(3)
    status, answer = await admin.ask("/queues/inbox/purge", "POST")
    assert (status, "outbound/forwarder/next" in answer["error"]) == (409, True)
    status, answer = await admin.ask("/queues/inbox/purge", "POST", json={"force": True})
    assert (status, answer["records"], answer["left"]) == (200, 3, 0)
    await admin.ask("/forwarders/next/resume", "POST")
    await admin.send(1)
    await until(lambda: last.running.accepted == 1)
