"""Reading for the core: off the loop unless the store never waits, in order, dropped when the endpoint is closed."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.queues import Queue
from holdfast.core.records import Batch, Record
from holdfast.endpoint.engine import Engine
from holdfast.endpoint.reading import MOST_AT_A_TIME, Reading
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore, open_store

Found = list[tuple[int, Record]]


def filled(store: MemoryStore, queues: int = 3, records: int = 5) -> MemoryStore:
    batch = Batch()
    for queue in range(queues):
        batch.queues[f"q{queue}"] = {"kind": "any"}
        for offset in range(records):
            batch.appends.append((f"q{queue}", 0, offset, Record("s", offset, "urn:a", b"%d" % offset, 0.0)))
    store.commit(batch)
    return store


class SlowStore(MemoryStore):
    """Is read when it is let; knows in which threads."""

    reads_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: set[str] = set()
        self.fails = False

    def read(self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20) -> Found:
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.may_go.wait(60)
        if self.fails:
            raise StoreFailed("the disk is gone")
        return super().read(queue, partition, start, end, max_bytes)


class Asker:
    """Asks, and keeps the answers in their order."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.answers: list[tuple[str, list[int]]] = []
        self.failures: list[BaseException] = []
        self.reading = Reading(store, asyncio.get_running_loop(), self._answer, self.failures.append)

    def ask(self, queue: str, start: int, end: int) -> None:
        self.reading.read(ReadWanted(queue, 0, start, end, partial(self._take, queue)))

    def _answer(self, wanted: ReadWanted, found: Found) -> None:
        wanted.take(found, 0.0)

    def _take(self, queue: str, found: Found, now: float) -> None:
        self.answers.append((queue, [offset for offset, _ in found]))

    async def quiet(self) -> None:
        async with asyncio.timeout(60):
            while self.reading.is_busy:
                await asyncio.sleep(0.001)


async def test_a_store_that_never_waits_is_read_in_the_loop_at_once() -> None:
    one = Asker(filled(MemoryStore()))
    one.ask("q0", 1, 3)
    assert one.answers == [("q0", [1, 2])]
    assert not one.reading.is_busy
    await one.reading.close()


async def test_a_store_that_may_wait_holds_up_nothing_in_the_loop() -> None:
    store = SlowStore()
    one = Asker(filled(store))
    one.ask("q0", 0, 5)
    assert await asyncio.to_thread(store.entered.acquire, timeout=60)
    assert one.reading.is_busy and one.answers == []  # and yet we are here
    store.may_go.set()
    await one.quiet()
    assert one.answers == [("q0", [0, 1, 2, 3, 4])]
    assert all(name.startswith("holdfast-read") for name in store.threads)
    await one.reading.close()


async def test_partitions_are_read_side_by_side_and_each_in_the_order_of_asking() -> None:
    store = SlowStore()
    one = Asker(filled(store))
    for start in range(5):
        for queue in range(3):
            one.ask(f"q{queue}", start, start + 1)
    for _ in range(min(3, MOST_AT_A_TIME)):
        assert await asyncio.to_thread(store.entered.acquire, timeout=60)  # three at a time, none of them is done
    assert not store.entered.acquire(blocking=False), "of one partition one at a time"
    store.may_go.set()
    await one.quiet()
    for queue in range(3):
        assert [found for name, found in one.answers if name == f"q{queue}"] == [[0], [1], [2], [3], [4]]
    await one.reading.close()


async def test_a_store_that_fails_is_told_once_and_nothing_more_is_read() -> None:
    store = SlowStore()
    store.fails = True
    one = Asker(filled(store))
    one.ask("q0", 0, 1)
    one.ask("q0", 1, 2)
    store.may_go.set()
    await one.quiet()
    one.ask("q1", 0, 1)
    assert [str(error) for error in one.failures] == ["the disk is gone"]
    assert one.answers == [] and not one.reading.is_busy
    await one.reading.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_who_wants_to_know_whether_the_store_can_be_read_waits_for_what_is_being_read(fails: bool) -> None:
    store = SlowStore()
    store.fails = fails
    one = Asker(filled(store))
    await one.reading.caught_up()  # with what nobody asked for
    for queue in ("q0", "q1"):
        one.ask(queue, 0, 1)
    waiting = asyncio.ensure_future(one.reading.caught_up())
    await asyncio.sleep(0)
    assert not waiting.done()
    store.may_go.set()
    async with asyncio.timeout(60):
        await waiting
    assert (len(one.answers), len(one.failures)) == ((0, 1) if fails else (2, 0))
    await one.reading.close()


async def test_what_is_being_read_when_it_is_closed_is_waited_for_and_not_answered() -> None:
    store = SlowStore()
    one = Asker(filled(store))
    one.ask("q0", 0, 1)
    one.ask("q0", 1, 2)
    assert await asyncio.to_thread(store.entered.acquire, timeout=60)
    closing = asyncio.ensure_future(one.reading.close())
    await asyncio.sleep(0)
    assert not closing.done()
    store.may_go.set()
    async with asyncio.timeout(60):
        await closing
    await asyncio.sleep(0)
    assert one.answers == []
    assert not store.entered.acquire(blocking=False), "the second was dropped before it began"


class Running:
    """An engine whose core is asked to read."""

    def __init__(self, store: MemoryStore) -> None:
        self.failures: list[BaseException] = []
        self.effects: list[Effect] = []
        self.answers: list[list[int]] = []
        self.engine = Engine(store, self.effects.append, self.failures.append)
        self.engine.start(Queue("inbox"))

    def want(self, start: int, end: int) -> None:
        self.engine.protocol.effects.append(ReadWanted("q0", 0, start, end, self._take))
        self.engine.touch()

    def _take(self, found: Found, now: float) -> None:
        self.answers.append([offset for offset, _ in found])
        if self.answers[-1] and self.answers[-1][-1] < 4:
            self.engine.protocol.effects.append(ReadWanted("q0", 0, self.answers[-1][-1] + 1, 5, self._take))

    async def quiet(self) -> None:
        async with asyncio.timeout(60):
            while self.engine.is_busy:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("slow", [True, False])
async def test_an_engine_answers_what_the_core_wants_to_read_and_keeps_it_to_itself(slow: bool) -> None:
    store = SlowStore() if slow else MemoryStore()
    if isinstance(store, SlowStore):
        store.may_go.set()
    running = Running(filled(store))
    running.want(1, 2)
    await running.quiet()
    assert running.answers == [[1], [2, 3, 4]], "what is asked for on the way is read as well"
    assert not any(isinstance(effect, ReadWanted) for effect in running.effects)
    await running.engine.stop()


async def test_a_store_that_cannot_be_read_has_failed_for_the_engine() -> None:
    store = SlowStore()
    store.fails = True
    running = Running(filled(store))
    store.may_go.set()
    running.want(1, 2)
    await running.quiet()
    assert [str(error) for error in running.failures] == ["the disk is gone"]
    with pytest.raises(StoreFailed, match="the disk is gone"):
        running.engine.check()
    assert running.answers == []
    await running.engine.stop()


async def test_an_engine_that_stops_drops_what_is_being_read(tmp_path: Path) -> None:
    store = SlowStore()
    running = Running(filled(store))
    await running.engine.settled()
    running.want(1, 2)
    assert await asyncio.to_thread(store.entered.acquire, timeout=60)
    stopping = asyncio.ensure_future(running.engine.stop())
    store.may_go.set()
    async with asyncio.timeout(60):
        await stopping
    assert running.answers == []


async def test_a_store_on_a_disk_is_read_in_threads(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    assert not store.reads_at_once
    store.load()
    filled(store)  # type: ignore[arg-type]
    one = Asker(store)  # type: ignore[arg-type]
    one.ask("q0", 0, 5)
    one.ask("q0", 7, 9)
    await one.quiet()
    assert one.answers == [("q0", [0, 1, 2, 3, 4]), ("q0", [])]
    await one.reading.close()
    store.close()
