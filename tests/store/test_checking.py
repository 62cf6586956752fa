"""Checking a store finds whatever is wrong with it; repairing gives up what it says, and nothing else.

Covers store/rocksdb/checking.py and store/rocksdb/repair.py.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from itertools import count
from pathlib import Path

import pytest

from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreDamaged, StoreFailed, StoreFormatError, StoreLocked
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.rocksdb import evidence
from holdfast.store.rocksdb.checking import check_store
from holdfast.store.rocksdb.repair import DAMAGED, NEW, repair_store
from holdfast.store.rocksdb.salvage import SAVED
from holdfast.store.rocksdb.store import RocksDBStore


def body(number: int) -> bytes:
    return b"<x>" + random.Random(number).randbytes(1200).hex().encode() + b"</x>"


def make(path: Path, queue: str = "inbox", kind: str = "inbox") -> RocksDBStore:
    """Three tables of a hundred records each, and a hundred in the log."""
    store = RocksDBStore(path)
    for n in range(400):
        record = Record("urn:s", n + 1, "urn:a", body(n), float(n))
        store.commit(
            Batch(
                queues={queue: {"kind": kind, "epoch": "e", "partitions": 1}} if not n else {},
                appends=[(queue, 0, n, record)],
                sequences={"urn:s": {"n": n}},
                holds=[("urn:s", 1000 + n, record)] if not n % 50 else [],
                cursors={(queue, 0, "r"): {"offset": n}},
            )
        )
        if n in (99, 199, 299):
            store._db.flush()
    return store


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    store = make(tmp_path / "made")
    shutil.copytree(tmp_path / "made", tmp_path / "store")
    store.close()
    return tmp_path / "store"


def spoil(path: Path, number: int) -> None:
    for table in (path / directory.ENGINE).glob("*.sst"):
        data = bytearray(table.read_bytes())
        if (place := data.find(body(number)[100:112])) >= 0:
            data[place] ^= 1
            table.write_bytes(data)
            return
    raise AssertionError("it is in no table")


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_whole_store_is_found_whole_and_stays_as_it_is(killed):
    before = tree(killed)
    report = check_store(killed)
    assert (report.problems, report.records, report.serial, report.is_open) == ([], 400, 400, False)
    assert tree(killed) == before
    assert not repair_store(killed).is_needed


def test_a_store_that_is_open_is_checked_as_it_is(tmp_path):
    store = make(tmp_path / "store")
    report = check_store(tmp_path / "store")
    assert (report.problems, report.records, report.is_open) == ([], 400, True)
    with pytest.raises(StoreLocked):
        repair_store(tmp_path / "store")
    store.close()
    assert check_store(tmp_path / "store").problems == []


def test_a_directory_without_a_store_is_reported(tmp_path):
    for call in (check_store, repair_store):
        with pytest.raises(StoreFormatError, match="no store"):
            call(tmp_path / "nowhere")


def test_unreadable_records_are_named_and_a_repair_keeps_or_saves_the_others(killed):
    spoil(killed, 170)
    report = check_store(killed)
    assert any("is damaged" in problem for problem in report.problems)
    lost = report.unreadable["inbox", 0]
    assert 170 in lost
    assert len(lost) < 40
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert report.records == 400 - len(lost)
    before = tree(killed)
    said = repair_store(killed)
    assert f"records 0 to {lost[-1]}" in said.gives_up[0]
    assert {name: data for name, data in tree(killed).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }, "nothing is done before it is told to"
    assert repair_store(killed, do=True).gives_up == said.gives_up
    assert check_store(killed).problems == []
    with contextlib.closing(RocksDBStore(killed)) as store:
        assert store.load().bounds == {("inbox", 0): (lost[-1] + 1, 400)}
        found = store.read("inbox", 0, 0, 400, 1 << 40)
        assert [(offset, one.body) for offset, one in found] == [(n, body(n)) for n in range(lost[-1] + 1, 400)]
        assert store.load().sequences == {"urn:s": {"n": 399}}
        assert store.load().held == {"urn:s": [1000 + n for n in range(0, 400, 50)]}
        store.commit(Batch(appends=[("inbox", 0, 400, Record("urn:s", 1, "urn:a", b"<x/>", 0.0))]))
    lines = [json.loads(line) for line in (killed / SAVED).read_text().splitlines()]
    assert [line["offset"] for line in lines] == [n for n in range(lost[-1]) if n not in lost]
    assert lines[7]["body"] == body(7).decode()
    assert (killed / DAMAGED).exists()


@pytest.mark.parametrize(
    ("place", "name", "step"),
    [(Path, "rename", 0), (Path, "unlink", 0), (Path, "rename", 1), (directory, "sync_directory", 0)],
)
def test_a_repair_killed_while_it_exchanges_files_continues_only_when_told(killed, monkeypatch, place, name, step):
    spoil(killed, 170)
    losses = repair_store(killed).gives_up
    original, steps = getattr(place, name), count()

    def kill(*arguments, **named):
        if next(steps) == step:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, kill)
        with pytest.raises(KeyboardInterrupt):
            repair_store(killed, do=True)
    is_done = (killed / directory.ENGINE).exists() and (killed / DAMAGED).exists()
    before = tree(killed)
    shown = repair_store(killed)
    assert tree(killed) == before, "nothing is done before it is told to"
    assert shown.is_needed != is_done
    if not (killed / DAMAGED).exists():
        assert shown.gives_up == losses
    assert is_done or shown.gives_up, "what is lost is never called nothing"
    assert repair_store(killed, do=True) == shown
    assert check_store(killed).problems == []
    assert not (killed / NEW).exists()
    assert not repair_store(killed).is_needed


def test_an_outbox_of_which_a_record_cannot_be_read_is_not_repaired(tmp_path):
    make(tmp_path / "store", "outbox/", "outbox").close()
    spoil(tmp_path / "store", 60)
    for do in (False, True):
        with pytest.raises(StoreFailed, match="must be sent in order") as caught:
            repair_store(tmp_path / "store", do=do)
        assert "send missing messages again" in caught.value.remedy
    assert not (tmp_path / "store" / DAMAGED).exists()


def test_what_is_sent_on_in_order_is_not_repaired_before_it_was_sent(tmp_path):
    store = make(tmp_path / "store")
    store.commit(Batch(cursors={("inbox", 0, "outbound/forward/next/0"): {"offset": 40}}))
    store.close()
    spoil(tmp_path / "store", 60)
    for do in (False, True):
        with pytest.raises(StoreFailed, match="'forward/next/0' forwards partition 0 of 'inbox'"):
            repair_store(tmp_path / "store", do=do)
    assert not (tmp_path / "store" / DAMAGED).exists()


def test_what_was_sent_on_already_does_not_stand_in_the_way_of_a_repair(tmp_path):
    store = make(tmp_path / "store")
    store.commit(Batch(cursors={("inbox", 0, "outbound/forward/next/0"): {"offset": 390}}))
    store.close()
    spoil(tmp_path / "store", 60)
    lost = check_store(tmp_path / "store").unreadable["inbox", 0]
    repair_store(tmp_path / "store", do=True)
    with contextlib.closing(RocksDBStore(tmp_path / "store")) as again:
        assert again.load().bounds == {("inbox", 0): (lost[-1] + 1, 400)}
        assert again.load().cursors["inbox", 0, "outbound/forward/next/0"] == {"offset": 390}


@pytest.mark.parametrize(("mark", "is_refused"), [(150, False), (500, True), (None, True)])
def test_batches_that_may_have_been_sent_are_not_given_up(tmp_path, mark, is_refused):
    sending = {"role": "source", "identifier": "urn:next", "start": 0} | ({} if mark is None else {"mark": mark})
    store = make(tmp_path / "made")
    store.commit(Batch(sequences={"urn:local": sending}, homes={"urn:local": ("inbox", 0)}))
    for n in range(400, 500):
        store.commit(Batch(appends=[("inbox", 0, n, Record("urn:s", n + 1, "urn:a", body(n), float(n)))]))
    shutil.copytree(tmp_path / "made", tmp_path / "store")
    store.close()
    (log,) = evidence.logs(tmp_path / "store" / directory.ENGINE)
    data = bytearray(log.read_bytes())
    data[len(data) - 40_000] ^= 0xFF
    log.write_bytes(data)
    if is_refused:
        with pytest.raises(StoreFailed, match="other messages would go out with their numbers"):
            repair_store(tmp_path / "store", do=True)
        assert not (tmp_path / "store" / DAMAGED).exists()
    else:
        assert "everything after batch" in repair_store(tmp_path / "store", do=True).gives_up[0]


def test_a_manifest_cut_short_is_repaired_and_nothing_is_missing(killed):
    (manifest,) = (killed / directory.ENGINE).glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:-60])
    assert any("MANIFEST" in problem for problem in check_store(killed).problems)
    assert "may return" in repair_store(killed).gives_up[0]
    repair_store(killed, do=True)
    assert check_store(killed).problems == []
    with contextlib.closing(RocksDBStore(killed)) as store:
        assert [one.body for _, one in store.read("inbox", 0, 0, 400, 1 << 40)] == [body(n) for n in range(400)]
        assert store.load().sequences == {"urn:s": {"n": 399}}


def test_a_log_damaged_in_the_middle_is_cut_there_and_it_is_said_how_much_is_lost(killed):
    (log,) = evidence.logs(killed / directory.ENGINE)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    report = check_store(killed)
    assert any("was durable" in problem for problem in report.problems)
    said = repair_store(killed, do=True)
    assert f"everything after batch {report.serial}" in said.gives_up[0]
    assert check_store(killed).problems == []
    with contextlib.closing(RocksDBStore(killed)) as store:
        assert store.load().bounds == {("inbox", 0): (0, report.serial)}
        store.commit(Batch(sequences={"urn:s": None}))


def test_a_note_that_is_not_as_it_was_written_is_found_and_put_right(killed):
    (killed / directory.NOTE).write_text("999 00000000\n")
    assert any("was changed or cut short" in problem for problem in check_store(killed).problems)
    with pytest.raises(StoreDamaged):
        RocksDBStore(killed)
    assert repair_store(killed, do=True).is_needed
    assert check_store(killed).problems == []


def test_states_that_cannot_be_read_are_beyond_repair(tmp_path):
    store = RocksDBStore(tmp_path / "store")
    store.commit(Batch(sequences={f"urn:s{n}": {"raw": random.Random(n).randbytes(6000)} for n in range(9)}))
    store._db.flush()
    store.close()
    (table,) = (tmp_path / "store" / directory.ENGINE).glob("*.sst")
    data = bytearray(table.read_bytes())
    data[data.index(random.Random(5).randbytes(6000)[3000:3020])] ^= 1
    table.write_bytes(data)
    assert check_store(tmp_path / "store").problems
    with pytest.raises(StoreFailed, match="cannot be repaired") as caught:
        repair_store(tmp_path / "store", do=True)
    assert "copy" in caught.value.remedy


def test_a_table_of_which_nothing_can_be_read_is_beyond_repair(killed):
    table = sorted((killed / directory.ENGINE).glob("*.sst"))[1]
    data = bytearray(table.read_bytes())
    data[-1] ^= 1  # of the number by which a table is known
    table.write_bytes(data)
    assert check_store(killed).problems
    with pytest.raises(StoreFailed, match="cannot be repaired"):
        repair_store(killed, do=True)


def test_what_a_store_promises_about_its_cursors_and_held_messages_is_checked(tmp_path):
    store = RocksDBStore(tmp_path / "store")
    record = Record("urn:s", 1, "urn:a", b"<x/>", 0.0)
    store.commit(
        Batch(
            appends=[("q", 0, 0, record)],
            cursors={("q", 0, "r"): {"offset": 7}},
            holds=[("urn:unknown", 3, record)],
        )
    )
    store._db.put(layout.partition_key(layout.RECORD, "q", 0) + layout.number(0), b"no record")
    store.close()
    problems = "\n".join(check_store(tmp_path / "store").problems)
    assert "the cursor 'r' of 'q', 0 is at 7" in problems
    assert "the unknown Sequence urn:unknown" in problems
    assert "are not a record" in problems
