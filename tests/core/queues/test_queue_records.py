"""What a batch says about a queue's records."""

from __future__ import annotations

from holdfast.core.commit import GroupCommit
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.records import Record


def joined() -> tuple[QueueRecords, GroupCommit]:
    records, commit = QueueRecords("orders", 2), GroupCommit()
    records.join(commit, [], lambda *_: [])
    return records, commit


def test_offsets_follow_each_other_whether_a_record_is_appended_or_released() -> None:
    records, commit = joined()
    record = Record("urn:s", 1, "urn:a", b"m", 1.0)
    offsets = [records.append(1, record), records.release(1, "urn:s", 2, 5.0), records.append(1, record)]
    assert offsets == [0, 1, 2]
    assert [one[2] for one in commit.batch.appends] == [0, 2]
    assert commit.batch.releases == [("urn:s", 2, "orders", 1, 1, 5.0)]
    assert records.ends == [0, 0], "none is durable"


def test_a_deletion_never_goes_back() -> None:
    records, commit = joined()
    records.delete_below(0, 4)
    records.delete_below(0, 2)
    assert (records.firsts, commit.batch.trims) == ([4, 0], {("orders", 0): 4})


def test_a_deleted_queue_is_deleted_in_every_partition_and_not_trimmed() -> None:
    records, commit = joined()
    records.delete_below(0, 4)
    records.delete(commit.batch)
    assert (commit.batch.deletes, commit.batch.trims) == ([("orders", 0), ("orders", 1)], {})


def test_the_description_is_saved_once_and_as_it_is_when_the_batch_is_taken() -> None:
    records, commit = joined()
    told: list[int] = []

    def describe() -> dict[str, object]:
        told.append(len(told))
        return {"partitions": 2}

    records.save_description(describe)
    records.save_description(describe)
    assert commit.take().queues == {"orders": {"partitions": 2}}
    assert told == [0]
