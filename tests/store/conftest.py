"""Stores for the tests: every implementation behind one fixture, and ways to make and compare their content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Record
from holdfast.store import MemoryStore
from holdfast.store.base import Store
from holdfast.store.rocksdb import RocksDBStore


class Opened:
    """A store, and how to open it again as after a restart."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.store: Store = MemoryStore() if kind == "memory" else RocksDBStore(path)

    def reopen(self) -> Store:
        self.store.close()
        if self.kind == "rocksdb":
            self.store = RocksDBStore(self.path)
        return self.store


def _record(number: int = 1, size: int = 10, sequence: str = "urn:s") -> Record:
    return Record(sequence, number, f"urn:action:{number}", b"<x>" + b"y" * size + b"</x>", 1700000000.5 + number)


def _content(store: Store) -> dict[str, Any]:
    """Everything a store gives away: its snapshot and every record."""
    snapshot = store.load()
    return {
        "snapshot": snapshot,
        "records": {where: store.read(*where, 0, end, 1 << 40) for where, (_, end) in snapshot.bounds.items()},
    }


@pytest.fixture(params=["memory", "rocksdb"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    one = Opened(request.param, tmp_path / "store")
    yield one
    one.store.close()


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    return _record


@pytest.fixture(scope="session")
def content() -> Callable[[Store], dict[str, Any]]:
    return _content
