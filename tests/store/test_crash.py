"""A process killed, a log torn or damaged, a disk that says no: what was acknowledged is there, or somebody is told."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed
from holdfast.store import MemoryStore, open_store
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.store.sql import records as sql_records
from holdfast.store.sql import store as sql

CHILD = Path(__file__).with_name("crash_child.py")
ENV = {**os.environ, "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}
KILLS = {"rocksdb": 5, "postgresql": 4}


def run_and_kill(location: str | Path, draw: random.Random) -> int:
    """Let the child commit, kill it somewhere, and give back the last batch it acknowledged (0 for none)."""
    process = subprocess.Popen([sys.executable, str(CHILD), str(location)], stdout=subprocess.PIPE, env=ENV)
    assert process.stdout is not None
    said = b""
    if draw.random() < 0.25:
        time.sleep(draw.uniform(0.05, 0.4))  # while it starts, opens, recovers or commits its first batches
    else:
        wanted = draw.choice([1, 5, 30, 120])
        while said.count(b"\n") < wanted:
            if not (more := os.read(process.stdout.fileno(), wanted)):
                break
            said += more
        until = time.perf_counter() + draw.uniform(0, 0.003)
        while time.perf_counter() < until:  # a sleep would always end at much the same point of a commit
            pass
    assert process.poll() is None, "the child ended by itself"
    process.kill()
    said += process.stdout.read()
    process.stdout.close()
    process.wait()
    # A kill inside a write to a pipe leaves none or all of so short a line; the last complete one counts.
    lines = said.decode().split("\n")[:-1]
    return int(lines[-1]) if lines else 0


@pytest.mark.crash
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        *KILLS.items(),
        pytest.param("rocksdb", 36, marks=pytest.mark.nightly),
        pytest.param("postgresql", 8, marks=pytest.mark.nightly),
        pytest.param("mariadb", 8, marks=pytest.mark.nightly),
        pytest.param("kafka", 12, marks=pytest.mark.nightly),
    ],
)
def test_whenever_killed_it_has_all_acknowledged_and_only_whole_batches(
    child, content, new_location, monkeypatch, kind, kills
):
    location = new_location(kind)
    monkeypatch.setattr(sql_records, "PIECE_BYTES", child.PIECE_BYTES)
    monkeypatch.setattr(sql, "LOCK_SECONDS", 60.0)
    draw = random.Random(20261121)
    model = MemoryStore()
    stored = acknowledged = 0
    for kill in range(kills):
        acknowledged = max(acknowledged, run_and_kill(location, draw))
        store = open_store(location)
        found = child.serial(store.load())
        assert acknowledged <= found <= acknowledged + 1, f"kill {kill}: batch {found} found"
        for n in range(stored + 1, found + 1):
            model.commit(child.batch(n, model.load()))
        stored = acknowledged = found
        assert content(store) == content(model), f"kill {kill}: the content is not that of batch {found}"
        store.close()
    assert stored > 2 * kills, "the children hardly ran"


@pytest.mark.crash
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_database_server_that_is_killed_under_load_costs_nothing_but_time(
    database, child, content, monkeypatch, kills
):
    """The one who commits is not started again: it connects again, and finds out what became of its last batch."""
    location = database.new_url()
    monkeypatch.setattr(sql_records, "PIECE_BYTES", child.PIECE_BYTES)
    monkeypatch.setattr(sql, "LOCK_SECONDS", 60.0)
    draw = random.Random(20261122)
    process = subprocess.Popen([sys.executable, str(CHILD), location], stdout=subprocess.PIPE, env=ENV)
    assert process.stdout is not None
    said = process.stdout.readline()
    for _ in range(kills):
        for _ in range(draw.choice([5, 20, 60])):
            said = process.stdout.readline()
        time.sleep(draw.uniform(0, 0.003))
        database.kill()
        database.start()
    for _ in range(20):
        said = process.stdout.readline()
    assert process.poll() is None
    process.kill()
    said = [said, *process.stdout.read().splitlines()][-1]
    process.stdout.close()
    process.wait()
    store = open_store(location)
    found = child.serial(store.load())
    assert int(said) <= found <= int(said) + 1
    model = MemoryStore()
    for n in range(1, found + 1):
        model.commit(child.batch(n, model.load()))
    assert content(store) == content(model)
    store.close()


@pytest.fixture
def logged(tmp_path, record):
    """A directory as a killed process leaves it: twenty batches of two records each, all in the write-ahead log."""
    store = RocksDBStore(tmp_path / "store")
    for n in range(20):
        appends = [("q", 0, 2 * n, record(n, size=500)), ("q", 0, 2 * n + 1, record(n, size=500))]
        store.commit(Batch(appends=appends, sequences={"serial": {"n": n + 1}}))
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close()
    return tmp_path / "killed"


def log_file(path: Path) -> Path:
    return max((path / "db").glob("*.log"), key=lambda file: file.stat().st_size)


def check_prefix(store: RocksDBStore, least: int) -> int:
    """The number of batches in the store, of which nothing is there in part."""
    snapshot = store.load()
    batches = int(snapshot.sequences.get("serial", {"n": 0})["n"])
    assert snapshot.bounds == ({("q", 0): (0, 2 * batches)} if batches else {})
    assert [record.message_number for _, record in store.read("q", 0, 0, 99)] == [n // 2 for n in range(2 * batches)]
    assert batches >= least
    return batches


@pytest.mark.parametrize("lost", [1, 7, 100, 1100, 1500, 9000, 10**9])
def test_a_log_torn_off_at_its_end_gives_the_whole_batches_before(logged, lost):
    log = log_file(logged)
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.truncate(max(size - lost, 0))
    store = RocksDBStore(logged)
    batches = check_prefix(store, 20 - 1 - lost // (size // 20))
    assert batches < 20
    store.commit(Batch(sequences={"serial": {"n": batches}}))
    store.close()


def test_noughts_after_the_end_of_the_log_do_no_harm(logged):
    with log_file(logged).open("ab") as file:
        file.write(bytes(70_000))
    store = RocksDBStore(logged)
    assert check_prefix(store, 20) == 20
    store.close()


def zero_page(data: bytearray) -> None:
    data[-900:-500] = bytes(400)


def flip_bit(data: bytearray) -> None:
    data[-700] ^= 0x10


def append_garbage(data: bytearray) -> None:
    data += random.Random(1).randbytes(5000)


@pytest.mark.parametrize(("spoil", "left"), [(zero_page, 19), (flip_bit, 19), (append_garbage, 20)])
def test_a_log_whose_last_write_was_incomplete_at_a_power_loss_is_cut_there(logged, spoil, left):
    log = log_file(logged)
    data = bytearray(log.read_bytes())
    spoil(data)
    log.write_bytes(data)
    store = RocksDBStore(logged)
    assert check_prefix(store, left) == left
    store.commit(Batch(sequences={"serial": {"n": left}}))
    store.close()
    store = RocksDBStore(logged)
    assert check_prefix(store, left) == left
    store.close()


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_damaged_log_is_refused_unless_the_prefix_is_asked_for(logged, where):
    log = log_file(logged)
    data = bytearray(log.read_bytes())
    data[int(len(data) * where)] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(StoreFailed, match="is damaged") as caught:
        RocksDBStore(logged)
    assert "holdfast store repair" in caught.value.remedy
    assert log.read_bytes() == data, "the refused store still is as it was"
    store = RocksDBStore(logged, keep_prefix=True)
    assert check_prefix(store, int(where * 20) - 1) <= where * 20
    store.close()
    RocksDBStore(logged).close()


def test_a_store_damaged_elsewhere_than_in_its_log_is_refused(logged):
    manifest = next((logged / "db").glob("MANIFEST-*"))
    manifest.write_bytes(b"\x01" * manifest.stat().st_size)
    with pytest.raises(StoreFailed) as caught:
        RocksDBStore(logged)
    assert str(logged) in caught.value.message
    assert caught.value.remedy


FULL = """
import resource, signal, sys
from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreFailed
from holdfast.store.rocksdb.store import RocksDBStore
store = RocksDBStore(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
n = 0
try:
    while n < 100:
        store.commit(Batch(appends=[("q", 0, n, Record("urn:s", n, "a", b"x" * 30_000, 0.0))]))
        n += 1
except StoreFailed as error:
    print(n, len(store.read("q", 0, 0, 999, 1 << 40)), error)
for _ in range(2):
    try:
        store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    except StoreFailed as error:
        print("again:", error)
"""


def test_when_the_disk_says_no_the_commit_fails_and_so_does_every_later_one(tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "store"], env=ENV, capture_output=True, text=True, check=True
    ).stdout
    committed, readable = map(int, said.split()[:2])
    assert 5 < committed < 20
    assert readable == committed
    assert "could not write" in said
    assert "Free space" in said
    assert said.count("again:") == said.count("accepts no further batches") == 2
    store = RocksDBStore(tmp_path / "store")
    assert store.load().bounds[("q", 0)] in [(0, committed), (0, committed + 1)]
    assert len(store.read("q", 0, 0, 999, 1 << 40)) >= committed
    store.commit(Batch(sequences={"urn:s": {"n": 1}}))
    store.close()
