"""A repair never reports less than what is lost, whichever file is damaged, and however.

Each damage of a draw is tried on a copy of a store. Either everything is there, or check, open and repair say what is
lost, and what they say covers what really is.

Covers store/rocksdb/manifest.py, store/rocksdb/opening.py and store/rocksdb/salvage.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed
from holdfast.store import directory
from holdfast.store.rocksdb import changes, evidence, opening
from holdfast.store.rocksdb.checking import check_store
from holdfast.store.rocksdb.manifest import read_manifest
from holdfast.store.rocksdb.repair import repair_store
from holdfast.store.rocksdb.salvage import SAVED
from holdfast.store.rocksdb.store import RocksDBStore

COUNT = 400
FLUSHED = 331
"""So many batches are in the tables of the templates, the rest in a log."""
DAMAGES = int(os.environ.get("HOLDFAST_DAMAGES", "2000"))
PARTS = 20
"""So many tests share the damages, so that each ends in time on a busy machine."""
IGNORED = ("LOG", "LOCK", "lock")

Content = dict[str, Any]


def body(number: int) -> bytes:
    return b"\xff\xfe" + random.Random(number).randbytes(number % 13 * 60) + b"%06d" % number


def record(n: int) -> Record:
    return Record("urn:s", n + 1, f"urn:a{n}", body(n), float(n), f"urn:m{n}", "http://to", headers=b"<h/>")


def batch(n: int, outbox: bool) -> Batch:
    queue = "outbox/a" if outbox else "inbox"
    made = Batch(
        queues={queue: {"kind": "outbox" if outbox else "inbox", "epoch": "e", "partitions": 2}} if not n else {},
        appends=[(queue, n % 2, n // 2, record(n))],
        sequences={f"urn:s{n % 7}": {"n": n, "role": "destination", "identifier": f"urn:s{n % 7}"}},
        homes={f"urn:s{n}": (queue, n % 2)} if n < 7 else {},
        holds=[("urn:s3", 1000 + n, record(n))] if not n % 11 else [],
        drops=[("urn:s3", 1000 + n - 33)] if not n % 11 and n > 33 else [],
        cursors={(queue, n % 2, "reader"): {"offset": n // 3}},
    )
    if n % 80 == 40:
        made.trims[queue, 0] = n // 3
    return made


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, str], Path]:
    """Stores with several tables, deleted data in them, and a log; of a destination and of a source."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "SWEEP_BYTES", 4_000)
        patch.setattr(opening, "BLOCK_BYTES", 1_000)
        for outbox in (False, True):
            path = tmp_path_factory.mktemp("repair") / "closed"
            store = RocksDBStore(path)
            for n in range(COUNT):
                store.commit(batch(n, outbox))
                if n in (90, 180, 270, 330):  # fewer at a time than the engine begins to compact at by itself
                    store._db.flush()
                if n == 200:
                    store._db.compact_range(None, None)
            killed = path.with_name("killed")
            shutil.copytree(path, killed, ignore=shutil.ignore_patterns("*.new"))  # a note that the keeper writes
            store.close()
            made[outbox, "closed"], made[outbox, "killed"] = path, killed
    return made


def content(path: Path) -> Content:
    with contextlib.closing(RocksDBStore(path)) as store:
        snapshot = store.load()
        records = {
            (*where, offset): one
            for where, (_, end) in snapshot.bounds.items()
            for offset, one in store.read(*where, 0, end, 1 << 40)
        }
        held = {
            (name, one.message_number): one for name in snapshot.held for one in store.held(name, snapshot.held[name])
        }
        states = {"queues": snapshot.queues, "sequences": snapshot.sequences, "cursors": snapshot.cursors}
        return {"records": records, "held": held, "homes": snapshot.homes, **states}


@pytest.fixture(scope="module")
def whole(templates, tmp_path_factory) -> dict[bool, Content]:
    found = {}
    for outbox in (False, True):
        copy = tmp_path_factory.mktemp("whole") / "store"
        shutil.copytree(templates[outbox, "killed"], copy)
        found[outbox] = content(copy)
    return found


def damage(path: Path, draw: random.Random) -> tuple[str, str]:
    """Damage one file; return its name and the kind of damage."""
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    name = draw.choice([one for one in files if Path(one).name not in IGNORED])
    file = path / name
    data = bytearray(file.read_bytes())
    how = draw.choice(["deleted", "emptied", "flipped", "flipped", "flipped", "cut", "zeroed tail"])
    if how == "deleted":
        file.unlink()
        return name, how
    if how == "emptied" or not data:
        data.clear()
    elif how == "flipped":
        place = draw.randrange(len(data))
        data[place] ^= 1 << draw.randrange(8)
        how = f"flipped at {place}"
    elif how == "cut":
        del data[draw.randrange(len(data)) :]
        how = f"cut to {len(data)}"
    else:
        # After a power cut, a file system may show blocks that were allocated and never written.
        place, more = draw.randint(0, len(data)), draw.choice([0, 1, 100, 40_000])
        data[place:] = bytes(len(data) - place + more)
        how = f"zeroed from {place} to {len(data)}"
    file.write_bytes(data)
    return name, how


def damages(path: Path, draw: random.Random) -> dict[str, str]:
    """Damage one file or, less often, two; return what happened to each."""
    found: dict[str, str] = {}
    for _ in range(draw.choice([1, 1, 2])):
        name, how = damage(path, draw)
        found[name] = f"{found[name]}, {how}" if name in found else how
    return found


def require_covered(before: Content, after: Content, said: str, what: str, durable: int) -> None:
    """Require that the report names every loss.

    Args:
        before: The content of the whole store.
        after: The content after the repair.
        said: The report.
        what: The damage.
        durable: So many batches are known to have been durable.
    """
    cut = re.search(r"everything after batch (\d+)", said)
    serial = min(int(cut[1]) if cut else COUNT, durable)
    spans = re.findall(r"records (\d+) to (\d+) of the queue '([^']+)', partition (\d+)", said)
    lost = {(queue, int(partition), n) for a, b, queue, partition in spans for n in range(int(a), int(b) + 1)}
    for (queue, partition, offset), one in before["records"].items():
        if (queue, partition, offset) in after["records"]:
            assert after["records"][queue, partition, offset] == one, what
        elif offset * 2 + partition < serial:
            assert (queue, partition, offset) in lost, (
                f"{what}: {queue} {partition} {offset} is lost in silence: {said}"
            )
    if serial == COUNT:
        for kind in ("queues", "sequences", "cursors", "homes", "held"):
            got = {key: value for key, value in after[kind].items() if key in before[kind]}
            assert got == before[kind], f"{what}: {kind} {said}"
    else:
        for number in range(serial - 7, serial):
            got = after["sequences"][f"urn:s{number % 7}"]["n"]
            assert got == number if cut and serial == int(cut[1]) else got >= number, what


def require_saved(path: Path, what: str) -> int:
    """Each saved line is a record as it was; how many there are."""
    if not (path / SAVED).exists():
        return 0
    lines = [json.loads(line) for line in (path / SAVED).read_text(encoding="utf-8").splitlines()]
    for line in lines:
        number = line["message_number"] - 1
        assert line["body_base64"], what
        assert (line["received_at"], line["to"], line["headers"]) == (float(number), "http://to", "<h/>"), what
    return len(lines)


def judge(path: Path, outbox: bool, state: str, before: Content, damaged: dict[str, str], what: str) -> str:
    """Require that a damaged store is reported as what it is; what a repair came to."""
    in_log = [name for name in damaged if name.endswith(".log")]
    # Batches of a log leave no other trace than the note.
    is_untold = bool(in_log) and (state == "killed" or directory.NOTE in damaged)
    is_tail = is_untold and set(damaged) <= {*in_log, directory.NOTE}
    problems = [] if is_tail else ["said"]
    with contextlib.suppress(StoreError):
        problems = check_store(path).problems
        if not problems and not is_untold:
            shutil.copytree(path, path.with_name("opened"))
            assert content(path.with_name("opened")) == before, f"{what}: check says it is whole"
    try:
        done = repair_store(path, do=True)
    except StoreError:
        require_saved(path, what)
        return "refused"
    require_saved(path, what)
    assert done.is_needed or not problems, f"{what}: no way out of {problems}"
    after = content(path)
    said = " ".join(done.gives_up)
    if "certainty that no table is missing" in said and any(name.endswith(".sst") for name in damaged):
        assert all(before["records"].get(key, one) == one for key, one in after["records"].items()), what
        for name in damaged:
            assert "emptied" not in damaged[name] or not name.endswith(".sst") or Path(name).name in said, what
        return "uncertain"
    if is_tail and not done.gives_up:
        kept = len(after["records"])
        assert all(before["records"][key] == one for key, one in after["records"].items() if key in before["records"])
        return f"tail {kept}"
    require_covered(before, after, said, what, FLUSHED if is_untold else COUNT)
    assert check_store(path).problems == [], what
    return "repaired" if done.is_needed else "whole"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in memory where the system has one: each damage costs dozens of syncs."""
    base = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=base if base.is_dir() else tmp_path) as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


def run(templates, whole, tmp_path: Path, count: int, seed: int) -> dict[str, int]:
    draw = random.Random(seed)
    came_to: dict[str, int] = {}
    for number in range(count):
        outbox, state = draw.random() < 0.3, draw.choice(["closed", "killed"])
        home = tmp_path / "one"
        shutil.copytree(templates[outbox, state], home / "store")
        damaged = damages(home / "store", draw)
        what = f"{number}: {state} {'outbox' if outbox else 'inbox'}: {damaged}"
        outcome = judge(home / "store", outbox, state, whole[outbox], damaged, what).split()[0]
        came_to[outcome] = came_to.get(outcome, 0) + 1
        shutil.rmtree(home)
    return came_to


def test_a_repair_never_reports_less_than_what_is_lost(templates, whole, memory):
    assert run(templates, whole, memory, 8, 1)["refused"]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20261123, 20261123 + PARTS))
def test_a_repair_never_reports_less_than_what_is_lost_over_many_damages(templates, whole, memory, seed):
    came_to = run(templates, whole, memory, DAMAGES // PARTS, seed)
    assert set(came_to) >= {"refused", "repaired", "whole"}


def table_with(path: Path, prefix: bytes) -> Path:
    """The table that holds the newest of what begins so."""
    tables = [file for file in sorted((path / directory.ENGINE).glob("*.sst")) if prefix in file.read_bytes()]
    return tables[-1]


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_missing_table_is_a_loss_and_what_can_be_read_is_saved(templates, tmp_path, state, is_deleted):
    path = tmp_path / "store"
    shutil.copytree(templates[False, state], path)
    table = sorted((path / directory.ENGINE).glob("*.sst"))[0]
    if is_deleted:
        table.unlink()
    else:
        table.write_bytes(b"")
    before = sorted(file.name for file in (path / directory.ENGINE).iterdir())
    with pytest.raises(StoreFailed, match=f"MANIFEST names {table.name}, which is missing or empty") as told:
        repair_store(path)
    assert "holdfast store repair --yes" in told.value.remedy
    with pytest.raises(StoreFailed, match=r"readable records are saved in .*saved\.jsonl"):
        repair_store(path, do=True)
    assert require_saved(path, "") > 20
    assert sorted(file.name for file in (path / directory.ENGINE).iterdir()) == before


def test_an_empty_table_that_an_unreadable_manifest_may_name_is_reported(templates, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(templates[False, "killed"], path)
    table = sorted((path / directory.ENGINE).glob("*.sst"))[0]
    for file in (table, *(path / directory.ENGINE).glob("MANIFEST-*")):
        file.write_bytes(b"")
    said = " ".join(repair_store(path).gives_up)
    assert "certainty that no table is missing" in said and "It names no table" not in said
    assert f"{table.name} is empty: it was never finished, or its content is lost." in said


def test_the_manifest_names_the_tables_that_the_engine_has(templates):
    for path in templates.values():
        found = read_manifest(path / directory.ENGINE)
        assert found.is_whole
        assert found.tables == {file.name for file in (path / directory.ENGINE).glob("*.sst")}


def test_a_damaged_block_of_deleted_records_is_found_and_a_repair_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "store"
    monkeypatch.setattr(changes, "SWEEP_BYTES", 1)
    store = RocksDBStore(path)
    bodies = [b"<x>" + random.Random(n).randbytes(1500).hex().encode() + b"</x>" for n in range(300)]
    for n, one in enumerate(bodies):
        store.commit(Batch(appends=[("inbox", 0, n, Record("urn:s", n + 1, "urn:a", one, 0.0))]))
    store._db.flush()
    store.commit(Batch(trims={("inbox", 0): 290}))
    store.close()
    table = table_with(path, bodies[100][500:540])
    data = bytearray(table.read_bytes())
    data[data.index(bodies[100][500:540])] ^= 1
    table.write_bytes(data)
    before = content(path)
    assert any(f"not every block of the table {table.name}" in problem for problem in check_store(path).problems)
    with contextlib.closing(RocksDBStore(path)) as served:
        served._db.compact_range(None, None)
        with pytest.raises(StoreDamaged, match="Corruption") as told:
            served.commit(Batch(sequences={"urn:t": {"n": 1}}))
        assert "holdfast store repair" in told.value.remedy
    done = repair_store(path, do=True)
    assert (done.is_needed, done.gives_up) == (True, [])
    assert check_store(path).problems == []
    assert content(path) == before
    with contextlib.closing(RocksDBStore(path)) as served:
        served._db.compact_range(None, None)
        served.commit(Batch(sequences={"urn:t": {"n": 1}}))


def test_a_repair_that_is_repeated_saves_no_record_twice(templates, tmp_path):
    """A store beyond repair stays as it is, and a repair may have been killed while it wrote."""
    path = tmp_path / "store"
    shutil.copytree(templates[True, "killed"], path)
    max((path / directory.ENGINE).glob("*.sst"), key=lambda table: table.stat().st_size).unlink()

    def saved() -> list[bytes]:
        with pytest.raises(StoreFailed, match="cannot be repaired") as caught:
            repair_store(path, do=True)
        lines = (path / SAVED).read_bytes().splitlines()
        assert f" {len(lines)} readable records are saved in " in str(caught.value)
        return lines

    first = saved()
    assert len(first) > 10
    assert saved() == first
    (path / SAVED).write_bytes((path / SAVED).read_bytes()[:-7])
    assert saved() == first


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6])
def test_whole_records_behind_a_damage_of_the_log_are_saved_with_all_that_they_say(templates, tmp_path, place):
    path = tmp_path / "store"
    shutil.copytree(templates[False, "killed"], path)
    log = evidence.logs(path / directory.ENGINE)[-1]
    data = bytearray(log.read_bytes())
    data[int(len(data) * place) + 50] ^= 0x40
    log.write_bytes(data)
    (said,) = repair_store(path, do=True).gives_up
    serial = int(re.search(r"after batch (\d+)", said)[1])
    assert "--restored" in said
    lines = [json.loads(line) for line in (path / SAVED).read_text(encoding="utf-8").splitlines()]
    found = {line["offset"] * 2 + line["partition"] for line in lines if "offset" in line}
    assert found == set(range(serial + 1, COUNT)), "all but those of the one damaged batch"
    held = {line["message_number"] - 1 for line in lines if "held_for" in line}
    assert held == {n for n in range(serial + 1, COUNT) if not n % 11}
    for line in lines:
        number = line["message_number"] - 1
        assert base64.b64decode(line["body_base64"]) == body(number)
        assert (line["action"], line["message_id"], line["soap"]) == (f"urn:a{number}", f"urn:m{number}", "1.2")
    assert require_saved(path, "") == len(lines)
