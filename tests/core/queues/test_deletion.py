"""Which records of a queue may be deleted. With readers, handlers and time: ``test_queue``."""

from __future__ import annotations

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, ReadWanted
from holdfast.core.queues.cursors import HANDLER, OUTBOUND, Cursors
from holdfast.core.queues.deletion import Deletion
from holdfast.core.queues.description import QueueDescription
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Record


class Parts:
    """The parts of a queue with ten durable records, and no queue."""

    def __init__(self, *, epoch: str = "", drops_passed: bool = True, retention: RetentionPolicy | None = None) -> None:
        self.commit, self.effects = GroupCommit(), list[Effect]()
        self.records = QueueRecords("orders", 1)
        self.records.join(self.commit, self.effects, lambda *_: [])
        self.cursors = Cursors(self.records)
        self.description = QueueDescription(self.records, "inbox")
        self.description.epoch = epoch
        self.deletion = Deletion(self.records, self.cursors, self.description, retention, drops_passed=drops_passed)
        self.one = self.records.partitions[0]
        self.one.end = self.one.durable_end = 10

    def follow(self, *offsets: int) -> None:
        for number, offset in enumerate(offsets):
            self.cursors.add_outbound(f"{OUTBOUND}{number}", 0, offset)
        self.deletion.decide()


def test_passed_records_go_at_once_only_if_the_queue_may_drop_them() -> None:
    parts = Parts()
    parts.deletion.decide()
    assert not parts.deletion.drops_now
    parts.follow(4)
    assert parts.deletion.drops_now and parts.deletion.keeps == "until it is acknowledged"
    kept = Parts(drops_passed=False)
    kept.follow(4)
    assert not kept.deletion.drops_now and kept.deletion.keeps == "for ever"


def test_the_slowest_follower_decides_what_is_kept() -> None:
    parts = Parts()
    parts.follow(7, 4, 9)
    assert parts.deletion.keep_from(0) == 4
    parts.deletion.trim(0)
    assert parts.commit.batch.trims == {("orders", 0): 4}


def test_handlers_without_a_cursor_keep_every_record() -> None:
    parts = Parts()
    parts.deletion.is_handled = True
    parts.follow(7)
    assert parts.deletion.keep_from(0) == 0
    parts.cursors.add(HANDLER, 0.0, None).offsets[0] = 3
    assert parts.deletion.keep_from(0) == 3


def test_a_reader_protects_records_up_to_its_limit_and_a_follower_beyond_it() -> None:
    parts = Parts(drops_passed=False)
    parts.one.expired, parts.one.lapsed = 9, 5
    parts.cursors.add("spark", 0.0, None)
    assert parts.deletion.has_limited_cursors(0)
    assert parts.deletion.keep_from(0) == 5
    parts.follow(2)
    assert parts.deletion.keep_from(0) == 2


def test_purged_records_go_whatever_readers_protect() -> None:
    parts = Parts(drops_passed=False)
    parts.cursors.add("spark", 0.0, None)
    parts.deletion.purge(0, 99)
    assert parts.one.first == 10


def test_a_queue_with_an_epoch_reads_the_last_deleted_record_for_its_fingerprint() -> None:
    parts = Parts(epoch="e")
    parts.follow(4)
    parts.deletion.trim(0)
    (wanted,) = parts.effects
    assert isinstance(wanted, ReadWanted) and (wanted.start, wanted.end, parts.one.first) == (3, 4, 0)
    wanted.take([(3, Record("urn:s", 4, "urn:a", b"m", 1.0))], 2.0)
    assert parts.one.first == 4
    assert parts.description.fingerprint(0, 4)


def test_a_last_record_in_memory_is_not_read_again() -> None:
    parts = Parts(epoch="e")
    parts.follow(4)
    parts.one.passed = (3, Record("urn:s", 4, "urn:a", b"m", 1.0))
    parts.deletion.trim(0)
    assert (parts.effects, parts.one.first, parts.one.passed) == ([], 4, None)
