"""RunningDestination: what a destination has from its start to its close, and in which order it is created and closed.

This module owns the open store, the engine, the queues and their readers, the sender, the handlers' dispatcher and the
journal, and what the protocol's effects do to them. ``destination`` has the settings and the calls of the application.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, cast

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
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol_settings import MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Snapshot
from holdfast.endpoint.descriptors import outgoing
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.endpoint.destination.http_settings import DestinationHTTP
from holdfast.endpoint.destination.queues import Partitioning, Retentions, check_queues
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.destination.reception import Reception, Router, refuse_after_failure
from holdfast.endpoint.destination.unanswered_exchanges import Unanswered
from holdfast.endpoint.destination.unreachable_addresses import UnreachableAddresses
from holdfast.endpoint.destination.wsdl import ServiceDescription
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import SOURCES_QUEUE, Engine
from holdfast.endpoint.engine.opening import (
    close_after_error,
    in_thread,
    open_after_orphans,
    open_off_loop,
    patiently,
)
from holdfast.endpoint.engine.owning_loop import OwningLoop
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.fault_replies import passed_on, set_aside
from holdfast.endpoint.envelopes.transport_facts import Keeper
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.endpoint.handling.dispatcher import Dispatcher
from holdfast.endpoint.handling.handlers import HandlerTable, check_transactions
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.logs import LineLimit, log, log_incident
from holdfast.endpoint.sending.sender import Sender
from holdfast.endpoint.sending.stopped import log_stopped
from holdfast.endpoint.worker import Worker, check_stores
from holdfast.exceptions import ConfigurationError, StoreError, StoreLocked, StoreTakenOver
from holdfast.http.exchange import Exchange, Spooling
from holdfast.http.outcome import AnswerSpooling
from holdfast.http.urls import own_address
from holdfast.store import Cached, Counted, Store, Transactional, is_kafka, shown
from holdfast.store.rocksdb.descriptors import soft_limit
from holdfast.wire.policy.writing import PolicyVersion, written

_UNHEEDED = frozenset((Submitted, Acknowledged, Declined, Discarded, Ended, Unheard, NotQueued, FaultReceived))
"""Effects for sources and for the journal; a destination ignores them."""

_UNTRACED = contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload of the configuration has done.

    Args:
        changed: The keys with new values that are used now.
        not_used: The keys, or tables, with values that are not used, each with the reason and the remedy.
    """

    changed: list[str]
    not_used: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class DestinationSettings:
    """What a destination is made of; ``Destination`` documents most. The rooms that run one, such as the broker, change
    it before the start. Later, :meth:`RunningDestination.use` changes the policy and ``http``.

    Args:
        http: What peers may do, and how to reach them.
        handling: How handlers are called and retried.
        queues: Retentions of the queues. The first has the handlers, and takes the messages without a route.
        journal: Directory and retention of the event journal; None for no journal.
        wsdl: Answers requests for the service's description.
        restored: Whether the store was restored from an older copy.
        router: Returns the route of an application message; None: all messages go to the first queue.
        worker: This process among several; None for a single process.
        clock: Replaces the machine's clock in tests.
        reload: Reads the configuration again and applies it; None without a configuration file.
        addresses: Returns the addresses that staged rows may be sent to, each with the queue from which records are
            sent there.
        on_recovered: Called after recovery, before the destination sends or accepts anything.
        on_store_failed: Called when the store has failed: the destination answers every request with 503 from then on.
    """

    location: str | Path | Store
    policy: DestinationPolicy
    http: DestinationHTTP
    handling: HandlingPolicy
    queues: Retentions
    partitioning: Partitioning
    journal: JournalPolicy | None
    envelopes: Envelopes
    wsdl: ServiceDescription
    table: HandlerTable
    restored: bool = False
    router: Router | None = None
    worker: Worker | None = None
    clock: Clock | None = None
    reload: Callable[[], Reload] | None = None
    addresses: Callable[[], Mapping[str, str]] = dict
    on_recovered: Callable[[RunningDestination], None] = lambda _running: None
    on_store_failed: Callable[[BaseException], None] = lambda _error: None

    def policy_at(self, address: str, version: PolicyVersion) -> str:
        """Return the content of a wsp:Policy for clients that reach the destination at an address."""
        processors, is_https = self.envelopes.processors, address.startswith("https://")
        demands = [demand for one in processors if (demand := one.policy(is_https=is_https))]
        binds_sequences = any(one.binds_sequences for one in processors)
        return written(self.policy, demands, version, binds_sequences=binds_sequences)


class RunningDestination:
    """A destination's store, engine, queues, sender, dispatcher and journal, created by :meth:`open`."""

    def __init__(self, settings: DestinationSettings, store: Store, incidents: Counter[str]) -> None:
        http, self.worker = settings.http, settings.worker
        self.settings, self.store, self.incidents = settings, store, incidents
        self.is_open = False
        self.owner = OwningLoop("destination")
        self.stage = ""
        """A phrase for what :meth:`close` is waiting for; "" before it is called."""
        self.accepted = 0
        self.dead_letters = DeadLetters(seal, unseal)
        self.queues = {
            name: Queue(name, retention=retention, drops_passed=drops_passed)
            for name, (retention, drops_passed) in settings.queues.items()
        }
        """Every queue that stores messages, by name."""
        self.queue = next(iter(self.queues.values()))
        self.queue.dead_letters = self.dead_letters
        self.queue.deletion.is_handled = bool(settings.table.handlers)
        self._trust = trust = self.worker.trust if self.worker is not None else None
        clock = settings.clock or Clock(trust.clock_offset if trust is not None else None)
        self.engine = Engine(store, self._carry_out, self._store_failed, clock)
        self.readers = {name: Readers(self.engine, queue) for name, queue in self.queues.items()}
        self.sender = Sender(
            self.engine,
            # max_connections: the descriptors that the listeners do not use
            http.new_client(max_connections=outgoing(soft_limit())),
            settings.envelopes,
            http.headers,
            on_transport_error=self._not_reached,
            on_answer=lambda sent: self._unreachable.answered(sent.to),
            is_trusted=trust.is_trusted if trust is not None else None,
            spooling=settings.envelopes.spooling_replies_in_answers(store.create_content),
        )
        self._unreachable = UnreachableAddresses()
        self._refusals = LineLimit()
        self.unanswered = Unanswered()
        self.reception = Reception(
            self.engine,
            self.sender,
            settings.envelopes,
            self.unanswered,
            Keeper(http.keep_http_headers),
            settings.wsdl,
            settings.router,
        )
        self.dispatcher: Dispatcher | None = None
        """Calls the handlers; None if there were none at the start."""
        self.journal: Journal | None = None
        self._envelopes = settings.envelopes
        self._envelopes.public_address = own_address(http.public_url)
        if settings.router is not None:
            settings.envelopes.pass_messages_on()
        self._allowed = AllowList(http.allow_addresses)

    # --- life -----------------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, settings: DestinationSettings, incidents: Counter[str]) -> Self:
        """Open the store and recover what it holds; raises what :meth:`holdfast.Destination.start` raises."""
        worker, location = settings.worker, settings.location
        trust = None if worker is None else worker.trust
        if worker is not None and not worker.may_act and not is_kafka(location):
            raise StoreLocked(
                f"worker {worker.number} may not open its store: another node may have taken it over",
                remedy="It starts again when this node has a new claim on it.",
            )
        count, is_node = (worker.count, trust is not None) if worker is not None else (1, False)
        await patiently(lambda: in_thread(lambda: check_stores(location, count, is_node=is_node)))
        if worker is None or is_node:
            place, turn = (location, None) if worker is None else (worker.store_of(location), trust)
            store = await open_off_loop(place, turn)
        else:
            store = await open_after_orphans(worker.store_of(location))
        if trust is not None and isinstance(store, Counted):
            store.call_with_batches(trust.remember)
        if trust is not None and isinstance(store, Cached):
            store.call_with_wanted_bytes(trust.want)
        # Undone in the opposite order if the start fails, or is cancelled.
        async with contextlib.AsyncExitStack() as on_error:
            on_error.callback(close_after_error, store)
            running = cls(settings, store, incidents)
            on_error.push_async_callback(running._end_journal)
            on_error.push_async_callback(running.engine.give_up)
            on_error.push_async_callback(running.sender.stop)
            await running._start()
            on_error.pop_all()
        running.is_open = True
        return running

    async def _start(self) -> None:
        settings = self.settings
        snapshot = self._recover()
        if SOURCES_QUEUE in snapshot.queues and self.queue.name != SOURCES_QUEUE:
            raise ConfigurationError(
                f"the store {shown(settings.location)} belongs to a source: it contains its sent messages",
                remedy="Name another store: a destination and a source each need their own.",
            )
        check_queues(self.queues, snapshot)
        self.journal = self.engine.keep_journal(
            settings.journal, settings.location, self.worker, settings.policy, snapshot
        )
        handling, table = self.engine.protocol.handling, settings.table
        if handling is not None:
            self.check_transactions(table.handlers)
            self.dispatcher = Dispatcher(
                self.engine,
                handling,
                table.handlers,
                table.reply_actions,
                self._envelopes,
                self._envelopes.tracing,
                self._trust.is_trusted if self._trust is not None else None,
            )
            handling.start(self.engine.clock())
        # Before the first turn: forwarders need their outboxes before anything is sent.
        settings.on_recovered(self)
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
            assurance=str(settings.policy.assurance),
            queue=self.queue.name,
            keeps=self.queue.deletion.keeps,
        )
        unhandled = table.unhandled()
        if unhandled:
            log.warning(
                "wsdl.operations_without_handler",
                actions=", ".join(unhandled),
                why="the WSDL offers them, and the destination rejects their messages, which stops their Sequences",
                remedy="Write handlers for them (at another port: @app.operation(name, port=…)), or delete the "
                "operations from the WSDL.",
            )
        demanded = [] if settings.envelopes.processors else settings.wsdl.demanded_proofs()
        if demanded:
            log.warning(
                "wsdl.demands_unchecked",
                demands="; ".join(demanded),
                why="the WSDL demands them, and the destination accepts messages without them",
                remedy="Give the destination processors that check them, such as holdfast.UsernameTokenValidator, "
                "unless a proxy in front of it does.",
            )
        if settings.restored:
            log.warning(
                "queue.new_epoch",
                queue=self.queue.name,
                why="the store was restored: omit the option at the next start",
            )

    def _recover(self) -> Snapshot:
        settings, table, worker, http = self.settings, self.settings.table, self.worker, self.settings.http
        return self.engine.start(
            self.queue,
            further=[one for one in self.queues.values() if one is not self.queue],
            policies=Policies(
                destination=settings.policy if worker is None else worker.share_of(settings.policy),
                source=http.policy,
                source_for=http.policy_of,
                staging=http.staging,
            ),
            rules=MessageRules(
                allows=lambda address: self._allowed.allows(address),
                accepts=table.accepts,
                replies=table.replies,
                always_replies=table.always_replies,
                tell=passed_on,
            ),
            letters=self.dead_letters,
            handling=HandlerSettings(settings.handling, set_aside) if table.handlers else None,
            is_restored=settings.restored and not (worker is not None and worker.is_restart),
            worker=worker,
            divide=self._divide_queues,
        )

    def _divide_queues(self, snapshot: Snapshot) -> None:
        worker = self.worker
        first = worker.partitions if worker is not None else None
        is_joined = worker is not None and worker.count > 1
        self.settings.partitioning.divide(self.queues, snapshot, first, is_joined=is_joined)

    def check_transactions(self, handlers: Mapping[str, object]) -> None:
        """Raise ConfigurationError if a handler asks for a transaction that the store does not have."""
        are_there = isinstance(self.store, Transactional)
        check_transactions(handlers, self.settings.policy.assurance, are_there=are_there)

    async def _end_journal(self) -> None:
        journal, self.journal = self.journal, None
        if journal is not None:
            await journal.close()

    async def close(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for running handlers, commit all pending writes, and close the store."""
        if self.owner.has_ended:
            self.is_open = False
            await self.engine.give_up()
            self._release_store()
            return
        self.owner.check()
        self.is_open = False
        self.store.retry_for(grace)
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            # First: what is decoded now may still be stored and answered.
            ("requests that are being decoded", self._envelopes.close),
            # Before the engine: their results are part of its last batches.
            ("handlers to return", partial(self._stop_handlers, grace)),
            ("connections to peers", self.sender.stop),
            ("the store's last commits and reads", self.engine.stop),
            ("the journal", self._end_journal),
            ("the store to be closed", self._close_store),
        ]
        # Each step is taken also if one before it fails, or its caller is cancelled: the store must not stay locked.
        async with contextlib.AsyncExitStack() as remaining:
            for stage, step in reversed(steps):
                remaining.push_async_callback(self._take_step, stage, step)
        log.info("destination.closed")

    async def _take_step(self, stage: str, step: Callable[[], Awaitable[None]]) -> None:
        self.stage = stage
        await step()

    async def _stop_handlers(self, grace: float) -> None:
        self.engine.protocol.stop()
        if self.dispatcher is not None:
            await self.dispatcher.stop(grace)

    def announce_stop(self, grace: float) -> None:
        """Count the ``grace`` seconds of :meth:`close` from now on, while requests in progress are still answered."""
        self.settings.wsdl.close()
        if self.dispatcher is not None:
            self.dispatcher.announce_stop(grace)

    @property
    def has_abandoned(self) -> bool:
        """Whether :meth:`close` did not wait for handlers to return."""
        return self.dispatcher is not None and self.dispatcher.has_abandoned

    async def _close_store(self) -> None:
        try:
            self._release_store()
        except StoreError:
            if self.engine.failure is None:  # else the failure is reported already
                raise

    def _release_store(self) -> None:
        """Close the store, now or when the last abandoned handler returns: until then this process handles messages of
        the store, and its lock keeps other processes from handling them too."""
        if self.dispatcher is None:
            self.store.close()
        else:
            self.dispatcher.when_returned(self.store.close)

    def check_handlers_returned(self) -> None:
        """Raise StoreLocked if a closed destination still has plain handlers that run."""
        if self.dispatcher is not None and (left := self.dispatcher.unreturned):
            raise StoreLocked(
                f"{left} abandoned handlers of this process still run, so the store at "
                f"{shown(self.settings.location)} stays locked until they return",
                remedy="Start the destination when they have returned. Set timeouts in the libraries that they call.",
            )

    def use(
        self,
        policy: DestinationPolicy,
        http: DestinationHTTP,
        router: Router,
        retentions: Retentions,
    ) -> None:
        """Apply new settings. Open Sequences and connections stay open.

        Args:
            policy: For Sequences that are created from now on.
            http: What peers may do; TLS and proxy, and the limits for HTTP peers, do not change.
        """
        self.settings.policy, self.settings.http = policy, http
        self._allowed = AllowList(http.allow_addresses)
        self.reception.router = router
        self._envelopes.use(http.envelopes)
        self._envelopes.public_address = own_address(http.public_url)
        if self.journal is not None:
            self.journal.collector.policy = policy
        self.engine.protocol.staging.use(http.staging, self.engine.clock())
        self.engine.protocol.inbound.use(policy if self.worker is None else self.worker.share_of(policy))
        self.engine.protocol.outbound.registry.use(http.policy, http.policy_of)
        for name, (retention, drops_passed) in retentions.items():
            self.queues[name].use(retention, drops_passed=drops_passed, now=self.engine.clock())
        self.engine.touch()

    @property
    def giving_up(self) -> UndeliverableMessages:
        """Decides which messages are not forwarded, and puts dead letters back into their queues."""
        forwarding = self.engine.protocol.forwarding
        assert forwarding is not None
        return forwarding.giving_up

    def spooling(self) -> Spooling:
        """Return what writes large requests to the store while they arrive."""
        return self.reception.envelopes.spooling(self.store.create_content)

    def spooling_answers(self) -> AnswerSpooling:
        """The same for answers to this process."""
        return self.reception.envelopes.spooling_answers(self.store.create_content)

    def _store_failed(self, error: BaseException) -> None:
        if isinstance(error, StoreTakenOver) and self._trust is not None:
            what = "another node serves this cluster partition now, and nothing is lost"
            log.warning("store.taken_over", error=error.message, what=what)
        else:
            log.critical(
                "store.failed",
                error=repr(error),
                what="no message is accepted or acknowledged any longer",
                remedy=getattr(error, "remedy", ""),
            )
        for exchange in self.unanswered.take_all():
            refuse_after_failure(exchange)
        if self.dispatcher is not None:
            self.dispatcher.store_failed()
        self.settings.on_store_failed(error)

    # --- effects --------------------------------------------------------------------------------------------------

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
            # A peer can cause any number of refusals. The metric has them all.
            if effect.name != "message.refused":
                log_incident(effect)
            elif (left_out := self._refusals.admit()) is not None:
                log_incident(effect, left_out=left_out)
        elif isinstance(effect, Stopped):
            log_stopped(effect)
        else:
            assert type(effect) in _UNHEEDED, effect

    def _not_reached(self, sent: Transmit, reason: str) -> None:
        outbox = self.engine.protocol.outbound.sequences.by_local_id.get(sent.source)
        if outbox is None or outbox.forwarding is None:  # a forwarder's circuit reports its destination
            self._unreachable.failed(sent.to, reason)

    def _respond(self, effect: Respond) -> None:
        exchange = cast(Exchange, effect.back_channel)
        if self.unanswered.take(exchange):  # after a store failure, every exchange has been answered with 503
            self._envelopes.respond(exchange, effect.envelope)
            if self._envelopes.tracing is not None:
                self._envelopes.tracing.answered(exchange, effect.envelope)

    @property
    def is_busy(self) -> bool:
        """Whether work is in progress that needs neither a timer nor a peer: a commit or a handler."""
        handling = self.dispatcher is not None and self.dispatcher.is_busy
        return self.is_committing or (self.is_open and handling)

    @property
    def is_committing(self) -> bool:
        """Whether the destination is decoding, reading, sending, or writing to the store."""
        return self.is_open and (self.engine.is_busy or self._envelopes.is_busy or self.sender.is_busy)
