"""Destination: an RM Destination for a service, as an ASGI application and as the handler of Holdfast's own server.

This module takes one message from its bytes to its answer. Other packages handle HTTP, XML, the protocol and the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from holdfast.core.events import (
    Acknowledged,
    BackChannel,
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
from holdfast.core.forwarding.forwarded_requests import Forwarding
from holdfast.core.handling.delivery import Handling
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import CreateSequence, Envelope, Fault, Routed
from holdfast.core.origin import Origin
from holdfast.core.policy import Assurance, DestinationPolicy, SourcePolicy, StagingPolicy
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import OUTBOX, Queue
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Snapshot
from holdfast.endpoint.arguments import (
    check_class,
    check_proxy,
    check_queue_name,
    check_store,
    to_assurance,
    to_journal,
    to_retention,
)
from holdfast.endpoint.descriptors import outgoing
from holdfast.endpoint.destination.allow_list import AllowList
from holdfast.endpoint.destination.dead_letters import seal, unseal
from holdfast.endpoint.destination.dispatcher import Dispatcher, Handler, MessageHandler
from holdfast.endpoint.destination.handlers import check_action, check_handler, check_transactions
from holdfast.endpoint.destination.partitioning import Partitioning
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.destination.unanswered_exchanges import Unanswered
from holdfast.endpoint.destination.wsdl import ServiceDescription
from holdfast.endpoint.engine import SOURCES_QUEUE, Clock, Engine, in_thread, open_off_loop, patiently
from holdfast.endpoint.envelopes.envelopes import Elsewhere, Envelopes, pass_on, refuse_as_soap
from holdfast.endpoint.envelopes.fault_replies import passed_on, set_aside
from holdfast.endpoint.envelopes.http_media import refuse_unless_soap
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.envelopes.transport_facts import Keeper
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.logs import log, log_incident
from holdfast.endpoint.sending.parties import origin_of
from holdfast.endpoint.sending.sender import Sender
from holdfast.endpoint.sending.stopped import log_stopped
from holdfast.endpoint.worker import Worker, check_stores
from holdfast.exceptions import ConfigurationError, StoreError
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange, HTTPLimits
from holdfast.http.server.asgi import Buffered, serve_asgi
from holdfast.settings import check_whole
from holdfast.store import Store, Transactional, shown
from holdfast.store.descriptors import soft_limit
from holdfast.wire import DEFAULT, Limits


class Router(Protocol):
    """Chooses the queue or forwarder of each application message."""

    def __call__(self, envelope: Envelope) -> Routed | Fault:
        """Return the route of a message, or the fault that rejects it. May be called in another thread."""
        ...

    def at_once(self, envelope: Envelope) -> Routed | Fault | None:
        """Return the same if the router needs a few milliseconds at most, else None."""
        ...


_UNHEEDED = frozenset((Submitted, Acknowledged, Declined, Discarded, Ended, Unheard, NotQueued, FaultReceived))
"""Effects for sources and for the journal; a destination ignores them."""

_UNTRACED = contextlib.nullcontext()

HandlerT = TypeVar("HandlerT", bound=MessageHandler)

_UNSAID = "unsaid"
_NOTHING = (None, "None", type(None))


class Destination:
    """An RM Destination: receives, stores and acknowledges messages from RM Sources, and delivers them to handlers.

    Register handlers with :meth:`on`. Without handlers, messages wait in the queue for a reader, such as a Spark query.
    A destination is an ASGI application: mount it in another application, or run it with any ASGI server. It starts
    with its first request or with the lifespan of its host. ``holdfast serve`` serves it faster.

    Args:
        store: The directory of the store, the URL of a database, ":memory:", or an open store.
        assurance: Words such as "exactly-once in-order" (WS-RM Policy's delivery assurances).
        queue: The queue that stores messages.
        further_queues: Other queues, by name, each with its retention in the form of ``retention``. They store the
            messages that the ``router`` sends to them. Handlers receive only the messages of ``queue``.
        router: Returns the route of an application message, or the fault that rejects it. None: all messages go to
            ``queue``.
        partitions: The number of partitions of each queue, fixed when the store is created. The messages of a Sequence
            stay in one partition, which preserves their order.
        retention: How long the queue keeps messages, whether or not they have been read: words such as "7d",
            "12h 10GB", "none", or "7d readers 30d", which limits how long a reader's cursor protects older messages.
            None: seven days, of any size; but if there are handlers, and the queue never had a reader, the destination
            deletes each message once it is handled. It always keeps messages that handlers have not finished.
        restored: Whether the store was restored from an older copy. The queue then gets a new epoch, so that readers
            with checkpoints later than that copy stop with an error instead of missing messages. Set it for the first
            start after the restore only.
        policy: Limits and timers; ``assurance``, if given, replaces the assurance in it.
        source_policy: Limits and timers for the messages that the destination sends: replies and acknowledgements to
            addressable peers.
        source_policy_for: Returns the source policy for an address; None: ``source_policy`` for every address.
        handling: How often and with what pauses failing handlers are retried.
        concurrency: The number of handlers that run at a time. Plain (not async) handlers run in as many threads.
        allow_addresses: URL prefixes of the addresses, besides the anonymous one, that a peer may name as AcksTo,
            ReplyTo or FaultTo, such as ``https://partner.example/rm``; a URL without a port allows every port. Empty
            by default, because an attacker can direct a service that posts to any address against other systems.
        keep_http_headers: HTTP headers to store with each message, which its handler reads in
            ``message.http_headers``: ``["X-Request-ID"]``; ``["*"]`` for all except Authorization,
            Proxy-Authorization and Cookie, which are stored only if named. At most 8 KB for each message; further
            headers are omitted.
        limits: Limits for HTTP peers under an ASGI server. Holdfast's own server has its own limits.
        wire_limits: Limits on the size and structure of one envelope.
        processors: Processors of every incoming and outgoing envelope, the one next to the network first.
        ssl_context: Trusted authorities and client certificate for the https requests that the destination sends.
        proxy: URL of an HTTP proxy for the requests that the destination sends.
        staging: Limits on the records that external writers, such as a Spark query, stage.
        wsdl: The service's WSDL 1.1 in UTF-8: a file's path, or its bytes. A GET with ``?wsdl`` returns it with the
            address in use, and likewise the files that it imports from its directory. The WSDL defines which
            operations are one-way, and the reply actions of the others.
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
    wire_limits: Limits
    """Limits on the size and structure of one envelope."""
    sort_out: Callable[[Envelope, Origin], None] | None = None
    """Removes from an envelope, among several processes, the headers about Sequences that other processes own."""

    journal_policy: JournalPolicy | None
    """Directory and retention of the event journal; None for no journal."""
    journal: Journal | None = None
    dispatcher: Dispatcher | None = None
    accepted = 0
    stage = ""
    """A phrase for what :meth:`close` is waiting for; "" before it is called."""

    _started = False
    _starting: asyncio.Lock | None = None

    forwarding: Forwarding
    """The forwarders; created at the start."""

    def __init__(
        self,
        store: str | Path | Store = "inbox",
        *,
        assurance: str | Assurance | None = None,
        queue: str = "inbox",
        further_queues: Mapping[str, str | RetentionPolicy | None] | None = None,
        router: Router | None = None,
        partitions: int = 4,
        retention: str | RetentionPolicy | None = None,
        restored: bool = False,
        policy: DestinationPolicy | None = None,
        source_policy: SourcePolicy | None = None,
        source_policy_for: Callable[[str], SourcePolicy] | None = None,
        handling: HandlingPolicy | None = None,
        concurrency: int = 32,
        allow_addresses: Iterable[str] = (),
        keep_http_headers: Iterable[str] = (),
        limits: HTTPLimits | None = None,
        wire_limits: Limits = DEFAULT,
        processors: Iterable[Processor] = (),
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | None = None,
        staging: StagingPolicy | None = None,
        wsdl: str | Path | bytes | None = None,
        journal: bool | JournalPolicy = True,
    ):
        self.partitioning = Partitioning(partitions)  # may be changed before it is started
        check_whole("concurrency", concurrency)
        check_store(store)
        check_class("policy", policy, DestinationPolicy)
        check_class("source_policy", source_policy, SourcePolicy)
        check_class("handling", handling, HandlingPolicy)
        check_class("staging", staging, StagingPolicy)
        check_class("limits", limits, HTTPLimits)
        check_class("wire_limits", wire_limits, Limits)
        check_class("ssl_context", ssl_context, ssl.SSLContext)
        check_proxy(proxy)
        self.journal_policy = to_journal(journal)
        self.policy = policy or DestinationPolicy()
        if assurance is not None:
            self.policy = replace(self.policy, assurance=to_assurance(assurance))
        self.handlers: dict[str, Handler] = {}
        self.incidents: Counter[str] = Counter()
        self.unanswered = Unanswered()
        self.dead_letters = DeadLetters()
        kept = {queue: retention, **(further_queues or {})}
        self.queues = {name: self._new_queue(name, partitions, keeps) for name, keeps in kept.items()}
        """Every queue that stores messages, by name; the first takes the messages without a route."""
        self.queue = self.queues[queue]
        self.queue.dead_letters = self.dead_letters
        self._router = router
        self.store_location = store
        """The location of the store; may be changed before the start."""
        self.on_store_failed: Callable[[], None] = lambda: None
        """Called when the store has failed: the destination answers every request with 503 from then on."""
        self.on_recovered: Callable[[], None] = lambda: None
        """Called after recovery, before the destination sends or accepts anything."""
        self.ssl_context, self.proxy = ssl_context, proxy
        """TLS and proxy settings for outgoing requests; may be changed before the start."""
        self.wire_limits, self._staging = wire_limits, staging
        self._source_policy, self._source_policy_for = source_policy, source_policy_for
        self._handling, self._concurrency, self._restored = handling or HandlingPolicy(), concurrency, restored
        self._allowed = AllowList(allow_addresses)
        self._keeper = Keeper(keep_http_headers)
        self._limits = limits or HTTPLimits()
        self._buffered = Buffered(self._limits.max_buffered)
        self._wsdl = ServiceDescription(wsdl)
        self._reply_actions = {action: reply for action, reply in self._wsdl.operations.items() if reply}
        self._envelopes = Envelopes("destination", self.incidents, processors, wire_limits, router is not None)

    @staticmethod
    def _new_queue(name: str, partitions: int, retention: str | RetentionPolicy | None) -> Queue:
        check_queue_name(name)
        return Queue(name, partitions, to_retention(retention), drops_passed=retention is None)

    def use(
        self,
        *,
        router: Router,
        policy: DestinationPolicy,
        source_policy: SourcePolicy,
        source_policy_for: Callable[[str], SourcePolicy],
        allow_addresses: Iterable[str],
        wire_limits: Limits,
        staging: StagingPolicy,
        retentions: Mapping[str, tuple[RetentionPolicy, bool]],
    ) -> None:
        """Apply new settings to a running destination. Open Sequences and connections stay open.

        Args:
            router: As for the constructor.
            policy: As for the constructor, for Sequences that are created from now on.
            source_policy, source_policy_for: As for the constructor.
            allow_addresses: As for the constructor.
            wire_limits: As for the constructor.
            staging: As for the constructor.
            retentions: Queue -> its retention, and whether it deletes the messages that every cursor has passed.
        """
        self._router, self.policy, self._allowed = router, policy, AllowList(allow_addresses)
        self.wire_limits = wire_limits
        self._envelopes.use(wire_limits)
        if self.journal is not None:
            self.journal.collector.policy = policy
        self.engine.protocol.staging.use(staging, self.engine.clock())
        self.engine.protocol.inbound.use(policy if self.worker is None else self.worker.share_of(policy))
        self.engine.protocol.outbound.use(source_policy, source_policy_for)
        for name, (retention, drops_passed) in retentions.items():
            self.queues[name].use(retention, drops_passed=drops_passed, now=self.engine.clock())
        self.engine.touch()

    def keep(
        self,
        retention: str | RetentionPolicy | None = None,
        *,
        restored: bool = False,
        journal: bool | JournalPolicy | None = None,
    ) -> None:
        """Change the queue's retention, the restored flag or the journal before the start.

        Args:
            retention: As for the constructor; None leaves it unchanged.
            restored: As for the constructor; False leaves it unchanged.
            journal: As for the constructor; None leaves it unchanged.

        Raises:
            ConfigurationError: the retention is not valid.
        """
        if retention is not None:
            self.queue.retention = to_retention(retention)
            self.queue.drops_passed = False
        self._restored = self._restored or restored
        if journal is not None:
            self.journal_policy = to_journal(journal)

    def _check_transactions(self, handlers: Mapping[str, Any]) -> None:
        check_transactions(handlers, self.policy.assurance, are_there=isinstance(self.store, Transactional))

    # --- handlers -------------------------------------------------------------------------------------------------

    def on(self, action: str = "", *, reply_action: str = "") -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as the handler of one action, or of all other actions.

        A handler takes the :class:`Message` and may be async or plain; a plain one runs in a thread. It returns the
        reply to a request as text, bytes or an lxml element. If the handler raises, the destination retries it with
        exponential backoff, then makes the message a dead letter. If it raises :class:`ApplicationFault`, the
        destination answers with a fault at once.

        With a store in a database, a plain handler may use the store's transaction: it takes a second argument
        ``connection``, a ``sqlalchemy.Connection``. Its statements commit together with the mark that the message is
        handled, and with its reply; if it raises, the database rolls all of them back.

        The ReplyTo of a message requests a reply. A message without a ReplyTo, as gSOAP sends, is a request if its
        handler is annotated with a return type, such as ``-> str``, or if the ``wsdl`` declares an output for it.
        Otherwise it is one-way. From a WCF client, and from a sender that has named a ReplyTo in the same Sequence, it
        is always one-way. If the handler of a request returns None, the reply is an empty element: the request's name
        followed by ``Response``.

        Args:
            action: wsa:Action; "" for every action without its own handler.
            reply_action: The wsa:Action of the replies, as the contract declares it. Default: the one in the ``wsdl``;
                without a WSDL, the action followed by ``Response``, which is WCF's default too.

        Raises:
            ConfigurationError: the action has a handler already; the handler cannot be called with a message, or its
                return annotation is not a body type, as ``-> int``; the destination runs without handlers; or the
                parentheses of ``@app.on()`` are missing.
        """
        check_action(action)
        check_action(reply_action)
        if reply_action and not action:
            raise ConfigurationError(
                "reply_action needs an action", remedy='Write @app.on("urn:orders/Price", reply_action="…").'
            )

        def register(handler: HandlerT) -> HandlerT:
            check_handler(handler)
            if action in self.handlers:
                raise ConfigurationError(
                    f"the action {action!r} has two handlers" if action else "all other actions have two handlers",
                    remedy="A message goes to one handler: let that handler call both functions.",
                )
            if self._started and self.dispatcher is None:
                raise ConfigurationError(
                    "the destination is already running without handlers",
                    remedy="Register the first handler before you start it.",
                )
            if self._started:
                self._check_transactions({action: handler})
            self.handlers[action] = handler
            if reply_action:
                self._reply_actions[action] = reply_action
            return handler

        return register

    def _accepts(self, action: str) -> bool:
        return not self.handlers or action in self.handlers or "" in self.handlers

    def _replies(self, action: str) -> bool:
        return action in self.handlers or "" in self.handlers

    def _always_replies(self, action: str) -> bool:
        if action in self._wsdl.operations:
            return self._wsdl.operations[action] != ""
        handler = self.handlers.get(action) or self.handlers.get("")
        return handler is not None and _returned(handler) not in (*_NOTHING, _UNSAID)

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
        self.queue.is_handled = bool(self.handlers)
        handling = self._new_handling() if self.handlers else None
        worker = self.worker
        self.forwarding = Forwarding(self.dead_letters, seal=seal, unseal=unseal, tell=passed_on)
        snapshot = self.engine.start(
            self.queue,
            further=[one for one in self.queues.values() if one is not self.queue],
            destination_policy=self.policy if worker is None else worker.share_of(self.policy),
            source_policy=self._source_policy,
            source_policy_for=self._source_policy_for,
            allows=lambda address: self._allowed.allows(address),
            accepts=self._accepts,
            replies=self._replies,
            always_replies=self._always_replies,
            handling=handling,
            forwarding=self.forwarding,
            staging_policy=self._staging,
            is_restored=self._restored and not (worker is not None and worker.is_restart),
            worker=worker,
            divide=self._divide_queues,
        )
        if SOURCES_QUEUE in snapshot.queues and self.queue.name != SOURCES_QUEUE:
            raise ConfigurationError(
                f"the store {shown(self.store_location)} belongs to a source: it contains its sent messages",
                remedy="Name another store: a destination and a source each need their own.",
            )
        self.engine.protocol.watch(lambda: self.store.trouble)
        self._check_queues(snapshot)
        self.journal = self.engine.keep_journal(
            self.journal_policy, self.store_location, self.worker, self.policy, snapshot
        )
        if handling is not None:
            self._check_transactions(self.handlers)
            self.dispatcher = Dispatcher(self.engine, handling, self.handlers, self._reply_actions)
            self.dispatcher.tracing = self._envelopes.tracing
        self.readers = {name: Readers(self.engine, queue) for name, queue in self.queues.items()}
        self.sender = Sender(
            self.engine,
            HTTPClient(
                max_connections=outgoing(soft_limit()),  # the descriptors that the listeners do not use
                ssl_context=self.ssl_context,
                proxy=self.proxy,
            ),
            self._envelopes,
        )
        if handling is not None:
            handling.start(self.engine.clock())
        self.on_recovered()
        if handling is None:
            self.forwarding.giving_up.requeue_next(self.engine.clock())
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
            keeps=self.queue.keeps,
        )
        if self._restored:
            log.warning(
                "queue.new_epoch",
                queue=self.queue.name,
                why="the store was restored: omit the option at the next start",
            )

    async def _end_journal(self) -> None:
        # A restarted destination may have no journal: its store is in memory, or the event loop is another one.
        journal, self.journal = self.journal, None
        if journal is not None:
            await journal.close()

    def _divide_queues(self, snapshot: Snapshot) -> None:
        worker = self.worker
        first = worker.partitions if worker is not None else None
        self.partitioning.divide(self.queues, snapshot, first, is_joined=worker is not None and worker.count > 1)

    def _check_queues(self, snapshot: Snapshot) -> None:
        for queue in self.queues.values():
            stored = queue.stored_partitions
            if stored not in (None, len(queue.partitions)):
                raise ConfigurationError(
                    f"in this store, the queue {queue.name!r} has {stored} partitions, not {len(queue.partitions)}",
                    remedy=f"Set partitions={stored}, or use another store: messages of a Sequence must stay in "
                    "one partition.",
                )
        for (name, partition), (first, end) in snapshot.bounds.items():
            kind = snapshot.queues.get(name, {}).get("kind", OUTBOX)
            if kind == "inbox" and end > first and name not in self.queues:
                raise ConfigurationError(
                    f"the store holds messages in the queue {name!r}, such as {end - first} in partition "
                    f"{partition}, but the queue is not configured",
                    remedy="Add the queue again, or use another store. holdfast queues shows its messages.",
                )

    def _new_handling(self) -> Handling:
        return Handling(
            self.queue,
            self.dead_letters,
            self._handling,
            self._concurrency,
            seal=seal,
            unseal=unseal,
            set_aside=set_aside,
        )

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
            "store failed",
            error=repr(error),
            what="no message is accepted or acknowledged any longer",
            remedy=getattr(error, "remedy", ""),
        )
        for exchange in self.unanswered.take_all():
            _refuse_all(exchange)
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
        if exchange.request.method != "POST" and self._wsdl.give(exchange):
            return
        if refuse_unless_soap(exchange):
            return
        if self.engine.failure is not None:
            _refuse_all(exchange)
            return
        self._envelopes.receive(exchange, self._take, is_elsewhere)

    def knows(self, identifier: str) -> bool:
        """Whether the destination has, or had, a Sequence with that Identifier."""
        protocol = self.engine.protocol
        is_inbound = identifier in protocol.inbound.destinations or identifier in protocol.inbound.offered
        return is_inbound or bool(protocol.outbound.sequences.named(identifier))

    def _take(self, exchange: Exchange, envelope: Envelope, refusal: Fault | None) -> None:
        if self.engine.failure is not None:
            _refuse_all(exchange)
            return
        if self.store.trouble and _is_new(envelope):
            _refuse_all(exchange, b"No new messages are accepted for now; stored messages are still processed.\n")
            return
        self.unanswered.add(exchange)
        if self._router is None or refusal is not None or envelope.sequence is None or envelope.control is not None:
            self._take_routed(exchange, envelope, refusal)
        elif (routed := self._router.at_once(envelope)) is None:
            self._envelopes.aside(partial(self._router, envelope), partial(self._routed, exchange, envelope))
        else:
            self._routed(exchange, envelope, routed)

    def _routed(self, exchange: Exchange, envelope: Envelope, routed: Routed | Fault) -> None:
        if self.engine.failure is not None:
            _refuse_all(exchange)
            return
        envelope.routed = routed
        if envelope.relates_to is not None or (isinstance(routed, Routed) and routed.is_sent_on):
            pass_on(envelope)  # SOAP 1.2 part 1, 2.7: an intermediary relays headers for the ultimate receiver
        self._take_routed(exchange, envelope, None)

    def _take_routed(self, exchange: Exchange, envelope: Envelope, refusal: Fault | None) -> None:
        protocol, back_channel = self.engine.protocol, BackChannel(exchange)
        if refusal is None:
            origin = origin_of(exchange.request, envelope)
            if self.sort_out is not None and (envelope.acknowledgements or envelope.ack_requested):
                self.sort_out(envelope, origin)
            envelope.transport = self._keeper.facts_of(exchange.request)
            self.sender.pauses.heard(envelope, exchange.request.headers.get(b"user-agent", b""))
            if self._envelopes.tracing is not None and envelope.sequence is not None and envelope.control is None:
                self._envelopes.tracing.accepting(exchange, envelope, protocol.commit)
            protocol.receive(envelope, back_channel, self.engine.clock(), origin=origin)
        else:
            protocol.refuse(envelope, refusal, back_channel)
        self.engine.touch()

    def hear(self, envelope: Envelope, origin: Origin) -> None:
        """Process acknowledgements and acknowledgement requests that another process received and answers."""
        if self.engine.failure is None:
            self.engine.protocol.receive(envelope, None, self.engine.clock(), origin=origin)
            self.engine.touch()

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
    def is_busy(self) -> bool:
        """Whether work is in progress that needs neither a timer nor a peer: a commit or a handler."""
        handling = self.dispatcher is not None and self.dispatcher.is_busy
        return self.is_committing or (self._started and handling)

    @property
    def is_committing(self) -> bool:
        """Whether the destination is decoding, reading, sending, or writing to the store."""
        return self._started and (self.engine.is_busy or self._envelopes.is_busy or self.sender.is_busy)

    # --- ASGI -----------------------------------------------------------------------------------------------------

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """The ASGI application: ``lifespan`` and ``http``."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self.start()
            await serve_asgi(self.handle, scope, receive, send, self._limits, self._buffered, refuse_as_soap)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _lifespan(
        self,
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> Any:
        """Start and close the destination with a host that does not forward its lifespan to mounted applications.

        For example: ``FastAPI(lifespan=app.lifespan)``.
        """
        await self.start()
        try:
            yield
        finally:
            await self.close()


def _returned(handler: Handler) -> object:
    return getattr(handler, "__annotations__", {}).get("return", _UNSAID)


def _is_new(envelope: Envelope) -> bool:
    """Whether an envelope would add to the store. A full store still takes acknowledgements: they free it."""
    return envelope.fault is None and (envelope.control is None or isinstance(envelope.control, CreateSequence))


def _refuse_all(exchange: Exchange, why: bytes = b"The store failed; nothing is accepted.\n") -> None:
    exchange.respond(503, why, b"text/plain", ((b"Retry-After", b"5"),))
