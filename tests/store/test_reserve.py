"""Space in reserve: after the disk was full a store can be started and drained, and nothing new eats the reserve up.

Covers store/rocksdb/reserve.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreFailed
from holdfast.store import directory
from holdfast.store.rocksdb import free_space, keeper, opening, reserve
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.reserve import Reserve
from holdfast.store.rocksdb.store import RocksDBStore

ENV = {**os.environ, "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 20)
    monkeypatch.setattr(rocksdb, "KEEP_BYTES", 1 << 16)
    monkeypatch.setattr(keeper, "LOOK_AGAIN_SECONDS", 0.05)


def fill(store: RocksDBStore) -> None:
    store.commit(Batch(appends=[("q", 0, n, Record("urn:s", n, "a", b"x" * 20_000, 0.0)) for n in range(10)]))


def test_a_store_that_has_grown_keeps_a_reserve_and_a_small_one_none(small, tmp_path):
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    ballast = tmp_path / "store" / directory.BALLAST
    assert not ballast.exists()
    fill(store)
    wait_for(ballast.exists)
    assert ballast.stat().st_size == 1 << 20
    assert ballast.stat().st_blocks * 512 >= 1 << 20, "it takes the space that it promises"
    store.close()
    assert ballast.exists()


def test_a_start_without_space_gives_the_reserve_up_and_fills_it_later(small, tmp_path, monkeypatch):
    store = RocksDBStore(tmp_path / "store")
    fill(store)
    ballast = tmp_path / "store" / directory.BALLAST
    wait_for(ballast.exists)
    store.close()
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 60)
    store = RocksDBStore(tmp_path / "store")
    assert not ballast.exists()
    assert "accepts new messages again when" in str(store.trouble)
    assert len(store.read("q", 0, 0, 10, 1 << 40)) == 10
    store.commit(Batch(trims={("q", 0): 10}))
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 20)
    wait_for(lambda: not store.trouble)
    assert ballast.exists()
    store.close()


def test_a_store_without_a_reserve_is_opened_however_little_space_there_is(small, tmp_path, monkeypatch):
    RocksDBStore(tmp_path / "store").close()
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 60)
    store = RocksDBStore(tmp_path / "store")
    assert store.trouble is None
    store.close()


def test_a_reserve_for_which_there_is_no_space_is_left_out_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 60)
    one = Reserve(tmp_path)
    one.fill(0)
    assert not one.is_there
    monkeypatch.setattr(Reserve, "free", lambda self: 1 << 62)
    one.fill(0)
    assert not one.is_there
    assert list(tmp_path.iterdir()) == []


def test_a_reserve_leaves_what_the_engine_may_need(tmp_path, monkeypatch):
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 20)
    one = Reserve(tmp_path)
    for needed, least in ((0, 2 << 20), (5 << 20, 6 << 20)):
        monkeypatch.setattr(Reserve, "free", lambda self, least=least: least - 1)
        one.fill(needed)
        assert not one.is_there
        monkeypatch.setattr(Reserve, "free", lambda self, least=least: least)
        one.fill(needed)
        assert one.is_there
        (tmp_path / directory.BALLAST).unlink()


def test_a_cache_keeps_no_reserve_and_deletes_that_of_an_earlier_version(tmp_path, monkeypatch):
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 1 << 20)
    Reserve(tmp_path).fill(0)
    one = Reserve(tmp_path)
    assert one.is_there
    one.keep_none()
    one.fill(0)
    assert (one.is_there, one.is_in_use) == (False, False)


@pytest.fixture
def tiny_disk(mount_disk: Callable[[int], Path]) -> Path:
    return mount_disk(64)


def eat_up(disk: Path) -> None:
    """Let somebody else take all the space that is left."""
    with contextlib.suppress(OSError), (disk / "other").open("wb", buffering=0) as other:
        while other.write(bytes(4096)):
            pass


FILL = """
import os, sys
from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreFailed
from holdfast.store.rocksdb import opening
from holdfast.store.rocksdb import reserve
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.store import RocksDBStore
opening.MEMTABLE_BYTES = 4 << 20
opening.MEMTABLES = 3  # so that the logs hold less than the reserve, however slow the disk is
reserve.RESERVE_BYTES = 16 << 20
rocksdb.KEEP_BYTES = 1 << 20
store = RocksDBStore(sys.argv[1])
n = 0
try:
    while True:
        store.commit(Batch(appends=[("q", 0, n, Record("urn:s", n, "a", os.urandom(100_000), 0.0))]))
        n += 1
except StoreFailed as error:
    print(n, flush=True)
    os._exit(1)
"""


def test_after_a_disk_was_really_full_the_store_opens_and_is_drained(tiny_disk, monkeypatch):
    place = tiny_disk / "store"
    monkeypatch.setattr(reserve, "RESERVE_BYTES", 16 << 20)
    monkeypatch.setattr(free_space, "SHORT_BYTES", 8 << 20)
    monkeypatch.setattr(opening, "MEMTABLE_BYTES", 4 << 20)
    monkeypatch.setattr(keeper, "LOOK_AGAIN_SECONDS", 0.05)
    said = subprocess.run([sys.executable, "-c", FILL, place], env=ENV, capture_output=True, text=True, check=False)
    committed = int(said.stdout)
    assert committed > 200, said.stderr
    assert (place / directory.BALLAST).exists()
    eat_up(tiny_disk)
    store = RocksDBStore(place)
    assert store.trouble
    _, end = store.load().bounds["q", 0]
    assert end in (committed, committed + 1)
    assert len(store.read("q", 0, 0, end, 1 << 40)) == end
    for offset in range(0, end, 10):
        store.commit(Batch(trims={("q", 0): min(offset + 10, end)}, cursors={("q", 0, "r"): {"offset": offset}}))
    store.commit(Batch(trims={("q", 0): end}))
    wait_for(lambda: not store.trouble)
    assert (place / directory.BALLAST).exists()
    store.commit(Batch(appends=[("q", 0, end, Record("urn:s", 1, "a", b"new", 0.0))]))
    store.close()


def test_without_a_reserve_the_error_names_the_amount_that_a_start_needs(tiny_disk):
    place = tiny_disk / "store"
    subprocess.run([sys.executable, "-c", FILL, place], env=ENV, capture_output=True, text=True, check=False)
    (place / directory.BALLAST).unlink()
    eat_up(tiny_disk)
    with pytest.raises(StoreFailed, match=r"[Nn]o space") as caught:
        RocksDBStore(place)
    assert "MB" in caught.value.remedy
    (tiny_disk / "other").unlink()
    RocksDBStore(place).close()
