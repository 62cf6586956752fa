"""A reply that the broker can never receive: its requester gets a fault, and nothing else stops."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from broker_cluster import NAMES, Brokers, store_on
from crew import Crew
from large_posts import MEDIA, announced, forged, sent
from waiting import until

import holdfast
from holdfast import Attachment, Destination, DestinationHTTP, Message, PeerFault, WithAttachments
from holdfast.broker.config import ForwarderConfig, LimitsConfig, ListenConfig
from holdfast.core.origin import secret_in
from holdfast.http.exchange import HTTPLimits
from holdfast.testing.ports import free_ports
from holdfast.wire.limits import Limits

MOST = 16 * 1024 * 1024
FAULT = "larger than the broker accepts"
WORKERS = """
store = "broker"
[listen]
port = {port}
[limits.http]
max_body = "1MB"
max_attachments = "2MB"
[admin]
enabled = false
[queues.inbox]
[forwarders.next]
queue = "inbox"
to = "{url}"
address = "http://127.0.0.1:{port}/"
rm = "{rm}"
"""


def service(directory: Path, size: int = MOST) -> Destination:
    """A service that answers ``urn:large`` with more than the broker accepts."""
    http = DestinationHTTP(envelopes=Limits(max_bytes=4 * MOST), allow_addresses=["http://127.0.0.1"])
    app = Destination(store=directory / "inbox", http=http)

    @app.on("urn:large")
    async def large(message: Message) -> bytes:
        return b"<a>" + b"x" * size + b"</a>"

    @app.on("urn:package")
    async def package(message: Message) -> WithAttachments:
        return WithAttachments(await large(message), [Attachment(b"photo", "image/png", "photo@test")])

    @app.on("urn:film")
    async def film(message: Message) -> WithAttachments:
        return WithAttachments("<a/>", [Attachment(bytes(size // 4), "video/mp4", "film@test")])

    @app.on("urn:small")
    async def small(message: Message) -> Any:
        return b"<small/>"

    return app


def is_done(app: Destination) -> bool:
    """Whether the service has nothing to retransmit."""
    return all(outbox.records.is_empty for outbox in app.running.engine.protocol.outbound.outboxes.values())


async def check(url: str, app: Destination, directory: Path, *actions: str) -> None:
    async with holdfast.Source(url, directory / "one") as one, holdfast.Source(url, directory / "other") as other:
        for action in ("urn:large", *actions):
            with pytest.raises(PeerFault, match=FAULT):
                await one.request("<a/>", action=action, timeout=120)
        for source in (one, other):
            reply = await source.request("<a/>", action="urn:small", timeout=120)
            assert reply.body_bytes == b"<small/>"
    await until(lambda: is_done(app))


@pytest.mark.parametrize("action", ["urn:large", "urn:film"])
async def test_a_reply_beyond_the_limit_of_attachments_is_a_fault_too(
    run_broker: Any, run_service: Any, tmp_path: Path, action: str
) -> None:
    app, (port,) = service(tmp_path), free_ports(1)
    behind = await run_service(app)
    forwarder = ForwarderConfig("next", "inbox", behind.url, address=f"http://127.0.0.1:{port}/")
    limits = LimitsConfig(http=HTTPLimits(max_body=1_000_000, max_attachments=2_000_000))
    broker = await run_broker(forwarders=(forwarder,), listen=ListenConfig(port=port), limits=limits)
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        for one in (action, "urn:small", action):
            if one == action:
                with pytest.raises(PeerFault, match=FAULT):
                    await source.request("<a/>", action=one, timeout=60)
            else:
                assert (await source.request("<a/>", action=one, timeout=60)).body_bytes == b"<small/>"
    await until(lambda: is_done(app) and not broker.service._server.buffered)
    contents = tmp_path / "broker" / "attachments"
    assert not contents.exists() or not list(contents.iterdir())


async def check_several(url: str, app: Destination, directory: Path) -> None:
    for number in range(4):
        (directory / str(number)).mkdir()
    await asyncio.gather(*(check(url, app, directory / str(number), "urn:film") for number in range(4)))


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("posts", "rm", "offer", "most"),
    [
        (False, "1.2", None, MOST),
        *((True, rm, offer, MOST) for rm in ("1.0", "1.2") for offer in (None, False)),
        (True, "1.2", None, 1_000_000),
    ],
)
async def test_a_reply_too_large_for_the_broker_is_a_fault_and_opens_no_circuit(
    run_broker: Any, run_service: Any, tmp_path: Path, posts: bool, rm: str, offer: bool | None, most: int
) -> None:
    app = service(tmp_path, most)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}/" if posts else None
    behind = await run_service(app)
    forwarder = ForwarderConfig("next", "inbox", behind.url, rm=rm, offer=offer, address=address)
    listen, limits = ListenConfig(port=port), LimitsConfig(http=HTTPLimits(max_body=most))
    broker = await run_broker(forwarders=(forwarder,), listen=listen, limits=limits)
    await check(broker.service.url, app, tmp_path, *["urn:package"][: most == MOST])
    (circuit,) = broker.destination.running.engine.protocol.outbound.circuits.describe(0.0)
    assert (circuit["state"], circuit["failures"]) == ("closed", 0)
    server = broker.service._server
    await until(lambda: server.buffered == 0)


def given_address(app: Destination) -> str:
    """Return the address that a broker gave to the service."""
    (address,) = {outbox.to for outbox in app.running.engine.protocol.outbound.outboxes.values()}
    assert address is not None and secret_in(address)
    return address


async def test_only_an_address_that_a_service_was_given_takes_more_than_the_limit(
    run_broker: Any, run_service: Any, tmp_path: Path
) -> None:
    app, (port,) = service(tmp_path), free_ports(1)
    behind = await run_service(app)
    forwarder = ForwarderConfig("next", "inbox", behind.url, address=f"http://127.0.0.1:{port}/")
    broker = await run_broker(forwarders=(forwarder,), listen=ListenConfig(port=port))
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await source.request("<a/>", action="urn:small", timeout=60)
    address = given_address(app)
    for media in MEDIA:
        assert await announced(address, media) == 100
        for other in forged(address):
            assert await announced(other, media) == 413, other


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
async def test_a_worker_asks_another_one_whether_it_gave_an_address(run_service: Any, tmp_path: Path) -> None:
    """Each connection may reach any worker. Until the worker has the answer, the sender has to repeat its message."""
    app = service(tmp_path)
    behind, (port,) = await run_service(app), free_ports(1)
    server = Crew(tmp_path, "--workers", "3", broker=WORKERS.format(url=behind.url, port=port, rm="1.2"))
    try:
        async with holdfast.Source(await asyncio.to_thread(server.url), ":memory:") as source:
            await source.request("<a/>", action="urn:small", timeout=60)
        address = given_address(app)
        for other in forged(address):
            while (status := await sent(other, MEDIA[0])) != 413:  # until the worker that it reaches knows
                assert status == 503, other
        in_turn = 0
        while in_turn < 10:  # until every worker knows it
            in_turn = in_turn + 1 if await sent(address, MEDIA[0]) is None else 0
    finally:
        server.clean()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("rm", [pytest.param("1.0", marks=pytest.mark.nightly), "1.2"])
async def test_a_reply_too_large_for_a_broker_reaches_the_worker_of_its_request(
    run_service: Any, tmp_path: Path, rm: str
) -> None:
    """Each source's request is forwarded by one worker, and any worker may receive the reply."""
    app = service(tmp_path)
    behind, (port,) = await run_service(app), free_ports(1)
    server = Crew(tmp_path, "--workers", "3", broker=WORKERS.format(url=behind.url, port=port, rm=rm))
    try:
        await check_several(await asyncio.to_thread(server.url), app, tmp_path)
    finally:
        server.clean()


@pytest.mark.nightly
async def test_a_reply_too_large_for_a_broker_reaches_the_node_of_its_request(
    run_service: Any, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The requests come to one node of a cluster, and their replies to another."""
    app = service(tmp_path)
    behind = await run_service(app)
    made = Brokers(
        tmp_path,
        store_on(engine, request),
        behind.url,
        more='[limits.http]\nmax_body = "1MB"\nmax_attachments = "2MB"\n',
    )
    replies = f'address = "http://127.0.0.1:{made._ports["a"]}/"\npolicy.expires'
    made._config = made._config.replace("policy.expires", replies)
    try:
        await made.start(*NAMES)
        await made.wait_for_owners(lambda owners: set(owners.values()) == set(NAMES))
        await check_several(made.urls["b"], app, tmp_path)
    finally:
        made.clean()
