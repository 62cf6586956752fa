"""A load balancer without stickiness: each request goes to the next server in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Outcome, Response
from holdfast.http.server.server import HTTPServer

_OWN = ("content-length", "content-type", "connection", "date", "server", "transfer-encoding", "keep-alive", "host")


ROUNDS = 20
"""How often a balancer tries each node of a cluster: a takeover takes longer than two answers of 503."""
PAUSE = 1.0
"""Seconds between two rounds."""


class Balancer:
    """Passes requests on. If a server refuses the connection, the next one gets the request. If it dies with the
    request, the client gets a 502, or a 503 from a balancer that repeats and has no further server.

    Args:
        urls: The servers.
        repeats: Whether the next server also gets a request with which one died, or that one answered with 503 or not
            at all: nginx' ``timeout http_503 non_idempotent``.
        rounds: How often each server may get a request. A takeover may take longer than one round.
    """

    def __init__(self, urls: Sequence[str], *, repeats: bool = False, rounds: int = 1) -> None:
        self._repeats = repeats
        self._rounds = rounds
        self._urls = [url.rstrip("/") for url in urls]
        self._turn = 0
        self._server = HTTPServer()
        self._http = HTTPClient(connect_timeout=2.0, total_timeout=35.0)  # as docs/how-to/cluster.md tells operators
        self.requests = 0
        self.failures: list[str] = []
        self.statuses = Counter[int]()
        """What the clients were answered."""

    async def __aenter__(self) -> Balancer:
        await self._server.start(self._take, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close(0.0)
        await self._http.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.port}/"

    def _take(self, exchange: Exchange) -> None:
        self.requests += 1
        self._turn += 1
        first = self._turn % len(self._urls)
        self._pass_on(exchange, [*self._urls[first:], *self._urls[:first]] * self._rounds)

    def _pass_on(self, exchange: Exchange, urls: list[str]) -> None:
        request = exchange.request
        url = urls[0] + request.target
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers.items()
            if name.decode("latin-1") not in (*_OWN[:1], *_OWN[2:], "user-agent", "accept-encoding", "expect")
        }

        def pass_on() -> None:
            is_next_round = len(urls) % len(self._urls) == 1
            asyncio.get_running_loop().call_later(PAUSE * is_next_round, self._pass_on, exchange, urls[1:])

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Response) and outcome.status == 503 and self._repeats and len(urls) > 1:
                pass_on()
            elif isinstance(outcome, Response):
                kept = [
                    (name.encode("latin-1"), value.encode("latin-1"))
                    for name, value in outcome.headers.items()
                    if name not in _OWN
                ]
                self.statuses[outcome.status] += 1
                exchange.respond(outcome.status, outcome.body, outcome.content_type.encode("latin-1") or None, kept)
            elif (self._repeats or not outcome.connected) and len(urls) > 1:
                pass_on()
            else:
                self.failures.append(outcome.message)
                exchange.respond(503 if self._repeats else 502)

        self._http.request(request.method, url, request.body, headers, done)
