"""Reading for the core: off the loop unless the store never waits, in order, dropped when the endpoint is closed."""

from __future__ import annotations

import asyncio
import gc
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

from holdfast import Destination, Message, RetentionPolicy, Source
from holdfast.core.events import Effect, ReadWanted
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Record
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.engine.store_reads import MOST_AT_A_TIME, StoreReads
from holdfast.endpoint.source.replies import Replies
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore, open_store
from holdfast.store.rocksdb.store import RocksDBStore

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
        self.reading = StoreReads(store, asyncio.get_running_loop(), self._answer, self.failures.append)

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


async def test_reads_that_fail_at_once_are_told_once_and_leave_the_loop_no_error() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    store = SlowStore()
    store.fails = True
    one = Asker(filled(store))
    for queue in range(3):
        one.ask(f"q{queue}", 0, 1)
    store.may_go.set()
    async with asyncio.timeout(60):
        await one.reading.caught_up()
    await one.reading.close()
    gc.collect()
    assert len(one.failures) == 1 and unheard == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_check_of_the_store_waits_for_the_reads_under_way(fails: bool) -> None:
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


async def test_catching_up_waits_for_reads_that_wait_behind_others_of_their_partition() -> None:
    store = SlowStore()
    one = Asker(filled(store))
    for start in range(3):
        one.ask("q0", start, start + 1)
    waiting = asyncio.ensure_future(one.reading.caught_up())
    store.may_go.set()
    async with asyncio.timeout(60):
        await waiting
    assert one.answers == [("q0", [0]), ("q0", [1]), ("q0", [2])]
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


@pytest.mark.parametrize("how", ["answered", "failing", "closed"])
async def test_a_shell_that_reads_for_itself_waits_and_nobody_else(how: str) -> None:
    store = SlowStore()
    store.fails = how == "failing"
    one = Asker(filled(store))
    asked = [asyncio.ensure_future(one.reading.records("q0", 0, 1, 3)) for _ in range(MOST_AT_A_TIME + 1)]
    for _ in range(MOST_AT_A_TIME):
        assert await asyncio.to_thread(store.entered.acquire, timeout=60)
    assert not any(reading.done() for reading in asked)  # and yet we are here
    closing = asyncio.ensure_future(one.reading.close() if how == "closed" else asyncio.sleep(0))
    async with asyncio.timeout(60):
        if how == "closed":
            with pytest.raises(StoreFailed, match="closed"):
                await asked[-1]  # it had not begun
        store.may_go.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await closing
    if how == "failing":
        assert {str(answer) for answer in answers} == {"the disk is gone"}
        assert {str(error) for error in one.failures} == {"the disk is gone"}
    else:
        read = [[offset for offset, _ in answer] for answer in answers if not isinstance(answer, BaseException)]
        assert read == [[1, 2]] * (MOST_AT_A_TIME + (how == "answered"))
        assert one.failures == []
    await one.reading.close()
    with pytest.raises(StoreFailed, match="closed"):
        await one.reading.records("q0", 0, 1, 3)


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


class Watched(RocksDBStore):
    """Knows what is read of it, and what of that in the event loop."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.loop_thread = 0
        self.reads = 0
        self.in_the_loop: list[str] = []

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        self.reads += 1
        if threading.get_ident() == self.loop_thread:
            self.in_the_loop.append("".join(traceback.format_stack(limit=8)))
        return super().read_encoded(queue, partition, start, end, max_bytes)

    def watch(self) -> None:
        """From now on its caller's thread may not read."""
        self.loop_thread, self.reads = threading.get_ident(), 0

    def was_read_beside_the_loop(self) -> bool:
        assert self.in_the_loop == [], self.in_the_loop[0]
        reads, self.reads = self.reads, 0
        return reads > 0


async def test_neither_readers_nor_metrics_nor_the_retention_have_the_loop_read_the_store(
    serve: Any, tmp_path: Path
) -> None:
    store = Watched(tmp_path / "inbox")
    app = Destination(store, partitions=1, queues={"inbox": "7d 1GB"})
    service = await serve(app)
    store.watch()
    async with Source(service.url, ":memory:") as source:
        for number in range(50):
            await source.send(f"<n>{number}</n>", action="urn:test:submit")
        await source.flush(60)
    sizes = app.running.queue.partitions[0].sizes
    assert sizes is not None
    await until(lambda: sizes.measured == 50)
    assert store.was_read_beside_the_loop(), "counting bytes"
    async with httpx.AsyncClient(base_url=service.admin_url) as client:
        queue = f"/queues/{app.running.queue.name}"
        asked = {"epoch": app.running.queue.description.epoch, "at": "0:20"}
        known = (await client.get(f"{queue}/fingerprints", params=asked)).json()["fingerprints"]["0"]
        assert len(known) == 16 and store.was_read_beside_the_loop(), "a fingerprint that is asked for"
        answer = await client.get(
            f"{queue}/ends", params={"epoch": app.running.queue.description.epoch, "known": f"0:20:{known}"}
        )
        assert answer.status_code == 200 and store.was_read_beside_the_loop(), "one that is brought along"
        moved = {"epoch": app.running.queue.description.epoch, "offsets": {"0": 20}, "fingerprints": {"0": known}}
        answer = await client.put(f"{queue}/cursors/spark", json=moved)
        assert answer.status_code == 200 and store.was_read_beside_the_loop(), "one that a cursor is moved with"
        moved["fingerprints"] = {"0": "0" * 16}
        assert (await client.put(f"{queue}/cursors/spark", json=moved)).status_code == 409
        assert store.was_read_beside_the_loop(), "one that is another store's"
        (shown,) = [
            cursor
            for one in (await client.get(f"{queue}/cursors")).json()["queues"]
            for cursor in one["cursors"]
            if cursor["name"] == "spark"
        ]
        assert shown["lag"] == 30 and shown["age"] > 0 and store.was_read_beside_the_loop(), "ages, listed"
        metrics = (await client.get("/metrics")).text
        (age,) = [line for line in metrics.splitlines() if line.startswith("holdfast_cursor_age_seconds{")]
        assert float(age.split()[-1]) > 0 and store.was_read_beside_the_loop(), "ages, as metrics"
    await service.close()

    store = Watched(tmp_path / "inbox")
    app = Destination(store, partitions=1, queues={"inbox": RetentionPolicy(0.2, None, 0.4)})
    await serve(app)
    store.watch()
    await until(lambda: app.running.queue.records.firsts == [50])
    assert store.was_read_beside_the_loop(), "what is too old"


async def test_no_reply_that_is_kept_has_the_loop_read_the_store(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:")

    @app.on("urn:test:ask")
    async def answer(message: Message) -> bytes:
        return message.body_bytes

    url = (await serve(app)).url
    source = Source(url, tmp_path / "outbox")
    await source.open()
    await source.request("<n/>", action="urn:test:ask", message_id="urn:one", timeout=60)
    await source.close()  # the program died with it, as far as anybody knows
    store = Watched(tmp_path / "outbox")
    store.watch()
    async with Source(url, store) as source:
        assert store.was_read_beside_the_loop(), "whose replies there are"
        assert (await source.reply("urn:one", timeout=60)).body_bytes == b"<n/>"
        assert store.was_read_beside_the_loop(), "the reply"


async def test_replies_are_told_in_the_order_of_their_offsets_though_one_must_be_read() -> None:
    store = SlowStore()
    records = [Record("s", n + 1, "urn:a", b"<a/>", 0.0, relates_to=f"urn:{n}") for n in range(3)]
    store.commit(Batch(appends=[("inbox", 0, n, record) for n, record in enumerate(records)]))
    queue, failures, came = Queue("inbox"), [], []  # type: ignore[var-annotated]
    engine = Engine(store, lambda effect: None, failures.append)
    engine.start(queue)
    replies = Replies(10, queue, engine, lambda call: call(), lambda offset, record: came.append((offset, record)))
    replies.put("urn:0", 0)
    replies.delivered(1, None)
    replies.delivered(2, records[2])
    engine.touch()
    assert await asyncio.to_thread(store.entered.acquire, timeout=60)
    replies.give("urn:0", records[0]).done()
    assert came == [] and queue.records.firsts == [1], "what is not known yet is not deleted"
    store.may_go.set()
    await until(lambda: len(came) == 2)
    assert came == [(1, records[1]), (2, records[2])] and failures == []
    await engine.stop()
