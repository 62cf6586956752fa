"""What operators see of a cluster on a real Kafka, and ask of it: drains, moves, and a node that is killed.

Covers cluster/group/shared_topic.py, cluster/group/pictures.py, cluster/group/agent.py and
cluster/operating/engines.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from crew import wait_until
from live_nodes import Node

from holdfast.cli.inspection.cluster import cluster as commands
from holdfast.cluster.group import inspection
from holdfast.cluster.group.members import GroupMember, GroupPicture
from holdfast.cluster.group.notes import Notes, forget_note, report_note
from holdfast.cluster.group.pictures import group_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.operating.engines import engine_of
from holdfast.cluster.operating.status import ClusterStatus
from holdfast.cluster.rows import Report
from holdfast.exceptions import ConfigurationError, StoreAway
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.topic import KafkaLog
from holdfast.testing.ports import free_ports

pytestmark = pytest.mark.nightly
PARTITIONS = 6
LEASE = 3.0


class Cluster:
    """Agents of a cluster, whose workers are said to serve at once."""

    def __init__(self, location: str, stack: ExitStack) -> None:
        self.location = location
        self.engine = engine_of(location)
        self._stack = stack

    def start(self, name: str, disk: Path | None = None) -> Node:
        """Start a node, with its cache on a disk of its own."""
        location = self.location if disk is None else re.sub(r"cache=[^&]*", f"cache={disk}/{{node}}", self.location)
        node = Node(location, name, PARTITIONS, LEASE)
        self._stack.callback(node.kill)
        return node

    def serve(self, node: Node, count: int, unreachable: dict[str, str] | None = None) -> None:
        """Wait until a node has so many partitions, and say that it serves them."""
        node.wait(lambda: len(node.view["mine"]) == count)
        mine = sorted(map(int, node.view["mine"]))
        node.say(json.dumps({"serving": mine, "unreachable": unreachable or {}}))

    def status(self) -> ClusterStatus:
        return self.engine.read_status(self.location)

    def owned(self) -> list[tuple[str, str, int]]:
        return [(one.name, one.state, len(one.partitions)) for one in self.status().nodes]


@pytest.fixture
def cluster(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(kafka_nodes(1).new_url(tmp_path / "cache-{node}", partitions=PARTITIONS), stack)


def test_a_node_is_drained_and_resumed(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    wait_until(lambda: not cluster.status().problems)
    status = cluster.status()
    assert [(one.name, one.url, one.state) for one in status.nodes] == [
        ("a", "http://a/", "live"),
        ("b", "http://b/", "live"),
    ]
    assert all(one.serving == one.partitions and one.lease_seconds is None for one in status.nodes)
    assert status.server == "Kafka with 1 broker"
    assert [one[:29] for one in status.warnings] == ["One broker of Kafka has the d"]

    cluster.engine.drain_node(cluster.location, "a")
    a.wait(lambda: a.view["is_draining"] and not a.view["mine"])
    a.say('{"serving": [], "unreachable": {}}')
    cluster.serve(b, 6)
    wait_until(lambda: cluster.owned() == [("a", "draining", 0), ("b", "live", 6)])
    a.wait(lambda: a.view["owners"] == dict.fromkeys(map(str, range(PARTITIONS)), "b"))
    with pytest.raises(ConfigurationError, match="no other live node could take the partitions of 'b'"):
        cluster.engine.drain_node(cluster.location, "b")

    cluster.engine.resume_node(cluster.location, "a")
    cluster.serve(a, 3)
    cluster.serve(b, 3)
    b.say('{"end": true}')
    assert b.ended() == 0
    wait_until(lambda: [one.name for one in cluster.status().nodes] == ["a"])
    with pytest.raises(ConfigurationError, match="the cluster has no node 'b'\n  Its nodes: a"):
        cluster.engine.resume_node(cluster.location, "b")


@pytest.mark.crash
def test_the_status_has_what_a_node_reports_until_it_ends(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    b.kill()
    cluster.serve(a, PARTITIONS)
    a.say('{"serving": [0, 1, 2, 3, 4], "unreachable": {}}')
    a.say('{"failed": {"5": "the disk is full"}}')
    wait_until(lambda: any("the disk is full" in one for one in cluster.status().problems))
    status = cluster.status()
    assert "Node a is starting cluster partition 5: it could not be started before, at node a: the disk is full." in (
        status.problems
    )
    assert [(one.name, one.state, one.serving) for one in status.nodes] == [("a", "failing", (0, 1, 2, 3, 4))]
    a.kill()
    wait_until(lambda: cluster.status().problems == ("No node owns cluster partitions 0, 1, 2, 3, 4, 5.",))
    assert cluster.status().nodes == ()


def owners(cluster: Cluster) -> dict[str | None, int]:
    found = Counter(one.owner for one in cluster.status().partitions)
    return dict(sorted(found.items(), key=str))


@pytest.mark.crash
def test_a_moved_partition_stays_until_its_node_is_killed(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    with pytest.raises(ConfigurationError, match="the cluster has no node 'c'"):
        cluster.engine.move_partitions(cluster.location, [0], "c")
    with pytest.raises(ConfigurationError, match="has no cluster partition 6"):
        cluster.engine.move_partitions(cluster.location, [0, 6], "b")
    cluster.engine.move_partitions(cluster.location, [0, 1, 2, 3], "b")
    assert [one.moved_to for one in cluster.status().partitions] == ["b"] * 4 + [None] * 2
    moved = {"0", "1", "2", "3"}
    b.wait(lambda: moved <= b.view["mine"].keys())
    a.wait(lambda: not moved & a.view["mine"].keys() and all(a.view["owners"].get(one) == "b" for one in moved))
    assert all(trust < 0 for trust in a.trust()[:4])
    assert all(0 < trust <= 0.3 * LEASE for trust in b.trust()[:4])
    wait_until(lambda: [one.owner for one in cluster.status().partitions][:4] == ["b"] * 4)

    c = cluster.start("c")  # the group assigns again, and moved partitions stay
    c.wait(lambda: len(c.view["owners"]) == PARTITIONS and all(c.view["owners"][one] == "b" for one in moved))
    assert moved <= b.view["mine"].keys()
    cluster.engine.drain_node(cluster.location, "b")
    b.wait(lambda: not b.view["mine"])
    with pytest.raises(ConfigurationError, match="node 'b' takes no partitions: it is draining"):
        cluster.engine.move_partitions(cluster.location, [1], "b")
    wait_until(lambda: not any(one.moved_to for one in cluster.status().partitions))
    cluster.engine.resume_node(cluster.location, "b")
    b.wait(lambda: len(b.view["mine"]) == 2)  # the drain has ended the move
    cluster.engine.move_partitions(cluster.location, [0, 1, 2, 3], "b")
    b.wait(lambda: moved <= b.view["mine"].keys())
    assert cluster.engine.release_partitions(cluster.location, [0, 5]) == (0,)
    wait_until(lambda: [one.moved_to for one in cluster.status().partitions] == [None] + ["b"] * 3 + [None] * 2)

    b.kill()
    a.wait(lambda: "b" not in a.view["nodes"] and "b" not in a.view["owners"].values())
    c.wait(lambda: "b" not in c.view["nodes"] and "b" not in c.view["owners"].values())
    a.wait(lambda: len(a.view["mine"]) == 3)
    c.wait(lambda: len(c.view["mine"]) == 3)
    # Kafka forgets the members of the killed process one after another.
    wait_until(lambda: not any(one.moved_to for one in cluster.status().partitions))
    again = cluster.start("b")  # the wish ended with the process
    again.wait(lambda: len(again.view["mine"]) == 2)


@pytest.mark.crash
def test_a_node_that_was_paused_takes_its_moved_partitions_again(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    cluster.engine.move_partitions(cluster.location, range(PARTITIONS), "b")
    b.wait(lambda: len(b.view["mine"]) == PARTITIONS)
    a.wait(lambda: not a.view["mine"])
    b.signal(signal.SIGSTOP)
    a.wait(lambda: len(a.view["mine"]) == PARTITIONS)
    assert all(trust > 0 for trust in a.trust())
    b.signal(signal.SIGCONT)
    a.wait(lambda: not a.view["mine"])
    b.wait(lambda: len(b.view["mine"]) == PARTITIONS)
    wait_until(lambda: owners(cluster) == {"b": PARTITIONS})
    assert set(cluster.engine.release_partitions(cluster.location, range(PARTITIONS))) == set(range(PARTITIONS))
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.wait(lambda: len(b.view["mine"]) == 3)


def test_while_a_node_does_not_follow_moves_nothing_is_moved_and_pins_are_given_up(cluster: Cluster) -> None:
    """A node of an earlier version, as its report shows."""
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    moved = sorted(a.view["mine"])[0]
    cluster.engine.move_partitions(cluster.location, [int(moved)], "b")
    b.wait(lambda: moved in b.view["mine"])
    a.say('{"serving": [], "unreachable": {}}')  # so that it has nothing more to report
    address = read_kafka_address(cluster.location)
    shared, notes = SharedTopic(address, group_of(address)), dict[str, bytes | None]()

    def has_said() -> bool:
        notes.update(shared.changes())
        return json.loads(notes.get("node/a") or "{}").get("serving") == []

    wait_until(has_said)
    key, report = "node/a", notes["node/a"] or b""
    earlier = {name: value for name, value in json.loads(report).items() if name != "moves"}
    shared.put(key, json.dumps(earlier).encode())
    a.wait(lambda: moved in a.view["mine"])
    b.wait(lambda: moved not in b.view["mine"])
    with pytest.raises(ConfigurationError, match="node 'a' runs a version of Holdfast that does not follow moves"):
        cluster.engine.move_partitions(cluster.location, [int(moved)], "b")
    shared.put(key, report)
    b.wait(lambda: moved in b.view["mine"])
    shared.close()


def test_nothing_is_moved_before_every_node_has_reported() -> None:
    picture = GroupPicture((GroupMember("a-1", "a", "http://a/", 1.5),), is_stable=True)
    seen: Any = inspection._Seen(None, None, picture, Notes())  # type: ignore[arg-type]  # neither is asked
    with pytest.raises(ConfigurationError, match="node 'a' has not reported yet"):
        inspection._require_versions(seen)
    seen.notes.read([report_note("a", 1.5, Report())])
    inspection._require_versions(seen)


def test_a_node_whose_report_another_process_deleted_says_it_again(cluster: Cluster) -> None:
    a = cluster.start("a")
    cluster.serve(a, PARTITIONS)
    wait_until(lambda: not cluster.status().problems)
    address = read_kafka_address(cluster.location)
    shared = SharedTopic(address, group_of(address))
    for note in (forget_note("a"), report_note("a", time.time() + 1, Report())):
        shared.put(*note)
        wait_until(lambda: not cluster.status().problems)
    shared.close()


def test_a_node_that_others_cannot_reach_gives_its_partitions_away(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    a.say('{"serving": [], "unreachable": {"b": "Connection refused"}}')
    a.wait(lambda: len(a.view["mine"]) == PARTITIONS)
    wait_until(lambda: cluster.owned() == [("a", "live", 6), ("b", "unreachable", 0)])
    a.say('{"serving": [], "unreachable": {}}')
    a.wait(lambda: len(a.view["mine"]) == 3)
    b.wait(lambda: len(b.view["mine"]) == 3)


@pytest.mark.crash
def test_a_node_without_room_leaves_its_partitions_to_others_while_one_has_room(
    cluster: Cluster, mount_disk: Callable[[int], Path]
) -> None:
    disk = mount_disk(128)
    filler = disk / "filler"
    a, b = cluster.start("a", disk), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    wait_until(lambda: not cluster.status().problems)
    fill = partial(filler.write_bytes, bytes(120 << 20))
    fill()
    a.wait(lambda: not a.view["mine"])
    a.say('{"serving": [], "unreachable": {}}')
    cluster.serve(b, PARTITIONS)
    wait_until(lambda: not cluster.status().problems)
    assert cluster.owned() == [("a", "short", 0), ("b", "live", PARTITIONS)]
    why = f"less than 32 MB are free for its cache at {disk}/a-"
    (warning,) = (one for one in cluster.status().warnings if one.startswith("Node a leaves its partitions to others"))
    assert why in warning and warning.endswith("Free space there. The node then takes part again on its own.")
    with pytest.raises(ConfigurationError, match="node 'a' takes no partitions: its disk has no room for them"):
        cluster.engine.move_partitions(cluster.location, [0], "a")
    with pytest.raises(ConfigurationError, match=r"no other live node .*\n.*Repair another node first: a \(short\)"):
        cluster.engine.drain_node(cluster.location, "b")

    c = cluster.start("c", disk)
    c.wait(lambda: set(c.view["owners"].values()) == {"b"} and len(c.view["owners"]) == PARTITIONS)
    assert c.logged("cluster.disk_full") and not c.logged("cluster.claimed")
    b.kill()  # better without room than not at all
    for node in (a, c):
        cluster.serve(node, 3)
    wait_until(lambda: [one.state for one in cluster.status().partitions] == ["serving"] * PARTITIONS)
    problems = cluster.status().problems
    assert [one.partition(" for ")[0] for one in problems] == [
        f"Node {name} may accept no new messages" for name in ("a", "c")
    ]
    assert all("free for its cache at" in one and "Free space there." in one for one in problems)

    filler.unlink()
    for node in (a, c):
        node.wait(lambda node=node: node.logged("cluster.disk_has_room"))
    wait_until(lambda: cluster.owned() == [("a", "live", 3), ("c", "live", 3)])
    fill()
    for node in (a, c):  # who has no room keeps what it has if nobody else has any
        node.wait(lambda node=node: len(node.logged("cluster.disk_full")) == 2)
    wait_until(lambda: cluster.owned() == [("a", "short", 3), ("c", "short", 3)])
    d = cluster.start("d", disk)
    d.wait(lambda: len(d.view["mine"]) == 2)


def test_a_node_that_cannot_write_its_cache_leaves_its_partitions_to_others(
    cluster: Cluster, mount_disk: Callable[[int], Path]
) -> None:
    disk = mount_disk(128)
    a, b = cluster.start("a", disk), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    space = os.statvfs(disk)  # much is free, but no file can be created
    subprocess.run(["mount", "-o", f"remount,nr_inodes={space.f_files - space.f_ffree}", disk], check=True)
    a.say(json.dumps({"failed": {next(iter(a.view["mine"])): "No space left on device"}}))
    b.wait(lambda: len(b.view["mine"]) == PARTITIONS)
    wait_until(lambda: cluster.owned() == [("a", "short", 0), ("b", "live", PARTITIONS)])
    a.wait(lambda: a.logged("cluster.disk_full"))
    (said,) = a.logged("cluster.disk_full")
    assert said["reason"].endswith("cannot be written: No space left on device")
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", disk], check=True)
    a.wait(lambda: len(a.view["mine"]) == 3)


def test_a_node_with_workers_that_need_more_space_gives_their_partitions_away(
    cluster: Cluster, mount_disk: Callable[[int], Path]
) -> None:
    a, b = cluster.start("a", mount_disk(128)), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    partition = int(next(iter(a.view["mine"])))
    a.say(f"want {partition} {200 << 20}")
    b.wait(lambda: len(b.view["mine"]) == PARTITIONS)
    wait_until(lambda: cluster.owned() == [("a", "short", 0), ("b", "live", PARTITIONS)])
    assert any("less than 200 MB are free for its cache at" in one for one in cluster.status().warnings)


def test_a_move_ends_at_once_if_another_operator_moves_or_drains(cluster: Cluster, capsys: Any) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    for node in (a, b):
        cluster.serve(node, 3)
    wait_until(lambda: not cluster.status().problems)
    cluster.engine.move_partitions(cluster.location, [0, 1], "b")
    a.say('{"serving": [], "unreachable": {}}')
    wait_until(lambda: not cluster.status().nodes[0].serving)

    def lose(by: Callable[[], Any]) -> str:
        """Move 0 and 1 to a while another operator does something else, and return what the loser is told."""
        original = cluster.engine.move_partitions
        moved = threading.Event()

        def move_and_lose(*given: Any) -> None:
            original(*given)
            if not moved.is_set():
                moved.set()
                by()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.engine, "move_partitions", move_and_lose)
            code = commands.main(["move", cluster.location, "0-1", "a", "--timeout", "900"], standalone_mode=False)
        assert code == 1
        return str(capsys.readouterr().out.splitlines()[-1])

    move, release, drain = (
        getattr(cluster.engine, f"{name}_{what}")
        for name, what in (("move", "partitions"), ("release", "partitions"), ("drain", "node"))
    )
    start = "a does not serve all of them, and will not: "
    assert (
        lose(lambda: move(cluster.location, [0, 1], "b"))
        == f"{start}cluster partitions 0, 1 were moved to b meanwhile."
    )
    assert (
        lose(lambda: release(cluster.location, [0, 1]))
        == f"{start}cluster partitions 0, 1 were released meanwhile, or a was restarted."
    )
    assert lose(lambda: drain(cluster.location, "a")) == f"{start}a takes no partitions: it is draining."
    commands.main(["status", cluster.location], standalone_mode=False)
    assert "Moved to" not in capsys.readouterr().out


def test_a_place_without_a_cluster_is_an_error(kafka_nodes: Callable[[int], Any], tmp_path: Path) -> None:
    location = kafka_nodes(1).new_url(tmp_path / "cache-{node}", partitions=PARTITIONS)
    address = read_kafka_address(location)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="there is no cluster at kafka://"):
            engine_of(location).read_status(location)
        log = KafkaLog(address)
        log.open(creates=True)  # a topic that is not a cluster's
        log.close()
    admin = AdminClient({"bootstrap.servers": address.servers})
    admin.create_topics([NewTopic(f"{address.topic}-nodes", num_partitions=1)])[f"{address.topic}-nodes"].result(240)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is 'delete'"):
        engine_of(location).read_status(location)


def test_a_kafka_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "COMMAND_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (free_ports(1)[0], silent.getsockname()[1]):
            location = f"kafka://127.0.0.1:{port}/cluster?cache=/tmp/unused"
            with pytest.raises(StoreAway, match="Kafka does not serve") as caught:
                engine_of(location).read_status(location)
            assert "run the command again" in caught.value.remedy
