"""The Offers of clients among several workers: one of them accepts each, also while the selected one does not run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, wait_until

import holdfast
from holdfast.core.commit import GroupCommit
from holdfast.core.messages import ANONYMOUS_EPR
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.endpoint.worker import worker_of
from holdfast.endpoint.workers import identifier_table
from holdfast.endpoint.workers.identifier_table import IdentifierTable, OfferedIdentifiers

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

HELD_BACK = """
import pathlib, time
import holdfast
while pathlib.Path("wait").exists():
    time.sleep(0.01)
app = holdfast.Destination(store="inbox", partitions=2)
@app.on()
def reply(message) -> str:
    return "<reply/>"
"""
COUNT = 3
OFFERS = [f"urn:offer:{number}" for number in range(4)]


# --- the table --------------------------------------------------------------------------------------------------------


class Workers:
    """Workers that share a table, as the supervisor and the reception use it: what each has stored, and which run."""

    def __init__(self) -> None:
        self.stored: list[set[str]] = [set() for _ in range(COUNT)]
        self.restart()
        for number in range(COUNT):
            self.start(number)

    def restart(self) -> None:
        """Let the supervisor end with all workers, and another one start the first worker."""
        self.table = IdentifierTable(COUNT)
        self.running: dict[int, OfferedIdentifiers] = {}
        self.sequences: dict[int, InboundSequences] = {}
        self.announced: set[int] = set()
        self.seen_away = set(range(COUNT))
        """What the supervisor has written."""
        self.start(0)

    def start(self, number: int) -> None:
        if number in self.running:
            return
        sequences = InboundSequences(DestinationPolicy(), GroupCommit(), [], Queue("inbox"))
        for offer in self.stored[number]:
            sequences.know(_sequence(offer))
        offers = OfferedIdentifiers(self.table.of(number), number)
        offers.follow(sequences)
        self.running[number], self.sequences[number] = offers, sequences
        self.announced.add(number)
        self.seen_away.discard(number)

    def kill(self, number: int) -> None:
        self.running.pop(number, None)

    def notice(self) -> None:
        self.seen_away = set(range(COUNT)) - self.running.keys()

    def create(self, offer: str, at: int, is_refused: bool = False) -> int | None:
        """Return the worker that answers, which may not run; None: the client sends it again."""
        if at not in self.running:
            return None
        owner = _owner(offer)
        answerer = self.running[at].answerer(offer, owner, is_away=owner in self.seen_away)
        if answerer not in self.running or (answerer == owner and self.is_in_gap(offer)):
            return answerer
        return answerer if self.accept(offer, answerer, is_refused) else None

    def accept(self, offer: str, at: int, is_refused: bool = False) -> bool:
        """Let a worker process a request that may have waited in its socket for long."""
        if not self.running[at].claim(offer):
            return False
        sequences = self.sequences[at]
        if offer not in sequences.offered and not is_refused:
            sequences.know(_sequence(offer))
        if offer not in sequences.offered:
            sequences.offer_unused(offer)
        return True

    def is_in_gap(self, offer: str) -> bool:
        """Whether only a worker that has never started has the Offer. The selected worker does not wait for that."""
        return bool(self.holders(offer) - self.announced)

    def forget(self, offer: str, at: int) -> None:
        if at in self.running and offer in self.sequences[at].offered:
            self.sequences[at].forget(self.sequences[at].destinations[f"urn:of:{offer}"])

    def commit(self, at: int) -> None:
        if at in self.running:
            commit = self.sequences[at].commit
            commit.take()
            self.stored[at] = set(self.sequences[at].offered)
            commit.durable(0.0)

    def holders(self, offer: str) -> set[int]:
        """The workers with a Sequence, in memory or in the store."""
        holding = {number for number in range(COUNT) if offer in self.stored[number]}
        return holding | {number for number in self.running if offer in self.sequences[number].offered}


def _sequence(offer: str) -> RMDestination:
    sequence = RMDestination(f"urn:of:{offer}", holdfast.Versions(), ANONYMOUS_EPR, DestinationPolicy(), 0.0)
    sequence.offered = offer
    return sequence


def test_a_worker_with_more_offers_than_fit_starts_and_answers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identifier_table, "MOST_CLAIMS", 2)
    workers = Workers()
    for kept in (OFFERS[:2], OFFERS[:3], OFFERS, OFFERS[:1]):
        workers.kill(1)
        workers.stored[1] = set(kept)
        workers.start(1)
        for offer in OFFERS:
            answerer = workers.running[0].answerer(offer, 1, is_away=True)
            is_recorded = workers.running[1]._claims.has(offer)
            assert answerer == (1 if is_recorded or len(kept) > 2 else 0)
            assert offer not in kept or answerer == 1


@pytest.mark.parametrize("seed", range(8))
def test_no_two_workers_accept_one_offer_whoever_is_killed(seed: int) -> None:
    chance = random.Random(seed)
    workers = Workers()
    for _ in range(5000):
        offer, at, is_refused = chance.choice(OFFERS), chance.randrange(COUNT), chance.random() < 0.1
        step = chance.choice(["create", "create", "accept", "forget", "commit", "kill", "start", "start", "notice"])
        if chance.random() < 0.002:
            workers.restart()
        elif step == "create":
            workers.create(offer, at, is_refused)
        elif (
            step == "accept"
        ):  # a request that has waited in the socket of the worker, or came from a client that polls
            if at in workers.running and not workers.is_in_gap(offer):
                workers.accept(offer, at, is_refused)
        elif step == "forget":
            workers.forget(offer, at)
        elif step == "notice":
            workers.notice()
        else:
            getattr(workers, step)(at)
        for one in OFFERS:
            assert len(workers.holders(one)) <= 1, (one, workers.holders(one))


def _owner(offer: str) -> int:
    return zlib.crc32(offer.encode()) % COUNT


def test_only_for_a_new_offer_another_worker_answers_while_the_selected_one_is_away() -> None:
    workers = Workers()
    known, new = [offer for number in range(20) if _owner(offer := f"urn:x:{number}") == 1][:2]
    assert workers.create(known, 0) == 1
    workers.kill(1)
    assert workers.create(new, 0) == 1  # the supervisor has not noticed
    workers.notice()
    assert workers.create(known, 0) == 1
    assert workers.create(new, 0) == 0
    assert workers.create(new, 2) == 0
    workers.start(1)
    assert [workers.create(new, at) for at in range(COUNT)] == [0] * COUNT
    assert not workers.accept(new, 1)
    workers.forget(new, 0)
    assert not workers.accept(new, 1)  # a crash would bring it back
    workers.commit(0)
    assert workers.accept(new, 1)


def test_a_refused_create_sequence_leaves_its_offer_to_others() -> None:
    workers = Workers()
    assert workers.accept("urn:x", 0, True)
    assert not workers.accept("urn:x", 1)
    workers.commit(0)
    assert workers.accept("urn:x", 1)


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    started: list[Crew] = []

    def start() -> Crew:
        started.append(Crew(tmp_path, "--port", "0", "--workers", str(COUNT), module=HELD_BACK))
        return started[-1]

    yield start
    for one in started:
        one.clean()


def new_offer(worker: int) -> str:
    """Return an Identifier that selects the worker."""
    return next(offer for _ in range(1000) if _owner(offer := f"urn:offered:{uuid.uuid4()}") == worker)


async def create(peer: Any, url: str, offer: str, message_id: str = "urn:test:create") -> tuple[Any, Any]:
    """Send CreateSequence on a new connection; repeat it for as long as the answer asks for that."""
    while True:
        one = peer(url)
        answer = await one.create(offer=offer, message_id=message_id)
        if answer.status != 503:
            return one, answer
        await one.close()


async def granted(peer: Any, url: str, offer: str) -> str:
    one, _ = await create(peer, url, offer)
    return str(one.identifier)


async def test_offers_for_a_worker_that_is_killed_are_accepted_by_another_one(
    crew: Callable[..., Crew], peer: Any, tmp_path: Path
) -> None:
    server = crew()
    url = await asyncio.to_thread(server.url)
    (tmp_path / "wait").touch()
    await asyncio.to_thread(server.kill, 1)
    offers = [new_offer(1) for _ in range(4)]
    found = {}
    for offer in offers:
        one, _ = await create(peer, url, offer)
        reply = await one.request(1)
        assert reply.envelope.sequence.identifier == offer
        found[offer] = one.identifier
    assert {worker_of(one) for one in found.values()} <= {0, 2}

    async def check() -> None:
        for offer, identifier in found.items():
            for _ in range(2):
                assert await granted(peer, url, offer) == identifier
            _, refused = await create(peer, url, offer, "urn:test:another")
            assert refused.fault == "CreateSequenceRefused"

    await check()
    (tmp_path / "wait").unlink()
    assert worker_of(await granted(peer, url, new_offer(2))) == 2
    await asyncio.to_thread(wait_until, lambda: server.errors.read_text().count("server.listening") == COUNT + 1)
    assert worker_of(await granted(peer, url, new_offer(1))) == 1
    await check()
    assert await asyncio.to_thread(server.end) == 0
    again = crew()
    url = await asyncio.to_thread(again.url)
    await check()


async def test_a_repeat_waits_for_the_killed_worker_that_has_accepted_the_offer(
    crew: Callable[..., Crew], peer: Any, tmp_path: Path
) -> None:
    server = crew()
    url = await asyncio.to_thread(server.url)
    offer = new_offer(1)
    identifier = await granted(peer, url, offer)
    assert worker_of(identifier) == 1
    (tmp_path / "wait").touch()
    await asyncio.to_thread(server.kill, 1)
    repeats = [asyncio.create_task(granted(peer, url, offer)) for _ in range(4)]
    others = [asyncio.create_task(create(peer, url, offer, f"urn:test:{number}")) for number in range(4)]
    for _ in range(8):  # these are answered after those
        assert worker_of(await granted(peer, url, new_offer(1))) in (0, 2)
    assert not any(one.done() for one in repeats + others)
    (tmp_path / "wait").unlink()
    assert set(await asyncio.gather(*repeats)) == {identifier}
    assert {answer.fault for _, answer in await asyncio.gather(*others)} == {"CreateSequenceRefused"}


async def test_offers_for_a_stopped_worker_wait_and_are_accepted_once(crew: Callable[..., Crew], peer: Any) -> None:
    server = crew()
    url = await asyncio.to_thread(server.url)
    stopped = server.pids[1]
    offers = [new_offer(1) for _ in range(4)]
    os.kill(stopped, signal.SIGSTOP)
    try:
        waiting = [asyncio.create_task(granted(peer, url, offer)) for offer in offers for _ in range(3)]
        for _ in range(4):
            assert worker_of(await granted(peer, url, new_offer(2))) == 2
        assert not any(one.done() for one in waiting)
    finally:
        os.kill(stopped, signal.SIGCONT)
    answers = await asyncio.gather(*waiting)
    assert len(set(answers)) == len(offers)
    assert {worker_of(one) for one in answers} == {1}


@pytest.mark.nightly  # the restarts have to be ten seconds apart
async def test_another_worker_accepts_the_offers_for_one_that_cannot_start(
    crew: Callable[..., Crew], peer: Any, tmp_path: Path
) -> None:
    server = crew()
    url = await asyncio.to_thread(server.url)
    waiting, _ = await create(peer, url, new_offer(1))
    (tmp_path / "inbox" / "worker-1").rename(tmp_path / "lost")
    (tmp_path / "inbox" / "worker-1").write_text("no store")
    os.kill(server.pids[1], signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: server.errors.read_text().count("worker.died") > 2)
    message = asyncio.create_task(waiting.request(1))
    for _ in range(8):
        one, _ = await create(peer, url, offer := new_offer(1))
        assert (await one.request(1)).envelope.sequence.identifier == offer
        assert worker_of(one.identifier) in (0, 2)
    assert (await message).status == 503
