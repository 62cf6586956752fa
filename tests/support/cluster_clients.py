"""Clients of a cluster that send and call while something happens to it, and what everybody must have got then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from balancer import Balancer
from broker_cluster import Brokers
from waiting import until

import holdfast
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.testing.proxy import Faults, LossyProxy

PATIENCE = 240.0
_SOON = holdfast.SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5, max_retry_after=0.2))
"""How long a client waits depends on how long the cluster does not answer, and not on when it asks next."""


class Progress:
    """Clients that send and call, one message after the other in each Sequence, until a test ends them.

    Args:
        url: Where they send.
        names: How many Sequences of messages there are, and as many of calls.
    """

    def __init__(self, url: str, names: int) -> None:
        self._url = url
        self.counts = {f"{kind} {name}": 0 for kind in ("submit", "ask") for name in range(names)}
        """How many messages of each Sequence were acknowledged, or answered."""
        self._last = dict.fromkeys(self.counts, 0.0)
        self._longest = 0.0
        self._waiting = 0
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._is_over = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Let each client end with the message that it sends now."""
        assert self._running is not None
        self._is_over = True
        self._goes_on.set()
        await self._running

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for what in self.counts:
                kind, name = what.split()
                group.create_task((self._send if kind == "submit" else self._ask)(what, int(name)))

    async def _send(self, what: str, name: int) -> None:
        async with holdfast.Source(self._url, ":memory:", policy=_SOON) as source:
            while await self._next(what):
                sent = await source.send(f"<n>{name}-{self.counts[what]}</n>", action="urn:test:submit")
                await sent.acknowledged(PATIENCE)
                self._done(what)

    async def _ask(self, what: str, name: int) -> None:
        async with holdfast.Source(self._url, ":memory:", policy=_SOON, offer=bool(name % 2)) as source:
            while await self._next(what):
                body = f"{name}-{self.counts[what]}"
                reply = await source.request(f"<n>{body}</n>", action="urn:test:ask", timeout=PATIENCE)
                assert reply.body.text == body
                self._done(what)

    async def _next(self, what: str) -> bool:
        """Wait while the clients rest; whether they continue then."""
        if not self._goes_on.is_set():
            self._waiting += 1
            await self._goes_on.wait()
            self._waiting -= 1
            self._last[what] = time.monotonic()
        return not self._is_over

    def _done(self, what: str) -> None:
        now = time.monotonic()
        self.counts[what] += 1
        if last := self._last[what]:
            self._longest = max(self._longest, now - last)
        self._last[what] = now

    @property
    def done(self) -> int:
        """How many messages were acknowledged or answered in all Sequences."""
        return sum(self.counts.values())

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for it, and raise what ends a client meanwhile."""
        running = self._running
        assert running is not None
        await until(lambda: running.done() or condition())
        if running.done():
            await running

    async def further(self, count: int) -> None:
        """Wait until so many more messages are acknowledged or answered."""
        seen = self.done
        await self.until(lambda: self.done >= seen + count)

    async def each(self, count: int) -> None:
        """Wait until so many more messages of every Sequence are acknowledged or answered."""
        seen = dict(self.counts)
        await self.until(lambda: all(self.counts[what] >= seen[what] + count for what in seen))

    async def rest(self) -> None:
        """Send nothing from now on, and wait until nothing is in flight."""
        self._goes_on.clear()
        await self.until(lambda: self._waiting == len(self.counts))

    def go_on(self) -> None:
        """Send again after :meth:`rest`."""
        now = time.monotonic()
        self._last = dict.fromkeys(self.counts, now)
        self._goes_on.set()

    def longest(self) -> float:
        """Return the longest time between two answers in one Sequence since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest


Trouble = Callable[[Progress], Awaitable[None]]


async def run(
    made: Brokers,
    got: dict[str, list[int]],
    trouble: Trouble,
    *,
    names: int = 4,
    faults: Faults | None = None,
) -> dict[str, int]:
    """Let clients send and call while there is trouble, and check what everybody got.

    Args:
        made: The brokers, which run.
        got: What the service behind them has got.
        trouble: Makes the trouble. The clients end after it.
        names: How many Sequences of messages there are, and as many of calls.
        faults: Of the network between the clients and the load balancer.

    Returns:
        How many messages each Sequence had.
    """
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(Balancer(list(made.urls.values())))).url
        if faults is not None:
            url = (await stack.enter_async_context(LossyProxy(url, faults, seed=1))).url
        progress = Progress(url, names)
        progress.start()
        await progress.further(20)
        await trouble(progress)
        await progress.end()
    counts = progress.counts
    await until(lambda: all(len(got.get(what, ())) >= count for what, count in counts.items()))
    assert got == {what: list(range(count)) for what, count in counts.items()}
    return counts
