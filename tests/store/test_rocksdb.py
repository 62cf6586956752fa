"""What is RocksDB's own: when it syncs, what readers see meanwhile, and how trimmed bytes go away.

Covers store/rocksdb/store.py.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.core.records import Batch
from holdfast.exceptions import StoreError, StoreFailed
from holdfast.store import records as layout
from holdfast.store.rocksdb import changes, opening
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.store import RocksDBStore


class Engine:
    """Stands before the real engine: notes what is called, and fails where told."""

    def __init__(self, store: RocksDBStore) -> None:
        self.real = store._db
        self.store = store
        self.calls: list[Any] = []
        self.fail: dict[str, list[BaseException]] = {}
        self.properties: dict[str, int] = {}
        store._db = self

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "property_int_value":
                return self.properties.get(args[0], 0)
            if name in ("write", "flush_wal"):
                seen = [one.message_number for _, one in self.store.read("q", 0, 0, 99)]
                self.calls.append((name, *[arg for arg in args if arg is True], seen))
            if self.fail.get(name):
                raise self.fail[name].pop(0)
            return getattr(self.real, name)(*args, **kwargs)

        return call


@pytest.fixture
def store(tmp_path):
    store = RocksDBStore(tmp_path / "store")
    yield store
    store.close()


def test_a_commit_is_one_write_and_one_sync_and_nobody_sees_it_before(store, record):
    store.commit(Batch(appends=[("q", 0, 0, record(0))]))
    engine = Engine(store)
    store.commit(Batch(appends=[("q", 0, 1, record(1))], trims={("q", 0): 1}))
    assert engine.calls == [("write", [0]), ("flush_wal", True, [0])]
    assert [o for o, _ in store.read("q", 0, 0, 9)] == [1]


@pytest.mark.parametrize("call", ["write", "flush_wal"])
def test_after_a_failed_write_or_sync_nothing_more_is_taken_or_shown(store, record, call):
    store.commit(Batch(appends=[("q", 0, 0, record(0))]))
    engine = Engine(store)
    engine.fail[call] = [Exception("IO error: No space left on device")]
    with pytest.raises(StoreFailed, match="No space left") as caught:
        store.commit(Batch(appends=[("q", 0, 1, record(1))]))
    assert "Free space" in caught.value.remedy
    with pytest.raises(StoreFailed, match="accepts no further batches"):
        store.commit(Batch(appends=[("q", 0, 1, record(1))]))
    assert [o for o, _ in store.read("q", 0, 0, 9)] == [0]


def test_a_commit_that_is_interrupted_ends_the_store_too(store, record):
    engine = Engine(store)
    engine.fail["flush_wal"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    with pytest.raises(StoreFailed):
        store.commit(Batch(appends=[("q", 0, 0, record(1))]))


@pytest.mark.parametrize(
    "behind",
    [{"rocksdb.num-immutable-mem-table": 4}, {"rocksdb.actual-delayed-write-rate": 1}, {"rocksdb.is-write-stopped": 1}],
)
def test_while_the_engine_is_behind_a_commit_waits_before_it_writes(store, record, monkeypatch, behind):
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            engine.properties.clear()

    monkeypatch.setattr(rocksdb.time, "sleep", wait)
    engine = Engine(store)
    engine.properties = dict(behind)
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    assert len(waits) == 3
    assert store.stalls == 1
    assert store.read("q", 0, 0, 9) == [(0, record(1))]


def test_an_engine_that_stays_behind_fails_the_store(store, record, monkeypatch):
    monkeypatch.setattr(rocksdb, "_STALL_SECONDS", -1.0)
    engine = Engine(store)
    engine.properties = {"rocksdb.num-immutable-mem-table": 4}
    with pytest.raises(StoreFailed, match="has not kept up"):
        store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    assert engine.calls == []


def test_an_engine_that_is_behind_for_an_error_is_asked_for_it_at_once(store, record):
    engine = Engine(store)
    engine.properties = {"rocksdb.num-immutable-mem-table": 4, "rocksdb.background-errors": 1}
    engine.fail["write"] = [Exception("IO error: No space left on device")]
    with pytest.raises(StoreFailed, match="No space left"):
        store.commit(Batch(appends=[("q", 0, 0, record(1))]))


def test_writing_faster_than_the_engine_flushes_loses_nothing(tmp_path, record, monkeypatch):
    monkeypatch.setattr(opening, "MEMTABLE_BYTES", 1 << 16)
    store = RocksDBStore(tmp_path / "store")
    for n in range(60):
        store.commit(Batch(appends=[("q", 0, 3 * n + i, record(n, size=20_000)) for i in range(3)]))
    assert [one.message_number for _, one in store.read("q", 0, 0, 999, 1 << 40)] == [n // 3 for n in range(180)]
    store.close()


def test_an_error_while_reading_is_told_as_one_of_ours(store, record):
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    engine = Engine(store)
    engine.fail["items"] = [Exception("Corruption: block checksum mismatch")]
    with pytest.raises(StoreFailed, match="checksum mismatch"):
        store.read("q", 0, 0, 1)


def stored_offsets(store: RocksDBStore, partition: int) -> list[int]:
    prefix = layout.partition_key(layout.RECORD, "q", partition)
    return [layout.last_number(key) for key in store._db.keys(from_key=prefix) if key.startswith(prefix)]


def test_trimmed_bytes_are_deleted_in_bulk_also_those_an_earlier_process_left(tmp_path, record, monkeypatch):
    store = RocksDBStore(tmp_path / "store")
    for partition in (0, 1):
        store.commit(Batch(appends=[("q", partition, n, record(n, size=1000)) for n in range(100)]))
    store.commit(Batch(trims={("q", 0): 90}))
    assert len(stored_offsets(store, 0)) == 100, "nothing is deleted for a few kilobytes"
    store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.load().bounds == {("q", 0): (90, 100), ("q", 1): (0, 100)}
    assert [o for o, _ in store.read("q", 0, 0, 999)] == list(range(90, 100))
    monkeypatch.setattr(changes, "SWEEP_BYTES", 50_000)
    store.commit(Batch(trims={("q", 1): 10}))
    assert stored_offsets(store, 0) == list(range(90, 100))
    assert stored_offsets(store, 1) == list(range(10, 100))
    store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.load().bounds == {("q", 0): (90, 100), ("q", 1): (10, 100)}
    store.close()


def test_what_one_commit_trimmed_a_later_one_deletes(store, record, monkeypatch):
    for partition in (0, 1):
        store.commit(Batch(appends=[("q", partition, n, record(n, size=1000)) for n in range(100)]))
    store.commit(Batch(trims={("q", 0): 90}))
    assert set(store.content.unswept) == {("q", 0)}
    monkeypatch.setattr(changes, "SWEEP_BYTES", 50_000)
    store.commit(Batch(trims={("q", 1): 10}))
    assert stored_offsets(store, 0) == list(range(90, 100))
    assert stored_offsets(store, 1) == list(range(10, 100))
    assert not store.content.unswept


def test_a_partition_that_begins_again_has_nothing_deleted_yet(store, record, monkeypatch):
    monkeypatch.setattr(changes, "SWEEP_BYTES", 0)
    store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(9)], trims={("q", 0): 8}))
    assert stored_offsets(store, 0) == [8]
    store.commit(Batch(deletes=[("q", 0)]))
    store.commit(Batch(appends=[("q", 0, n, record(n)) for n in range(5)]))
    store.commit(Batch(trims={("q", 0): 3}))
    assert stored_offsets(store, 0) == [3, 4]


def test_a_partition_swept_to_its_end_remembers_where_it_was(tmp_path, record, monkeypatch):
    monkeypatch.setattr(changes, "SWEEP_BYTES", 0)
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(appends=[("q", 0, 0, record(0)), *[("q", 1, n, record(n)) for n in range(100)]]))
    store.commit(Batch(trims={("q", 1): 100}))
    assert stored_offsets(store, 1) == []
    store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.load().bounds == {("q", 0): (0, 1), ("q", 1): (100, 100)}
    store.commit(Batch(appends=[("q", 1, 100, record(100))]))
    assert store.read("q", 1, 0, 999) == [(100, record(100))]
    store.close()


def test_many_sequences_and_partitions_come_back_at_opening(tmp_path, record):
    names = [f"urn:uuid:{n:032d}" for n in range(10_000)]
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(sequences={name: {"ranges": [[1, n + 1]]} for n, name in enumerate(names)}))
    store.commit(Batch(appends=[("out", n, 0, record(n)) for n in range(3000)]))
    store.close()
    store = RocksDBStore(tmp_path / "store")
    snapshot = store.load()
    assert snapshot.sequences == {name: {"ranges": [[1, n + 1]]} for n, name in enumerate(names)}
    assert snapshot.bounds == {("out", n): (0, 1) for n in range(3000)}
    store.close()


def test_looking_tries_again_when_a_file_went_away_meanwhile(tmp_path, record, monkeypatch):
    RocksDBStore(tmp_path / "store").close()
    monkeypatch.setattr(rocksdb.time, "sleep", lambda seconds: None)
    opens = []
    really_open = opening.open_engine

    def once_wrong(*args: Any) -> Any:
        opens.append(args)
        if len(opens) == 1:
            raise StoreFailed("IO error: No such file or directory")
        return really_open(*args)

    monkeypatch.setattr(opening, "open_engine", once_wrong)
    RocksDBStore(tmp_path / "store", read_only=True).close()
    assert len(opens) == 2

    def always_wrong(*args: Any) -> Any:
        raise StoreFailed("IO error: No such file or directory")

    monkeypatch.setattr(opening, "open_engine", always_wrong)
    with pytest.raises(StoreError, match="cannot be inspected: IO error"):
        RocksDBStore(tmp_path / "store", read_only=True)


def test_looking_again_and_again_while_it_is_written_shows_whole_batches_only(tmp_path, record, monkeypatch):
    monkeypatch.setattr(opening, "MEMTABLE_BYTES", 1 << 18)
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(sequences={"serial": {"n": 0}}))
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            appends = [("q", 0, 3 * n + i, record(n, size=2000)) for i in range(3)]
            store.commit(Batch(appends=appends, sequences={"serial": {"n": n + 1}}, trims={("q", 0): 3 * n - 300}))
            n += 1

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        seen = [0]
        try:
            for _ in range(10):
                view = RocksDBStore(tmp_path / "store", read_only=True)
                snapshot = view.load()
                serial = snapshot.sequences["serial"]["n"]
                first, end = snapshot.bounds.get(("q", 0), (0, 0))
                assert end == 3 * serial
                numbers = [(offset, one.message_number) for offset, one in view.read("q", 0, 0, end, 1 << 40)]
                assert numbers == [(offset, offset // 3) for offset in range(first, end)]
                seen.append(serial)
                view.close()
        finally:
            stop.set()
        writing.result()
    assert seen == sorted(seen)
    store.close()


def test_blocks_of_a_backlog_are_read_while_others_may_run_and_iterated_then(store, record):
    body = random.Random(1).randbytes(512).hex().encode()
    for start in range(0, 3000, 500):
        batch = Batch()
        for offset in range(start, start + 500):
            one = record(offset)
            one.body = body
            batch.appends.append(("q", 0, offset, one))
        store.commit(batch)
    store._db.flush()
    engine = Engine(store)
    asked: list[list[bytes]] = []
    engine.get = lambda keys: asked.append(keys) or engine.real.get(keys)
    at = calls = 0
    while at < 3000:
        found = store.read("q", 0, at, 3000, 1 << 20)
        assert [offset for offset, _ in found] == list(range(at, at + len(found)))
        at, calls = found[-1][0] + 1, calls + 1
    assert calls == len(asked) == 4, "a mebibyte at a time"
    blocks = 3000 * 1200 // opening.BLOCK_BYTES
    assert blocks <= sum(map(len, asked)) <= 2 * blocks, "each block once, or twice at a seam"
    asked.clear()
    store.read("q", 0, 7, 8)
    assert not asked, "one record needs no help"


def test_what_the_engine_keeps_in_memory_of_a_backlog_is_some_bytes_a_record(store, record):
    chance = random.Random(2)
    for start in range(0, 20_000, 1000):
        batch = Batch()
        for offset in range(start, start + 1000):
            one = record(offset)
            one.body = chance.randbytes(1024)
            batch.appends.append(("q", 0, offset, one))
        store.commit(batch)
    store._db.flush()
    store.read("q", 0, 0, 20_000)
    kept = store._db.property_int_value("rocksdb.estimate-table-readers-mem")
    assert 0 < kept < 4 * 20_000, "an index of small blocks would be three times that"
    assert sum(map(len, (store.content.partitions, store.content.held, store.content.cursors))) == 1
