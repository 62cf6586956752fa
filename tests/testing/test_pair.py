"""A pair of endpoints for a user's own tests: everything arrives, once and in order, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

import holdfast
from holdfast.endpoint.http_client import Response, TransportError
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


async def test_a_request_that_no_handler_answers_is_an_error_and_stops_nothing() -> None:
    seen: list[str] = []
    async with pair(orders(seen), network=lossy(0.2, seed=1)) as source:
        with pytest.raises(holdfast.DeliveryError, match="sent no reply"):
            await source.request("<order>one</order>", action="urn:orders/Submit")
        await source.send("<order>two</order>", action="urn:orders/Submit")
    assert seen == ["one", "two"]


async def test_a_message_acknowledged_before_an_earlier_one_is_not_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    heals = False
    really_post = MemoryTransport.post

    async def post(self: MemoryTransport, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        if b"MessageNumber>1<" in body and not heals:
            raise TransportError("message 1 is lost", connected=True)
        return await really_post(self, url, body, headers)

    monkeypatch.setattr(MemoryTransport, "post", post)
    async with pair(orders(seen)) as source:
        first, second = [await source.send(f"<order>{n}</order>", action="urn:orders/Submit") for n in (1, 2)]
        while not source.progress.acknowledged:
            await asyncio.sleep(0)
        await asyncio.wait_for(second.acknowledged(), 60)
        with pytest.raises(holdfast.NotAcknowledged):
            await first.acknowledged(0.05)
        heals = True
    assert seen == ["1", "2"]


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
