"""The admin listener: Sequences, dead letters, metrics, health, and the data plane. Bind it to a private address.

Paths are described in docs/reference/data-plane.md.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from holdfast.endpoint.admin_guard import Guard
from holdfast.endpoint.admin_routes import Asked, Refused, Routes
from holdfast.endpoint.data_plane import DataPlane
from holdfast.endpoint.destination import Destination, json_answer
from holdfast.endpoint.inspection import ages, describe_protocol
from holdfast.endpoint.letters_admin import LetterRoutes
from holdfast.endpoint.logs import log
from holdfast.endpoint.metrics import DestinationCollector
from holdfast.endpoint.outboxes_admin import OutboxRoutes
from holdfast.exceptions import StoreError
from holdfast.http.exchange import Exchange


class Admin:
    """Answers for one destination.

    Args:
        app: The destination, started.
        guard: Who may ask.
    """

    def __init__(self, app: Destination, guard: Guard | None = None) -> None:
        self._app = app
        self._guard = guard or Guard()
        self._registry = CollectorRegistry()
        self._collector = DestinationCollector(app)
        self._registry.register(self._collector)
        self._tasks: set[asyncio.Task[None]] = set()
        self.routes = Routes(
            [
                ("GET", "healthz", self._health),
                ("GET", "metrics", self._metrics),
                ("GET", "sequences", self._list_sequences),
                ("GET", "sequences/{identifier}", self._show_sequence),
                ("POST", "sequences/{identifier}/{how:close|terminate}", self._end_sequence),
                *LetterRoutes(app).routes,
                *OutboxRoutes(app).routes,
                *DataPlane(app).routes,
            ]
        )

    def handle(self, exchange: Exchange) -> None:
        """Take one HTTP request; the answer follows."""
        task = asyncio.ensure_future(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self._guard.check(exchange.request)
            await self._route(exchange)
        except Refused as refused:
            body = {"error": refused.message, "remedy": refused.remedy}
            json_answer(exchange, refused.status, body, refused.headers)
        except StoreError as error:
            json_answer(exchange, 503, {"error": error.message, "remedy": error.remedy})
        except Exception as error:
            log.error("admin request failed", target=exchange.request.target, exc_info=error)
            json_answer(exchange, 500, {"error": repr(error), "remedy": "This is a bug; the log has more."})

    async def _route(self, exchange: Exchange) -> None:
        url = urlsplit(exchange.request.target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        route, names = self.routes.find(exchange.request.method, url.path)
        await route(Asked(exchange, exchange.request.method, query), **names)

    async def _health(self, asked: Asked) -> None:
        wrong = self._app.engine.health()
        if wrong is not None:
            raise Refused(503, wrong.message, wrong.remedy)
        json_answer(asked.exchange, 200, {"status": "ok"})

    async def _metrics(self, asked: Asked) -> None:
        self._collector.ages = await self._ages()
        asked.exchange.respond(200, generate_latest(self._registry), CONTENT_TYPE_LATEST.encode())

    async def _ages(self) -> dict[str, dict[str, float]]:
        """None are told of a store that cannot be read: there are the other metrics still."""
        try:
            return {name: await ages(self._app.engine, queue) for name, queue in self._app.queues.items()}
        except StoreError:
            return {}

    # --- sequences ------------------------------------------------------------------------------------------------

    def _sequences(self) -> list[dict[str, Any]]:
        engine = self._app.engine
        return describe_protocol(engine.protocol, engine.clock())

    async def _list_sequences(self, asked: Asked) -> None:
        json_answer(asked.exchange, 200, {"sequences": self._sequences()})

    async def _show_sequence(self, asked: Asked, identifier: str) -> None:
        found = [one for one in self._sequences() if one["identifier"] == identifier]
        if not found:
            raise Refused(404, f"no Sequence {identifier}", "GET /sequences lists them.")
        json_answer(asked.exchange, 200, found[0])

    async def _end_sequence(self, asked: Asked, identifier: str, how: str) -> None:
        if not self._app.end_sequence(identifier, terminate=how == "terminate"):
            raise Refused(404, f"no open Sequence {identifier}", "GET /sequences lists them.")
        await self._app.engine.durable()
        await self._show_sequence(asked, identifier)

    async def close(self) -> None:
        """Give up what is being answered."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
