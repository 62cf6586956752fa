"""The guide on clusters, followed as it stands, but for the database's address and with free ports."""

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
from guides import blocks, environment

import holdfast

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


class Started:
    """A broker that the guide starts, and where it says that it listens."""

    def __init__(self, command: str, place: Path) -> None:
        variable, _, rest = command.partition(" ")
        name, _, node = variable.partition("=")
        arguments = rest.removeprefix("holdfast ").split()
        with (place / f"{node}.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments],
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


@pytest.fixture
def nodes(tmp_path: Path, servers: Callable[[str], Server]) -> Iterator[list[Started]]:
    """The three nodes of the guide."""
    (secret,) = [text for text in blocks("cluster.md", "bash") if "openssl rand" in text]
    subprocess.run(["/bin/sh", "-c", secret], cwd=tmp_path, check=True)
    (config,) = blocks("cluster.md", "toml")
    for before, after in (
        ("postgresql://holdfast@db.example/holdfast", servers("postgresql").new_url()),
        ('listen.host = "0.0.0.0"', "listen.port = 0\nadmin.port = 0"),
        ('host = "0.0.0.0"', "port = 0"),
    ):
        assert before in config
        config = config.replace(before, after)
    (tmp_path / "broker.toml").write_text(config)
    (commands,) = [text for text in blocks("cluster.md", "bash") if "HOLDFAST_NODE" in text]
    started: list[Started] = []
    try:
        started.extend(Started(command, tmp_path) for command in commands.splitlines())
        yield started
    finally:
        for one in started:
            if one.process.returncode is None:
                one.kill()


def count(admin: str) -> int | None:
    """How many messages the queue of the guide holds; None while a node that was killed is not yet replaced."""
    try:
        with urlopen(f"{admin}/queues", timeout=60) as answer:
            queue: Any = json.loads(answer.read())["queues"]["orders"]
    except HTTPError:
        return None
    return sum(one["end"] for one in queue["partitions"].values())


def test_messages_to_any_broker_of_the_guide_are_in_the_queue_whichever_is_killed(nodes: list[Started]) -> None:
    first, *others = nodes
    with holdfast.sync.Source(first.url, store=":memory:") as source:
        source.send("<order id='1'/>", action="urn:orders/Submit").acknowledged(60)
    first.kill()
    with holdfast.sync.Source(others[0].url, store=":memory:") as source:
        source.send("<order id='2'/>", action="urn:orders/Submit").acknowledged(60)
    for node in others:
        wait_until(lambda node=node: count(node.admin) == 2)
