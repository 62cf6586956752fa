"""Reads from the nodes that own the partitions, and how a reader finds the next owner.

Covers client/nodes.py and client/owners.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import FakeServer, record

from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.errors import PipelineError, ServerAway
from holdfast.client.nodes import Nodes, reachable
from holdfast.client.offsets import Range
from holdfast.client.owners import OwnerPlanes


@pytest.fixture
def others() -> Iterator[list[FakeServer]]:
    """Two further servers with the same queue."""
    found = [FakeServer().start() for _ in range(2)]
    yield found
    for one in found:
        one.stop()


def with_records(*servers: FakeServer) -> None:
    for one in servers:
        one.create("q", partitions=4)
        one.append("q", 3, [record(number) for number in range(1, 6)])


def offsets(server: FakeServer, nodes: Nodes | None, patience: Patience) -> list[int]:
    """Read the partition 3 by way of a server."""
    plane = DataPlane(server.url)
    owners = OwnerPlanes(plane, nodes)
    epoch = plane.ends("q").epoch
    try:
        return [at for block in read_range(owners, "q", epoch, Range(3, 0, 5), patience) for at, _ in block]
    finally:
        owners.close()
        plane.close()


def records_asked(server: FakeServer) -> int:
    return sum("/records" in one for one in server.requests)


def test_a_partition_is_read_from_the_node_that_has_its_worker(server: FakeServer, others: list[FakeServer]) -> None:
    with_records(server, *others)
    nodes = Nodes(2, (others[0].url, others[1].url))
    assert offsets(server, nodes, Patience(0)) == list(range(5))
    assert [records_asked(one) for one in (server, *others)] == [0, 0, 1]


def test_a_partition_of_an_unknown_owner_is_read_from_any_node(server: FakeServer) -> None:
    with_records(server)
    for nodes in (None, Nodes(2, (None, None)), Nodes(2, ())):
        assert offsets(server, nodes, Patience(0)) == list(range(5))
    assert records_asked(server) == 3


def test_after_a_failure_the_reader_finds_the_present_owner(server: FakeServer, others: list[FakeServer]) -> None:
    with_records(server, *others)
    server.nodes = {"v": 1, "url": server.url, "partitions": 2, "workers": [None, others[1].url]}
    others[0].stop()
    waited: list[float] = []
    patience = Patience(60, sleep=waited.append)
    assert offsets(server, Nodes(2, (None, others[0].url)), patience) == list(range(5))
    assert len(waited) == 1
    assert [records_asked(one) for one in (server, others[1])] == [0, 1]


def test_an_owner_that_does_not_come_back_is_an_error_that_names_the_partition(server: FakeServer) -> None:
    with_records(server)
    dead = FakeServer().start()
    dead.stop()
    server.nodes = {"v": 1, "url": server.url, "partitions": 2, "workers": [None, dead.url]}
    with pytest.raises(ServerAway, match=r"queue 'q' partition 3 cannot be read now: .* \(tried for 0 s\)"):
        offsets(server, Nodes(2, (None, dead.url)), Patience(0))


def test_the_next_address_is_asked_if_one_does_not_answer(server: FakeServer) -> None:
    dead = FakeServer().start()
    dead.stop()
    server.nodes = {"v": 1, "url": server.url, "partitions": 2, "workers": [server.url, None]}
    plane = DataPlane(f"{dead.url},{server.url}")
    assert Patience(60, sleep=lambda _: None).call(plane.nodes) == Nodes(2, (server.url, None))


def test_servers_that_are_no_cluster_are_not_read_as_one(server: FakeServer) -> None:
    assert DataPlane(server.url).nodes() is None
    with pytest.raises(PipelineError, match="is not a node of a cluster"):
        DataPlane(f"{server.url},http://127.0.0.1:1").nodes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 0},
        {"partitions": -1},
        {"partitions": 1e400},
        {"partitions": "2"},
        {"sink": "0"},
        {"sink": [0]},
        {"workers": None},
        {"workers": [5]},
        {"workers": ["http://[::1"]},
        {"workers": ["http://a.example:99999"]},
        {"workers": ["http://"]},
        {"workers": ["http://a.example,http://b.example"]},
    ],
    ids=repr,
)
def test_an_answer_about_nodes_that_makes_no_sense_is_an_error(server: FakeServer, wrong: dict[str, Any]) -> None:
    server.nodes = {"v": 1, "url": server.url, "partitions": 2, "workers": [None], "sink": 0} | wrong
    with pytest.raises(PipelineError, match="does not understand the response") as caught:
        DataPlane(server.url).nodes("out")
    assert not isinstance(caught.value, ServerAway)


@pytest.mark.parametrize(
    ("url", "broker", "is_used"),
    [
        ("http://b.example:8081", "http://a.example:8081", True),
        ("http://127.0.0.1:8081", "http://localhost:8082", True),
        ("http://b.example:8081", "http://127.0.0.1:8082", True),
        # It would be this machine, and the token would be sent in the clear.
        ("http://127.0.0.1:8081", "http://a.example:8081", False),
        ("http://b.example:8081", "https://a.example:8081", False),
        ("", "http://a.example:8081", False),
        (None, "http://a.example:8081", False),
    ],
)
def test_a_node_is_asked_only_at_a_url_that_can_be_right(url: str | None, broker: str, is_used: bool) -> None:
    assert reachable(url, broker) == (url if is_used else None)
