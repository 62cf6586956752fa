"""How records are taken from Kafka's client. Covers store/kafka/topic.py; without Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.topic import KafkaLog

AHEAD = 2_000_000
"""Bytes of waiting records at which the client of these tests stops fetching."""


@dataclass
class Message:
    place: int
    size: int

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self.place

    def value(self) -> bytes:
        return bytes(self.size)


class Client:
    """A consumer that has some records in its queue, and fetches further ones while the caller waits."""

    def __init__(self, sizes: list[int]) -> None:
        self._messages = [Message(place, size) for place, size in enumerate(sizes)]
        self._count = len(sizes)
        self._queue: list[Message] = []
        self.most = 0
        """Maximum bytes of the records that one call returned."""

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, self._count

    def assign(self, partitions: Any) -> None:
        self._fetch()

    def consume(self, count: int, timeout: float) -> list[Message]:
        found = self._take(count)
        while timeout and len(found) < count and self._messages:
            self._fetch()
            found += self._take(count - len(found))
        self._fetch()
        self.most = max(self.most, sum(one.size for one in found))
        return found

    def _take(self, count: int) -> list[Message]:
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def _fetch(self) -> None:
        while self._messages and sum(one.size for one in self._queue) < AHEAD:
            self._queue.append(self._messages.pop(0))


@given(st.lists(st.sampled_from([100, 250_000, 3_000_000]), max_size=60))
def test_no_more_records_are_taken_than_the_client_reads_ahead(sizes: list[int]) -> None:
    log = KafkaLog(read_kafka_address("kafka://127.0.0.1:1/topic?cache=/cache"))
    client = Client(sizes)
    log._consumer = client  # type: ignore[assignment]
    assert [(place, len(record or b"")) for place, record in log.read(0)] == list(enumerate(sizes))
    assert client.most < AHEAD + max(sizes, default=0) + 1
