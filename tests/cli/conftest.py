"""The command line as its users run it: in this process where only words matter, in its own where signals do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service

SOURCE = str(Path(__file__).parents[2] / "src")


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command in this process, in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr("sys.argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return Result(int(caught.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def run_out_of_time(run: Run) -> Run:
    """Runs a command that cannot succeed with ever more time, until it says ``what``: so long as what it says needs,
    however busy the machine is."""

    def call(*arguments: str, what: str) -> Result:
        for seconds in ("0.5", "5", "60"):
            # Messages of a try that was cut short would be there in the next one's store.
            store = () if "--store" in arguments else ("--store", f"outbox-{seconds}")
            result = run(*arguments, *store, "--timeout", seconds)
            if what in result.out + result.err:
                break
        return result

    return call


class Started:
    """A command in a process of its own."""

    def __init__(self, arguments: tuple[str, ...], directory: Path, **options: Any) -> None:
        command = [sys.executable, "-m", "holdfast.cli.main", *arguments]
        environment = os.environ | {"PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True, **options
        )

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def url(self) -> str:
        """Where it says that it listens."""
        word, _, url = self.line().rpartition(" ")
        assert word == "listening on", self.end()
        return url

    def end(self, timeout: float = 60) -> Result:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=timeout)
        return Result(self.process.returncode, out, err)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts commands in processes of their own, killed with the test at the latest."""
    started: list[Started] = []

    def call(*arguments: str, **options: Any) -> Started:
        started.append(Started(arguments, tmp_path, **options))
        return started[-1]

    yield call
    for one in started:
        one.process.kill()
        one.process.communicate()


@dataclass
class Served:
    """A destination served from a thread: takes anything, answers ``urn:price``, faults at ``urn:fault``."""

    url: str
    admin: str
    app: holdfast.Destination
    loop: asyncio.AbstractEventLoop


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A destination that is there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = holdfast.Destination(tmp_path / "served", handling=holdfast.HandlingPolicy(attempts=1))
    app.on()(lambda message: None)
    app.on("urn:price")(lambda message: f"<price>{message.body.text}</price>")

    @app.on("urn:fault")
    def fault(message: holdfast.Message) -> NoReturn:
        raise holdfast.ApplicationFault("out of stock")

    service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
    asyncio.run_coroutine_threadsafe(service.start(), loop).result(60)
    yield Served(service.url, service.admin_url, app, loop)
    asyncio.run_coroutine_threadsafe(service.close(1.0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
