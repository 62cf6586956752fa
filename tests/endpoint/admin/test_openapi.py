"""The description of the admin listener: valid, whole, and true, also of requests that make no sense."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from admin_client import ACTION, Client
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from holdfast import Destination
from holdfast.core.events import Handle
from holdfast.core.handling.running_handlers import RunningHandlers
from holdfast.core.records import Record
from holdfast.endpoint.admin.routes import LARGEST_BODY, plain_path


@pytest.fixture
async def admin(serve: Any) -> AsyncIterator[Client]:
    app = Destination(":memory:", partitions=2, queues={"inbox": None, "orders": None})
    app.on(ACTION)(lambda message: None)
    service = await serve(app)
    async with aiohttp.ClientSession() as session:
        yield Client(session, service.admin_url, service)


async def test_the_description_is_valid_openapi_and_has_every_route(admin: Client) -> None:
    status, document = await admin.ask("/openapi.json")
    assert status == 200
    validate(document, cls=OpenAPIV31SpecValidator)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    table = admin.service._admin.routes.table
    assert len(described) == len(table)
    for route in table:
        assert (route.method, f"/{plain_path(route.path)}") in described
    identifiers = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(identifiers)) == len(identifiers)


async def test_what_needs_a_token_says_so(admin: Client) -> None:
    _, document = await admin.ask("/openapi.json")
    assert "security" not in document["paths"]["/sequences"]["get"], "this listener has none"
    admin.service._admin.guard._token = b"t"
    assert (await admin.ask("/openapi.json"))[0] == 401
    _, document = await admin.ask("/openapi.json", headers={"Authorization": "Bearer t"})
    assert document["paths"]["/sequences"]["get"]["security"] == [{"token": []}]
    assert "security" not in document["paths"]["/readyz"]["get"]
    for path in ("/healthz", "/readyz"):
        assert (await admin.ask(path))[0] == 200


async def test_handlers_that_all_hang_are_reported_and_do_not_make_it_unready(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handling = admin.app.running.engine.protocol.handling
    assert handling is not None
    record = Record("urn:s", 7, "urn:a", b"<m/>", 0.0)
    monkeypatch.setattr(handling, "started", RunningHandlers(1))
    handle, now = Handle("inbox", 0, 0, record, 1), admin.app.running.engine.clock()
    handling.started.begin(handle, now - 90)
    assert await admin.ask("/readyz") == (200, {"status": "ready"})
    handling.started.pump(now)
    status, answer = await admin.ask("/readyz")
    assert (status, answer["status"], answer["handlers"][:42]) == (
        200,
        "ready",
        "all 1 handlers are busy, the oldest for 90",
    )
    handling.started.end(handle, now)
    assert await admin.ask("/readyz") == (200, {"status": "ready"})


async def test_it_is_ready_until_it_is_stopped(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await admin.ask("/readyz") == (200, {"status": "ready"})
    admin.service._admin.is_draining = True
    status, answer = await admin.ask("/readyz")
    assert (status, bool(answer["remedy"])) == (503, True)
    assert (await admin.ask("/healthz"))[0] == 200, "it is well: a watcher is not to kill it"
    admin.service._admin.is_draining = False
    monkeypatch.setattr(admin.app.running.engine, "failure", OSError("no space left"))
    assert (await admin.ask("/readyz"))[0] == 503
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/sequences?limt=3", b"", 400, "unknown field `limt`"),
        ("GET", "/sequences?limit=0", b"", 400, ">= 1"),
        ("GET", "/sequences?limit=" + "9" * 5000, b"", 400, "limit"),
        ("GET", "/sequences?role=both", b"", 400, "role"),
        ("POST", "/next-positions", b'{"queues": {}, "wait": "soon"}', 400, "wait"),
        ("POST", "/next-positions", b'{"queues": {}, "wait": -1}', 400, "wait"),
        ("POST", "/next-positions", b'{"queues": {}, "most": 0}', 400, "most"),
        ("POST", "/next-positions", b'{"queues": {"inbox": {"epoch": "x"}}}', 409, "epoch"),
        ("POST", "/next-positions", b'{"queues": {"inbox": {"epoch": "x", "offsets": {"0": 1e300}}}}', 400, "offsets"),
        ("GET", "/queues/inbox/fingerprints?at=0:" + "9" * 5000, b"", 400, "at"),
        ("GET", "/queues/inbox/" + "9" * 5000 + "/messages", b"", 404, "partition"),
        ("GET", "/queues/inbox/0/messages?from=1", b"", 416, "ends at 0"),
        ("POST", "/queues/inbox/purge", b"[", 400, "content"),
        ("POST", "/queues/inbox/purge", b"[]", 400, "Expected `object`"),
        ("POST", "/queues/inbox/purge", b'{"belo": 1}', 400, "belo"),
        ("POST", "/queues/inbox/purge", b'{"below": -1, "partition": 0}', 400, "below"),
        ("POST", "/queues/inbox/purge", b'{"below": 1e300, "partition": 0}', 400, "below"),
        ("POST", "/queues/inbox/purge", b'{"below": 1}', 400, "several"),
        ("POST", "/queues/inbox/purge", b'{"partition": 7}', 400, "the partition 7"),
        ("POST", "/queues/inbox/purge", b'{"force": "yes"}', 400, "force"),
        ("POST", "/queues/inbox/purge", b'{"below": ' + b"[" * 100_000, 400, "below"),
        ("POST", "/queues/inbox/purge", b"\xff\xfe", 400, "content"),
        ("POST", "/queues/inbox/purge", b" " * (LARGEST_BODY + 1), 413, "too many"),
        ("POST", "/queues/inbox/cursors/handler/reset", b"{}", 400, "no position"),
        ("POST", "/queues/inbox/cursors/handler/reset", b'{"to": "latest", "time": 3}', 400, "2 positions"),
        ("POST", "/queues/inbox/cursors/handler/reset", b'{"to": "middle"}', 400, "to"),
        ("POST", "/queues/inbox/cursors/nobody/reset", b'{"to": "latest"}', 404, "the cursor"),
        ("POST", "/forwarders/nobody/suspend", b"", 404, "no forwarder"),
        ("POST", "/sequences/urn:x/halt", b"", 404, "the path /sequences"),
        ("DELETE", "/queues/inbox/cursors/outbound%2Fx", b"", 403, "belongs to"),
        ("PATCH", "/sequences", b"", 405, "PATCH"),
    ],
)
async def test_what_cannot_be_is_refused_with_what_is_wrong_and_what_to_do(
    admin: Client, method: str, path: str, body: bytes, status: int, text: str
) -> None:
    found, answer = await admin.ask(path, method, data=body)
    assert (found, text in answer["error"]) == (status, True), answer
    assert answer["remedy"]


WORDS = ("", "0", "1", "-1", "x", "inbox", "orders", "handler", "all", "urn:x", "NaN", "é", "%", "/", "..", "9" * 40)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    2**53,
    2**70,
    1.5,
    "",
    "x",
    "latest",
    [],
    [1],
    {},
    {"0": 1},
    {"x": "y"},
)


async def test_no_request_however_wrong_is_a_bug_or_answered_otherwise_than_described(admin: Client) -> None:
    chance = random.Random(7)
    await admin.send(3)
    table = admin.service._admin.routes.table
    names = sorted(
        {
            one["name"]
            for methods in admin.described.document["paths"].values()
            for single in methods.values()
            for one in single["parameters"]
        }
        | {"below", "partition", "force", "to", "offset", "time", "reason", "epoch", "offsets", "fingerprints"}
    )
    for _ in range(600):
        route = chance.choice(table)
        parts = [
            quote(chance.choice(WORDS), safe="") or "-"
            if "{" in part and ":" not in part
            else part.strip("{}").split(":")[-1].split("|")[0]
            for part in route.path.split("/")
        ]
        query = "&".join(
            f"{name}={quote(chance.choice(WORDS))}" for name in chance.sample(names, chance.choice((0, 0, 1, 2)))
        )
        if "wait" in query:
            continue
        fields = {name: chance.choice(VALUES) for name in chance.sample(names, chance.choice((0, 1, 2, 3)))}
        options: dict[str, Any] = {"json": fields} if route.method in ("POST", "PUT") else {}
        status, answer = await admin.ask(
            "/" + "/".join(parts) + (f"?{query}" if query else ""), route.method, **options
        )
        assert status != 500, (route, parts, query, fields, answer)
        if status >= 400:
            assert set(answer) == {"error", "remedy"}, answer
    assert (await admin.ask("/readyz"))[0] == 200
