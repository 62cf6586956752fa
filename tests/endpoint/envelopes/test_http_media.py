"""What an endpoint takes for a SOAP message: the media types of honest stacks, and none that a web page can send."""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx
import pytest

from holdfast import Destination, DestinationHTTP, Source, SourceHTTP
from holdfast.endpoint.envelopes.http_media import TAKEN
from holdfast.http.exchange import HTTPLimits
from holdfast.wire import decode

HONEST = [
    "text/xml; charset=utf-8",
    'text/xml; charset="utf-8"',
    "text/xml;charset=UTF-8",
    "Text/XML ; Charset='utf-8'",
    "application/soap+xml; charset=utf-8",
    'application/soap+xml; charset=UTF-8; action="urn:a;b,c"',
    "application/soap+xml;action=urn:a;charset=utf-8",
    "application/xml",
]
FROM_PAGES = [
    "text/plain",
    "text/plain; charset=utf-8; application/soap+xml",
    "text/plain, text/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=text/xml",
    None,
]
ENVELOPE = b'<e:Envelope xmlns:e="http://www.w3.org/2003/05/soap-envelope"><e:Body/></e:Envelope>'


async def post(url: str, content_type: str | None, content: bytes = ENVELOPE) -> tuple[int, str, Any]:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    skip = () if content_type is not None else ("Content-Type",)
    async with aiohttp.ClientSession(skip_auto_headers=skip) as session:
        async with session.post(url, data=content, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers


@pytest.mark.parametrize("content_type", HONEST)
async def test_media_types_that_honest_stacks_send_are_read(serve: Any, content_type: str) -> None:
    service = await serve(Destination(":memory:"))
    status, text, _ = await post(service.url, content_type)
    assert status != 415
    assert "Envelope" in text


@pytest.mark.parametrize("content_type", FROM_PAGES)
async def test_what_a_web_page_can_post_without_asking_is_415_and_says_what_is_taken(
    serve: Any, content_type: str | None
) -> None:
    app = Destination(":memory:")
    service = await serve(app)
    status, text, headers = await post(service.url, content_type)
    assert status == 415
    assert headers["Accept"].encode() == b", ".join(TAKEN)
    assert "application/soap+xml" in text
    assert app.incidents == {}


async def test_a_message_with_attachments_is_read_and_what_is_wrong_with_it_said(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    mtom = 'multipart/related; type="application/xop+xml"; boundary="b"; start-info="application/soap+xml"'
    status, text, _ = await post(service.url, mtom)
    assert status == 500 and "WSRMRequired" in text  # a bare envelope is read
    status, text, _ = await post(service.url, 'multipart/related; type="text/xml"')
    assert status == 500 and "WSRMRequired" in text
    status, text, _ = await post(service.url, "multipart/related", b"--b")
    assert status == 500 and "has no boundary" in text


async def test_a_browsers_question_before_a_post_gets_no_permission(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with aiohttp.ClientSession() as session, session.options(service.url, headers=asked) as answer:
        assert answer.status == 405
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_the_same_is_refused_under_asgi() -> None:
    app = Destination(":memory:")
    async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as peer:
        for content_type in FROM_PAGES:
            headers = {"Content-Type": content_type} if content_type is not None else {}
            assert (await peer.post("/", content=ENVELOPE, headers=headers)).status_code == 415
        assert (await peer.post("/", content=ENVELOPE, headers={"Content-Type": HONEST[5]})).status_code != 415


async def test_a_sources_own_listener_refuses_it_too(serve: Any) -> None:
    service = await serve(Destination(":memory:"))
    async with Source(service.url, ":memory:", http=SourceHTTP(listen=("127.0.0.1", 0))) as source:
        assert source._running.server is not None
        url = f"http://127.0.0.1:{source._running.server.port}/"
        assert (await post(url, "text/plain"))[0] == 415
        assert (await post(url, "text/xml"))[0] != 415


TOO_LARGE = ENVELOPE + b" " * 3000
LARGE = [("text/xml", 500), ("application/soap+xml", 413), ("text/plain", 413)]


@pytest.mark.parametrize(("media", "status"), LARGE)
async def test_a_message_too_large_is_answered_with_a_fault_and_logged_with_the_peer(
    serve: Any, caplog: pytest.LogCaptureFixture, media: str, status: int
) -> None:
    caplog.set_level("INFO", "holdfast")
    service = await serve(Destination(":memory:"), limits=HTTPLimits(max_body=2000))
    async with httpx.AsyncClient() as peer:
        answer = await peer.post(service.url, content=TOO_LARGE, headers={"Content-Type": media})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (status, media)
    if media != "text/plain":
        fault = decode(answer.content).fault
        assert fault is not None and fault.sender and "larger than this endpoint accepts" in fault.reason
    (line,) = [one for one in caplog.messages if "request.refused" in one]
    assert "status=413" in line and "peer='127.0.0.1:" in line


@pytest.mark.parametrize(("media", "status"), LARGE)
async def test_so_it_is_under_asgi(media: str, status: int) -> None:
    app = Destination(":memory:", http=DestinationHTTP(limits=HTTPLimits(max_body=2000)))
    async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as peer:
        answer = await peer.post("/", content=TOO_LARGE, headers={"Content-Type": media})
    assert (answer.status_code, b"Envelope" in answer.content) == (status, media != "text/plain")


async def test_a_media_type_that_is_refused_is_logged_with_the_peer(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast")
    service = await serve(Destination(":memory:"))
    await post(service.url, "application/json")
    (line,) = [one for one in caplog.messages if "request.refused" in one]
    assert "status=415" in line and "application/json" in line and "peer='127.0.0.1:" in line


DECLARED = b'<?xml version="1.0" encoding="%b"?>'


@pytest.mark.parametrize(
    ("charset", "content"),
    [
        ("utf-8", DECLARED % b"iso-8859-1" + ENVELOPE),
        ("iso-8859-1", DECLARED % b"UTF-8" + ENVELOPE),
        ("utf-16", DECLARED % b"utf-8" + ENVELOPE),
        ("utf-8", ENVELOPE.decode().encode("utf-16")),
        ("iso-8859-1", b"\xef\xbb\xbf" + ENVELOPE),
        ("unheard-of", DECLARED % b"utf-8" + ENVELOPE),
    ],
)
async def test_a_charset_that_contradicts_the_message_is_415(serve: Any, charset: str, content: bytes) -> None:
    service = await serve(Destination(":memory:"))
    for media in (f"text/xml; charset={charset}", f'application/soap+xml; charset="{charset}"'):
        status, text, _ = await post(service.url, media, content)
        assert status == 415
        assert f"The charset of the Content-Type is {charset}, but the message is in" in text


@pytest.mark.parametrize(
    ("charset", "content"),
    [
        ("utf-8", DECLARED % b"UTF-8" + ENVELOPE),
        ("us-ascii", DECLARED % b"utf-8" + ENVELOPE),
        ("latin1", DECLARED % b"iso-8859-1" + ENVELOPE),
        ("utf-16", ENVELOPE.decode().encode("utf-16")),
        ("utf-16le", b"\xff\xfe" + ENVELOPE.decode().encode("utf-16-le")),
        ("utf-8", b"\xef\xbb\xbf" + ENVELOPE),
        ("iso-8859-1", ENVELOPE),
    ],
)
async def test_a_charset_that_agrees_with_the_message_is_read(serve: Any, charset: str, content: bytes) -> None:
    service = await serve(Destination(":memory:"))
    status, text, _ = await post(service.url, f"text/xml; charset={charset}", content)
    assert status != 415
    assert "Envelope" in text
