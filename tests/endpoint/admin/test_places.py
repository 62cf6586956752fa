"""Places: what is durable when a process is killed while an operator gives a forwarder's records up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.records import Record
from holdfast.core.steering import Steering
from holdfast.endpoint.admin.places import delete_forwarder, pass_over
from tests.support.chain import WAYS, Chain


class Killed(Exception):
    """The process is killed."""


class OneAtATime:
    """What the admin interface needs of an engine: it reads one record at a time, and is killed after some batches."""

    def __init__(self, chain: Chain, batches: int) -> None:
        self.chain, self.protocol, self.batches = chain, chain.broker.protocol, batches

    def clock(self) -> float:
        return self.chain.now

    async def records(self, queue: str, partition: int, start: int, _end: int) -> list[tuple[int, Record]]:
        return self.chain.broker.store.read(queue, partition, start, start + 1)

    def touch(self) -> None:
        if self.batches == 0:
            self.chain.broker.kill()
            raise Killed
        self.batches -= 1
        self.chain.broker.settle()
        self.chain.go(0.0)


async def skip_all(engine: Any, chain: Chain) -> None:
    await pass_over(engine, chain.forwarder, 3)


async def delete(engine: Any, chain: Chain) -> None:
    assert await delete_forwarder(engine, chain.forwarder) == 3


@pytest.mark.every(5)
@pytest.mark.parametrize("batches", range(4))
@pytest.mark.parametrize("give_up", [skip_all, delete])
@pytest.mark.parametrize("way", WAYS)
def test_no_request_is_forwarded_whose_requester_has_a_fault(
    way: str, give_up: Callable[[Any, Chain], Awaitable[None]], batches: int
) -> None:
    chain = Chain(**WAYS[way])
    chain.service.is_up = False
    chain.ask("one", "two", "three")
    chain.go(5.0)
    Steering(chain.broker.protocol).suspend(chain.forwarder, "moving")
    chain.broker.settle()
    chain.go(1.0)
    with asyncio.Runner() as runner:
        try:
            runner.run(give_up(OneAtATime(chain, batches), chain))
        except Killed:
            chain.go(1.0)
            assert chain.broker.run > 1
        else:
            chain.broker.settle()
    if (forwarder := chain.broker.protocol.outbound.outboxes.get("forward/x/0")) is not None:
        Steering(chain.broker.protocol).resume(forwarder, chain.now)
        chain.broker.settle()
    chain.service.start()
    chain.go(200.0)
    refused = {message_id for message_id, text in chain.replies if "it has been set aside" in text}
    handled = {f"urn:m:{record.body.decode()}" for record in chain.handled}  # a forwarder gives them other MessageIDs
    assert len(refused) == min(batches, 3)
    assert refused.isdisjoint(handled)
    assert refused | handled == {"urn:m:one", "urn:m:two", "urn:m:three"}
