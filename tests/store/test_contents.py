"""Contents beside the records that name them: written before, deleted after, whatever dies in between.

Covers store/base.py, store/contents.py, store/references.py and store/sql/contents.py.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import event
from waiting import until

from holdfast.core.records import Batch, ContentWriter, content_name, content_size, own_bytes, with_content
from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed
from holdfast.store import open_store
from holdfast.store.references import References
from holdfast.store.rocksdb.checking import check_store
from holdfast.store.rocksdb.repair import repair_store
from holdfast.store.rocksdb.store import RocksDBStore
from holdfast.store.sql.changes import PIECE_BYTES

DATA = bytes(range(256)) * 10_000  # three pieces in a database


def written(store, data=DATA) -> ContentWriter:
    writer = store.contents.create()
    for start in range(0, len(data), 700_000):
        writer.write(data[start : start + 700_000])
    writer.finish()
    return writer


def naming(record, writer: ContentWriter):
    return replace(record, attachments=with_content(writer.hold, writer.size, b"\x93parts"))


def is_there(store, name: bytes) -> bool:
    try:
        with store.contents.open(name) as file:
            return bool(file.read(1))
    except (StoreError, KeyError):
        return False


def fill(writer: ContentWriter, megabytes: int) -> None:
    for _ in range(megabytes):
        writer.write(bytes(1 << 20))


def read(record) -> bytes:
    with record.attachments.hold.open() as file:
        return file.read()


def test_a_record_keeps_its_content_and_every_place_in_it_can_be_read(opened, record):
    opened.store.commit(Batch(appends=[("q", 0, 0, naming(record(1), written(opened.store)))]))
    ((_, found),) = opened.reopen().read("q", 0, 0, 1)
    assert (content_size(found.attachments), own_bytes(found.attachments)) == (len(DATA), b"\x93parts")
    assert read(found) == DATA
    with found.attachments.hold.open() as file:
        for place in (0, 1_048_575, 1_048_577, len(DATA) - 3):
            file.seek(place)
            assert file.read(3) == DATA[place : place + 3]
        assert file.seek(5) == 5 and file.tell() == 5


@pytest.mark.skipif(sys.platform == "win32", reason="directories need no sync there")
def test_a_finished_content_survives_a_power_failure_with_each_name_on_its_path(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    store = RocksDBStore(tmp_path / "store")
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), sync(file)))
    writer = written(store)
    here = tmp_path / "store" / "attachments"
    paths = [here / writer.hold.name.hex(), here, tmp_path / "store"]
    assert synced == [path.stat().st_ino for path in paths]
    written(store)
    assert len(synced) == 5, "the name of the directory is made durable only once"
    store.close()


async def test_the_last_record_that_names_a_content_takes_it_away(opened, record):
    store = opened.store
    one = naming(record(1), written(store))
    name = content_name(one.attachments)
    store.commit(Batch(appends=[("q", 0, 0, one), ("q", 0, 1, record(2))], holds=[("urn:s", 7, one)]))
    del one
    store.commit(Batch(trims={("q", 0): 2}))
    store.commit(Batch(releases=[("urn:s", 7, "other", 0, 0, 20.0)]))
    ((_, released),) = store.read("other", 0, 0, 1)
    assert read(released) == DATA and content_name(released.attachments) == name
    store = opened.reopen()
    assert is_there(store, name)
    store.commit(Batch(deletes=[("other", 0)]))
    del released
    gc.collect()
    await until(lambda: not is_there(store, name))


@pytest.mark.parametrize("how", ["dropped", "forgotten", "replaced"])
async def test_a_held_message_that_goes_takes_its_content_away(opened, record, how):
    store = opened.store
    one = naming(record(1), written(store))
    name = content_name(one.attachments)
    store.commit(Batch(holds=[("urn:s", 1, one)], sequences={"urn:s": {"a": 1}}))
    batch = {
        "dropped": Batch(drops=[("urn:s", 1)]),
        "forgotten": Batch(sequences={"urn:s": None}),
        "replaced": Batch(holds=[("urn:s", 1, record(1))]),
    }[how]
    store.commit(batch)
    assert is_there(store, name)  # the record in memory holds it
    del one
    gc.collect()
    await until(lambda: not is_there(store, name))


@pytest.mark.parametrize("is_named", [False, True])
def test_a_content_that_a_program_still_has_goes_with_it_after_the_close(tmp_path, record, is_named):
    store = RocksDBStore(tmp_path / "store")
    files = tmp_path / "store" / "attachments"
    store.commit(Batch(appends=[("q", 0, 0, naming(record(1), written(store)))]))
    ((_, one),) = store.read("q", 0, 0, 1)
    holders = [one, replace(one), *(found for _, found in store.read("q", 0, 0, 1))]
    if not is_named:
        store.commit(Batch(trims={("q", 0): 1}))
    del one
    store.close()
    while holders:
        assert read(holders[-1]) == DATA
        holders.pop()
        gc.collect()
    assert len(list(files.iterdir())) == is_named


async def test_a_content_that_no_record_came_to_name_is_deleted(opened):
    writer = written(opened.store)
    name = writer.hold.name
    assert is_there(opened.store, name)
    del writer
    gc.collect()
    await until(lambda: not is_there(opened.store, name))


async def test_contents_that_could_not_be_deleted_are_deleted_with_the_next_one(opened, monkeypatch):
    store, tried = opened.store, []
    delete = store.contents.delete

    def fail(name: bytes) -> None:
        tried.append(name)
        raise OSError(ENOSPC, "no room") if len(tried) % 2 else StoreFailed("away")

    monkeypatch.setattr(store.contents, "delete", fail)
    names = []
    for number in range(2):
        names.append(written(store).hold.name)
        gc.collect()
        await until(lambda number=number: len(tried) > number)
    assert all(is_there(store, name) for name in names)
    monkeypatch.setattr(store.contents, "delete", delete)
    names.append(written(store).hold.name)
    gc.collect()
    await until(lambda: not any(is_there(store, name) for name in names))


def test_what_a_killed_process_wrote_is_deleted_at_the_next_start(opened, record):
    if opened.kind == "memory":
        pytest.skip("it ends with its process")
    named, lost = written(opened.store), written(opened.store, b"lost")
    opened.store.commit(Batch(appends=[("q", 0, 0, naming(record(1), named))]))
    store = opened.reopen()
    assert is_there(store, named.hold.name) and not is_there(store, lost.hold.name)


def test_a_record_that_comes_and_goes_in_one_batch_names_nothing(opened, record):
    writer = written(opened.store)
    opened.store.commit(Batch(appends=[("q", 0, 0, naming(record(1), writer))], trims={("q", 0): 1}))
    assert not opened.store.contents.is_named(writer.hold.name)


@pytest.mark.parametrize("step", [1, 2, 5, 9])
def test_a_queue_is_trimmed_in_steps_of_any_size(opened, record, step):
    store, names = opened.store, {}
    for offset in range(9):
        one = record(offset + 1)
        if offset % 3:
            one = naming(one, written(store, b"%d" % offset))
            names[offset] = content_name(one.attachments)
        store.commit(Batch(appends=[("q", 0, offset, one)]))
    for first in range(step, 10, step):
        store.commit(Batch(trims={("q", 0): first}))
        named = {offset for offset, name in names.items() if store.contents.is_named(name)}
        assert named == {offset for offset in names if offset >= first}


class Unsearched(dict[int, bytes]):
    def __iter__(self):
        raise AssertionError("all references were searched")


def test_a_small_step_of_a_trim_does_not_search_all_references():
    references = References()
    references._names["q", 0] = Unsearched(dict.fromkeys(range(10, 1000), b""))
    assert references.below(("q", 0), 8, 12) == [10, 11]


def test_a_content_may_be_empty(opened, record):
    one = naming(record(1), written(opened.store, b""))
    opened.store.commit(Batch(appends=[("q", 0, 0, one)]))
    ((_, found),) = opened.store.read("q", 0, 0, 1)
    assert read(found) == b""


def test_a_missing_file_is_damage_that_a_check_reports_with_its_name(tmp_path, record):
    store = RocksDBStore(tmp_path / "s")
    one = naming(record(1), written(store))
    store.commit(Batch(appends=[("q", 0, 0, one)]))
    file = tmp_path / "s" / "attachments" / content_name(one.attachments).hex()
    file.unlink()
    with pytest.raises(StoreDamaged, match=file.name):
        read(store.read("q", 0, 0, 1)[0][1])
    store.close()
    (problem,) = check_store(tmp_path / "s").problems
    assert file.name in problem and "at offset 0" in problem


def test_a_repair_keeps_the_contents(tmp_path, record):
    place = tmp_path / "s"
    store = RocksDBStore(place)
    one = naming(record(1), written(store))
    store.commit(Batch(appends=[("q", 0, 0, one)], queues={"q": {"kind": "inbox", "partitions": 1}}))
    store.close()
    manifest = next((place / "db").glob("MANIFEST-*"))
    manifest.write_bytes(bytes(manifest.stat().st_size))
    assert repair_store(place, do=True).is_needed
    store = RocksDBStore(place)
    assert read(store.read("q", 0, 0, 1)[0][1]) == DATA
    store.close()


def test_a_disk_without_room_is_left_to_the_store(mount_disk, record):
    place: Path = mount_disk(256)
    store = RocksDBStore(place / "s")
    writer = store.contents.create()
    with pytest.raises(OSError, match="No space") as raised:
        fill(writer, 300)
    assert raised.value.errno == ENOSPC
    store.commit(Batch(appends=[("q", 0, 0, record(1))]))
    del writer, raised
    gc.collect()
    store.close()
    assert not list((place / "s" / "attachments").iterdir())


def test_a_process_that_lost_its_space_writes_no_piece_of_a_content(database, record):
    store = open_store(database.new_url())
    writer = store.contents.create()
    writer.write(bytes(PIECE_BYTES))
    database.sql(f"UPDATE holdfast_spaces SET epoch = epoch + 1 WHERE id = {store.space}")
    with pytest.raises(StoreFailed, match="has opened the store"):
        writer.write(bytes(PIECE_BYTES))
    assert database.sql(f"SELECT count(*) FROM holdfast_contents WHERE space = {store.space}").split()[-1] == "1"
    store.close()


def test_whoever_takes_a_space_over_waits_for_a_piece_that_is_being_written(servers, record):
    server = servers("postgresql")
    url = server.new_url()
    store = open_store(url)
    name, arrived, may_go = uuid4().bytes, threading.Event(), threading.Event()

    def pause(_connection, _cursor, statement, *_rest):
        if "FOR SHARE" in statement:
            arrived.set()
            assert may_go.wait(120)

    event.listen(store.contents._writing, "after_cursor_execute", pause)
    writing = threading.Thread(target=store.contents.put, args=(name, 0, b"late"))
    writing.start()
    assert arrived.wait(120)
    store._drop_writer()  # as if its process were cut off: the lock of the space is free
    opening = ThreadPoolExecutor(1).submit(open_store, url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE holdfast_%'"
    while server.sql(waiting).split()[-1] == "0":
        assert not opening.done()
    may_go.set()
    writing.join()
    taken = opening.result()
    assert taken.epoch == store.epoch + 1 and not is_there(taken, name)
    with pytest.raises(StoreFailed):
        store.contents.put(name, 1, b"later")
    taken.close()
    store.close()
