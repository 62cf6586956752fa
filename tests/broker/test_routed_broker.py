"""Routes in a running broker: over real sockets, from a configuration file to the queues."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import RouteConfig
from holdfast.broker.config_file import parse_config
from holdfast.broker.routing import LOOP_STEPS
from holdfast.broker.xpath_program import Program

ROUTES = """
store = ":memory:"
partitions = 2
listen.port = 0
admin.port = 0
[namespaces]
o = "urn:orders"
[queues.orders]
[queues.audit]
[queues.big]
[[routes]]
xpath = "/o:order[@total > 1000]"
queues = ["big", "audit"]
[[routes]]
action = "urn:orders/*"
queues = "orders"
"""
ORDER = "urn:orders/Submit"


def ends(broker: Broker) -> dict[str, int]:
    """How many records each queue has got."""
    return {
        name: sum(part.durable_end for part in queue.partitions)
        for name, queue in broker.destination.running.queues.items()
    }


@pytest.fixture
async def broker() -> Any:
    broker = Broker(parse_config(ROUTES.encode(), "broker.toml", Path(".")))
    await broker.service.start()
    yield broker
    await broker.service.close(0.5)


async def test_messages_go_where_the_file_says(broker: Broker) -> None:
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        for total in (5, 5000, 10):
            sent = await source.send(f'<o:order xmlns:o="urn:orders" total="{total}"/>', action=ORDER)
            await sent.acknowledged(60)
    assert ends(broker) == {"orders": 2, "audit": 1, "big": 1}


async def test_what_no_route_takes_stops_its_source_with_the_reason(broker: Broker) -> None:
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        sent = await source.send("<a/>", action="urn:other")
        with pytest.raises(holdfast.HoldfastError) as caught:
            await sent.acknowledged(60)
    assert "No route matches a message" in str(caught.value)
    assert ends(broker) == {"orders": 0, "audit": 0, "big": 0}


async def test_a_repeat_of_what_was_taken_is_not_refused_by_routes_that_changed(broker: Broker) -> None:
    """What was acknowledged stays so, whatever the routes say today."""
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await (await source.send("<a/>", action=ORDER)).acknowledged(60)
        broker.destination.running.reception.router = type(broker.destination.running.reception.router)(
            [RouteConfig(("orders",), action=("urn:nothing",))], {}, None, 1000
        )
        await repeat(source, broker)


async def repeat(source: holdfast.Source, broker: Broker) -> None:
    """Send the first message of the source's Sequence once more, as after a lost acknowledgement."""
    (outbox,) = source._running.engine.protocol.outbound.outboxes.values()
    assert outbox.source is not None
    identifier = outbox.source.identifier
    content = (
        '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
        'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header>'
        f"<a:Action>{ORDER}</a:Action><a:To>{broker.service.url}</a:To><a:MessageID>urn:uuid:1</a:MessageID>"
        f"<r:Sequence><r:Identifier>{identifier}</r:Identifier><r:MessageNumber>1</r:MessageNumber>"
        "</r:Sequence></s:Header><s:Body><a/></s:Body></s:Envelope>"
    )
    async with httpx.AsyncClient() as client:
        response = await client.post(
            broker.service.url, content=content, headers={"content-type": "application/soap+xml; charset=utf-8"}
        )
    assert response.status_code in (200, 202), response.text
    assert "SequenceAcknowledgement" in response.text and "Fault" not in response.text


async def test_a_large_body_is_looked_into_beside_the_loop(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real = Program.run
    monkeypatch.setattr(
        Program, "run", lambda *given: (threads.append(threading.current_thread().name), real(*given))[1]
    )
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        for filling in ("", "<line>x</line>" * 10_000):
            body = f'<o:order xmlns:o="urn:orders" total="5000">{filling}</o:order>'
            await (await source.send(body, action=ORDER)).acknowledged(60)
    assert ends(broker) == {"orders": 0, "audit": 2, "big": 2}
    assert threads[0] == threading.main_thread().name
    assert threads[1].startswith("holdfast-decode")


async def test_a_small_body_that_costs_many_steps_is_decided_beside_the_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    real = Program.run

    def run(program: Program, body: bytes, most: int) -> Any:
        runs.append((threading.current_thread().name.split("_")[0], most))
        return real(program, body, most)

    monkeypatch.setattr(Program, "run", run)
    slow = RouteConfig(("orders",), xpath=" or ".join(f"//*[@* = 'n{n}']" for n in range(40)))
    broker.destination.running.reception.router = type(broker.destination.running.reception.router)(
        [slow], {}, "audit", 1 << 20
    )
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await (await source.send("<r>" + '<a k="v"/>' * 3_000 + "</r>", action=ORDER)).acknowledged(60)
    assert set(runs) == {(threading.main_thread().name, LOOP_STEPS), ("holdfast-decode", 1 << 20)}, "repeats included"
    assert ends(broker) == {"orders": 0, "audit": 1, "big": 0}
