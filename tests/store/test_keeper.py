"""What a store does beside its commits: what was consumed leaves the disk, also after a restart, and nothing else.

Covers store/rocksdb/keeper.py.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.core.records import Batch, Record
from holdfast.store.content import Partition
from holdfast.store.records import PREFIX_END, RECORD, number, partition_key
from holdfast.store.rocksdb import changes, evidence, keeper, opening
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.keeper import gaps_between
from holdfast.store.rocksdb.store import RocksDBStore

SIZE = 10_000
PATIENCE = 240.0


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


def record(n: int) -> Record:
    return Record("urn:s", n, "urn:a", random.Random(n).randbytes(SIZE), 0.0)


def tables(path: Path) -> int:
    """Bytes of all tables."""
    size = 0
    for file in (path / "db").glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):  # it may be deleted while we look
            size += file.stat().st_size
    return size


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything a hundred times smaller."""
    monkeypatch.setattr(opening, "MEMTABLE_BYTES", 1 << 18)
    monkeypatch.setattr(changes, "SWEEP_BYTES", 1 << 17)
    monkeypatch.setattr(rocksdb, "SWEEP_BYTES", 1 << 17)
    for room in (keeper, rocksdb):
        monkeypatch.setattr(room, "COMPACT_BYTES", 1 << 19)
        monkeypatch.setattr(room, "KEEP_BYTES", 1 << 18)
    monkeypatch.setattr("holdfast.store.rocksdb.reserve.RESERVE_BYTES", 1 << 16)


def fill(store: RocksDBStore, count: int) -> None:
    for n in range(0, count, 20):
        for partition in (0, 1):
            store.commit(Batch(appends=[("q", partition, n + i, record(n + i)) for i in range(20)]))


def test_consumed_records_leave_the_disk_while_the_store_is_open(small, tmp_path):
    store = RocksDBStore(tmp_path / "store")
    fill(store, 300)
    store.commit(Batch(trims={("q", 0): 300, ("q", 1): 200}))
    wait_for(lambda: tables(tmp_path / "store") < 120 * SIZE and store.trimmed_bytes < 1 << 19)
    assert store.read("q", 0, 0, 300) == []
    assert store.read("q", 1, 0, 300, 1 << 40) == [(n, record(n)) for n in range(200, 300)]
    store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.load().bounds == {("q", 0): (300, 300), ("q", 1): (200, 300)}
    assert store.read("q", 1, 0, 300, 1 << 40) == [(n, record(n)) for n in range(200, 300)]
    store.close()


def test_what_an_earlier_process_consumed_leaves_the_disk_after_a_start(small, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(keeper, "COMPACT_BYTES", 1 << 40)
        before.setattr(opening, "MEMTABLE_BYTES", 4 << 20)  # so few tables that the engine sees nothing to do
        store = RocksDBStore(tmp_path / "store")
        fill(store, 300)
        store.commit(Batch(trims={("q", 0): 300}, deletes=[("q", 1)]))
        store._db.flush()
        store.close()
    assert tables(tmp_path / "store") > 300 * SIZE, "the test shows nothing if it is gone already"
    store = RocksDBStore(tmp_path / "store")
    wait_for(lambda: tables(tmp_path / "store") < 20 * SIZE)
    assert store.load().bounds == {("q", 0): (300, 300)}
    store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.trimmed_bytes == 0, "and is not looked for again"
    store.close()


def test_records_can_be_read_and_committed_while_space_is_given_back(small, tmp_path):
    store = RocksDBStore(tmp_path / "store")
    end = 0
    for n in range(0, 1500, 10):
        trims = {("q", 0): n - 20} if n > 20 else {}
        store.commit(Batch(appends=[("q", 0, n + i, record(n + i)) for i in range(10)], trims=trims))
        end = n + 10
        found = store.read("q", 0, 0, end, 1 << 40)
        assert [offset for offset, _ in found] == list(range(max(n - 20, 0), end))
    wait_for(lambda: tables(tmp_path / "store") < 300 * SIZE)
    store.close()


def test_what_is_trimmed_during_a_compaction_leaves_the_disk_too(small, tmp_path, monkeypatch):
    store = RocksDBStore(tmp_path / "store")
    fill(store, 300)
    compact, rest = keeper._compact, [Batch(trims={("q", 0): 300})]

    def compact_and_trim_the_rest(*arguments) -> None:
        compact(*arguments)
        if rest:
            store.commit(rest.pop())

    monkeypatch.setattr(keeper, "_compact", compact_and_trim_the_rest)
    monkeypatch.setattr(keeper, "_pieces", lambda tables, begin, end: [(begin, end)])
    store.commit(Batch(trims={("q", 0): 150}))
    wait_for(lambda: not rest and tables(tmp_path / "store") < 350 * SIZE)
    store.close()


def test_a_store_that_is_closed_while_space_is_given_back_ends_and_goes_on_later(small, tmp_path):
    for _ in range(3):
        store = RocksDBStore(tmp_path / "store")
        _, end = store.load().bounds.get(("q", 0), (0, 0))
        for n in range(end, end + 200, 20):
            store.commit(Batch(appends=[("q", 0, n + i, record(n + i)) for i in range(20)]))
        store.commit(Batch(trims={("q", 0): end + 190}))
        store.close()
    store = RocksDBStore(tmp_path / "store")
    assert store.read("q", 0, 0, 600, 1 << 40) == [(n, record(n)) for n in range(590, 600)]
    wait_for(lambda: tables(tmp_path / "store") < 150 * SIZE)
    store.close()


def test_a_note_of_what_is_durable_is_left_while_the_store_is_open(small, tmp_path):
    store = RocksDBStore(tmp_path / "store")
    fill(store, 100)
    wait_for(lambda: evidence.noted_serial(tmp_path / "store") > 0)
    assert evidence.noted_serial(tmp_path / "store") <= store.serial
    store.close()
    assert evidence.noted_serial(tmp_path / "store") == store.serial


def test_no_note_is_left_in_a_directory_that_has_taken_the_place_of_its_own(tmp_path):
    other = tmp_path / "other"
    RocksDBStore(other).close()
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    (tmp_path / "store").rename(tmp_path / "moved")
    other.rename(tmp_path / "store")
    store.close()
    RocksDBStore(tmp_path / "store").close()


def test_the_gaps_between_partitions_are_all_that_holds_no_record():
    def partition(name: str, first: int, end: int) -> Partition:
        return Partition(partition_key(RECORD, name, 0), first, end)

    a, b = partition("a", 5, 9), partition("b", 0, 2)
    assert gaps_between([]) == [(RECORD, RECORD + PREFIX_END)]
    assert gaps_between([b, a]) == [
        (RECORD, a.records + number(5)),
        (a.records + number(9), b.records + number(0)),
        (b.records + number(2), RECORD + PREFIX_END),
    ]
    many = gaps_between(partition(f"{n:04d}", 0, 1) for n in range(1000))
    assert len(many) <= keeper.MOST_RANGES + 1
    assert all(begin < end for begin, end in many)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(many))


def test_large_records_of_one_partition_count_as_what_they_are_among_many_small_ones(tmp_path):
    store = RocksDBStore(tmp_path / "store")
    small = Record("urn:s", 1, "urn:a", b"x" * 100, 0.0)
    store.commit(Batch(appends=[("small", 0, n, small) for n in range(2000)]))
    store.commit(Batch(appends=[("large", 0, n, replace(small, body=b"x" * 200_000)) for n in range(5)]))
    store.commit(Batch(trims={("large", 0): 2}))
    assert 400_000 < store.content.garbage < 500_000
    store.commit(Batch(deletes=[("large", 0)]))
    assert 1_000_000 < store.trimmed_bytes < 1_100_000
    store.close()
