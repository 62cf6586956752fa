"""Clients of a cluster that send and call while something happens to it, and what everybody must have got then."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from balancer import Balancer
from broker_cluster import Brokers
from waiting import until

import holdfast


class Clients:
    """Clients that send and call, one after the other in each Sequence."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self.done = 0

    async def run(self, messages: int) -> list[list[str]]:
        """Send so many messages in each Sequence, and make as many calls in others; the replies."""
        sending = [self._send(name, messages) for name in range(self._count)]
        asking = [self._ask(name, messages) for name in range(self._count)]
        await asyncio.gather(*sending)
        return await asyncio.gather(*asking)

    async def _send(self, name: int, messages: int) -> None:
        async with holdfast.Source(self._url, ":memory:") as source:
            for number in range(messages):
                await (await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")).acknowledged(120)
                self.done += 1

    async def _ask(self, name: int, messages: int) -> list[str]:
        async with holdfast.Source(self._url, ":memory:", offer=bool(name % 2)) as source:
            replies = []
            for number in range(messages):
                reply = await source.request(f"<n>{name}-{number}</n>", action="urn:test:ask", timeout=120)
                replies.append(str(reply.body.text))
                self.done += 1
            return replies


async def run(
    made: Brokers, got: dict[str, list[int]], trouble: Callable[[Callable[[], float]], Any], messages: int
) -> None:
    """Let clients send and call while there is trouble, and check what everybody got.

    The trouble is told how many messages are acknowledged or answered; infinity once the clients have ended.
    """
    async with Balancer(list(made.urls.values())) as balancer:
        clients = Clients(balancer.url, 4)
        running = asyncio.create_task(clients.run(messages))
        await until(lambda: clients.done >= 20 or running.done())
        await trouble(lambda: math.inf if running.done() else clients.done)
        replies = await running
    assert replies == [[f"{name}-{number}" for number in range(messages)] for name in range(4)]
    await until(lambda: all(len(got.get(f"submit {name}", ())) >= messages for name in range(4)))
    expected = list(range(messages))
    assert got == {f"{kind} {name}": expected for kind in ("submit", "ask") for name in range(4)}
