"""What the bytes of a log prove."""

from __future__ import annotations

from holdfast.core.records import Batch
from holdfast.store import evidence
from holdfast.store.rocksdb import RocksDBStore


def test_a_log_proves_what_was_durable_before_its_last_commit(tmp_path, record):
    store = RocksDBStore(tmp_path / "store")
    engine = tmp_path / "store" / "db"
    assert evidence.proven_durable(engine) == 0
    for n in range(50):
        store.commit(Batch(appends=[("q", 0, n, record(n, size=9000))]))
        assert max(n - 2, 0) <= evidence.proven_durable(engine) <= n
    store.commit(Batch())
    assert evidence.proven_durable(engine) == 50
    store.close()


def test_a_stamp_gives_back_its_serial():
    assert evidence.stamped_serial(evidence.encode_stamp(7, 3)) == 7
    assert evidence.stamped_serial(None) == 0


def test_a_directory_without_logs_proves_nothing(tmp_path):
    (tmp_path / "1.log").write_bytes(b"")
    assert evidence.proven_durable(tmp_path) == 0
