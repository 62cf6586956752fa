"""The data plane behind TLS, a token and a proxy, asked by its client, by the commands' and by Spark.

Covers pipeline/options/server.py.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from holdfast import ConfigurationError, Destination, Source
from holdfast.client.admin import Access
from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import PipelineError
from holdfast.endpoint.admin.token import TOKEN_VARIABLE
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.http.tls import ServerTLS
from holdfast.pipeline.reader.options import ReadOptions

TOKEN = "0b6f5e1c2a934d78"


@dataclass
class Guarded:
    """A server that demands a token and a client certificate, with three messages, and the files to ask it with."""

    admin: str
    files: Path

    def options(self, *without: str, **other: str) -> dict[str, str]:
        names = {"tokenFile": "token", "caFile": "ca.pem", "certificateFile": "client.pem", "keyFile": "client.key"}
        kept = {option: str(self.files / file) for option, file in names.items() if option not in without}
        return {"broker": self.admin, **kept, **other}

    def plane(self, *without: str, **other: str) -> DataPlane:
        options = ReadOptions.parse(self.options(*without, **other))
        return DataPlane(options.broker, pickle.loads(pickle.dumps(options)).access)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    files = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(files / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(files / "server.pem"))
    client = authority.issue_cert("reader@example.org")
    client.private_key_pem.write_to_path(str(files / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(files / "client.pem"))
    (files / "token").write_text(TOKEN)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> Service:
        context = ServerTLS(str(files / "server.pem"), client_ca=str(files / "ca.pem")).context()
        where = Listeners(port=0, admin=AdminListener(port=0, ssl_context=context, token=TOKEN))
        service = Service(Destination(":memory:", partitions=1), where)
        await service.start()
        async with Source(service.url, ":memory:") as source:
            for number in range(3):
                await source.send(f"<n>{number}</n>", action="urn:n")
            await source.flush(60)
        return service

    service = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    yield Guarded(service.admin_url, files)
    asyncio.run_coroutine_threadsafe(service.close(1.0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_who_has_all_that_is_demanded_reads_the_queue(guarded: Guarded) -> None:
    plane = guarded.plane()
    assert plane.ends("inbox").ends == {0: 3}
    plane.close()


def test_what_files_held_travels_with_the_options_and_the_token_is_not_shown(guarded: Guarded) -> None:
    options = ReadOptions.parse(guarded.options())
    assert TOKEN not in repr(options)
    assert "PRIVATE KEY" not in repr(options)
    assert TOKEN in pickle.dumps(options).decode("latin-1")


@pytest.mark.parametrize(
    ("without", "other", "error", "what", "remedy"),
    [
        (("tokenFile",), {}, PipelineError, "401: the token is missing", "tokenFile"),
        (("tokenFile",), {"token": "another"}, PipelineError, "401", "tokenFile"),
        (("caFile",), {}, PipelineError, "certificate is not trusted", "caFile"),
        (
            ("certificateFile", "keyFile"),
            {},
            PipelineError,
            "client certificate|certificate required",
            "certificateFile",
        ),
    ],
)
def test_missing_credentials_are_reported_with_their_option(
    guarded: Guarded, without: tuple[str, ...], other: dict[str, str], error: type[Exception], what: str, remedy: str
) -> None:
    with pytest.raises(error, match=what) as told:
        guarded.plane(*without, **other).ends("inbox")
    assert remedy in told.value.remedy  # type: ignore[attr-defined]


def test_http_to_a_listener_that_speaks_tls_says_so(guarded: Guarded) -> None:
    with pytest.raises(PipelineError, match="change http to https"):
        guarded.plane(broker=guarded.admin.replace("https:", "http:")).ends("inbox")


def test_the_environment_has_the_token_where_no_option_does(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert guarded.plane("tokenFile").ends("inbox").ends == {0: 3}


@pytest.mark.parametrize(
    "options",
    [
        {"token": "two words"},
        {"token": "a", "tokenFile": "token"},
        {"tokenFile": "nothing"},
        {"caFile": "token"},
        {"certificateFile": "client.pem"},
        {"keyFile": "client.key"},
        {"proxy": "socks5://here:1"},
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_read(guarded: Guarded, options: dict[str, str]) -> None:
    given = {name: str(guarded.files / text) if name.endswith("File") else text for name, text in options.items()}
    with pytest.raises(ConfigurationError) as refused:
        ReadOptions.parse({"broker": "https://127.0.0.1:1", **given})
    assert refused.value.remedy


async def test_a_proxy_is_gone_through_by_http_and_by_https(guarded: Guarded) -> None:
    heads: list[bytes] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if head.startswith(b"CONNECT"):
            host, _, port = head.split()[1].decode().rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"http://me:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def ends(**options: str) -> Any:
        plane = guarded.plane(**options)
        try:
            return plane.cursor("inbox", "nobody")
        finally:
            plane.close()

    assert await asyncio.to_thread(lambda: ends(proxy=url)) is None
    assert await asyncio.to_thread(lambda: ends(proxy=url, broker="http://queues.example:8081")) is None
    server.close()
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert TOKEN.encode() not in heads[0]
    assert heads[1].startswith(b"GET http://queues.example:8081/queues/inbox/cursors/nobody HTTP/1.1\r\n")
    for head in heads:
        assert b"Proxy-Authorization: Basic bWU6cEBzcw==" in head


def test_the_key_leaves_no_file_behind(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert guarded.plane().ends("inbox").ends == {0: 3}
    assert list(tmp_path.iterdir()) == []
    assert Access() == Access()


@pytest.mark.spark
def test_spark_reads_through_tls_with_a_token(spark: Any, guarded: Guarded) -> None:
    rows = spark.read.format("wsrm").options(**guarded.options()).load().select("body").collect()
    assert sorted(row.body for row in rows) == ["<n>0</n>", "<n>1</n>", "<n>2</n>"]
