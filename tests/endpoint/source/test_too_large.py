"""A reply that this side can never read ends its request, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import DeliveryError, Destination, DestinationHTTP, Message, PeerFault, Source, Versions
from holdfast.wire.limits import Limits

MOST = 16 * 1024 * 1024
LARGE = b"<a>" + b"x" * MOST + b"</a>"
ROOMY = DestinationHTTP(envelopes=Limits(max_bytes=4 * MOST))
"""Of a service that permits larger replies than a source accepts."""


def service(**settings: Any) -> tuple[Destination, list[str]]:
    app, handled = Destination(store=":memory:", **settings), list[str]()

    @app.on("urn:large")
    async def large(message: Message) -> bytes:
        handled.append(message.action)
        return LARGE

    @app.on("urn:small")
    async def small(message: Message) -> bytes:
        handled.append(message.action)
        return b"<small/>"

    return app, handled


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
async def test_a_reply_that_is_too_large_ends_its_request_alone(serve: Any, tmp_path: Path, rm: str) -> None:
    app, handled = service(http=ROOMY)
    url = (await serve(app)).url
    async with Source(url, store=tmp_path / "out", versions=Versions(rm=rm)) as source:
        with pytest.raises(DeliveryError, match="too large") as caught:
            await source.request("<a/>", action="urn:large", timeout=60)
        assert "mtom=True" in str(caught.value)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
        assert handled == ["urn:large", "urn:small"]
        assert not source.progress.outstanding
    async with asyncio.timeout(60), Source(url, store=tmp_path / "out", versions=Versions(rm=rm)) as source:
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
    assert handled == ["urn:large", "urn:small", "urn:small"], "and the next process does not repeat it"


async def test_a_destination_refuses_a_reply_that_clients_cannot_receive(serve: Any, tmp_path: Path) -> None:
    app, handled = service()
    async with Source((await serve(app)).url, store=tmp_path / "out") as source:
        with pytest.raises(PeerFault):
            await source.request("<a/>", action="urn:large", timeout=60)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
    assert handled == ["urn:large", "urn:small"]
    assert app.dead_letters == 1
