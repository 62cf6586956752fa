"""Frames between two nodes whose packets are dropped, in virtual time: each message is answered soon after the outage.

The network loses the packets of both directions or of one for a while. A connection then is silent: what was written
arrives after the outage, in its order, or never. Messages are repeated until they are answered, as sources do.
Covers endpoint/workers/frames/streams.py.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

import pytest
from virtual_loop import run_virtually
from written import Written

from holdfast.endpoint.logs import LineLimit
from holdfast.endpoint.workers.frames import streams as module
from holdfast.endpoint.workers.frames.session import NodeSession
from holdfast.endpoint.workers.frames.streams import LOOK, SILENCE, NodeStream, NodeStreams
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Done, Outcome, Response, TransportError

REPEAT = 2.0
"""Seconds after which a source sends a message again."""
PATIENCE = 90.0


class Network:
    """The way between the two nodes.

    Args:
        chance: Decides the delays.
        are_kept: Whether what is written during an outage arrives after it; otherwise its connection is dead for ever.
    """

    def __init__(self, chance: random.Random, *, are_kept: bool) -> None:
        self.chance, self.are_kept = chance, are_kept
        self.lost: tuple[bool, bool] = (False, False)
        """Whether the packets to the other node are lost, and those back."""
        self.until = 0.0
        self.dead: set[tuple[int, int]] = set()
        self.arrival: dict[tuple[int, int], float] = {}

    def carry(self, way: tuple[int, int], what: Callable[[], object]) -> None:
        """Let something happen at the other end of a way: a connection, and 0 for there or 1 for back."""
        loop = asyncio.get_running_loop()
        is_lost = self.lost[way[1]] and loop.time() < self.until
        if is_lost and not self.are_kept:
            self.dead.add(way)
        if way in self.dead:
            return
        when = self.until if is_lost else loop.time()
        self.arrival[way] = when = max(self.arrival.get(way, 0.0), when + self.chance.uniform(0, 0.01))
        loop.call_at(when, what)


class Wire(Written):
    """One end of a connection."""

    def __init__(self, network: Network, way: tuple[int, int]) -> None:
        super().__init__()
        self._network, self._way = network, way
        self.other: asyncio.Protocol | None = None
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._network.carry(self._way, lambda: self._arrive(bytes(data)))

    def _arrive(self, data: bytes) -> None:
        if self.other is not None and not self.is_over:
            self.other.data_received(data)

    def close(self) -> None:
        super().close()
        self._network.carry(self._way, self._end)

    def abort(self) -> None:
        super().abort()
        self._network.carry(self._way, self._end)

    def _end(self) -> None:
        if self.other is not None and not self.is_over:
            self.is_over = True
            self.other.connection_lost(None)


class Nodes:
    """A node that passes messages on, and one that answers them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.handled: list[bytes] = []
        self.opened = 0
        self.answered: dict[bytes, float] = {}
        self.wrong: list[tuple[bytes, bytes]] = []
        self.streams = NodeStreams(self._start, self._refuse, PATIENCE)

    def _start(self, url: str, number: int, stream: NodeStream, done: Done) -> None:
        """Open a connection, as an HTTP request with an answer does; without the answer, it fails after a while."""
        self.opened += 1
        there, back = (self.opened, 0), (self.opened, 1)
        keys = (b"q%031d" % self.opened, b"a%031d" % self.opened)
        failure = asyncio.get_running_loop().call_later(
            PATIENCE, lambda: done(TransportError("no answer", connected=True))
        )

        def connect() -> None:
            session = NodeSession(keys, None, self._take, lambda session: None, LineLimit())
            asked, answering = Wire(self.network, there), Wire(self.network, back)
            asked.other, answering.other = session, stream
            session.connection_made(answering)
            self.network.carry(back, lambda: answer(asked))

        def answer(asked: Wire) -> None:
            failure.cancel()
            stream.use_keys(*keys)
            stream.connection_made(asked)
            done(Response(200, {}, b""))

        self.network.carry(there, connect)

    def _refuse(self, place: str, body: bytes, done: Done) -> None:
        raise AssertionError("both nodes know frames")

    def _take(self, exchange: Exchange) -> None:
        self.handled.append(exchange.request.body)
        exchange.respond(200, b"of " + exchange.request.body)

    async def send(self, content: bytes) -> None:
        """Send a message again and again, until it is answered."""
        loop = asyncio.get_running_loop()

        def told(outcome: Outcome) -> None:
            if isinstance(outcome, Response):
                self.answered.setdefault(content, loop.time())
                if outcome.body != b"of " + content:
                    self.wrong.append((content, outcome.body))

        while content not in self.answered:
            self.streams.send("http://node", 1, content, told)
            await asyncio.sleep(REPEAT)


async def outage(seed: int, lost: tuple[bool, bool], *, are_kept: bool) -> float:
    """Send messages before, during and after an outage; return how long after it the last of its messages waited."""
    chance = random.Random(seed)
    nodes = Nodes(Network(chance, are_kept=are_kept))
    begin = chance.uniform(5, 15)
    seconds = chance.choice((1.0, 6.0, 30.0, 70.0))

    async def later(number: int, wait: float) -> None:
        await asyncio.sleep(wait)
        await nodes.send(b"message %d" % number)

    async def cut() -> None:
        await asyncio.sleep(begin)
        nodes.network.lost, nodes.network.until = lost, begin + seconds

    times = [chance.uniform(0, begin + seconds + 20) for _ in range(60)]
    async with asyncio.timeout(1000):
        await asyncio.gather(cut(), *(later(number, wait) for number, wait in enumerate(times)))
    assert set(nodes.handled) == {b"message %d" % number for number in range(60)}
    assert not nodes.wrong
    assert nodes.opened <= 3 + (seconds + 40) / SILENCE, "a silent connection is replaced now and then"
    nodes.streams.close()
    end = begin + seconds
    return max(nodes.answered[b"message %d" % number] - max(end, wait) for number, wait in enumerate(times))


LOST = [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize("are_kept", [True, False], ids=["packets arrive later", "connections are dead"])
@pytest.mark.parametrize("lost", LOST, ids=["both ways", "there", "back"])
def test_messages_are_answered_soon_after_the_outage(lost: tuple[bool, bool], are_kept: bool) -> None:
    for seed in range(6):
        assert run_virtually(outage(seed, lost, are_kept=are_kept)) < SILENCE + 2 * LOOK + 2 * REPEAT, seed


def test_a_silent_connection_that_is_never_replaced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", math.inf)
    waited = [run_virtually(outage(seed, (True, True), are_kept=False)) for seed in range(6)]
    assert max(waited) > SILENCE + 2 * LOOK + 2 * REPEAT
