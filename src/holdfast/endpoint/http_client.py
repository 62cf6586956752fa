"""Posts bytes to a URL and tells what came back: a thin, bounded wrapper over aiohttp.

Owns connections, timeouts, limits and the one error a failed post becomes. Knows nothing of SOAP or
WS-ReliableMessaging: whether to send again is its caller's business, and ``TransportError.connected`` what it needs to
know for that.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any, Protocol, Self

import aiohttp

from holdfast.exceptions import HoldfastError

PIECE = 64 * 1024
REDIRECTS = (301, 302, 303, 307, 308)


class TransportError(HoldfastError):
    """A post that brought no usable HTTP answer.

    Args:
        message: What happened, with the URL.
        connected: False when the request surely was not sent; True when the peer may have got and processed it.
        status: The HTTP status code if there was an answer, else 0.
    """

    def __init__(self, message: str, *, connected: bool, status: int = 0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.connected = connected
        self.status = status


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer, whole.

    Attributes:
        status: The status code; never a redirect.
        headers: Its headers; names are looked up without regard to case.
        body: The content, at most the client's ``max_response`` bytes.
        content_type: The Content-Type header's value with its parameters, "" if there was none.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    content_type: str


class Transport(Protocol):
    """What carries requests: :class:`HTTPClient`, or whatever a test puts in its place."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Post once; see :meth:`HTTPClient.post`."""
        ...

    async def close(self) -> None:
        """Give up its connections."""
        ...


class HTTPClient:
    """Posts over kept-alive connections; share one among all who send. An async context manager.

    Args:
        connect_timeout: Seconds to connect to one address, TLS handshake included.
        total_timeout: Seconds for a post, from asking for a connection to the end of its answer.
        max_response: Largest answer's content in bytes.
        connections_per_host: Connections to one host and port at a time; further posts wait for one.
        ssl_context: What to trust and which certificate to show; the system's trust if None.
        trust_env: Whether to use the proxies that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 10.0,
        total_timeout: float = 60.0,
        max_response: int = 16 * 1024 * 1024,
        connections_per_host: int = 16,
        ssl_context: ssl.SSLContext | None = None,
        trust_env: bool = False,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=total_timeout, sock_connect=connect_timeout)
        self._max_response = max_response
        self._connections_per_host = connections_per_host
        self._ssl: ssl.SSLContext | bool = ssl_context if ssl_context is not None else True
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Post once. Never repeats and never follows a redirect: a caller that keeps promises must know where to.

        Args:
            url: Absolute http or https URL.
            body: The content.
            headers: Content-Type, SOAPAction, Authorization and so on.

        Returns:
            The answer, whatever its status, unless it is a redirect.

        Raises:
            TransportError: No whole answer within the timeouts and the size, or a redirect.
        """
        return await self._exchange("POST", url, body, headers)

    async def get(self, url: str, headers: Mapping[str, str]) -> Response:
        """The same with GET, for what describes a service."""
        return await self._exchange("GET", url, None, headers)

    async def _exchange(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        if self._closed:
            raise TransportError(f"the client for {url} is closed", connected=False)
        sent = SimpleNamespace(connected=False)
        try:
            async with self._open().request(
                method, url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=sent
            ) as answer:
                if answer.status in REDIRECTS:
                    raise _redirected(url, answer)
                return await self._read(url, answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise TransportError(_describe(url, error), connected=sent.connected) from error

    async def close(self) -> None:
        """Close all connections; posts in progress fail."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=self._connections_per_host, ssl=self._ssl),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=self._trust_env,
                trace_configs=[_connection_trace()],
                headers={"User-Agent": "holdfast", "Accept-Encoding": "identity"},
            )
        return self._session

    async def _read(self, url: str, answer: aiohttp.ClientResponse) -> Response:
        encoding = answer.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("", "identity"):
            raise TransportError(
                f"{url} answered in the content encoding {encoding}, which was not asked for",
                connected=True,
                status=answer.status,
            )
        declared = answer.content_length or 0
        body = bytearray()
        if declared <= self._max_response:
            async for piece in answer.content.iter_chunked(PIECE):
                body += piece
                if len(body) > self._max_response:
                    break
        if max(declared, len(body)) > self._max_response:
            answer.close()
            raise TransportError(
                f"{url} answered {answer.status} with more than {self._max_response} bytes",
                connected=True,
                status=answer.status,
            )
        return Response(answer.status, answer.headers, bytes(body), answer.headers.get("Content-Type", ""))


def _connection_trace() -> aiohttp.TraceConfig:
    """Notes on a request's context that it got a connection, so that from then on it may have been sent."""
    trace = aiohttp.TraceConfig()

    async def connected(session: aiohttp.ClientSession, context: SimpleNamespace, event: Any) -> None:
        context.trace_request_ctx.connected = True

    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace


def _redirected(url: str, answer: aiohttp.ClientResponse) -> TransportError:
    location = answer.headers.get("Location", "nowhere")
    return TransportError(
        f"{url} answered {answer.status}: it has moved to {location}",
        connected=True,
        status=answer.status,
        remedy=f"If that is the right place, send to {location} instead.",
    )


def _describe(url: str, error: Exception) -> str:
    match error:
        case aiohttp.InvalidURL():
            return f"{url!r} is not an http or https URL"
        case aiohttp.ClientConnectorCertificateError():
            return f"no trusted TLS connection to {url}: {_tls_reason(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"no TLS connection to {url}: {_tls_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {url}: {reason_of(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return f"{url} closed the connection without an answer"
        case aiohttp.ConnectionTimeoutError():
            return f"connecting to {url} took too long"
        case asyncio.TimeoutError():
            return f"{url} did not answer in time"
        case OSError() if error.errno is not None:
            return f"posting to {url} failed: {reason_of(error)}"
        case _:
            return f"posting to {url} failed: {error or type(error).__name__}"


def _tls_reason(error: Exception) -> str:
    """OpenSSL's words without its codes and our dependencies' classes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def reason_of(error: OSError) -> str:
    """The system's own words for what went wrong."""
    # asyncio puts its own words and the address into strerror; the system's word is behind the number.
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)
