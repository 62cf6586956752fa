"""The service behind a forwarder has another address after a restart of the broker, with messages in flight to it.

Covers broker/forwarders.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from waiting import until

import holdfast
from holdfast import Destination, DestinationHTTP
from holdfast.broker.broker import Broker
from holdfast.broker.config_file import read_config
from holdfast.broker.forwarders import forwarder_key
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

ACTION, ASK = "urn:test:submit", "urn:test:ask"
KNOWN, IN_FLIGHT, LATER = 12, 5, 8
"""Messages that the broker knows to have arrived, that arrived without its knowledge, and that it accepts later."""
BODIES = [f"<n>{number}</n>".encode() for number in range(KNOWN + IN_FLIGHT + LATER)]
Got = list[tuple[bytes, str]]


@asynccontextmanager
async def shop(store: Path, got: Got) -> AsyncIterator[Service]:
    """Runs a service that notes each body with the Sequence that it came in, and answers requests."""
    app = Destination(str(store), http=DestinationHTTP(allow_addresses=["http://127.0.0.1"]))

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        got.append((message.body_bytes, message.sequence))

    @app.on(ASK)
    async def answer(message: holdfast.Message) -> bytes:
        got.append((message.body_bytes, message.sequence))
        return message.body_bytes

    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        yield service
    finally:
        await service.close(0.5)


@asynccontextmanager
async def broker_to(to: str, directory: Path, more: str = "", port: int = 0) -> AsyncIterator[Broker]:
    file = directory / "broker.toml"
    forwarder = f"[forwarders.shop]\nqueue = 'inbox'\nto = '{to}'\n{more}"
    file.write_text(f"store = '{directory}/broker'\npartitions = 1\nlisten.port = {port}\nadmin.port = 0\n{forwarder}")
    broker = Broker(read_config(file))
    await broker.service.start()
    try:
        yield broker
    finally:
        await broker.service.close(0.5)


def outbox_of(broker: Broker) -> Outbox:
    return broker.destination.running.engine.protocol.outbound.outboxes[forwarder_key("shop", 0)]


async def send(broker: Broker, bodies: list[bytes]) -> None:
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        for body in bodies:
            await source.send(body, action=ACTION)
        await source.flush(60)


@asynccontextmanager
async def moved(directory: Path, second_store: str) -> AsyncIterator[tuple[Broker, Got, Got]]:
    """Move the service while messages are in flight to it; yields the broker, and what either address got."""
    before: Got = []
    after: Got = []
    known, in_flight, later = BODIES[:KNOWN], BODIES[KNOWN : KNOWN + IN_FLIGHT], BODIES[KNOWN + IN_FLIGHT :]
    async with shop(directory / "shop", before) as service, LossyProxy(service.url, Faults(), seed=1) as proxy:
        async with broker_to(proxy.url, directory) as broker:
            await send(broker, known)
            await until(lambda: not outbox_of(broker).records.waiting)
            proxy.faults = Faults(lose_response=1.0)
            await send(broker, in_flight)
            await until(lambda: len(before) == KNOWN + IN_FLIGHT)
    async with shop(directory / second_store, after) as service, broker_to(service.url, directory) as broker:
        await send(broker, later)
        yield broker, before, after


async def test_a_service_that_has_moved_gets_each_message_once_in_the_same_sequence(tmp_path: Path) -> None:
    async with moved(tmp_path, "shop") as (broker, before, after):
        await until(lambda: not outbox_of(broker).records.waiting and len(before + after) >= len(BODIES))
    assert [body for body, _ in before + after] == BODIES
    assert len({sequence for _, sequence in before + after}) == 1


async def test_another_service_gets_nothing_in_doubt_until_an_operator_decides(tmp_path: Path) -> None:
    async with moved(tmp_path, "other") as (broker, _, after):
        outbox = outbox_of(broker)
        await until(lambda: outbox.lifecycle.stopped)
        assert (outbox.lifecycle.stopped, after) == ("UnknownSequence", [])
        assert outbox.lifecycle.in_doubt == f"{KNOWN + 1}-{KNOWN + IN_FLIGHT}"


async def test_replies_come_and_are_acknowledged_at_the_new_address(tmp_path: Path) -> None:
    async def ask(number: int, service: Service) -> None:
        reply = await source.request(f"<n>{number}</n>", action=ASK, timeout=60)
        assert reply.body.text == str(number)
        outboxes = service.app.running.engine.protocol.outbound.outboxes.values()
        await until(lambda: not any(one.records.waiting for one in outboxes))

    got: Got = []
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    # The service posts its replies there, and the broker posts the acknowledgements to the service.
    more = f"offer = true\naddress = '{url}'"
    async with holdfast.Source(url, ":memory:") as source:
        for number in (1, 2):
            async with shop(tmp_path / "shop", got) as service, broker_to(service.url, tmp_path, more, port):
                await ask(number, service)
        await source.close(0.0)  # nobody answers it
    assert [body for body, _ in got] == [b"<n>1</n>", b"<n>2</n>"]
    assert len({sequence for _, sequence in got}) == 1


async def test_a_forwarder_that_polls_keeps_its_address_while_a_sequence_is_open(tmp_path: Path) -> None:
    async with shop(tmp_path / "shop", []) as service, broker_to(service.url, tmp_path, "poll = true") as broker:
        await send(broker, BODIES[:1])
        await until(lambda: not outbox_of(broker).records.waiting)
    with pytest.raises(ConfigurationError, match="cannot continue there"):
        async with broker_to("http://127.0.0.1:9/", tmp_path, "poll = true"):
            pass
