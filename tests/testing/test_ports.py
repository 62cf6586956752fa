"""Ports for servers that come back: free, different, and none that the system gives to others."""

from __future__ import annotations

import itertools
import socket
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
    with pytest.raises(OSError, match=r"only 3 of the ports 10000 to .* are free, not 4"):
        free_ports(4)
