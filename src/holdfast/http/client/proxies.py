"""An HTTP proxy: its URL, and a tunnel through it for TLS (RFC 9110 section 9.3.6)."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.exceptions import ConfigurationError
from holdfast.http.reasons import reason_of
from holdfast.http.tls_transport import TLSTransport
from holdfast.http.urls import Origin, in_url

MAX_ANSWER = 16 * 1024
"""Largest header section of a proxy's answer to CONNECT, in bytes."""

ConnectionT = TypeVar("ConnectionT", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is spoken to in plain HTTP.

    Attributes:
        host, port: Where it listens.
        authorization: The value of Proxy-Authorization, "" for none.
    """

    host: str
    port: int
    authorization: str = ""

    @classmethod
    def parse(cls, text: str) -> Proxy:
        """Parse a URL such as ``http://user:word@proxy.example:3128``.

        Raises:
            ConfigurationError: It is not a proxy's URL.
        """
        remedy = "Example: http://proxy.example:3128."
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port or 3128
        except ValueError as error:
            raise ConfigurationError(f"{text!r} is not the URL of a proxy: {error}", remedy=remedy) from None
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigurationError(f"{text!r} is not the URL of an http proxy", remedy=remedy)
        if parts.username is None:
            return cls(parts.hostname, port)
        name = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(parts.hostname, port, "Basic " + base64.b64encode(name.encode()).decode())


class _Opening(asyncio.Protocol):
    """A connection to a proxy until the tunnel is open."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._tell(self._received)
        elif len(self._received) > MAX_ANSWER:
            self._tell(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._tell(b"")

    def _tell(self, head: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(head)


async def open_plain(proxy: Proxy, make: Callable[[], ConnectionT]) -> tuple[asyncio.Transport, ConnectionT]:
    """Open a connection to the proxy itself.

    Raises:
        OSError: It cannot be reached.
    """
    try:
        return await asyncio.get_running_loop().create_connection(make, proxy.host, proxy.port)
    except OSError as error:
        raise OSError(f"the proxy {proxy.host}:{proxy.port} cannot be reached: {reason_of(error)}") from error


async def open_tunnel(
    proxy: Proxy, origin: Origin, context: ssl.SSLContext, make: Callable[[], ConnectionT]
) -> ConnectionT:
    """Open a connection to ``origin`` with end-to-end TLS through the proxy.

    Raises:
        OSError: The proxy cannot be reached, or does not open the tunnel.
    """
    where = f"the proxy {proxy.host}:{proxy.port}"
    plain, opening = await open_plain(proxy, _Opening)
    try:
        authority = f"{in_url(origin.host)}:{origin.port}"
        head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
        if proxy.authorization:
            head += f"Proxy-Authorization: {proxy.authorization}\r\n"
        plain.write(f"{head}\r\n".encode("ascii"))
        line, _, rest = (await opening.answer).partition(b"\r\n")
        # Bytes behind the head would be read as TLS.
        if line.split(b" ")[1:2] != [b"200"] or not rest.endswith(b"\r\n"):
            raise OSError(f"{where} did not open a tunnel: {line.decode('latin-1') or 'it gave no HTTP answer'}")
        connection = make()
        tls = TLSTransport(connection, context, server_hostname=origin.host)
        plain.set_protocol(tls)
        tls.connection_made(plain)
        await tls.shake_hands()
    except BaseException:
        plain.abort()
        raise
    return connection
