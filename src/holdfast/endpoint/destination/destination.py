"""Destination: an RM Destination for a service, as an ASGI application and as the handler of Holdfast's own server.

This module takes one message from its bytes to its answer. Other packages handle HTTP, XML, the protocol and the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar, cast

from holdfast.core.events import (
    Acknowledged,
    Declined,
    Delivered,
    Discarded,
    Effect,
    Ended,
    FaultReceived,
    Handle,
    Incident,
    NotQueued,
    Respond,
    Stopped,
    Submitted,
    Transmit,
    Unheard,
)
from holdfast.core.forwarding.undeliverable import UndeliverableMessages
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.policy import Assurance, DestinationPolicy
from holdfast.core.protocol_settings import MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Snapshot
from holdfast.endpoint.arguments import (
    check_class,
    check_store,
    to_assurance,
    to_journal,
    to_retention,
)
from holdfast.endpoint.descriptors import outgoing
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.endpoint.destination.asgi_application import ASGIApplication
from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.destination.queues import Partitioning, Queues, check_queues, new_queues
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.destination.reception import Reception, Router, refuse_all
from holdfast.endpoint.destination.registration import HandlerRegistration
from holdfast.endpoint.destination.unanswered_exchanges import Unanswered
from holdfast.endpoint.destination.wsdl import ServiceDescription
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import SOURCES_QUEUE, Engine
from holdfast.endpoint.engine.opening import in_thread, open_off_loop, patiently
from holdfast.endpoint.envelopes.envelopes import Elsewhere, Envelopes
from holdfast.endpoint.envelopes.fault_replies import passed_on, set_aside
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.envelopes.transport_facts import Keeper
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.endpoint.handling.dispatcher import Dispatcher, MessageHandler
from holdfast.endpoint.handling.handlers import HandlerTable
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.logs import log, log_incident
from holdfast.endpoint.sending.sender import Sender
from holdfast.endpoint.sending.stopped import log_stopped
from holdfast.endpoint.worker import Worker, check_stores
from holdfast.exceptions import ConfigurationError, StoreError, StoreLocked
from holdfast.http.exchange import Exchange
from holdfast.http.server.asgi import Buffered
from holdfast.store import Store, shown
from holdfast.store.descriptors import soft_limit
from holdfast.wire.generated_wsdl import generated_wsdl
from holdfast.wire.policy.writing import written

_UNHEEDED = frozenset((Submitted, Acknowledged, Declined, Discarded, Ended, Unheard, NotQueued, FaultReceived))
"""Effects for sources and for the journal; a destination ignores them."""

_UNTRACED = contextlib.nullcontext()

HandlerT = TypeVar("HandlerT", bound=MessageHandler)


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
            the queue never had a reader, the destination deletes each message once it is handled. A queue always keeps
            messages that handlers have not finished. Handlers receive the messages of the first queue. By default, the
            only queue is "inbox".
        partitions: The number of partitions of each queue, fixed when the store is created. The messages of a Sequence
            stay in one partition, which preserves their order.
        http: What peers may do: addresses that they may name, limits; and TLS and proxy for requests to them.
        processors: Processors of every incoming and outgoing envelope, the one next to the network first.
        wsdl: The service's WSDL 1.1 in UTF-8: a file's path, or its bytes. A GET with ``?wsdl`` returns it with the
            address in use, and likewise the files that it imports from its directory. The WSDL defines which
            operations are one-way, and the reply actions of the others. None: ``?wsdl`` returns a generated one, with
            an operation for each action and the destination's policy.
        journal: Whether to write an event journal, in ``journal`` in the store's directory, or a policy with its
            directory and retention. A store in memory or in a database has no such directory: there is no journal
            unless the policy names one.

    Raises:
        ConfigurationError: an assurance or a number is not valid, or a processor is not a processor.
    """

    reload: Callable[[], list[str]] | None = None
    """Reads the configuration again and returns the keys that changed; None without a configuration file."""
    worker: Worker | None = None
    """This process among several, set before the start; None for a single process."""
    clock: Clock | None = None
    """Replaces the machine's clock in tests."""
    addresses: Callable[[], Mapping[str, str]] = dict
    """Returns the addresses that staged rows may be sent to, each with the queue from which records are sent there."""
    http: DestinationHTTP
    """What peers may do, and how to reach them; may be changed before the start."""

    journal_policy: JournalPolicy | None
    """Directory and retention of the event journal; None for no journal."""
    journal: Journal | None = None
    dispatcher: Dispatcher | None = None
    accepted = 0
    stage = ""
    """A phrase for what :meth:`close` is waiting for; "" before it is called."""

    _started = False
    _starting: asyncio.Lock | None = None

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
        self.partitioning = Partitioning(partitions)  # may be changed before it is started
        check_store(store)
        check_class("policy", policy, DestinationPolicy)
        check_class("handling", handling, HandlingPolicy)
        check_class("http", http, DestinationHTTP)
        self.journal_policy = to_journal(journal)
        self.policy = policy or DestinationPolicy()
        if assurance is not None:
            self.policy = replace(self.policy, assurance=to_assurance(assurance))
        self.http = http or DestinationHTTP()
        self.incidents: Counter[str] = Counter()
        self.unanswered = Unanswered()
        self.dead_letters = DeadLetters(seal, unseal)
        self.queues = new_queues(queues, partitions)
        """Every queue that stores messages, by name; the first takes the messages without a route."""
        self.queue = next(iter(self.queues.values()))
        self.queue.dead_letters = self.dead_letters
        self.store_location = store
        """The location of the store; may be changed before the start."""
        self.on_store_failed: Callable[[], None] = lambda: None
        """Called when the store has failed: the destination answers every request with 503 from then on."""
        self.on_recovered: Callable[[], None] = lambda: None
        """Called after recovery, before the destination sends or accepts anything."""
        self._handling, self._restored = handling or HandlingPolicy(), False
        self._allowed = AllowList(self.http.allow_addresses)
        self._buffered = Buffered(self.http.limits.max_buffered)
        self._processors = tuple(processors)
        self._wsdl = ServiceDescription(wsdl, self._generated_wsdl)
        self._table = HandlerTable(self._wsdl.operations)
        self.handlers = self._table.handlers
        self._envelopes = Envelopes("destination", self.incidents, self._processors, self.http.envelopes)
        keeper = Keeper(self.http.keep_http_headers)
        self.reception = Reception(self._envelopes, self.unanswered, keeper, self._wsdl)

    def __repr__(self) -> str:
        return f"<Destination store={shown(self.store_location)!r} queues={', '.join(self.queues)}>"

    def route(self, router: Router) -> None:
        """Set the router, which returns the queue or forwarder of each application message, before the start.

        Without one, all messages go to the first queue.
        """
        self.reception.router = router
        self._envelopes.pass_messages_on()

    def use(
        self,
        policy: DestinationPolicy,
        http: DestinationHTTP,
        router: Router,
        retentions: Mapping[str, tuple[RetentionPolicy, bool]],
    ) -> None:
        """Apply new settings to a running destination. Open Sequences and connections stay open.

        Args:
            policy: As for the constructor, for Sequences that are created from now on.
            http: As for the constructor; TLS and proxy, and the limits for HTTP peers, do not change.
            router: As for :meth:`route`.
            retentions: Queue -> its retention, and whether it deletes the messages that every cursor has passed.
        """
        self.policy, self.http, self._allowed = policy, http, AllowList(http.allow_addresses)
        self.reception.router = router
        self._envelopes.use(http.envelopes)
        if self.journal is not None:
            self.journal.collector.policy = policy
        self.engine.protocol.staging.use(http.staging, self.engine.clock())
        self.engine.protocol.inbound.use(policy if self.worker is None else self.worker.share_of(policy))
        self.engine.protocol.outbound.use(http.policy, http.policy_of)
        for name, (retention, drops_passed) in retentions.items():
            self.queues[name].use(retention, drops_passed=drops_passed, now=self.engine.clock())
        self.engine.touch()

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
            self.queue.deletion.retention = to_retention(retention)
            self.queue.deletion.drops_passed = False
        self._restored = self._restored or restored
        if journal is not None:
            self.journal_policy = to_journal(journal)
        return self

    def _generated_wsdl(self, address: str) -> bytes:
        """Return the WSDL of a destination that was given none."""
        is_https = address.startswith("https://")
        demands = [demand for one in self._processors if (demand := one.policy(is_https=is_https))]
        return generated_wsdl(address, self._table.described(), written(self.policy, demands))

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, recover every Sequence, and begin to accept requests. Safe to call twice.

        Raises:
            StoreError: the store cannot be opened.
            ConfigurationError: the store's queue has another number of partitions, or the store belongs to a source.
        """
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if not self._started:
                await self._start()
                self.stage = ""
                self._started = True

    async def _start(self) -> None:
        worker, location = self.worker, self.store_location
        if worker is not None and worker.is_trusted is not None and not worker.is_trusted():
            raise StoreLocked(
                f"worker {worker.number} may not open its store: another node may have taken it over",
                remedy="It starts again when this node has a new claim on it.",
            )
        count = worker.count if worker is not None else 1
        await patiently(lambda: in_thread(lambda: check_stores(location, count)))
        self.store = await open_off_loop(location if worker is None else worker.store_of(location))
        self.engine = Engine(self.store, self._carry_out, self._store_failed, self.clock)
        try:
            await self._recover()
        except BaseException:
            await self.engine.give_up()
            await self._end_journal()
            with contextlib.suppress(StoreError):  # the caller gets the first error
                self.store.close()
            raise

    async def _recover(self) -> None:
        self.queue.deletion.is_handled = bool(self.handlers)
        worker, http = self.worker, self.http
        snapshot = self.engine.start(
            self.queue,
            further=[one for one in self.queues.values() if one is not self.queue],
            policies=Policies(
                destination=self.policy if worker is None else worker.share_of(self.policy),
                source=http.policy,
                source_for=http.policy_of,
                staging=http.staging,
            ),
            rules=MessageRules(
                allows=lambda address: self._allowed.allows(address),
                accepts=self._table.accepts,
                replies=self._table.replies,
                always_replies=self._table.always_replies,
                tell=passed_on,
            ),
            letters=self.dead_letters,
            handling=HandlerSettings(self._handling, set_aside) if self.handlers else None,
            is_restored=self._restored and not (worker is not None and worker.is_restart),
            worker=worker,
            divide=self._divide_queues,
        )
        if SOURCES_QUEUE in snapshot.queues and self.queue.name != SOURCES_QUEUE:
            raise ConfigurationError(
                f"the store {shown(self.store_location)} belongs to a source: it contains its sent messages",
                remedy="Name another store: a destination and a source each need their own.",
            )
        check_queues(self.queues, snapshot)
        self.journal = self.engine.keep_journal(
            self.journal_policy, self.store_location, self.worker, self.policy, snapshot
        )
        handling = self.engine.protocol.handling
        if handling is not None:
            self._check_transactions(self.handlers)
            self.dispatcher = Dispatcher(self.engine, handling, self.handlers, self._table.reply_actions)
            self.dispatcher.tracing = self._envelopes.tracing
        self.readers = {name: Readers(self.engine, queue) for name, queue in self.queues.items()}
        self._connect()
        if handling is not None:
            handling.start(self.engine.clock())
        self.on_recovered()
        if handling is None:
            self.giving_up.requeue_next(self.engine.clock())
        self.engine.touch()
        await self.engine.settled()
        await self.engine.caught_up()  # handlers read waiting messages: report damage before the start completes
        self.engine.check()
        open_sequences = len(self.engine.protocol.inbound.destinations)
        log.info(
            "destination.ready",
            sequences=open_sequences,
            assurance=str(self.policy.assurance),
            queue=self.queue.name,
            keeps=self.queue.deletion.keeps,
        )
        if self._restored:
            log.warning(
                "queue.new_epoch",
                queue=self.queue.name,
                why="the store was restored: omit the option at the next start",
            )

    def _connect(self) -> None:
        self.sender = Sender(
            self.engine,
            # max_connections: the descriptors that the listeners do not use
            self.http.new_client(max_connections=outgoing(soft_limit())),
            self._envelopes,
            self.http.headers,
            is_trusted=self.worker.is_trusted if self.worker is not None else None,
        )
        self.reception.begin(self.engine, self.sender)

    async def _end_journal(self) -> None:
        # A restarted destination may have no journal: its store is in memory, or the event loop is another one.
        journal, self.journal = self.journal, None
        if journal is not None:
            await journal.close()

    def _divide_queues(self, snapshot: Snapshot) -> None:
        worker = self.worker
        first = worker.partitions if worker is not None else None
        self.partitioning.divide(self.queues, snapshot, first, is_joined=worker is not None and worker.count > 1)

    @property
    def giving_up(self) -> UndeliverableMessages:
        """Decides which messages are not forwarded, and puts dead letters back into their queues."""
        forwarding = self.engine.protocol.forwarding
        assert forwarding is not None
        return forwarding.giving_up

    async def close(self, grace: float = 10.0) -> None:
        """Wait up to ``grace`` seconds for running handlers, commit all pending writes, and close the store."""
        if not self._started:
            return
        self._started = False
        self.store.outlasts = False
        self.stage = "requests that are being decoded"
        await self._envelopes.close()
        self.engine.protocol.stop()
        self.stage = "handlers to return"
        if self.dispatcher is not None:
            await self.dispatcher.stop(grace)
        self.stage = "connections to peers"
        await self.sender.stop()
        self.stage = "the store's last commits and reads"
        await self.engine.stop()
        self.stage = "the journal"
        await self._end_journal()
        self.stage = "the store to be closed"
        try:
            self.store.close()
        except StoreError:
            if self.engine.failure is None:  # else the failure is reported already
                raise
        log.info("destination.closed")

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
        ended = self.engine.protocol.end_inbound(identifier, self.engine.clock(), terminate=terminate)
        self.engine.touch()
        return ended

    async def handled(self) -> None:
        """Wait until every message delivered so far is handled or a dead letter, and this is durable.

        This includes all retries. Without handlers, return at once.

        Raises:
            ConfigurationError: the destination is not running, or is closed during the wait.
            StoreFailed: the store has failed.
        """
        if self._started and self.dispatcher is not None:
            await self.dispatcher.done()
        if not self._started:
            raise ConfigurationError(
                "the destination is not running", remedy="Await its start() first, and close it last."
            )
        await self.engine.settled()
        self.engine.check()

    @property
    def unhandled(self) -> int:
        """The number of delivered messages that handlers have not finished."""
        return self.dispatcher.unhandled if self.dispatcher is not None else 0

    def _store_failed(self, error: BaseException) -> None:
        log.critical(
            "store.failed",
            error=repr(error),
            what="no message is accepted or acknowledged any longer",
            remedy=getattr(error, "remedy", ""),
        )
        for exchange in self.unanswered.take_all():
            refuse_all(exchange)
        if self.dispatcher is not None:
            self.dispatcher.store_failed()
        self.on_store_failed()

    # --- requests -------------------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange, is_elsewhere: Elsewhere | None = None) -> None:
        """Accept one HTTP request and answer it later. The destination must be started.

        Args:
            exchange: The request.
            is_elsewhere: Whether another process owns the envelope, and answers the exchange; None: no other process.
        """
        self.reception.handle(exchange, is_elsewhere)

    def _carry_out(self, effect: Effect) -> None:
        # Exact classes first, for speed: every message has several effects, nearly all of these three classes.
        if type(effect) is Respond:
            self._respond(effect)
        elif type(effect) is Delivered:
            self.accepted += effect.count
            self.readers[effect.queue].delivered()
        elif type(effect) is Transmit:
            self.sender.transmit(effect)
        elif isinstance(effect, Handle):
            assert self.dispatcher is not None
            with self._envelopes.tracing.delivering(effect) if self._envelopes.tracing is not None else _UNTRACED:
                self.dispatcher.hand_over(effect)
        elif isinstance(effect, Incident):
            self.incidents[effect.name] += 1
            log_incident(effect)
        elif isinstance(effect, Stopped):
            log_stopped(effect)
        else:
            assert type(effect) in _UNHEEDED, effect

    def _respond(self, effect: Respond) -> None:
        exchange = cast(Exchange, effect.back_channel)
        if self.unanswered.take(exchange):  # after a store failure, every exchange has been answered with 503
            self._envelopes.respond(exchange, effect.envelope)
            if self._envelopes.tracing is not None:
                self._envelopes.tracing.answered(exchange, effect.envelope)

    @property
    def _is_busy(self) -> bool:
        """Whether work is in progress that needs neither a timer nor a peer: a commit or a handler."""
        handling = self.dispatcher is not None and self.dispatcher.is_busy
        return self._is_committing or (self._started and handling)

    @property
    def _is_committing(self) -> bool:
        """Whether the destination is decoding, reading, sending, or writing to the store."""
        return self._started and (self.engine.is_busy or self._envelopes.is_busy or self.sender.is_busy)
