"""Ctrl-C at a terminal, in each command on Spark: it ends soon, says no more than that, leaves no process, goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, record
from processes import signal_session
from quick_spark import QUICK_JAVA

from holdfast import Destination, Message, Source
from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.wire.encoding.envelopes import encode

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

SOURCE = str(Path(__file__).parents[3] / "src")
JAVA = f"{QUICK_JAVA} -Xmx1g"
NOISE = ("Traceback", "Exception", "\tat ", "ERROR")
PIPELINE = """
name = "p"
checkpoint = "checkpoint"
interval = "100ms"
[sources.orders]
broker = "{}"
queue = "orders"
[sinks.kept]
table = "kept"
[[routes]]
input = "orders"
to = "kept"
"""


class Command:
    """A command in a session of its own, whose first group is what a terminal would signal."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environ = {
            **os.environ,
            "PYTHONPATH": SOURCE,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": JAVA,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "holdfast", *arguments, "--master", "local[2]"]
        with (self._directory / "out").open("wb") as out, (self._directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=self._directory, stdout=out, stderr=err, env=self._environ, start_new_session=True
            )

    def until(self, is_so: Callable[[], bool]) -> None:
        assert self.process is not None
        while not is_so():
            assert self.process.poll() is None, self.said("err")
            time.sleep(0.05)

    def said(self, where: str) -> str:
        return (self._directory / where).read_text()

    def interrupt(self) -> int:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(120)

    def left(self) -> list[str]:
        """Processes of the session that are still there, after some seconds at most."""
        assert self.process is not None
        found: list[str] = []
        for _ in range(100):
            found = []
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    name, _, fields = stat.read_text().rpartition(")")
                    if int(fields.split()[3]) == self.process.pid and fields.split()[0] != "Z":
                        found.append(name)
            if not found:
                break
            time.sleep(0.1)
        return found


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    if command.process is not None and command.process.poll() is None:
        signal_session(command.process.pid, signal.SIGKILL)


def check(command: Command, code: int) -> None:
    before = len(command.said("err"))  # PySpark's workers tell of a broken pipe now and then, whatever is done
    assert command.interrupt() == code, command.said("err")
    told = command.said("err")[before:]
    assert not any(noise in told for noise in NOISE), told
    assert command.left() == []


def lines(command: Command) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command.said("out").splitlines()]


@pytest.mark.parametrize("how", ["between batches", "in a batch"])
def test_landing_ends_in_order_and_goes_on(server: FakeServer, command: Command, tmp_path: Path, how: str) -> None:
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(100)])
    arguments = ["land", "--broker", server.url, "--queue", "orders", "--out", "landed", "--checkpoint", "checkpoint"]
    command.start(*arguments, "--interval", "0")
    command.until(lambda: '"total": 100' in command.said("out"))
    if how == "in a batch":
        server.append("orders", 0, [record(i, f"<o>{'x' * 1_000}</o>") for i in range(100, 20_000)])
        command.until(lambda: any((tmp_path / "landed" / "rows").glob("1/*")))
    check(command, 0)
    assert lines(command)[-1]["event"] == "end"
    server.append("orders", 0, [record(20_000)])
    command.start(*arguments, "--available-now")
    assert command.process is not None
    assert command.process.wait(300) == 0, command.said("err")
    assert lines(command)[-1]["rows"] == (101 if how == "between batches" else 20_001)


def test_a_pipeline_ends_in_order_and_goes_on(server: FakeServer, command: Command, tmp_path: Path) -> None:
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(100)])
    (tmp_path / "p.toml").write_text(PIPELINE.format(server.url))
    command.start("pipeline", "run", "p.toml", "--json")
    command.until(lambda: '"rows": 100' in command.said("out"))
    check(command, 0)
    assert lines(command)[-1] == {"event": "end", "rows": 100, "dead": 0, "cursors": {"orders": {"orders": {"0": 100}}}}


def message(number: int) -> bytes:
    envelope = Envelope(SOAP.V1_1, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://x/")
    envelope.sequence, envelope.body = Sequence("urn:s", number), b"<x/>"
    return encode(envelope)


@pytest.mark.parametrize("how", ["stream", "once"])
def test_interrupted_reassembly_continues_as_a_stream_and_restarts_as_a_batch(
    command: Command, tmp_path: Path, how: str
) -> None:
    (tmp_path / "captured").mkdir()
    for number in range(1, 3_001):
        (tmp_path / "captured" / f"{number}.xml").write_bytes(message(number))
    arguments = ["reassemble", "captured", "--out", "put-together"]
    if how == "stream":
        arguments += ["--stream", "--checkpoint", "checkpoint"]
    command.start(*arguments)
    command.until(lambda: '"batch"' in command.said("out") or '"decoded"' in command.said("out"))
    if how == "stream":
        check(command, 0)
    else:
        check(command, 1)
        assert "holdfast: interrupted" in command.said("err")
        command.start(*arguments)
        assert command.process is not None
        assert command.process.wait(300) == 0, command.said("err")
    assert (lines(command)[-1]["event"], lines(command)[-1]["messages"]) == ("end", 3_000)


def test_a_grid_is_simulated_again(command: Command, tmp_path: Path) -> None:
    command.start("simulate", "--grid", "loss=0,0.3", "--sequences", "50000", "--out", "grid")
    command.until(lambda: (tmp_path / "grid" / "outcomes" / "_temporary").exists())
    check(command, 1)
    assert "holdfast: interrupted" in command.said("err")


async def served(directory: Path) -> None:
    app = Destination(directory / "store", partitions=1)

    @app.on("urn:a")
    async def take(_message: Message) -> None:
        pass

    service = Service(app, Listeners(port=0))
    await service.start()
    async with Source(service.url, directory / "outbox") as source:
        for number in range(50):
            await source.send(f"<n>{number}</n>", action="urn:a")
        await source.flush(60)
    await service.close()


def test_an_audit_is_begun_again(command: Command, tmp_path: Path) -> None:
    asyncio.run(served(tmp_path))
    command.start("audit", "store")
    command.until(lambda: '"journal"' in command.said("out"))
    check(command, 1)
    assert "holdfast: interrupted" in command.said("err")
