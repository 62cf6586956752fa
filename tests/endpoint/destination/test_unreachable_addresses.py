"""An address that a destination cannot reach is named by both sides, with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import (
    Destination,
    DestinationHTTP,
    Message,
    NotAcknowledged,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
)
from holdfast.endpoint.destination import unreachable_addresses
from holdfast.endpoint.destination.unreachable_addresses import FAILURES, UnreachableAddresses
from holdfast.testing.ports import free_ports

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.2))
LOCAL = DestinationHTTP(allow_addresses=["http://127.0.0.1"], policy=QUICK)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [one for one in caplog.messages if f"event='{event}'" in one]


def test_an_address_is_reported_once_and_again_after_it_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    addresses = UnreachableAddresses()
    for _ in range(2):
        for _ in range(FAILURES + 3):
            addresses.failed("http://c/?holdfast=s3cret", "no route to http://c/?holdfast=s3cret")
        addresses.answered("http://c/?holdfast=s3cret")
    addresses.failed("http://other/", "no route")
    addresses.answered("http://other/")
    assert len(told(caplog, "address.unreachable")) == len(told(caplog, "address.reachable")) == 2
    assert "no route to http://c/" in caplog.text
    assert "s3cret" not in caplog.text


def test_only_so_many_addresses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreachable_addresses, "MOST", 10)
    addresses = UnreachableAddresses()
    for number in range(100):
        addresses.failed(f"http://{number}/", "no route")
    assert len(addresses._failures) == 10


async def test_both_sides_say_that_the_address_of_a_client_cannot_be_reached(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Destination(tmp_path / "inbox", http=LOCAL)
    app.on("urn:a")(lambda message: "<b/>")
    listening, wrong = free_ports(2)
    http = SourceHTTP(listen=("127.0.0.1", listening), address=f"http://127.0.0.1:{wrong}/wrong")
    async with Source((await serve(app)).url, tmp_path / "out", http=http, policy=QUICK) as source:
        asking = asyncio.ensure_future(source.request("<a/>", action="urn:a", timeout=None))
        await until(lambda: "check that it can reach that address" in source.progress.problem)
        assert f"http://127.0.0.1:{wrong}/wrong" in source.progress.problem
        await until(lambda: told(caplog, "address.unreachable"))
        asking.cancel()
        with pytest.raises(NotAcknowledged, match="check that it can reach that address"):
            await source.request("<a/>", action="urn:a", timeout=0.1)
    (line, *_) = told(caplog, "address.unreachable")
    assert f"http://127.0.0.1:{wrong}/wrong" in line
    assert "Connection refused" in line


async def test_a_slow_handler_is_no_silent_destination(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, is_enough = Destination(tmp_path / "inbox", http=LOCAL), asyncio.Event()

    @app.on("urn:a")
    async def slow(message: Message) -> str:
        await is_enough.wait()
        return "<b/>"

    http = SourceHTTP(listen=("127.0.0.1", 0))
    url = (await serve(app)).url
    async with Source(url, tmp_path / "out", http=http, policy=QUICK) as source:
        asking = asyncio.ensure_future(source.request("<a/>", action="urn:a", timeout=None))
        await until(lambda: "times with success but no content" in source.progress.problem)
        is_enough.set()
        assert (await asking).body_bytes == b"<b/>"
    assert not told(caplog, "destination.silent")
    assert not told(caplog, "address.unreachable")
