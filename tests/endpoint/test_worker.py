"""The stores of workers that a server no longer has. Covers endpoint/worker.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Batch, Record
from holdfast.endpoint.worker import Worker, check_stores
from holdfast.exceptions import ConfigurationError, StoreAway
from holdfast.store import open_store

MESSAGE = Record("urn:s", 1, "urn:a", b"<x/>", 0.0)


@pytest.fixture(params=["directory", "postgresql", pytest.param("kafka", marks=pytest.mark.nightly)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "inbox")
    if request.param == "kafka":
        nodes: Callable[[int], Any] = request.getfixturevalue("kafka_nodes")
        return str(nodes(1).new_url(tmp_path / "cache", partitions=3))
    return str(request.getfixturevalue("servers")("postgresql").new_url())


def change(location: str, number: int, batch: Batch) -> None:
    """Commit a batch to the store of a worker of three."""
    with contextlib.closing(open_store(Worker(number, 3).store_of(location))) as store:
        store.load()
        store.commit(batch)


def refusals(location: str) -> list[str]:
    """For one worker and for two, which number of workers a server should have had."""
    found = []
    for count in (1, 2):
        try:
            check_stores(location, count)
        except ConfigurationError as error:
            found.append(error.remedy.partition(" until")[0].rpartition(" ")[2])
        else:
            found.append("")
    return found


def test_only_stores_with_sequences_or_messages_block_a_start_with_fewer_workers(location: str) -> None:
    for number in range(3):
        change(location, number, Batch(queues={"inbox": {"kind": "queue", "partitions": 1}}))
    assert refusals(location) == ["", ""]
    for state in ("created", "closed", "terminating"):
        change(location, 1, Batch(sequences={"urn:s": {"role": "destination", "state": state}}))
        assert refusals(location) == ["2", ""]
    # A forwarder that has sent everything keeps its Sequence, and the one that it offered for replies.
    change(location, 1, Batch(sequences={"1": {"role": "source", "state": "created", "offer": "urn:s"}}))
    assert refusals(location) == ["", ""]
    change(location, 1, Batch(sequences={"urn:t": {"role": "destination", "state": "created"}}))
    assert refusals(location) == ["2", ""]
    change(location, 1, Batch(sequences={"urn:t": {"role": "destination", "state": "terminated"}}))
    assert refusals(location) == ["", ""], "remembered, to answer repeats"
    change(location, 1, Batch(sequences={"1": None}))
    assert refusals(location) == ["2", ""]
    change(location, 2, Batch(appends=[("inbox", 0, 0, MESSAGE)]))
    assert refusals(location) == ["3", "3"]
    change(location, 2, Batch(trims={("inbox", 0): 1}))
    assert refusals(location) == ["2", ""]
    change(location, 1, Batch(sequences={"urn:s": None}))
    assert refusals(location) == ["", ""]


@pytest.mark.parametrize("place", ["postgresql://u@127.0.0.1:1/x?space=orders", "kafka://127.0.0.1:1/t?cache=/none"])
def test_a_server_without_its_database_names_the_store_as_its_user_did(place: str) -> None:
    with pytest.raises(StoreAway) as caught:
        check_stores(f"{place}&patience=0", 1)
    assert re.search(rf"store at {re.escape(place)}[: ]", caught.value.message)
