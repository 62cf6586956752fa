"""Directories of sockets: a killed server's goes with the next start, a living one's stays, whoever starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.endpoint.workers import socket_directory
from holdfast.endpoint.workers.socket_directory import PREFIX, SocketDirectory

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

SERVER = """
import os, sys, time
from holdfast.endpoint.workers.socket_directory import SocketDirectory
made = SocketDirectory()
worker = os.fork()
if worker:
    print(made.path, worker, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start() -> tuple[subprocess.Popen[str], Path, int]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path, worker = process.stdout.readline().split()
    return process, Path(path), int(worker)


def test_the_next_start_deletes_what_a_killed_server_left_and_leaves_a_living_ones(temporary: Path) -> None:
    killed, left, worker = start()
    living, kept, _ = start()
    assert left.exists() and kept.exists(), "a start deletes nothing of a server that lives"
    killed.kill()
    killed.wait()
    SocketDirectory().delete()
    assert left.exists(), "a worker of it still lives"
    os.kill(worker, 9)
    assert living.stdin is not None
    for _ in range(6_000):  # the worker is not our child: it is gone when its lock is
        SocketDirectory().delete()
        if not left.exists():
            break
    assert not left.exists() and kept.exists()
    living.stdin.close()
    living.wait(240)


def test_what_is_no_directory_of_ours_is_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_lock = temporary / f"{PREFIX}without"
    without_lock.mkdir()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    linked = temporary / f"{PREFIX}linked"
    linked.mkdir()
    (linked / "lock").symlink_to(elsewhere / "lock")
    others = temporary / f"{PREFIX}others"
    others.mkdir()
    (others / "lock").touch()
    uid = os.getuid()
    monkeypatch.setattr(socket_directory.os, "getuid", lambda: uid + 1)
    SocketDirectory().delete()
    assert others.exists(), "that of another user"
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    SocketDirectory().delete()
    assert not others.exists()
    assert without_lock.exists() and linked.exists() and (elsewhere / "lock").exists()


def test_a_directory_has_its_name_only_when_it_is_locked(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    is_locked = socket_directory._is_locked

    def looking(lock: int) -> bool:
        seen.append([one.name for one in temporary.glob(PREFIX + "*")])
        return is_locked(lock)

    monkeypatch.setattr(socket_directory, "_is_locked", looking)
    made = SocketDirectory()
    assert seen == [[]] and Path(made.path).exists()
    made.delete()
    assert not list(temporary.iterdir())
