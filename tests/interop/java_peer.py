"""A Java stack as a live peer (CXF, Metro, Sandesha2): builds it with Maven, starts and ends it, tells it what to do.

Owns a Java program in a process of its own, compiled at test time from ``java``, from the stack's own folder, and from
the jars that the stack's ``pom.xml`` names. One process serves any number of callers and services. Knows nothing of
Holdfast.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import re
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

from quick_spark import FLAGS

NAMESPACE = "urn:holdfast:interop"
_HERE = Path(__file__).parent
# A short life with little memory beside other tests; answers to addresses of the caller's own, which CXF 4.2 does not
# send unless told to.
_OPTIONS = (
    *("-Xmx256m", *FLAGS),
    "-Dorg.apache.cxf.ws.addressing.decoupled.enabled=true",
    "-Dcom.sun.xml.ws.monitoring.endpoint=false",  # Metro registers every service under one name, and the second fails
)


def folders(stack: str) -> tuple[Path, ...]:
    """What a stack's peer is built from: its own folder, that of the stack it extends, and the one that all share."""
    names = [stack, stack.partition("-")[0]] if "-" in stack else [stack]
    return *(_HERE / name / "java" for name in names), _HERE / "java"


class JavaPeer:
    """The process, from ``with`` to its end. May be asked from any thread and any event loop.

    Args:
        class_path: what `build` returned.
        errors: file for what the stack logs.
    """

    def __init__(self, class_path: str, errors: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-java-")  # CXF deletes none of its caches
        scratch = f"-Djava.io.tmpdir={self._scratch.name}"
        self._command = ["java", *_OPTIONS, scratch, "-cp", class_path, "peer.Main"]
        self._errors = errors
        self._process: subprocess.Popen[str] | None = None
        self._tickets = itertools.count(1)
        self._asked: dict[str, concurrent.futures.Future[str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Callers and services that are still there are not ended first."""
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.close()  # it ends with its input
            process.wait(240)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._scratch.cleanup()

    async def ask(self, verb: str, **values: object) -> str:
        """Have it do something; see ``Main.java`` for what it can do.

        Returns:
            The value it answers with, "" for none.

        Raises:
            RuntimeError: it failed, or the process ended before it answered.
        """
        asked: concurrent.futures.Future[str] = concurrent.futures.Future()
        words = [verb, *(f"{name.rstrip('_')}={_word(value)}" for name, value in values.items())]
        assert self._process is not None and self._process.stdin is not None
        with self._lock:
            ticket = f"t{next(self._tickets)}"
            self._asked[ticket] = asked
            self._process.stdin.write(" ".join([ticket, *words]) + "\n")
        return await asyncio.wrap_future(asked)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            ticket, outcome, value = line.rstrip("\n").split(" ", 2)
            asked = self._asked.pop(ticket)
            if not asked.set_running_or_notify_cancel():
                continue  # a test that failed waits no more
            if outcome == "ok":
                asked.set_result(value)
            else:
                asked.set_exception(RuntimeError(f"{value}; see {self._errors}"))
        for asked in self._asked.values():
            if asked.set_running_or_notify_cancel():
                asked.set_exception(RuntimeError(f"the peer ended; see {self._errors}"))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    word = str(value)
    assert word and not re.search(r"\s", word), value
    return word
