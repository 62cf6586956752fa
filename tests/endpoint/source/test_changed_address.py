"""A source that listens elsewhere than its earlier run. Covers core/sending/outboxes/earlier_address.py."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from holdfast import (
    DeliveryError,
    Destination,
    DestinationHTTP,
    DestinationPolicy,
    Message,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
)

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.2))
LOCAL = DestinationHTTP(allow_addresses=["http://127.0.0.1"], policy=QUICK)
SHORT = DestinationPolicy(reply_patience=0.1)
ANY_PORT = SourceHTTP(listen=("127.0.0.1", 0))


class Waiting:
    """A service whose handler waits, and the store of a source that asked it and was closed before the reply."""

    def __init__(self, url: str, store: Path, go: asyncio.Event) -> None:
        self.url, self.store, self.go = url, store, go
        self.earlier = ""

    def source(self, http: SourceHTTP | None) -> Source:
        return Source(self.url, self.store, http=http, versions=Versions("1.0"), policy=QUICK)


@pytest.fixture(params=[True, False], ids=["offer", "no offer"])
async def waiting(serve: Any, tmp_path: Path, request: Any) -> AsyncIterator[Waiting]:
    app, is_asked, go = Destination(tmp_path / "inbox", policy=SHORT, http=LOCAL), asyncio.Event(), asyncio.Event()

    @app.on("urn:a")
    async def late(message: Message) -> str:
        is_asked.set()
        await go.wait()
        return "<b/>"

    one = Waiting((await serve(app)).url, tmp_path / "out", go)
    source = Source(one.url, one.store, http=ANY_PORT, versions=Versions("1.0"), policy=QUICK, offer=request.param)
    async with source:
        asking = asyncio.ensure_future(source.request("<a/>", action="urn:a", message_id="urn:m:1", timeout=None))
        await is_asked.wait()
        one.earlier = source._running.calls.local
        await source.close(0.0)
        with pytest.raises(DeliveryError):
            await asking
    yield one
    go.set()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "event='address.changed'" in line]


async def test_a_listener_of_any_port_gets_the_port_of_the_earlier_run(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    async with waiting.source(ANY_PORT) as source:
        assert source._running.calls.local == waiting.earlier
        waiting.go.set()
        reply = await source.request("<a/>", action="urn:a", message_id="urn:m:1", timeout=60)
    assert reply.body_bytes == b"<b/>" and not told(caplog)


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
async def test_the_address_of_a_listener_of_ipv6_is_a_url_and_stays_the_same(serve: Any, tmp_path: Path) -> None:
    app = Destination(":memory:", http=DestinationHTTP(allow_addresses=["http://[::1]"]))
    app.on("urn:a")(lambda message: "<b/>")
    service, addresses = await serve(app), set()
    for _ in range(2):
        async with Source(service.url, tmp_path / "out", http=SourceHTTP(listen=("::1", 0)), policy=QUICK) as source:
            addresses.add(source._running.calls.local)
            assert (await source.request("<a/>", action="urn:a", timeout=60)).body_bytes == b"<b/>"
            await source.close(0.0)  # the Sequence stays open
    (address,) = addresses
    assert address.startswith("http://[::1]:")


@pytest.mark.parametrize("how", ["another port", "none"])
async def test_a_source_with_another_address_names_the_earlier_one(
    waiting: Waiting, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(waiting.earlier.rpartition(":")[2].strip("/"))
    with socket.create_server(("127.0.0.1", port)):
        async with waiting.source(ANY_PORT if how == "another port" else None) as source:
            problem = lambda: source.progress.problem  # noqa: E731
            assert f"replies of 1 message go to {waiting.earlier}," in source.progress.problem
            await until(lambda: f"it sends the reply to it, if it has the request, to {waiting.earlier}," in problem())
            assert source._running.calls.local not in problem()
            (shown,) = source.sequences()
            assert shown["acks_to"] == waiting.earlier
            (line,) = told(caplog)
            assert f"earlier='{waiting.earlier}'" in line and "keys=['']" in line and "in_doubt=1" in line
    # Where the destination was told to send, its reply still arrives.
    waiting.go.set()
    async with waiting.source(ANY_PORT) as source:
        reply = await source.request("<a/>", action="urn:a", message_id="urn:m:1", timeout=60)
    assert reply.body_bytes == b"<b/>"
