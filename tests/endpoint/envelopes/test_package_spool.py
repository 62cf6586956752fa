"""Large attachments between a source and a destination: on the disk at both ends, refused with a reason.

Covers endpoint/envelopes/package_spool.py and endpoint/envelopes/spools.py.
"""

from __future__ import annotations

import gc
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from to_asgi import ToASGI
from waiting import until

import holdfast
from holdfast import Attachment, Destination, Source, WithAttachments
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import content_name
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.endpoint.envelopes.attachments import encode_attachments
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import EnvelopeError, PeerFault
from holdfast.http.exchange import HTTPLimits
from holdfast.store import contents as stored_contents
from holdfast.testing.ports import free_ports

ACTION = "urn:test:film"
INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:film@test"/>'
FILM = f"<film>{INCLUDE}</film>"
DATA = hashlib.sha256(b"film").digest() * 100_000
SOON = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.2, max_retry_after=0.1))
ATTACHMENT = Attachment(DATA, "video/mp4", "film@test")


def contents(store: Path) -> list[Path]:
    place = store / "attachments"
    return list(place.iterdir()) if place.exists() else []


@pytest.mark.parametrize("body", [FILM, "<film/>"], ids=["mtom", "swa"])
async def test_a_large_attachment_is_a_file_at_both_ends_and_leaves_none(serve: Any, tmp_path: Path, body: str) -> None:
    app = Destination(tmp_path / "inbox")
    seen: list[tuple[int, bytes, bytes]] = []

    @app.on(ACTION)
    def film(message: holdfast.Message) -> None:
        (one,) = message.attachments
        with one.open() as file:
            file.seek(32)
            seen.append((one.size, file.read(32), hashlib.sha256(one.read()).digest()))
        assert contents(tmp_path / "inbox")

    service = await serve(app)
    path = tmp_path / "film"
    path.write_bytes(DATA)
    async with Source(service.url, tmp_path / "outbox") as source:
        for content in (path, DATA, io.BytesIO(DATA)):
            await source.send(body, action=ACTION, attachments=[Attachment(content, "video/mp4", "film@test")])
        assert len(contents(tmp_path / "outbox")) > 0
        await source.flush(60)
        await app.handled()
        gc.collect()
        await until(lambda: not contents(tmp_path / "outbox") and not contents(tmp_path / "inbox"))
    assert seen == [(len(DATA), DATA[:32], hashlib.sha256(DATA).digest())] * 3


async def test_a_large_reply_returns_what_came(serve: Any, tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox")

    @app.on(ACTION)
    def film(message: holdfast.Message) -> WithAttachments:
        return WithAttachments(message.body_bytes, message.attachments)

    service = await serve(app)
    async with Source(service.url, tmp_path / "outbox") as source:
        reply = await source.request(FILM, action=ACTION, attachments=[ATTACHMENT], timeout=60)
        (one,) = reply.attachments
        assert (one.content_id, one.media_type, one.read()) == ("film@test", "video/mp4", DATA)
        reply.done()


async def test_the_same_message_id_stands_for_the_same_large_attachment(serve: Any, tmp_path: Path) -> None:
    async with Source("http://127.0.0.1:9/", tmp_path / "outbox") as source:
        for _ in range(2):
            await source.send(FILM, action=ACTION, message_id="urn:m", attachments=[ATTACHMENT])
        other = Attachment(DATA[:-1] + b"x", "video/mp4", "film@test")
        with pytest.raises(EnvelopeError, match="another message with the MessageID"):
            await source.send(FILM, action=ACTION, message_id="urn:m", attachments=[other])
        gc.collect()
        await until(lambda: len(contents(tmp_path / "outbox")) == 1)
        await source.close(0)


async def test_a_message_beyond_the_limit_gets_a_fault_that_names_it(tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox")
    service = Service(app, Listeners(port=0, limits=HTTPLimits(max_body=1 << 20, max_attachments=2 << 20)))
    await service.start()
    async with Source(service.url, tmp_path / "outbox") as source:
        await source.send(FILM, action=ACTION, attachments=[ATTACHMENT])
        with pytest.raises(PeerFault, match="larger than this endpoint accepts"):
            await source.flush(60)
        await source.close(0)
    assert not contents(tmp_path / "inbox")
    await service.close(0.5)


async def test_a_full_disk_puts_a_message_off_until_there_is_room(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    app = Destination(tmp_path / "inbox")
    digests: list[bytes] = []
    app.on(ACTION)(lambda message: digests.append(hashlib.sha256(message.attachments[0].read()).digest()))
    async with Source(f"http://127.0.0.1:{port}/", tmp_path / "outbox", policy=SOON) as source:
        await source.send(FILM, action=ACTION, attachments=[ATTACHMENT])
        monkeypatch.setattr(stored_contents, "LEAST_FREE", 1 << 60)
        service = await serve(app, port=port)
        await until(lambda: service._server.counters.refused["space"] > 0)
        assert not digests and not contents(tmp_path / "inbox")
        monkeypatch.undo()
        await source.flush(60)
    await app.handled()
    assert digests == [hashlib.sha256(DATA).digest()]


async def test_attachments_of_a_transaction_are_in_the_record() -> None:
    assert not content_name(encode_attachments([ATTACHMENT], FILM.encode()))


async def test_under_an_asgi_server_large_attachments_go_to_the_store(tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox", http=holdfast.DestinationHTTP(limits=HTTPLimits(max_body=1 << 20)))
    got: list[bytes] = []

    @app.on(ACTION)
    def film(message: holdfast.Message) -> None:
        assert contents(tmp_path / "inbox")
        got.append(message.attachments[0].read())

    http = holdfast.SourceHTTP(transport=ToASGI(app))
    async with app.lifespan(), Source("http://here/", tmp_path / "outbox", http=http) as source:
        await source.send(FILM, action=ACTION, attachments=[ATTACHMENT])
        await source.flush(60)
        await app.handled()
    assert got == [DATA]
