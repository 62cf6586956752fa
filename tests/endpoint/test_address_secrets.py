"""The secret in the address of a source's listener is in no log, answer, error or fault text. Covers core/origin.py."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
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
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.wire import decode, encode

QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.1, floor=0.05, cap=0.2))
LOCAL = DestinationHTTP(allow_addresses=["http://127.0.0.1"], policy=QUICK)
SECRETS = st.builds(lambda: new_identifier().rpartition(":")[2])


def secret_of(source: Source) -> str:
    (outbox,) = source._running.engine.protocol.outbound.outboxes.values()
    assert outbox.source is not None
    return outbox.source.secret


@given(SECRETS, st.sampled_from(["http://c/", "http://c/?a=1"]), st.sampled_from(" \"'<>,.:);&\n"))
def test_a_text_keeps_no_more_of_a_secret_than_its_end(secret: str, address: str, after: str) -> None:
    text = f"no route to {with_secret(address, secret)}{after} or {with_secret(address, secret)}"
    shown = without_secrets(text)
    assert secret not in shown and secret[:-4] not in shown
    assert shown.count(f"holdfast=…{secret[-4:]}") == 2 and after in shown
    assert without_secrets(shown) == shown


def test_a_short_secret_is_left_out_as_a_whole() -> None:
    assert without_secrets("to http://c/?holdfast=s3cret: refused") == "to http://c/?holdfast=…: refused"


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize("code", ["DestinationUnreachable", "Sender"])
def test_a_fault_that_quotes_an_address_is_sent_and_read_without_its_secret(soap: SOAP, code: str) -> None:
    secret = "d0c7b3a2-0f3e-4a52-9d7e-0a1f57cbbf7a"
    address = with_secret("http://c/", secret)
    fault = Fault(code, f"no route to {address}", detail=b"<at xmlns=''>here</at>")
    written = encode(Envelope(soap, fault=fault))
    assert secret.encode() not in written
    by_another = written.replace("…bf7a".encode(), secret.encode()).replace(b"here", address.encode())
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
    await until(lambda: any(key.startswith("to/") for key in app.running.engine.protocol.outbound.outboxes))
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
