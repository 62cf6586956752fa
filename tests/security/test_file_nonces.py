"""Nonces in files that several processes share. Covers security/nonces.py."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.exceptions import MessageFlowError
from holdfast.security import nonces as module
from holdfast.security.nonces import FileNonces

NOW = 1_800_000_000.0
LIFE = 360.0


def mark(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def is_new(nonces: FileNonces, number: int, at: float = NOW, now: float = NOW) -> bool:
    return nonces.is_new(at, mark(number), at + LIFE, now)


def files(tmp_path: Path) -> list[int]:
    return sorted(int(one.name) for one in (tmp_path / "n-nonces").iterdir())


@pytest.mark.parametrize("place", [None, "n"])
def test_a_nonce_is_new_once(place: str | None, tmp_path: Path) -> None:
    nonces = FileNonces(place and tmp_path / place)
    assert not nonces.knows(NOW, mark(0))
    assert [is_new(nonces, number) for number in (0, 1, 0, 1, 2)] == [True, True, False, False, True]
    assert nonces.knows(NOW, mark(0)) and not nonces.knows(NOW + 60, mark(0))
    assert is_new(nonces, 0, NOW + 60), "that of another minute is another"


def test_what_others_appended_is_known_and_after_a_restart(tmp_path: Path) -> None:
    one, two, three = (FileNonces(tmp_path / "n") for _ in range(3))
    assert [is_new(nonces, number) for number in range(30) for nonces in (one, two)] == [True, False] * 30
    assert not is_new(one, 0) and is_new(two, 100) and not is_new(one, 100)
    assert three.knows(NOW, mark(100))
    again = FileNonces(tmp_path / "n")
    assert not any(is_new(again, number) for number in (*range(30), 100))
    assert is_new(again, 200) and not is_new(three, 200)


WORKER = """
import hashlib, sys
from holdfast.security.nonces import FileNonces
nonces = FileNonces(sys.argv[1])
print(flush=True)
sys.stdin.readline()
for number in range(2000):
    if nonces.is_new(1e9, hashlib.sha256(b"%d" % number).digest(), 1e9 + 360, 1e9):
        print(number)
print("end", flush=True)
sys.stdin.readline()
"""


@pytest.mark.crash
def test_exactly_one_of_some_processes_accepts_a_nonce_and_a_kill_loses_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "n")]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(3)
    ]
    accepted: list[int] = []
    try:
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
        for worker in workers:
            assert worker.stdout is not None
            accepted += [int(line) for line in iter(worker.stdout.readline, "end\n")]
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
    assert sorted(accepted) == list(range(2000))
    nonces = FileNonces(tmp_path / "n")
    assert not any(is_new(nonces, number, 1e9, 1e9) for number in range(2000))


def test_a_full_memory_forgets_none_early() -> None:
    nonces = FileNonces(most=3)
    assert [is_new(nonces, number) for number in range(4)] == [True, True, True, False]
    assert nonces.is_full and not is_new(nonces, 0, now=NOW + LIFE - 1)
    assert is_new(nonces, 4, NOW + LIFE + 61, NOW + LIFE + 61), "the old ones have expired"


def test_minutes_are_forgotten_once_none_of_their_tokens_counts(tmp_path: Path) -> None:
    one, two = FileNonces(tmp_path / "n"), FileNonces(tmp_path / "n")
    minute = int(NOW // 60)
    assert is_new(one, 0) and is_new(two, 1, NOW + 59)
    assert is_new(one, 2, NOW + 60, NOW + LIFE + 61), "the last token of the minute may still arrive elsewhere"
    assert not is_new(one, 1, NOW + 59, NOW + LIFE + 61)
    assert files(tmp_path) == [minute, minute + 1]
    assert is_new(one, 3, NOW + 700, NOW + 700)
    assert files(tmp_path) == [minute + 11]
    assert one._count == 1


def test_more_minutes_than_open_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 4)
    for nonces in (FileNonces(tmp_path / "n"), FileNonces(tmp_path / "n")):
        for _ in range(2):
            known = [not nonces.is_new(NOW + 60 * number, mark(number), NOW + 1e6, NOW) for number in range(12)]
            assert sum(one.file >= 0 for one in nonces._minutes.values()) <= 4
        assert all(known)
    assert len(files(tmp_path)) == 12


def test_a_part_of_a_record_is_removed(tmp_path: Path) -> None:
    assert is_new(FileNonces(tmp_path / "n"), 0)
    [file] = (tmp_path / "n-nonces").iterdir()
    with file.open("ab") as torn:
        torn.write(b"torn")
    one, two = FileNonces(tmp_path / "n"), FileNonces(tmp_path / "n")
    assert not is_new(one, 0) and is_new(one, 1) and not is_new(two, 1)
    assert not is_new(FileNonces(tmp_path / "n"), 1)
    assert file.stat().st_size % 16 == 0


@pytest.mark.parametrize("until", [math.inf, math.nan, -math.inf, 0.0, 1e300])
def test_a_damaged_record_hides_no_nonce_and_keeps_no_other_minute(until: float, tmp_path: Path) -> None:
    assert is_new(FileNonces(tmp_path / "n"), 0)
    [file] = (tmp_path / "n-nonces").iterdir()
    with file.open("ab") as damaged:
        damaged.write(os.urandom(8) + struct.pack(">d", until))
    nonces = FileNonces(tmp_path / "n")
    assert not is_new(nonces, 0) and is_new(nonces, 1) and is_new(nonces, 2, NOW + 120)
    assert is_new(nonces, 3, NOW + 900, NOW + 900)
    assert int(NOW // 60) + 2 not in files(tmp_path) and int(NOW // 60) + 15 in files(tmp_path)


def test_a_message_waits_if_its_nonce_cannot_be_stored(tmp_path: Path) -> None:
    nonces = FileNonces(tmp_path / "n")
    shutil.rmtree(tmp_path / "n-nonces")
    with pytest.raises(MessageFlowError) as caught:
        is_new(nonces, 0)
    assert 5 <= caught.value.retry_after <= 10
    os.mkdir(tmp_path / "n-nonces")
    assert is_new(nonces, 0), "what was not stored does not count"


def test_no_file_is_open_before_the_first_nonce_as_the_process_may_fork(tmp_path: Path) -> None:
    """Processes that share a descriptor share its position, by which each finds what the others appended."""
    assert is_new(FileNonces(tmp_path / "n"), 0)
    nonces = FileNonces(tmp_path / "n")
    assert [one.file for one in nonces._minutes.values()] == [-1]
    assert not is_new(nonces, 0) and is_new(nonces, 1)
