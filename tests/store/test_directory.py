"""Whose a directory is, which format it has, and who has it open."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rocksdict

import holdfast
from holdfast.core.records import Batch
from holdfast.exceptions import ConfigurationError, StoreError, StoreFailed, StoreFormatError, StoreLocked
from holdfast.store import MemoryStore, directory, open_store
from holdfast.store.rocksdb.repair import repair_store
from holdfast.store.rocksdb.store import RocksDBStore


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its modification time and content."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b'{"format": "one"}', None])
def test_the_command_in_the_error_repairs_a_damaged_holdfast_file(damage, filled):
    marker = filled / "HOLDFAST"
    marker.unlink()
    if damage is not None:
        marker.write_bytes(damage)
    before = tree(filled)
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match="is damaged or missing") as caught:
            open_store(filled, read_only=read_only)
    assert tree(filled) == before
    command = caught.value.remedy.partition("write the file again: ")[2].partition(". Then:")[0]
    subprocess.run(["sh", "-c", command], check=True)
    store = open_store(filled)
    assert store.load().sequences == {"urn:s": {"n": 1}}
    store.close()


def test_only_its_owner_may_read_a_new_store_and_an_existing_one_keeps_its_mode(tmp_path, record):
    old = os.umask(0)
    try:
        RocksDBStore(tmp_path / "a" / "store").close()
    finally:
        os.umask(old)
    made = tmp_path / "a" / "store"
    assert made.stat().st_mode & 0o777 == 0o700
    assert not directory.is_public(made)
    made.chmod(0o755)
    RocksDBStore(made).close()
    assert made.stat().st_mode & 0o777 == 0o755
    assert directory.is_public(made)


@pytest.fixture
def filled(tmp_path, record):
    path = tmp_path / "store"
    store = RocksDBStore(path)
    store.commit(Batch(appends=[("q", 0, 0, record(1))], sequences={"urn:s": {"n": 1}}))
    store.close()
    return path


def set_format(path: Path, version: object) -> None:
    (path / directory.MARKER).write_text(json.dumps({"format": version, "engine": "rocksdb"}))


def test_open_store_accepts_each_kind_of_location(tmp_path):
    memory = open_store(":memory:")
    assert isinstance(memory, MemoryStore)
    assert open_store(memory) is memory
    for location in (tmp_path / "a", str(tmp_path / "b")):
        store = open_store(location)
        assert isinstance(store, RocksDBStore)
        store.close()
    for wrong in ("", "redis://localhost/x"):
        with pytest.raises(ConfigurationError, match="not the location of a store"):
            open_store(wrong)


def test_a_store_is_made_with_its_parents(tmp_path):
    store = RocksDBStore(tmp_path / "a" / "b")
    store.close()
    assert json.loads((tmp_path / "a" / "b" / "HOLDFAST").read_text())["format"] == directory.FORMAT


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_a_newer_format_is_refused_and_no_file_changes(filled, read_only):
    set_format(filled, directory.FORMAT + 1)
    before = tree(filled)
    with pytest.raises(StoreFormatError, match=f"format {directory.FORMAT + 1}") as caught:
        RocksDBStore(filled, read_only=read_only)
    assert "Upgrade" in caught.value.remedy
    assert tree(filled) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_another_engine_is_refused_and_no_file_changes(filled, read_only):
    (filled / directory.MARKER).write_text(json.dumps({"format": directory.FORMAT, "engine": "leveldb"}))
    before = tree(filled)
    with pytest.raises(StoreFormatError, match="has the engine 'leveldb'"):
        RocksDBStore(filled, read_only=read_only)
    assert tree(filled) == before


def test_an_older_format_without_an_upgrade_is_refused_and_no_file_changes(filled):
    set_format(filled, directory.FORMAT - 1)
    before = tree(filled)
    with pytest.raises(StoreFormatError, match="cannot upgrade format 0"):
        RocksDBStore(filled)
    assert tree(filled) == before


def test_an_older_format_is_upgraded_step_by_step_under_the_lock(filled, monkeypatch):
    set_format(filled, directory.FORMAT - 2)
    steps = []

    def upgrade(path: Path) -> None:
        with pytest.raises(StoreLocked):
            RocksDBStore(path)
        steps.append(directory.read_format(path))

    monkeypatch.setattr(directory, "UPGRADES", dict.fromkeys((-1, 0), upgrade))
    with pytest.raises(StoreFormatError, match="this version"):
        RocksDBStore(filled, read_only=True)
    store = RocksDBStore(filled)
    assert steps == [-1, 0]
    assert directory.read_format(filled) == directory.FORMAT
    assert store.load().sequences == {"urn:s": {"n": 1}}
    store.close()


@pytest.mark.parametrize("marker", ["", "{", "[]", "7", '{"format": "one"}', "{}"])
def test_a_marker_that_is_not_ours_is_refused_and_no_file_changes(filled, marker):
    (filled / directory.MARKER).write_text(marker)
    before = tree(filled)
    with pytest.raises(StoreFormatError, match="HOLDFAST is damaged"):
        RocksDBStore(filled)
    assert tree(filled) == before


def test_a_directory_with_other_files_is_refused_untouched(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    before = tree(tmp_path)
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match=r"letter\.txt"):
            RocksDBStore(tmp_path, read_only=read_only)
    assert tree(tmp_path) == before
    with pytest.raises(StoreFormatError, match="not a directory"):
        RocksDBStore(tmp_path / "letter.txt")


def test_an_empty_directory_and_what_a_killed_first_start_leaves_become_a_store(tmp_path):
    (tmp_path / directory.LOCK).write_text("123\n")
    RocksDBStore(tmp_path).close()
    (tmp_path / directory.MARKER).rename(tmp_path / directory.DRAFT)
    RocksDBStore(tmp_path).close()
    assert directory.read_format(tmp_path) == directory.FORMAT
    assert not (tmp_path / directory.DRAFT).exists()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_whose_engine_is_gone_is_an_error_and_not_an_empty_store(filled, read_only):
    shutil.rmtree(filled / directory.ENGINE)
    with pytest.raises(StoreFailed):
        RocksDBStore(filled, read_only=read_only)
    assert not list(filled.rglob("*.log"))


def test_a_directory_that_cannot_be_read_or_written_says_what_to_do(tmp_path):
    for name in (directory.LOCK, directory.DRAFT, directory.MARKER):
        path = tmp_path / name.replace(".", "-")
        (path / name).mkdir(parents=True)
        with pytest.raises(StoreFailed) as caught:
            RocksDBStore(path)
        assert str(path) in caught.value.message
        assert caught.value.remedy


def test_an_engine_opened_by_another_process_is_reported_as_locked(filled):
    engine = rocksdict.Rdict(str(filled / directory.ENGINE), rocksdict.Options(raw_mode=True))
    with pytest.raises(StoreLocked, match="another process"):
        RocksDBStore(filled)
    engine.close()


def test_a_lock_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot be created") as caught:
        directory.DirectoryLock(tmp_path / "file" / "store")
    assert "may write" in caught.value.remedy


def test_a_store_that_exists_is_not_created_again(filled, monkeypatch):
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(directory, "make_private", read_only)
    with pytest.raises(StoreFailed, match=r"cannot be opened for writing: .*Read-only"):
        RocksDBStore(filled)
    with pytest.raises(StoreFailed, match=r"cannot be created: .*Read-only"):
        RocksDBStore(filled / "other")
    before = tree(filled)
    assert not repair_store(filled).is_needed
    assert tree(filled) == before
    with pytest.raises(StoreFailed, match="cannot be opened for writing"):
        repair_store(filled, do=True)


def test_a_full_disk_can_be_locked_and_a_lock_that_needs_space_says_so(mount_disk, monkeypatch):
    disk = mount_disk(1)
    (disk / "store").mkdir()
    (disk / "store" / directory.LOCK).touch()
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    lock = directory.DirectoryLock(disk / "store")
    with pytest.raises(StoreLocked):
        directory.DirectoryLock(disk / "store")
    lock.release()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(directory, "make_private", full)
    with pytest.raises(StoreFailed, match="No space left") as caught:
        directory.DirectoryLock(disk / "other")
    assert caught.value.remedy == "Free space there."


def test_looking_at_no_store_makes_none(tmp_path):
    with pytest.raises(StoreFormatError, match="no store at"):
        RocksDBStore(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_a_second_opening_in_this_process_is_refused_until_the_first_is_closed(filled):
    first = RocksDBStore(filled)
    with pytest.raises(StoreLocked, match="in this process") as caught:
        RocksDBStore(filled)
    assert "Close it" in caught.value.remedy
    first.close()
    RocksDBStore(filled).close()


def test_a_second_process_learns_which_process_has_the_store(filled):
    first = RocksDBStore(filled)
    script = (
        "import sys; from holdfast.store import open_store; from holdfast.exceptions import StoreLocked\n"
        "try: open_store(sys.argv[1])\n"
        "except StoreLocked as error: print(error)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}
    said = subprocess.run([sys.executable, "-c", script, filled], env=env, capture_output=True, text=True, check=True)
    first.close()
    assert f"open in process {os.getpid()}" in said.stdout
    assert f"Stop process {os.getpid()} first: only one process" in said.stdout


def test_a_failed_opening_gives_the_lock_back(filled, monkeypatch):
    def damaged(self: RocksDBStore) -> None:
        raise StoreError("damaged")

    monkeypatch.setattr(RocksDBStore, "_find_content", damaged)
    with pytest.raises(StoreError, match="damaged"):
        RocksDBStore(filled)
    monkeypatch.undo()
    RocksDBStore(filled).close()


def test_looking_is_possible_while_it_is_open_and_changes_nothing(filled, record):
    writer = RocksDBStore(filled)
    writer.commit(Batch(appends=[("q", 0, 1, record(2))], holds=[("urn:s", 9, record(9))]))
    before = tree(filled)
    view = RocksDBStore(filled, read_only=True)
    assert view.load() == writer.load()
    assert view.read("q", 0, 0, 9) == [(0, record(1)), (1, record(2))]
    with pytest.raises(StoreError, match="not open for writing"):
        view.commit(Batch(sequences={"urn:s": None}))
    view.close()
    assert tree(filled) == before
    writer.commit(Batch(appends=[("q", 0, 2, record(3))]))
    writer.close()


def test_a_closed_store_says_so(filled):
    store = RocksDBStore(filled)
    store.close()
    store.close()
    for call in (lambda: store.read("q", 0, 0, 1), store.load, lambda: store.commit(Batch(sequences={"a": {}}))):
        with pytest.raises(StoreError, match=r"is closed|not open"):
            call()


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "engine deleted"])
def test_a_directory_that_is_taken_away_while_it_is_open_takes_no_further_batch(filled, record, how):
    store = RocksDBStore(filled)
    store.commit(Batch(appends=[("q", 0, 1, record(2))]))
    if how == "engine deleted":
        shutil.rmtree(filled / directory.ENGINE)
    elif how == "deleted":
        shutil.rmtree(filled)
    else:
        filled.rename(filled.with_name("elsewhere"))
    if how == "replaced":
        shutil.copytree(filled.with_name("elsewhere"), filled)
    with pytest.raises(StoreFailed, match="was deleted, moved or replaced while it was open") as caught:
        store.commit(Batch(appends=[("q", 0, 2, record(3))]))
    assert "None of the data written since was acknowledged" in caught.value.message
    assert caught.value.remedy
    with pytest.raises(StoreFailed, match="accepts no further batches"):
        store.commit(Batch(appends=[("q", 0, 2, record(3))]))
    store.close()
    if how == "moved":
        with contextlib.closing(RocksDBStore(filled.with_name("elsewhere"))) as moved:
            assert len(moved.read("q", 0, 0, 9)) >= 2, "what was acknowledged is where the directory is"


def test_a_relative_directory_stays_in_place_when_the_process_goes_elsewhere(filled, record, monkeypatch, tmp_path):
    monkeypatch.chdir(filled.parent)
    store = RocksDBStore(filled.name)
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    store.commit(Batch(sequences={"urn:s": {"n": 2}}))
    store.close()
