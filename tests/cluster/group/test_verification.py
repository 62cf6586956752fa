"""The logs of a cluster on a real Kafka are checked while a store is open, and a broken rule is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cluster.group.pictures import group_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.group.verification import verify_cluster
from holdfast.core.records import Batch, Record
from holdfast.core.states.inbound import DestinationState
from holdfast.store import directory
from holdfast.store.address import store_of_part
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.cache import open_without_log
from holdfast.store.kafka.frames import Claim, encode_claim
from holdfast.store.kafka.store import KafkaStore
from holdfast.store.kafka.topic import KafkaLog
from holdfast.store.records import SEQUENCE, encode_state, name_key

pytestmark = pytest.mark.nightly


def sequence(accepted: int) -> dict[str, Any]:
    """The state of a Sequence that has accepted the messages up to a number."""
    return {"accepted": [1, accepted], "state": DestinationState.CREATED.value}


def batch(number: int, body: bytes = b"<x/>") -> Batch:
    record = Record("urn:s", number + 1, "urn:a", body, 1.0)
    queues = {} if number else {"orders": {"kind": "queue", "partitions": 1}}
    return Batch(queues, [("orders", 0, number, record)], sequences={"urn:s": sequence(number + 1)})


def test_a_cluster_is_checked_while_its_stores_are_open(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    location = kafka_nodes(1).new_url(tmp_path / "cache", partitions=3)
    address = read_kafka_address(location)
    nodes = SharedTopic(address, group_of(address))
    stores = [KafkaStore(store_of_part(location, partition)) for partition in range(2)]
    nodes.open(creates=True)
    log = KafkaLog(replace(address, partition=1))
    try:
        for store in stores:
            store.commit(batch(0))
            store.commit(batch(1))
        first = verify_cluster(location, reads_all=True)
        assert first.problems == ()
        assert (first.partitions, first.records, first.bodies, first.caches) == (2, 4, 4, 0), "nothing is in files yet"
        stores[0].commit(batch(2, b"<not xml"))
        found = verify_cluster(location, first, reads_all=True)
        assert [one.partition(" is not XML")[0] for one in found.problems] == [
            "Cluster partition 0, queue 'orders', partition 0: the body of record 2"
        ]
        later = replace(first, numbers={name: value + 9 for name, value in found.numbers.items()})
        assert len(verify_cluster(location, later).problems) == len(found.numbers)
        assert log.append([encode_claim(Claim(9, "a stranger", b"", 1.0))], lambda: True) is not None
        (problem,) = verify_cluster(location).problems
        assert problem.startswith("The log at cluster partition 1: record ") and "claims epoch 9" in problem
        stores[0].close()
        place = read_kafka_address(location).place
        assert verify_cluster(location, reads_all=True).caches == 1
        engine = open_without_log(place / directory.ENGINE, place, compacts=True)
        engine.put(name_key(SEQUENCE, "urn:s"), encode_state(sequence(9)))
        engine.close()
        assert any("has another value of the key" in one for one in verify_cluster(location, reads_all=True).problems)
    finally:
        log.close()
        nodes.close()
        for store in stores:
            store.close()
