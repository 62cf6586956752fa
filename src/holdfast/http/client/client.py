"""HTTPClient: posts bytes to URLs over kept-alive connections. No task and no timer a request.

Owns the pools, one timer for all of them, and the heads of requests. Whether to send again is its caller's business,
and ``TransportError.connected`` what it needs to know for that.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Self

from holdfast.exceptions import ConfigurationError
from holdfast.http.client.connection import Call
from holdfast.http.client.pool import Pool, PoolLimits
from holdfast.http.client.proxies import Proxy
from holdfast.http.outcome import AnswerSpooling, Done, Response, Streamed, Switch, TransportError, one_outcome
from holdfast.http.reasons import TRUST_SETTINGS
from holdfast.http.urls import Origin, check_field, parse_url

_MOST_HEADS = 1024
"""Heads of requests that are remembered, so that one like the last costs a look-up."""


class HTTPClient:
    """Posts over kept-alive connections; share one client among all senders. An async context manager.

    Args:
        connect_timeout: Seconds to make a connection, TLS handshake included.
        total_timeout: Seconds for a request, from asking for a connection to the end of its answer.
        max_response: Largest answer's content in bytes.
        connections_per_host: Connections to one host and port at a time; further requests wait for one.
        max_connections: Connections to all hosts at a time; idle ones make room for others.
        keep_alive: Seconds that an idle connection is kept.
        ssl_context: The trusted authorities and the client certificate; the system's trust if None.
        proxy: The URL of an http proxy for everything.
        dials: Names of hosts to which connections are made in another way. It gets the lane and the protocol.
        trust_settings: The settings that name the authorities of ``ssl_context``, for errors.

    Raises:
        ConfigurationError: ``proxy`` is not an http proxy's URL.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 10.0,
        total_timeout: float = 60.0,
        max_response: int = 16 * 1024 * 1024,
        connections_per_host: int = 16,
        max_connections: int = 1024,
        keep_alive: float = 15.0,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | None = None,
        dials: Mapping[str, Callable[[str, asyncio.Protocol], Awaitable[object]]] | None = None,
        trust_settings: str = TRUST_SETTINGS,
    ) -> None:
        self._limits = PoolLimits(connections_per_host, max_response, connect_timeout, keep_alive)
        self._max_connections = max_connections
        self._total_timeout = total_timeout
        self._sweep_seconds = min(1.0, max(0.005, min(total_timeout, keep_alive) / 4))
        self._ssl = ssl_context
        self._trust_settings = trust_settings
        self._proxy = Proxy.parse(proxy) if proxy is not None else None
        self._dials = dials or {}
        self._pools: dict[tuple[Origin, str], Pool] = {}
        self._heads: dict[tuple[object, ...], tuple[Pool, bytes]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.spooling: AnswerSpooling | None = None
        """Returns where large answers go, of up to ``MAX_ATTACHMENTS`` bytes; ``total_timeout`` begins again with each
        piece. Set it before the first request."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def request(
        self,
        method: str,
        url: str,
        body: bytes | Streamed,
        headers: Mapping[str, str],
        done: Done,
        *,
        own: Mapping[str, str] | None = None,
        lane: str = "",
        switch: Switch | None = None,
    ) -> None:
        """Send once. Never repeats and never follows a redirect: a reliable sender must know the destination.

        Args:
            method: POST, or another method of the peer.
            url: Absolute http or https URL.
            body: The content. For one that is streamed, ``total_timeout`` begins again with each of its pieces.
            headers: Content-Type, SOAPAction, Authorization and so on.
            done: Called once with the answer, whatever its status unless it is a redirect; or with the
                :class:`TransportError`: no whole answer within the timeouts and the size, or a redirect. It may be
                called before this returns.
            own: Further headers, which no other request has.
            lane: Requests of different lanes use different connections.
            switch: Returns the protocol that has the connection after the answer; None: HTTP.
        """
        # Senders repeat their heads: a look-up instead of an URL to parse and headers to check.
        known = self._heads.get((method, url, lane, *headers.items()))
        try:
            pool, head = known or self._prepare(method, url, lane, headers)
            if own is not None:
                head += _lines(own)
        except (ConfigurationError, UnicodeError) as error:
            told, remedy = (error.message, error.remedy) if isinstance(error, ConfigurationError) else (str(error), "")
            done(TransportError(f"nothing was sent to {url}: {told}", connected=False, remedy=remedy))
            return
        head += b"Content-Length: %d\r\n\r\n" % (len(body) if isinstance(body, bytes) else body.size)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._total_timeout
        pool.send(Call(url, head, body, done, deadline, self._total_timeout, switch))
        # One timer for all requests, and none while nothing is open.
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._sweep_seconds, self._sweep)

    async def fetch(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """The same for who waits for one answer.

        Raises:
            TransportError: as :meth:`request` tells it.
        """
        answer, done = one_outcome()
        self.request(method, url, body, headers, done)
        outcome = await answer
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    @property
    def connections(self) -> int:
        """Number of open connections, to all hosts."""
        return sum(pool.connections for pool in self._pools.values())

    async def close(self) -> None:
        """Close all connections; what is in progress fails."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()
        self._heads.clear()

    def _prepare(self, method: str, url: str, lane: str, headers: Mapping[str, str]) -> tuple[Pool, bytes]:
        """Return the pool for a URL, and the encoded head of a request with these headers, from a cache."""
        if self._is_closed:
            raise ConfigurationError("the client is closed", remedy="Open another.")
        origin, target = parse_url(url)
        pool = self._pools.get((origin, lane)) or self._open_pool(origin, lane)
        lines = {"Host": origin.authority, "User-Agent": "holdfast", "Accept-Encoding": "identity"}
        if pool.forwarder is not None:  # RFC 9112 section 3.2.2
            target = f"http://{origin.authority}{target}"
            if pool.forwarder.authorization:
                lines["Proxy-Authorization"] = pool.forwarder.authorization
        head = f"{method} {target} HTTP/1.1\r\n".encode("latin-1") + _lines({**lines, **headers})
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        known = self._heads[(method, url, lane, *headers.items())] = (pool, head)
        return known

    def use(self, ssl_context: ssl.SSLContext) -> None:
        """Use other authorities and another client certificate for new connections. Existing ones keep theirs."""
        self._ssl = ssl_context
        for pool in self._pools.values():
            pool.use(ssl_context)

    def _open_pool(self, origin: Origin, lane: str) -> Pool:
        context = (self._ssl or _system_trust()) if origin.secure else None
        dial = self._dials.get(origin.host)
        made = partial(dial, lane) if dial is not None else None
        pool = self._pools[origin, lane] = Pool(
            origin,
            self._proxy,
            context,
            self._limits,
            self._has_room,
            made,
            self.spooling,
            trust_settings=self._trust_settings,
        )
        return pool

    def _has_room(self) -> bool:
        # An idle connection to another host makes room.
        return self.connections < self._max_connections or any(pool.close_idle() for pool in self._pools.values())

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for pool in list(self._pools.values()):
                pool.sweep(loop.time())
        finally:
            # So that many addresses, each sent to once, do not stay for ever, although others are always in use.
            used = {key: pool for key, pool in self._pools.items() if not pool.is_idle}
            if len(used) < len(self._pools):
                self._pools = used
                self._heads.clear()
            self._sweeper = loop.call_later(self._sweep_seconds, self._sweep) if used else None


def _lines(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        check_field(name, value)
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")


@cache
def _system_trust() -> ssl.SSLContext:
    return ssl.create_default_context()
