"""A broker between a source and a service, over real sockets and a real store."""

from __future__ import annotations

import pytest
from waiting import until

import holdfast
from holdfast import Destination
from holdfast.broker.config import ForwarderConfig, QueueConfig
from holdfast.core.steering import UNCONFIGURED
from holdfast.endpoint.sending.outboxes import forwarder_key
from holdfast.exceptions import ConfigurationError
from holdfast.testing.ports import free_ports

ACTION = "urn:test:submit"


def service_that_keeps(got: list[bytes]) -> Destination:
    """A destination whose handler keeps what it was given."""
    app = Destination(":memory:")

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    return app


async def send(url: str, bodies: list[bytes]) -> None:
    async with holdfast.Source(url, ":memory:") as source:
        for body in bodies:
            await (await source.send(body, action=ACTION)).acknowledged(60)


async def test_what_a_broker_took_reaches_the_service_that_was_down_at_the_time(run_broker, run_service):
    (port,) = free_ports(1)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),))
    bodies = [b"<n>%d</n>" % number for number in range(20)]
    await send(broker.service.url, bodies)
    got: list[bytes] = []
    await run_service(service_that_keeps(got), port)
    await until(lambda: len(got) == 20)
    assert got == bodies


async def test_a_restarted_broker_sends_on_what_it_had_not_sent(run_broker, run_service):
    (port,) = free_ports(1)
    to = f"http://127.0.0.1:{port}/"
    first = await run_broker(forwarders=(ForwarderConfig("next", "inbox", to),))
    await send(first.service.url, [b"<n>1</n>", b"<n>2</n>"])
    await first.service.close(0.5)
    await run_broker(forwarders=(ForwarderConfig("next", "inbox", to),))
    got: list[bytes] = []
    await run_service(service_that_keeps(got), port)
    await until(lambda: len(got) == 2)


async def test_two_forwarders_of_one_queue_each_have_every_message(run_broker, run_service):
    one: list[bytes] = []
    other: list[bytes] = []
    services = [await run_service(service_that_keeps(got)) for got in (one, other)]
    broker = await run_broker(
        forwarders=tuple(ForwarderConfig(f"to-{n}", "inbox", service.url) for n, service in enumerate(services))
    )
    await send(broker.service.url, [b"<n>1</n>", b"<n>2</n>"])
    await until(lambda: len(one) == len(other) == 2)
    assert one == other == [b"<n>1</n>", b"<n>2</n>"]


async def test_what_every_forwarder_has_passed_is_deleted(run_broker, run_service):
    got: list[bytes] = []
    service = await run_service(service_that_keeps(got))
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", service.url),))
    await send(broker.service.url, [b"<n>%d</n>" % number for number in range(200)])
    await until(lambda: len(got) == 200)
    queue = broker.destination.running.queue
    await until(lambda: sum(one.durable_end - one.first for one in queue.partitions) < 64)


async def test_a_forwarder_removed_from_the_file_sends_nothing_and_keeps_its_backlog(run_broker):
    to = f"http://127.0.0.1:{free_ports(1)[0]}/"
    first = await run_broker(forwarders=(ForwarderConfig("next", "inbox", to),))
    await send(first.service.url, [b"<n>1</n>"])
    await first.service.close(0.5)
    again = await run_broker()
    outboxes = again.destination.running.engine.protocol.outbound.outboxes
    kept = [outboxes[forwarder_key("next", partition)] for partition in range(2)]
    assert {one.lifecycle.suspended for one in kept} == {UNCONFIGURED}
    assert sum(one.records.durable_end - one.records.first for one in kept) == 1
    await again.service.close(0.5)
    back = await run_broker(forwarders=(ForwarderConfig("next", "inbox", to),))
    outboxes = back.destination.running.engine.protocol.outbound.outboxes
    assert {outboxes[forwarder_key("next", partition)].lifecycle.suspended for partition in range(2)} == {None}


async def test_a_queue_with_messages_that_is_not_configured_any_more_stops_the_start(run_broker):
    first = await run_broker(queues=(QueueConfig("orders"),))
    await send(first.service.url, [b"<n>1</n>"])
    await first.service.close(0.5)
    with pytest.raises(ConfigurationError, match="queue 'orders'"):
        await run_broker()


async def test_a_forwarder_cannot_change_its_queue_under_its_name(run_broker):
    to = f"http://127.0.0.1:{free_ports(1)[0]}/"
    queues = (QueueConfig("inbox"), QueueConfig("orders"))
    first = await run_broker(queues=queues, forwarders=(ForwarderConfig("next", "inbox", to),))
    await first.service.close(0.5)
    with pytest.raises(ConfigurationError, match="a new name"):
        await run_broker(queues=queues, forwarders=(ForwarderConfig("next", "orders", to),))
