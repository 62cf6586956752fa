"""Agents as processes, and what they say."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_child

import holdfast

PATIENCE = 240.0
_STARTS = itertools.count()


class Node:
    """A running node."""

    def __init__(self, location: str, name: str, partitions: int, lease: float) -> None:
        self.name = name
        location = location.replace("{node}", f"{name}-{next(_STARTS)}")
        path = os.pathsep.join([str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, agent_child.__file__, location, name, str(partitions), str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.view: dict[str, Any] = {"mine": {}, "owners": {}, "nodes": {}}
        self.told: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait(self, is_there: Callable[[], Any]) -> None:
        """Read what it says until something is so."""
        while not is_there():
            line = self._lines.get(timeout=PATIENCE)
            assert line, f"{self.name} has ended: {self.told}"
            told = json.loads(line)
            self.told.append(told)
            self.view = told.get("view", self.view)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def trust(self) -> list[float]:
        """For how many seconds it trusts the worker of each partition now."""
        before = len(self.events("trust"))
        self.say("trust")
        self.wait(lambda: len(self.events("trust")) > before)
        return list(self.events("trust")[-1]["trust"])

    def events(self, key: str) -> list[dict[str, Any]]:
        return [one for one in self.told if key in one]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.told if one.get("event") == event]

    def serves(self, count: int) -> None:
        """Wait until it serves so many partitions, all partitions have an owner, and it is trusted."""
        self.wait(lambda: len(self.view["mine"]) == count and self.logged("cluster.claimed"))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(PATIENCE)
        while line := self._lines.get(timeout=PATIENCE):
            self.told.append(json.loads(line))
        return code


def differ_and_agree(a: Node, b: Node) -> None:
    """Let the configurations of nodes "a" and "b" differ, and then be the same: both notice each."""
    a.say('{"serving": [], "unreachable": {}, "tables": {"routes": "1", "queues": "1"}}')
    b.say('{"serving": [], "unreachable": {}, "tables": {"routes": "2", "queues": "1", "limits": "1"}}')
    for one, other in ((a, "b"), (b, "a")):
        one.wait(lambda one=one, other=other: one.view.get("differing") == {other: ["routes"]})
        (said,) = one.logged("cluster.configuration_differs")
        assert (said["level"], said["node"], said["tables"]) == ("warning", other, ["routes"])
    b.say('{"serving": [], "unreachable": {}, "tables": {"routes": "1", "queues": "1"}}')
    for one in (a, b):
        one.wait(lambda one=one: one.logged("cluster.configuration_same") and not one.view["differing"])
