"""Attachments from a source to a handler and back: stored, retransmitted and set aside with their message.

Covers endpoint/envelopes/attachments.py.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

import holdfast
from holdfast import Attachment, Destination, Source, WithAttachments
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import SOAP
from holdfast.endpoint.envelopes.attachments import describe_attachments, encode_attachments
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.testing import lossy, pair
from holdfast.testing.message import message
from holdfast.testing.ports import free_ports
from holdfast.wire import content_type, encode, http_headers, pack

ACTION = "urn:test:claim"
DATA = bytes(range(256)) * 20
INCLUDE = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:{}"/>'
CLAIM = f"<claim><photo>{INCLUDE.format('photo@test')}</photo></claim>"
PHOTO = Attachment(DATA, "image/png", "photo@test")


def collecting(store: Any = ":memory:", **options: Any) -> tuple[Destination, list[holdfast.Message]]:
    app, got = Destination(store, **options), []
    app.on(ACTION)(got.append)
    return app, got


# --- source and destination -------------------------------------------------------------------------------------------


async def test_an_attachment_arrives_with_its_body_through_a_bad_network(tmp_path: Path) -> None:
    app, got = collecting()
    async with pair(app, network=lossy(0.4, seed=5), store=tmp_path) as source:
        for _ in range(5):
            await source.send(CLAIM, action=ACTION, attachments=[PHOTO])
        await source.send("<plain/>", action=ACTION)
        await source.flush()
        await app.handled()
    assert [len(one.attachments) for one in got] == [1] * 5 + [0]
    (photo,) = got[0].attachments
    assert (photo.content_id, photo.media_type, photo.size, photo.read()) == ("photo@test", "image/png", 5120, DATA)
    assert got[0].body_bytes == CLAIM.encode()
    with photo.open() as file:
        assert file.read(3) == b"\0\1\2"


async def test_contents_come_from_bytes_paths_and_files_and_get_names() -> None:
    app, got = collecting()
    path = Path(__file__)
    async with pair(app) as source:
        given = [Attachment(b"a"), Attachment(path, "text/x-python"), Attachment(io.BytesIO(b"c"))]
        await source.send("<a/>", action=ACTION, attachments=given)
        await source.flush()
        await app.handled()
    found = [(one.content_id, one.media_type, one.read()) for one in got[0].attachments]
    binary = "application/octet-stream"
    assert found == [
        ("part1@holdfast", binary, b"a"),
        ("part2@holdfast", "text/x-python", path.read_bytes()),
        ("part3@holdfast", binary, b"c"),
    ]
    assert [one.size for one in given] == [1, path.stat().st_size, 1]


async def test_a_reply_has_attachments_and_can_return_those_of_the_request() -> None:
    app = Destination(":memory:")

    @app.on(ACTION)
    def answer(asked: holdfast.Message) -> WithAttachments:
        return WithAttachments(asked.body_bytes, asked.attachments)

    async with pair(app) as source:
        reply = await source.request(CLAIM, action=ACTION, attachments=[PHOTO])
    assert [(one.content_id, one.read()) for one in reply.attachments] == [("photo@test", DATA)]
    assert reply.attachments[0].headers["content-type"] == "image/png"


async def test_a_message_id_stands_for_one_message_with_its_attachments() -> None:
    app, got = collecting()
    async with pair(app) as source:
        for _ in range(2):
            await source.send(CLAIM, action=ACTION, message_id="urn:m", attachments=[PHOTO])
        other = Attachment(b"another", "image/png", "photo@test")
        with pytest.raises(EnvelopeError, match="another message with the MessageID"):
            await source.send(CLAIM, action=ACTION, message_id="urn:m", attachments=[other])
        await source.flush()
        await app.handled()
    assert len(got) == 1


async def test_attachments_are_in_the_stores_of_both_ends(serve: Any, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with Source(f"http://127.0.0.1:{port}/", tmp_path / "outbox") as source:
        await source.send(CLAIM, action=ACTION, attachments=[PHOTO])
        await source.close(0)
    queued = Destination(tmp_path / "inbox")
    await serve(queued, port=port)
    async with Source(None, tmp_path / "outbox") as source:
        await source.flush(60)
    await queued.close()
    app, got = collecting(tmp_path / "inbox")
    await app.start()
    await app.handled()
    await app.close()
    assert [[one.read() for one in message.attachments] for message in got] == [[DATA]]


async def test_a_dead_letter_keeps_its_attachments_and_shows_them(serve: Any) -> None:
    app = Destination(":memory:", handling=HandlingPolicy(attempts=1))
    tries: list[list[bytes]] = []

    @app.on(ACTION)
    def fail(one: holdfast.Message) -> None:
        tries.append([attachment.read() for attachment in one.attachments])
        if len(tries) == 1:
            raise ValueError("not today")

    service = await serve(app)
    async with Source(service.url, ":memory:") as source:
        await source.send(CLAIM, action=ACTION, attachments=[PHOTO])
        await source.flush(60)
    await app.handled()
    async with httpx.AsyncClient(base_url=service.admin_url) as client:
        shown = (await client.get("/dead-letters/0")).json()
        assert shown["attachments"] == [{"content_id": "photo@test", "media_type": "image/png", "bytes": 5120}]
        assert (await client.post("/dead-letters/0/retry")).status_code == 200
    await until(lambda: len(tries) == 2)
    await app.handled()
    assert tries[-1] == [DATA]


# --- what peers post --------------------------------------------------------------------------------------------------


def package(envelope: bytes, *parts: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    heads = [("Content-Type: application/xop+xml\r\nContent-ID: <root>", envelope), *parts]
    body = b"".join(b"--b\r\n%b\r\n\r\n%b\r\n" % (head.encode(), content) for head, content in heads) + b"--b--"
    media = 'multipart/related; type="application/xop+xml"; boundary=b; start="<root>"; start-info="text/xml"'
    return body, {"content-type": media}


async def test_a_package_that_does_not_match_gets_a_fault_that_says_why(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    soap = "http://schemas.xmlsoap.org/soap/envelope/"
    envelope = f'<s:Envelope xmlns:s="{soap}"><s:Body>{CLAIM}</s:Body></s:Envelope>'.encode()
    body, headers = package(envelope)
    async with httpx.AsyncClient() as client:
        answer = await client.post(service.url, content=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (500, content_type(SOAP.V1_1))
        assert "refers to the MIME part &lt;photo@test&gt;, which is missing" in answer.text
        cut = await client.post(service.url, content=body[:-5], headers=headers)
        assert (cut.status_code, "before the last boundary" in cut.text) == (500, True)


async def test_a_repeat_without_its_attachments_is_acknowledged_and_a_new_message_refused(
    serve: Any, peer: Any
) -> None:
    """As Apache CXF repeats messages."""
    app, got = collecting()
    service = await serve(app)
    client = peer(service.url)
    await client.create()
    headers = {"Content-Type": 'multipart/related; type="application/xop+xml"; boundary=b'}

    async def post(number: int, attachments: bytes) -> Any:
        versions = client.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, action=ACTION, to=service.url)
        envelope.sequence, envelope.body = Sequence(client.identifier, number), CLAIM.encode()
        envelope.attachments = attachments
        if not attachments:
            return await client.post(encode(envelope), headers)
        media, body = pack(envelope, encode(envelope))
        return await client.post(body, {**http_headers(versions.soap, ACTION), "Content-Type": media})

    whole = encode_attachments([PHOTO], CLAIM.encode())
    assert (await post(1, whole)).ranges == ((1, 1),)
    assert (await post(1, b"")).ranges == ((1, 1),)
    assert (await post(2, b"")).status == 400
    assert (await post(2, whole)).ranges == ((1, 2),)
    await app.handled()
    assert [len(one.attachments) for one in got] == [1, 1]


@pytest.mark.parametrize("swa", [False, True], ids=["alone", "with other parts"])
async def test_a_message_outside_mtom_whose_attachment_is_missing_is_refused(serve: Any, peer: Any, swa: bool) -> None:
    """XOP has no meaning there, so an acknowledgement would lose the value without a sign."""
    app, got = collecting()
    service = await serve(app)
    client = peer(service.url)
    await client.create()
    versions = client.versions
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, action=ACTION, to=service.url)
    envelope.sequence, envelope.body = Sequence(client.identifier, 1), CLAIM.encode()
    body, media = encode(envelope), content_type(versions.soap)
    if swa:
        root = b"--b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (media.encode(), body)
        body = root + b"--b\r\nContent-Type: text/plain\r\nContent-ID: <other@test>\r\n\r\nx\r\n--b--"
        media = f'multipart/related; type="{media.partition(";")[0]}"; boundary=b'
    answer = await client.post(body, {**http_headers(versions.soap, ACTION), "Content-Type": media})
    assert answer.status == 400 and not got


async def test_a_reply_without_the_attachment_that_its_body_names_is_a_fault() -> None:
    app = Destination(":memory:")
    app.on(ACTION)(lambda message: CLAIM)
    async with pair(app) as source:
        with pytest.raises(holdfast.PeerFault):
            await source.request("<a/>", action=ACTION, timeout=60)


async def test_a_processor_gets_the_envelope_of_a_package(serve: Any) -> None:
    seen: list[bytes] = []

    class Look(holdfast.Processor):
        def inbound(self, context: holdfast.MessageContext) -> None:
            seen.append(context.data)

    app, got = collecting(processors=[Look()])
    service = await serve(app)
    async with Source(service.url, ":memory:") as source:
        await source.send(CLAIM, action=ACTION, attachments=[PHOTO])
        await source.flush(60)
    await app.handled()
    assert len(got) == 1 and all(one.startswith(b"<s:Envelope") for one in seen)


# --- the value itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attachments", "body", "said"),
    [
        ([Attachment(b"", content_id="a"), Attachment(b"", content_id="a")], "<a/>", "the same Content-ID"),
        ([], CLAIM, "<photo@test>, which is missing"),
        ([Attachment(b"")], CLAIM, "<photo@test>, which is missing"),
        ([PHOTO, Attachment(b"")], CLAIM, "no xop:Include element refers"),
    ],
)
async def test_attachments_that_do_not_match_the_body_are_refused_before_they_are_stored(
    attachments: list[Attachment], body: str, said: str
) -> None:
    app, _ = collecting()
    async with pair(app) as source:
        with pytest.raises(EnvelopeError, match=said):
            await source.send(body, action=ACTION, attachments=attachments)


def test_an_attachment_is_checked_when_it_is_made() -> None:
    for arguments in (
        {"media_type": "png"},
        {"media_type": "a/b\r\nc: d"},
        {"content_id": "a b"},
        {"content_id": "<a>"},
    ):
        with pytest.raises(EnvelopeError):
            Attachment(b"", **arguments)
    with pytest.raises(ConfigurationError, match="must be bytes, a path or a binary file"):
        Attachment(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is not an attachment"):
        encode_attachments([b"data"], b"<a/>")  # type: ignore[list-item]


def test_attachments_in_a_record_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.endpoint.envelopes.attachments.MOST_IN_MEMORY", 10)
    encode_attachments([Attachment(b"x" * 10)], b"<a/>")
    with pytest.raises(EnvelopeError, match="several messages"):
        encode_attachments([Attachment(b"x" * 11)], b"<a/>")


def test_the_body_can_be_had_with_its_attachments_inside() -> None:
    one = message(CLAIM, attachments=[Attachment(b"data", content_id="photo@test")])
    assert one.inline_attachments().findtext("photo") == "ZGF0YQ=="
    assert one.body.findtext("photo") is None or one.body.find("photo")[0] is not None


def test_a_body_whose_attachment_is_missing_cannot_be_had_with_it_inside() -> None:
    with pytest.raises(EnvelopeError, match="<photo@test>, which is missing"):
        message(CLAIM).inline_attachments()


def test_what_operators_see_of_attachments() -> None:
    assert describe_attachments(b"") == []
    assert describe_attachments(encode_attachments([Attachment(b"abc")], b"<a/>")) == [
        {"content_id": "part1@holdfast", "media_type": "application/octet-stream", "bytes": 3}
    ]
