"""The commit thread: order, what the loop waits for and what it does not, failures and the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed
from holdfast.store import CommitThread, MemoryStore
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.store.writer import FEWEST_NOT_WAITED, MOST_NOT_WAITED, Patience

WAYS = pytest.mark.parametrize("longest_wait", [60.0, 0.0], ids=["the loop waits", "the loop goes on"])


class GatedStore(MemoryStore):
    """A store whose commits wait until they are let through, and fail when told to."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.broken: BaseException | None = None
        if is_open:
            self.gate.set()

    def commit(self, batch: Batch) -> None:
        self.entered.set()
        assert self.gate.wait(60)
        if self.broken is not None:
            raise self.broken
        super().commit(batch)


class Shell:
    """What an endpoint does with a commit thread: one batch at a time, the next when the last is durable."""

    def __init__(self, store: Any, longest_wait: float | None = None) -> None:
        self.durable = 0
        self.at_once = 0
        self.errors: list[BaseException] = []
        self.threads: set[threading.Thread] = set()
        self.changed = asyncio.Event()
        self.thread = CommitThread(
            store, asyncio.get_running_loop(), self.on_durable, self.on_failed, longest_wait=longest_wait
        )

    def on_durable(self) -> None:
        self.durable += 1
        self.threads.add(threading.current_thread())
        self.changed.set()

    def on_failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.threads.add(threading.current_thread())
        self.changed.set()

    async def commit(self, batch: Batch) -> None:
        """Returns when it is durable or has failed."""
        told = self.durable + len(self.errors)
        if self.thread.commit(batch):
            self.durable += 1
            self.at_once += 1
            return
        assert self.durable + len(self.errors) == told, "told while the loop was still at it"
        await self.told(told + 1)

    async def told(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.durable + len(self.errors) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def shells() -> Iterator[Any]:
    """Makes shells, whose threads end with the test."""
    made: list[Shell] = []

    def make(store: Any, longest_wait: float | None = None) -> Shell:
        made.append(Shell(store, longest_wait))
        return made[-1]

    yield make
    for shell in made:
        shell.thread.close()


def append(record: Any, n: int) -> Batch:
    return Batch(appends=[("q", 0, n, record(n))])


@WAYS
async def test_batches_are_in_the_store_in_order_when_they_are_said_to_be(
    tmp_path: Path, record: Any, shells: Any, longest_wait: float
) -> None:
    store = RocksDBStore(tmp_path / "store")
    shell = shells(store, longest_wait)
    for n in range(50):
        await shell.commit(append(record, n))
        assert len(store.read("q", 0, 0, 99)) == n + 1
    assert shell.durable == 50
    assert shell.at_once == shell.thread.waited == (50 if longest_wait else 0)
    assert shell.threads == (set() if longest_wait else {threading.current_thread()})
    assert shell.errors == []
    assert (shell.thread.batches, shell.thread.records) == (50, 50)
    assert shell.thread.bytes == sum(len(record(n).body) for n in range(50))
    assert shell.thread.durations.seconds > 0
    assert sum(shell.thread.durations.counts) == 50
    shell.thread.close()
    store.close()


async def test_the_loop_goes_on_where_a_commit_takes_longer_and_hears_of_it_later(record: Any, shells: Any) -> None:
    store = GatedStore()
    shell = shells(store)
    assert not shell.thread.commit(append(record, 0))
    assert store.entered.wait(60)
    assert shell.thread.pending_seconds > 0
    for _ in range(10):
        await asyncio.sleep(0)
    assert shell.durable == 0
    store.gate.set()
    await shell.told(1)
    assert (shell.durable, shell.thread.waited, shell.thread.pending_seconds) == (1, 0, 0.0)


async def test_after_a_commit_that_took_longer_some_are_not_waited_for(record: Any, shells: Any) -> None:
    store = GatedStore()
    shell = shells(store, 0.001)
    assert not shell.thread.commit(append(record, 0))
    store.gate.set()
    await shell.told(1)
    shell.thread._longest_wait = 60.0  # so that the next one which is waited for is in time
    for n in range(FEWEST_NOT_WAITED):
        await shell.commit(append(record, n + 1))
    assert shell.at_once == 0
    await shell.commit(append(record, FEWEST_NOT_WAITED + 1))
    assert shell.at_once == 1


def test_a_slow_disk_is_waited_for_ever_more_seldom_until_it_is_quick_again() -> None:
    patience = Patience()
    between = []
    for _ in range(12):
        count = 0
        while not patience.waits():
            count += 1
        between.append(count)
        patience.waited(in_time=False)
    doubled = [FEWEST_NOT_WAITED * 2**n for n in range(11)]
    assert between == [0, *(min(count, MOST_NOT_WAITED) for count in doubled)]
    while not patience.waits():
        pass
    patience.waited(in_time=True)
    assert patience.waits()
    patience.waited(in_time=False)
    assert [patience.waits() for _ in range(FEWEST_NOT_WAITED + 1)] == [False] * FEWEST_NOT_WAITED + [True]


async def test_each_commit_is_told_once_also_where_it_is_done_just_as_the_wait_ends(record: Any, shells: Any) -> None:
    class AlmostTooLate(MemoryStore):
        def commit(self, batch: Batch) -> None:
            super().commit(batch)
            end = time.perf_counter() + 0.0005
            while time.perf_counter() < end:
                pass

    shell = shells(AlmostTooLate(), 0.0005)
    for n in range(600):
        shell.thread._patience = Patience()  # each is waited for
        await shell.commit(append(record, n))
    shell.thread.close()
    await asyncio.sleep(0)  # what might be told twice is in the loop by now
    assert (shell.durable, shell.thread.batches) == (600, 600)
    assert shell.errors == []


@WAYS
@pytest.mark.parametrize("error", [StoreFailed("the disk said no"), MemoryError()], ids=["failed", "no ordinary error"])
async def test_a_failure_is_told_once_in_the_loop_and_ends_it(
    record: Any, shells: Any, longest_wait: float, error: BaseException
) -> None:
    store = GatedStore(is_open=True)
    shell = shells(store, longest_wait)
    await shell.commit(append(record, 0))
    store.broken = error
    await shell.commit(append(record, 1))
    assert shell.errors == [error]
    assert shell.threads == {threading.current_thread()}
    with pytest.raises(StoreFailed, match="earlier commit failed") as caught:
        shell.thread.commit(append(record, 2))
    assert caught.value.__cause__ is error
    shell.thread.close()
    await asyncio.sleep(0)
    assert (shell.durable, shell.errors) == (1, [error])
    assert shell.thread.batches == 1


async def test_close_commits_pending_batches_and_accepts_no_further_ones(record: Any, shells: Any) -> None:
    store = GatedStore()
    shell = shells(store, 0.0)
    assert not shell.thread.commit(append(record, 0))
    assert store.entered.wait(60)
    closing = asyncio.ensure_future(asyncio.to_thread(shell.thread.close))
    store.gate.set()
    await closing
    assert len(store.read("q", 0, 0, 9)) == 1
    with pytest.raises(StoreFailed, match="is closing"):
        shell.thread.commit(append(record, 1))
    await shell.told(1)
    shell.thread.close()


def test_a_loop_that_is_gone_does_not_stop_the_writing(record: Any) -> None:
    store = GatedStore()
    loop = asyncio.new_event_loop()
    thread = CommitThread(store, loop, lambda: None, lambda error: None, longest_wait=0.0)
    assert not thread.commit(append(record, 0))
    assert store.entered.wait(60)
    loop.close()
    store.gate.set()
    thread.close()
    assert len(store.read("q", 0, 0, 9)) == 1
