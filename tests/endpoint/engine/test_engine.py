"""The engine: commits in groups, waits for them, and says so when the store fails.

Covers endpoint/heap.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from waiting import until

from holdfast.core.events import Effect, Ended, Submitted
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outbound import Outbound
from holdfast.core.versions import Versions
from holdfast.endpoint import heap
from holdfast.endpoint.engine import engine
from holdfast.endpoint.engine.engine import Engine, new_identifier
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore, writer


class SlowStore(MemoryStore):
    """Commits when it is let, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()
        self.fails = False
        self.commits = 0

    def commit(self, batch: Batch) -> None:
        self.may_go.wait()
        self.commits += 1
        if self.fails:
            raise StoreFailed("no space left")
        super().commit(batch)


class Running:
    """An engine with a store that can be held up."""

    def __init__(self) -> None:
        self.store = SlowStore()
        self.effects: list[Effect] = []
        self.failures: list[BaseException] = []
        self.engine = Engine(self.store, self.effects.append, self.failures.append)
        self.engine.start(Queue("inbox"))
        self.outbox = self.engine.protocol.outbound.open("", "http://127.0.0.1:9/", [(Versions(), False)])
        self.outbox.lifecycle.stop("in this test nothing is to be sent")

    def submit(self, count: int) -> None:
        for _ in range(count):
            record = Record("", 0, "urn:a", b"<a/>", 0.0, new_identifier())
            self.engine.protocol.submit(self.outbox, record, self.engine.clock())
        self.engine.touch()

    @property
    def submitted(self) -> int:
        return sum(effect.last - effect.first + 1 for effect in self.effects if isinstance(effect, Submitted))


@pytest.fixture(params=[writer.LONGEST_WAIT, 0.0], ids=["the loop waits a moment", "the loop never waits"])
async def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """Started, and settled."""
    monkeypatch.setattr(writer, "LONGEST_WAIT", request.param)
    one = Running()
    await one.engine.settled()
    yield one
    one.store.may_go.set()
    await one.engine.stop()


async def test_what_comes_while_a_commit_is_under_way_shares_the_next_one(running: Running) -> None:
    before = running.store.commits
    running.store.may_go.clear()
    running.submit(1)
    await asyncio.sleep(0)
    for _ in range(50):
        running.submit(1)
        await asyncio.sleep(0)
    assert running.submitted == 0, "nothing is durable, so nothing is told"
    running.store.may_go.set()
    await running.engine.settled()
    assert running.submitted == 51
    assert running.store.commits - before == 2


async def test_any_number_may_wait_until_everything_is_durable(running: Running) -> None:
    running.store.may_go.clear()
    running.submit(3)
    waiting = [asyncio.ensure_future(running.engine.settled()) for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    running.store.may_go.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert running.submitted == 3


async def test_a_store_that_fails_ends_it_once_and_lets_nobody_wait_for_ever(running: Running) -> None:
    running.engine.check()
    running.store.fails = True
    running.submit(2)
    async with asyncio.timeout(60):
        await asyncio.gather(running.engine.settled(), running.engine.settled())
    running.submit(1)
    await asyncio.sleep(0)
    assert running.submitted == 0
    assert len(running.failures) == 1
    with pytest.raises(StoreFailed, match="no space left"):
        running.engine.check()


async def test_deadlines_are_not_looked_up_while_a_batch_is_being_committed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TIMER_DELAY", 60.0)
    looked, deadline = list[float | None](), running.engine.protocol.deadline
    monkeypatch.setattr(running.engine.protocol, "deadline", lambda: looked.append(deadline()))
    running.store.may_go.clear()
    for _ in range(50):
        running.submit(1)
        await asyncio.sleep(0)
    assert not looked
    running.store.may_go.set()
    await running.engine.settled()
    assert looked


async def test_a_deadline_is_met_although_the_store_does_not_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumped: list[float] = []
    running.store.may_go.clear()
    running.submit(1)
    await asyncio.sleep(0)
    monkeypatch.setattr(running.engine.protocol, "deadline", lambda: running.engine.clock() + 0.01)
    monkeypatch.setattr(running.engine.protocol, "pump", pumped.append)
    running.submit(1)
    await until(lambda: pumped)
    assert running.submitted == 0


@pytest.fixture
async def waited_for(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """Started, and settled; the loop waits for every commit to its end."""
    monkeypatch.setattr(writer, "LONGEST_WAIT", 60.0)
    one = Running()
    await one.engine.settled()
    yield one
    await one.engine.stop()


async def test_a_finished_wait_is_told_in_the_same_turn_and_the_next_shares_it(
    waited_for: Running,
) -> None:
    before = waited_for.store.commits
    waited_for.submit(2)
    await asyncio.sleep(0)
    waited_for.submit(3)
    assert (waited_for.submitted, waited_for.store.commits) == (0, before)
    await asyncio.sleep(0)
    assert (waited_for.submitted, waited_for.store.commits) == (5, before + 1)
    assert not waited_for.engine.is_busy
    assert waited_for.engine.commits.waited == waited_for.engine.commits.batches


async def test_what_nobody_waits_for_after_a_commit_is_put_off_without_another_turn(
    waited_for: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, commit = waited_for.engine, waited_for.engine.protocol.commit
    asked: list[str] = []
    monkeypatch.setattr(Engine, "touch", lambda _engine: asked.append("turn"))
    before = waited_for.store.commits
    commit.then(lambda _now: commit.then(lambda _now: None, is_waited_for=False))
    engine.turn()
    assert (asked, waited_for.store.commits) == ([], before + 1)
    assert commit.is_wanted and not engine.is_busy
    await until(lambda: not commit.is_wanted)
    assert waited_for.store.commits == before + 2


@pytest.mark.parametrize("is_idle", [True, False], ids=["nothing else to send", "something else to send"])
async def test_answers_that_wait_for_a_batch_leave_before_outboxes_get_their_turn(
    waited_for: Running, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    engine = waited_for.engine
    done: list[str] = []
    monkeypatch.setattr(Outbound, "is_idle", is_idle)
    monkeypatch.setattr(Outbound, "pump", lambda *_: done.append("send"))
    monkeypatch.setattr(engine, "_carry_out", lambda _effect: done.append("answer"))
    engine.protocol.commit.then(lambda _now: engine.protocol.effects.append(Ended("")))
    engine.turn()
    assert done == (["answer", "send"] if is_idle else ["send", "answer", "send"])


async def test_outboxes_get_their_turn_while_a_batch_is_written_behind_the_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(writer.CommitThread, "commit", lambda *_: done.append("commit"))
    monkeypatch.setattr(Outbound, "pump", lambda *_: done.append("send"))
    running.engine.protocol.commit.then(lambda _now: None)
    running.engine.turn()
    monkeypatch.undo()
    assert running.engine._commits is not None
    running.engine._commits.is_committing = False
    assert done == ["commit", "send"]


async def test_a_store_that_fails_while_the_loop_waits_ends_it_once(waited_for: Running) -> None:
    waited_for.store.fails = True
    waited_for.submit(2)
    async with asyncio.timeout(60):
        await waited_for.engine.settled()
    assert waited_for.submitted == 0
    assert len(waited_for.failures) == 1
    with pytest.raises(StoreFailed, match="no space left"):
        waited_for.engine.check()


async def test_memory_is_given_back_after_held_records_are_released_or_large_ones_are_read(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(heap, "SETTLED", 0.02)
    monkeypatch.setattr(heap, "give_back", lambda: given.append(threading.get_ident()))
    engine, protocol = running.engine, running.engine.protocol
    records = [Record("", 0, "urn:a", b"x" * size, 0.0, new_identifier()) for size in (10, heap.LARGE)]
    for record in records[:1]:
        protocol.submit(running.outbox, record, engine.clock())
    await engine.durable()
    assert engine._heap._timer is None, "nothing large was used"
    protocol.submit(running.outbox, records[1], engine.clock())
    await engine.durable()
    assert len(await engine.records(running.outbox.records.queue.name, 0, 0, 2)) == 2
    await until(lambda: len(given) == 1)
    held = Record("urn:s", 2, "urn:a", b"<a/>", 0.0)
    protocol.commit.batch.holds.append(("urn:s", 2, held))
    protocol.commit.batch.releases.append(("urn:s", 2, "inbox", 0, 0, 0.0))
    engine.touch()
    await engine.durable()
    await until(lambda: len(given) == 2)


async def test_the_epoch_of_a_queue_is_made_once_and_kept() -> None:
    store = MemoryStore()
    epochs = []
    for _ in range(2):
        engine = Engine(store, lambda effect: None, lambda error: None)
        queue = Queue("inbox")
        engine.start(queue)
        epochs.append(queue.description.epoch)
        await engine.stop()
    assert epochs[0] == epochs[1] != ""


async def test_counters_of_an_engine_that_does_not_run_are_refused() -> None:
    engine = Engine(MemoryStore(), lambda effect: None, lambda error: None)
    with pytest.raises(StoreFailed, match="not running"):
        _ = engine.commits


def test_identifiers_are_uris_and_never_the_same() -> None:
    made = {new_identifier() for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith("urn:uuid:") for one in made)
