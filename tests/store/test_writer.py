"""The commit thread: order, groups, failures and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed
from holdfast.store import CommitThread, MemoryStore
from holdfast.store.rocksdb import RocksDBStore


class GatedStore(MemoryStore):
    """A store whose commits wait until they are let through, and fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.groups: list[int] = []
        self.broken: BaseException | None = None

    def commit_group(self, batches: Sequence[Batch]) -> None:
        self.pass_gate(len(batches))
        for batch in batches:
            super().commit(batch)

    def commit(self, batch: Batch) -> None:
        self.pass_gate(1)
        super().commit(batch)

    def pass_gate(self, count: int) -> None:
        self.groups.append(count)
        self.entered.set()
        assert self.gate.wait(60)
        if self.broken is not None:
            raise self.broken


class PlainStore:
    """A store with nothing but what the interface asks for."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.commits = 0

    def commit(self, batch: Batch) -> None:
        self.commits += 1
        self.inner.commit(batch)


class Heard:
    """What the loop is told, and a future for the moment enough of it was."""

    def __init__(self, enough: int) -> None:
        self.tokens: list[int] = []
        self.errors: list[BaseException] = []
        self.threads: set[threading.Thread] = set()
        self.done = asyncio.get_running_loop().create_future()
        self.enough = enough

    def durable(self, token: int) -> None:
        self.tokens.append(token)
        self.count()

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.count()

    def count(self) -> None:
        self.threads.add(threading.current_thread())
        if len(self.tokens) + len(self.errors) == self.enough:
            self.done.set_result(None)


def append(record, n: int) -> Batch:
    return Batch(appends=[("q", 0, n, record(n))])


def start(store, heard: Heard, **options: int) -> CommitThread[int]:
    return CommitThread(store, asyncio.get_running_loop(), heard.durable, heard.failed, **options)


async def test_tokens_come_back_in_the_loop_in_order_once_their_batch_is_durable(tmp_path, record):
    store = RocksDBStore(tmp_path / "store")
    heard = Heard(50)
    thread = start(store, heard)
    for n in range(50):
        thread.submit(n, append(record, n))
    await asyncio.wait_for(heard.done, 60)
    assert heard.tokens == list(range(50))
    assert heard.threads == {threading.current_thread()}
    assert heard.errors == []
    thread.close()
    assert len(store.read("q", 0, 0, 99)) == 50
    assert (thread.batches, thread.records) == (50, 50)
    assert thread.bytes == sum(len(record(n).body) for n in range(50))
    assert 1 <= thread.syncs <= 50
    assert thread.seconds > 0
    store.close()


async def test_what_waits_while_the_disk_works_shares_the_next_sync(record):
    store, heard = GatedStore(), Heard(5)
    thread = start(store, heard)
    assert thread.idle
    thread.submit(0, append(record, 0))
    assert store.entered.wait(60)
    for n in range(1, 5):
        thread.submit(n, append(record, n))
    assert not thread.idle
    store.gate.set()
    await asyncio.wait_for(heard.done, 60)
    assert store.groups == [1, 4]
    assert thread.syncs == 2
    assert thread.idle
    thread.close()


async def test_a_shell_that_submits_when_idle_and_looks_again_when_told_never_waits_for_ever(record):
    store = MemoryStore()
    done = asyncio.get_running_loop().create_future()
    idle: list[bool] = []

    def durable(n: int) -> None:
        idle.append(thread.idle)
        if n == 500:
            done.set_result(None)
        else:
            thread.submit(n + 1, append(record, n + 1))

    thread: CommitThread[int] = CommitThread(store, asyncio.get_running_loop(), durable, done.set_exception)
    thread.submit(0, append(record, 0))
    await asyncio.wait_for(done, 60)
    thread.close()
    assert all(idle)


async def test_a_store_without_groups_gets_the_batches_one_by_one(record):
    store, heard = PlainStore(), Heard(6)
    thread = start(store, heard)
    for n in range(6):
        thread.submit(n, append(record, n))
    await asyncio.wait_for(heard.done, 60)
    thread.close()
    assert heard.tokens == list(range(6))
    assert store.commits == thread.syncs == 6


async def test_submit_waits_while_as_many_batches_wait_as_may(record):
    store, heard = GatedStore(), Heard(4)
    thread = start(store, heard, depth=2)
    thread.submit(0, append(record, 0))
    assert store.entered.wait(60)
    assert thread.ready
    thread.submit(1, append(record, 1))
    thread.submit(2, append(record, 2))
    assert not thread.ready
    blocked = asyncio.create_task(asyncio.to_thread(thread.submit, 3, append(record, 3)))
    done, _ = await asyncio.wait([blocked], timeout=0.05)
    assert not done
    store.gate.set()
    await asyncio.wait_for(heard.done, 60)
    await blocked
    assert heard.tokens == [0, 1, 2, 3]
    thread.close()


async def test_a_failure_is_told_once_and_ends_it(record):
    store, heard = GatedStore(), Heard(1)
    store.broken = StoreFailed("the disk said no")
    thread = start(store, heard, depth=1)
    thread.submit(0, append(record, 0))
    assert store.entered.wait(60)
    thread.submit(1, append(record, 1))
    blocked = asyncio.create_task(asyncio.to_thread(thread.submit, 2, append(record, 2)))
    done, _ = await asyncio.wait([blocked], timeout=0.05)
    assert not done
    store.gate.set()
    await asyncio.wait_for(heard.done, 60)
    with pytest.raises(StoreFailed, match="earlier commit failed"):
        await blocked
    assert not thread.ready
    with pytest.raises(StoreFailed, match="earlier commit failed") as caught:
        thread.submit(3, append(record, 3))
    assert caught.value.__cause__ is store.broken
    thread.close()
    await asyncio.sleep(0)
    assert heard.errors == [store.broken]
    assert heard.tokens == []


async def test_even_an_error_that_is_no_ordinary_one_reaches_the_loop(record):
    store, heard = GatedStore(), Heard(1)
    store.broken = MemoryError()
    store.gate.set()
    thread = start(store, heard)
    thread.submit(0, append(record, 0))
    await asyncio.wait_for(heard.done, 60)
    assert heard.errors == [store.broken]
    thread.close()


async def test_close_commits_what_waits_and_takes_no_more(record):
    store, heard = GatedStore(), Heard(3)
    thread = start(store, heard)
    for n in range(3):
        thread.submit(n, append(record, n))
    store.gate.set()
    thread.close()
    assert len(store.read("q", 0, 0, 9)) == 3
    with pytest.raises(StoreFailed, match="being closed"):
        thread.submit(3, append(record, 3))
    await asyncio.wait_for(heard.done, 60)
    assert heard.tokens == [0, 1, 2]
    thread.close()


def test_a_loop_that_is_gone_does_not_stop_the_writing(record):
    store = GatedStore()
    loop = asyncio.new_event_loop()
    thread: CommitThread[int] = CommitThread(store, loop, lambda token: None, lambda error: None)
    thread.submit(0, append(record, 0))
    assert store.entered.wait(60)
    thread.submit(1, append(record, 1))
    loop.close()
    store.gate.set()
    thread.close()
    assert len(store.read("q", 0, 0, 9)) == 2
