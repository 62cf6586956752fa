"""Topics of a real Kafka for a test: made, filled and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE = 240.0


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: Mapping[str, str]


class KafkaTopics:
    """The topics of a cluster.

    Args:
        address: The address of one of its nodes.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = {"bootstrap.servers": address}
        self._admin, self._producer = AdminClient(self._client), Producer(self._client)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        for made in self._admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(PATIENCE)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._admin.list_topics(timeout=PATIENCE).topics)

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None, **headers: str) -> None:
        """Append a record, and wait until Kafka has it."""
        outcomes: list[KafkaError | None] = []
        told = [(name, one.encode()) for name, one in headers.items()]
        self._producer.produce(
            topic, value, key, partition, headers=told, on_delivery=lambda error, _message: outcomes.append(error)
        )
        self._producer.flush(PATIENCE)
        assert outcomes == [None], outcomes

    def records(self, topic: str) -> list[Record]:
        """All that a topic holds, each partition in its order."""
        settings = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer(self._client | settings | {"isolation.level": "read_uncommitted"})
        try:
            left = set(consumer.list_topics(topic, PATIENCE).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
            found = []
            while left:
                message = consumer.poll(PATIENCE)
                assert message is not None, left
                if message.error() is None:
                    found.append(_record(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise KafkaException(message.error())
        finally:
            consumer.close()
        return sorted(found, key=lambda one: (one.partition, one.offset))


def _record(message: Message) -> Record:
    headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
    return Record(message.partition(), message.offset(), _text(message.key()), _text(message.value()), headers)


def _text(octets: bytes | None) -> str | None:
    return None if octets is None else octets.decode()
