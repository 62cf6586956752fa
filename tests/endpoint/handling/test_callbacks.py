"""Callbacks: what a duplex service sends on its own reaches the handlers of a source, once, in order, durably."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import callback_child
import pytest
from callback_child import NEWS
from click.testing import CliRunner
from waiting import until

import holdfast
from holdfast import ConfigurationError, Destination, DestinationHTTP, HandlingPolicy, Message, Source, SourceHTTP
from holdfast.cli.main import cli
from holdfast.core.policy import PollingPolicy, SourcePolicy
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.exceptions import StoreLocked
from holdfast.store import open_store
from holdfast.testing.ports import free_ports
from holdfast.testing.proxy import Faults, LossyProxy

SUBSCRIBE = "urn:test:subscribe"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2))


POLLING = SourcePolicy(retransmission=QUICK.retransmission, polling=PollingPolicy(first=0.1, cap=0.2))


class Duplex:
    """A service that sends messages on its own in the Sequence that its client offered."""

    def __init__(self) -> None:
        http = DestinationHTTP(allow_addresses=["http://127.0.0.1"], policy=QUICK)
        self.app = Destination(":memory:", http=http)
        self.app.on(SUBSCRIBE)(lambda message: "<welcome/>")

    def send(self, text: str, action: str = NEWS, **fields: Any) -> None:
        engine = self.app.running.engine
        (outbox,) = [one for one in engine.protocol.outbound.outboxes.values() if one.answers is not None]
        record = Record("", 0, action, f"<news>{text}</news>".encode(), engine.clock())
        for name, value in fields.items():
            setattr(record, name, value)
        outbox.submit(record)
        engine.touch()

    @property
    def waiting(self) -> int:
        """Messages that the client has not acknowledged."""
        outboxes = self.app.running.engine.protocol.outbound.outboxes.values()
        return sum(one.records.waiting for one in outboxes if one.answers is not None)


def listening(port: int = 0) -> SourceHTTP:
    return SourceHTTP(listen=("127.0.0.1", port))


def client(url: str, store: Any = ":memory:", **options: Any) -> Source:
    return Source(url, store, **{"offer": True, "http": listening(), "policy": QUICK} | options)


def noting(source: Source | holdfast.sync.Source) -> list[str | None]:
    got: list[str | None] = []
    source.on(NEWS)(lambda message: got.append(message.body.text))
    return got


async def done(source: Source) -> Any:
    """Wait until every stored message is handled."""
    handling: Any = source._running.engine.protocol.handling
    await until(lambda: handling.is_done)
    return handling


async def test_callbacks_of_a_duplex_service_arrive_in_order_through_a_bad_network(serve: Any) -> None:
    service = Duplex()
    url = (await serve(service.app)).url
    (port,) = free_ports(1)
    bad = Faults(lose_request=0.2, lose_response=0.2, double=0.2)
    async with LossyProxy(f"http://127.0.0.1:{port}/", bad, seed=2) as proxy:
        http = SourceHTTP(listen=("127.0.0.1", port), address=proxy.url)
        source = client(url, http=http, assurance="exactly-once in-order")
        got = noting(source)
        async with source:
            reply = await source.request("<me/>", action=SUBSCRIBE)
            assert reply.body.tag == "welcome"
            for number in range(10):
                service.send(str(number))
            await until(lambda: len(got) == 10 and service.waiting == 0)
            assert (await source.request("<me/>", action=SUBSCRIBE)).body.tag == "welcome"
    assert got == [str(number) for number in range(10)]


@pytest.mark.parametrize("faults", [Faults(), Faults(lose_request=0.2, lose_response=0.2)], ids=["clean", "loss"])
async def test_a_client_without_a_listener_polls_for_its_callbacks(serve: Any, faults: Faults) -> None:
    """They have no request of their own: the client polls while it has a Sequence in which they may come."""
    service = Duplex()
    url = (await serve(service.app)).url
    async with LossyProxy(url, faults, seed=2) as proxy:
        source = client(proxy.url, http=SourceHTTP(poll=True), policy=POLLING, assurance="exactly-once in-order")
        got = noting(source)
        async with source:
            assert (await source.request("<me/>", action=SUBSCRIBE)).body.tag == "welcome"
            for number in range(5):
                service.send(str(number))
            await until(lambda: len(got) == 5 and service.waiting == 0)
            service.send("later")
            await until(lambda: len(got) == 6 and service.waiting == 0)
    assert got == [*map(str, range(5)), "later"]


async def test_a_service_may_create_its_own_sequence_to_the_listener(serve: Any) -> None:
    url = (await serve(Duplex().app)).url
    (port,) = free_ports(1)
    source = client(url, http=listening(port), offer=False)
    got = noting(source)
    async with source, Source(f"http://127.0.0.1:{port}/", ":memory:", policy=QUICK) as service:
        await service.send("<news>a</news>", action=NEWS)
        await service.send("<news>b</news>", action="urn:test:other")  # nothing here reads it
        await service.flush(60)
        await until(lambda: got == ["a"])
        assert source.incidents["message.unsolicited_dropped"] == 1


async def test_what_answers_a_request_is_no_callback(serve: Any) -> None:
    service = Duplex()
    url = (await serve(service.app)).url
    source = client(url)
    got: list[str] = []
    source.on()(lambda message: got.append(message.action))
    async with source:
        await source.request("<me/>", action=SUBSCRIBE)
        service.send("late", relates_to="urn:unknown")
        service.send("news")
        await until(lambda: service.waiting == 0 and len(got) == 1)
    assert got == [NEWS]


async def test_a_message_that_its_handler_fails_is_retried_then_a_dead_letter(serve: Any, tmp_path: Path) -> None:
    service = Duplex()
    url = (await serve(service.app)).url
    source = client(url, tmp_path / "outbox")
    source.handling = HandlingPolicy(attempts=2, backoff=0.01)
    tries: list[str | None] = []

    @source.on(NEWS)
    def news(message: Message) -> None:
        tries.append(message.body.text)
        if message.body.text == "bad":
            raise ValueError("not this one")

    async with source:
        await source.request("<me/>", action=SUBSCRIBE)
        service.send("bad")
        service.send("good")
        await until(lambda: tries == ["bad", "bad", "good"])
        assert (await done(source)).dead == 1
    store = str(tmp_path / "outbox")
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["dead-letters", "list", store, "--json"])
    assert "not this one" in shown.output
    asked = await asyncio.to_thread(CliRunner().invoke, cli, ["dead-letters", "retry", store, "--all"])
    assert asked.exit_code == 0, asked.output
    again = client(url, store)
    got = noting(again)
    async with again:
        await done(again)
    assert got == ["bad"]


def environment() -> dict[str, str]:
    paths = [str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.crash
async def test_a_stored_message_survives_the_kill_of_a_source_and_is_handled_next_time(
    serve: Any, tmp_path: Path
) -> None:
    service = Duplex()
    url = (await serve(service.app)).url
    (port,) = free_ports(1)
    program = [sys.executable, callback_child.__file__, str(tmp_path / "outbox"), url, str(port)]
    child = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, env=environment())
    assert child.stdout is not None
    await until(lambda: service.app.running.accepted == 1)
    for text in "abc":
        service.send(text)
    async with asyncio.timeout(60):
        assert await child.stdout.readline() == b"a\n"
    await until(lambda: service.waiting == 0)  # all are stored, as they are acknowledged
    child.kill()
    await child.wait()
    async with client(url, tmp_path / "outbox", http=listening(port)):
        pass  # without handlers, nothing is lost either
    handled: list[str | None] = []
    for _ in range(2):  # what was handled is not handled again
        source = client(url, tmp_path / "outbox", http=listening(port))
        got = noting(source)
        async with source:
            await done(source)
        handled += got
    assert handled == ["a", "b", "c"]


async def test_a_blocking_source_calls_plain_handlers_in_threads(serve: Any) -> None:
    service = Duplex()
    url = (await serve(service.app)).url
    loop = asyncio.get_running_loop()

    def program() -> list[str | None]:
        source = holdfast.sync.Source(url, ":memory:", offer=True, http=listening(), policy=QUICK)
        got: list[str | None] = []

        @source.on(NEWS)
        def news(message: Message) -> None:
            source.send("<thanks/>", action=SUBSCRIBE)
            got.append(message.body.text)

        with source:
            source.request("<me/>", action=SUBSCRIBE)
            loop.call_soon_threadsafe(service.send, "hello")
            asyncio.run(until(lambda: got))
        return got

    assert await asyncio.to_thread(program) == ["hello"]


async def test_the_store_stays_locked_while_an_abandoned_callback_runs(serve: Any, tmp_path: Path) -> None:
    service = Duplex()
    source = client((await serve(service.app)).url, tmp_path)
    began, goes_on = threading.Event(), threading.Event()

    @source.on(NEWS)
    def note(message: Message) -> None:
        began.set()
        goes_on.wait()

    try:
        await source.open()
        await source.request("<me/>", action=SUBSCRIBE)
        service.send("news")
        await asyncio.to_thread(began.wait)
        await source.close(0)
        with pytest.raises(StoreLocked):
            open_store(tmp_path)
    finally:
        goes_on.set()


async def test_a_handler_that_no_message_can_reach_or_that_comes_too_late_is_refused() -> None:
    deaf = Source("http://127.0.0.1:9/", ":memory:", offer=False)
    noting(deaf)
    with pytest.raises(ConfigurationError, match="neither listens nor offers"):
        await deaf.open()
    async with Source("http://127.0.0.1:9/", ":memory:") as source:
        with pytest.raises(ConfigurationError, match="open already"):
            source.on(NEWS)(print)
    twice = Source("http://127.0.0.1:9/", ":memory:")
    noting(twice)
    with pytest.raises(ConfigurationError, match="two handlers"):
        noting(twice)
    with pytest.raises(ConfigurationError, match="without parentheses"):
        twice.on(print)  # type: ignore[arg-type]

    def transaction(message: Message, connection: Any) -> None: ...

    twice.on("urn:other")(transaction)
    with pytest.raises(ConfigurationError, match="not in a database"):
        await twice.open()
