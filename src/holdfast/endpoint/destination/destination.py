"""Destination: an RM Destination for a service, as an ASGI application and as the handler of Holdfast's own server.

This module owns the settings and the calls of the application; ``running_destination`` has what exists while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.policy import Assurance, DestinationPolicy
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.endpoint.arguments import (
    check_class,
    to_assurance,
    to_journal,
    to_retention,
)
from holdfast.endpoint.destination.asgi_application import GRACE, ASGIApplication
from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.destination.queues import Partitioning, Queues, to_retentions
from holdfast.endpoint.destination.registration import HandlerRegistration
from holdfast.endpoint.destination.running_destination import DestinationSettings, RunningDestination
from holdfast.endpoint.destination.start_signals import StartSignals
from holdfast.endpoint.destination.wsdl import ServiceDescription
from holdfast.endpoint.envelopes.chain import to_processors
from holdfast.endpoint.envelopes.envelopes import Elsewhere, Envelopes
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.handling.handlers import HandlerTable
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import Exchange, Spooling
from holdfast.http.server.asgi import Buffered
from holdfast.settings import check_seconds
from holdfast.store import Store, shown
from holdfast.store.address import check_location
from holdfast.wire.generated_wsdl import generated_wsdl
from holdfast.wire.policy.writing import PolicyVersion


class Destination(HandlerRegistration, ASGIApplication):
    """An RM Destination: receives, stores and acknowledges messages from RM Sources, and delivers them to handlers.

    Register handlers with :meth:`on`. Without handlers, messages wait in the queue for a reader, such as a Spark query.
    A destination is an ASGI application: mount it in another application, or run it with any ASGI server. It starts
    with its first request or with the lifespan of its host. ``holdfast serve`` serves it faster.

    Args:
        store: The directory of the store, the URL of a database, ":memory:", or an open store.
        assurance: Words such as "exactly-once in-order" (WS-RM Policy's delivery assurances).
        policy: Limits and timers; ``assurance``, if given, replaces the assurance in it.
        handling: How often and with what pauses failing handlers are retried, and how many run at a time.
        queues: The queues that store messages, each with how long it keeps them, whether or not they have been read:
            words such as "7d", "12h 10GB", "none", or "7d readers 30d", which limits how long a reader's cursor
            protects older messages; or a RetentionPolicy. None: seven days, of any size; but if there are handlers, and
            the queue never had a reader, the destination deletes messages once they are handled, 256 of a partition at
            a time. A queue always keeps messages that handlers have not finished. Handlers receive the messages of the
            first queue. By default, the only queue is "inbox".
        partitions: The number of partitions of each queue, fixed when the store is created. The messages of a Sequence
            stay in one partition, which preserves their order.
        http: The public URL of the destination; what peers may do: addresses that they may name, limits; and TLS and
            proxy for requests to them.
        processors: Processors of every incoming and outgoing envelope, the one next to the network first.
        wsdl: The service's WSDL 1.1: a file's path, or its bytes. A GET with ``?wsdl`` returns it with the
            public address at each port of which the destination accepts an operation, and likewise the files that it
            imports from its directory. A header block that it declares for an operation is understood. The WSDL defines
            which operations are one-way, and the reply actions of the others. None: ``?wsdl`` returns a generated one,
            with an operation for each action and the destination's policy.
        journal: Whether to write an event journal, in ``journal`` in the store's directory, or a policy with its
            directory and retention. A store in memory or in a database has no such directory: there is no journal
            unless the policy names one.

    Raises:
        ConfigurationError: an assurance or a number is not valid, or a processor is not a processor.
    """

    def __init__(
        self,
        store: str | Path | Store = "inbox",
        *,
        assurance: str | Assurance | None = None,
        policy: DestinationPolicy | None = None,
        handling: HandlingPolicy | None = None,
        queues: Queues | None = None,
        partitions: int = 4,
        http: DestinationHTTP | None = None,
        processors: Iterable[Processor] = (),
        wsdl: str | Path | bytes | None = None,
        journal: bool | JournalPolicy = True,
    ):
        check_location(store)
        check_class("policy", policy, DestinationPolicy)
        check_class("handling", handling, HandlingPolicy)
        check_class("http", http, DestinationHTTP)
        policy, http = policy or DestinationPolicy(), http or DestinationHTTP()
        if assurance is not None:
            policy = replace(policy, assurance=to_assurance(assurance))
        self.incidents: Counter[str] = Counter()
        """How often each incident was logged, by name."""
        wsdl_given = ServiceDescription(
            wsdl,
            self._generated_wsdl,
            lambda action: self.settings.table.accepts(action),
            lambda: self.settings.http.public_url,
        )
        self._envelopes = Envelopes("destination", self.incidents, to_processors(processors), http.envelopes)
        self._envelopes.declared = wsdl_given.headers
        self.settings = DestinationSettings(
            location=store,
            policy=policy,
            http=http,
            handling=handling or HandlingPolicy(),
            queues=to_retentions(queues),
            partitioning=Partitioning(partitions),
            journal=to_journal(journal),
            envelopes=self._envelopes,
            wsdl=wsdl_given,
            table=HandlerTable(wsdl_given.operations),
        )
        self._buffered = Buffered(http.limits.max_buffered)
        self._starting = asyncio.Lock()
        self._start_signals = StartSignals()
        self._opened: RunningDestination | None = None
        self._contracts = {}

    def __repr__(self) -> str:
        return f"<Destination store={shown(self.settings.location)!r} queues={', '.join(self.settings.queues)}>"

    def keep(
        self,
        retention: str | RetentionPolicy | None = None,
        *,
        restored: bool = False,
        journal: bool | JournalPolicy | None = None,
    ) -> Self:
        """Change the first queue's retention or the journal, or declare the store restored, before the start.

        Args:
            retention: As in ``queues`` of the constructor; None leaves it unchanged.
            restored: Whether the store was restored from an older copy. The queues then get a new epoch, so that
                readers with checkpoints later than that copy stop with an error instead of missing messages. Set it
                for the first start after the restore only.
            journal: As for the constructor; None leaves it unchanged.

        Returns:
            The destination.

        Raises:
            ConfigurationError: the retention is not valid.
        """
        if retention is not None:
            first, *_ = self.settings.queues
            self.settings.queues = {**self.settings.queues, first: (to_retention(retention), False)}
        self.settings.restored = self.settings.restored or restored
        if journal is not None:
            self.settings.journal = to_journal(journal)
        return self

    def _generated_wsdl(self, address: str, version: PolicyVersion = "1.5") -> bytes:
        settings = self.settings
        return generated_wsdl(address, settings.table.described(), settings.policy_at(address, version), version)

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, recover every Sequence, and begin to accept requests. Safe to call twice.

        Raises:
            StoreError: the store cannot be opened, or abandoned handlers of an earlier start still run.
            ConfigurationError: the store's queue has another number of partitions, or the store belongs to a source; or
                the destination runs in another event loop.
        """
        async with self._starting:
            if self._opened is not None and self._is_open and self._opened.owner.has_ended:
                await self._opened.close(0.0)  # or its store would stay locked
            if self._opened is not None and self._is_open:
                self._opened.owner.check()
            else:
                if self._opened is not None:
                    self._opened.check_handlers_returned()
                self._opened = await RunningDestination.open(self.settings, self.incidents)

    async def close(self, grace: float = GRACE) -> None:
        """Wait up to ``grace`` seconds for running handlers, commit all pending writes, and close the store.

        Handlers that still run then are cancelled or abandoned, and logged: their messages are not handled, so the next
        start delivers them again. With at-most-once, they are lost. A plain handler runs on in its thread, and the
        store stays locked until it returns; ``holdfast serve`` ends the process instead. If the event loop that started
        it has ended, only close the store. While the database of the store is away, the last writes are retried for
        ``grace`` seconds, at least for one.

        Raises:
            ConfigurationError: the destination runs in another event loop; then nothing is closed.
        """
        check_seconds("grace", grace, endless=False)
        async with self._starting:  # a second call waits for the first
            if self._is_open:
                await self.running.close(grace)

    @property
    def _was_closed(self) -> bool:
        return self._opened is not None and not self._opened.is_open

    def _spooling(self) -> Spooling:
        return self.running.spooling()

    def end_sequence(self, identifier: str, *, terminate: bool = False) -> bool:
        """Close an inbound Sequence, so that it accepts no new messages, or terminate it.

        Delivered messages stay. The IncompleteSequenceBehavior of the Sequence decides about messages held beyond a
        gap. The destination notifies the source at AcksTo, or, if that is anonymous, in the answer to the next message
        (WS-RM 3.5, 3.6). WS-RM 1.0 has neither operation: there the fault SequenceTerminated terminates the Sequence.

        Args:
            identifier: The Identifier of the Sequence.
            terminate: Whether to terminate the Sequence rather than close it.

        Returns:
            Whether the Sequence existed and had not ended.
        """
        check_class("identifier", identifier, str, optional=False)
        engine = self.running.engine
        ended = engine.protocol.end_inbound(identifier, engine.clock(), terminate=terminate)
        engine.touch()
        return ended

    async def handled(self) -> None:
        """Wait until every message delivered so far is handled or a dead letter, and this is durable.

        This includes all retries. Without handlers, return at once.

        Raises:
            ConfigurationError: the destination is not running, or is closed during the wait.
            StoreFailed: the store has failed.
        """
        running = self.running
        if running.is_open:
            running.owner.check()
        if running.is_open and running.dispatcher is not None:
            await running.dispatcher.done()
        if not running.is_open:
            raise ConfigurationError(
                "the destination is not running", remedy="Await its start() first, and close it last."
            )
        await running.engine.settled()
        running.engine.check()

    @property
    def unhandled(self) -> int:
        """The number of delivered messages that handlers have not finished."""
        dispatcher = self._opened.dispatcher if self._opened is not None else None
        return dispatcher.handling.unhandled if dispatcher is not None else 0

    @property
    def dead_letters(self) -> int:
        """The number of messages that became dead letters since the start."""
        dispatcher = self._opened.dispatcher if self._opened is not None else None
        return dispatcher.handling.dead if dispatcher is not None else 0

    def handle(self, exchange: Exchange, is_elsewhere: Elsewhere | None = None) -> None:
        """Accept one HTTP request and answer it later. The destination must be started.

        Args:
            exchange: The request.
            is_elsewhere: Whether another process owns the envelope, and answers the exchange; None: no other process.
        """
        self.running.reception.handle(exchange, is_elsewhere)
