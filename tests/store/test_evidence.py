"""What the bytes of a log prove.

Covers store/rocksdb/evidence.py and store/rocksdb/log_format.py.
"""

from __future__ import annotations

import contextlib
import shutil
import struct

import pytest

from holdfast.core.records import Batch
from holdfast.store.rocksdb import evidence
from holdfast.store.rocksdb.checking import check_store
from holdfast.store.rocksdb.log_format import BLOCK, crc32c, is_whole, records
from holdfast.store.rocksdb.store import RocksDBStore


def test_a_log_proves_what_was_durable_before_its_last_commit(tmp_path, record):
    store = RocksDBStore(tmp_path / "store")
    engine = tmp_path / "store" / "db"
    assert evidence.proven_durable(engine) == 0
    for n in range(50):
        store.commit(Batch(appends=[("q", 0, n, record(n, size=9000))]))
        assert evidence.proven_durable(engine) == n
    store.commit(Batch())
    assert evidence.proven_durable(engine) == 50
    store.close()


def test_a_stamp_gives_back_its_serial():
    assert evidence.stamped_serial(evidence.encode_stamp(7, 3)) == 7
    assert evidence.stamped_serial(None) == 0


def test_a_directory_without_logs_proves_nothing(tmp_path):
    (tmp_path / "1.log").write_bytes(b"")
    assert evidence.proven_durable(tmp_path) == 0


def log_of(batches, *, recyclable=False):
    """A log as RocksDB writes it."""
    log = bytearray()
    number = struct.pack("<I", 7) if recyclable else b""
    for batch in batches:
        is_first, left = True, batch
        while is_first or left:
            room = BLOCK - len(log) % BLOCK - 7 - len(number)
            if room < 0:
                log += bytes(room + 7 + len(number))
                continue
            piece, left = left[:room], left[room:]
            kind = (1 if not left else 2) if is_first else (4 if not left else 3)
            tail = bytes((kind + (4 if recyclable else 0),)) + number + piece
            crc = crc32c(tail)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            log += struct.pack("<IH", masked, len(piece)) + tail
            is_first = False
    return bytes(log)


def batch_of(serial, size=0):
    key = evidence.STAMP
    stamp = bytes((1, len(key))) + key + bytes((16,)) + evidence.encode_stamp(serial, serial - 1)
    return bytes(12) + stamp + b"x" * size


@pytest.mark.parametrize("recyclable", [False, True])
def test_a_stamp_is_read_wherever_a_block_of_the_log_ends(tmp_path, recyclable):
    path = tmp_path / "000004.log"
    whole = len(batch_of(1))
    for left in range(0, 2 * whole, 2 if recyclable else 3):
        filler = batch_of(1, BLOCK - 2 * 7 - whole - left)
        log = log_of([filler, batch_of(2), batch_of(3, 100)], recyclable=recyclable)
        path.write_bytes(log)
        assert evidence.log_serials(path) == (1, 3), left
        assert evidence.proven_durable(tmp_path) == 2, left
        assert is_whole(log)


@pytest.mark.parametrize("left", range(0, 90, 40))
def test_what_a_torn_write_has_left_of_a_stamp_proves_nothing(tmp_path, left):
    path = tmp_path / "000004.log"
    filler = batch_of(1, BLOCK - 7 - len(batch_of(1)) - left)
    log = log_of([filler, batch_of(2, 3000)])
    for cut in range(len(log_of([filler])) + 1, len(log), 97):
        path.write_bytes(log[:cut] + bytes(9000))
        assert evidence.log_serials(path) == (1, 1), cut
        assert evidence.proven_durable(tmp_path) == 0, cut


def test_whole_batches_behind_a_damage_are_found_in_the_same_block_and_in_later_ones():
    batches = [batch_of(n, 700) for n in range(1, 200)]
    log = log_of(batches)
    for place in range(0, len(log), 9007):
        spoilt = bytearray(log)
        spoilt[place] ^= 0x55
        found = [evidence.stamp_of(batch)[0] for batch in evidence.batches(bytes(spoilt))]
        assert found == sorted(found)
        assert len(found) >= len(batches) - 2, place
        assert list(records(log)) == batches


@pytest.fixture(scope="module")
def killed(tmp_path_factory, record):
    """Copies of a store with 1.2 MB of small batches, as kills leave it; a long batch is the last of each."""
    path = tmp_path_factory.mktemp("killed")
    store = RocksDBStore(path / "store")
    for n in range(3201):
        store.commit(Batch(appends=[("q", 0, n, record(n, size=n % 97 if n % 800 else 30_000))]))
        if n and n % 800 == 0:
            shutil.copytree(path / "store", path / str(n + 1))
    store.close()
    return [path / str(n + 1) for n in (800, 1600, 2400, 3200)]


def test_a_killed_store_with_many_small_batches_is_whole(killed):
    for path in killed:
        report = check_store(path)
        assert (report.problems, report.records) == ([], int(path.name))


def test_a_store_opens_whose_last_write_a_power_cut_has_left_as_zeros(killed, tmp_path):
    for path in killed:
        for cut in (29_990, 12_000):
            shutil.copytree(path, tmp_path / "copy")
            (log,) = evidence.logs(tmp_path / "copy" / "db")
            log.write_bytes(log.read_bytes()[:-cut] + bytes(cut + 100_000))
            assert check_store(tmp_path / "copy").problems == []
            with contextlib.closing(RocksDBStore(tmp_path / "copy")) as again:
                assert again.load().bounds == {("q", 0): (0, int(path.name) - 1)}
            shutil.rmtree(tmp_path / "copy")


def test_logs_are_used_up_to_a_damage_or_a_gap_and_never_over_it(tmp_path):
    logs = [log_of(batch_of(n, 300) for n in part) for part in (range(1, 6), range(6, 9), range(9, 12))]

    def usable(known, *numbers, spoilt=None):
        for path in tmp_path.glob("*.log"):
            path.unlink()
        for number in numbers:
            data = bytearray(logs[number])
            if number == spoilt:
                data[len(data) // 2] ^= 1
            (tmp_path / f"{number:06d}.log").write_bytes(data)
        return [(int(path.stem), length) for path, length in evidence.usable_logs(tmp_path, known)]

    whole = [len(log) for log in logs]
    assert usable(0, 0, 1, 2) == list(enumerate(whole))
    assert usable(0, 0, 2) == [(0, whole[0])]
    assert usable(0, 1, 2) == []
    assert usable(5, 1, 2) == [(1, whole[1]), (2, whole[2])]
    assert usable(0, 0, 1, 2, spoilt=1) == [(0, whole[0]), (1, len(log_of([batch_of(6, 300)])))]
