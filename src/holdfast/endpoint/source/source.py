"""Source: an RM Source for an application. Async; ``sync`` has the blocking one.

Owns promises to callers: durable here, durable there, replied. What happens in between is the protocol's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, overload

from holdfast.core.events import (
    Effect,
    Incident,
    Respond,
    Transmit,
)
from holdfast.core.messages import ANONYMOUS
from holdfast.core.policy import Assurance, DestinationPolicy, SourcePolicy
from holdfast.core.protocol_settings import Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.versions import Versions
from holdfast.endpoint.arguments import (
    check_class,
    check_length,
    check_store,
    check_url,
    check_versions,
    to_assurance,
    to_journal,
)
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import SOURCES_QUEUE, Engine, new_identifier
from holdfast.endpoint.engine.opening import open_off_loop, patiently
from holdfast.endpoint.envelopes.attachments import Attachment
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.message import Body
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.listeners import listen_for_answers
from holdfast.endpoint.logs import log, log_incident
from holdfast.endpoint.sending.listener import Listener
from holdfast.endpoint.sending.policies import Policy, SequencePolicies, to_policies
from holdfast.endpoint.sending.sender import Sender
from holdfast.endpoint.sending.stopped import (
    nothing_to_resume,
    retracted_text,
)
from holdfast.endpoint.source.calls import Calls
from holdfast.endpoint.source.enqueued_messages import Collecting
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.operation_calls import OperationCalls
from holdfast.endpoint.source.options import SourceOptions
from holdfast.endpoint.source.outgoing_record import attach, attach_in_thread, outgoing_record
from holdfast.endpoint.source.pending_sends import Progress, named, note_answer, note_failure
from holdfast.endpoint.source.profiles import PREFERRED, PROFILES
from holdfast.endpoint.source.replies import Replies, Reply
from holdfast.endpoint.source.sent import Enqueued, Sent, enqueue
from holdfast.endpoint.source.store_owner import destination_of
from holdfast.endpoint.source.wsdl import documents_of, read_port, source_options
from holdfast.exceptions import (
    ConfigurationError,
    DeliveryError,
    NotAcknowledged,
    StoreError,
    StoreFailed,
)
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import HTTPServer
from holdfast.settings import check_seconds
from holdfast.store import Store, Transactional, shown, store_exists

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from holdfast.store.sql.outgoing import DBConnection


class Source(OperationCalls):
    """An RM Source: messages for which :meth:`send` has returned are stored, and delivered to ``to`` as the assurance
    promises.

    An async context manager. Entering it resumes the store: messages that an earlier process stored without an
    acknowledgement are sent automatically. Leaving it ends the Sequences whose messages are all acknowledged; the
    others stay in the store for the next time.

    Args:
        to: The destination's URL; None: the one in the store (to resume).
        store: The directory of its store, the URL of a database, ":memory:", or an open store.
        versions: The versions to use, or to try, in order; detected if None.
        profile: Instead of versions, the name of a known peer: "wcf", "wcf-2007", "cxf".
        offer: Whether CreateSequence offers a Sequence for replies; detected if None. WCF services whose operations
            reply require it.
        assurance: Words such as "exactly-once in-order".
        policy: Limits and timers. Or a list of :class:`Policy`, each for some of the Sequences; then the other settings
            are the defaults, or those of the WSDL. ``assurance`` replaces the assurance if given.
        http: HTTP headers such as Authorization, TLS, proxy, timeout, and a listener for acknowledgements and
            replies. None: no headers, the system's trust, and no listener.
        processors: The processors of every envelope, in and out, the first next to the network.
        journal: Whether it keeps an event journal, in ``journal`` of its store's directory, or where and how long it
            keeps it.

    Raises:
        ConfigurationError: Arguments contradict each other, or ``to`` is not an http or https URL.
    """

    clock: Clock | None = None
    """Replaces the machine's clock in tests."""

    def __init__(
        self,
        to: str | None,
        store: str | Path | Store = "outbox",
        *,
        versions: Versions | Sequence[Versions] | None = None,
        profile: str | None = None,
        offer: bool | None = None,
        assurance: str | Assurance | None = None,
        policy: SourcePolicy | Iterable[Policy] | SequencePolicies | None = None,
        http: SourceHTTP | None = None,
        processors: Iterable[Processor] = (),
        journal: bool | JournalPolicy = False,
    ):
        check_versions(versions)
        check_store(store)
        check_class("http", http, SourceHTTP)
        check_class("offer", offer, bool)
        self._http = http or SourceHTTP()
        self._journal_policy = to_journal(journal)
        self._journal: Journal | None = None
        if profile is not None:
            if profile not in PROFILES or versions is not None:
                raise ConfigurationError(
                    f"{profile!r} is not a profile, or versions are given as well",
                    remedy=f"profile must be one of {', '.join(PROFILES)}, and sets the versions",
                )
            versions = PROFILES[profile]
        if to is not None and self._http.transport is None:
            check_url("to", to)
        elif to is not None:
            check_length("to", to)
        self.to = to
        self._policies = to_policies(policy)
        if assurance is not None:
            self._policies.usual = replace(self._policies.usual, assurance=to_assurance(assurance))
        self._policies.of(to or "", "")  # raises if policies contradict each other
        self.progress = Progress()
        self.incidents: Counter[str] = Counter()
        self._envelopes = Envelopes("source", self.incidents, processors)
        self.on_progress: Callable[[Progress], None] | None = None
        self._store_location = store
        self._versions = versions
        self._offer = offer
        self._choices = self._make_choices()
        self._server: HTTPServer | None = None
        self._collecting: Collecting | None = None
        self._open = False

    @classmethod
    async def from_wsdl(
        cls,
        wsdl: str | Path,
        store: str | Path | Store = "outbox",
        *,
        port: str | None = None,
        to: str | None = None,
        **options: Unpack[SourceOptions],
    ) -> Self:
        """Create a source for the service that a WSDL describes: ``async with await Source.from_wsdl(url) as source``.

        The WSDL and its policies (WS-RM Policy 1.0 to 1.2, and the additions of .NET and Metro) set the address, the
        versions, whether to offer a Sequence for replies, the assurance, the times of retransmissions, and how often an
        idle Sequence must be kept alive.

        Args:
            wsdl: Its http or https URL, or the path of a file.
            store: As above. If it exists and the WSDL cannot be fetched just now, the source continues with its
                content.
            port: The name of the wsdl:port to use, if there are several.
            to: The address to use instead of the WSDL's.
            options: As above; each overrides the WSDL. The requests for the WSDL have the headers of ``http`` too.

        Raises:
            TransportError: The WSDL cannot be fetched, and the store is new.
            ConfigurationError: It is not a WSDL 1.1, the port is ambiguous, or its policy requires something that the
                source does not do, such as a user name that it was not given, or messages signed by WS-Security. The
                error names each assertion and its line.
        """
        options = {**options, "processors": tuple(options.get("processors") or ())}
        documents = documents_of(wsdl, options.get("http") or SourceHTTP())
        try:
            found = await read_port(documents, port, to, options)
        except TransportError as error:
            if not isinstance(store, str | Path) or not await asyncio.to_thread(store_exists, store):
                raise
            log.warning("wsdl.unreadable", wsdl=str(wsdl), error=error.message)
            return cls(to, store, **options)._described_by(documents, port)
        source = cls(to or found.address, store, **source_options(found, options))
        return source._described_by(documents, found.name)

    @property
    def policy(self) -> SourcePolicy:
        """The policy of the messages without a ``sequence_key``."""
        return self._policies.of(self.to or "", "")

    def use(self, policy: SourcePolicy | Iterable[Policy]) -> None:
        """Change the policies while the source is open, as the argument ``policy`` of the constructor.

        They apply at once, also to open Sequences. Stored messages stay in their Sequences. The assurance stays, unless
        a :class:`Policy` sets it.

        Raises:
            ConfigurationError: A policy is not valid; then nothing changes.
        """
        usual, given = self._policies.usual, to_policies(policy, self._policies.usual)
        given.usual = replace(given.usual, assurance=usual.assurance)
        outbound = self._engine.protocol.outbound if self._open else None
        for key in outbound.outboxes if outbound is not None else [""]:
            given.of(self.to or "", key)  # raises if policies contradict each other
        self._policies = given
        if outbound is not None:
            outbound.use(given.usual, given.of)
            self._engine.touch()

    def _make_choices(self) -> list[tuple[Versions, bool]]:
        versions = [self._versions] if isinstance(self._versions, Versions) else self._versions or PREFERRED
        offers = (True, False) if self._offer is None else (self._offer,)
        return [(one, offer) for offer in offers for one in versions]

    # --- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind is None)
        await self.close(timeout=10.0 if kind is None else 0.0)

    def _leave(self, in_order: bool) -> None:
        """Its block is left: in order, the program has the replies that it was given."""
        if in_order and self._open:
            self._calls.here.done_with_given()

    async def open(self) -> None:
        """Open the store and resume what it holds.

        Raises:
            StoreError: the store cannot be opened.
            ConfigurationError: no ``to`` is given and the store names none, or another; the store is a destination's;
                or it cannot listen where it was told to.
        """
        if self.to is None and not await patiently(lambda: asyncio.to_thread(store_exists, self._store_location)):
            raise nothing_to_resume(shown(self._store_location))  # and none is made
        self._store = await open_off_loop(self._store_location)
        try:
            await self._start()
        except BaseException:
            if self._server is not None:
                await self._server.close(0.0)
            await self._engine.give_up()
            await self._end_journal()
            with contextlib.suppress(StoreError):  # what is wrong with it is being told
                self._store.close()
            raise
        self._open = True

    async def _start(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._engine = Engine(self._store, self._carry_out, self._store_failed, self.clock)
        self._calls = Calls(self._engine, self.progress, self._store_location, self._choices)
        self._local, http = ANONYMOUS, self._http
        self._sender = Sender(
            self._engine,
            http.transport or http.new_client(connections_per_host=64),
            self._envelopes,
            http.headers,
            on_transport_error=self._transport_error,
            on_answer=lambda _sent: self._tell_progress() if note_answer(self.progress) else None,
        )
        listener = None
        if http.listen is not None:
            listener = Listener(self._engine, self._envelopes, self._sender.pauses)
            self._server = await listen_for_answers(listener.handle, *http.listen)
            self._local = self._calls.local = http.address or f"http://{http.listen[0]}:{self._server.port}/"
        replies = DestinationPolicy(
            assurance=Assurance(in_order=False), inactivity_timeout=None, advertise_buffer=False, max_sequences=1 << 20
        )
        queue, is_restored = Queue(SOURCES_QUEUE), bool(self._store.went_back)
        snapshot = self._engine.start(
            queue,
            policies=Policies(replies, self._policies.usual, self._policies.of),
            local=self._local,
            is_restored=is_restored,
        )
        self._engine.protocol.accepting.takes_only_replies = True
        self._calls.here = Replies(
            self.policy.kept_replies, queue, self._engine, self._in_the_loop, self._calls.replied
        )
        outbound = self._engine.protocol.outbound
        self.to = self._calls.to = destination_of(self._store_location, self.to, snapshot, outbound)
        self._journal = self._engine.keep_journal(self._journal_policy, self._store_location, None, replies, snapshot)
        self._calls.take_up()
        await self._calls.here.take_up(*snapshot.bounds.get((SOURCES_QUEUE, 0), (0, 0)))
        for outbox in list(self._engine.protocol.outbound.outboxes.values()):
            outbox.ready()
        self._engine.touch()
        await self._engine.caught_up()  # nothing is sent or taken in before it knows what an earlier run sent
        self._engine.check()
        if listener is not None:
            listener.begin()
        if isinstance(self._store, Transactional):
            self._collecting = Collecting(self._engine, self._store, self._submit_enqueued)
            await self._collecting.collect()
            self._engine.check()

    async def _end_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    def _in_the_loop(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            if self._open:
                call()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is given again
            self._loop.call_soon_threadsafe(lambda: call() if self._open else None)

    async def close(self, timeout: float = 10.0) -> None:
        """End every Sequence whose messages are all acknowledged, wait up to ``timeout`` seconds for the destination's
        answer, then close the store. Unacknowledged messages stay there, and the next :meth:`open` resumes them.

        Raises:
            ConfigurationError: The timeout is negative; then nothing is closed.
        """
        check_seconds("timeout", timeout, endless=False)
        if not self._open:
            return
        self._open = False
        self._store.outlasts = False
        try:
            if timeout > 0 and self._engine.failure is None:
                await self._end_finished(timeout)
        finally:
            if self._collecting is not None:
                await self._collecting.close()
            await self._sender.stop()
            if self._server is not None:
                await self._server.close(1.0)
            await self._envelopes.close()
            await self._engine.stop()
            await self._end_journal()
            self._store.close()
            closed = DeliveryError("the source was closed", remedy="Open it again: it sends its stored messages.")
            self._calls.fail_all(closed, closed)

    async def _end_finished(self, timeout: float) -> None:
        ending = [
            self._calls.end(lane)
            for lane in self._calls.lanes.values()
            if lane.outbox.is_empty and lane.outbox.source is not None and not lane.outbox.stopped
        ]
        if ending:
            done, _ = await asyncio.wait(ending, timeout=timeout)
            for ended in done:
                ended.exception()  # logged when it came; all of it is acknowledged

    # --- sending --------------------------------------------------------------------------------------------------

    @overload
    def send(
        self,
        body: Body,
        *,
        action: str,
        sequence_key: str = "",
        message_id: str | None = None,
        headers: bytes = b"",
        attachments: Sequence[Attachment] = (),
    ) -> Coroutine[Any, Any, Sent]: ...

    @overload
    def send(
        self,
        body: Body,
        *,
        action: str,
        sequence_key: str = "",
        message_id: str | None = None,
        headers: bytes = b"",
        attachments: Sequence[Attachment] = (),
        connection: Connection | DBConnection,
    ) -> Enqueued: ...

    def send(
        self,
        body: Body,
        *,
        action: str,
        sequence_key: str = "",
        message_id: str | None = None,
        headers: bytes = b"",
        attachments: Sequence[Attachment] = (),
        connection: Connection | DBConnection | None = None,
    ) -> Coroutine[Any, Any, Sent] | Enqueued:
        """Store a one-way message and send it. Awaited, it returns when the message is durable here.

        Args:
            body: One XML element: text, UTF-8 bytes or an lxml element; or nothing.
            action: wsa:Action. It must not be empty.
            sequence_key: Messages with equal keys share a Sequence and its order; others do not wait for them.
            message_id: wsa:MessageID, created if None. If the outbox of that key still contains this very message among
                its newest 10,000, it is not stored again: so a program that does not know whether a message was stored
                may send it again.
            headers: Your own header blocks, XML bytes: elements with namespaces, one after the other.
            attachments: Files that travel with the message, stored with it. If the body refers to them in
                ``xop:Include`` elements, the message leaves in MTOM, else as SOAP with Attachments.
            connection: An open transaction of SQLAlchemy or of any driver (PEP 249, such as Django's ``connection``) in
                the database of the source's store. The message is sent if that commits. Not awaited; in any thread and
                process: the process that has the source open, or opens it next, sends it.

        Raises:
            EnvelopeError: It can never be sent as it is (the body is not one XML element, the headers are not elements
                with namespaces, a text contains characters that XML cannot, the body does not match the attachments),
                or another message has its MessageID.
            DeliveryError: The outbox is stopped; says why and what to do.
            StoreError: It is not durable.
        """
        if connection is None:
            return self._submit(body, action, sequence_key, message_id, headers, attachments, wants_reply=False)
        now = (self.clock or Clock())()
        message_id = new_identifier() if message_id is None else message_id
        sequence_key = self._policies.key_of(action) if sequence_key == "" else sequence_key
        record = outgoing_record(sequence_key, action, body, message_id, headers, now, wants_reply=False)
        if attachments:
            attach(record, attachments)
        return enqueue(connection, self._store_location, record)

    async def request(
        self,
        body: Body,
        *,
        action: str,
        sequence_key: str = "",
        message_id: str | None = None,
        headers: bytes = b"",
        attachments: Sequence[Attachment] = (),
        timeout: float | None = 60.0,
    ) -> Reply:
        """Send a request and wait for its reply; both are durable. The request is repeated until the reply is here.

        Args:
            body, action, sequence_key, message_id, headers, attachments: As for :meth:`send`.
            timeout: Seconds to wait; None: for ever.

        Returns:
            The reply. It is kept, and given again by :meth:`reply`, also in a later process, until the program says
            that it has it: by :meth:`Reply.done`, or by leaving the block of the reply or of the source in order.

        Raises:
            NotAcknowledged: no reply in that time. The request is still stored and still tried; a reply that comes
                later is there for :meth:`reply` with the request's MessageID.
            PeerFault: the service answered with a fault.
            DeliveryError: see :meth:`Sent.acknowledged`.
        """
        check_seconds("timeout", timeout)
        if message_id is None or not self._calls.here.has(message_id):
            sent = await self._submit(body, action, sequence_key, message_id, headers, attachments, wants_reply=True)
            message_id = sent.message_id
        return await self.reply(message_id, timeout=timeout)

    async def reply(self, message_id: str, timeout: float | None = None) -> Reply:
        """The reply to a request, even one of an earlier process; arguments and errors as for :meth:`request`. It is
        given again until :meth:`Reply.done`."""
        check_seconds("timeout", timeout)
        self._check_open()
        message = await self._calls.here.kept(message_id)
        if message is None:
            message = await self._calls.reply(message_id, timeout)
        message.raise_for_fault()
        return message

    async def _submit(
        self,
        body: Body,
        action: str,
        key: str,
        message_id: str | None,
        headers: bytes,
        attachments: Sequence[Attachment],
        *,
        wants_reply: bool,
    ) -> Sent:
        self._check_open()
        engine, given = self._engine, message_id
        now = engine.clock()
        message_id = new_identifier() if given is None else given
        key = self._policies.key_of(action) if key == "" else key
        record = outgoing_record(key, action, body, message_id, headers, now, wants_reply=wants_reply)
        if attachments:
            await attach_in_thread(record, attachments)
            self._check_open()
        lane = self._calls.lane(key)
        known = await lane.ids.find(given) if given is not None else None
        lane.check()
        if known is not None:
            await lane.check_same(known, record)
        if wants_reply:
            self._calls.replies.setdefault(message_id, asyncio.get_running_loop().create_future())
            self._calls.asked[message_id] = lane
        if known is not None:
            return Sent(self._calls, lane, known, message_id)
        self._envelopes.submitting(record, engine.protocol.commit)
        offset = engine.protocol.submit(lane.outbox, record, now)
        lane.ids.add(message_id, offset)
        stored = lane.submitted[offset] = self._loop.create_future()
        engine.touch()
        await (stored if given is None else lane.stored(offset))
        return Sent(self._calls, lane, offset, message_id)

    def _submit_enqueued(self, record: Record) -> None:
        lane = self._calls.lane(record.sequence)
        offset = self._engine.protocol.submit(lane.outbox, record, self._engine.clock())
        lane.ids.add(record.message_id or "", offset)

    def _check_started(self) -> None:
        if not hasattr(self, "_calls"):
            raise ConfigurationError("the source is not open", remedy="Use it within 'async with source:'.")

    def _check_open(self) -> None:
        if not self._open:
            raise ConfigurationError("the source is not open", remedy="Use it within 'async with source:'.")
        self._engine.check()
        if self._store.trouble:
            raise StoreFailed(
                f"The message is not stored. {self._store.trouble}",
                remedy="Free space. Stored messages are still being sent.",
            )

    def next_offset(self, sequence_key: str = "") -> int:
        """Return the number of messages ever stored with that key: where a numbering sender continues after a crash."""
        self._check_open()
        lane = self._calls.lanes.get(sequence_key)
        return lane.outbox.end if lane is not None else 0

    # --- waiting --------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far, also by earlier processes, is acknowledged; errors as for one message.

        A key that is stopped does not keep it from waiting for the others: its error is raised when they are done.
        """
        check_seconds("timeout", timeout)
        self._check_started()
        try:
            async with asyncio.timeout(timeout):
                if self._collecting is not None:
                    await self._collecting.collect()
                waits = [self._calls.flush(lane) for lane in self._calls.lanes.values()]
                for result in await asyncio.gather(*waits, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise NotAcknowledged(
                f"{self.progress.outstanding} messages for {self.to} are not acknowledged after {timeout} s"
                f"{self._calls.because()}",
                remedy=f"They are stored and Holdfast keeps retrying. {self._calls.how_it_goes_on('them')}",
            ) from None

    async def end(self, sequence_key: str = "", timeout: float | None = None) -> None:
        """Complete the key's Sequence, and wait until all of it is acknowledged and the Sequence has ended.

        The next message with that key starts another Sequence.

        Raises:
            NotAcknowledged: It did not end in that time; Holdfast keeps retrying.
        """
        check_seconds("timeout", timeout)
        self._check_started()
        lane = self._calls.lane(sequence_key)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._calls.end(lane))
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise NotAcknowledged(
                f"the Sequence {named(lane.outbox)} did not end within {timeout} s{self._calls.because()}",
                remedy="Unacknowledged messages are stored, and Holdfast keeps retrying.",
            ) from None

    def resume(self) -> None:
        """Resume every stopped key: unacknowledged messages are sent again, in new Sequences if the old ones are lost.
        With exactly-once this is a decision: the destination may have received some of them already."""
        self._check_started()
        self._choices[:] = self._make_choices()
        for lane in self._calls.lanes.values():
            lane.stop_error = None
            if lane.outbox.stopped:
                lane.outbox.resume(self._choices, self._engine.clock())
        self._engine.touch()

    # --- what comes back ------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Transmit):
            self._sender.transmit(effect)
            self.progress.resent += effect.number > 0 and effect.attempt > 1
        elif isinstance(effect, Incident):
            self.incidents[effect.name] += 1
            log_incident(effect)
            self.progress.problem = retracted_text(effect) or self.progress.problem
        elif isinstance(effect, Respond):
            self._envelopes.respond(cast(Exchange, effect.back_channel), effect.envelope)
        else:
            self._calls.tell(effect)
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def _transport_error(self, _sent: Transmit, reason: str) -> None:
        note_failure(self.progress, reason)
        self._tell_progress()

    def _store_failed(self, error: BaseException) -> None:
        log.critical("store failed", error=repr(error), unacknowledged=self.progress.outstanding)
        self._calls.store_failed(error)

    @property
    def _is_busy(self) -> bool:
        """Whether it has something to do without waiting for time to pass or for the destination."""
        return self._open and (self._engine.is_busy or self._envelopes.is_busy or self._sender.is_busy)

    def sequences(self) -> list[dict[str, Any]]:
        """The Sequences it sends, and what waits for one; see ``inspection.describe_sequence``."""
        from holdfast.endpoint.inspection import describe_protocol

        engine = self._engine
        return [one for one in describe_protocol(engine.protocol, engine.clock()) if one["role"] == "source"]
