"""A disk that lies: a store whose files are not as they were written says so, or gives all that was acknowledged.

Never less in silence, whichever file it is and wherever in it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreDamaged, StoreError
from holdfast.store import Store, directory
from holdfast.store import records as layout
from holdfast.store.rocksdb import evidence
from holdfast.store.rocksdb.store import RocksDBStore

TABLES = 3
PLACES = int(os.environ.get("HOLDFAST_DAMAGED_PLACES", "8"))
"""Of each file that are spoilt, besides its ends; set it higher for a search."""

Content = dict[str, Any]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, record: Callable[..., Record]) -> dict[str, Path]:
    """One store with tables and a log, as a closed process leaves it and as a killed one does."""
    draw = random.Random(20261122)
    path = tmp_path_factory.mktemp("damage") / "closed"
    store = RocksDBStore(path)
    for n in range(60 * (TABLES + 1)):
        body = draw.randbytes(150).hex()
        one = record(n)
        one.body = f"<x>{body}</x>".encode()
        store.commit(
            Batch(
                queues={"q": {"epoch": "e", "partitions": 4}} if not n else {},
                appends=[("q", n % 4, n // 4, one)],
                holds=[(f"urn:s{n % 97}", n, one)] if not n % 5 else [],
                sequences={f"urn:s{n % 97}": {"n": n, "raw": draw.randbytes(40)}},
                cursors={("q", n % 4, "handler"): {"o": n}},
                trims={("q", 1): n // 16} if n % 4 == 1 else {},
            )
        )
        if n % 60 == 59 and n // 60 < TABLES:
            store._db.flush()
    killed = path.with_name("killed")
    shutil.copytree(path, killed)
    store.close()
    return {"closed": path, "killed": killed}


@pytest.fixture(scope="module")
def whole(
    stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, content: Callable[[Store], Content]
) -> tuple[Content, Content]:
    """What is in the store, and what would be without its last batch."""
    found = []
    for spoil in (lambda data: data, lambda data: data[:-1]):
        copy = tmp_path_factory.mktemp("whole") / "store"
        shutil.copytree(stores["killed"], copy)
        log = evidence.logs(copy / directory.ENGINE)[-1]
        log.write_bytes(spoil(log.read_bytes()))
        store = RocksDBStore(copy)
        found.append(content(store))
        store.close()
    assert found[0] != found[1]
    return found[0], found[1]


Spoil = Callable[[bytes], bytes | None]
"""What becomes of a file's bytes; None: it is deleted."""


@pytest.fixture
def spoil_and_open(
    stores: dict[str, Path], tmp_path: Path, content: Callable[[Store], Content]
) -> Callable[[str, str, Spoil], Content | StoreError]:
    """What a store gives of which one file is spoilt, or what it says; anything else is raised."""
    return lambda state, name, spoil: _spoil_and_open(stores[state], tmp_path / "store", name, spoil, content)


def _spoil_and_open(
    template: Path, copy: Path, name: str, spoil: Spoil, content: Callable[[Store], Content]
) -> Content | StoreError:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(template, copy)
    file = copy / name
    data = spoil(file.read_bytes())
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    try:
        with contextlib.closing(RocksDBStore(copy)) as store:
            return content(store)
    except StoreError as error:
        return error


def kind_of(name: str) -> str:
    name = name.rpartition("/")[2]
    return "MANIFEST" if name.startswith("MANIFEST") else "OPTIONS" if name.startswith("OPTIONS") else name


def files_of(path: Path) -> list[str]:
    """One file of each kind, and every table and log; not RocksDB's diary, and not the locks, which hold nothing."""
    found = [str(file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
    return [name for name in found if kind_of(name) not in ("LOG", "LOCK", "lock")]


def places(size: int, count: int = PLACES) -> list[int]:
    """Byte offsets in a file of ``size``, its ends among them."""
    inside = range(0, size, max(size // count, 1))
    return sorted({*inside, *range(max(size - 60, 0), size, max(120 // count, 1)), size - 1} & set(range(size)))


def require_all_or_an_error(
    found: Content | StoreError, whole: tuple[Content, Content], state: str, name: str, what: str
) -> bool:
    """Whether it was refused."""
    if isinstance(found, StoreError):
        assert found.remedy, what
        return True
    # A batch at the very end that only a killed process was told of cannot be told from one that was never through.
    allowed = [whole[0]] if state == "closed" or not name.endswith(".log") else list(whole)
    assert found in allowed, f"{what}: it opened with less than was acknowledged"
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_one_flipped_bit_anywhere_is_told_or_does_no_harm(stores, whole, spoil_and_open, state):
    refused: dict[str, int] = {}
    for name in files_of(stores[state]):
        size = (stores[state] / name).stat().st_size
        for place in places(size):

            def flip(data: bytes, place: int = place) -> bytes:
                spoilt = bytearray(data)
                spoilt[place] ^= 1 << (place % 8)
                return bytes(spoilt)

            found = spoil_and_open(state, name, flip)
            was_refused = require_all_or_an_error(found, whole, state, name, f"bit {place % 8} of {name}[{place}]")
            refused[kind_of(name)] = refused.get(kind_of(name), 0) + was_refused
    assert all(count > PLACES // 2 for name, count in refused.items() if name.endswith(".sst") or name == "MANIFEST")


@pytest.mark.parametrize("state", ["closed", pytest.param("killed", marks=pytest.mark.nightly)])
def test_a_file_cut_short_or_gone_is_told_or_does_no_harm(stores, whole, spoil_and_open, state):
    for name in files_of(stores[state]):
        size = (stores[state] / name).stat().st_size
        # The tail of a log that was cut off cleanly before any note of it leaves nothing to tell it by.
        is_only_evidence = state == "killed" and name.endswith(".log")
        step = max(size // (PLACES * 3 if kind_of(name) == "MANIFEST" else PLACES), 1)
        for left in [*range(0, 0 if is_only_evidence else size, step), max(size - 1, 0)]:
            found = spoil_and_open(state, name, lambda data, left=left: data[:left])
            require_all_or_an_error(found, whole, state, name, f"{name} cut to {left} of {size} bytes")
        if not is_only_evidence and kind_of(name) not in (directory.NOTE, directory.MARKER):
            found = spoil_and_open(state, name, lambda data: None)
            require_all_or_an_error(found, whole, state, name, f"{name} deleted")


def cut_manifest(path: Path) -> None:
    """Make the MANIFEST end before the last table it names."""
    (manifest,) = (path / directory.ENGINE).glob("MANIFEST-*")
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) - 60])


def test_a_manifest_cut_short_is_refused_before_any_unnamed_file_is_deleted(stores, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(stores["killed"], copy)
    cut_manifest(copy)
    before = sorted(file.name for file in (copy / directory.ENGINE).iterdir())
    for _ in range(2):
        with pytest.raises(
            StoreDamaged, match="its tables end at batch 120, but its next log begins at batch 181"
        ) as told:
            RocksDBStore(copy)
        assert "holdfast store check" in told.value.remedy
    assert sorted(file.name for file in (copy / directory.ENGINE).iterdir()) == before


def test_a_manifest_cut_short_is_refused_for_an_unnamed_table_and_an_empty_log(stores, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(stores["killed"], copy)
    cut_manifest(copy)
    for log in evidence.logs(copy / directory.ENGINE):
        log.write_bytes(b"")
    with pytest.raises(StoreDamaged, match=r"sst contains batches up to 180, but no list names it"):
        RocksDBStore(copy)


def test_tables_of_a_flush_that_was_killed_are_no_damage(stores, whole, tmp_path, content):
    copy = tmp_path / "store"
    shutil.copytree(stores["killed"], copy)
    engine = copy / directory.ENGINE
    table = sorted(engine.glob("*.sst"))[0].read_bytes()
    (engine / "000101.sst").write_bytes(table)  # whole, of a compaction that was not through
    (engine / "000102.sst").write_bytes(table[:9000])
    (engine / "000103.sst").write_bytes(b"")
    with contextlib.closing(RocksDBStore(copy)) as store:
        assert content(store) == whole[0]


def test_a_cleanly_truncated_log_is_detected_by_the_note_of_durable_batches(stores, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(stores["killed"], copy)
    (log,) = evidence.logs(copy / directory.ENGINE)
    evidence.note(copy, 240)
    RocksDBStore(copy).close()
    shutil.rmtree(copy)
    shutil.copytree(stores["killed"], copy)
    evidence.note(copy, 240)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with pytest.raises(StoreDamaged, match="batch 240 was durable"):
        RocksDBStore(copy)


def test_the_serials_of_a_log_are_found_wherever_its_blocks_end(tmp_path, record):
    store = RocksDBStore(tmp_path / "store")
    (log,) = evidence.logs(tmp_path / "store" / directory.ENGINE)
    assert evidence.log_serials(log) == (0, 0)
    for n in range(200):
        store.commit(Batch(appends=[("q", 0, n, record(n, size=(n * 7919) % 3000))]))
        assert evidence.log_serials(log) == (1, n + 1)
    store.commit(Batch(appends=[("q", 0, 200, record(200, size=200_000))]))
    assert evidence.log_serials(log) == (1, 201)
    store.close()


TAGS = [layout.QUEUE, layout.PARTITION, layout.RECORD, layout.HELD, layout.SEQUENCE, layout.CURSOR]


@pytest.mark.parametrize("tag", TAGS)
def test_an_iteration_that_ends_at_damage_is_told_whatever_it_looked_for(tmp_path, record, tag):
    path = tmp_path / "store"
    store = RocksDBStore(path)
    store.commit(
        Batch(
            queues={"q": {"epoch": "e"}},
            appends=[("q", n, 0, record(n, size=6000)) for n in range(9)],
            holds=[("urn:s", n, record(n, size=6000)) for n in range(9)],
            sequences={f"urn:s{n}": {"raw": b"x" * 6000} for n in range(9)},
            cursors={("q", n, "r" * 6000): {"offset": n} for n in range(9)},
        )
    )
    store._db.flush()
    store.close()
    (table,) = (path / directory.ENGINE).glob("*.sst")
    data = bytearray(table.read_bytes())
    data[data.find(tag + b"\0\0\0")] ^= 1
    table.write_bytes(data)
    with pytest.raises(StoreDamaged, match="Corruption"):
        read_all(path)


def read_all(path: Path) -> None:
    with contextlib.closing(RocksDBStore(path)) as store:
        for where, (first, end) in store.load().bounds.items():
            store.read(*where, first, end, 1 << 40)
