"""A bad network for tests and demonstrations: an HTTP proxy that loses, duplicates and delays exchanges.

It relays HTTP/1.1 exchanges between one listening port and one target, and chooses the faults. It knows neither SOAP
nor reliable messaging; an exchange is bytes with a length. It uses real sockets and real time, unlike the simulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Self

from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.exceptions import ConfigurationError
from holdfast.http.urls import split_url
from holdfast.settings import SecondsOrZero, Share, Within, brief_value, check_arguments, check_settings

__all__ = ["Fate", "Faults", "LossyProxy", "ProxyCounts", "Relayed"]

_HEAD_LIMIT = 64 * 1024
"""Longest request or response head read, in bytes."""
_NO_BODY = frozenset({204, 304})
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""The peer has disconnected or does not speak HTTP, so that nothing further can be read from it."""


class Fate(Enum):
    """The outcome of one exchange.

    Attributes:
        ANSWERED: The target got the request and the caller got the response.
        REQUEST_LOST: The target never saw the request; the caller's connection was closed without an answer.
        RESPONSE_LOST: The target got the request and answered; the caller's connection was closed without an answer.
        UNREACHABLE: The target did not answer; the caller's connection was closed without an answer.
    """

    ANSWERED = "answered"
    REQUEST_LOST = "request lost"
    RESPONSE_LOST = "response lost"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault occurs. Probabilities are from 0 (never) to 1 (always) and independent of each other.

    Args:
        lose_request: Probability that the request is lost before the target sees it.
        lose_response: Probability that the response is lost after the target has sent it.
        double: Probability that the target gets the request twice. The caller gets the answer to the first.
        delay: Probability that the request is delayed.
        max_delay: Seconds: the proxy draws the delay of a request evenly from zero to this.

    Raises:
        ConfigurationError: a probability outside 0..1, or a negative delay.
    """

    lose_request: Share = 0.0
    lose_response: Share = 0.0
    double: Share = 0.0
    delay: Share = 0.0
    max_delay: SecondsOrZero = 0.05

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(slots=True)
class ProxyCounts:
    """Counters of the proxy. Each exchange counts once as answered, lost or unreachable.

    Attributes:
        exchanges: All exchanges.
        answered: Those with an answer.
        requests_lost: Those with a lost request.
        responses_lost: Those with a lost response.
        unreachable: Those that the target did not answer.
        doubled: Requests that the target got twice.
        delayed: Requests that were delayed.
    """

    exchanges: int = 0
    answered: int = 0
    requests_lost: int = 0
    responses_lost: int = 0
    unreachable: int = 0
    doubled: int = 0
    delayed: int = 0

    @property
    def lost(self) -> int:
        """Exchanges without an answer because of an injected fault."""
        return self.requests_lost + self.responses_lost


@dataclass(frozen=True, slots=True)
class Relayed:
    """One relayed exchange, with heads and bodies as they were on the wire.

    Attributes:
        request: The request.
        response: The target's response, even if the caller never received it; None if the target sent none.
        fate: The outcome.
        doubled: Whether the target got the request twice.
    """

    request: bytes
    response: bytes | None
    fate: Fate
    doubled: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """The faults of one exchange, drawn when its request has arrived."""

    lose_request: bool
    lose_response: bool
    double: bool
    delay: float | None


class LossyProxy:
    """An HTTP proxy in front of one target that injects the given network faults.

    Use it as ``async with LossyProxy(url, Faults(lose_response=0.3), seed=7) as proxy``, and give the caller
    ``proxy.url``. ``proxy.counts`` are the :class:`ProxyCounts`.

    If the proxy loses an exchange, it closes the caller's connection without an answer. If the request is lost, this
    happens before the target sees it. If the response is lost, it happens after the target has answered. The caller
    cannot tell the two apart. The proxy reads the whole request before it decides, so a caller never sees a broken
    write.

    Each exchange draws from one random stream in the order in which requests arrive: the same seed and the same order
    of arrival give the same fates. ``faults`` and ``target`` may be changed while the proxy runs; they apply from the
    next request on. Every exchange has its own connection to the target; the caller's may be kept alive.

    Args:
        target: ``http://host:port/path`` of the service. ``url`` has the same path.
        faults: The faults to inject; none by default.
        seed: Of the random stream.
        host, port: The listening address; port 0 chooses a free one.
        on_relayed: Called with each finished exchange, on the event loop. For captures.

    Raises:
        ConfigurationError: the target is not an http URL with a host.
        OSError: on entering, when the port cannot be listened on.
    """

    def __init__(
        self,
        target: str,
        faults: Faults | None = None,
        *,
        seed: Annotated[int, Within(0)] = 0,
        host: str = "127.0.0.1",
        port: Annotated[int, Within(0, 65_535)] = 0,
        on_relayed: Callable[[Relayed], None] | None = None,
    ) -> None:
        check_arguments(LossyProxy, locals())
        self.target = target
        self.faults = faults or Faults()
        self.counts = ProxyCounts()
        self._random = random.Random(seed)
        self._host, self._port = host, port
        self._on_relayed = on_relayed
        self._server: asyncio.Server | None = None
        self._connections = BackgroundTasks()

    @property
    def target(self) -> str:
        """The target of the requests. May be set while the proxy runs."""
        return self._target

    @target.setter
    def target(self, target: str) -> None:
        parts = split_url(target)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigurationError(
                f"the target must be an http URL with a host, not {brief_value(target)}",
                remedy="Example: http://127.0.0.1:8080/.",
            )
        self._target = target
        self._target_host, self._target_port = parts.hostname, parts.port or 80

    @property
    def url(self) -> str:
        """The address to give to the caller: the proxy's host and port with the target's path."""
        parts = split_url(self._target)
        return f"http://{self._host}:{self._port}{parts.path or '/'}{'?' + parts.query if parts.query else ''}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_HEAD_LIMIT)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._connections.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay the exchanges of one caller's connection, until it closes or an exchange is lost."""
        try:
            keep_alive = True
            while keep_alive:
                request = await _read_request(reader, writer)
                if request is None:
                    return
                response = await self._exchange(request)
                if response is None:
                    return
                writer.write(response)
                await writer.drain()
                keep_alive = _keeps_alive(request) and _keeps_alive(response)
        except _BROKEN:
            return  # closing the connection is the only possible answer to malformed HTTP
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, request: bytes) -> bytes | None:
        relayed = await self._carry(request, self._plan())
        counts, fate = self.counts, relayed.fate
        counts.answered += fate is Fate.ANSWERED
        counts.requests_lost += fate is Fate.REQUEST_LOST
        counts.responses_lost += fate is Fate.RESPONSE_LOST
        counts.unreachable += fate is Fate.UNREACHABLE
        counts.doubled += relayed.doubled
        if self._on_relayed is not None:
            self._on_relayed(relayed)
        return relayed.response if fate is Fate.ANSWERED else None

    def _plan(self) -> _Plan:
        self.counts.exchanges += 1
        faults, draw = self.faults, self._random.random
        # Always make five draws, so that changing one probability does not change the later draws of the others.
        request, response, double, delay, duration = draw(), draw(), draw(), draw(), draw()
        return _Plan(
            lose_request=request < faults.lose_request,
            lose_response=response < faults.lose_response,
            double=double < faults.double,
            delay=duration * faults.max_delay if delay < faults.delay else None,
        )

    async def _carry(self, request: bytes, plan: _Plan) -> Relayed:
        if plan.delay is not None:
            self.counts.delayed += 1
            await asyncio.sleep(plan.delay)
        if plan.lose_request:
            return Relayed(request, None, Fate.REQUEST_LOST, doubled=False)
        response = await self._ask_target(request)
        if response is None:
            return Relayed(request, None, Fate.UNREACHABLE, doubled=False)
        doubled = plan.double and await self._ask_target(request) is not None
        return Relayed(request, response, Fate.RESPONSE_LOST if plan.lose_response else Fate.ANSWERED, doubled)

    async def _ask_target(self, request: bytes) -> bytes | None:
        try:
            reader, writer = await asyncio.open_connection(self._target_host, self._target_port, limit=_HEAD_LIMIT)
        except OSError:
            return None
        try:
            writer.write(request)
            await writer.drain()
            return await _read_response(reader, head_only=request.startswith(b"HEAD "))
        except _BROKEN:
            return None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


# --- as much HTTP/1.1 (RFC 9112) as it takes to know where a message ends -----------------------------------------


def _headers(head: bytes) -> dict[str, str]:
    """Return the header fields of a head: names in lower case, repeated fields joined by commas."""
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            name = name.strip().lower()
            headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return headers


def _keeps_alive(message: bytes) -> bool:
    """Whether the connection may be used again after this message (RFC 9112 section 9.3)."""
    head = message[: message.index(b"\r\n\r\n")]
    headers = _headers(head)
    start = head.split(b"\r\n", 1)[0]
    old = b"HTTP/1.0" in start
    connection = headers.get("connection", "").lower()
    if "close" in connection or (old and "keep-alive" not in connection):
        return False
    if start.startswith(b"HTTP/"):  # a response that ends where the connection does
        return "content-length" in headers or "transfer-encoding" in headers or int(start.split()[1]) in _NO_BODY
    return True


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    """Read one whole request; return None if the caller closed the connection instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    headers = _headers(head)
    if "100-continue" in headers.get("expect", "").lower():
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return head + await _read_chunks(reader)
    return head + await reader.readexactly(_length(headers) or 0)


async def _read_response(reader: asyncio.StreamReader, *, head_only: bool) -> bytes:
    """Read one whole final response; skip interim responses (1xx)."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = _status(head)
        if status >= 200:
            break
    headers = _headers(head)
    if head_only or status in _NO_BODY:
        return head
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return head + await _read_chunks(reader)
    length = _length(headers)
    return head + (await reader.read() if length is None else await reader.readexactly(length))


def _status(head: bytes) -> int:
    try:
        return int(head.split(None, 2)[1])
    except (IndexError, ValueError) as error:
        raise ConnectionError(f"not an HTTP response: {head[:40]!r}") from error


def _length(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not text.isdecimal():
        raise ConnectionError(f"Content-Length is not a number: {text!r}")
    return int(text)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body with its trailer, unchanged (RFC 9112 section 7.1)."""
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise ConnectionError(f"not the size of a chunk: {line[:40]!r}") from error
        if size == 0:
            break
        body += await reader.readexactly(size + 2)
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line
        if line == b"\r\n":
            return bytes(body)
