"""A served destination: where it listens, how it ends, and that a restart on the same port is unseen.

Covers endpoint/admin/starting.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import ConfigurationError, Destination, RetransmissionPolicy, Source, SourcePolicy, StoreError
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.testing.ports import free_ports

ACTION = "urn:test:submit"
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.3))


async def test_it_listens_where_it_is_told_and_has_no_admin_listener_unless_asked() -> None:
    service = Service(Destination(":memory:"), Listeners(port=0))
    await service.start()
    assert service.url.startswith("http://127.0.0.1:")
    assert service.admin_url == ""
    await service.close()


async def test_a_port_that_is_taken_is_an_error_and_leaves_the_store_free(serve: Any, tmp_path: Path) -> None:
    taken = await serve(Destination(":memory:"))
    port = int(taken.url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
        await Service(Destination(tmp_path / "inbox"), Listeners(port=port)).start()
    await serve(Destination(tmp_path / "inbox"))


async def test_while_a_server_starts_its_admin_listener_answers_probes_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Destination(":memory:")
    begun, gate, start = asyncio.Event(), asyncio.Event(), app.start

    async def slow_start() -> None:
        begun.set()
        await gate.wait()
        await start()

    monkeypatch.setattr(app, "start", slow_start)
    port, admin_port = free_ports(2)
    service = Service(app, Listeners(port=port, admin=AdminListener(port=admin_port, token="secret")))
    starting = asyncio.ensure_future(service.start())
    await begun.wait()
    async with HTTPClient() as client:

        async def ask(path: str, token: str = "secret") -> tuple[int, bytes]:
            headers = {"Authorization": f"Bearer {token}"}
            answer = await client.fetch("GET", f"http://127.0.0.1:{admin_port}/{path}", b"", headers)
            return answer.status, answer.body

        status, told = await ask("healthz", token="")
        assert (status, json.loads(told)["status"]) == (200, "ok")
        assert "starting" in json.loads(told)["trouble"]
        assert [(await ask(path))[0] for path in ("readyz", "queues", "metrics")] == [503, 503, 200]
        assert (await ask("metrics", token="wrong"))[0] == 401
        with pytest.raises(TransportError):
            await client.fetch("GET", f"http://127.0.0.1:{port}/", b"", {})
        gate.set()
        await starting
        assert await ask("healthz") == (200, b'{"status": "ok"}\n')
        assert [(await ask(path))[0] for path in ("readyz", "queues")] == [200, 200]
    await service.close()


async def test_a_start_that_fails_leaves_the_admin_port_free(serve: Any, tmp_path: Path) -> None:
    await serve(Destination(tmp_path / "inbox"))
    (admin_port,) = free_ports(1)
    with pytest.raises(StoreError):
        await Service(Destination(tmp_path / "inbox"), Listeners(port=0, admin=AdminListener(port=admin_port))).start()
    await serve(Destination(":memory:"), admin_port=admin_port)


async def test_a_store_that_another_service_has_open_is_refused(serve: Any, tmp_path: Path) -> None:
    await serve(Destination(tmp_path / "inbox"))
    with pytest.raises(StoreError):
        await Service(Destination(tmp_path / "inbox"), Listeners(port=0)).start()


async def test_a_request_in_progress_gets_its_reply_before_the_service_is_gone(serve: Any) -> None:
    app = Destination(":memory:")
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.on(ACTION)
    async def slow(message: Any) -> str:
        begun.set()
        await gate.wait()
        return "<done/>"

    service = await serve(app)
    async with Source(service.url, ":memory:") as source:
        asked = asyncio.ensure_future(source.request("<a/>", action=ACTION, timeout=60))
        await begun.wait()
        closing = asyncio.ensure_future(service.close(60))
        await asyncio.sleep(0)
        gate.set()
        assert (await asked).body.tag == "done"
        await closing
        await source.close(0)


async def test_closing_answers_whoever_waits_at_the_data_plane_or_lets_go_of_him(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    async with HTTPClient() as client:
        url = f"{service.admin_url}/next-positions"
        waiting = asyncio.ensure_future(client.fetch("POST", url, b'{"queues": {}, "wait": 60}', {}))
        await until(lambda: service._admin is not None and service._admin._tasks)
        async with asyncio.timeout(60):
            await service.close(0.1)
            await asyncio.gather(waiting, return_exceptions=True)


async def test_a_source_does_not_notice_a_restart(serve: Any, tmp_path: Path) -> None:
    got: list[str] = []

    def make() -> Destination:
        app = Destination(tmp_path / "inbox")
        app.on(ACTION)(lambda message: got.append(message.body.text))
        return app

    (port,) = free_ports(1)
    service = await serve(make(), port=port)
    async with Source(service.url, ":memory:", policy=QUICK) as source:
        for round_number in range(3):
            sent = [await source.send(f"<n>{round_number * 20 + i}</n>", action=ACTION) for i in range(20)]
            await sent[0].acknowledged(60)
            await service.close(60)  # a handler that is cut off would be called again
            service = await serve(make(), port=port)
            await asyncio.gather(*(one.acknowledged(60) for one in sent))
        assert len(source.sequences()) == 1
    await until(lambda: len(got) == 60)
    assert got == [str(number) for number in range(60)]


PROGRAM = """
import asyncio, sys, threading
import holdfast
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import TransportError
from holdfast.testing.ports import free_ports

app = holdfast.Destination(":memory:")

@app.on("urn:test:submit")
def hang(message):
    print("begun", flush=True)
    threading.Event().wait()

async def main():
    service = Service(app, Listeners(port=0))
    await service.run(on_ready=lambda: print(service.url, flush=True))

asyncio.run(main())
"""


async def start_program() -> tuple[asyncio.subprocess.Process, str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_one_signal_ends_it_cleanly(number: signal.Signals) -> None:
    process, url = await start_program()
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(number)
    assert await process.wait() == 0


async def test_a_second_signal_ends_it_at_once_even_while_a_handler_hangs() -> None:
    process, url = await start_program()
    async with Source(url, ":memory:") as source:
        await (await source.send("<a/>", action=ACTION)).acknowledged(60)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    # The listener is closed when the first signal has been taken in.
    async with asyncio.timeout(60), HTTPClient() as client:
        while True:
            try:
                await client.fetch("GET", url, b"", {})
            except TransportError:
                break
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 130


async def test_an_event_ends_it_too() -> None:
    service = Service(Destination(":memory:"), Listeners(port=0))
    stop = asyncio.Event()
    urls: list[str] = []

    def ready() -> None:
        urls.append(service.url)
        stop.set()

    await service.run(stop, ready)
    assert len(urls) == 1
