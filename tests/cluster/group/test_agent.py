"""Agents of a cluster on a real Kafka, as processes: killed, paused, ended, and refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from live_nodes import Node, differ_and_agree

from holdfast.cluster.group.pictures import group_of
from holdfast.store.kafka.address import read_kafka_address

pytestmark = pytest.mark.nightly
LEASE = 3.0
Nodes = Callable[..., Node]


@pytest.fixture
def nodes(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> Iterator[Nodes]:
    location = kafka_nodes(1).new_url(
        tmp_path / "cache-{node}"
    )  # the cluster says how many partitions a new topic gets
    with ExitStack() as stack:

        def start(name: str, *, partitions: int = 6, lease: float = LEASE) -> Node:
            node = Node(location, name, partitions, lease)
            stack.callback(node.kill)
            stack.callback(node.process.send_signal, signal.SIGCONT)
            return node

        yield start


def test_only_the_node_that_creates_the_cluster_says_so(nodes: Nodes) -> None:
    a = nodes("a")
    a.wait(lambda: len(a.view["mine"]) == 6)
    b = nodes("b")
    b.wait(lambda: len(b.view["mine"]) == 3)
    (said,) = a.logged("cluster.created")
    topic = said["cluster"].partition("?")[0].rpartition("/")[2]
    assert (said["level"], a.view["created"]) == ("warning", f"the topic {topic}")
    assert (b.logged("cluster.created"), b.view["created"]) == ([], "")


def share(nodes: Nodes) -> tuple[Node, Node]:
    a, b = nodes("a"), nodes("b")
    a.wait(lambda: len(a.view["mine"]) == 3 and len(a.view["owners"]) == 6)
    b.wait(lambda: len(b.view["mine"]) == 3 and len(b.view["owners"]) == 6)
    assert a.view["mine"].keys().isdisjoint(b.view["mine"])
    assert b.view["nodes"] == a.view["nodes"] == {"a": "http://a/", "b": "http://b/"}
    return a, b


@pytest.mark.crash
def test_nodes_share_the_partitions_and_take_over_from_a_killed_one(nodes: Nodes) -> None:
    a, b = share(nodes)
    a.kill()
    b.wait(lambda: len(b.view["mine"]) == 6)
    assert set(b.view["owners"].values()) == {"b"}
    assert all(0 < seconds <= 0.3 * LEASE for seconds in b.trust())
    b.say('{"end": true}')
    assert b.ended() == 0
    assert b.told[-1] == {"trust": [0.0] * 6}


@pytest.mark.crash
def test_a_paused_node_loses_its_partitions_and_gets_others_afterwards(nodes: Nodes) -> None:
    a, b = share(nodes)
    mine = sorted(map(int, a.view["mine"]))
    a.signal(signal.SIGSTOP)
    b.wait(lambda: len(b.view["mine"]) == 6)
    a.signal(signal.SIGCONT)
    a.wait(lambda: [one["partitions"] for one in a.logged("cluster.lease_lost")] == [mine])
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.wait(lambda: len(b.view["mine"]) == 3)


@pytest.mark.crash
@pytest.mark.parametrize("is_killed", [True, False])
def test_nodes_outlive_the_coordinator_of_their_group(
    kafka_nodes: Callable[[int], Any], tmp_path: Path, is_killed: bool
) -> None:
    """A client of Kafka that asks for the group then aborts its process, or asks the old coordinator for ever."""
    kafka = kafka_nodes(3)
    location = kafka.new_url(tmp_path / "cache-{node}")
    with ExitStack() as stack:
        nodes = [Node(location, name, 6, LEASE) for name in "ab"]
        for node in nodes:
            stack.callback(node.kill)
        for node in nodes:
            node.wait(lambda node=node: len(node.view["mine"]) == 3)
        group = group_of(read_kafka_address(location))
        while (first := coordinator_of(kafka, group)) is None:
            time.sleep(0.1)
        (kafka.kill if is_killed else kafka.pause)(first)
        try:
            while coordinator_of(kafka, group) in (None, first):
                time.sleep(0.1)
        finally:
            kafka.start(first) if is_killed else kafka.pause(first, on=False)
        for node in nodes * 3:  # they ask for some time before they are aborted, or for ever
            time.sleep(LEASE)
            while max(node.trust()) <= 0.0 or len(node.view["mine"]) != 3:
                time.sleep(0.1)
        kafka.wait()


_ASKING = """
import sys
from confluent_kafka.admin import AdminClient
servers, group = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
print(admin.describe_consumer_groups([group], request_timeout=5.0)[group].result().coordinator.id - 1)
"""


def coordinator_of(kafka: Any, group: str) -> int | None:
    """Ask in a process that may be aborted; None: there is none now."""
    command = [sys.executable, "-c", _ASKING, kafka.servers, group]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(told.stdout) if told.returncode == 0 else None


def test_a_node_does_not_share_its_cache_with_another_one(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    started = [Node(kafka_nodes(1).new_url(tmp_path / "cache"), "a", 2, LEASE)]
    try:
        started[0].wait(lambda: started[0].view["mine"])
        started.append(Node(kafka_nodes(1).new_url(tmp_path / "cache"), "b", 2, LEASE))
        started[1].wait(lambda: started[1].events("refused"))
        (told,) = started[1].events("refused")
        assert told["refused"]["problem"].endswith(f"uses the cache at {tmp_path / 'cache'}")
        assert "cache=/DIRECTORY/{node}" in told["refused"]["remedy"]
        started[0].kill()
        started.append(Node(kafka_nodes(1).new_url(tmp_path / "cache"), "c", 2, LEASE))
        started[2].wait(lambda: started[2].view["mine"])
    finally:
        for one in started:
            one.kill()


def test_a_node_that_leaves_gives_its_partitions_away_at_once(nodes: Nodes) -> None:
    a, b = share(nodes)
    b.say('{"end": true}')
    assert b.ended() == 0
    assert b.logged("cluster.left")
    a.wait(lambda: len(a.view["mine"]) == 6 and a.view["nodes"].keys() == {"a"})


def test_nodes_log_that_their_configurations_differ_and_when_they_are_the_same(nodes: Nodes) -> None:
    a, b = share(nodes)
    differ_and_agree(a, b)


def test_a_node_that_others_cannot_reach_says_so_itself_and_gives_all_away(nodes: Nodes) -> None:
    a, b = share(nodes)
    a.say('{"serving": [], "unreachable": {"b": "refused"}}')
    b.wait(lambda: b.view["cut_off_by"] == ["a"])
    (said,) = b.logged("cluster.cut_off")
    assert (said["node"], said["url"], said["by"]) == ("b", "http://b/", ["a"])
    a.wait(lambda: len(a.view["mine"]) == 6)
    a.say('{"serving": [], "unreachable": {}}')
    b.wait(lambda: b.logged("cluster.reachable") and len(b.view["mine"]) == 3)


@pytest.mark.crash
def test_a_node_says_that_kafka_does_not_answer_as_soon_as_it_may_not_act(
    nodes: Nodes, kafka_nodes: Callable[[int], Any]
) -> None:
    a = nodes("a")
    a.wait(lambda: len(a.view["mine"]) == 6 and not a.view["trouble"])
    kafka = kafka_nodes(1)
    kafka.pause(0)
    try:
        a.wait(lambda: a.view["trouble"])
        assert (a.view["engine"], a.view["trouble"]["what"]) == ("Kafka", "its group coordinator does not answer")
    finally:
        kafka.pause(0, on=False)
    a.wait(lambda: len(a.view["mine"]) == 6 and not a.view["trouble"])


def test_a_node_without_supervisor_ends_and_acts_no_longer(nodes: Nodes) -> None:
    a, b = share(nodes)
    b.say("close")
    assert b.ended() == 1
    a.wait(lambda: len(a.view["mine"]) == 6)


@pytest.mark.parametrize(
    ("partitions", "names", "why"),
    [(7, ("a", "b"), "has 6 partitions, and the file says partitions = 7"), (6, ("a", "a"), "Another node")],
)
def test_a_node_that_does_not_fit_is_refused(nodes: Nodes, partitions: int, names: tuple[str, str], why: str) -> None:
    first = nodes(names[0])
    first.wait(lambda: len(first.view["mine"]) == 6)
    second = nodes(names[1], partitions=partitions)
    second.wait(lambda: any("refused" in one for one in second.told))
    refused = next(one["refused"] for one in second.told if "refused" in one)
    assert why in refused["problem"] and refused["remedy"]
    assert not second.logged("cluster.claimed")
    assert second.ended() == 1
    first.wait(lambda: len(first.view["mine"]) == 6)
