"""The admin listener: Sequences, queues, dead letters, metrics, health, the data plane. Bind it to a private address.

Its routes are one table; ``GET /openapi.json`` describes them, and so does docs/reference/admin-api.md.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from holdfast.endpoint.admin.data_plane.next_positions import NextRoute
from holdfast.endpoint.admin.data_plane.readers import DataPlane
from holdfast.endpoint.admin.data_plane.record_stream import READING_AT_A_TIME
from holdfast.endpoint.admin.data_plane.sinks import SinkRoutes
from holdfast.endpoint.admin.guard import OPEN_TO_ALL, Guard
from holdfast.endpoint.admin.merged.application import JoinedAdmin
from holdfast.endpoint.admin.metrics import DestinationCollector
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.openapi import describe
from holdfast.endpoint.admin.resources.dead_letters import LetterRoutes, retry_letters
from holdfast.endpoint.admin.resources.forwarders import ForwarderRoutes
from holdfast.endpoint.admin.resources.journal import JournalRoutes
from holdfast.endpoint.admin.resources.outboxes import OutboxRoutes
from holdfast.endpoint.admin.resources.queues import QueueRoutes
from holdfast.endpoint.admin.resources.rates import Rates
from holdfast.endpoint.admin.resources.sequences import SequenceRoutes
from holdfast.endpoint.admin.responses import refuse, report_bug, respond, split_target
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, Route, Routes, route, routes_of
from holdfast.endpoint.admin.shapes.answers import Anything, Health, Nodes, Reloaded
from holdfast.endpoint.admin.shapes.requests import NodesQuery
from holdfast.endpoint.background_tasks import BackgroundTasks
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.endpoint.inspection import ages, oldest
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.outboxes import forwarder_of
from holdfast.exceptions import ConfigurationError, StoreError
from holdfast.http.exchange import Exchange
from holdfast.outages import Trouble

LONGEST_READ: Final = 1.0
"""Seconds that metrics wait for the store; if it takes longer, they leave out the ages of records."""


class Admin:
    """The admin listener of one destination.

    Args:
        app: The destination, started before the first request.
        joined: The workers that it answers for together with itself; None: for itself only.
    """

    def __init__(self, app: RunningDestination, guard: Guard | None = None, joined: JoinedAdmin | None = None) -> None:
        self._app = app
        self._joined = joined
        self.guard = guard or Guard()
        """The access checks, which a new configuration may replace."""
        self._registry = CollectorRegistry()
        self._collector = DestinationCollector(app)
        self._registry.register(self._collector)
        self._tasks = BackgroundTasks()
        self._reading: asyncio.Task[None] | None = None
        self._rates = Rates(lambda: app.queues.values(), lambda: app.engine.clock())
        self.is_draining = False
        """Whether no new messages are taken, since it is being stopped."""
        self._large = asyncio.Semaphore(READING_AT_A_TIME)
        """Admits large answers, and blocks that are read for readers."""
        self._large_joined = asyncio.Semaphore(READING_AT_A_TIME)
        """Admits large answers of several workers, of which this one makes its own part."""
        self._sinks = SinkRoutes(app)
        parts = (
            SequenceRoutes(app),
            LetterRoutes(app, partial(retry_letters, app)),
            OutboxRoutes(app),
            ForwarderRoutes(app),
            DataPlane(app, self._large),
            NextRoute(app),
            QueueRoutes(app, self._rates),
            self._sinks,
            JournalRoutes(app),
        )
        self.routes = Routes(routes_of(self, *parts))

    def start(self) -> None:
        """Look from now on how fast things move."""
        self._rates.start()
        self._collector.begin()

    def handle(self, exchange: Exchange) -> None:
        """Process one HTTP request, and answer it later."""
        self._tasks.start(self._answer(exchange))

    def handle_own(self, exchange: Exchange) -> None:
        """Process a request of another worker, which has checked the access, for the resources of this one."""
        self._tasks.start(self._answer_own(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self.guard.check(exchange.request)
            url = split_target(exchange.request.target)
            route, names = self.routes.find(exchange.request.method, url.path)
        except Refused as refused:
            refuse(exchange, refused)
            return
        is_joined = self._joined is not None and route.joined is not Joined.ANY
        status = await (self._do_joined if is_joined else self._do)(route, exchange, url.query, names)
        if route.leaves_a_line:
            request = exchange.request
            log.info("admin.request", method=request.method, path=url.path, peer=request.peer, status=status)

    async def _answer_own(self, exchange: Exchange) -> None:
        url = split_target(exchange.request.target)
        try:
            route, names = self.routes.find(exchange.request.method, url.path)
        except Refused as refused:
            refuse(exchange, refused)
            return
        await self._do(route, exchange, url.query, names)

    async def _do_joined(self, route: Route, exchange: Exchange, query: str, names: dict[str, str]) -> int:
        assert self._joined is not None
        try:
            route.read(exchange, query)  # what is wrong with it is said once
            if not route.is_large:
                return await self._joined.answer(route, exchange, query, names)
            async with self._large_joined:
                return await self._joined.answer(route, exchange, query, names)
        except Refused as refused:
            refuse(exchange, refused)
            return refused.status
        except Exception as error:
            return report_bug(exchange, error)

    async def _do(self, route: Route, exchange: Exchange, query: str, names: dict[str, str]) -> int:
        if not route.is_large:
            return await respond(route, exchange, query, names)
        async with self._large:
            return await respond(route, exchange, query, names)

    @route("GET", "healthz", Health, joined=Joined.HEALTH)
    async def _health(self, asked: Asked) -> object:
        """Liveness: fails if a restart would help."""
        engine, journal = self._app.engine, self._app.journal
        wrong = engine.health()
        if wrong is not None and engine.needs_restart:
            raise Refused(503, wrong.message, wrong.remedy)
        return (
            {"status": "ok"}
            | ({"trouble": str(Trouble(wrong.message, wrong.remedy))} if wrong is not None else {})
            | ({"journal": journal.trouble} if journal is not None and journal.trouble else {})
        )

    @route("GET", "readyz", Health, joined=Joined.HEALTH)
    async def _ready(self, asked: Asked) -> object:
        """Readiness: whether the server accepts messages.

        The listener starts only once the endpoint has recovered.
        """
        if self.is_draining:
            raise Refused(503, "the server is stopping: it finishes requests in progress", "Use another server.")
        if (wrong := self._app.engine.health()) is not None:
            raise Refused(503, wrong.message, wrong.remedy)
        worker = self._app.worker
        if worker is not None and not worker.may_act:
            raise Refused(
                503, "the lease of this node was not renewed in time, so it accepts nothing", "Check its log."
            )
        outboxes = self._app.engine.protocol.outbound.outboxes.values()
        stopped = sorted(
            {name for one in outboxes if one.lifecycle.stopped and (name := forwarder_of(one.key)) is not None}
        )
        return {"status": "ready"} | ({"stopped": stopped} if stopped else {}) | self._handlers()

    def _handlers(self) -> dict[str, str]:
        """Return the report that all handlers hang, if they do. Messages are accepted meanwhile, and stored."""
        handling, now = self._app.engine.protocol.handling, self._app.engine.clock()
        if handling is None or handling.started.stuck_since is None:
            return {}
        running, seconds = handling.started, round(handling.started.oldest(now))
        return {"handlers": f"all {len(running)} handlers are busy, the oldest for {seconds:,} s. The log names it"}

    @route("POST", "reload", Reloaded, errors=(404, 409), joined=Joined.ANY)
    async def _reload(self, asked: Asked) -> object:
        """Reload the configuration, completely or not at all; keep a certificate that works."""
        if self._app.settings.reload is None:
            raise Refused(
                404,
                "this server has no configuration file",
                "Only a broker started with holdfast broker --config FILE can reload.",
            )
        try:
            done = self._app.settings.reload()
        except ConfigurationError as error:
            raise Refused(409, error.message, error.remedy or "Correct the file, then reload it.") from error
        return {"changed": done.changed} | ({"not_used": dict(done.not_used)} if done.not_used else {})

    @route("GET", "openapi.json", Anything, joined=Joined.ANY)
    async def _openapi(self, asked: Asked) -> object:
        """This description."""
        return describe(self.routes, open_to_all=OPEN_TO_ALL, has_token=self.guard.has_token)

    @route("GET", "nodes", Nodes, NodesQuery, joined=Joined.NODES)
    async def _nodes(self, asked: Asked) -> object:
        """Return which node of a cluster has which worker's partitions.

        This is the answer of one node; several workers answer for all nodes together.
        """
        url = self._joined.url if self._joined is not None else ""
        return {"v": 1, "url": url, "partitions": numbering_of(self._app).size, "workers": []}

    @route("GET", "metrics", "text/plain", joined=Joined.METRICS)
    async def _metrics(self, asked: Asked) -> None:
        """Metrics for Prometheus."""
        if self._reading is None or self._reading.done():
            self._collector.ages, self._collector.oldest = {}, {}
            self._reading = self._tasks.start(self._read_ages())
        # One reading at a time: scrapes of a store that hangs must not pile up behind it.
        if (await asyncio.wait({self._reading}, timeout=LONGEST_READ))[0]:
            self._reading.result()
        asked.exchange.respond(200, generate_latest(self._registry), CONTENT_TYPE_LATEST.encode())

    async def _read_ages(self) -> None:
        """Read the ages from the store; if it cannot be read, omit them, since the other metrics remain."""
        engine, queues = self._app.engine, self._app.queues.items()
        try:
            found = {name: await ages(engine, queue) for name, queue in queues}
            self._collector.oldest = {name: await oldest(engine, queue) for name, queue in queues}
            self._collector.ages = found
        except StoreError:
            self._collector.ages, self._collector.oldest = {}, {}

    async def close(self) -> None:
        """Give up what is being answered."""
        self._rates.stop()
        await self._tasks.cancel()
        await self._sinks.close()
