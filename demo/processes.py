"""The processes of the demo: an RM Destination and a Spark driver, each in a process group of its own, to be killed.

Owns starting them, killing them as a machine that loses power would, and leaving none behind. Knows nothing of what
they are for. Run as a module (``python -m demo.processes STORE PORT ADMIN_PORT``) it is the
destination: it has no handlers, so messages wait in its queue for whoever reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import holdfast
from holdfast.endpoint.destination import Destination
from holdfast.endpoint.logs import configure_logs
from holdfast.endpoint.serve import Listeners, Service
from holdfast.exceptions import HoldfastError
from holdfast.http.server import event_loop_factory

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a run of minutes: a JVM that compiles quickly and leaves the cores to others. The user's own go first."""

PARTITIONS = 4
QUEUE = "inbox"


class DemoFailed(HoldfastError):
    """The demo could not be carried through; says which part, and where its log is."""


class Child:
    """A Python module run as a process of its own, one life after another.

    Args:
        name: For errors.
        module: What ``python -m`` runs.
        arguments: Its arguments, the same in every life.
        log: File that its standard error is appended to.
    """

    def __init__(self, name: str, module: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.lives = 0
        self._command = [sys.executable, "-m", module, *arguments]
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
        await self._end(signal.SIGKILL)

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

    async def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        # The group outlives its leader: a driver that is gone may have left its JVM.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        await self._process.wait()

    def failed(self, what: str) -> DemoFailed:
        """An error that shows the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if self.log.exists() else []
        return DemoFailed(f"{self.name} {what}", remedy="\n  ".join([f"the end of {self.log}:", *lines]))


def destination(store: Path, port: int, admin_port: int, log: Path) -> Child:
    """The RM Destination, not started yet."""
    return Child("the destination", __name__, [str(store), str(port), str(admin_port)], log)


def serve(store: str, port: int, admin_port: int) -> None:
    """Be the destination until SIGTERM."""
    configure_logs("info")
    app = Destination(store, queue=QUEUE, partitions=PARTITIONS)
    service = Service(app, Listeners(port=port, admin_port=admin_port))
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(service.run())


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
