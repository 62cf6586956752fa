"""A mounted destination that still starts, because its database is away, ends with its process.

Covers endpoint/destination/start_signals.py and endpoint/destination/asgi_application.py.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from to_asgi import ToASGI

import holdfast
from holdfast import ConfigurationError, Destination, Source

HOST = """
import asyncio, logging, signal, sys
from holdfast import Destination
from holdfast.exceptions import StoreError
from holdfast.testing.ports import free_ports

logging.basicConfig()
app = Destination(f"postgresql://127.0.0.1:{free_ports(1)[0]}/shop?patience=3600")
came = []

async def receive():
    return {"type": "lifespan.startup"}

async def send(message):
    print(message["type"], message.get("status", ""), message.get("message", ""), flush=True)

async def request():
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    await app(scope, receive, send)

async def protocol():
    await app({"type": "lifespan"}, receive, send)

async def context():
    async with app.lifespan():
        pass

async def main():
    if sys.argv[2] == "loop":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, came.append, signal.SIGTERM)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    before = signal.getsignal(signal.SIGTERM)
    starts = [asyncio.ensure_future(globals()[sys.argv[1]]()) for _ in range(3)]
    for start in starts:
        try:
            await start
        except StoreError as error:
            print(error.message, flush=True)
    print("host", came == [signal.SIGTERM], signal.getsignal(signal.SIGTERM) is before, flush=True)

asyncio.run(main())
"""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("context", "SIGTERM ended the start of the destination"),
        ("protocol", "lifespan.startup.failed  SIGTERM ended the start of the destination"),
        ("request", "http.response.start 503"),
    ],
)
@pytest.mark.parametrize("way", ["signal", "loop"])
def test_a_signal_ends_every_start_that_waits_for_a_database(tmp_path: Path, start: str, says: str, way: str) -> None:
    (tmp_path / "host.py").write_text(HOST)
    command = [sys.executable, str(tmp_path / "host.py"), start, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "store.away" in line:
                    break
            process.send_signal(signal.SIGTERM)
            told = process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert told.count(says) == 3, told
    assert told.splitlines()[-1] == "host True True", told


async def test_a_start_without_a_signal_is_as_before_and_a_cancelled_one_is_cancelled() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    app = Destination(":memory:")
    async with app.lifespan():
        assert app.running.is_open
    waiting = Destination("postgresql://127.0.0.1:1/shop?patience=3600")
    start = asyncio.ensure_future(waiting._start_signals.run(waiting.start))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("assurance", ["exactly-once in-order", "at-most-once"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_mounted_destination_logs_the_handlers_that_it_abandons(
    assurance: str, is_async: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Destination(":memory:", assurance=assurance)
    loop, began, ends = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def slow(message: holdfast.Message) -> None:
        began.set()
        await asyncio.Event().wait()

    def slow_in_thread(message: holdfast.Message) -> None:
        loop.call_soon_threadsafe(began.set)
        ends.wait()

    app.on()(slow if is_async else slow_in_thread)
    try:
        async with app.lifespan(grace=0.01):
            source = Source("http://here/", ":memory:", http=holdfast.SourceHTTP(transport=ToASGI(app)))
            await source.open()
            await source.send("<a/>", action="urn:a")
            await began.wait()
            await source.close(0)
    finally:
        ends.set()
    line = next(one.getMessage() for one in caplog.records if "handlers.abandoned" in one.getMessage())
    assert "running=1 seconds=0.01" in line
    assert ("lost" in line) == (assurance == "at-most-once")


async def test_a_wrong_grace_is_refused_before_the_start() -> None:
    app = Destination(":memory:")
    for wrong in (None, -1, "10", float("inf")):
        with pytest.raises(ConfigurationError, match="grace cannot be"):
            async with app.lifespan(grace=wrong):  # type: ignore[arg-type]
                pass
    assert app._opened is None
