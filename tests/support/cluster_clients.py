"""Clients of a cluster that send and call while something happens to it, and what everybody must have got then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from balancer import ROUNDS, Balancer
from broker_cluster import Brokers
from waiting import until

import holdfast
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.testing.proxy import Faults, LossyProxy

PATIENCE = 240.0
_SOON = holdfast.SourcePolicy(retransmission=RetransmissionPolicy(initial=0.3, floor=0.1, cap=0.5, max_retry_after=0.2))
"""How long a client waits depends on how long the cluster does not answer, and not on when it asks next."""

Call = Callable[[int], Awaitable[None]]
"""Sends the message with this number in a client's Sequence. Returns once it is acknowledged or answered."""


@dataclass(frozen=True)
class Callers:
    """Those who call a cluster.

    Attributes:
        clients: Returns clients of a URL: key of a Sequence, under which the service notes it -> client.
        repeats: Whether the load balancer must repeat their requests (:class:`Balancer`).
    """

    clients: Callable[[str], dict[str, AbstractAsyncContextManager[Call]]]
    repeats: bool = False


@asynccontextmanager
async def _submitting(url: str, name: int) -> AsyncIterator[Call]:
    async with holdfast.Source(url, ":memory:", policy=_SOON) as source:

        async def submit(number: int) -> None:
            sent = await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
            await sent.acknowledged(PATIENCE)

        yield submit


@asynccontextmanager
async def _asking(url: str, name: int) -> AsyncIterator[Call]:
    async with holdfast.Source(url, ":memory:", policy=_SOON, offer=bool(name % 2)) as source:

        async def ask(number: int) -> None:
            body = f"{name}-{number}"
            reply = await source.request(f"<n>{body}</n>", action="urn:test:ask", timeout=PATIENCE)
            assert reply.body.text == body

        yield ask


def holdfast_callers(names: int = 4) -> Callers:
    """Holdfast's own clients: so many that send, and as many that call."""
    kinds = {"submit": _submitting, "ask": _asking}
    return Callers(
        lambda url: {f"{kind} {name}": client(url, name) for kind, client in kinds.items() for name in range(names)}
    )


class Progress:
    """Clients that send and call, one message after the other in each Sequence, until a test ends them.

    Args:
        clients: Key of a Sequence -> its client.
    """

    def __init__(self, clients: dict[str, AbstractAsyncContextManager[Call]]) -> None:
        self._clients = clients
        self.counts = dict.fromkeys(clients, 0)
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
            for what, client in self._clients.items():
                group.create_task(self._call(what, client))

    async def _call(self, what: str, client: AbstractAsyncContextManager[Call]) -> None:
        async with client as call:
            while await self._next(what):
                await call(self.counts[what])
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

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for it, and raise what ends a client meanwhile."""
        running = self._running
        assert running is not None
        await until(lambda: running.done() or condition())
        if running.done():
            await running

    async def further(self, count: int) -> None:
        """Wait until so many more messages are acknowledged or answered in all Sequences."""
        seen = sum(self.counts.values())
        await self.until(lambda: sum(self.counts.values()) >= seen + count)

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
_HOLDFAST = holdfast_callers()


async def run(
    made: Brokers,
    got: dict[str, list[int]],
    trouble: Trouble,
    callers: Callers = _HOLDFAST,
    *,
    faults: Faults | None = None,
) -> dict[str, int]:
    """Let clients send and call while there is trouble, and check what everybody got.

    Args:
        made: The brokers, which run.
        got: What the service behind them has got.
        trouble: Makes the trouble. The clients end after it.
        callers: Whose clients send and call.
        faults: Of the network between the clients and the load balancer.

    Returns:
        How many messages each Sequence had.
    """
    async with AsyncExitStack() as stack:
        told = {"repeats": True, "rounds": ROUNDS} if callers.repeats else {}
        url = (await stack.enter_async_context(Balancer(list(made.urls.values()), **told))).url
        if faults is not None:
            url = (await stack.enter_async_context(LossyProxy(url, faults, seed=1))).url
        progress = Progress(callers.clients(url))
        progress.start()
        await progress.each(3)
        await trouble(progress)
        await progress.end()
    counts = progress.counts
    await until(lambda: all(len(got.get(what, ())) >= count for what, count in counts.items()))
    # A client that is ended in the middle of a message may have sent it.
    assert got == {what: list(range(len(got[what]))) for what in counts}
    return counts
