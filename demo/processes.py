"""The demo's processes. Each runs in a separate process group, so that the demo can kill it with its children.

This module starts them, kills them as a power failure would, and leaves none behind. It does not know their purpose.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import holdfast
from holdfast.exceptions import HoldfastError
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import Response, TransportError

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a run of minutes: a JVM that compiles quickly and leaves processors to other processes. The user's
options come first."""

STALLED_AFTER = 180.0
"""Seconds without progress after which the demo fails instead of waiting for ever."""


class DemoFailed(HoldfastError):
    """The demo failed. The error names the failed part and its log."""


class Child:
    """A Python program that runs as a separate process and may be started several times.

    Args:
        name: For errors.
        program: A module, for ``python -m``, or a file.
        arguments: Its arguments, the same in every run.
        log: File that its standard error is appended to.
    """

    def __init__(self, name: str, program: str | Path, arguments: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.lives = 0
        told = [str(program)] if isinstance(program, Path) else ["-m", program]
        self._command = [sys.executable, *told, *arguments]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.StreamReader:
        """Start the process; return its standard output."""
        ours = [str(Path(holdfast.__file__).parent.parent), str(Path(__file__).parent.parent)]
        path = os.pathsep.join(filter(None, [*ours, os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={"JAVA_TOOL_OPTIONS": JAVA_OPTIONS, **os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        self.lives += 1
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """Kill the process and its children with SIGKILL, so that none of them can write or close anything."""
        if self._process is None:
            return
        # The group outlives its leader: a driver that has ended may leave its JVM.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        """Wait until the process ends; return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, seconds: float) -> int:
        """Ask the process to end, kill it after ``seconds`` if it has not, and return its exit code."""
        assert self._process is not None
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
        assert self._process.returncode is not None
        return self._process.returncode

    def failed(self, what: str) -> DemoFailed:
        """Return an error with the last lines of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if self.log.exists() else []
        return DemoFailed(f"{self.name} {what}", remedy="\n  ".join([f"the end of {self.log}:", *lines]))


class Server(Child):
    """A ``holdfast`` command that runs a server, with requests to its admin listener.

    Args:
        name: For errors.
        arguments: Of ``holdfast``.
        log: File that its standard error is appended to.
        admin: The URL of its admin listener.
        http: The client for requests to it.
    """

    def __init__(self, name: str, arguments: list[str], log: Path, admin: str, http: HTTPClient) -> None:
        super().__init__(name, "holdfast", arguments, log)
        self.admin = admin
        self._http = http
        self._dropped = self._dropped_now = 0
        self._output: asyncio.StreamReader | None = None

    async def come_up(self) -> float:
        """Start the server and wait until it serves; return the seconds that this took.

        Raises:
            DemoFailed: it does not start.
        """
        began = time.monotonic()
        self._output = await self.start()  # a few lines, which the demo does not read
        while not await self._is_well():
            if not self.is_running:
                raise self.failed("ended unexpectedly")
            if time.monotonic() - began > STALLED_AFTER:
                raise self.failed("does not start")
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def _is_well(self) -> bool:
        try:
            return (await self.ask("GET", "/readyz")).status == 200
        except TransportError:
            return False

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """Send a request to its admin listener.

        Raises:
            TransportError: it does not answer, or is starting.
        """
        response = await self._http.fetch(method, self.admin + path, body, {})
        if response.status == 503:
            raise TransportError(f"{self.admin} is not ready", connected=True)
        return response

    async def kill(self) -> None:
        """See :meth:`Child.kill`; the last read counts are kept."""
        await super().kill()
        self._dropped += self._dropped_now
        self._dropped_now = 0

    @property
    def duplicates_dropped(self) -> int:
        """Duplicates dropped in all runs, as far as :meth:`read_counts` read them: a kill loses the last counts."""
        return self._dropped + self._dropped_now

    async def read_counts(self) -> None:
        """Read the server's counters.

        Raises:
            TransportError: it does not answer.
        """
        told = (await self.ask("GET", "/metrics")).body.decode()
        found = re.search(r'^holdfast_incidents_total\{name="message.duplicate_dropped"\} (\S+)', told, re.M)
        if found:
            self._dropped_now = int(float(found[1]))

    async def ends(self, queue: str) -> dict[int, int]:
        """Return the end offset of each partition.

        Raises:
            TransportError: it does not answer.
        """
        partitions = json.loads((await self.ask("GET", f"/queues/{queue}/ends")).body)["partitions"]
        return {int(partition): int(bounds["end"]) for partition, bounds in partitions.items()}

    async def hold(self, queue: str, cursor: str) -> None:
        """Create a cursor that never moves, so that the whole queue is still stored for the final comparison."""
        described: Any = json.loads((await self.ask("GET", "/queues")).body)["queues"][queue]
        body = {"epoch": described["epoch"], "offsets": dict.fromkeys(described["partitions"], 0)}
        answer = await self.ask("PUT", f"/queues/{queue}/cursors/{cursor}", json.dumps(body).encode())
        assert answer.status == 200, answer


async def lines_of(output: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield each whole line of JSON that a process prints; a kill may cut off the last one."""
    async for line in output:
        if line.endswith(b"\n"):
            yield json.loads(line)
