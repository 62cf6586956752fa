"""Who may ask the admin listener, over real sockets: no web page, and with a token or mutual TLS only who has it.

Covers client/admin.py and endpoint/admin/token.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import trustme
from unstarted import unstarted

from holdfast import Destination
from holdfast.client.admin import CUT_OFF, Access, describe_failure
from holdfast.client.admin_client import HTTPTransport
from holdfast.client.connection import Connection
from holdfast.client.errors import ServerAway
from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.guard import Guard
from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.admin.token import TOKEN_VARIABLE, read_token
from holdfast.endpoint.listener_settings import AdminListener
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.http.exchange import Request
from holdfast.http.tls import ServerTLS

TOKEN = "3f9c0a7b51e84d62"


async def ask(service: Any, path: str = "/queues", method: str = "GET", **headers: str) -> tuple[int, Any]:
    """One request with exactly these headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.admin_url.rpartition(":")[2]))
    lines = {"Host": "127.0.0.1"} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
    data = await reader.read()
    writer.close()
    head_bytes, _, body = data.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), body if path == "/metrics" else json.loads(body)


@pytest.fixture
async def service(serve: Any) -> Any:
    return await serve(Destination(":memory:"), admin_names=("queues.example", ".shop.svc"))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8081", "localhost:8081", "[::1]:8081", "10.1.2.3", "holdfast", "queues.example:8081",
     "QUEUES.example.", "holdfast.prod.svc.cluster.local:8081", "inbox.internal", "broker.shop.svc:8081",
     "broker-0.broker.shop.svc"],
)  # fmt: skip
async def test_it_is_asked_by_addresses_by_private_names_and_by_those_it_was_given(service: Any, host: str) -> None:
    assert (await ask(service, Host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "xqueues.example",
     "evil.example.", "[::1].evil.example", "127.0.0.1@evil.example", "internal.example",
     "evilshop.svc", "broker.other.svc"],
)  # fmt: skip
async def test_a_name_that_a_page_made_stand_for_its_address_is_refused(service: Any, host: str) -> None:
    for method, path in (("GET", "/queues"), ("PUT", "/queues/inbox/cursors/x"), ("GET", "/healthz")):
        status, answer = await ask(service, path, method, Host=host)
        assert status == 403
        assert "--admin-name" in answer["remedy"]
    assert service.app.running.queue.cursors == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:9"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_no_page_of_another_origin_is_answered(service: Any, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/sequences/urn:x/terminate"), ("GET", "/queues")):
        assert (await ask(service, path, method, **headers))[0] == 403


async def test_its_own_pages_and_links_to_it_are_answered(service: Any) -> None:
    assert (await ask(service, Host="localhost:1", Origin="http://localhost:1"))[0] == 200
    assert (await ask(service, Sec_Fetch_Site="same-origin"))[0] == 200
    assert (await ask(service, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate"))[0] == 200
    linked = await ask(service, "/sequences/x/close", "POST", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert linked[0] == 403


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
async def test_with_a_token_nobody_is_answered_without_it(serve: Any, given: str | None) -> None:
    service = await serve(Destination(":memory:"), admin_token=TOKEN)
    headers = {"Authorization": given} if given is not None else {}
    for method, path in (
        ("GET", "/queues"),
        ("POST", "/sequences/x/close"),
        ("GET", "/sequences"),
        ("GET", "/nothing"),
    ):
        status, answer = await ask(service, path, method, **headers)
        assert status == 401
        assert TOKEN not in json.dumps(answer)
    assert (await ask(service, "/healthz", **headers)) == (200, {"status": "ok"})


async def test_with_its_token_it_is_asked_by_any_name_but_by_no_page(serve: Any) -> None:
    service = await serve(Destination(":memory:"), admin_token=TOKEN)
    for kind in ("Bearer", "bearer"):
        assert (await ask(service, Host="broker.example", Authorization=f"{kind} {TOKEN}"))[0] == 200
    assert (await ask(service, Origin="http://evil.example", Authorization=f"Bearer {TOKEN}"))[0] == 403
    assert TOKEN not in repr(service._listeners)


def test_the_token_for_metrics_opens_nothing_else() -> None:
    guard = Guard((), TOKEN, metrics_token="metrics-only")
    unguarded = Admin(unstarted()).routes.table

    def is_let_in(method: str, path: str, token: str) -> bool:
        headers = {b"host": b"broker.example", b"authorization": f"Bearer {token}".encode()}
        try:
            guard.check(Request(method, f"/{path}", headers, b"", "test", False))
        except Refused as refused:
            return refused.status != 401
        return True

    let_in = {(one.method, one.path) for one in unguarded if is_let_in(one.method, one.path, "metrics-only")}
    assert let_in == {("GET", "metrics"), ("GET", "healthz"), ("GET", "readyz")}
    assert all(is_let_in(one.method, one.path, TOKEN) for one in unguarded)
    assert is_let_in("GET", "metrics?a=b", "metrics-only") and not is_let_in("POST", "metrics", "metrics-only")
    with pytest.raises(ConfigurationError, match="a token for metrics, but none for everything else"):
        AdminListener(metrics_token="metrics-only")
    with pytest.raises(ConfigurationError, match="also the one that opens everything"):
        AdminListener(token=f"{TOKEN}\n", metrics_token=TOKEN)


def test_a_token_comes_from_a_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token() is None
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}\n")
    assert read_token() == TOKEN
    file = tmp_path / "token"
    file.write_text("\ufeff of-the-file\n")  # with a byte order mark, which some editors write
    assert read_token(str(file)) == "of-the-file"
    file.write_text(" of-the-file\n")
    assert read_token(str(file)) == "of-the-file"
    assert Access.of_files(token_file=str(file)).token == "of-the-file"
    for wrong in ("", "  \n", "two words", "zwei\nZeilen", "ä"):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError, match="contains no token"):
            read_token(str(file))
    with pytest.raises(ConfigurationError, match="the token cannot be read"):
        read_token(str(tmp_path / "nothing"))


async def test_mutual_tls_keeps_out_who_has_no_certificate(serve: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    authority.issue_cert("c@x.example").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    ca, server = str(tmp_path / "ca.pem"), str(tmp_path / "server.pem")
    service = await serve(Destination(":memory:"), admin_ssl_context=ServerTLS(server, client_ca=ca).context())

    def attempt(access: Access, url: str = service.admin_url) -> tuple[int, str]:
        connection = access.open(url, 30)
        try:
            answer = connection.send("GET", "/queues")
            return answer.status, answer.read().decode()
        except Exception as error:
            what, remedy = describe_failure(error, url)
            return 0, f"{what}. {remedy}"
        finally:
            connection.http.close()

    assert service.admin_url.startswith("https://")
    mutual = Access.of_files(ca=ca, certificate=str(tmp_path / "client.pem"))
    assert (await asyncio.to_thread(attempt, mutual))[0] == 200
    assert "client certificate" in (await asyncio.to_thread(attempt, Access.of_files(ca=ca)))[1]
    assert "certificate is not trusted" in (await asyncio.to_thread(attempt, Access()))[1]
    plain = service.admin_url.replace("https:", "http:")
    status, said = await asyncio.to_thread(attempt, mutual, plain)
    assert status == 400 and "change http to https" in said


@pytest.mark.parametrize("error", CUT_OFF, ids=lambda error: error.__name__)
def test_however_a_connection_was_cut_off_the_hint_is_the_same(error: type[Exception]) -> None:
    assert "client certificate" in describe_failure(error("gone"), "https://127.0.0.1")[1]
    assert "start the URL with https://" in describe_failure(error("gone"), "http://127.0.0.1")[1]


async def test_https_to_a_listener_that_speaks_http_says_so(service: Any) -> None:
    connection = Access().open(service.admin_url.replace("http:", "https:"), 30)
    with pytest.raises(OSError) as failed:
        await asyncio.to_thread(connection.send, "GET", "/queues")
    assert "start the URL with http://" in describe_failure(failed.value, "https://127.0.0.1")[1]


def test_a_server_that_accepts_but_does_not_answer_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.admin_client.PATIENCE", 0.25)
    with socket.create_server(("127.0.0.1", 0)) as paused:  # the system accepts connections for it
        url = f"http://127.0.0.1:{paused.getsockname()[1]}"
        said = "it accepted the connection, but sent nothing for 0.25 s"
        with pytest.raises(HoldfastError, match=said) as failed:
            HTTPTransport(url, Access()).send("GET", "/sequences", None)
        assert "paused or overloaded" in failed.value.remedy and "every other node" in failed.value.remedy
        client = Connection(url, timeout=0.25)
        with pytest.raises(ServerAway, match=said):
            client.nodes()
        client.close()
    what, remedy = describe_failure(TimeoutError("timed out"), url)
    assert "accepted" not in what and "admin listener" in remedy, "a host that is away"
