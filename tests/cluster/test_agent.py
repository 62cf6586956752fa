"""Agents as real processes on a real PostgreSQL: killed, paused, cut off, ended, and refused."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from databases import PostgreSQL
from live_nodes import Node, differ_and_agree

from holdfast.cluster.agent import AgentSettings, _Agent
from holdfast.cluster.lease_database import LeaseDatabase
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.memory import NodeMemory
from holdfast.cluster.rows import (
    Claim,
    ClusterRefused,
    Enter,
    Entered,
    Join,
    Look,
    NodeRow,
    OwnershipRow,
    Picture,
    Request,
)
from holdfast.cluster.trust import Trust
from holdfast.exceptions import ConfigurationError
from holdfast.store import open_store
from holdfast.store.sql.store import SQLStore

LEASE = 2.0

Nodes = Callable[..., Node]


@pytest.fixture
def server(servers: Callable[[str], PostgreSQL]) -> PostgreSQL:
    return servers("postgresql")


@pytest.fixture
def nodes(server: PostgreSQL) -> Iterator[Nodes]:
    location = server.new_url()
    with ExitStack() as stack:

        def start(name: str, *, partitions: int = 6, lease: float = LEASE, location: str = location) -> Node:
            node = Node(location, name, partitions, lease)
            stack.callback(node.kill)
            stack.callback(node.process.send_signal, signal.SIGCONT)
            return node

        start.location = location  # type: ignore[attr-defined]
        yield start


def rows(server: PostgreSQL, nodes: Nodes) -> list[list[str]]:
    """The rows of the ownership: partition, owner, epoch."""
    space = nodes.location.rpartition("=")[2]  # type: ignore[attr-defined]
    text = server.sql(
        f"SELECT partition, owner, epoch FROM holdfast_ownership WHERE space = '{space}' ORDER BY partition"
    )
    return [line.split("|") for line in text.splitlines()]


@pytest.mark.crash
def test_nodes_share_the_partitions_and_take_over_from_a_killed_one(server: PostgreSQL, nodes: Nodes) -> None:
    a, b = nodes("a", lease=6.0), nodes("b", lease=6.0)
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.wait(lambda: len(b.view["mine"]) == 3 and len(b.view["owners"]) == 6)
    assert a.view["mine"].keys().isdisjoint(b.view["mine"])
    assert b.view["nodes"] == {"a": "http://a/", "b": "http://b/"}
    before = rows(server, nodes)  # a has had all of them if it started long before b
    assert sorted(owner for _, owner, _ in before) == ["a"] * 3 + ["b"] * 3
    a.kill()
    b.wait(lambda: len(b.view["mine"]) == 6)
    assert set(b.view["owners"].values()) == {"b"}
    assert [one["node"] for one in b.logged("cluster.node_declared_dead")] == ["a"]
    assert all(0 < seconds <= 0.7 * 6 for seconds in b.trust())
    b.say('{"end": true}')
    assert b.ended() == 0
    claimed = [[partition, "", str(int(epoch) + (owner == "a"))] for partition, owner, epoch in before]
    assert rows(server, nodes) == claimed
    assert b.told[-1] == {"trust": [0.0] * 6}


def test_nodes_log_that_their_configurations_differ_and_when_they_are_the_same(nodes: Nodes) -> None:
    a, b = nodes("a", partitions=2, lease=6.0), nodes("b", partitions=2, lease=6.0)
    differ_and_agree(a, b)


def test_a_node_that_others_cannot_reach_says_so_itself(nodes: Nodes) -> None:
    a, b = nodes("a", partitions=2, lease=6.0), nodes("b", partitions=2, lease=6.0)
    b.serves(1)
    a.say('{"serving": [], "unreachable": {"b": "refused"}}')
    b.wait(lambda: b.view["cut_off_by"] == ["a"] and not b.view["mine"])
    (said,) = b.logged("cluster.cut_off")
    assert (said["level"], said["node"], said["url"], said["by"]) == ("warning", "b", "http://b/", ["a"])
    assert "url in [cluster]" in said["remedy"]
    a.say('{"serving": [], "unreachable": {}}')
    b.wait(lambda: len(b.view["mine"]) == 1)
    assert (b.view["cut_off_by"], len(b.logged("cluster.cut_off")), len(b.logged("cluster.reachable"))) == ([], 1, 1)
    assert not a.logged("cluster.cut_off")


@pytest.mark.nightly
@pytest.mark.crash
def test_a_paused_node_loses_its_partitions_and_acts_on_none_afterwards(server: PostgreSQL, nodes: Nodes) -> None:
    a, b = nodes("a"), nodes("b")
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.serves(3)
    a.signal(signal.SIGSTOP)
    b.wait(lambda: len(b.view["mine"]) == 6)
    epochs = rows(server, nodes)
    mine = a.view["mine"]
    a.signal(signal.SIGCONT)
    trusted = a.trust()
    assert max(trusted) <= 0 or a.view["mine"] != mine, "it is not trusted with what it lost"
    a.wait(lambda: len(a.logged("cluster.joined")) == 2)
    assert [one["partitions"] for one in a.logged("cluster.lease_lost")] == [sorted(map(int, mine))]
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.wait(lambda: len(b.view["mine"]) == 3)
    for before, after in zip(epochs, rows(server, nodes), strict=True):
        assert int(after[2]) >= int(before[2])


@pytest.mark.nightly
def test_a_node_that_joins_and_leaves_moves_partitions_without_a_gap(server: PostgreSQL, nodes: Nodes) -> None:
    a = nodes("a")
    a.serves(6)
    b = nodes("b")
    b.wait(lambda: len(b.view["mine"]) == 3)
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.say('{"end": true}')
    assert b.ended() == 0
    assert b.logged("cluster.left")
    a.wait(lambda: len(a.view["mine"]) == 6 and a.view["nodes"].keys() == {"a"})
    assert not a.logged("cluster.node_declared_dead")


@pytest.mark.nightly
def test_a_node_drains_at_the_supervisors_word_or_by_its_row(server: PostgreSQL, nodes: Nodes) -> None:
    a, b, c = nodes("a"), nodes("b"), nodes("c")
    for node in (a, b, c):
        node.serves(2)
    a.say('{"drain": true}')
    b.wait(lambda: len(b.view["mine"]) == 3)
    c.wait(lambda: len(c.view["mine"]) == 3)
    assert a.view["nodes"].keys() == {"a", "b", "c"}
    server.sql("UPDATE holdfast_node SET is_draining = true WHERE name = 'b'")
    c.wait(lambda: len(c.view["mine"]) == 6)
    a.wait(lambda: a.view["is_draining"] and not a.view["mine"])
    b.wait(lambda: b.view["is_draining"] and not b.view["mine"])


@pytest.mark.nightly
def test_a_name_that_is_used_twice_is_refused_after_a_lease(nodes: Nodes) -> None:
    a = nodes("a")
    a.serves(6)
    twin = nodes("a")
    assert twin.ended() == 1
    (refused,) = twin.events("refused")
    assert refused["refused"] == {
        "problem": "Another process is in the cluster as node 'a'.",
        "remedy": "Give each node another name, or end the other process.",
    }
    assert min(a.trust()) > 0 and len(a.view["mine"]) == 6


@pytest.mark.nightly
@pytest.mark.crash
def test_a_killed_node_that_starts_again_gets_its_partitions_back(server: PostgreSQL, nodes: Nodes) -> None:
    a = nodes("a", lease=30.0)
    a.serves(6)
    a.kill()
    again = nodes("a", lease=30.0)
    again.serves(6)
    assert rows(server, nodes) == [[str(number), "a", "2"] for number in range(6)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ("partitions = 5", "has 5 partitions, but this node is configured for 6", "Set 5:"),
        ("format = 2", "have version 2, but this version of Holdfast writes 1", "Use the version of Holdfast"),
        ("format = 0", "have version 0, but this version of Holdfast writes 1", "Use an older version of Holdfast"),
        ("system_identifier = '1'", "belongs to another server", "SET system_identifier = NULL"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_and_changes_nothing(
    server: PostgreSQL, nodes: Nodes, change: str, problem: str, remedy: str
) -> None:
    a = nodes("a")
    a.serves(6)
    server.sql(f"UPDATE holdfast_cluster SET {change} WHERE space = '{nodes.location.rpartition('=')[2]}'")  # type: ignore[attr-defined]
    before = rows(server, nodes)
    b = nodes("b")
    assert b.ended() == 1
    (refused,) = b.events("refused")
    assert problem in refused["refused"]["problem"]
    assert remedy in refused["refused"]["remedy"]
    assert rows(server, nodes) == before
    assert not b.logged("cluster.joined") and b.told[-1] == {"trust": [0.0] * 6}
    assert min(a.trust()) > 0


@pytest.mark.nightly
def test_no_partition_moves_when_the_lease_connections_end(server: PostgreSQL, nodes: Nodes) -> None:
    a, b = nodes("a", lease=6.0), nodes("b", lease=6.0)
    a.serves(3)
    b.serves(3)
    before = rows(server, nodes)
    for number in range(1, 6):
        server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast-node%'"
        )
        for node in (a, b):
            node.wait(lambda node=node, number=number: len(node.logged("cluster.database_back")) == number)
            assert len(node.logged("cluster.database_away")) == number
    assert rows(server, nodes) == before
    assert len(a.logged("cluster.joined")) == len(b.logged("cluster.joined")) == 1


@pytest.mark.nightly
def test_a_supervisor_that_is_gone_ends_the_trust_and_the_agent(nodes: Nodes) -> None:
    a, b = nodes("a", lease=30.0), nodes("b", lease=30.0)
    a.serves(3)
    b.serves(3)
    a.say("close")
    assert a.ended() == 1
    assert a.told[-1] == {"trust": [0.0] * 6}
    b.wait(lambda: len(b.view["mine"]) == 6)  # long before the lease ends


@pytest.mark.nightly
@pytest.mark.crash
def test_no_partition_moves_when_the_server_restarts_or_pauses(nodes: Nodes) -> None:
    with PostgreSQL() as server:
        location = server.url("restarted")
        a, b = nodes("a", lease=2.0, location=location), nodes("b", lease=2.0, location=location)
        a.serves(3)
        b.serves(3)
        mine = a.view["mine"], b.view["mine"]
        server.kill()
        for node in (a, b):
            node.wait(lambda node=node: node.logged("cluster.database_away"))
        while max(a.trust() + b.trust()) > 0:
            pass
        server.start()
        for node in (a, b):
            node.wait(lambda node=node: node.logged("cluster.database_back"))
        server.pause()
        while max(a.trust() + b.trust()) > 0:
            pass
        server.resume()
        for node in (a, b):
            while sum(seconds > 0 for seconds in node.trust()) < 3:
                pass
        assert (a.view["mine"], b.view["mine"]) == mine
        assert len(a.logged("cluster.joined")) == len(b.logged("cluster.joined")) == 1


@pytest.mark.nightly
def test_a_takeover_ends_the_sessions_of_the_earlier_owner(server: PostgreSQL, nodes: Nodes) -> None:
    """A paused owner keeps the lock of its store, which the next worker needs."""
    a = nodes("a", partitions=1)
    a.serves(1)
    location = nodes.location  # type: ignore[attr-defined]
    paused = SQLStore(location)  # of the owner, which is paused now
    a.signal(signal.SIGSTOP)
    b = nodes("b", partitions=1)
    b.serves(1)
    store = open_store(location)
    store.close()
    paused.close()


def test_a_database_that_refuses_the_user_is_reported(server: PostgreSQL) -> None:
    database = LeaseDatabase(server.url("x", user="nobody-here"), "a", "http://a/", 6, LeasePolicy())
    with pytest.raises(ClusterRefused, match=r"refuses node 'a': .*nobody-here") as caught:
        database.run(Enter())
    assert "Correct the URL" in caught.value.remedy


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101])
def test_a_name_that_nobody_can_read_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name of a node"):
        AgentSettings("postgresql://db/x", name, "http://a/")


@pytest.mark.parametrize("partitions", [0, 65])
def test_a_number_of_partitions_out_of_bounds_is_refused(partitions: int) -> None:
    with pytest.raises(ConfigurationError, match="partitions cannot be"):
        AgentSettings("postgresql://db/x", "a", "http://a/", partitions)


def test_the_location_is_not_shown() -> None:
    assert "secret" not in repr(AgentSettings("postgresql://u:secret@db/x", "a", "http://a/"))


def test_a_memory_that_cannot_be_read_is_reported_before_it_is_replaced(server: PostgreSQL, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    settings = AgentSettings(server.new_url(), "a", "http://a/", 1, memory=str(tmp_path))
    memory, reported = NodeMemory(settings.memory, "a"), list[str]()
    database = LeaseDatabase(settings.location, "a", settings.url, 1, settings.policy, memory=memory)
    ours, theirs = socket.socketpair()

    def report(level: str, event: str, **fields: object) -> None:
        reported.append(event)
        if event == "cluster.joined":
            ours.close()

    assert _Agent(settings, database, theirs, Trust(1), report, memory).run() == 1
    assert "cluster.memory_failed" in reported and memory.trouble == ""
    database.close()


def test_an_unexpected_error_of_a_request_ends_the_agent() -> None:
    """Otherwise no request would follow, and the node would stand still without its lease."""

    class Broken(LeaseDatabase):
        def run(self, request: Request) -> Any:
            raise ZeroDivisionError

    settings = AgentSettings("postgresql://db/x", "a", "http://a/", 1)
    database = Broken(settings.location, "a", settings.url, 1, settings.policy)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ZeroDivisionError):
        _Agent(settings, database, theirs, Trust(1), lambda *_, **__: None, NodeMemory(None, "a")).run()


def test_a_partition_that_no_view_had_needs_no_report_of_its_end() -> None:
    """The supervisor reads nothing for a while, and a partition comes and goes."""
    ours, theirs = socket.socketpair()
    settings = AgentSettings("postgresql://db/x", "a", "http://a/", 1)
    database = LeaseDatabase(settings.location, "a", settings.url, 1, settings.policy)
    agent = _Agent(settings, database, theirs, Trust(1), lambda event, **fields: None, NodeMemory(None, "a"))
    membership = agent._membership
    free, nodes = (OwnershipRow(0, "a", 6, 1),), (NodeRow("a", 7, "http://a/", 1, False, True, False),)
    for request, answer in (
        (Enter(), Entered(True, False)),
        (Join(False), 7),
        (Look(7, False), Picture(True, True, nodes, free)),
    ):
        membership.answered(request, answer, 0.0, 0.0)
    agent._supervisor._out = b'{"view": '  # the rest of a view that the socket did not take
    membership.answered(Claim(7, (0,), 1), {0: 2}, 0.0, 0.0)
    agent._publish()
    membership.answered(Look(7, True), Picture(False, True, (), ()), 0.0, 0.0)
    agent._publish()
    assert membership.ending == [0]
    agent._supervisor._out = b""
    agent._publish()
    assert membership.ending == []
    ours.close()
    theirs.close()
