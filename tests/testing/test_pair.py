"""A pair of endpoints for a user's own tests: everything arrives, once and in order, and nobody waits for it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from order_service import Orders

import holdfast
from holdfast.exceptions import StoreLocked
from holdfast.http.outcome import Done, TransportError
from holdfast.testing import lossy, pair
from holdfast.testing.pair import MemoryTransport, VirtualClock


def orders(seen: list[str]) -> holdfast.Destination:
    app = holdfast.Destination(assurance="exactly-once in-order")

    @app.on("urn:orders/Submit")
    async def submit(message: holdfast.Message) -> None:
        seen.append(message.body.text or "")

    @app.on("urn:orders/Price")
    def price(message: holdfast.Message) -> str:
        return f"<price>{message.body.text}</price>"

    return app


@pytest.mark.parametrize("seed", range(5))
async def test_orders_survive_a_bad_network(tmp_path: Path, seed: int) -> None:
    seen: list[str] = []
    async with pair(orders(seen), network=lossy(0.3, seed=seed), store=tmp_path) as source:
        for number in range(20):
            await source.send(f"<order>{number}</order>", action="urn:orders/Submit")
    assert seen == [str(number) for number in range(20)]


async def test_a_reply_comes_through_a_bad_network() -> None:
    async with pair(orders([]), network=lossy(0.3, seed=7)) as source:
        replies = [await source.request(f"<item>{n}</item>", action="urn:orders/Price") for n in range(5)]
    assert [reply.body.text for reply in replies] == ["0", "1", "2", "3", "4"]


async def test_operations_of_the_wsdl_of_the_app_are_called_by_name() -> None:
    service = Orders()
    async with pair(service.app, network=lossy(0.3, seed=7)) as source:
        assert await source.call("Price", item="nail") == Decimal("1.25")
        await source.call("CancelOrder", number=7)
        with pytest.raises(holdfast.OperationFault, match="Too many of nail"):
            await source.call("SubmitOrder", customer="a", lines=[{"item": "nail", "quantity": 101}])
    assert service.cancelled == [7]


async def test_virtual_time_passes_without_waiting() -> None:
    seen: list[str] = []
    network = lossy(0.0)
    async with pair(orders(seen), network=network) as source:
        await (await source.send("<order>first</order>", action="urn:orders/Submit")).acknowledged()
        network.is_partitioned = True
        sent = await source.send("<order>late</order>", action="urn:orders/Submit")
        while source.progress.resent < 10:  # by then, minutes of virtual time
            with pytest.raises(holdfast.NotAcknowledged):
                await sent.acknowledged(timeout=0.01)
        network.is_partitioned = False
        await sent.acknowledged()
    assert seen == ["first", "late"]


async def test_an_application_can_be_paired_again() -> None:
    seen: list[str] = []
    app = orders(seen)
    for text in ("one", "two"):
        async with pair(app) as source:
            await source.send(f"<order>{text}</order>", action="urn:orders/Submit")
    assert seen == ["one", "two"]


async def test_a_request_whose_handler_returns_nothing_has_an_empty_reply() -> None:
    seen: list[str] = []
    async with pair(orders(seen), network=lossy(0.2, seed=1)) as source:
        reply = await source.request("<order>one</order>", action="urn:orders/Submit")
        assert reply.body.tag == "orderResponse"
        await source.send("<order>two</order>", action="urn:orders/Submit")
    assert seen == ["one", "two"]


async def test_a_message_acknowledged_before_an_earlier_one_is_not_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    heals = False
    really_request = MemoryTransport.request

    def request(
        self: MemoryTransport, method: str, url: str, body: bytes, headers: Mapping[str, str], done: Done
    ) -> None:
        if b"MessageNumber>1<" in body and not heals:
            asyncio.get_running_loop().call_soon(done, TransportError("message 1 is lost", connected=True))
        else:
            really_request(self, method, url, body, headers, done)

    monkeypatch.setattr(MemoryTransport, "request", request)
    async with pair(orders(seen)) as source:
        first, second = [await source.send(f"<order>{n}</order>", action="urn:orders/Submit") for n in (1, 2)]
        while not source.progress.acknowledged:
            await asyncio.sleep(0)
        await asyncio.wait_for(second.acknowledged(), 60)
        with pytest.raises(holdfast.NotAcknowledged):
            await first.acknowledged(0.05)
        heals = True
    assert seen == ["1", "2"]


def failing(times: int, calls: list[str], **options: Any) -> holdfast.Destination:
    """A destination whose handler of orders fails so often before it succeeds."""
    app = holdfast.Destination(**options)

    @app.on("urn:orders/Submit")
    def submit(message: holdfast.Message) -> None:
        calls.append(f"{message.body.text}, attempt {message.attempt}")
        if message.attempt <= times:
            raise LookupError("no customer yet")

    return app


async def test_leaving_waits_for_every_attempt_that_a_handler_takes() -> None:
    calls: list[str] = []
    async with pair(failing(3, calls)) as source:
        await source.send("<order>1</order>", action="urn:orders/Submit")
        await source.send("<order>2</order>", action="urn:orders/Submit")
    assert calls == [f"{order}, attempt {attempt}" for order in (1, 2) for attempt in (1, 2, 3, 4)]


async def test_leaving_waits_until_what_cannot_be_handled_is_a_dead_letter() -> None:
    calls: list[str] = []
    app = failing(99, calls)
    async with pair(app, network=lossy(0.3, seed=3)) as source:
        await source.send("<order>1</order>", action="urn:orders/Submit")
    assert len(calls) == holdfast.HandlingPolicy().attempts
    assert app.running.dispatcher is not None
    assert (app.running.dispatcher.handling.dead, app.unhandled) == (1, 0)


async def test_within_the_block_handled_waits_for_the_same() -> None:
    calls: list[str] = []
    app = failing(2, calls)
    async with pair(app) as source:
        await app.handled()  # nothing yet: it does not wait
        for order in (1, 2):
            await source.send(f"<order>{order}</order>", action="urn:orders/Submit")
            await source.flush()
            await app.handled()
            assert calls[-1] == f"{order}, attempt 3"
    with pytest.raises(holdfast.ConfigurationError, match="is not running"):
        await app.handled()


async def test_waiting_for_handlers_ends_when_the_destination_closes() -> None:
    app = failing(99, [], handling=holdfast.HandlingPolicy(attempts=None))
    waiting = []

    async def leave_while_waiting() -> None:
        async with pair(app) as source:
            await source.send("<order>1</order>", action="urn:orders/Submit")
            await source.flush()
            waiting.append(asyncio.ensure_future(app.handled()))
            await asyncio.sleep(0)
            raise KeyError("the test has failed")

    with pytest.raises(KeyError):
        await leave_while_waiting()
    with pytest.raises(holdfast.ConfigurationError, match="is not running"):
        await asyncio.wait_for(waiting[0], 60)


async def test_a_handler_that_never_succeeds_fails_the_test_instead_of_hanging_it() -> None:
    app = failing(1_000_000, [], handling=holdfast.HandlingPolicy(attempts=None))
    with pytest.raises(holdfast.NotAcknowledged, match="a message is not handled after 300 s of virtual time") as told:
        async with pair(app, patience=300) as source:
            await source.send("<order>1</order>", action="urn:orders/Submit")
    assert "HandlingPolicy" in told.value.remedy or "attempts" in told.value.remedy


async def test_a_network_that_never_heals_fails_the_test_and_does_not_hang_it() -> None:
    network = lossy(0.0)
    network.is_partitioned = True

    async def send() -> None:
        async with pair(orders([]), network=network, patience=600) as source:
            for order in (1, 2):
                await source.send(f"<order>{order}</order>", action="urn:orders/Submit")

    with pytest.raises(holdfast.NotAcknowledged, match="2 messages are not acknowledged after 600 s of virtual time"):
        await send()


def test_a_test_that_is_not_asynchronous_gets_the_blocking_source(tmp_path: Path) -> None:
    calls: list[str] = []
    before = threading.enumerate()
    app = failing(1, calls)
    app.on("urn:orders/Price")(lambda message: "<price>5</price>")
    with pair(app, network=lossy(0.3, seed=7), store=tmp_path) as source:
        assert isinstance(source, holdfast.sync.Source)
        source.send("<order>1</order>", action="urn:orders/Submit").acknowledged()
        assert source.request("<article/>", action="urn:orders/Price").body.text == "5"
    assert calls == ["1, attempt 1", "1, attempt 2"]
    with pytest.raises(holdfast.StoreError), pair(app, store=Path("/dev/null")):
        pytest.fail("there is not the location of a store")
    patience = time.monotonic() + 60
    while (
        len(left := [one for one in threading.enumerate() if one not in before]) > 1
    ):  # an executor's idle one may stay
        assert time.monotonic() < patience, left
        left[0].join(0.1)  # one that was told to end needs its turn for that


@pytest.mark.parametrize(
    "given", [{"patience": 0}, {"network": 0.3}, {"store": "directory"}, {"app": "orders:app"}, {"tiemout": 3}]
)
def test_what_cannot_be_paired_is_refused_before_anything_runs(given: dict[str, Any]) -> None:
    with pytest.raises((holdfast.ConfigurationError, TypeError)), pair(**{"app": orders([])} | given):
        pytest.fail("it runs")
    with pytest.raises(holdfast.ConfigurationError, match="lossy"):
        lossy("often")  # type: ignore[arg-type]


async def test_time_waits_for_a_commit_however_long_it_takes() -> None:
    # A day's jump while the disk is slow would end every Sequence for inactivity.
    clock = VirtualClock()
    looks, fired = 0, []

    def committing() -> bool:
        nonlocal looks
        looks += 1
        return looks < 200

    clock.busy.append(committing)
    clock.call_at(clock() + 86_400, lambda: fired.append(looks))
    moving = asyncio.ensure_future(clock.run())
    while not fired:
        await asyncio.sleep(0)
    moving.cancel()
    assert fired == [200]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), pytest.fail.Exception("no")], ids=repr)
def test_a_handler_cannot_end_the_thread_of_a_blocking_pair(kind: str, error: BaseException) -> None:
    app = holdfast.Destination(":memory:", handling=holdfast.HandlingPolicy(attempts=2, backoff=1.0))

    def plain(_: holdfast.Message) -> None:
        raise error

    async def asynchronous(message: holdfast.Message) -> None:
        plain(message)

    app.on("urn:a")(plain if kind == "plain" else asynchronous)
    with pair(app, patience=60) as source:
        source.send("<a/>", action="urn:a")
        source.flush()
    assert app.running.dispatcher is None or app.dead_letters == 1


async def test_the_error_of_a_message_that_is_not_handled_says_why() -> None:
    app = holdfast.Destination(":memory:", handling=holdfast.HandlingPolicy(attempts=None, backoff=1.0))

    @app.on("urn:a")
    def handle(_: holdfast.Message) -> None:
        pytest.fail("the price is wrong")

    with pytest.raises(holdfast.NotAcknowledged, match="A handler raised last: the price is wrong"):
        async with pair(app, patience=60) as source:
            await source.send("<a/>", action="urn:a")


async def test_while_a_handler_runs_virtual_time_passes_as_real_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # A jump would end the patience of the pair, and Sequences, for a handler that takes seconds.
    real = 0.0
    monkeypatch.setattr(sys.modules["holdfast.testing.pair"], "monotonic", lambda: real)
    clock = VirtualClock()
    looks, fired = 0, []

    def running() -> bool:
        nonlocal looks, real
        looks += 1
        real += 0.01
        return looks < 500

    clock.handling.append(running)
    for after in (0.5, 1.0, 86_400.0):
        clock.call_at(clock() + after, lambda: fired.append(looks))
    moving = asyncio.ensure_future(clock.run())
    while len(fired) < 3:
        await asyncio.sleep(0)
    moving.cancel()
    assert fired[2] == 500
    assert 50 <= fired[0] < fired[1] <= 105


async def test_two_open_pairs_with_one_directory_say_what_to_do(tmp_path: Path) -> None:
    async with pair(orders([]), store=tmp_path):
        with pytest.raises(StoreLocked) as caught:
            async with pair(orders([]), store=tmp_path):
                pytest.fail("it runs")
    assert "Give each pair its own directory" in caught.value.remedy


async def test_a_pair_without_its_block_says_how_to_write_it() -> None:
    made: Any = pair(orders([]))
    for use in (lambda: made.send("<a/>", action="urn:a"), lambda: made.progress, lambda: made.to):
        with pytest.raises(holdfast.ConfigurationError, match="the block of the pair gives the source") as caught:
            use()
        assert "async with" in caught.value.remedy
    assert not hasattr(made, "send")
    async with made:
        with pytest.raises(holdfast.ConfigurationError, match="is open already"):
            async with made:
                pytest.fail("it runs")
