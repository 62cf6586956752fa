"""Ports for servers that come back: free, different, and none that the system gives to others."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import ports
from holdfast.testing.ports import free_ports


def test_every_call_gives_other_ports_below_those_the_system_gives_out() -> None:
    first, second = free_ports(3), free_ports(3)
    assert len({*first, *second}) == 6
    assert max(first + second) < ports._first_given_out()


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_looks", itertools.count())
    (port,) = free_ports(1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        monkeypatch.setattr(ports, "_looks", itertools.count())
        assert port not in free_ports(5)


def test_a_port_that_another_process_chose_is_passed_over_until_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import itertools, sys
from holdfast.testing import ports
ports.os.getpid = lambda: {os.getpid()}
ports._looks = itertools.count(777)
print(*ports.free_ports(5), flush=True)
sys.stdin.read()
"""
    source = str(Path(ports.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        assert len(theirs) == 5
        monkeypatch.setattr(ports, "_looks", itertools.count(777))
        assert not theirs & set(free_ports(5))
        other.stdin.close()
        other.wait(60)
        assert all(ports._is_ours(port) for port in theirs)


def test_where_no_file_can_be_locked_ports_are_chosen_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    monkeypatch.setattr(ports, "_chosen", ports._chosen.__wrapped__)
    assert len(set(free_ports(3))) == 3


@pytest.mark.parametrize("text", ["", "1024 65535", "nonsense"])
def test_where_the_system_does_not_say_or_gives_out_all_its_usual_choice_is_believed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    for path in (tmp_path / "range", tmp_path / "missing"):
        monkeypatch.setattr(ports, "_RANGE", path)
        assert ports._first_given_out() == 32_768


def test_more_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_is_free", lambda port: port < ports._FIRST + 3)
    monkeypatch.setattr(ports, "_is_ours", lambda port: True)
    with pytest.raises(OSError, match=r"only 3 of the ports 10000 to .* are free, not 4"):
        free_ports(4)
