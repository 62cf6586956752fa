"""What a failed write leaves: all that was before, or a store that says that it cannot tell. At each step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from store_model import Model

from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreDamaged, StoreFailed
from holdfast.store import MemoryStore
from holdfast.store import records as layout
from holdfast.store.base import Store
from holdfast.store.rocksdb import store as rocksdb
from holdfast.store.rocksdb.store import RocksDBStore


def record(number: int) -> Record:
    return Record("urn:s", number, f"urn:action:{number}", b"<x>%d</x>" % number, 1700000000.5 + number)


def filled() -> list[Batch]:
    """One of everything, and one that was dropped since."""
    return [
        Batch(
            queues={"q": {"epoch": "e1"}},
            appends=[(queue, 0, offset, record(offset)) for queue in ("q", "gone", "anew") for offset in range(9)],
            holds=[("urn:s", number, record(number)) for number in (20, 21, 22, 23)] + [("urn:t", 9, record(9))],
            sequences={"urn:s": {"n": 1}, "urn:t": {"n": 1}},
            homes={"urn:s": ("q", 0), "urn:t": ("gone", 0)},
            cursors={("q", 0, "a"): {"offset": 1}, ("q", 0, "b"): {"offset": 1}, ("gone", 0, "a"): {"offset": 1}},
        ),
        Batch(drops=[("urn:s", 20)]),
    ]


def changing() -> Batch:
    """One that changes all of it."""
    return Batch(
        queues={"q": {"epoch": "e2"}, "more": {"epoch": "m"}},
        appends=[("q", 0, 9, record(9)), ("q", 0, 11, record(11)), ("new", 0, 0, record(0))],
        holds=[("urn:s", 24, record(24)), ("urn:s", 25, record(25)), ("urn:u", 1, record(1))],
        releases=[("urn:s", 21, "q", 0, 10, 5.0), ("urn:s", 24, "q", 0, 12, 6.0)],
        drops=[("urn:s", 22)],
        sequences={"urn:s": {"n": 2}, "urn:t": None, "urn:u": {"n": 1}},
        homes={"urn:s": ("new", 0), "urn:u": ("q", 0)},
        cursors={("q", 0, "a"): {"offset": 5}, ("q", 0, "b"): None, ("q", 0, "c"): {"offset": 0}},
        trims={("q", 0): 4},
        deletes=[("gone", 0), ("anew", 0)],
    )


UNKEPT: dict[str, Callable[[Batch], object]] = {
    "a gap": lambda batch: batch.appends.append(("q", 0, 99, record(1))),
    "an offset twice": lambda batch: batch.appends.append(("q", 0, 11, record(1))),
    "a release of what the batch itself released": lambda batch: batch.releases.append(("urn:s", 24, "q", 0, 13, 1.0)),
    "a release of what another batch dropped": lambda batch: batch.releases.append(("urn:s", 20, "q", 0, 13, 1.0)),
    "a queue": lambda batch: batch.queues.update(q={"bad": object()}),
    "a Sequence": lambda batch: batch.sequences.update({"urn:x": {"bad": object()}}),
    "a cursor": lambda batch: batch.cursors.update({("q", 0, "x"): {"bad": object()}}),
    "an appended record": lambda batch: setattr(batch.appends[-1][3], "action", object()),
    "a held record": lambda batch: batch.holds.append(("urn:v", 1, Record("urn:v", 1, object(), b"", 0.0))),  # type: ignore[arg-type]
    "a record released at once": lambda batch: (
        batch.holds.append(("urn:v", 1, Record("urn:v", 1, object(), b"", 0.0))),  # type: ignore[arg-type]
        batch.releases.append(("urn:v", 1, "new", 0, 1, 1.0)),
    ),
}


def remembered(store: Store) -> Any:
    """All that a RocksDB store has in memory of its content; nothing of one in memory, whose content that is."""
    if not isinstance(store, RocksDBStore):
        return None
    content = store.content
    partitions = {
        where: [getattr(one, field.name) for field in fields(one)] for where, one in content.partitions.items()
    }
    held = {sequence: set(numbers) for sequence, numbers in content.held.items()}
    cursors = {where: set(names) for where, names in content.cursors.items()}
    counters = (content.serial, content.garbage, content.written_bytes, content.written_records, store.trimmed_bytes)
    return partitions, set(content.unswept), held, cursors, dict(content.homes), counters


@pytest.fixture(params=range(len(UNKEPT)), ids=list(UNKEPT))
def unkept(request: pytest.FixtureRequest) -> Batch:
    batch = changing()
    list(UNKEPT.values())[request.param](batch)
    return batch


@pytest.mark.every(4)
def test_a_batch_of_which_one_part_cannot_be_stored_leaves_everything_as_it_was(opened, content, unkept):
    fill(opened.store)
    before, in_memory = content(opened.store), remembered(opened.store)
    with pytest.raises(StoreFailed) as caught:
        opened.store.commit(unkept)
    assert caught.value.remedy
    assert content(opened.store) == before
    assert remembered(opened.store) == in_memory
    with pytest.raises(StoreFailed, match="failed earlier"):
        opened.store.commit(changing())
    assert content(opened.reopen()) == before
    if opened.kind != "memory":  # which stays the same store
        opened.store.commit(changing())
        assert content(opened.store) == content(stored(*filled(), changing()))


def fill(store: Store | Model) -> None:
    for batch in filled():
        store.commit(batch)


def stored(*batches: Batch) -> Store:
    store = MemoryStore()
    for batch in batches:
        store.commit(batch)
    return store


class Engine:
    """Stands before the real engine, and fails one kind of call of it."""

    def __init__(self, store: RocksDBStore, fails: str) -> None:
        self.real = store._db
        self.fails = fails
        store._db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == self.fails:
                raise Exception("IO error: No space left on device")
            return getattr(self.real, name)(*args, **kwargs)

        return call


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDBStore]:
    store = RocksDBStore(tmp_path / "store")
    fill(store)
    yield store
    store.close()


def test_a_held_record_that_cannot_be_read_leaves_everything_as_it_was(store, content):
    before, in_memory = content(store), remembered(store)
    Engine(store, "get")
    with pytest.raises(StoreFailed, match="No space left"):
        store.commit(changing())
    assert content(store) == before
    assert remembered(store) == in_memory


def test_a_held_record_that_is_not_there_leaves_everything_as_it_was(store, content):
    store._db.delete(layout.held_key("urn:s", 21))
    before, in_memory = content(store), remembered(store)
    with pytest.raises(StoreDamaged, match="the held message 21 of urn:s is missing"):
        store.commit(changing())
    assert content(store) == before
    assert remembered(store) == in_memory


def test_an_engine_that_does_not_keep_up_leaves_everything_as_it_was(store, content, monkeypatch):
    before, in_memory = content(store), remembered(store)
    monkeypatch.setattr(store, "_behind", lambda: True)
    monkeypatch.setattr(rocksdb, "_STALL_SECONDS", -1.0)
    with pytest.raises(StoreFailed, match="has not kept up"):
        store.commit(changing())
    assert content(store) == before
    assert remembered(store) == in_memory


@pytest.mark.parametrize("fails", ["write", "flush_wal", "in place"], ids=["write", "sync", "directory"])
def test_a_failed_write_shows_no_part_of_it_and_reports_an_unknown_outcome(
    store, content, tmp_path, monkeypatch, fails
):
    in_memory, before = remembered(store), Model()
    fill(before)
    if fails == "in place":
        monkeypatch.setattr(store._lock, "require_in_place", refuse)
    Engine(store, fails)
    with pytest.raises(StoreFailed):
        store.commit(changing())
    assert remembered(store) == in_memory
    assert store.read("new", 0, 0, 9) == []
    assert store.read("q", 0, 0, 99) == before.read("q", 0, 0, 99), "what is only trimmed is there until it is swept"
    for call in (
        store.load,
        lambda: store.held("urn:s", [21]),
        lambda: store.read("gone", 0, 0, 9),
        lambda: store.read("anew", 0, 0, 9),
    ):
        with pytest.raises(StoreFailed, match="failed"):
            call()
    with pytest.raises(StoreFailed, match="failed earlier"):
        store.commit(Batch())
    monkeypatch.undo()
    store._db = store._db.real
    store.close()
    again = RocksDBStore(tmp_path / "store")
    outcomes = [content(stored(*filled())), content(stored(*filled(), changing()))]
    assert content(again) in outcomes, "the batch is there whole or not at all"
    again.close()


def refuse() -> None:
    raise StoreFailed("The directory was moved.", remedy="Put it back.")
