"""The topics of a cluster are copied as the page on Kafka says, with the commands that are on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from live_nodes import Node

from holdfast.cluster.group.pictures import topic_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.shared.tables import Part
from holdfast.store.kafka.address import read_kafka_address

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kafka-store.md"
PARTITIONS, PATIENCE = 6, 240.0


def create_topics(servers: str, name: str) -> None:
    """Run the commands of the page with another name for COPY."""
    commands = re.findall(r"^kafka-topics\.sh (.+?)$", PAGE.read_text().replace("\\\n", " "), re.MULTILINE)
    topics = []
    for command in commands:
        given = dict(re.findall(r"--(topic|partitions|replication-factor) (\S+)", command))
        settings = dict(re.findall(r"--config (\S+?)=(\S+)", command))
        topic = given["topic"].replace("COPY", name)
        topics.append(NewTopic(topic, int(given["partitions"]), int(given["replication-factor"]), config=settings))
    assert len(topics) == 1 + len(get_args(Part))
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE)


def copy_topic(servers: str, old: str, new: str) -> None:
    """Copy keys and values, also empty ones, with a consumer and a producer."""
    client = {"bootstrap.servers": servers}
    reading = {"group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True}
    producer = Producer({**client, "enable.idempotence": True, "message.max.bytes": 10 << 20})
    consumer = Consumer(client | reading | {"isolation.level": "read_uncommitted"})
    left = set(consumer.list_topics(old, PATIENCE).topics[old].partitions)
    consumer.assign([TopicPartition(old, number, OFFSET_BEGINNING) for number in left])
    while left:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is None:
            producer.produce(new, message.value(), message.key(), message.partition())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            left.discard(message.partition())
    consumer.close()
    assert producer.flush(PATIENCE) == 0


def shared_content(location: str, part: Part) -> dict[str, bytes]:
    address = read_kafka_address(location)
    topic = SharedTopic(address, topic_of(address, part))
    topic.open(creates=False)
    try:
        return topic.content()
    finally:
        topic.close()


def test_a_cluster_starts_in_topics_that_were_created_and_copied_as_the_page_says(
    kafka_nodes: Callable[[int], Any], tmp_path: Path
) -> None:
    kafka = kafka_nodes(3)
    location = kafka.new_url(tmp_path / "cache-{node}", partitions=PARTITIONS)
    node = Node(location, "a", PARTITIONS, 3.0)
    node.wait(lambda: len(node.view["mine"]) == PARTITIONS)
    node.say('{"end": true}')
    assert node.ended() == 0
    address = read_kafka_address(location)
    for part in get_args(Part):
        topic = SharedTopic(address, topic_of(address, part))
        topic.open(creates=False)
        for key, value in (("kept", b"1"), ("deleted", b"2"), ("deleted", None)):
            topic.put(key, value)
        topic.close()

    copy = f"{address.topic}-copy"
    create_topics(kafka.servers, copy)
    for end in ("", *(f"-{part}" for part in get_args(Part))):
        copy_topic(kafka.servers, f"{address.topic}{end}", f"{copy}{end}")
    copied = location.replace(f"/{address.topic}?", f"/{copy}?")
    node = Node(copied, "a", PARTITIONS, 3.0)
    node.wait(lambda: len(node.view["mine"]) == PARTITIONS)
    node.say('{"end": true}')
    assert node.ended() == 0
    assert [shared_content(copied, part) for part in get_args(Part)] == [{"kept": b"1"}] * 2
