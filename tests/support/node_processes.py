"""Nodes of a cluster as processes, each in a process group, so that a test can kill or pause all of a node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crew import PATIENCE, SOURCE

SECRET = "a secret that the nodes share"

CONFIG = """
store = "{store}"
partitions = 1
sessions = 16
listen.port = 0
admin.port = 0
[cluster]
secret_env = "CLUSTER_SECRET"
partitions = {partitions}
lease = {lease}
port = 0
"""


def config_of(store: str, partitions: int, more: str = "", *, lease: float = 6.0) -> str:
    """The broker's file of all nodes. ``more`` are further tables."""
    return CONFIG.format(store=store, partitions=partitions, lease=lease) + more


class NodeProcess:
    """A node.

    Args:
        directory: Where it runs.
        name: Its name.
        config: The broker's file.
        program: The arguments of Python before those of ``holdfast``.
        environment: Further variables.
        options: Further options of the command.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        config: str,
        *,
        program: Sequence[str] = ("-m", "holdfast.cli.main"),
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.errors = directory / f"{name}.errors"
        (directory / f"{name}.toml").write_text(config)
        own = {"CLUSTER_SECRET": SECRET, "HOLDFAST_NODE": name, "PYTHONUNBUFFERED": "1", **(environment or {})}
        path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *program, "broker", "--config", f"{name}.toml", *options],
                cwd=directory,
                env=os.environ | {"PYTHONPATH": path} | own,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def url(self) -> str:
        """Where it listens, for messages at first and then for operators, once it serves."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.rpartition(" ")
            if words[0] in ("listening on", "admin on"):
                return words[2].strip()
        raise AssertionError(self.errors.read_text())

    def kill(self) -> None:
        """Kill all its processes, as a power cut would."""
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Tell it to end, and wait for that; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def clean(self) -> None:
        """Leave nothing behind, whatever happened."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
