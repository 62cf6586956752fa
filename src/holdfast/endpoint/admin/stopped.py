"""The admin interface of a store that no server runs: the same routes, without a listener.

It answers everything that the store itself knows, and changes dead letters and outboxes. Nothing is sent, delivered or
deleted: whatever else is due, the next start of the server does.
"""

from __future__ import annotations

import asyncio
import random
import sys

from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.description import DEAD_LETTERS, OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record, Snapshot
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.context import OutboxHooks
from holdfast.core.sending.recovery import recover_outbound
from holdfast.endpoint.admin.data_plane.readers import DataPlane
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.resources.dead_letters import LetterRoutes
from holdfast.endpoint.admin.resources.forwarders import ForwarderRoutes
from holdfast.endpoint.admin.resources.outboxes import OutboxRoutes
from holdfast.endpoint.admin.resources.queues import QueueRoutes
from holdfast.endpoint.admin.resources.rates import Rates
from holdfast.endpoint.admin.resources.sequences import SequenceRoutes
from holdfast.endpoint.admin.responses import refuse, respond, split_target
from holdfast.endpoint.admin.routes import Refused, Route, Routes, routes_of
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import Engine, new_identifier
from holdfast.endpoint.envelopes.fault_replies import passed_on
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.endpoint.worker import Worker
from holdfast.http.exchange import Exchange, Request
from holdfast.store import Store

CHANGEABLE = ("dead-letters", "outbox")
"""The resources of a stopped store that a request may change."""


class StoppedEngine(Engine):
    """An engine that never runs: it reads the store, and commits only what a request changes."""

    def __init__(self, store: Store, snapshot: Snapshot, clock: Clock | None = None) -> None:
        super().__init__(store, lambda _effect: None, lambda _error: None, clock)
        now = self.clock()
        # Recovery must end and forget no Sequence, whatever the time and the limits of the next server.
        policy = DestinationPolicy(max_open_requests=sys.maxsize, buffer=sys.maxsize)
        self.protocol = protocol = RMProtocol(
            Queue("of no message"),
            Environment(store.read, new_identifier, random.random),
            policies=Policies(destination=policy),
            rules=MessageRules(tell=passed_on),
        )
        # An offered Sequence is forgotten with the Sequence that offered it.
        hooks = OutboxHooks(lambda identifier, _now: protocol.commit.forget(identifier))
        recover_outbound(protocol.outbound.registry, hooks, protocol.queues, snapshot, now)
        for state in snapshot.sequences.values():
            if state["role"] == "destination":
                identifier = state["identifier"]
                held = snapshot.held.get(identifier, [])
                protocol.inbound.destinations[identifier] = RMDestination.from_state(state, held, policy, now)
        protocol.replies.outboxes.match()

    async def records(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        return self.store.read(queue, partition, start, end)

    async def durable(self) -> None:
        """Commit all changes so far."""
        if self.protocol.wants_commit:
            self.store.commit(self.protocol.take_batch())

    def touch(self) -> None:
        """Do nothing: the next start of the server does what is due."""


class StoppedStore:
    """The state in a store that no server runs.

    Args:
        store: The store, open for reading, or for changes.
        worker: The worker that has the store; None: it is read like that of a single process.
    """

    def __init__(self, store: Store, clock: Clock | None = None, worker: Worker | None = None) -> None:
        self.store = store
        self.worker = worker
        snapshot = store.load()
        self.engine: Engine = StoppedEngine(store, snapshot, clock)
        now, queues, parts = self.engine.clock(), self.engine.protocol.queues, snapshot.by_queue()
        self.dead_letters = DeadLetters(seal, unseal)
        queues.add(self.dead_letters).recover(snapshot, now)
        names = sorted(
            name
            for name, state in snapshot.queues.items()
            if state.get("kind") != OUTBOX and not name.startswith(ASIDE) and name != DEAD_LETTERS
        )
        self.queues = {name: queues.recover(name, parts[name], now) for name in names}
        self.readers = {name: Readers(self.engine, queue) for name, queue in self.queues.items()}
        for queue in self.queues.values():
            queue.dead_letters = self.dead_letters


class StoppedAdmin:
    """Answers the requests of an admin client from a store that no server runs.

    Args:
        store: The store, open for reading, or for changes.
        worker: The worker that has the store, if its answers are to be joined with those of others.

    Attributes:
        numbers: The numbers of its partitions.
    """

    def __init__(self, store: Store, worker: Worker | None = None) -> None:
        app = StoppedStore(store, worker=worker)
        self.numbers = numbering_of(app)
        rates = Rates(lambda: app.queues.values(), app.engine.clock)
        table = routes_of(
            SequenceRoutes(app),
            LetterRoutes(app, app.dead_letters.ask),
            OutboxRoutes(app),
            ForwarderRoutes(app),
            DataPlane(app, asyncio.Semaphore(1)),
            QueueRoutes(app, rates),
        )
        self._routes = Routes(one for one in table if one.method == "GET" or one.path.startswith(CHANGEABLE))

    def find(self, request: Request) -> tuple[Route, str, dict[str, str]]:
        """Return the route of a request, its query, and the names in its path.

        Raises:
            Refused: There is none, or only a running server has it.
        """
        url = split_target(request.target)
        try:
            route, names = self._routes.find(request.method, url.path)
        except Refused as refused:
            if refused.status not in (404, 405):
                raise
            what = f"a stopped store cannot answer {request.method} {request.target.partition('?')[0][:200]}"
            raise Refused(409, what, "Start its server, then use --admin URL.") from None
        return route, url.query, names

    async def answer(self, exchange: Exchange) -> None:
        try:
            route, query, names = self.find(exchange.request)
        except Refused as refused:
            refuse(exchange, refused)
            return
        await respond(route, exchange, query, names)
