"""The programs of the guide on callbacks, run against each other: a client, a service and its quotes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from guides import blocks, environment, run, served

from holdfast.testing.ports import free_ports

SERVE = "holdfast serve exchange:app --port 8080"


@contextmanager
def client(place: Path, program: str) -> Iterator[IO[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=place, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_a_service_sends_a_callback_and_its_handler_answers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    subscriber, service, quotes = (text.replace("8090", str(port)) for text in blocks("callbacks.md", "python"))
    answer = '    await source.send("<Buy/>", action="urn:exchange/Buy")\n'
    handler = "    print(message.body.text, flush=True)\n"
    assert handler in subscriber
    subscriber = subscriber.replace("def quote(", "async def quote(").replace(handler, handler + answer)
    bought = '\n\n@app.on("urn:exchange/Buy")\ndef buy(message: holdfast.Message) -> None:\n    print("bought")\n'
    (tmp_path / "exchange.py").write_text(service + bought, encoding="utf-8")
    with (
        served(tmp_path, SERVE) as (url, told),
        client(tmp_path, subscriber.replace("http://localhost:8080/", url)) as printed,
    ):
        assert told.readline() == "subscribed\n"
        run(tmp_path, "-c", quotes)
        assert printed.readline() == "42\n"
        assert told.readline() == "bought\n"
