"""The tutorial, done as its page says with the programs of the page, but for the ports and the number of orders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
COUNT = 200
PATIENCE = 240.0
"""Seconds to wait for anything."""

_KINDS = (
    ("uuid", r"urn:uuid:[0-9a-f-]{36}"),
    ("url", r"https?://\S+"),
    ("ranges", r"[\d,]+-[\d,]+"),
    ("share", r"[\d,]+/[\d,]+"),
    ("age", r"[\d,]+ (s|min|h|d)"),
    ("number", r"[\d,.]+"),
)


def shape(line: str) -> list[str]:
    """What kind each column of a line is of."""
    cells = re.split(r" {2,}", line.strip())
    return [next((kind for kind, pattern in _KINDS if re.fullmatch(pattern, cell)), "words") for cell in cells]


def is_like(line: str, shown: str) -> bool:
    """Whether a line has the shape of one of the page, as far as both go: a last column may still be empty."""
    return all(one == other for one, other in zip(shape(line), shape(shown), strict=False))


class Tutorial:
    """The page, and a directory in which it is followed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.admin_port, self.shop_port = free_ports(3)
        self.text = self._fitted(PAGE.read_text(encoding="utf-8"))
        self.started: list[subprocess.Popen[bytes]] = []

    def _fitted(self, text: str) -> str:
        ports = {"8080": self.port, "8081": self.admin_port, "8090": self.shop_port}
        text = re.sub(r"(?<=[: ])80(80|81|90)\b", lambda match: str(ports[match[0]]), text)
        return text.replace("20_000", str(COUNT)).replace("20_001", str(COUNT + 1)).replace("20,000", str(COUNT))

    def save(self, name: str, above: str = "") -> None:
        """Save the file that the page says to save under that name."""
        match = re.search(rf"`{re.escape(name)}`[^`]*?:\n\n```\w+\n(.*?)```", self.text, re.DOTALL)
        assert match is not None, name
        (self.directory / name).write_text(above + match[1])

    def shown(self, command: str) -> list[str]:
        """The lines that the page shows below a command."""
        match = re.search(rf"^\$ {re.escape(command)}[^\n]*\n(.*?)(?=^\$ |^```)", self.text, re.MULTILINE | re.DOTALL)
        assert match is not None, command
        return match[1].splitlines()

    def _arguments(self, command: str) -> list[str]:
        words = command.split()
        return [sys.executable, *(["-m", "holdfast"] if words[0] == "holdfast" else []), *words[1:]]

    def start(self, command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command of the page in the background."""
        path = os.pathsep.join((str(Path(holdfast.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        with (self.directory / log).open("wb") as file:
            process = subprocess.Popen(
                self._arguments(command), cwd=self.directory, stdout=file, stderr=file, env=environment
            )
        self.started.append(process)
        return process

    def said(self, log: str) -> list[str]:
        """What a command in the background has said."""
        return (self.directory / log).read_text().splitlines()

    def run(self, command: str, given: str = "") -> list[str]:
        """The lines that a command of the page prints."""
        result = subprocess.run(
            self._arguments(command), cwd=self.directory, input=given, capture_output=True, text=True, timeout=PATIENCE
        )
        assert result.returncode == 0, (command, result.stderr)
        return (result.stdout + result.stderr).splitlines()

    def check(self, said: list[str], shown: list[str]) -> str:
        """How an output differs from the page's, where a line "…" stands for any number of lines; "" if it does not."""
        left = list(said)
        for line in shown:
            if line == "…":
                return ""
            if not left or not is_like(left[0], line):
                return f"{line!r} is on the page, {left[:1]} came of {said}"
            del left[0]
        return f"{left} came, and is not on the page" if left else ""

    def see(self, command: str, when: Callable[[list[str]], bool] = lambda lines: True) -> list[str]:
        """What a command prints, once it is what the page shows."""
        shown, deadline = self.shown(command), time.monotonic() + PATIENCE
        while True:
            said = self.run(command)
            differs = self.check(said, shown)
            if not differs and when(said):
                return said
            assert time.monotonic() < deadline, differs or said
            time.sleep(0.1)

    def wait_for(self, log: str, line: str) -> None:
        """Wait until a command in the background has said a line."""
        deadline = time.monotonic() + PATIENCE
        while line not in self.said(log):
            assert time.monotonic() < deadline, self.said(log)
            time.sleep(0.05)


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Tutorial]:
    one = Tutorial(tmp_path)
    yield one
    for process in one.started:
        process.kill()
        process.wait()


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says_and_shows_what_comes(tutorial: Tutorial) -> None:
    # 2: the source
    tutorial.save("orders.py")
    source = tutorial.start("python orders.py", "orders-1")
    tutorial.wait_for("orders-1", f"all {COUNT} orders are stored here")
    source.kill()
    source.wait()
    source = tutorial.start("python orders.py", "orders-2")
    tutorial.wait_for("orders-2", f"all {COUNT} orders are stored here")
    assert tutorial.said("orders-2") == [
        f"{COUNT} orders are stored here already",
        f"all {COUNT} orders are stored here",
    ]

    # 3: the broker
    tutorial.save("broker.toml", f"listen.port = {tutorial.port}\nadmin.port = {tutorial.admin_port}\n")
    checked = tutorial.run("holdfast broker check broker.toml")
    shown = tutorial.shown("holdfast broker check")
    assert [line.split()[0] for line in checked] == [line.split()[0] for line in shown]
    assert checked[1:] == shown[1:], "all but the store's path"
    assert checked[0].partition("/broker, ")[2] == shown[0].partition("/broker, ")[2]
    broker = tutorial.start("holdfast broker --config broker.toml", "broker-1")
    tutorial.wait_for("broker-1", f"admin on http://127.0.0.1:{tutorial.admin_port}")
    tutorial.see("holdfast sequences broker")
    listening = [line for line in tutorial.said("broker-1") if " on http://" in line]
    assert listening == tutorial.shown("holdfast broker --config")[:2]

    # 4: its death
    broker.kill()
    broker.wait()
    assert tutorial.run("holdfast sequences broker")
    tutorial.start("holdfast broker --config broker.toml", "broker-2")
    tutorial.wait_for("broker-2", f"admin on http://127.0.0.1:{tutorial.admin_port}")
    assert source.wait(PATIENCE) == 0
    assert tutorial.said("orders-2")[-1] == "and all are stored there"
    assert any(re.search(r"sequences=1\b", line) for line in tutorial.said("broker-2")), tutorial.said("broker-2")

    # 5: the shop
    for name in ("shop.py", "count.py"):
        tutorial.save(name)
    forwarders = f"holdfast forwarders --admin http://127.0.0.1:{tutorial.admin_port}"
    tutorial.see(forwarders)
    serve = f"holdfast serve shop:app --port {tutorial.shop_port}"
    assert serve in tutorial.text
    shop = tutorial.start(serve, "shop-1")
    tutorial.wait_for("shop-1", f"listening on http://127.0.0.1:{tutorial.shop_port}/")
    shop.send_signal(signal.SIGKILL)
    shop.wait()
    tutorial.start(serve, "shop-2")
    deadline = time.monotonic() + PATIENCE
    while True:
        _, *rows = tutorial.run(forwarders)
        if all(re.split(" {2,}", row)[5] == "0" for row in rows):
            break
        assert time.monotonic() < deadline, rows
    assert len(rows) == 1 and "64 idle" in rows[0]
    tutorial.see("holdfast queues shop", lambda lines: re.split(" {2,}", lines[1])[4] == "0")
    assert tutorial.run("python count.py") == tutorial.shown("python count.py")

    # 6: a request
    ask = re.search(r"^\$ echo '(.*)' \|\n> +(holdfast send .*)\n((?:[^`$].*\n)+)", tutorial.text, re.MULTILINE)
    assert ask is not None
    assert tutorial.run(ask[2], ask[1]) == ask[3].splitlines()
    (program,) = re.findall(r"The same from Python:\n\n```python\n(.*?)```", tutorial.text, re.DOTALL)
    (tutorial.directory / "ask.py").write_text(program)
    assert tutorial.run("python ask.py") == ["12"]
