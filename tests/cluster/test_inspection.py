"""What operators see of a cluster, read from the rows of a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from databases import PostgreSQL

from holdfast.cluster.inspection import ClusterStatus, drain_node, read_status
from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Claim, Enter, Join
from holdfast.exceptions import ConfigurationError, StoreAway


class Cluster:
    """A cluster of four partitions, and its sessions."""

    def __init__(self, location: str, stack: ExitStack) -> None:
        self.location = location
        self._stack = stack

    def join(self, name: str, *partitions: int, is_draining: bool = False) -> None:
        session = LeaseDatabase(self.location, name, f"http://{name}:8082", 4, LeasePolicy(60.0))
        self._stack.callback(session.close)
        session.run(Enter())
        incarnation = session.run(Join(is_draining))
        assert isinstance(incarnation, int)
        session.run(Claim(incarnation, partitions, 4))

    def status(self) -> ClusterStatus:
        return read_status(self.location)


@pytest.fixture
def server(servers: Callable[[str], PostgreSQL]) -> PostgreSQL:
    return servers("postgresql")


@pytest.fixture
def cluster(server: PostgreSQL) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(server.new_url(), stack)


def test_the_status_has_all_nodes_with_their_partitions(cluster: Cluster) -> None:
    cluster.join("a", 0, 3)
    cluster.join("b", 1, 2, is_draining=True)
    status = cluster.status()
    assert [(one.name, one.url, one.state, one.partitions) for one in status.nodes] == [
        ("a", "http://a:8082", "live", (0, 3)),
        ("b", "http://b:8082", "draining", (1, 2)),
    ]
    assert all(0 < one.lease_seconds <= 60 and one.age >= 0 for one in status.nodes)
    assert [(one.partition, one.owner, one.epoch) for one in status.partitions] == [
        (0, "a", 1), (1, "b", 1), (2, "b", 1), (3, "a", 1),
    ]  # fmt: skip
    assert status.problems == ()
    assert [one[:29] for one in status.warnings] == ["One server has the data. If i"]


def test_a_silent_node_and_free_partitions_are_problems(server: PostgreSQL, cluster: Cluster) -> None:
    cluster.join("a", 0, 2)
    server.sql("UPDATE holdfast_node SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'a'")
    status = cluster.status()
    assert [one.state for one in status.nodes] == ["expired"]
    assert status.problems == (
        "The lease of node a has ended; it does not answer.",
        "No node owns partitions 1, 3.",
    )
    server.sql("DELETE FROM holdfast_node WHERE name = 'a'")
    status = cluster.status()
    assert status.nodes == () and status.problems == ("No node owns partitions 0, 1, 2, 3.",)
    assert status.partitions[0].epoch == 1


def test_a_place_without_a_cluster_is_an_error(server: PostgreSQL) -> None:
    with pytest.raises(ConfigurationError, match="there is no cluster at postgresql://"):
        read_status(server.new_url())


def test_a_database_that_does_not_answer_is_an_error_without_its_password() -> None:
    with pytest.raises(StoreAway, match="does not answer") as caught:
        read_status("postgresql://user:pass-word@127.0.0.1:1/db")
    assert "pass-word" not in str(caught.value)


def test_a_node_is_drained_if_another_one_can_take_its_partitions(server: PostgreSQL, cluster: Cluster) -> None:
    cluster.join("a", 0, 1)
    with pytest.raises(ConfigurationError, match="the cluster has no node 'c'\n  Its nodes: a"):
        drain_node(cluster.location, "c")
    with pytest.raises(ConfigurationError, match="no other live node could take the partitions of 'a'"):
        drain_node(cluster.location, "a")
    cluster.join("b", 2, 3)
    drain_node(cluster.location, "a")
    assert [one.state for one in cluster.status().nodes] == ["draining", "live"]
    with pytest.raises(ConfigurationError, match="no other live node"):
        drain_node(cluster.location, "b")
