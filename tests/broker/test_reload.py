"""A broker reads its configuration again: connections and messages stay, and what cannot be changed changes nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from waiting import until

import holdfast
from holdfast import Destination, DestinationHTTP
from holdfast.broker.broker import Broker
from holdfast.broker.forwarders import forwarder_key
from holdfast.core.steering import PAUSED, UNCONFIGURED, NotSteered, Steering
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError

ACTION = "urn:test:submit"
BASE = """
store = ":memory:"
partitions = 1
listen.port = 0
admin.port = 0
[queues.one]
[queues.two]
"""

Start = Callable[[str], Any]


def ends(broker: Broker) -> dict[str, int]:
    queues = broker.destination.running.queues
    return {name: sum(part.durable_end for part in queue.partitions) for name, queue in queues.items()}


async def send(source: holdfast.Source, body: str = "<a/>") -> None:
    await (await source.send(body, action=ACTION)).acknowledged(60)


async def test_other_routes_count_for_the_next_message_of_the_same_sequence(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE)
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await send(source)
        (tmp_path / "broker.toml").write_text(BASE + "[[routes]]\nqueues = ['one', 'two']\n")
        assert broker.reload() == ["routes"]
        await send(source)
        (tmp_path / "broker.toml").write_text("default_queue = 'two'\n" + BASE)
        assert broker.reload() == ["default_queue", "routes"]
        await send(source)
        accepted = broker.destination.running.engine.protocol.inbound.destinations
        assert [one.acknowledged.count for one in accepted.values()] == [3]
    assert ends(broker) == {"one": 2, "two": 2}


async def test_a_mistake_or_what_cannot_change_changes_nothing(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE)
    before = broker.config
    for text, told in (
        ("default_queue = 'tow'\n" + BASE, "Did you mean 'two'?"),
        ("default_queue = 'two'\n" + BASE.replace("partitions = 1", "partitions = 2"), "broker.toml:4: partitions"),
    ):
        (tmp_path / "broker.toml").write_text(text)
        with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")):
            broker.reload()
        async with holdfast.Source(broker.service.url, ":memory:") as source:
            await send(source)
    assert broker.config is before
    assert ends(broker) == {"one": 2, "two": 0}
    with pytest.raises(ConfigurationError, match="without a configuration file"):
        Broker().reload()


async def test_forwarders_come_pause_go_on_and_go(start: Start, tmp_path: Path) -> None:
    got: list[bytes] = []
    app = Destination(":memory:")

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        broker = await start(BASE)
        write = (tmp_path / "broker.toml").write_text
        forwarder = f"[forwarders.next]\nqueue = 'one'\nto = '{service.url}'\n"
        async with holdfast.Source(broker.service.url, ":memory:") as source:
            await send(source, "<n>1</n>")
            write(BASE + forwarder)
            assert broker.reload() == ["forwarders.next"]
            await until(lambda: len(got) == 1)
            outbox = broker.destination.running.engine.protocol.outbound.outboxes[forwarder_key("next", 0)]
            write(BASE + forwarder + "paused = true")
            assert broker.reload() == ["forwarders.next.paused"]
            assert outbox.lifecycle.suspended == PAUSED
            await send(source, "<n>2</n>")
            write(BASE + forwarder + "timeout = 5\npolicy.sending.window = 3\n")
            assert broker.reload() == [f"forwarders.next.{key}" for key in ("paused", "timeout", "policy")]
            await until(lambda: len(got) == 2)
            assert outbox.policy.window == 3
            write(BASE)
            assert broker.reload() == ["forwarders.next"]
            assert outbox.lifecycle.suspended == UNCONFIGURED
            Steering(broker.destination.running.engine.protocol).check_deletable(outbox)
            await send(source, "<n>3</n>")
            write(BASE + forwarder)
            broker.reload()
            await until(lambda: len(got) == 3)
            with pytest.raises(NotSteered, match="in the configuration"):
                Steering(broker.destination.running.engine.protocol).check_deletable(outbox)
        assert got == [b"<n>1</n>", b"<n>2</n>", b"<n>3</n>"]
    finally:
        await service.close(0.5)


async def test_credentials_are_those_that_the_file_holds_now(start: Start, tmp_path: Path) -> None:
    seen: list[str | None] = []
    app = Destination(":memory:", http=DestinationHTTP(keep_http_headers=["Authorization"]))

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        seen.append(message.http_headers.get("authorization"))

    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        (tmp_path / "token").write_text("first")
        text = f"{BASE}[forwarders.next]\nqueue = 'one'\nto = '{service.url}'\ncredentials.token_file = 'token'\n"
        broker = await start(text)
        async with holdfast.Source(broker.service.url, ":memory:") as source:
            await send(source)
            await until(lambda: len(seen) == 1)
            (tmp_path / "token").write_text("second")
            assert broker.reload() == ["forwarders.next.credentials.token_file"]
            await send(source)
            await until(lambda: len(seen) == 2)
        assert seen == ["Bearer first", "Bearer second"]
    finally:
        await service.close(0.5)


async def test_reloaded_certificates_limits_and_token_count_for_new_connections_only(
    start: Start, tmp_path: Path
) -> None:
    def issue(name: str) -> ssl.SSLContext:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
        issued.write_to_path(str(tmp_path / "server.pem"))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    (tmp_path / "token").write_text("first")
    text = BASE + "[listen.tls]\ncertificate = 'server.pem'\n[admin]\ntoken_file = 'token'\n"
    text = text.replace("admin.port = 0\n", "").replace("[admin]\n", "[admin]\nport = 0\n")
    old = issue("old")
    broker = await start(text)
    async with httpx.AsyncClient(verify=old) as kept:
        assert (await kept.get(broker.service.url)).status_code == 405
        new = issue("new")
        (tmp_path / "token").write_text("second")
        (tmp_path / "broker.toml").write_text(text + "[limits.http]\nmax_body = 10\n")
        assert broker.reload() == ["listen.tls.certificate", "admin.token_file", "limits.http"]
        assert (await kept.get(broker.service.url)).status_code == 405  # by the connection that there was
    async with httpx.AsyncClient(verify=old) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(broker.service.url)
    async with httpx.AsyncClient(verify=new) as client:
        assert (await client.post(broker.service.url, content=b"x" * 11)).status_code == 413
    async with httpx.AsyncClient() as client:
        for token, status in (("first", 401), ("second", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            assert (await client.get(broker.service.admin_url + "/metrics", headers=headers)).status_code == status


async def test_retention_of_a_queue_may_come_to_count_bytes_and_stop(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE.replace("[queues.one]", "[queues.one]\nretention = '7d'"))
    queue = broker.destination.running.queues["one"]
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        for _ in range(5):
            await send(source, f"<a>{'x' * 2000}</a>")
        (tmp_path / "broker.toml").write_text(BASE.replace("[queues.one]", "[queues.one]\nretention = '5kB'"))
        assert broker.reload() == ["queues.one.retention"]
        await until(lambda: queue.partitions[0].first > 0)
        assert queue.partitions[0].first < 5
        (tmp_path / "broker.toml").write_text(BASE.replace("[queues.one]", "[queues.one]\nretention = '7d'"))
        assert broker.reload() == ["queues.one.retention"]
        first = queue.partitions[0].first
        for _ in range(3):
            await send(source, f"<a>{'x' * 2000}</a>")
        await asyncio.sleep(0)
        assert queue.partitions[0].first == first


async def test_a_limit_of_a_queue_may_come_and_go(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE)
    policy = holdfast.SourcePolicy(poll_interval=0.05)

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(f"{broker.service.admin_url}{path}")

    async def metrics() -> str:
        return (await ask("/metrics")).text

    async def shown() -> dict[str, tuple[int | None, bool]]:
        found = [(await ask(f"/queues/{name}")).json() for name in ("one", "two")]
        return {one["name"]: (one["max_messages"], one["full"]) for one in found}

    async with holdfast.Source(broker.service.url, ":memory:", policy=policy) as source:
        await send(source)
        (tmp_path / "broker.toml").write_text(BASE.replace("[queues.one]", "[queues.one]\nmax_messages = 1"))
        assert broker.reload() == ["queues.one.max_messages"]
        sent = await source.send("<a/>", action=ACTION)
        await until(lambda: broker.destination.incidents["queue.full"] == 1)
        assert ends(broker)["one"] == 1
        assert await shown() == {"one": (1, True), "two": (None, False)}
        assert 'holdfast_queue_limit_records{queue="one"} 1.0' in await metrics()
        assert 'holdfast_queue_full{queue="one"} 1.0' in await metrics()
        (tmp_path / "broker.toml").write_text(BASE.replace("[queues.one]", "[queues.one]\nmax_messages = 20"))
        assert broker.reload() == ["queues.one.max_messages"]
        await sent.acknowledged(60)
        assert await shown() == {"one": (20, False), "two": (None, False)}
        assert 'holdfast_queue_full{queue="one"} 0.0' in await metrics()
        (tmp_path / "broker.toml").write_text(BASE)
        assert broker.reload() == ["queues.one.max_messages"]
        assert await shown() == {"one": (None, False), "two": (None, False)}
        assert "holdfast_queue_full{" not in await metrics()


async def test_limits_of_sequences_count_for_those_that_are_granted_later(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE)
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await send(source)
        (tmp_path / "broker.toml").write_text("sequences = {max_sequences = 1, buffer = 7}\n" + BASE)
        assert broker.reload() == ["sequences"]
        await send(source)
        async with holdfast.Source(broker.service.url, ":memory:") as other:
            sent = await other.send("<a/>", action=ACTION)
            with pytest.raises(holdfast.HoldfastError, match="CreateSequenceRefused"):
                await sent.acknowledged(60)
        (open_one,) = broker.destination.running.engine.protocol.inbound.destinations.values()
        assert open_one.policy.buffer == 256


async def test_an_envelope_may_be_as_large_as_the_file_says_now(start: Start, tmp_path: Path) -> None:
    broker = await start(BASE)
    async with holdfast.Source(broker.service.url, ":memory:") as source:
        await send(source)
        (tmp_path / "broker.toml").write_text("limits.envelopes.max_bytes = 3000\n" + BASE)
        broker.reload()
        async with httpx.AsyncClient() as client:
            answer = await client.post(
                broker.service.url, content="<a>" + "x" * 4000, headers={"content-type": "application/soap+xml"}
            )
        assert "the limit is 3000" in answer.text
        await send(source)


async def test_what_it_sends_itself_is_treated_as_the_policies_say_of_its_address(start: Start, tmp_path: Path) -> None:
    text = "allow_addresses = ['http://127.0.0.1']\n" + BASE
    broker = await start(text + "[policies.'127.0.0.1']\nsending.window = 3\n")
    async with holdfast.Source(
        broker.service.url, ":memory:", offer=True, http=holdfast.SourceHTTP(listen=("127.0.0.1", 0))
    ) as source:
        await send(source)
        (outbox,) = broker.destination.running.engine.protocol.outbound.outboxes.values()
        assert outbox.policy.window == 3
        (tmp_path / "broker.toml").write_text(text + "[policies.'127.0.0.1']\nsending.window = 5\n")
        assert broker.reload() == ["policies"]
        assert outbox.policy.window == 5
        assert outbox.source is not None
        assert outbox.source.policy.window == 5


async def test_the_admin_listener_is_asked_to_reload(start: Start, tmp_path: Path, run_broker: Any) -> None:
    broker = await start(BASE)
    async with httpx.AsyncClient() as client:
        (tmp_path / "broker.toml").write_text("default_queue = 'two'\n" + BASE)
        answer = await client.post(broker.service.admin_url + "/reload")
        assert (answer.status_code, answer.json()) == (200, {"changed": ["default_queue"]})
        (tmp_path / "broker.toml").write_text("default_queue = 'tow'\n" + BASE)
        answer = await client.post(broker.service.admin_url + "/reload")
        assert answer.status_code == 409
        assert "Did you mean 'two'?" in answer.json()["error"]
        without = await run_broker()
        answer = await client.post(without.service.admin_url + "/reload")
        assert answer.status_code == 404
