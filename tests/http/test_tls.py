"""TLS contexts from files, and what a certificate says, over real sockets with real certificates."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from waiting import until

from holdfast.exceptions import ConfigurationError
from holdfast.http.server.server import Exchange, HTTPServer
from holdfast.http.tls import ClientTLS, PeerCertificate, ServerTLS, distinguished_name


@pytest.fixture
def files(tmp_path: Path) -> Path:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other-ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    client = authority.issue_cert("client@holdfast.example", common_name="Client, the first")
    client.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    return tmp_path


async def certificate_seen(files: Path, *client: str) -> PeerCertificate | None:
    """What a server that demands certificates sees of a client with these files."""
    seen: list[PeerCertificate | None] = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.certificate)
        exchange.respond(200)

    server = HTTPServer()
    context = ServerTLS(str(files / "server.pem"), client_ca=str(files / "ca.pem")).context()
    await server.start(handler, "127.0.0.1", 0, ssl_context=context)
    try:
        trust = ClientTLS(str(files / "ca.pem"), *(str(files / name) for name in client)).context()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust)
        try:
            for _ in range(2):  # the second by a head that is known
                writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
                await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()
    finally:
        await server.close()
    assert seen[0] == seen[1]
    return seen[0]


async def test_a_request_says_which_certificate_its_peer_showed(files: Path) -> None:
    found = await certificate_seen(files, "client.pem", "client.key")
    assert found is not None
    assert "CN=Client\\, the first" in found.subject
    assert "O=trustme" in found.issuer
    assert found.names == ("email:client@holdfast.example",)
    assert len(found.sha256) == 64
    assert int(found.serial_number, 16)


async def test_without_a_certificate_there_is_no_answer_where_one_is_demanded(files: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await certificate_seen(files)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("nothing.pem",), r"cannot read .*nothing\.pem: No such file"),
        (("ca.pem",), r"ca\.pem has no private key in PEM"),
        (("client.pem", "server.pem"), r"server\.pem is not the private key of the certificate in .*client\.pem"),
        (("server.pem", None, "client.key"), "the authorities' certificates cannot be read"),
    ],
)
def test_files_that_are_something_else_are_named_with_what_they_should_be(
    files: Path, arguments: tuple[str | None, ...], what: str
) -> None:
    paths = [str(files / name) if name else None for name in arguments]
    with pytest.raises(ConfigurationError, match=what) as error:
        ServerTLS(*paths).context()  # type: ignore[arg-type]
    assert error.value.remedy


def test_a_key_without_a_certificate_is_refused(files: Path) -> None:
    with pytest.raises(ConfigurationError, match="a key without a certificate"):
        ClientTLS(key=str(files / "client.key")).context()


def test_a_distinguished_name_is_written_as_rfc_4514_says() -> None:
    name = ((("countryName", "DE"),), (("organizationName", " A+B;\\ "),), (("commonName", "#x"), ("userId", "7")))
    assert distinguished_name(name) == "CN=\\#x+UID=7,O=\\ A\\+B\\;\\\\\\ ,C=DE"


def test_a_name_that_is_too_long_is_not_cut_into_another_one() -> None:
    assert distinguished_name(((("commonName", "x" * 2000),),)) == ""


async def refused_by(files: Path, speak: Callable[[int], Awaitable[None]]) -> tuple[HTTPServer, list[str]]:
    """A server that demands certificates after a client spoke to it, and the reasons for which it refused one."""
    told: list[str] = []
    server = HTTPServer()
    server.on_failed_handshake = lambda reason, peer: told.append(f"{peer} {reason}")
    context = ServerTLS(str(files / "server.pem"), client_ca=str(files / "ca.pem")).context()
    await server.start(lambda exchange: exchange.respond(200), "127.0.0.1", 0, ssl_context=context)
    try:
        await speak(server.port)
        await until(lambda: server.counters.refused["tls"] == 1 or not server.connections)
    finally:
        await server.close()
    return server, told


@pytest.mark.parametrize(
    ("shown", "reason"),
    [((), "the client sent no certificate"), (("client.pem", "client.key"), "certificate is not trusted: ")],
    ids=["none", "untrusted"],
)
async def test_a_refused_certificate_is_told_with_its_peer(files: Path, shown: tuple[str, ...], reason: str) -> None:
    client = trustme.CA().issue_cert("client@elsewhere.example")
    client.private_key_pem.write_to_path(str(files / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(files / "client.pem"))
    trust = ClientTLS(str(files / "ca.pem"), *(str(files / name) for name in shown)).context()

    async def speak(port: int) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            await reader.read()
            writer.close()

    server, (told,) = await refused_by(files, speak)
    assert told.startswith("127.0.0.1:") and reason in told
    assert server.counters.refused["tls"] == 1


async def test_plain_http_at_a_port_for_https_is_answered(files: Path) -> None:
    answers: list[bytes] = []

    async def speak(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nContent-Length: 1\r\n\r\nx")
        answers.append(await reader.read())
        writer.close()

    server, told = await refused_by(files, speak)
    (answer,) = answers
    assert answer.startswith(b"HTTP/1.1 400 ") and b"this port speaks https" in answer
    assert (server.counters.refused["tls"], told) == (1, [])


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x00\x01x"])
async def test_a_port_scan_is_not_logged(files: Path, first: bytes) -> None:
    async def speak(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        writer.write_eof()
        await reader.read()
        writer.close()

    _, told = await refused_by(files, speak)
    assert [one for one in told if "certificate" in one] == []


async def test_tls_at_a_port_for_plain_http_is_told(files: Path) -> None:
    refused: list[str] = []
    server = HTTPServer()
    server.refusing = lambda refusal, _headers, _peer: refused.append(refusal.text) or refusal  # type: ignore[func-returns-value]
    await server.start(lambda exchange: exchange.respond(200), "127.0.0.1", 0)
    try:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=ClientTLS(str(files / "ca.pem")).context())
    finally:
        await server.close()
    assert refused == ["this port speaks http: change https to http in the URL"]
