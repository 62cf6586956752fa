"""TLS for the tests with the live WCF client: certificates it does not know, and an end of TLS before a service."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import trustme
from wcf.network import LOSS, Losses

from holdfast.http.tls import ServerTLS
from holdfast.testing.proxy import Faults, LossyProxy, Relayed


def certificate_in(directory: Path) -> Path:
    """A new certificate of 127.0.0.1 with its key, as a PEM file; its authority is ``ca.pem`` beside it."""
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = directory / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    return certificate


def context_in(directory: Path) -> ssl.SSLContext:
    """A server's context with such a certificate."""
    return ServerTLS(str(certificate_in(directory))).context()


@contextlib.asynccontextmanager
async def tls_before(url: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """Ends TLS in front of a service that speaks http, as a load balancer does; gives its URL."""
    async with _relaying(url.removeprefix("http://"), before=context) as address:
        yield f"https://{address}"


@contextlib.asynccontextmanager
async def tls_behind(url: str, authority: Path) -> AsyncIterator[str]:
    """Speaks http in front of a service with TLS, whose certificate an authority issued; gives its URL."""
    context = ssl.create_default_context(cafile=str(authority))
    async with _relaying(url.removeprefix("https://"), behind=context) as address:
        yield f"http://{address}"


@contextlib.asynccontextmanager
async def _relaying(
    target: str, before: ssl.SSLContext | None = None, behind: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Relay connections to a host and port, with TLS on one side; gives the address, with the path of the target."""
    place, _, path = target.partition("/")
    host, _, port = place.partition(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection(host, int(port), ssl=behind)
            ways = [_copy(reader, inner_writer), _copy(inner_reader, writer)]
            await asyncio.gather(*ways)

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=before)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/{path}"
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def lossy_path(url: str, seed: int, directory: Path) -> AsyncIterator[tuple[str, LossyProxy]]:
    """TLS, and behind it a network that loses a fifth of requests and of answers while a reliable session is open.

    The client asks for a token and cancels it outside of its reliable session, and gives up when those get lost.
    """

    def relayed(exchange: Relayed) -> None:
        losses.relayed(exchange)
        if b"CreateSequenceResponse" in (exchange.response or b""):
            losses.use(LOSS)
        if re.search(rb"/(LastMessage|CloseSequence)<", exchange.request):
            losses.use(Faults())

    proxy = LossyProxy(url, seed=seed, on_relayed=relayed)
    losses = Losses(proxy)
    async with proxy, tls_before(proxy.url, context_in(directory)) as outer:
        yield outer, proxy
