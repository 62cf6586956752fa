"""The guides on clusters, on PostgreSQL and on Kafka, followed as they stand, but for the addresses of the database and
of Kafka's brokers, and with free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from crew import wait_until
from databases import Server
from guides import blocks, done, environment, run

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


def words(line: str) -> list[str]:
    """Python's arguments for a command of the guide."""
    return ["-m", "holdfast", *line.removeprefix("$ ").removeprefix("holdfast ").split()]


class Started:
    """A broker that the guide starts, and where it says that it listens."""

    def __init__(self, command: str, place: Path) -> None:
        variable, _, rest = command.partition(" ")
        name, _, node = variable.partition("=")
        with (place / f"{node}.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words(rest)],
                cwd=place,
                env=environment() | {name: node},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(2)]
        assert [line.split(" http")[0] for line in lines] == ["listening on", "admin on"], (
            place / f"{node}.log"
        ).read_text()
        self.url, self.admin = (line.split()[-1] for line in lines)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(params=["postgresql", "kafka"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Started]]:
    """The three nodes of the guide."""
    (secret,) = [text for text in blocks("cluster.md", "bash") if "openssl rand" in text]
    subprocess.run(["/bin/sh", "-c", secret], cwd=tmp_path, check=True)
    (tmp_path / "broker.toml").write_text(_config(request, tmp_path))
    (commands,) = [text for text in blocks("cluster.md", "bash") if "HOLDFAST_NODE" in text]
    started: list[Started] = []
    try:
        started.extend(Started(command, tmp_path) for command in commands.splitlines())
        yield started
    finally:
        for one in started:
            if one.process.returncode is None:
                one.kill()


def _config(request: pytest.FixtureRequest, place: Path) -> str:
    """The file of the guide, with free ports: as it says for a cluster on one machine."""
    if request.param == "postgresql":
        servers: Callable[[str], Server] = request.getfixturevalue("servers")
        (config,) = blocks("cluster.md", "toml")
        changes = [
            ("postgresql://holdfast@db.example/holdfast", servers("postgresql").new_url()),
            ('listen.host = "0.0.0.0"', "listen.port = 0\nadmin.port = 0"),
        ]
    else:
        kafka = request.getfixturevalue("kafka_nodes")(1)
        (config,) = [text for text in blocks("kafka-store.md", "toml") if "[cluster]" in text]
        changes = [
            ("kafka1:9092,kafka2:9092,kafka3:9092/holdfast", f"{kafka.servers}/{place.name}"),
            ("cache=/var/lib/holdfast/cache", f"cache={place}/cache-{{node}}&replicas=1"),
            ("[cluster]", "listen.port = 0\nadmin.port = 0\n[cluster]"),
        ]
    for before, after in (*changes, ('host = "0.0.0.0"', "port = 0")):
        assert before in config
        config = config.replace(before, after)
    return config


def count(admin: str) -> int | None:
    """How many messages the queue of the guide holds; None while a node that was killed is not yet replaced."""
    try:
        with urlopen(f"{admin}/queues", timeout=60) as answer:
            queue: Any = json.loads(answer.read())["queues"]["orders"]
    except HTTPError:
        return None
    return sum(one["end"] for one in queue["partitions"].values())


def test_messages_to_any_broker_of_the_guide_are_in_the_queue_whichever_is_killed(
    nodes: list[Started], tmp_path: Path
) -> None:
    first, *others = nodes
    (commands,) = [text for text in blocks("cluster.md", "console") if "pkill" in text]
    send, _, send_again, queues = commands.splitlines()
    (tmp_path / "order.xml").write_text("<order id='1'/>")
    run(tmp_path, *words(send.replace("http://127.0.0.1:40001/", first.url)))
    first.kill()
    run(tmp_path, *words(send_again.replace("http://127.0.0.1:40002/", others[0].url)))
    listed = run_when_well(queues.replace("http://127.0.0.1:40012", others[0].admin.rstrip("/")), tmp_path)
    assert ["orders", "2"] in [line.split()[:2] for line in listed.splitlines()]
    for node in others:
        wait_until(lambda node=node: count(node.admin) == 2)


def owned(place: Path) -> dict[str, int]:
    """How many partitions each node has that is in the cluster."""
    told = json.loads(done(place, *words("holdfast cluster status broker.toml --json")).stdout)
    owners = [one["owner"] for one in told["partitions"]]
    return {one["name"]: owners.count(one["name"]) for one in told["nodes"]}


def test_a_node_joins_and_leaves_with_the_commands_of_its_guide(nodes: list[Started], tmp_path: Path) -> None:
    """And a message to it while it has no partition arrives as any other."""
    start, status, drain, again, stop = blocks("grow-a-cluster.md", "bash")
    assert status == again
    wait_until(lambda: owned(tmp_path) == dict.fromkeys("abc", 2))
    nodes.append(node := Started(start, tmp_path))
    wait_until(lambda: owned(tmp_path).get("d"))
    wait_until(lambda: "d " in run_when_well(status, tmp_path))
    run(tmp_path, *words(drain))
    wait_until(lambda: owned(tmp_path)["d"] == 0)
    (tmp_path / "order.xml").write_text("<order id='1'/>")
    run(tmp_path, *words(f"holdfast send --to {node.url} --action urn:orders/Submit --store outbox order.xml"))
    subprocess.run(["/bin/sh", "-c", stop.replace("12345", str(node.process.pid))], check=True)
    assert node.process.wait(120) == 0
    wait_until(lambda: sorted(owned(tmp_path).items()) == [("a", 2), ("b", 2), ("c", 2)])
    run_when_well(status, tmp_path)
    assert count(nodes[0].admin) == 1


def run_when_well(line: str, place: Path) -> str:
    """What a command prints, as soon as its exit code is 0: while a partition has no node, it is 1."""
    told: list[str] = []

    def is_well() -> bool:
        ended = done(place, *words(line))
        told[:] = [ended.stdout]
        return ended.returncode == 0

    wait_until(is_well)
    return told[0]
