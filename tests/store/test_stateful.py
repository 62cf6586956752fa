"""RocksDB and memory, driven by the same random batches with restarts between them, must never differ."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.records import Batch, Record
from holdfast.store import MemoryStore, changes
from holdfast.store.rocksdb import RocksDBStore

SEQUENCES = ["urn:a", "urn:b", "urn:ab"]
PARTITIONS = [("q", 0), ("q", 1), ("q", 256), ("qq", 0)]
NAMES = ["handler", "spark"]

few = st.integers(0, 4)


class Both(RuleBasedStateMachine):
    """Every rule makes one valid batch from what the model holds; the invariant compares everything."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.model = MemoryStore()
        self.serial = 0

    @initialize()
    def open(self) -> None:
        self.store = RocksDBStore(Path(self.directory.name) / "store")

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
        self.store.commit(batch)

    @rule(data=st.data())
    def commit_a_group(self, data: st.DataObject) -> None:
        group = []
        for _ in range(2):
            group.append(self.batch(data))
            self.model.commit(group[-1])
        self.store.commit_group(group)

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
                batch.appends.append((*where, offset, self.record("urn:a")))
            else:
                batch.releases.append((*one, *where, offset, 1000.0 + offset))
        batch.drops = [one for one in sorted(held) if data.draw(st.integers(0, 5), label="drop?") == 0]
        for sequence in SEQUENCES:
            match data.draw(st.integers(0, 5), label="sequence?"):
                case 0:
                    batch.sequences[sequence] = None
                case 1 | 2:
                    self.serial += 1
                    batch.sequences[sequence] = {"ranges": [[1, self.serial]]}
        for partition in PARTITIONS:
            for name in NAMES:
                match data.draw(st.integers(0, 8), label="cursor?"):
                    case 0:
                        batch.cursors[*partition, name] = None
                    case 1:
                        self.serial += 1
                        batch.cursors[*partition, name] = {"offset": self.serial}
            if data.draw(st.integers(0, 3), label="trim?") == 0:
                batch.trims[partition] = end - 2 + data.draw(few)
        if data.draw(st.integers(0, 9), label="delete?") == 0:
            batch.deletes.append(data.draw(st.sampled_from(PARTITIONS)))
        return batch

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = RocksDBStore(Path(self.directory.name) / "store")

    @precondition(lambda self: self.serial)
    @rule()
    def look_without_writing(self) -> None:
        view = RocksDBStore(Path(self.directory.name) / "store", read_only=True)
        try:
            assert view.load() == self.model.load()
        finally:
            view.close()

    @rule(where=st.sampled_from(PARTITIONS), start=st.integers(0, 20), length=few, max_bytes=st.integers(0, 999))
    def read(self, where: tuple[str, int], start: int, length: int, max_bytes: int) -> None:
        asked = (*where, start, start + length, max_bytes)
        assert self.store.read_encoded(*asked) == self.model.read_encoded(*asked)

    @invariant()
    def same_content(self) -> None:
        snapshot = self.model.load()
        assert self.store.load() == snapshot
        for where, (_, end) in snapshot.bounds.items():
            assert self.store.read(*where, 0, end) == self.model.read(*where, 0, end)


class TestBoth(Both.TestCase):
    settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


class TestBothSweepingOften(Both.TestCase):
    """The same with trimmed bytes deleted after a few records, by range and one by one."""

    settings = settings(max_examples=25, stateful_step_count=20, deadline=None)

    def setUp(self) -> None:
        self.before = changes.SWEEP_BYTES, changes.FEW_RECORDS
        changes.SWEEP_BYTES, changes.FEW_RECORDS = 600, 2

    def tearDown(self) -> None:
        changes.SWEEP_BYTES, changes.FEW_RECORDS = self.before
