"""Every store and a plain model, driven by the same random batches with restarts between them, must never differ.

Batches are valid, or spoilt in one of the ways there are; of a spoilt one nothing must be seen anywhere.

Covers store/content.py, store/plan.py and store/rocksdb/changes.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest
from databases import Server
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select
from store_model import Model, RuleBroken

from examples import PROFILE, examples
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.staged_blocks import Run, unpack
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore, open_store
from holdfast.store.base import Store
from holdfast.store.rocksdb import changes
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.store.sql import changes as sql_changes
from holdfast.store.sql import records as sql_records
from holdfast.store.sql import schema as sql_schema
from holdfast.store.sql.store import SQLStore
from holdfast.store.staged import blocks_of_records

SEQUENCES = ["urn:a", "urn:b", "urn:ab"]
PARTITIONS = [("q", 0), ("q", 1), ("q", 256), ("qq", 0)]
NAMES = ["handler", "spark"]
SPOILT = ["gap", "taken", "twice", "not from 0", "no partition", "not held", "released twice", "no number", "no state"]

few = st.integers(0, 4)


class LogServer:
    """Makes logs in a Kafka cluster, each with a cache of its own."""

    def __init__(self, nodes: Any, directory: Path) -> None:
        self.nodes = nodes
        self.directory = directory

    def new_url(self) -> str:
        return str(self.nodes.new_url(tempfile.mkdtemp(dir=self.directory)))


class Stores(RuleBasedStateMachine):
    """Every rule makes batches from what the model holds; the invariant compares everything."""

    server: ClassVar[Server | LogServer | None] = None
    """Of a store in a database or a log; None for the embedded one."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.model = Model()
        self.memory = MemoryStore()
        self.serial = 0

    @initialize()
    def open(self) -> None:
        self.location = Path(self.directory.name) / "store" if self.server is None else self.server.new_url()
        self.store = self.opened()

    def opened(self, *, read_only: bool = False) -> RocksDBStore | SQLStore:
        store = open_store(self.location, read_only=read_only)
        assert isinstance(store, RocksDBStore | SQLStore)
        return store

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    def record(self, sequence: str) -> Record:
        self.serial += 1
        return Record(sequence, self.serial, "urn:a", b"<x>%d</x>" % self.serial, float(self.serial), headers=b"h" * 99)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        batch = self.batch(data)
        self.model.commit(batch)
        self.memory.commit(batch)
        self.store.commit(batch)

    @rule(data=st.data(), kind=st.sampled_from(SPOILT))
    def refuse(self, data: st.DataObject, kind: str) -> None:
        batch = self.batch(data)
        self.spoil(batch, kind)
        if kind != "no state":
            with pytest.raises(RuleBroken):
                self.model.commit(batch)
        serial, garbage = self.store.content.serial, self.store.content.garbage
        broken: list[Store] = [deepcopy(self.memory), self.store]
        for store in broken:
            with pytest.raises(StoreFailed) as caught:
                store.commit(batch)
            assert caught.value.remedy
            self.compare(store)
            with pytest.raises(StoreFailed, match="failed earlier"):
                store.commit(Batch())
        assert (self.store.content.serial, self.store.content.garbage) == (serial, garbage)
        self.open_again()

    def spoil(self, batch: Batch, kind: str) -> None:
        record = self.record("urn:a")
        match kind:
            case "gap":
                batch.appends.append(("q", 0, 1 << 40, record))
            case "taken":
                batch.appends.append(("new", 0, -1, record))
            case "twice":
                batch.appends += [("new", 0, offset, record) for offset in (0, 2, 2, 1)]
            case "not from 0":
                batch.appends.append(("new", 0, 1, record))
            case "no partition":
                batch.appends.append(("new", -1, 0, record))
            case "not held":
                batch.releases.append(("urn:nobody", 1, "new", 0, 0, 1.0))
            case "released twice":
                batch.holds.append(("urn:new", 1, record))
                batch.releases += [("urn:new", 1, "new", 0, offset, 1.0) for offset in (0, 1)]
            case "no number":
                batch.holds.append(("urn:new", -1, record))
            case "no state":
                batch.cursors["new", 0, "handler"] = {"offset": object()}

    def append(self, batch: Batch, where: tuple[str, int], offset: int, *, is_staged: bool) -> None:
        record = self.record("urn:a")
        if not is_staged:
            batch.appends.append((*where, offset, record))
            return
        (block,) = blocks_of_records([(where[0], record)], record.received_at)
        places, number = unpack(block.data).places, record.message_number
        batch.runs.append(
            Run(*where, offset, "s", "urn:s", "urn:m:", record.received_at, 1.5, block.data, [number], places)
        )

    def batch(self, data: st.DataObject) -> Batch:
        batch = Batch()
        before = self.model.load()
        held = {(sequence, number) for sequence, numbers in before.held.items() for number in numbers}
        for sequence in SEQUENCES:
            for number in data.draw(st.lists(st.integers(1, 300), max_size=3), label="holds"):
                batch.holds.append((sequence, number, self.record(sequence)))
                held.add((sequence, number))
        released = [one for one in sorted(held) if data.draw(st.integers(0, 3), label="release?") == 0]
        where = data.draw(st.sampled_from(PARTITIONS))
        end = before.bounds.get(where, (0, 0))[1]
        kinds = data.draw(st.permutations([*released, *[None] * data.draw(few, label="appends")]))
        for offset, one in enumerate(kinds, end):
            if one is None:
                self.append(batch, where, offset, is_staged=data.draw(st.booleans(), label="staged?"))
            else:
                batch.releases.append((*one, *where, offset, 1000.0 + offset))
        if batch.releases and data.draw(st.booleans(), label="into another queue as well?"):
            again = before.bounds.get(("copies", 0), (0, 0))[1]
            batch.releases += [
                (*release[:2], "copies", 0, offset, 2000.0) for offset, release in enumerate(batch.releases, again)
            ]
        batch.drops = [one for one in sorted(held) if data.draw(st.integers(0, 5), label="drop?") == 0]
        self.save(data, batch)
        for partition in PARTITIONS:
            if data.draw(st.integers(0, 3), label="trim?") == 0:
                batch.trims[partition] = end - 2 + data.draw(few)
        if data.draw(st.integers(0, 4), label="delete?") == 0:
            batch.deletes.append(data.draw(st.sampled_from(PARTITIONS)))
        return batch

    def save(self, data: st.DataObject, batch: Batch) -> None:
        for sequence in SEQUENCES:
            match data.draw(st.integers(0, 5), label="sequence?"):
                case 0:
                    batch.sequences[sequence] = None
                case 1 | 2:
                    self.serial += 1
                    batch.sequences[sequence] = {"ranges": [[1, self.serial]]}
            if data.draw(st.integers(0, 3), label="home?") == 0:
                batch.homes[sequence] = data.draw(st.sampled_from(PARTITIONS))
        for partition in PARTITIONS:
            for name in NAMES:
                match data.draw(st.integers(0, 8), label="cursor?"):
                    case 0:
                        batch.cursors[*partition, name] = None
                    case 1:
                        self.serial += 1
                        batch.cursors[*partition, name] = {"offset": self.serial}
        if data.draw(st.integers(0, 5), label="describe?") == 0:
            batch.queues["q"] = {"partitions": self.serial}

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.opened()

    @precondition(lambda self: self.serial)
    @rule()
    def look_without_writing(self) -> None:
        view = self.opened(read_only=True)
        try:
            assert view.load() == self.model.load()
        finally:
            view.close()

    @rule(where=st.sampled_from(PARTITIONS), start=st.integers(0, 20), length=few, max_bytes=st.integers(0, 999))
    def read(self, where: tuple[str, int], start: int, length: int, max_bytes: int) -> None:
        asked = (*where, start, start + length)
        assert self.memory.read(*asked) == self.model.read(*asked)
        assert self.store.read_encoded(*asked, max_bytes) == self.memory.read_encoded(*asked, max_bytes)

    @invariant()
    def same_content(self) -> None:
        for store in (self.memory, self.store):
            self.compare(store)

    def compare(self, store: Store) -> None:
        snapshot: Snapshot = self.model.load()
        assert store.load() == snapshot
        for where, (_, end) in snapshot.bounds.items():
            assert store.read(*where, 0, end) == self.model.read(*where, 0, end)
        if isinstance(store, SQLStore):
            self.no_row_is_left_over(store)

    def no_row_is_left_over(self, store: SQLStore) -> None:
        """There is a row for each record that is not deleted yet, one for each held, and no more; and no piece of
        anything else."""
        expected = {
            (one.records, offset) for one in store.content.partitions.values() for offset in range(one.swept, one.end)
        }
        expected |= {
            (store.part_of(sequence), number) for sequence, numbers in store.content.held.items() for number in numbers
        }
        low, high = store.space << sql_schema.SPACE_SHIFT, (store.space + 1) << sql_schema.SPACE_SHIFT
        with store.engine.connect() as connection:
            for table in (sql_schema.records, sql_schema.pieces):
                asked = select(table.c.part, table.c.position).where(table.c.part > low, table.c.part < high)
                found = {tuple(row) for row in connection.execute(asked)}
                assert found <= expected if table is sql_schema.pieces else found == expected


class TestStores(Stores.TestCase):
    settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)


@pytest.mark.nightly
class TestStoresSweepingOften(Stores.TestCase):
    """The same with trimmed bytes deleted after a few records, by range and one by one."""

    settings = settings(max_examples=examples(12), stateful_step_count=20, deadline=None)

    @pytest.fixture(autouse=True)
    def sweep_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changes, "SWEEP_BYTES", 600)
        monkeypatch.setattr(changes, "FEW_RECORDS", 2)


class OnPostgreSQL(Stores):
    kind = "postgresql"


class OnMariaDB(Stores):
    kind = "mariadb"


class InADatabase:
    """Records of several pieces, and trimmed ones deleted after a few, some at a time."""

    machine: type[OnPostgreSQL | OnMariaDB]
    settings = settings(max_examples=4 if PROFILE == "default" else 8, stateful_step_count=15, deadline=None)

    @pytest.fixture(autouse=True)
    def in_a_database(self, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.machine, "server", servers(self.machine.kind))
        monkeypatch.setattr(sql_changes, "PIECE_BYTES", 150)
        monkeypatch.setattr(sql_records, "PIECE_BYTES", 150)
        monkeypatch.setattr(sql_changes, "SWEEP_BYTES", 600)
        monkeypatch.setattr(sql_changes, "MOST_SWEPT", 3)


class TestStoresInPostgreSQL(InADatabase, OnPostgreSQL.TestCase):
    machine = OnPostgreSQL
    settings = InADatabase.settings


@pytest.mark.nightly
class TestStoresInMariaDB(InADatabase, OnMariaDB.TestCase):
    machine = OnMariaDB
    settings = InADatabase.settings


class OnKafka(Stores):
    """Copies of the content begin often."""


@pytest.mark.nightly
class TestStoresInKafka(OnKafka.TestCase):
    settings = InADatabase.settings

    @pytest.fixture(autouse=True)
    def in_kafka(self, kafka_nodes: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from holdfast.store.kafka import sweep

        monkeypatch.setattr(OnKafka, "server", LogServer(kafka_nodes(1), tmp_path))
        monkeypatch.setattr(sweep, "FEWEST_BYTES", 3_000)
        monkeypatch.setattr(sweep, "STEP_BYTES", 300)
        monkeypatch.setattr(changes, "SWEEP_BYTES", 600)
