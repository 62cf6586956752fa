"""Stores for the tests: every implementation behind one fixture, and ways to make and compare their content."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from databases import Server

from holdfast.core.records import Record
from holdfast.store import open_store
from holdfast.store.base import Store


class Opened:
    """A store, and how to open it again as after a restart."""

    def __init__(self, kind: str, location: str | Path) -> None:
        self.kind = kind
        self.location = location
        self.store: Store = open_store(location)

    def reopen(self) -> Store:
        self.store.close()
        if self.kind != "memory":
            self.store = open_store(self.location)
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


@pytest.fixture
def new_location(
    tmp_path: Path, servers: Callable[[str], Server], kafka_nodes: Callable[[int], Any]
) -> Callable[[str], str | Path]:
    """Gives the location of a new store of a kind."""

    def new(kind: str) -> str | Path:
        if kind == "kafka":
            return str(kafka_nodes(1).new_url(tmp_path / "cache"))
        return {"memory": ":memory:", "rocksdb": tmp_path / "store"}.get(kind) or servers(kind).new_url()

    return new


@pytest.fixture(
    params=[
        "memory",
        "rocksdb",
        "postgresql",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("mariadb", "kafka")),
    ]
)
def opened(request: pytest.FixtureRequest, new_location: Callable[[str], str | Path]) -> Iterator[Opened]:
    one = Opened(request.param, new_location(request.param))
    yield one
    one.store.close()


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    return _record


@pytest.fixture(scope="session")
def content() -> Callable[[Store], dict[str, Any]]:
    return _content


@pytest.fixture(scope="session")
def child() -> ModuleType:
    """The program that the crash tests kill: its batches make the expected content."""
    spec = importlib.util.spec_from_file_location("crash_child", Path(__file__).with_name("crash_child.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
