"""Serve a destination with Holdfast's HTTP server: the message listener, the admin listener, a clean stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from holdfast.endpoint.admin.application import Admin
from holdfast.endpoint.admin.guard import Guard
from holdfast.endpoint.admin.merged.application import JoinedAdmin
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.starting import StartingAdmin
from holdfast.endpoint.arguments import check_class
from holdfast.endpoint.descriptors import Shares, divide
from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.envelopes.envelopes import refuse_as_soap
from holdfast.endpoint.envelopes.http_media import tell_of_handshake
from holdfast.endpoint.listener_settings import AdminListener, Listeners, public_host
from holdfast.endpoint.listeners import listening_at
from holdfast.endpoint.logs import log
from holdfast.endpoint.shutdown import Shutdown, end_process
from holdfast.endpoint.workers.node_probes import NodeProbes
from holdfast.endpoint.workers.routing import Neighbours
from holdfast.endpoint.workers.supervisor import Post
from holdfast.exceptions import StoreDamaged
from holdfast.http.exchange import Handler, HTTPLimits
from holdfast.http.server.server import HTTPServer
from holdfast.http.urls import in_url
from holdfast.settings import check_callable

_START: Final = "the start"

GRACE: Final = 10.0
"""Seconds that requests in progress and handlers have to end."""
MOVE_GRACE: Final = 1.0
"""The same for a process of a cluster's node: another node waits for its work, and repeated requests find it there."""
COLLECT_EVERY = 20_000
"""Objects that may become garbage in cycles before a collection: a few megabytes."""


class Service:
    """A destination with its listeners, from start to stop.

    Args:
        app: The destination.
        listeners: The listeners' addresses and limits.
        post: This process's position among several workers; None for a single process.
    """

    def __init__(self, app: Destination, listeners: Listeners, post: Post | None = None) -> None:
        check_class("app", app, Destination, optional=False)
        check_class("listeners", listeners, Listeners, optional=False)
        self.app = app
        self._listeners = listeners
        self.post = post
        self._neighbours: Neighbours | None = None
        app.settings.worker = post.place.worker if post is not None else None
        self._server = HTTPServer()
        self._server.refusing = refuse_as_soap
        self._admin_server = HTTPServer()
        self._server.on_failed_handshake = self._admin_server.on_failed_handshake = tell_of_handshake
        self._admin: Admin | None = None
        self._probes: NodeProbes | None = None
        self._stage = _START
        """A phrase for what a stop of :meth:`run` waits for, until the destination closes."""

    async def start(self) -> None:
        """Recover every Sequence, then listen for messages.

        The admin listener of a single process answers probes from the beginning; with several workers, it answers once
        one of them has started.

        Raises:
            ConfigurationError: it cannot listen there, or the queue has another number of partitions.
            StoreError: the store cannot be opened.
        """
        # The commit thread must get the interpreter soon after its sync, not after Python's default of 5 ms.
        sys.setswitchinterval(0.0005)
        # Messages leave next to no cycles behind; looking for some after every 700 objects is a twentieth of the time.
        gc.set_threshold(COLLECT_EVERY)
        where = self._listeners
        shares = self._divide(where)
        if where.admin is not None and self.post is None:
            starting = StartingAdmin(_guard(where.admin))
            await self._listen_for_operators(where.admin, shares.admin, starting.handle)
        try:
            await self.app.start()
        except BaseException:
            await self._admin_server.close()
            raise
        try:
            handler: Handler = self.app.handle
            if self.post is None:
                self._server.spooling = self.app.running.spooling()
            else:
                self._neighbours = Neighbours(self.post.place, self.app.running, self._server, where.node)
                handler = self._neighbours.handle
                # Before the listener: the first message may belong to another worker.
                await self._neighbours.start(shares.messages, self.post.nodes)
            with listening_at(where.host, where.port):
                await self._server.start(
                    handler,
                    where.host,
                    where.port,
                    sockets=self.post.messages if self.post is not None else (),
                    ssl_context=where.ssl_context,
                    limits=shares.messages,
                )
            if self._neighbours is not None and self.post is not None:
                self._neighbours.take_connections()
                if self.post.place.worker.is_gateway:
                    placements, tell = self.post.place.placements, self.post.tell_unreachable
                    self._probes = NodeProbes(self._neighbours.workers, placements, tell)
                    self._probes.start()
            if where.admin is not None:
                await self._start_admin(where.admin, shares.admin)
        except BaseException:
            await self.close(0.0)
            raise
        gc.freeze()  # what was recovered and loaded stays: no collection need look through it
        self._stage = "requests in progress"
        connections = shares.messages.max_connections
        log.info("server.listening", url=self.url, admin=self.admin_url, connections=connections, files=shares.limit)

    def _divide(self, where: Listeners) -> Shares:
        limits = where.limits
        if self.post is not None:
            limits = self.post.place.worker.share_of_limits(limits)
        return divide(limits, where.admin.limits if where.admin is not None else None, where.spare_files)

    def use(self, listeners: Listeners) -> None:
        """Apply new limits to new connections. Addresses, the use of TLS, and open connections stay unchanged.

        Raises:
            ConfigurationError: too few descriptors would remain for peers; nothing then changes.
        """
        check_class("listeners", listeners, Listeners, optional=False)
        shares = self._divide(listeners)
        self._listeners = listeners
        self._server.use(shares.messages, listeners.ssl_context)
        if self._neighbours is not None:
            self._neighbours.use(shares.messages, listeners.node)
        if self._admin is not None and listeners.admin is not None:
            self._admin.guard = _guard(listeners.admin)
            self._admin_server.use(shares.admin, listeners.admin.ssl_context)

    async def _start_admin(self, where: AdminListener, limits: HTTPLimits) -> None:
        guard = _guard(where)
        if self._neighbours is None:
            self._admin = Admin(self.app.running, guard)
        else:
            assert self.post is not None
            port: int = self.post.admin[0].getsockname()[1]
            url = where.url or _url(where, public_host(where.host), port)
            joined = JoinedAdmin(self._neighbours, numbering_of(self.app.running), url)
            self._admin = Admin(self.app.running, guard, joined)
            self._neighbours.on_admin = self._admin.handle_own
        self._admin.start()
        if self.post is None:
            self._admin_server.handler = self._admin.handle
        else:
            await self._listen_for_operators(where, limits, self._admin.handle)
        if where.is_open:
            log.warning(
                "admin.no_token",
                url=self.admin_url,
                remedy="Set a token or require client certificates, or listen at 127.0.0.1",
            )

    async def _listen_for_operators(self, where: AdminListener, limits: HTTPLimits, handler: Handler) -> None:
        with listening_at(where.host, where.port):
            await self._admin_server.start(
                handler,
                where.host,
                where.port,
                sockets=self.post.admin if self.post is not None else (),
                ssl_context=where.ssl_context,
                limits=limits,
            )

    @property
    def url(self) -> str:
        """The URL of the message listener."""
        scheme = "https" if self._listeners.ssl_context is not None else "http"
        return f"{scheme}://{in_url(self._listeners.host)}:{self._server.port}/"

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the running service, to report after the start."""
        running = self.app.running
        epochs = {name: queue.description.epoch for name, queue in running.queues.items()}
        partitions = (running.queue.description.shared, running.queue.description.sessions)
        return {"url": self.url, "admin_url": self.admin_url, "epochs": epochs, "partitions": partitions}

    @property
    def admin_url(self) -> str:
        """Return the URL of the admin listener, "" without one."""
        admin = self._listeners.admin
        if self._admin is None or admin is None:
            return ""
        return _url(admin, admin.host, self._admin_server.port)

    async def close(self, grace: float = GRACE) -> None:
        """Accept no new requests, give those in progress and handlers ``grace`` seconds to end, then close everything.

        No handler starts in the second half of these seconds, so each has at least half of them.
        """
        if self._stage != _START:
            self.app.running.announce_stop(grace)
        if self._admin is not None:
            # First, so that a load balancer sends nothing new during the stop.
            self._admin.is_draining = True
        if self.post is not None and self.post.is_orphan:
            # The next supervisor needs the address now. Usually this listener reports the stop until its end.
            await self._admin_server.close()
        # From the outside in: work in progress needs what is closed later.
        await self._server.close(grace)
        self._stage = "requests of other workers and the admin listener"
        if self._probes is not None:
            await self._probes.close()
        if self._neighbours is not None:
            await self._neighbours.close()
        if self._admin is not None:
            await self._admin.close()
        await self._admin_server.close(1.0)
        await self.app.close(grace)

    def _waits_for(self) -> str:
        """Return, in words, what a stop waits for. Another thread calls this."""
        if self._stage == _START:
            return self._stage
        what = self.app.running.stage or self._stage
        if seconds := self.app.running.engine.progress[1]:
            what += f"; a commit has been in progress for {seconds:.1f} s, and its batch is not acknowledged"
        for name, count in (("connections of peers", self._connections), ("running handlers", self._handlers)):
            what += f"; {name}: {count}" if count else ""
        return what

    def _progress(self) -> tuple[object, ...]:
        """Return values that change while a stop makes progress. Another thread calls this."""
        if self._stage == _START:
            return (self._stage,)
        running = self.app.running
        return self._stage, running.stage, running.engine.progress[0], self._connections, self._handlers

    @property
    def _connections(self) -> int:
        return len(self._server.connections)

    @property
    def _handlers(self) -> int:
        dispatcher = self.app.running.dispatcher
        return dispatcher.running if dispatcher is not None else 0

    async def run(self, stop: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Start, serve until SIGINT, SIGTERM, ``stop`` or a failure of the store, then close.

        A signal also ends the start, even while it waits for a database. A second signal ends the process at once.
        After the first, the process ends within 25 seconds, or within 28.5 while the stop makes progress. If the stop
        takes longer, or handlers do not return in time, the process logs what it waited for and ends with exit code 1.

        Args:
            stop: Set it to stop serving, as the first signal does.
            on_ready: Called when the service accepts messages.

        Raises:
            StoreFailed: the store has failed, and only a restart can help, for example by the process supervisor.
                A damaged store does not end the process: the service rejects all requests, and health reports it.
            ConfigurationError, StoreError: as for :meth:`start`.
        """
        check_class("stop", stop, asyncio.Event)
        check_callable("on_ready", on_ready, 0)
        stop = stop or asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = 0
        shutdown = Shutdown(self._progress, self._waits_for)

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            if signals > 1 and self.post is not None:
                return  # a service manager signals every process, and the supervisor passes its own signal on
            if signals > 1:
                # Not sys.exit: that would wait for handlers that run in threads. Nothing durable depends on an end.
                os._exit(130)
            log.info("server.stopping", how="finishing work in progress; signal again to stop at once")
            shutdown.begin()
            stop.set()
            starting.cancel()  # nothing was accepted yet, and a database that is away may be waited for

        # What a terminal sends to all processes the supervisor of several hears, and passes on.
        numbers = (signal.SIGINT, signal.SIGTERM) if self.post is None else (signal.SIGTERM,)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)

        def on_store_failed(error: BaseException) -> None:
            # A new start does not help where the store is damaged: stay, refuse, and let health say so.
            if not isinstance(error, StoreDamaged):
                stop.set()

        self.app.settings.on_store_failed = on_store_failed
        starting = loop.create_task(self.start())
        try:
            try:
                await starting
            except asyncio.CancelledError:
                if not signals:
                    raise
                return
            try:
                on_ready()
                await stop.wait()
            finally:
                began = loop.time()
                await self.close(GRACE if self._listeners.node is None else MOVE_GRACE)
                if self.app.running.has_abandoned:
                    # Their threads would keep the process alive, and complete work that the next start does again.
                    end_process("abandoned handlers", loop.time() - began)
            if (failure := self.app.running.engine.failure) is not None:
                raise failure
        finally:
            shutdown.done()
            for number in numbers:
                loop.remove_signal_handler(number)


def _guard(admin: AdminListener) -> Guard:
    is_secure = admin.ssl_context is not None
    return Guard(admin.names, admin.token, metrics_token=admin.metrics_token, secure=is_secure)


def _url(admin: AdminListener, host: str, port: int) -> str:
    return f"{'https' if admin.ssl_context is not None else 'http'}://{in_url(host)}:{port}"
