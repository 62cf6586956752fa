"""The secret in the address of a source's listener is in no log, answer, error or fault text.

Covers core/origin.py and endpoint/json_answers.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from admin_client import Client
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from holdfast import (
    CreateSequenceRefused,
    DeliveryError,
    Destination,
    DestinationHTTP,
    Message,
    RetransmissionPolicy,
    Source,
    SourceHTTP,
    SourcePolicy,
    Versions,
)
from holdfast.cli.main import cli
from holdfast.core.messages import Envelope, Fault
from holdfast.core.origin import secret_in, with_secret, without_secrets
from holdfast.core.versions import SOAP
from holdfast.endpoint.admin.routes import named_parts, plain_path
from holdfast.endpoint.admin.shapes.requests import Page
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.endpoint.json_answers import json_answer
from holdfast.wire import decode, encode

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.2))
LOCAL = DestinationHTTP(allow_addresses=["http://127.0.0.1"], policy=QUICK)
SECRETS = st.builds(lambda: new_identifier().rpartition(":")[2])


def secret_of(source: Source) -> str:
    (outbox,) = source._running.engine.protocol.outbound.outboxes.values()
    assert outbox.source is not None
    return outbox.source.secret


def encoded(text: str) -> str:
    return quote(text, safe="")


def in_lower_case(text: str) -> str:
    return re.sub("%..", lambda found: found[0].lower(), quote(text, safe=""))


@given(
    SECRETS,
    st.sampled_from(["to/http://c/?", "http://c/?a=1&", "http://c/?a=1&amp;", "knows/", "target '/?"]),
    st.sampled_from(" \"'<>,.:);&\n/"),
    st.lists(st.sampled_from([encoded, in_lower_case, quote, str.upper, json.dumps]), max_size=3),
)
def test_a_text_has_a_digest_instead_of_each_secret(
    secret: str, address: str, after: str, forms: list[Callable[[str], str]]
) -> None:
    text, digest = f"{address}holdfast={secret}{after}", without_secrets(f"holdfast={secret}").partition("…")[2]
    assert len(digest) == 16
    shown = without_secrets(f"{text} or {text}")
    assert shown == f"{text} or {text}".replace(secret, f"…{digest}")
    for form in forms:
        text, shown = form(text), form(shown)
        assert secret not in without_secrets(text).lower()
        assert without_secrets(shown) == shown


@given(st.sets(SECRETS, min_size=2))
def test_secrets_are_distinct_where_they_are_left_out(secrets: set[str]) -> None:
    assert len({without_secrets(with_secret("http://c/", one)) for one in secrets}) == len(secrets)


@pytest.mark.parametrize("piece", ["holdfast", "holdfast=", "holdfast%25", "%25", "%3d", "=a", "holdfast=%2"])
def test_a_long_text_is_searched_in_linear_time(piece: str) -> None:
    text = f"holdfast=a holdfast{piece * (1 << 18)}"
    # More than linear: hours.
    assert without_secrets(text).startswith("holdfast=…")


@given(SECRETS)
def test_an_answer_has_no_secret_but_in_the_content_of_messages(secret: str) -> None:
    address = with_secret("http://c/", secret)
    row = {"headers": f"<h>{address}</h>", "body": f"<a>{address}</a>"}
    told: list[bytes] = []
    exchange: Any = SimpleNamespace(respond=lambda _status, content, *_: told.append(content))
    json_answer(exchange, 200, {"rows": [row | {"to": address}], address: (address, 1, None), "body": {"at": address}})
    shown = without_secrets(address)
    assert json.loads(told[0]) == {"rows": [row | {"to": shown}], shown: [shown, 1, None], "body": {"at": shown}}


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize("code", ["DestinationUnreachable", "Sender"])
def test_a_fault_that_quotes_an_address_is_sent_and_read_without_its_secret(soap: SOAP, code: str) -> None:
    secret = "d0c7b3a2-0f3e-4a52-9d7e-0a1f57cbbf7a"
    address = with_secret("http://c/", secret)
    fault = Fault(code, f"no route to {address}", detail=b"<at xmlns=''>here</at>")
    written = encode(Envelope(soap, fault=fault))
    assert secret.encode() not in written
    shown = without_secrets(with_secret("", secret)).partition("=")[2]
    by_another = written.replace(shown.encode(), secret.encode()).replace(b"here", address.encode())
    found = decode(by_another).fault
    assert found is not None
    assert found.reason == without_secrets(f"no route to {address}")
    assert b"http://c/" in found.detail and secret.encode() not in found.detail


async def test_a_refused_address_is_named_without_its_secret(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "holdfast")
    service = await serve(Destination(tmp_path / "inbox"))
    http = SourceHTTP(listen=("127.0.0.1", 0))
    async with Source(service.url, tmp_path / "out", http=http, versions=Versions("1.2")) as source:
        sending = asyncio.ensure_future(source.send("<a/>", action="urn:a"))
        with pytest.raises(CreateSequenceRefused, match=r"does not send to .*\?holdfast=…") as caught:
            await (await sending).acknowledged(60)
        (outbox,) = source._running.engine.protocol.outbound.outboxes.values()
        said = f"{caught.value} {source.progress.problem} {outbox.lifecycle.stopped_for} {caplog.text}"
    assert "holdfast=…" in caplog.text
    assert not re.search("holdfast=[^…]", said)


@pytest.fixture
async def unreachable(serve: Any, tmp_path: Path) -> AsyncIterator[tuple[Client, str]]:
    """A destination with a reply for an address without a listener, and the secret of that address."""
    app, is_handled, has_gone = Destination(tmp_path / "inbox", http=LOCAL), asyncio.Event(), asyncio.Event()

    @app.on("urn:a")
    async def late(message: Message) -> str:
        is_handled.set()
        await has_gone.wait()
        return "<b/>"

    service = await serve(app)
    http = SourceHTTP(listen=("127.0.0.1", 0))
    async with Source(service.url, ":memory:", http=http, versions=Versions("1.2"), offer=False) as source:
        asking = asyncio.ensure_future(source.request("<a/>", action="urn:a", timeout=None))
        await is_handled.wait()
        secret = secret_of(source)
        await source.close(0.0)
        with pytest.raises(DeliveryError):
            await asking
    has_gone.set()
    engine = app.running.engine
    await until(lambda: any(key.startswith("to/") for key in engine.protocol.outbound.outboxes))
    await engine.durable()  # before, the store does not list the reply
    async with aiohttp.ClientSession() as session:
        yield Client(session, service.admin_url, service), secret


async def test_neither_the_admin_interface_nor_the_log_shows_a_secret(
    unreachable: tuple[Client, str], caplog: pytest.LogCaptureFixture
) -> None:
    admin, secret = unreachable
    assert len(secret) > 16
    await until(lambda: "address.unreachable" in caplog.text)
    key = next(one for one in admin.app.running.engine.protocol.outbound.outboxes if one.startswith("to/"))
    assert secret_in(key) == secret
    shown = []
    for route in admin.service._admin.routes.table:
        if route.method == "GET" and not named_parts(route.path):
            async with admin.session.get(f"{admin.url}/{plain_path(route.path)}") as answer:
                shown.append((route.path, (await answer.read()).decode("utf-8", "replace")))
    for command in ("forwarders", "outbox list", "sequences", "sequences --json"):
        done = await asyncio.to_thread(CliRunner().invoke, cli, [*command.split(), "--admin", admin.url])
        assert done.exit_code == 0, done.output
        shown.append((command, done.output))
    said = [path for path, text in [*shown, ("log", caplog.text)] if secret in text]
    assert not said
    assert sum(without_secrets(key) in text for _, text in shown) > 1


async def test_an_outbox_is_found_by_the_name_that_answers_show(unreachable: tuple[Client, str]) -> None:
    admin, _ = unreachable
    _, listed = await admin.ask("/outbox")
    (shown,) = [one["message"] for one in listed["messages"] if one["key"].startswith("to/")]
    assert "…" in shown
    assert (await admin.ask(f"/outbox/{quote(shown, safe='')}"))[0] == 200
    name = quote(shown.rpartition("/")[0], safe="")
    for how in ("suspend", "resume"):
        assert (await admin.ask(f"/forwarders/{name}/{how}", "POST", json={}))[0] == 200
    assert (await admin.ask(f"/outbox/retry?key={name}", "POST"))[0] == 200


def forward(client: Client, key: str) -> None:
    running = client.app.running
    running.engine.protocol.outbound.forward(key, "http://127.0.0.1:9/", [(Versions("1.1"), False)], running.queue, 0)


@pytest.fixture
async def sending(serve: Any) -> AsyncIterator[tuple[Client, list[str]]]:
    """A destination with messages for several addresses that differ in their secrets only; and the keys of their
    outboxes."""
    service = await serve(Destination(":memory:", partitions=1))
    keys = [with_secret("to/http://127.0.0.1:9/", new_identifier().rpartition(":")[2]) for _ in range(8)]
    async with aiohttp.ClientSession() as session:
        client = Client(session, service.admin_url, service)
        for key in keys:
            forward(client, key)
        async with Source(service.url, ":memory:") as source:
            await source.send(f"<a>{keys[0]}</a>", action="urn:a")
            await source.flush(60)
        yield client, keys


async def test_the_pages_of_each_list_have_every_row_once(sending: tuple[Client, list[str]]) -> None:
    admin, keys = sending
    tried = []
    for route in admin.service._admin.routes.table:
        if route.method != "GET" or not issubclass(route.query, Page):
            continue
        path = f"/{plain_path(route.path)}"
        status, whole = await admin.ask(f"{path}?limit=1000")
        if status == 404:  # there is no journal
            continue
        (rows,) = (name for name, value in whole.items() if isinstance(value, list))
        found, after = [], ""
        while after is not None:
            _, page = await admin.ask(f"{path}?limit=2&after={quote(after, safe='')}")
            found += page[rows]
            after = page["next"]
            assert len(found) <= whole["count"]
        names, expected = ([str((one.get("key"), one.get("name"))) for one in some] for some in (found, whole[rows]))
        assert sorted(names) == sorted(expected)
        if len(found) >= len(keys):
            tried.append(path)
    assert sorted(tried) == ["/cursors", "/forwarders", "/sequences"]


async def test_sequences_are_found_by_a_secret_and_by_how_it_is_shown(sending: tuple[Client, list[str]]) -> None:
    admin, keys = sending
    for sought in (keys[1], without_secrets(keys[1])):
        _, found = await admin.ask(f"/sequences?find={quote(sought, safe='')}")
        assert [one["key"] for one in found["sequences"]] == [without_secrets(keys[1])]


async def test_a_record_is_shown_with_the_body_that_it_has(sending: tuple[Client, list[str]]) -> None:
    admin, keys = sending
    _, shown = await admin.ask("/queues/inbox/0/messages")
    assert [one["body"] for one in shown["messages"]] == [f"<a>{keys[0]}</a>"]


async def test_no_request_acts_on_one_of_several_outboxes_with_a_name(sending: tuple[Client, list[str]]) -> None:
    admin, keys = sending
    forward(admin, without_secrets(keys[0]))  # as a peer may give its address
    outboxes = admin.app.running.engine.protocol.outbound.outboxes

    async def ask(key: str, status: int) -> None:
        name = quote(key, safe="")
        for path in (f"/forwarders/{name}/suspend", f"/outbox/retry?key={name}", f"/outbox/{name}%2F0/discard"):
            options = {"json": {}} if path.endswith("suspend") else {}
            answer = await admin.ask(path, "POST", **options)
            assert answer[0] == status, (path, answer)

    before = {key: (one.lifecycle.suspended, one.records.waiting) for key, one in outboxes.items()}
    await ask(without_secrets(keys[0]), 409)
    assert (await admin.ask(f"/forwarders/{quote(without_secrets(keys[0]), safe='')}"))[0] == 409
    assert before == {key: (one.lifecycle.suspended, one.records.waiting) for key, one in outboxes.items()}
    for name, key in ((keys[0], keys[0]), (without_secrets(keys[1]), keys[1])):
        await ask(name, 200)
        before[key] = ("", 0)
        after = {key: (one.lifecycle.suspended, one.records.waiting) for key, one in outboxes.items()}
        assert after == before
