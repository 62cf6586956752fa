"""What operators see of a cluster, read from the rows of a real one. Covers cluster/operating/status.py and
cluster/server_warnings.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from databases import GUARDED, PASSWORD, PostgreSQL, program

from holdfast.cluster.inspection import (
    drain_node,
    move_partitions,
    read_status,
    release_partitions,
    resume_node,
)
from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.operating.status import ClusterStatus, SeenNode, SeenPartition, status_of, why_not_moved
from holdfast.cluster.rows import Claim, Enter, Join, Report, Tell
from holdfast.cluster.server_warnings import lack_of_connections
from holdfast.cluster.verification import verify_cluster
from holdfast.exceptions import ConfigurationError, StoreAway, StoreError


class Cluster:
    """A cluster of four partitions, and its sessions."""

    def __init__(self, location: str, stack: ExitStack) -> None:
        self.location = location
        self._stack = stack
        self._joined: dict[str, tuple[LeaseDatabase, int]] = {}

    def join(self, name: str, *partitions: int, is_draining: bool = False) -> None:
        session = LeaseDatabase(self.location, name, f"http://{name}:8082", 4, LeasePolicy(60.0))
        self._stack.callback(session.close)
        session.run(Enter())
        incarnation = session.run(Join(is_draining))
        assert isinstance(incarnation, int)
        session.run(Claim(incarnation, partitions, 4))
        self._joined[name] = session, incarnation
        self.tell(name, Report(partitions))

    def tell(self, name: str, report: Report) -> None:
        session, incarnation = self._joined[name]
        session.run(Tell(incarnation, report))

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
        "No node owns cluster partitions 1, 3.",
    )
    assert [one.state for one in status.partitions] == ["unreachable", "free"] * 2
    server.sql("DELETE FROM holdfast_node WHERE name = 'a'")
    status = cluster.status()
    assert status.nodes == () and status.problems == ("No node owns cluster partitions 0, 1, 2, 3.",)
    assert status.partitions[0].epoch == 1


def test_the_status_says_which_partitions_are_not_served_and_why(cluster: Cluster) -> None:
    cluster.join("a", 0, 3)
    cluster.join("b", 1)
    cluster.join("c")
    cluster.tell("a", Report((0,), {1: "no module named x", 2: "the store is damaged"}))
    cluster.tell("c", Report((), {}, {"b": "Connection refused", "a": "Connection refused"}))
    status = cluster.status()
    assert [(one.state, one.serving) for one in status.nodes] == [
        ("unreachable", (0,)),
        ("unreachable", (1,)),
        ("live", ()),
    ]
    assert [(one.state, one.why) for one in status.partitions] == [
        ("unreachable", "from node c: Connection refused"),
        ("unreachable", "from node c: Connection refused"),
        ("cannot start", "at node a: the store is damaged"),
        ("starting", ""),
    ]
    assert status.problems == (
        "Node a has cluster partition 0, but cannot be reached from node c: Connection refused.",
        "Node b has cluster partition 1, but cannot be reached from node c: Connection refused.",
        "No node serves cluster partition 2; the process could not be started at node a: the store is damaged.",
        "Node a is starting cluster partition 3.",
        "Node a could not start cluster partition 1, and leaves it to others: no module named x",
    )


def test_too_few_connections_are_a_warning_of_the_status_and_of_the_node(server: PostgreSQL) -> None:
    location = server.url("slots", user=GUARDED, password=PASSWORD)
    server.sql(f"CREATE SCHEMA slots AUTHORIZATION {GUARDED}; ALTER ROLE {GUARDED} SET search_path TO slots")
    try:
        for limit, needed in ((-1, 18), (18, 18), (17, 18)):
            server.sql(f"ALTER ROLE {GUARDED} CONNECTION LIMIT {limit}")
            session = LeaseDatabase(location, "a", "http://a:8082", 4, LeasePolicy(60.0))
            session.run(Enter())
            lacks = 0 <= limit < needed
            said = f"may need {needed} connections, but the database allows {limit}: raise its max_connections"
            assert any(said in one for one in session.warnings) == lacks
            assert any(said in one for one in read_status(location).warnings) == lacks
            session.close()
        assert lack_of_connections(97, 24) == ""  # the defaults
    finally:
        server.sql(f"ALTER ROLE {GUARDED} RESET ALL; ALTER ROLE {GUARDED} CONNECTION LIMIT -1")
        server.sql("DROP SCHEMA slots CASCADE")


def test_a_commit_level_that_a_failover_may_undo_is_a_warning(server: PostgreSQL, cluster: Cluster) -> None:
    cluster.join("a", 0)
    try:
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()")
        while not any("no synchronous standby is connected" in one for one in cluster.status().problems):
            pass
        for level in ("off", "local", "remote_write", "on", "remote_apply"):
            warnings = read_status(f"{cluster.location}&options=-csynchronous_commit%3D{level}").warnings
            # The processes of the partitions set it to on where it is off.
            at_risk = level in ("local", "remote_write")
            assert any(one.endswith(f"or remote_apply; it is {level}.") for one in warnings) == at_risk
    finally:
        server.sql("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()")
        while cluster.status().warnings[0].startswith("No synchronous standby"):
            pass


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_reason_that_partitions_and_nodes_share_is_told_once(cluster: Cluster, count: int) -> None:
    names = ["a", "b", "c"][:count]
    for name in names:
        cluster.join(name, *([0] if name == "a" else []))
    for name in names:
        failed = {number: f"the queue 'x' has {number} records" for number in (1, 2, 3)}
        cluster.tell(name, Report((0,) if name == "a" else (), failed))
    where = "node a" if count == 1 else f"nodes {', '.join(names)}"
    why = f"at {where}: the queue 'x' has 1 records."
    assert cluster.status().problems == (
        f"No node serves cluster partitions 1, 2, 3; the process could not be started {why}",
    )
    cluster.join("d", 1, 2, 3)
    assert cluster.status().problems == tuple(
        f"Node {name} could not start cluster partitions 1, 2, 3, and leaves them to others: "
        "the queue 'x' has 1 records"
        for name in names
    )


def test_the_status_warns_of_nodes_with_other_configurations(cluster: Cluster) -> None:
    cluster.join("a", 0, 1, 2, 3)
    for name, tables in (
        ("a", {"routes": "1", "queues": "1", "security": "1"}),
        ("b", {"routes": "1", "queues": "2", "security": "2"}),
        ("c", {"routes": "2", "queues": "2", "security": "1"}),
        ("old", {}),
    ):
        if name != "a":
            cluster.join(name)
        cluster.tell(name, Report((0, 1, 2, 3) if name == "a" else (), tables=tables))
    status = cluster.status()
    assert status.problems == ()
    assert [one.partition(". ")[0] for one in status.warnings if "configuration" in one] == [
        "The configuration is different on node a than on nodes b, c: queues",
        "The configuration is different on node c than on nodes a, b: routes",
        "The configuration is different on node b than on nodes a, c: security",
    ]


def test_a_node_that_others_serve_for_is_a_problem(cluster: Cluster) -> None:
    cluster.join("a", 0, 1, 2, 3)
    cluster.join("b")
    cluster.tell("a", Report((0, 1, 2, 3), {}, {"b": "Name or service not known"}))
    cluster.tell("b", Report((), {0: "the port is in use"}))
    status = cluster.status()
    assert [one.state for one in status.nodes] == ["live", "unreachable"]
    assert status.problems == (
        "Node b could not start cluster partition 0, and leaves it to others: the port is in use",
        "Node b gets no partitions, because node a cannot reach http://b:8082: Name or service not known",
    )


@pytest.mark.parametrize("moved_to", [None, "a", "b"])
@pytest.mark.parametrize("is_draining", [False, True])
@pytest.mark.parametrize("owner", [None, "a", "b"])
@pytest.mark.parametrize("short", ["", "less than 64 MB are free for its cache at /x"])
def test_the_status_says_of_any_node_without_room_whether_that_is_a_problem(
    short: str, owner: str | None, is_draining: bool, moved_to: str | None
) -> None:
    nodes = [
        SeenNode("a", "http://a", is_draining, None, 1.0, Report((0,) if owner == "a" else (), short=short)),
        SeenNode("b", "http://b", False, None, 1.0, Report((0,) if owner == "b" else ())),
    ]
    status = status_of("kafka", "id", "Kafka", nodes, [SeenPartition(0, owner, moved_to=moved_to)], ())
    free = ["No node owns cluster partition 0."] if owner is None else []
    remedy = f"{short}. Free space there. The node then takes part again on its own."
    if short and owner == "a":
        free.append(f"Node a may accept no new messages for cluster partition 0: {remedy}")
    assert list(status.problems) == free
    warned = [f"Node a leaves its partitions to others, because {remedy}"] if short and owner != "a" else []
    assert list(status.warnings) == warned
    state = "draining" if is_draining else "short" if short else "live"
    assert [one.state for one in status.nodes] == [state, "live"]
    assert status.partitions[0].moved_to == (None if is_draining and moved_to == "a" else moved_to)
    why = why_not_moved(status, [0], "a")
    if state != "live":
        assert why.startswith("a takes no partitions: ")
    elif moved_to != "a" and owner != "a":
        how = "released meanwhile, or a was restarted" if moved_to is None else "moved to b meanwhile"
        assert why == f"cluster partition 0 was {how}"
    else:
        assert why == "", "it serves the partition, or may soon do so"
    assert why_not_moved(status, [0], "c") == "c is no longer in the cluster"


def test_a_drained_node_is_resumed(cluster: Cluster) -> None:
    cluster.join("a", 0, 1)
    cluster.join("b", 2, 3)
    drain_node(cluster.location, "a")
    resume_node(cluster.location, "a")
    assert [one.state for one in cluster.status().nodes] == ["live", "live"]
    with pytest.raises(ConfigurationError, match="the cluster has no node 'c'\n  Its nodes: a, b"):
        resume_node(cluster.location, "c")


def test_a_place_without_a_cluster_is_an_error(server: PostgreSQL) -> None:
    with pytest.raises(ConfigurationError, match="there is no cluster at postgresql://"):
        read_status(server.new_url())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "ALTER TABLE holdfast_cluster DROP CONSTRAINT holdfast_cluster_pkey; "
            "INSERT INTO holdfast_cluster SELECT space, gen_random_uuid(), partitions, format, system_identifier, "
            "incarnations, timeline, timeline_since FROM holdfast_cluster",
            "has 2 identities",
        ),
        ("ALTER TABLE holdfast_node DROP COLUMN incarnation", "are not what this version of Holdfast expects: column"),
        ("DROP TABLE holdfast_node", "are not what this version of Holdfast expects: relation"),
    ],
    ids=["two identities", "another version", "half restored"],
)
def test_a_database_that_was_restored_badly_is_not_called_an_outage(
    server: PostgreSQL, cluster: Cluster, change: str, problem: str
) -> None:
    cluster.join("a", 0)
    server.sql("DROP DATABASE IF EXISTS copied", database="postgres")
    server.sql("CREATE DATABASE copied", database="postgres")
    try:
        dump = server.run(
            program("pg_dump"), "-h", str(server.directory), "-U", "tester", "-t", "holdfast_*", "holdfast"
        )
        server.run(program("psql"), "-q", "-h", str(server.directory), "-U", "tester", "copied", input=dump)
        server.sql(change, database="copied")
        copy = cluster.location.replace("/holdfast?", "/copied?")
        for ask in (read_status, verify_cluster):
            with pytest.raises(StoreError, match=problem) as caught:
                ask(copy)
            assert not isinstance(caught.value, StoreAway)
    finally:
        server.sql("DROP DATABASE copied", database="postgres")


def test_a_database_that_does_not_answer_is_an_error_without_its_password() -> None:
    with pytest.raises(StoreAway, match=r"The database at postgresql://.* does not answer") as caught:
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
    with pytest.raises(ConfigurationError, match="no other live node") as caught:
        drain_node(cluster.location, "b")
    assert caught.value.remedy.endswith("holdfast cluster resume CLUSTER a")
    resume_node(cluster.location, "a")
    cluster.tell("a", Report((0, 1), {2: "no module named x"}))
    with pytest.raises(ConfigurationError, match="no other live node") as caught:
        drain_node(cluster.location, "b")
    assert "a (failing)" in caught.value.remedy


def test_partitions_are_moved_to_a_node_that_takes_them(server: PostgreSQL, cluster: Cluster) -> None:
    cluster.join("a", 0, 1)
    cluster.join("b", 2, 3)
    with pytest.raises(ConfigurationError, match="the cluster has no node 'c'"):
        move_partitions(cluster.location, [0], "c")
    with pytest.raises(ConfigurationError, match="has no cluster partition 4\n  It has 4, numbered from 0"):
        move_partitions(cluster.location, [4, 0], "b")
    move_partitions(cluster.location, [0], "b")
    drain_node(cluster.location, "b")
    with pytest.raises(ConfigurationError, match="node 'b' takes no partitions: it is draining"):
        move_partitions(cluster.location, [1], "b")


def test_the_status_shows_moved_partitions_until_they_are_released(server: PostgreSQL, cluster: Cluster) -> None:
    cluster.join("a", 0, 1)
    cluster.join("b", 2, 3)
    move_partitions(cluster.location, [0, 1, 2], "b")
    assert [one.moved_to for one in cluster.status().partitions] == ["b", "b", "b", None]
    with pytest.raises(ConfigurationError, match="has no cluster partition 4"):
        release_partitions(cluster.location, [4])
    assert release_partitions(cluster.location, [3, 2, 0]) == (0, 2)
    assert [one.moved_to for one in cluster.status().partitions] == [None, "b", None, None]
    server.sql("DELETE FROM holdfast_node WHERE name = 'b'")  # its wish ends with it
    assert [one.moved_to for one in cluster.status().partitions] == [None] * 4


def test_a_read_only_database_is_the_first_problem(cluster: Cluster) -> None:
    cluster.join("a", 0, 1, 2, 3)
    read_only = read_status(f"{cluster.location}&options=-cdefault_transaction_read_only%3Don").problems
    assert [one[:26] for one in read_only] == ["The database is read-only,"]
    assert cluster.status().problems == ()
