"""``holdfast pipeline`` as a process, and a broker before and behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from processes import Process, signal_session
from quick_spark import quick_spark

from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.offsets import Range
from holdfast.store.records import decode_record
from holdfast.testing.ports import free_ports

SOURCE = str(Path(__file__).parents[2] / "src")
BROKER = """\
store = "broker"
partitions = 2
listen.port = {}
admin.port = {}
[queues.orders]
"""


class Driver:
    """``holdfast pipeline``, one life after another, each in a process group of its own."""

    def __init__(self, file: Path, *arguments: str) -> None:
        self._directory = file.parent
        self._command = [sys.executable, "-m", "holdfast", "pipeline"]
        self._arguments = [file.name, "--master", "local[2]", *arguments]
        self.process: subprocess.Popen[str] | None = None

    def run(self, *more: str, verb: str = "run") -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, lines, errors."""
        errors = self._directory / f"{self._arguments[0]}.errors"
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                [*self._command, verb, *self._arguments, "--json", *more],
                cwd=self._directory,
                env=os.environ | quick_spark() | {"PYTHONPATH": SOURCE},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        out, _ = self.process.communicate()
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], errors.read_text()

    def kill(self) -> None:
        assert self.process is not None
        signal_session(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """As Ctrl-C does, but only to the command itself."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)


@asynccontextmanager
async def broker_with(directory: Path, *queues: str) -> AsyncIterator[tuple[str, str]]:
    """Where a broker with the queue ``orders`` and these takes messages, and its admin listener."""
    port, admin = free_ports(2)
    tables = "".join(f"[queues.{name}]\n" for name in queues)
    (directory / "broker.toml").write_text(BROKER.format(port, admin) + tables)
    process = Process(directory, "broker", port, "broker", "--config", "broker.toml")
    await process.start()
    yield process.url, f"http://127.0.0.1:{admin}"
    await process.kill()


def bodies_in(admin: str, queue: str) -> Iterator[str]:
    """The bodies in a queue, each partition's in its order."""
    plane, patience = DataPlane(admin), Patience(60)
    ends = plane.ends(queue)
    for partition, end in sorted(ends.ends.items()):
        for block in read_range(plane, queue, ends.epoch, Range(partition, 0, end), patience):
            for _, encoded in block:
                yield decode_record(encoded).body.decode()
    plane.close()
