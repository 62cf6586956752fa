"""A listener that answers ``GET /metrics``, for a command without an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from holdfast.endpoint.admin.guard import Guard
from holdfast.endpoint.admin.routes import Refused
from holdfast.endpoint.listeners import listening_at
from holdfast.http.exchange import Exchange, HTTPLimits
from holdfast.http.server.server import HTTPServer

LIMITS = HTTPLimits(max_body=1024, max_buffered=1024 * 1024, max_unsent=4 * 1024 * 1024, max_connections=16)


class MetricsListener:
    """Serves a collector's metrics in a separate thread, as a context manager.

    Args:
        collector: The collector; it must answer immediately, from any thread.
        host: The listening address.
        port: Its port; 0 chooses a free one.

    Raises:
        ConfigurationError: On entry: the system does not allow the address.
    """

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._host, self.port = host, port
        self._guard = Guard()
        self._runner = asyncio.Runner()
        self._server = HTTPServer()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._start())
        except BaseException:
            self._runner.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.get_loop().call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._runner.close()

    async def _start(self) -> None:
        with listening_at(self._host, self.port):
            await self._server.start(self._answer, self._host, self.port, limits=LIMITS)
        self.port = self._server.port

    def _serve(self) -> None:
        self._runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        await self._server.close()

    def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            self._guard.check(request)
        except Refused as refused:
            exchange.respond(refused.status, b"Ask this listener by its IP address, from a program.\n", b"text/plain")
            return
        if request.target.partition("?")[0] != "/metrics":
            exchange.respond(
                404, b"This listener has metrics only, at the path that Prometheus asks by default.\n", b"text/plain"
            )
        elif request.method not in ("GET", "HEAD"):
            exchange.respond(405, b"Use GET.\n", b"text/plain", ((b"Allow", b"GET"),))
        else:
            exchange.respond(200, generate_latest(self._registry), CONTENT_TYPE_LATEST.encode())
