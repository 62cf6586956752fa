"""The processes of the demo, each in a process group of its own, to be killed.

Owns starting them, killing them as a machine that loses power would, and leaving none behind. Knows nothing of what
they are for.
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
"""For a run of minutes: a JVM that compiles quickly and leaves the cores to others. The user's own go first."""

STALLED_AFTER = 180.0
"""Seconds without progress after which the demo gives up rather than wait for ever."""


class DemoFailed(HoldfastError):
    """The demo could not be carried through; says which part, and where its log is."""


class Child:
    """A Python program run as a process of its own, one life after another.

    Args:
        name: For errors.
        program: A module, for ``python -m``, or a file.
        arguments: Its arguments, the same in every life.
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
        """Begin a life; its standard output."""
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
        """Whether it has not ended."""
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """SIGKILL to it and to all it started: nothing is written, closed or said any more."""
        if self._process is None:
            return
        # The group outlives its leader: a driver that is gone may have left its JVM.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, seconds: float) -> int:
        """Ask it to end, and wait; kill it if it has not after ``seconds``. Its exit code."""
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
        """An error that shows the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if self.log.exists() else []
        return DemoFailed(f"{self.name} {what}", remedy="\n  ".join([f"the end of {self.log}:", *lines]))


class Server(Child):
    """A ``holdfast`` command that serves, and is asked by its admin listener.

    Args:
        name: For errors.
        arguments: Of ``holdfast``.
        log: File that its standard error is appended to.
        admin: Its admin listener's URL.
        http: Asks it.
    """

    def __init__(self, name: str, arguments: list[str], log: Path, admin: str, http: HTTPClient) -> None:
        super().__init__(name, "holdfast", arguments, log)
        self.admin = admin
        self._http = http
        self._dropped = self._dropped_now = 0
        self._output: asyncio.StreamReader | None = None

    async def come_up(self) -> float:
        """Begin a life, and wait until it serves; the seconds that took.

        Raises:
            DemoFailed: it does not.
        """
        began = time.monotonic()
        self._output = await self.start()  # a few lines, which nobody reads
        while not await self._is_well():
            if not self.is_running:
                raise self.failed("ended by itself")
            if time.monotonic() - began > STALLED_AFTER:
                raise self.failed("does not come up")
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def _is_well(self) -> bool:
        try:
            return (await self.ask("GET", "/readyz")).status == 200
        except TransportError:
            return False

    async def ask(self, method: str, path: str, body: bytes = b"") -> Response:
        """Ask its admin listener.

        Raises:
            TransportError: it does not answer, or is starting.
        """
        response = await self._http.fetch(method, self.admin + path, body, {})
        if response.status == 503:
            raise TransportError(f"{self.admin} is not ready", connected=True)
        return response

    async def kill(self) -> None:
        """See :meth:`Child.kill`; what it had counted is kept as it was last read."""
        await super().kill()
        self._dropped += self._dropped_now
        self._dropped_now = 0

    @property
    def duplicates_dropped(self) -> int:
        """In all its lives, as far as :meth:`read_counts` saw: a kill loses the last counts."""
        return self._dropped + self._dropped_now

    async def read_counts(self) -> None:
        """Read what it counts.

        Raises:
            TransportError: it does not answer.
        """
        told = (await self.ask("GET", "/metrics")).body.decode()
        found = re.search(r'^holdfast_incidents_total\{name="message.duplicate_dropped"\} (\S+)', told, re.M)
        if found:
            self._dropped_now = int(float(found[1]))

    async def ends(self, queue: str) -> dict[int, int]:
        """Partition -> the offset behind its last message.

        Raises:
            TransportError: it does not answer.
        """
        partitions = json.loads((await self.ask("GET", f"/queues/{queue}/ends")).body)["partitions"]
        return {int(partition): int(bounds["end"]) for partition, bounds in partitions.items()}

    async def hold(self, queue: str, cursor: str) -> None:
        """A cursor that never moves, so that the whole queue is there to be judged at the end."""
        described: Any = json.loads((await self.ask("GET", "/queues")).body)["queues"][queue]
        body = {"epoch": described["epoch"], "offsets": dict.fromkeys(described["partitions"], 0)}
        answer = await self.ask("PUT", f"/queues/{queue}/cursors/{cursor}", json.dumps(body).encode())
        assert answer.status == 200, answer


async def lines_of(output: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Each whole line of JSON that a process says until it ends; a kill may cut the last one off."""
    async for line in output:
        if line.endswith(b"\n"):
            yield json.loads(line)
