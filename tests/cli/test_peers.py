"""Client certificates, an authority of one's own and proxies, for what `send` and `serve` send."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

MODULE = """
import holdfast
app = holdfast.Destination(":memory:", http=holdfast.DestinationHTTP(allow_addresses=["https://127.0.0.1"]))

@app.on("urn:test:submit")
def submit(message) -> str:
    print("from", message.peer_certificate.names, flush=True)
    return "<reply/>"
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    client = authority.issue_cert("client@holdfast.example")
    client.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    (tmp_path / "peers_module.py").write_text(MODULE)
    (tmp_path / "a.xml").write_text("<a/>")
    return tmp_path


SERVE = ("serve", "peers_module:app", "--port", "0", "--tls-cert", "server.pem", "--tls-client-ca", "ca.pem")
OURS = ("--ca", "ca.pem", "--cert", "client.pem", "--cert-key", "client.key")


def test_send_shows_its_certificate_and_the_handler_sees_whose_it_is(
    start: Any, run: Any, run_out_of_time: Any, files: Path
) -> None:
    service = start(*SERVE)
    url = service.url()
    sending = ("send", "--to", url, "--action", "urn:test:submit", "a.xml")
    result = run(*sending, "--request", *OURS, "--json")
    assert (result.code, "<reply/>" in result.out) == (0, True), result.err
    assert json.loads(result.out.splitlines()[-1])["acknowledged"] == 1
    assert service.line() == "from ('email:client@holdfast.example',)"
    for options, why in (
        (("--ca", "ca.pem"), "it may require a client certificate"),
        ((*OURS, "--ca", "other.pem"), "no trusted TLS connection"),
    ):
        result = run_out_of_time(*sending, *options, what=why)
        assert result.code == 1
        assert why in result.err
        assert "safe in" in result.err
    service.process.send_signal(signal.SIGTERM)
    assert service.end().code == 0


def test_send_goes_through_the_proxy_it_is_given(start: Any, files: Path) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        proxy = f"http://me:word@127.0.0.1:{listener.getsockname()[1]}"
        sender = start("send", "--to", "https://partner.example/", "--proxy", proxy, "a.xml")
        thread.join(60)
        sender.process.send_signal(signal.SIGINT)
        assert sender.end().code == 1
    assert asked[0].startswith(b"CONNECT partner.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6d29yZA==" in asked[0]


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        (("--proxy", "ftp://here:1"), 2, "not the URL of an http proxy"),
        (("--cert", "ca.pem"), 1, "ca.pem has no private key in PEM"),
        (("--cert-key", "client.key"), 1, "a key without a certificate"),
        (("--ca", "client.key"), 1, "the authorities' certificates cannot be read"),
        (("--ca", "nothing.pem"), 2, "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_stored(
    run: Any, files: Path, options: tuple[str, ...], code: int, what: str
) -> None:
    for command in (("send", "--to", "https://127.0.0.1:1/", "a.xml"), ("serve", "peers_module:app")):
        result = run(*command, *options)
        assert (result.code, what in result.err) == (code, True), result.err
    assert not (files / "outbox").exists()


def test_serve_shows_its_certificate_where_it_sends_replies_to(start: Any, run: Any, files: Path) -> None:
    (files / "asker.py").write_text(
        """
import asyncio, ssl, sys
import holdfast
from holdfast.http.tls import ClientTLS

async def main() -> None:
    context = ClientTLS("ca.pem", "client.pem", "client.key").context()
    here = holdfast.SourceHTTP(ssl_context=context, listen=("127.0.0.1", 0), address=sys.argv[2])
    async with holdfast.Source(sys.argv[1], ":memory:", http=here) as source:
        await source.request("<a/>", action="urn:test:submit")

asyncio.run(main())
"""
    )
    seen: list[Any] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem")
    context.load_verify_locations(files / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                seen.append(secured.getpeercert()["subjectAltName"])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        service = start(*SERVE, *OURS)
        address = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        with subprocess.Popen([sys.executable, "asker.py", service.url(), address], cwd=files) as asker:
            thread.join(100)
            asker.kill()  # what it waits for does not come
    assert seen == [(("email", "client@holdfast.example"),)]
