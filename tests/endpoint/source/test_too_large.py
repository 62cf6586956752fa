"""A reply that this side can never read ends its request, and nothing else.

Covers endpoint/envelopes/head_spool.py.
"""

from __future__ import annotations

import asyncio
from base64 import encodebytes
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from quopri import encodestring
from typing import Any
from urllib.parse import urlsplit

import pytest
from large_posts import MEDIA, announced, forged
from signers import authority, issue
from waiting import until

from holdfast import (
    X509,
    Attachment,
    DeliveryError,
    Destination,
    DestinationHTTP,
    Message,
    MessageContext,
    PeerFault,
    Processor,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
    WithAttachments,
)
from holdfast.core.messages import Envelope
from holdfast.core.origin import secret_in
from holdfast.core.policy import PollingPolicy
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange, HTTPLimits
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports
from holdfast.wire import encode
from holdfast.wire.attachments.mime import Splitter, media_type
from holdfast.wire.limits import Limits

MOST = 16 * 1024 * 1024
LARGE = b"<a>" + b"x" * MOST + b"</a>"
DEEP = b"<a>" * 100 + b"</a>" * 100
ROOMY = DestinationHTTP(envelopes=Limits(max_bytes=4 * MOST), allow_addresses=["http://127.0.0.1"])
"""Of a service that permits larger replies than a source accepts."""


class Deepening(Processor):
    """A service that nests elements deeper than a source accepts. Its own check would refuse the handler's reply."""

    def outbound(self, context: MessageContext) -> None:
        context.envelope.body = context.envelope.body.replace(b"<deep/>", DEEP)


def service(processors: Sequence[Processor] = (), **settings: Any) -> tuple[Destination, list[str]]:
    app = Destination(store=":memory:", processors=[Deepening(), *processors], **settings)
    handled = list[str]()

    @app.on("urn:large")
    async def large(message: Message) -> bytes:
        handled.append(message.action)
        return LARGE

    @app.on("urn:package")
    async def package(message: Message) -> WithAttachments:
        return WithAttachments(LARGE, [Attachment(b"photo", "image/png", "photo@test")])

    @app.on("urn:deep")
    async def deep(message: Message) -> bytes:
        return b"<deep/>"

    @app.on("urn:small")
    async def small(message: Message) -> bytes:
        handled.append(message.action)
        return b"<small/>"

    return app, handled


ANONYMOUS, POLL = SourceHTTP(), SourceHTTP(poll=True)
LISTEN = SourceHTTP(listen=("127.0.0.1", 0))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("http", "rm", "soap", "offer"),
    [
        *((http, rm, "1.2", offer) for http in (ANONYMOUS, LISTEN) for rm in ("1.0", "1.1") for offer in (True, False)),
        *((POLL, "1.1", soap, True) for soap in ("1.1", "1.2")),
    ],
    ids=lambda value: {id(POLL): "poll", id(LISTEN): "listen", id(ANONYMOUS): "anonymous"}.get(id(value)),
)
async def test_a_reply_that_is_too_large_ends_its_request_alone(
    serve: Any, tmp_path: Path, http: SourceHTTP, rm: str, soap: str, offer: bool
) -> None:
    app, handled = service(http=ROOMY)
    url = (await serve(app)).url
    versions = Versions(rm=rm, soap=soap)
    # By default, a source polls an idle Sequence of replies every ten seconds.
    policy = SourcePolicy(polling=PollingPolicy(cap=0.5))
    own: dict[str, Any] = {"http": http, "versions": versions, "offer": offer, "policy": policy}
    async with Source(url, tmp_path / "out", **own) as source:
        with pytest.raises(DeliveryError, match="too large") as caught:
            await source.request("<a/>", action="urn:large", timeout=60)
        assert "mtom=True" in str(caught.value)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
        assert handled == ["urn:large", "urn:small"]
        assert not source.progress.outstanding
        if http is not ANONYMOUS:
            # Both replies count as received: their source has nothing to retransmit.
            outboxes = app.running.engine.protocol.outbound.outboxes.values()
            await until(lambda: all(outbox.records.is_empty for outbox in outboxes))
    async with asyncio.timeout(60), Source(url, tmp_path / "out", **own) as source:
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
    assert handled == ["urn:large", "urn:small", "urn:small"], "and the next process does not repeat it"


@pytest.mark.parametrize("http", [ANONYMOUS, LISTEN, POLL], ids=["anonymous", "listen", "poll"])
@pytest.mark.parametrize("action", ["urn:package", "urn:deep"])
async def test_a_reply_beyond_another_limit_ends_its_request_alone(serve: Any, http: SourceHTTP, action: str) -> None:
    app, _ = service(http=ROOMY)
    async with Source((await serve(app)).url, ":memory:", http=http) as source:
        with pytest.raises(DeliveryError, match=r"bytes|deeper"):
            await source.request("<a/>", action=action, timeout=60)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
        assert not source.progress.outstanding


def rearranged(media: str, content: bytes, encoding: str, place: int) -> tuple[str, bytes]:
    """Return a message with its envelope at another place among the parts, in a Content-Transfer-Encoding."""
    if not media.startswith("multipart/related"):
        return media, content
    kind, parameters = media_type(media)
    splitter = Splitter(parameters["boundary"].encode(), 10, 1000)
    splitter.feed(content)
    root, *others = [(one.headers, content[one.start : one.end]) for one in splitter.close()]
    lines = [
        line for line in root[0].split(b"\r\n") if b"-id:" not in line.lower() and b"-encoding:" not in line.lower()
    ]
    headers = b"\r\n".join([*lines, b"Content-ID: <the root>", b"Content-Transfer-Encoding: " + encoding.encode()])
    written = {"base64": encodebytes, "quoted-printable": encodestring, "binary": bytes}[encoding](root[1])
    others.insert(place, (headers, written))
    parts = b"".join(b"--of proxy\r\n%b\r\n\r\n%b\r\n" % one for one in others)
    of_root = "".join(f'; {name}="{parameters[name]}"' for name in ("type", "start-info") if name in parameters)
    return f'{kind}; boundary="of proxy"; start="<the root>"{of_root}', parts + b"--of proxy--"


@pytest.fixture
async def rearranging() -> AsyncIterator[Callable[[Callable[[], str], str, int], Awaitable[str]]]:
    """Starts proxies that rearrange the messages of both directions, and returns their URLs."""
    servers, tasks = list[HTTPServer](), set[asyncio.Task[None]]()
    async with HTTPClient(max_response=4 * MOST) as client:

        async def start(behind: Callable[[], str], encoding: str, place: int) -> str:
            async def answer(exchange: Exchange) -> None:
                request = exchange.request
                media, content = rearranged(request.headers[b"content-type"].decode(), request.body, encoding, place)
                query = request.target.partition("?")[2]
                response = await client.fetch("POST", f"{behind()}?{query}", content, {"Content-Type": media})
                media, content = rearranged(response.content_type, response.body, encoding, place)
                exchange.respond(response.status, content, media.encode())

            def handle(exchange: Exchange) -> None:
                tasks.add(asyncio.ensure_future(answer(exchange)))

            server = HTTPServer()
            servers.append(server)
            limits = HTTPLimits(max_body=4 * MOST, max_buffered=16 * MOST)
            await server.start(handle, "127.0.0.1", 0, limits=limits)
            return f"http://127.0.0.1:{server.port}/"

        yield start
        for server in servers:
            await server.close()
        await asyncio.wait(tasks)


@pytest.mark.parametrize(
    ("encoding", "place"),
    [
        ("binary", 1),
        ("base64", 0),
        pytest.param("base64", 1, marks=pytest.mark.nightly),
        pytest.param("quoted-printable", 1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "way", [*(pytest.param(one, marks=pytest.mark.nightly) for one in ("anonymous", "poll")), "listen"]
)
async def test_the_envelope_of_a_large_reply_may_be_any_part_in_any_encoding(
    serve: Any, rearranging: Any, encoding: str, place: int, way: str
) -> None:
    """RFC 2387: the parameter ``start`` names the envelope. Its request would be repeated without end."""
    app, _ = service(http=ROOMY)
    behind = url = (await serve(app)).url
    if way == "listen":
        (port,) = free_ports(1)
        address = await rearranging(lambda: f"http://127.0.0.1:{port}/", encoding, place)
        http = SourceHTTP(listen=("127.0.0.1", port), address=address)
    else:
        http = {"anonymous": ANONYMOUS, "poll": POLL}[way]
        url = await rearranging(lambda: behind, encoding, place)
    async with Source(url, ":memory:", http=http) as source:
        with pytest.raises(DeliveryError, match="too large"):
            await source.request("<a/>", action="urn:package", timeout=60)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
        assert not source.progress.outstanding


async def test_a_destination_refuses_a_reply_that_clients_cannot_receive(serve: Any, tmp_path: Path) -> None:
    app, handled = service()
    async with Source((await serve(app)).url, store=tmp_path / "out") as source:
        with pytest.raises(PeerFault):
            await source.request("<a/>", action="urn:large", timeout=60)
        assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
    assert handled == ["urn:large", "urn:small"]
    assert app.dead_letters == 1


async def test_a_large_message_at_a_listener_that_is_no_reply_is_refused(serve: Any) -> None:
    app, _ = service(http=ROOMY)
    url = (await serve(app)).url
    async with Source(url, ":memory:", http=LISTEN) as source, HTTPClient() as client:
        await source.request("<a/>", action="urn:small", timeout=60)
        (address,) = {outbox.to for outbox in app.running.engine.protocol.outbound.outboxes.values()}
        assert address is not None and secret_in(address)
        told = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, "urn:told", body=LARGE)
        for content in (encode(told), b"<a>" + LARGE, LARGE):
            for to in (address, source._opened.calls.local):
                response = await client.fetch("POST", to, content, {"Content-Type": "application/soap+xml"})
                assert response.status == 413
                assert b"larger than this endpoint accepts" in response.body
        split, content = urlsplit(address), encode(told)
        reader, writer = await asyncio.open_connection(split.hostname, split.port)
        head = f"POST {split.path}?{split.query} HTTP/1.1\r\nHost: h\r\nContent-Type: application/soap+xml\r\n"
        head += f"Transfer-Encoding: chunked\r\n\r\n{len(content):x}\r\n"
        writer.write(head.encode() + content + b"\r\n0\r\n\r\n")
        assert b" 413 " in await reader.readline(), "its size is not declared"
        writer.close()
        reply = await source.request("<a/>", action="urn:small", timeout=60)
        assert reply.body_bytes == b"<small/>"


async def test_only_an_address_that_a_peer_was_given_takes_more_than_the_limit(serve: Any, tmp_path: Path) -> None:
    """A stranger may not make this side read and drop gigabytes. The secrets are known after a restart, too."""
    app, _ = service(http=ROOMY)
    url, (port,) = (await serve(app)).url, free_ports(1)
    http = SourceHTTP(listen=("127.0.0.1", port))
    for _ in range(2):
        async with Source(url, tmp_path / "out", http=http) as source:
            await source.request("<a/>", action="urn:small", timeout=60)
            (address,) = {outbox.to for outbox in app.running.engine.protocol.outbound.outboxes.values()}
            assert address is not None and secret_in(address)
            for media in MEDIA:
                assert await announced(address, media) == 100
                for other in forged(address):
                    assert await announced(other, media) == 413, other


@pytest.mark.parametrize("http", [ANONYMOUS, POLL], ids=["anonymous", "poll"])
async def test_the_size_of_a_large_reply_need_not_be_declared(serve: Any, http: SourceHTTP) -> None:
    """Java servers send large answers in chunks."""
    app, _ = service(http=ROOMY)
    behind = (await serve(app)).url

    async def answer(client: HTTPClient, exchange: Exchange) -> None:
        fields = {"Content-Type": exchange.request.headers[b"content-type"].decode()}
        response = await client.fetch("POST", behind, exchange.request.body, fields)
        exchange.start(response.status, response.content_type.encode())
        exchange.write(response.body)
        exchange.finish()

    server, tasks = HTTPServer(), set[asyncio.Task[None]]()
    async with HTTPClient(max_response=4 * MOST) as client:

        def handle(exchange: Exchange) -> None:
            tasks.add(asyncio.ensure_future(answer(client, exchange)))

        await server.start(handle, "127.0.0.1", 0)
        async with Source(f"http://127.0.0.1:{server.port}/", ":memory:", http=http) as source:
            with pytest.raises(DeliveryError, match="too large"):
                await source.request("<a/>", action="urn:large", timeout=60)
            reply = await source.request("<a/>", action="urn:small", timeout=60)
            assert reply.body_bytes == b"<small/>"
        await server.close()
        await asyncio.wait(tasks)


SIGNED = (issue("CN=shop,O=Example", authority()), issue("CN=caller,O=Example", authority()))


def signing(directory: Path, which: int, **options: Any) -> X509:
    return X509(*SIGNED[which].files(directory), trusted=[authority().files(directory).certificate], **options)


@pytest.mark.parametrize("http", [ANONYMOUS, POLL, LISTEN], ids=["anonymous", "poll", "listen"])
async def test_a_large_reply_that_nothing_proves_ends_its_request_alone(
    serve: Any, tmp_path: Path, http: SourceHTTP
) -> None:
    """A signature covers the Body, so nothing shows who sent the headers of a reply that is too large."""
    app, handled = service(http=ROOMY, processors=[signing(tmp_path, 0)])
    url = (await serve(app)).url
    caller = signing(tmp_path, 1, subjects=["CN=shop,O=Example"])
    async with Source(url, tmp_path / "out", http=http, processors=[caller]) as source:
        with pytest.raises(DeliveryError, match="too large") as caught:
            await source.request("<a/>", action="urn:large", timeout=60)
        assert "mtom=True" in str(caught.value)
        for _ in range(2):
            assert (await source.request("<a/>", action="urn:small", timeout=60)).body_bytes == b"<small/>"
        assert handled == ["urn:large", *["urn:small"] * 2]
        assert not source.progress.outstanding
