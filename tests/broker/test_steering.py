"""A broker that runs, and an operator who steers it by its admin listener, over real sockets and a real store.

Covers broker/forwarders.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from admin_client import ACTION, Client
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from waiting import until

import holdfast
from holdfast import Destination
from holdfast.broker.broker import Broker
from holdfast.broker.config import ForwarderConfig, ListenConfig, QueueConfig
from holdfast.cli.inspection.outbox import outbox
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.testing.ports import free_ports


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def client(session: aiohttp.ClientSession, broker: Broker) -> Client:
    return Client(session, broker.service.admin_url, broker.service)


def keeping(got: list[bytes]) -> Destination:
    app = Destination(":memory:")

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    return app


QUEUES = (QueueConfig("inbox", retention=RetentionPolicy()),)


async def test_an_operator_sees_that_a_destination_is_away_and_what_waits_for_it(
    run_broker: Any, session: aiohttp.ClientSession
) -> None:
    (port,) = free_ports(1)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),))
    admin = client(session, broker)
    await admin.send(3)

    async def row() -> dict[str, Any]:
        found = (await admin.ask("/forwarders/next"))[1]["forwarders"]
        return next(one for one in found if one["waiting"])

    shown = await row()
    while not shown["circuit"]["failures"]:
        shown = await row()
    assert (shown["waiting"], shown["name"]) == (3, "next")
    assert "refused" in shown["circuit"]["reason"].lower() or shown["circuit"]["reason"]
    _, metrics = await admin.ask("/metrics")
    assert b'holdfast_forwarder_waiting_records{forwarder="next"} 3.0' in metrics
    assert b'holdfast_forwarder_failures{forwarder="next"}' in metrics
    assert b'holdfast_forwarder_circuit_open{forwarder="next"}' in metrics


async def test_a_suspended_forwarder_stays_suspended_over_a_restart_until_resumed(
    run_broker: Any, run_service: Any, session: aiohttp.ClientSession
) -> None:
    got: list[bytes] = []
    service = await run_service(keeping(got))
    forwarders = (ForwarderConfig("next", "inbox", service.url),)
    broker = await run_broker(queues=QUEUES, forwarders=forwarders)
    admin = client(session, broker)
    assert (await admin.ask("/forwarders/next/suspend", "POST", json={"reason": "moving"}))[0] == 200
    await admin.send(3)
    status, answer = await admin.ask("/queues/inbox/purge", "POST")
    assert (status, "forwarder/next" in answer["error"]) == (409, True)
    await broker.service.close(0.5)

    broker = await run_broker(queues=QUEUES, forwarders=forwarders)
    admin = client(session, broker)
    found = (await admin.ask("/forwarders"))[1]["forwarders"]
    assert {(one["state"], one["suspended"]) for one in found} == {("suspended", "moving")}
    assert got == []
    assert (await admin.ask("/forwarders/next/resume", "POST"))[0] == 200
    await until(lambda: len(got) == 3)
    await until(lambda: is_all_sent(broker))

    status, planned = await admin.ask("/forwarders/next/reset", "POST", json={"to": "earliest", "dry_run": True})
    assert status == 200
    assert sum(planned["before"].values()) - sum(planned["offsets"].values()) == 3
    assert is_all_sent(broker)  # nothing has moved
    status, answer = await admin.ask("/forwarders/next/reset", "POST", json={"to": "earliest"})
    assert (status, answer) == (200, planned)
    await until(lambda: len(got) == 6)
    assert got == [b"<n>%d</n>" % number for number in (0, 1, 2, 0, 1, 2)]
    await until(lambda: is_all_sent(broker))
    status, answer = await admin.ask("/queues/inbox/purge", "POST")
    assert (status, answer["records"], answer["left"]) == (200, 3, 0)


def is_all_sent(broker: Broker) -> bool:
    return all(one.records.is_empty for one in broker.destination.running.engine.protocol.outbound.outboxes.values())


async def test_who_waits_for_a_reply_to_a_request_that_is_given_up_is_told(
    run_broker: Any, session: aiohttp.ClientSession
) -> None:
    (port,) = free_ports(1)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),))
    admin = client(session, broker)
    await admin.ask("/forwarders/next/suspend", "POST")
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        asked = asyncio.ensure_future(source.request("<n/>", action=ACTION, timeout=240))
        await until(lambda: sum(broker.destination.running.queue.records.ends) == 1)
        status, answer = await admin.ask("/queues/inbox/purge", "POST", json={"force": True})
        assert (status, answer["records"]) == (200, 1)
        with pytest.raises(holdfast.PeerFault):
            await asked


@pytest.mark.parametrize("how", ["discarded", "discarded in a stopped store", "forwarder.deleted"])
async def test_the_requester_is_told_when_an_operator_gives_its_request_up(
    run_broker: Any, session: aiohttp.ClientSession, tmp_path: Path, how: str
) -> None:
    port, away = free_ports(2)
    forwarder = ForwarderConfig("next", "inbox", f"http://127.0.0.1:{away}/")
    told = {"forwarders": (forwarder,), "listen": ListenConfig(port=port), "store": str(tmp_path / "stopped")}
    broker = await run_broker(**told)
    admin = client(session, broker)
    await admin.ask("/forwarders/next/suspend", "POST")
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        asked = asyncio.ensure_future(source.request("<n/>", action=ACTION, timeout=240))
        await until(lambda: sum(broker.destination.running.queue.records.ends) == 1)
        (one,) = (await admin.ask("/outbox"))[1]["messages"]
        name = one["message"]
        if how == "forwarder.deleted":
            status, answer = await admin.ask("/forwarders/next", "DELETE")
            assert status == 409, "the next reload would begin it again"
            assert "in the configuration" in answer["error"]
            assert "reset" in answer["remedy"]
            await broker.service.close(0.5)
            broker = await run_broker(**told | {"forwarders": ()})
            status, answer = await client(session, broker).ask("/forwarders/next", "DELETE")
            assert (status, answer["waiting"]) == (200, 1)
        elif how == "discarded":
            assert (await admin.ask(f"/outbox/{quote(name, safe='')}/discard", "POST"))[0] == 200
        else:
            await broker.service.close(0.5)
            words = ["discard", told["store"], name, "--yes"]
            result = await asyncio.to_thread(CliRunner().invoke, outbox, words)
            assert result.exit_code == 0, result.output
            broker = await run_broker(**told)
        with pytest.raises(holdfast.PeerFault, match="set aside"):
            await asked


async def test_one_message_is_one_trace_from_the_source_through_the_broker_to_the_handler(
    run_broker: Any, run_service: Any, session: aiohttp.ClientSession
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    got: list[bytes] = []
    last = keeping(got)
    holdfast.trace(last, provider)
    service = await run_service(last)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url),))
    holdfast.trace(broker.destination, provider)
    source = holdfast.Source(broker.service.url, ":memory:")
    holdfast.trace(source, provider)
    async with source:
        await (await source.send("<n/>", action=ACTION)).acknowledged(60)

    def names() -> list[str]:
        return sorted(span.name.removeprefix("holdfast ") for span in exporter.get_finished_spans())

    whole = ["accept", "accept", "deliver", "forward", "forward", "send", "store", "store"]
    await until(lambda: set(whole) <= set(names()) and names().count("accept") == 2 and names().count("forward") >= 2)
    assert [name for name in names() if name != "forward"] == [name for name in whole if name != "forward"]
    assert len({span.context.trace_id for span in exporter.get_finished_spans() if span.context is not None}) == 1
