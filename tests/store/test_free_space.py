"""Free space on a store's disk: the store reports trouble while the engine still has space for its own work.

Covers store/rocksdb/free_space.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.records import Batch, Record
from holdfast.store.rocksdb import free_space, keeper, opening, reserve
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.free_space import FreeSpace, compaction_bytes
from holdfast.store.rocksdb.keeper import Keeper
from holdfast.store.rocksdb.reserve import Reserve
from holdfast.store.rocksdb.store import RocksDBStore

MB = 1 << 20
PLENTY = 1 << 50


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's sizes divided by four, and the looks more frequent."""
    monkeypatch.setattr(opening, "MEMTABLE_BYTES", 8 * MB)
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 16 * MB)
    monkeypatch.setattr(free_space, "SHORT_BYTES", 8 * MB)
    monkeypatch.setattr(rocksdb, "KEEP_BYTES", 1 * MB)
    monkeypatch.setattr(keeper, "LOOK_AGAIN_SECONDS", 0.05)


def append(store: RocksDBStore, where: tuple[str, int], offset: int, size: int = 100_000) -> None:
    record = Record("urn:s", offset, "urn:a", os.urandom(size), 0.0)
    store.commit(Batch(appends=[(*where, offset, record)]))


def tables(**levels: list[int]) -> list[free_space.Table]:
    return [
        {"name": f"/{level}{size}.sst", "level": int(level[1:]), "size": size * MB}
        for level, sizes in levels.items()
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("found", "base", "most"),
    [
        (tables(), 6, 0),
        (tables(L0=[30] * 5, L6=[64, 64, 64, 50]), 6, 392),  # as it was found on a disk of 700 MB
        (tables(L0=[30] * 4, L6=[64] * 5), 5, 320),  # level 5 is the base, and empty
        (tables(L0=[30] * 4, L5=[64, 64], L6=[64]), 5, 248),
        (tables(L5=[64] * 4, L6=[64] * 1000), 5, 512),  # bounded by the option
        (tables(L0=[30] * 40, L5=[64] * 4, L6=[64] * 1000), 5, 1456),  # level 0 is not bounded by any
    ],
)
def test_a_compaction_may_write_all_of_level_0_and_the_base_level(found, base, most):
    assert compaction_bytes(found, base) == most * MB


@pytest.mark.parametrize(
    ("run", "partitions"),
    [
        pytest.param(1, 1, marks=pytest.mark.nightly),
        pytest.param(2, 1, marks=pytest.mark.nightly),
        (3, 4),
        pytest.param(4, 4, marks=pytest.mark.nightly),
    ],
)
def test_trouble_comes_before_compactions_fill_the_disk(small, mount_disk, run, partitions):
    disk = mount_disk(240)
    store = RocksDBStore(disk / "store")
    ends = [0] * partitions
    while not store.trouble:
        partition = sum(ends) % partitions
        append(store, ("q", partition), ends[partition])
        ends[partition] += 1
    assert sum(ends) > 400, "trouble comes when there is little space, not at once"
    append(store, ("late", 0), 0)
    is_running = ("rocksdb.num-running-compactions", "rocksdb.num-running-flushes")
    wait_for(lambda: not any(store._db.property_int_value(name) for name in is_running))
    for number in range(50):
        store.commit(Batch(cursors={("q", 0, "reader"): {"offset": number}}))
    for partition, end in enumerate(ends):
        for offset in range(20, end + 20, 20):
            store.commit(Batch(trims={("q", partition): min(offset, end)}))
    for number in range(100):
        wait_for(lambda: not store.trouble)  # compactions of what was trimmed go on: it may come and go
        append(store, ("new", 0), number)
    wait_for(lambda: not store.trouble)
    store.close()
    assert "No space left" not in (disk / "store" / "db" / "LOG").read_text(encoding="utf-8", errors="replace")


def test_trouble_is_told_with_the_space_that_is_needed_and_ends_with_it(small, tmp_path, monkeypatch):
    free = PLENTY
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store = RocksDBStore(tmp_path / "store")
    append(store, ("q", 0), 0, 2 * MB)
    assert not store.trouble
    free = store._space.needed
    append(store, ("q", 0), 1, 2 * MB)
    assert "nearly full" in str(store.trouble)
    store.commit(Batch(trims={("q", 0): 1}))
    free += free_space.SHORT_BYTES + 8 * MB
    wait_for(lambda: not store.trouble)
    store.close()


def test_a_content_without_room_is_trouble_without_any_commit(small, tmp_path, monkeypatch):
    """Another program has filled the disk: a server must not call itself ready while it refuses attachments."""
    free = PLENTY
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store = RocksDBStore(tmp_path / "store")
    store.create_content().write(b"x")
    assert not store.trouble
    free = 0
    store.create_content().write(b"x")
    assert "nearly full" in str(store.trouble)
    free = PLENTY
    wait_for(lambda: not store.trouble)
    store.close()


def test_an_idle_store_that_is_asked_notices_that_the_disk_was_filled(small, tmp_path, monkeypatch):
    free = PLENTY
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store = RocksDBStore(tmp_path / "store")
    store.look()
    assert store._keeper._thread is None, "it needs no thread"
    free = 0
    store.look()
    wait_for(lambda: "nearly full" in str(store.trouble))
    free = PLENTY
    wait_for(lambda: not store.trouble)
    store.close()
    free = 0
    store.look()
    assert not store.trouble


def test_commits_see_that_space_is_short_while_the_keeper_is_busy(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Keeper, "wake", lambda self: None)
    free = PLENTY
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store = RocksDBStore(tmp_path / "store")
    free = store._space.needed
    for number in range(20):
        append(store, ("q", 0), number)
    assert "nearly full" in str(store.trouble)
    store.close()


def test_commits_with_plenty_of_space_ask_the_engine_for_no_tables(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Keeper, "wake", lambda self: None)
    monkeypatch.setattr(Reserve, "free", lambda self: PLENTY)
    looks = []
    look = FreeSpace.look
    monkeypatch.setattr(FreeSpace, "look", lambda self: (looks.append(1), look(self))[1])
    store = RocksDBStore(tmp_path / "store")
    for number in range(40):
        append(store, ("q", 0), number)
    assert len(looks) == 1, "one when it is opened"
    store.close()


def options_of(store: Path) -> str:
    return max((store / "db").glob("OPTIONS-*")).read_text(encoding="utf-8")


def test_a_store_opened_with_little_space_compacts_nothing_until_there_is_more(small, tmp_path, monkeypatch):
    place = tmp_path / "store"
    store = RocksDBStore(place)
    for number in range(100):
        append(store, ("q", 0), number)
    store.close()
    assert "disable_auto_compactions=false" in options_of(place)
    free = 20 * MB
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store = RocksDBStore(place)
    assert "nearly full" in str(store.trouble)
    assert "disable_auto_compactions=true" in options_of(place)
    append(store, ("q", 0), 100)
    free = PLENTY
    wait_for(lambda: not store.trouble)
    assert "disable_auto_compactions=false" in options_of(place)
    store.close()


def test_what_a_running_compaction_has_written_counts_as_free(small, tmp_path, monkeypatch):
    store = RocksDBStore(tmp_path / "store")
    append(store, ("q", 0), 0)
    free = store._space.needed - 3 * MB
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    store._space.look()
    assert store._space.is_short
    (tmp_path / "store" / "db" / "999999.sst").write_bytes(b"x" * 16 * MB)
    store._space.look()
    assert not store._space.is_short
    (tmp_path / "store" / "db" / "999999.sst").unlink()
    store.close()
