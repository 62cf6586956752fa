"""Java programs for tests: Maven brings their jars, ``javac`` compiles them, and both are kept in a cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from quick_spark import FLAGS, QUICK_JAVA

_JAVA = 17
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_MAVEN_SECONDS = 240


class Unavailable(Exception):
    """The peer cannot be had on this machine; says why."""


@cache
def available() -> str | None:
    """Why the peer cannot be built on this machine, or None when it can, if Maven finds its jars."""
    for program in ("mvn", "java", "javac"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install maven default-jdk-headless)"
    told = _java()
    version = re.search(r"(\d+)", told)
    if version is None or int(version[1]) < _JAVA:
        return f"the peers want Java {_JAVA}, and there is {told}"
    return None


def _java() -> str:
    """What the JDK says of its version. Each worker asks when it collects the tests, so rather a file than a JVM."""
    compiler = shutil.which("javac")
    assert compiler is not None
    release = Path(compiler).resolve().parents[1] / "release"
    said = re.search(r'JAVA_VERSION="(.+?)"', release.read_text()) if release.is_file() else None
    if said is not None:
        return f"javac {said[1]}"
    told = subprocess.run(["javac", "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return told.stdout.strip()


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
    jars = fetch(cache_dir, pom)
    classes = cache_dir / f"classes-{_fingerprint([pom, *sources])}"
    with _locked(cache_dir):
        if not classes.is_dir():
            _make(classes, lambda aside: _compile(sources, jars, aside))
    return f"{classes}{os.pathsep}{jars}/*"


def fetch(cache_dir: Path, pom: Path) -> Path:
    """Fetch the jars that a ``pom.xml`` names, unless they are under ``cache_dir``; returns their directory.

    Raises:
        Unavailable: Maven does not find the jars.
    """
    jars = cache_dir / f"jars-{_fingerprint([pom])}"
    with _locked(cache_dir):
        if not jars.is_dir():
            _make(jars, lambda aside: _copy_jars(pom, aside))
    return jars


@contextlib.contextmanager
def _locked(cache_dir: Path) -> Iterator[None]:
    """Several test workers may want it, and Maven should be asked once."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    quickly = {**os.environ, "MAVEN_OPTS": QUICK_JAVA}
    try:
        told = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_MAVEN_SECONDS, env=quickly
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven did not bring the jars within {_MAVEN_SECONDS} s") from error
    if told.returncode:
        errors = [line.removeprefix("[ERROR]").strip() for line in told.stdout.splitlines()]
        why = next((line for line in errors if line), f"it ended with {told.returncode}")
        raise Unavailable(f"Maven does not bring the jars: {why[:300]}")


def _compile(sources: list[Path], jars: Path, directory: Path) -> None:
    command = [
        "javac",
        *[f"-J{flag}" for flag in FLAGS],
        "--release",
        str(_JAVA),
        "-nowarn",
        "-d",
        str(directory),
        "-cp",
        f"{jars}/*",
    ]
    told = subprocess.run([*command, *map(str, sources)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if told.returncode:
        raise RuntimeError(f"compiling the peer failed:\n{told.stdout[-4000:]}")
