"""A Java stack as a live peer (Apache CXF, Metro): builds it with Maven, starts and ends it, tells it what to do.

Owns a Java program in a process of its own, compiled at test time from ``java``, from the stack's own folder, and from
the jars that the stack's ``pom.xml`` names. One process serves any number of callers and services. Knows nothing of
Holdfast.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

NAMESPACE = "urn:holdfast:interop"
_HERE = Path(__file__).parent
_JAVA = 17
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_MAVEN_SECONDS = 240
# A short life with little memory beside other tests; answers to addresses of the caller's own, which CXF 4.2 does not
# send unless told to.
_OPTIONS = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dorg.apache.cxf.ws.addressing.decoupled.enabled=true",
    "-Dcom.sun.xml.ws.monitoring.endpoint=false",  # Metro registers every service under one name, and the second fails
)


class Unavailable(Exception):
    """The peer cannot be had on this machine; says why."""


def available() -> str | None:
    """Why the peer cannot be built on this machine, or None when it can, if Maven finds its jars."""
    for program in ("mvn", "java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install maven default-jdk-headless)"
    told = subprocess.run(["javac", "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    version = re.search(r"(\d+)", told.stdout)
    if version is None or int(version[1]) < _JAVA:
        return f"the peers want Java {_JAVA}, and there is {told.stdout.strip()}"
    return None


def folders(stack: str) -> tuple[Path, Path]:
    """What a stack's peer is built from: its own folder, and the one that all share."""
    return _HERE / stack / "java", _HERE / "java"


def build(cache_dir: Path, project: Path, *shared: Path) -> str:
    """Fetch the jars and compile the peer under ``cache_dir``, unless the same was done there before.

    Args:
        cache_dir: where what was made is kept.
        project: the folder of a ``pom.xml`` that names the jars, with sources in folders below it.
        shared: further folders of sources.

    Returns:
        The class path.

    Raises:
        Unavailable: Maven does not find the jars.
        RuntimeError: the peer does not compile; the message ends with what the compiler said.
    """
    pom = project / "pom.xml"
    sources = [path for folder in (project, *shared) for path in sorted(folder.rglob("*.java"))]
    jars = cache_dir / f"jars-{_fingerprint([pom])}"
    classes = cache_dir / f"classes-{_fingerprint([pom, *sources])}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers may want it, and Maven should be asked once
        if not jars.is_dir():
            _make(jars, lambda aside: _copy_jars(pom, aside))
        if not classes.is_dir():
            _make(classes, lambda aside: _compile(sources, jars, aside))
    return f"{classes}{os.pathsep}{jars}/*"


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _make(directory: Path, fill: Callable[[Path], None]) -> None:
    """Fill a directory aside and move it into place whole: what is there is complete."""
    aside = Path(tempfile.mkdtemp(prefix="making-", dir=directory.parent))
    try:
        fill(aside)
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy_jars(pom: Path, directory: Path) -> None:
    command = ["mvn", "-B", "-q", "-Dstyle.color=never", "-f", str(pom), _COPY]
    command += [f"-DoutputDirectory={directory}", "-DincludeScope=runtime"]
    try:
        told = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_MAVEN_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven did not bring the jars within {_MAVEN_SECONDS} s") from error
    if told.returncode:
        errors = [line.removeprefix("[ERROR]").strip() for line in told.stdout.splitlines()]
        why = next((line for line in errors if line), f"it ended with {told.returncode}")
        raise Unavailable(f"Maven does not bring the jars: {why[:300]}")


def _compile(sources: list[Path], jars: Path, directory: Path) -> None:
    command = ["javac", "--release", str(_JAVA), "-nowarn", "-d", str(directory), "-cp", f"{jars}/*"]
    told = subprocess.run([*command, *map(str, sources)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if told.returncode:
        raise RuntimeError(f"compiling the peer failed:\n{told.stdout[-4000:]}")


class JavaPeer:
    """The process, from ``with`` to its end. May be asked from any thread and any event loop.

    Args:
        class_path: what `build` returned.
        errors: file for what the stack logs.
    """

    def __init__(self, class_path: str, errors: Path) -> None:
        self._command = ["java", *_OPTIONS, "-cp", class_path, "peer.Main"]
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
            process.wait(30)
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
            if outcome == "ok":
                asked.set_result(value)
            else:
                asked.set_exception(RuntimeError(f"{value}; see {self._errors}"))
        for asked in self._asked.values():
            asked.set_exception(RuntimeError(f"the peer ended; see {self._errors}"))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    word = str(value)
    assert word and not re.search(r"\s", word), value
    return word
