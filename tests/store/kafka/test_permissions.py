"""A store whose user loses a permission while it runs, without Kafka. Covers store/kafka/store.py."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from crew import wait_until

from holdfast.core.records import Batch, Record
from holdfast.exceptions import StoreFailed
from holdfast.store.kafka import store as store_module
from holdfast.store.kafka.requirements import PERMISSIONS
from holdfast.store.kafka.store import KafkaStore
from holdfast.store.kafka.topic import KafkaLog

REFUSALS = sorted(PERMISSIONS)


class Partition:
    """A partition in memory.

    Attributes:
        refusal: What Kafka answers to writes, or to reads; None: it accepts them.
        refuses_reads: Whether it refuses reads, too.
        lost: How many appends still lose their outcome.
    """

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.refusal: int | None = None
        self.refuses_reads = False
        self.lost = 0
        self.asked = 0

    def append(self, log: KafkaLog, records: Sequence[bytes], goes_on: Callable[[], bool]) -> list[int] | None:
        log.is_passing = True
        self.asked += 1
        if self.refusal is not None:
            log._note_unwritten(KafkaError(self.refusal))
            return None
        start = len(self.records)
        self.records += records
        if self.lost:
            self.lost -= 1
            return None
        return list(range(start, len(self.records)))

    def read(self, log: KafkaLog, start: int) -> Iterator[tuple[int, bytes]]:
        self.asked += 1
        if self.refusal is not None and self.refuses_reads:
            raise log._explained(KafkaException(KafkaError(self.refusal)))
        yield from list(enumerate(self.records))[start:]


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> Partition:
    found = Partition()
    for name, pause in (("_PAUSE", 0.0), ("_PERMISSION_PAUSE", 0.001)):
        monkeypatch.setattr(store_module, name, pause)
    monkeypatch.setattr(KafkaLog, "open", lambda log, creates: setattr(log, "identity", {"topic": "orders"}))
    monkeypatch.setattr(KafkaLog, "bounds", lambda log: (0, len(found.records)))
    monkeypatch.setattr(KafkaLog, "append", lambda log, records, goes_on: found.append(log, records, goes_on))
    monkeypatch.setattr(KafkaLog, "read", lambda log, start: found.read(log, start))
    monkeypatch.setattr(KafkaLog, "trim", lambda log, offset: None)
    return found


@pytest.fixture
def store(partition: Partition, tmp_path: Path) -> Iterator[KafkaStore]:
    found = KafkaStore(f"kafka://127.0.0.1:1/orders?cache={tmp_path / 'cache'}")
    yield found
    found.close()


def batch(number: int) -> Batch:
    return Batch(appends=[("q", 0, number, Record("urn:s", number + 1, "urn:a", b"<x/>", 1.0))])


class Committing(threading.Thread):
    """A commit in another thread."""

    def __init__(self, store: KafkaStore) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.store.commit(batch(0))
        except BaseException as error:
            self.error = error


def waiting(store: KafkaStore, partition: Partition, refusal: int, *, refuses_reads: bool) -> Committing:
    """Return a commit that waits for a permission, of which the store has the trouble."""
    partition.refusal, partition.refuses_reads, partition.lost = refusal, refuses_reads, int(refuses_reads)
    committing = Committing(store)
    wait_until(lambda: store.trouble is not None)
    asked = partition.asked
    wait_until(lambda: partition.asked > asked + 20)  # many more times than a write may be refused for another reason
    assert committing.is_alive() and store.trouble is not None
    assert KafkaError(refusal).str() in store.trouble.what and store.trouble.remedy.startswith("Permit the user ")
    assert "orders" in store.trouble.remedy
    return committing


@pytest.mark.parametrize("refuses_reads", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_running_store_waits_for_a_permission_and_stores_the_batch_once(
    store: KafkaStore, partition: Partition, refusal: int, refuses_reads: bool
) -> None:
    store.retry_for(math.inf)
    committing = waiting(store, partition, refusal, refuses_reads=refuses_reads)
    partition.refusal = None
    committing.join(60)
    assert (committing.is_alive(), committing.error, store.trouble) == (False, None, None)
    store.commit(batch(1))
    assert [(offset, record.message_number) for offset, record in store.read("q", 0, 0, 9)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("refuses_reads", [False, True])
def test_a_store_that_waits_for_a_permission_can_be_closed(
    store: KafkaStore, partition: Partition, refuses_reads: bool
) -> None:
    store.retry_for(math.inf)
    committing = waiting(store, partition, KafkaError.TOPIC_AUTHORIZATION_FAILED, refuses_reads=refuses_reads)
    store.close()
    committing.join(60)
    assert not committing.is_alive() and isinstance(committing.error, StoreFailed)


@pytest.mark.parametrize(
    ("refusal", "is_served"),
    [
        *((refusal, False) for refusal in REFUSALS),
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.POLICY_VIOLATION, True),
    ],
)
def test_another_refusal_ends_a_store_and_so_does_each_one_while_it_is_not_served(
    store: KafkaStore, partition: Partition, refusal: int, is_served: bool
) -> None:
    partition.refusal = refusal
    if is_served:
        store.retry_for(math.inf)
    with pytest.raises(StoreFailed) as caught:
        store.commit(batch(0))
    assert KafkaError(refusal).str() in caught.value.message
