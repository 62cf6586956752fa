"""Servers of several workers, as processes of their own: what tests that kill them need."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.records import Record
from holdfast.endpoint.worker import Worker
from holdfast.store import open_store

SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE = 240.0

MODULE = """
import holdfast
app = holdfast.Destination(store="inbox", partitions=2)
"""


def wait_until(condition: Callable[[], object]) -> None:
    """Wait, four minutes at most, until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process still runs. One that has ended may stay a zombie: not every first process waits for orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Crew:
    """A supervisor and its workers.

    Args:
        directory: Where it runs; its store is ``inbox`` there.
        options: Of the command.
        module: What ``holdfast serve`` serves: a module with a Destination ``app``.
        broker: What ``holdfast broker`` is told instead.
    """

    def __init__(self, directory: Path, *options: str, module: str = MODULE, broker: str = "") -> None:
        (directory / "crewed.py").write_text(module)
        (directory / "broker.toml").write_text(broker)
        what = ["broker", "--config", "broker.toml"] if broker else ["serve", "crewed:app"]
        command = [sys.executable, "-m", "holdfast.cli.main", *what, *options]
        environment = os.environ | {"PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"}
        self.errors = directory / "errors"
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def url(self) -> str:
        """Where it says that it listens, once it does."""
        word, _, url = self.line().rpartition(" ")
        assert word in ("listening on", "admin on"), self.errors.read_text()
        return url

    @property
    def pids(self) -> list[int]:
        """Of the workers that there are now."""
        number = self.process.pid
        return [int(one) for one in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def kill(self, number: int) -> None:
        """Kill a worker, and wait until another is in its place."""
        before = self.pids
        os.kill(before[number], signal.SIGKILL)
        wait_until(lambda: before[number] not in self.pids and len(self.pids) == len(before))

    def end(self) -> int:
        """Tell it to end, and wait for that; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def clean(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.process.kill()
        self.process.communicate()


def stored(location: Path | str, workers: int, queue: str = "inbox") -> dict[tuple[int, int], list[Record]]:
    """What the ended workers' queues hold, in order, by worker and partition.

    Args:
        location: The directory that the server ran in, or its database's URL.
        workers: How many there were.
        queue: Which queue.
    """
    found = {}
    for number in range(workers):
        place = location if isinstance(location, str) else location / "inbox"
        store = open_store(Worker(number, workers).store_of(place))
        try:
            for (name, partition), bounds in store.load().bounds.items():
                if name == queue:
                    records = []
                    start, end = bounds
                    while start < end:
                        part = store.read(queue, partition, start, end)
                        records += [record for _, record in part]
                        start = part[-1][0] + 1
                    found[number, partition] = records
        finally:
            store.close()
    return found


def texts(records: list[Record]) -> list[str]:
    """What the bodies say between their tags."""
    return [re.sub(rb"<[^>]*>", b"", record.body).decode() for record in records]
