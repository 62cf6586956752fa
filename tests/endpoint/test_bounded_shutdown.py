"""A server ends in a bounded time after SIGTERM, whatever it waits for, and logs what that was.

Covers endpoint/shutdown.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.endpoint import shutdown
from holdfast.endpoint.shutdown import is_too_long

BEGINNING = """
import asyncio, threading, time
import holdfast
from holdfast import Destination
from holdfast.endpoint import serve, shutdown
from holdfast.endpoint.listener_settings import Listeners
from holdfast.store.memory import MemoryStore

shutdown.LONGEST_STOP = shutdown.LONGEST_STILL = 0.3
answers = threading.Event()
answers.set()

class Hanging(MemoryStore):
    waits = True

    def commit(self, batch):
        answers.wait()
        super().commit(batch)

"""

HANGING_COMMIT = """
service = serve.Service(Destination(Hanging(), partitions=1), Listeners(port=0))

def ready():
    answers.clear()
    service.app.running.engine._commits.commit()
    print("ready", flush=True)

asyncio.run(service.run(on_ready=ready))
"""

SLOW_HANDLER = """
app = Destination(Hanging(), partitions=1)
service = serve.Service(app, Listeners(port=0))

@app.on()
def slow(message) -> None:
    print("ready", flush=True)
    time.sleep(3600)

async def main():
    async def send():
        async with holdfast.Source(service.url, ":memory:") as source:
            await source.send("<a/>", action="urn:a")
            await asyncio.Event().wait()

    sending = []
    await service.run(on_ready=lambda: sending.append(asyncio.ensure_future(send())))

asyncio.run(main())
"""

ABANDONED_HANDLER = """
import sys

serve.GRACE = float(sys.argv[1])
shutdown.LONGEST_STOP = 3600
app = Destination("inbox", partitions=1)
service = serve.Service(app, Listeners(port=0))
kind = sys.argv[2]

def work():
    print("ready", flush=True)
    time.sleep(3600)

if kind == "thread":
    @app.on()
    async def slow(message) -> bytes:
        await asyncio.to_thread(work)
elif kind == "async":
    @app.on()
    async def slow(message) -> bytes:
        print("ready", flush=True)
        await asyncio.Event().wait()
else:
    @app.on()
    def slow(message) -> bytes:
        work()

async def main():
    async def send():
        async with holdfast.Source(service.url, ":memory:") as source:
            await source.request("<a/>", action="urn:a")

    sending = []
    await service.run(on_ready=lambda: sending.append(asyncio.ensure_future(send())))

asyncio.run(main())
"""

HANGING_END = """
class Unclosed(Hanging):
    def close(self):
        time.sleep(3600)

service = serve.Service(Destination(Unclosed(), partitions=1), Listeners(port=0))
asyncio.run(service.run(on_ready=lambda: print("ready", flush=True)))
"""


def stop(tmp_path: Path, script: str, *arguments: str) -> tuple[int, str]:
    """Run a server, tell it to end once it is ready; its exit code and log."""
    (tmp_path / "server.py").write_text(BEGINNING + script)
    command = [sys.executable, str(tmp_path / "server.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            process.send_signal(signal.SIGTERM)
            return process.wait(60), process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("script", "waits_for"),
    [
        pytest.param(HANGING_COMMIT, "commits and reads; a commit has been in progress for", id="commit"),
        pytest.param(SLOW_HANDLER, "handlers to return; running handlers: 1", id="handler"),
        pytest.param(HANGING_END, "waiting_for='the store to be closed'", id="close"),
    ],
)
def test_a_stop_that_hangs_ends_in_bounded_time_and_the_log_says_what_it_waited_for(
    tmp_path: Path, script: str, waits_for: str
) -> None:
    code, log = stop(tmp_path, script)
    assert code == 1
    assert "stop.cut_short" in log
    assert waits_for in log


@pytest.mark.parametrize("kind", ["plain", "thread"])
def test_a_server_that_abandons_a_handler_ends_with_it(tmp_path: Path, kind: str) -> None:
    # A process that lived on would complete the handler's work while the next one does it again.
    code, log = stop(tmp_path, ABANDONED_HANDLER, "0.1", kind)
    assert code == 1
    assert "event='handlers.abandoned' running=1 seconds=0.1" in log
    assert "event='stop.cut_short' waiting_for='abandoned handlers'" in log


def test_a_server_that_cancels_a_handler_ends_in_order(tmp_path: Path) -> None:
    code, log = stop(tmp_path, ABANDONED_HANDLER, "0.1", "async")
    assert code == 0, log
    assert "event='handlers.abandoned' running=1 seconds=0.1" in log
    assert "stop.cut_short" not in log


def test_a_slow_stop_is_ended_only_when_it_makes_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    part = [0.0]
    looks = threading.Semaphore(0)
    ended: list[float] = []

    def progress() -> float:
        looks.release()
        return part[0]

    def end(code: int) -> None:
        ended.append(now[0])
        watched.done()

    monkeypatch.setattr(shutdown, "monotonic", lambda: now[0])
    monkeypatch.setattr(shutdown, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(shutdown.os, "_exit", end)
    watched = shutdown.Shutdown(progress, lambda: "the test")
    watched.begin()
    for second in range(1, 26):
        part[0] = now[0] = float(second)
        for _ in range(looks._value + 2):  # a whole look at this second
            assert looks.acquire(timeout=60)
    assert not ended
    now[0] = 28.0
    watched.thread.join(60)
    assert ended == [28.0]


@pytest.mark.parametrize(
    ("seconds", "still", "too_long"),
    [
        (24.9, 24.9, False),  # it may take that long, whatever it does
        (25.0, 3.0, True),
        (25.0, 2.9, False),  # it made progress a moment ago
        (28.4, 2.9, False),
        (28.5, 0.0, True),  # Kubernetes would kill it soon
    ],
)
def test_a_stop_has_25_seconds_and_almost_30_while_it_makes_progress(
    seconds: float, still: float, too_long: bool
) -> None:
    assert is_too_long(seconds, still) is too_long
    assert shutdown.LONGEST_PROGRESS < 30


AWAY = """
import asyncio
from holdfast import Destination
from holdfast.endpoint import serve
from holdfast.endpoint.listener_settings import Listeners

asyncio.run(serve.Service(Destination("postgresql:///no?host=/no/such/directory"), Listeners(port=0)).run())
"""


def test_a_start_that_waits_for_its_database_ends_at_once_after_sigterm(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(AWAY)
    command = [sys.executable, str(tmp_path / "server.py")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "store.away" not in (line := process.stderr.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "stop.cut_short" not in process.stderr.read()
        finally:
            process.kill()
