"""The same handler inside an ASGI server: Starlette through httpx, and ASGI messages given by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from waiting import until

from holdfast import Destination, DestinationHTTP
from holdfast.http.content_spool import SPOOL_FROM
from holdfast.http.exchange import Exchange, Handler, HTTPLimits, Request
from holdfast.http.server.asgi import HIGH_WATER, Buffered, serve_asgi

App = Callable[[Any, Any, Any], Any]


def app(handler: Handler, **limits: Any) -> App:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await serve_asgi(handler, scope, receive, send, HTTPLimits(**limits))

    return serve


def client(served: App, scheme: str = "http") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url=f"{scheme}://here")


def echo(exchange: Exchange) -> None:
    exchange.respond(200, exchange.request.target.encode() + b" " + exchange.request.body, b"text/plain")


async def test_a_request_below_a_mount_point_is_the_same_request() -> None:
    seen: list[Request] = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request)
        exchange.respond(202, headers=[(b"X-More", b"1")])

    mounted = Starlette(routes=[Mount("/api", routes=[Mount("/rm", app=app(handler))])])
    async with client(mounted, "https") as peer:
        answer = await peer.post("/api/rm/a%20b?q=1", content=b"<e/>", headers={"SOAPAction": '"urn:a"'})
    assert (answer.status_code, answer.content, answer.headers["x-more"]) == (202, b"", "1")
    assert answer.headers["content-length"] == "0"
    (request,) = seen
    assert (request.method, request.target, request.body) == ("POST", "/a%20b?q=1", b"<e/>")
    assert request.headers[b"soapaction"] == b'"urn:a"'
    assert request.peer == "127.0.0.1:123"
    assert request.secure


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ({"path": "/rm/x", "root_path": "/rm", "raw_path": b"/rm/x"}, "/x"),
        ({"path": "/x", "root_path": "/rm"}, "/x"),
        ({"path": "/rm", "root_path": "/rm"}, "/"),
        ({"path": "/rmx", "root_path": "/rm"}, "/rmx"),
        ({"path": "/ä", "query_string": b"a=%20"}, "/%C3%A4?a=%20"),
    ],
)
async def test_the_target_is_relative_to_the_mount_point(scope: dict[str, Any], target: str) -> None:
    wire = Wire(scope, b"")
    await wire.run(echo)
    assert wire.body == target.encode() + b" "


async def test_an_answer_may_come_later() -> None:
    waiting: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        asyncio.get_running_loop().call_soon(exchange.respond, 200, b"later")

    async with client(app(handler)) as peer:
        assert (await peer.post("/", content=b"x")).content == b"later"
    with pytest.raises(RuntimeError, match="already been answered"):
        waiting[0].respond(200)


async def test_a_disconnect_before_the_answer_is_reported_once() -> None:
    gone: list[bool] = []
    waiting: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        exchange.on_close = lambda: gone.append(True)

    wire = Wire({}, b"x")
    serving = asyncio.create_task(wire.run(handler))
    while not waiting:
        await asyncio.sleep(0)
    wire.disconnect()
    await serving
    assert gone == [True]
    assert waiting[0].closed
    waiting[0].respond(200)
    waiting[0].start(200)
    assert waiting[0].write(b"x")
    waiting[0].finish()
    assert wire.sent == []


async def test_a_disconnect_within_the_content_hands_nothing_over() -> None:
    wire = Wire({}, b"half", more=True)
    wire.disconnect()
    await wire.run(echo)
    assert wire.sent == []


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"x" * 11, 413),
        ({"content-length": "11"}, b"", 413),
        ({"content-length": "ten"}, b"", 400),
        ({"content-length": "9" * 5_000}, b"", 413),
        ({"content-encoding": "gzip"}, b"x", 415),
    ],
)
async def test_a_request_that_is_not_handed_over_is_told_why(headers: dict[str, str], body: bytes, status: int) -> None:
    def handler(exchange: Exchange) -> None:
        raise AssertionError("it was handed over")

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    wire = Wire({"headers": lines}, body)
    await wire.run(handler, max_body=10)
    assert wire.sent[0]["status"] == status
    assert wire.body.endswith(b"\n")


async def test_a_content_that_takes_too_long_is_refused() -> None:
    wire = Wire({}, b"half", more=True)
    await wire.run(echo, body_timeout=0.01)
    assert wire.sent[0]["status"] == 408


async def test_a_handler_that_takes_too_long_is_answered_for() -> None:
    waiting: list[Exchange] = []
    told: list[bool] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        exchange.on_close = lambda: told.append(True)

    async with client(app(handler, response_timeout=0.01)) as peer:
        assert (await peer.post("/", content=b"x")).status_code == 503
    waiting[0].respond(200)  # too late, and harmless
    assert told == [True]


async def test_a_handler_that_raises_is_a_500() -> None:
    def handler(exchange: Exchange) -> None:
        raise ZeroDivisionError

    async with client(app(handler)) as peer:
        assert (await peer.post("/", content=b"x")).status_code == 500


async def test_a_handler_that_raises_within_its_answer_is_cut_off() -> None:
    gone: list[bool] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_close = lambda: gone.append(True)
        exchange.start(200)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Wire({}, b"x").run(handler)
    assert gone == [True]


async def test_an_answer_in_pieces_waits_for_a_slow_peer() -> None:
    tasks: list[asyncio.Task[int]] = []

    async def stream(exchange: Exchange) -> int:
        waits = 0
        exchange.start(200, b"application/x-ndjson")
        for _ in range(10):
            if not exchange.write(b"x" * HIGH_WATER):
                waits += 1
                await exchange.drain()
        exchange.finish()
        with pytest.raises(RuntimeError):
            exchange.write(b"more")
        return waits

    def handler(exchange: Exchange) -> None:
        with pytest.raises(RuntimeError):
            exchange.finish()
        tasks.append(asyncio.ensure_future(stream(exchange)))

    async with client(app(handler)) as peer:
        answer = await peer.post("/", content=b"x")
    assert answer.content == b"x" * (10 * HIGH_WATER)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert await tasks[0] == 10


async def test_head_has_no_content_but_its_length() -> None:
    wire = Wire({"method": "HEAD"}, b"")
    await wire.run(echo)
    assert wire.body == b""
    assert (b"content-length", b"2") in wire.sent[0]["headers"]


async def test_only_http_is_served() -> None:
    with pytest.raises(ValueError, match="websocket"):
        await Wire({"type": "websocket"}, b"").run(echo)


async def test_a_header_cannot_smuggle_a_line() -> None:
    def handler(exchange: Exchange) -> None:
        with pytest.raises(ValueError, match="line break"):
            exchange.respond(200, headers=[(b"X", b"1\r\nY: 2")])
        exchange.respond(204)

    wire = Wire({}, b"")
    await wire.run(handler)
    assert wire.sent[0] == {"type": "http.response.start", "status": 204, "headers": []}


class Wire:
    """ASGI's two ends, in memory."""

    def __init__(self, scope: dict[str, Any], body: bytes, *, more: bool = False) -> None:
        self.scope = {"type": "http", "method": "POST", "path": "/", "headers": [], **scope}
        self.sent: list[Any] = []
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def run(self, handler: Handler, buffered: Buffered | None = None, **limits: Any) -> None:
        async def send(message: Any) -> None:
            self.sent.append(message)

        await serve_asgi(handler, self.scope, self._messages.get, send, HTTPLimits(**limits), buffered)


async def test_all_requests_together_hold_no_more_than_the_limit_and_give_it_back() -> None:
    waiting: list[Exchange] = []
    buffered = Buffered(1000)
    first, second, declared = Wire({}, b"x" * 600), Wire({}, b"y" * 600), Wire({}, b"")
    declared.scope["headers"] = [(b"content-length", b"600")]
    serving = asyncio.ensure_future(first.run(waiting.append, buffered))
    await until(lambda: bool(waiting))
    assert buffered.held == 600
    for refused in (second, declared):
        await refused.run(waiting.append, buffered)
        start = refused.sent[0]
        assert start["status"] == 503 and dict(start["headers"])[b"retry-after"] in (b"1", b"2", b"3")
    assert (len(waiting), buffered.held) == (1, 600)
    waiting[0].respond(200)
    await serving
    assert buffered.held == 0
    await Wire({}, b"y" * 600).run(echo, buffered)
    assert buffered.held == 0


@pytest.mark.parametrize("how", ["it goes away", "it is too large", "it takes too long", "the handler fails"])
async def test_what_was_held_is_given_back_however_a_request_ends(how: str) -> None:
    buffered = Buffered(1000)
    wire = Wire({}, b"x" * 500, more=how != "the handler fails")
    if how == "it goes away":
        wire.disconnect()

    def handler(exchange: Exchange) -> None:
        raise ValueError("a handler's mistake")

    await wire.run(handler, buffered, max_body=100 if how == "it is too large" else 1000, body_timeout=0.01)
    assert buffered.held == 0


async def test_a_destination_keeps_max_buffered_under_asgi() -> None:
    app = Destination(":memory:", http=DestinationHTTP(limits=HTTPLimits(max_body=1000, max_buffered=1000)))
    headers = [(b"content-type", b"text/xml")]
    held = Wire({"headers": headers}, b"x" * 800, more=True)
    async with app.lifespan():
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        first = asyncio.ensure_future(app(held.scope, held._messages.get, send))
        await until(lambda: app._buffered.held == 800)
        second = Wire({"headers": headers}, b"y" * 800)
        await app(second.scope, second._messages.get, send)
        assert sent[0]["status"] == 503
        held.disconnect()
        await first
        assert app._buffered.held == 0


class Kept:
    """A spool that keeps what it is given, and notes the largest piece that waited."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.content = b""
        self.waiting: list[bytes] = []
        self.most = 0
        self.is_full = False
        self.begins_at = SPOOL_FROM
        self.drops_up_to = 0
        self._room = room

    def add(self, data: bytes) -> None:
        self.waiting.append(data)
        self.most = max(self.most, sum(map(len, self.waiting)))

    def drop(self) -> None:
        self.is_dropped = True

    @property
    def wants_flush(self) -> bool:
        return sum(map(len, self.waiting)) >= 1 << 18

    def flush(self) -> None:
        self.content += b"".join(self.waiting)
        self.waiting.clear()
        self.is_full = len(self.content) > self._room


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_large_content_goes_to_the_spool_while_it_arrives(is_declared: bool) -> None:
    given, seen = bytes(range(256)) * 256 * 80, []
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    if is_declared:
        scope["headers"] = [(b"content-length", b"%d" % len(given))]
    buffered, spool = Buffered(2 << 20), Kept()

    def handler(exchange: Exchange) -> None:
        assert exchange.request.spool is spool
        seen.append(buffered.held)
        spool.flush()
        exchange.respond(204)

    told = await _given(handler, scope, given, buffered, spool)
    assert (told["status"], spool.content == given) == (204, True)
    assert spool.most < 3 << 20
    assert max(seen) <= 1 << 20  # what came before it was spooled
    assert buffered.held == 0


async def _given(handler: Handler, scope: Any, given: bytes, buffered: Buffered, spool: Kept, **limits: int) -> Any:
    """Serve a request with this content in pieces, and return the start of its answer."""
    pieces, answer = [given[at : at + 65536] for at in range(0, len(given), 65536)], []

    async def receive() -> Any:
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": len(pieces) > 0}

    async def send(message: Any) -> None:
        answer.append(message)

    await serve_asgi(
        handler,
        scope,
        receive,
        send,
        HTTPLimits(**limits),
        buffered,
        spooling=lambda _target, _headers: spool,  # type: ignore[arg-type]
    )
    return answer[0]


async def test_a_spooled_content_has_its_own_limit_and_a_full_disk_is_503() -> None:
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    limits = {"max_body": 1 << 20, "max_attachments": 4 << 20}
    for size, room, status in ((3 << 20, 1 << 30, 200), (5 << 20, 1 << 30, 413), (3 << 20, 1 << 20, 503)):
        spool = Kept(room)
        told = await _given(echo, scope, b"a" * size, Buffered(8 << 20), spool, **limits)
        assert told["status"] == status
    declared = scope | {"headers": [(b"content-length", b"%d" % (5 << 20))]}
    assert (await _given(echo, declared, b"", Buffered(8 << 20), Kept(), **limits))["status"] == 413
