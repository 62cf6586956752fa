"""Source: an RM Source for an application. Async; ``sync`` has the blocking one.

Owns promises to callers: durable here, durable there, replied. What happens in between is the protocol's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.policy import Assurance, SourcePolicy
from holdfast.core.versions import Versions, creation_choices
from holdfast.endpoint.arguments import (
    check_class,
    check_length,
    check_url,
    check_versions,
    to_assurance,
    to_journal,
)
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import new_identifier
from holdfast.endpoint.envelopes.attachments import Attachment, to_attachments
from holdfast.endpoint.envelopes.chain import to_processors
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.message import Body
from holdfast.endpoint.envelopes.processors import Processor
from holdfast.endpoint.handling.callbacks import check_reachable
from holdfast.endpoint.handling.dispatcher import HandlerT
from holdfast.endpoint.handling.handlers import HandlerTable, check_action
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.logs import log
from holdfast.endpoint.sending.policies import Policy, SequencePolicies, to_policies
from holdfast.endpoint.source.block_hints import NoWith, awaited_first
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.operation_calls import MessageFields, OperationCalls
from holdfast.endpoint.source.outgoing_record import attach, attach_in_thread, outgoing_record
from holdfast.endpoint.source.pending_sends import Progress, named, reset_progress
from holdfast.endpoint.source.profiles import PREFERRED, versions_of
from holdfast.endpoint.source.replies import Reply
from holdfast.endpoint.source.running_source import RunningSource, SourceSettings, end_earlier
from holdfast.endpoint.source.sent import Enqueued, Sent, enqueue
from holdfast.endpoint.source.wsdl import SourceOptions, check_options, documents_of, read_port, source_options
from holdfast.exceptions import ConfigurationError, HoldfastError, NotAcknowledged
from holdfast.http.outcome import TransportError
from holdfast.settings import check_callable, check_seconds
from holdfast.store import Store, store_exists
from holdfast.store.address import check_location

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from holdfast.store.sql.outgoing import DBConnection


class Source(NoWith, OperationCalls):
    """An RM Source: messages for which :meth:`send` has returned are stored, and delivered to ``to`` as the assurance
    promises.

    An async context manager. Entering it resumes the store: messages that an earlier process stored without an
    acknowledgement are sent automatically. Leaving it ends every Sequence without unacknowledged messages; the others
    stay in the store for the next time.

    Args:
        to: The destination's URL; None: the one in the store (to resume).
        store: The directory of its store, the URL of a database, ":memory:", or an open store.
        versions: The versions to use, or to try, in order; detected if None.
        profile: Instead of versions, the name of a known peer: "wcf", "wcf-2007", "cxf".
        offer: Whether CreateSequence offers a Sequence for replies; detected if None. WCF services with operations that
            reply require it.
        assurance: Words such as "exactly-once in-order".
        policy: Limits and timers. Or a list of :class:`Policy`, each for some of the Sequences; then the other settings
            are the defaults, or those of the WSDL. ``assurance`` replaces the assurance if given.
        http: HTTP headers such as Authorization, TLS, proxy, timeout, and a listener for acknowledgements and
            replies, or polls for them. None: no headers, the system's trust, and neither of the two.
        processors: The processors of every envelope, in and out, the first next to the network.
        journal: Whether it keeps an event journal, in ``journal`` of its store's directory, or where and how long it
            keeps it.

    Raises:
        ConfigurationError: Arguments contradict each other, or ``to`` is not an http or https URL.
    """

    clock: Clock | None = None
    """Replaces the machine's clock in tests."""
    handling = HandlingPolicy()
    """How handlers of :meth:`on` are called and retried. Set it before you open the source."""

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
        check_location(store)
        check_class("http", http, SourceHTTP)
        check_class("offer", offer, bool)
        self._http = http or SourceHTTP()
        self._journal_policy = to_journal(journal)
        if profile is not None:
            versions = versions_of(profile, versions)
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
        chain = to_processors(processors)
        self._envelopes = Envelopes("source", self.incidents, chain)
        for one in chain:
            one._check_service(to or "")
        self._on_progress: Callable[[Progress], None] | None = None
        self._store_location = store
        self._versions = versions
        self._offer = offer
        self._choices = self._make_choices()
        self._opened: RunningSource | None = None
        self._changing = asyncio.Lock()  # held while it opens or closes
        self._table = HandlerTable({})

    @classmethod
    @awaited_first("Source.from_wsdl(…)")
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
        check_options("Source.from_wsdl", options, ("port", "to"))
        check_class("wsdl", wsdl, (str, Path), optional=False)
        check_location(store)
        check_class("port", port, str)
        check_class("to", to, str)
        options = {**options, "processors": to_processors(options.get("processors") or ())}
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

    def __repr__(self) -> str:
        return f"<Source to={self.to!r} {'open' if self._is_open else 'not open'}>"

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
        outbound = self._running.engine.protocol.outbound if self._is_open else None
        for key in outbound.outboxes if outbound is not None else [""]:
            given.of(self.to or "", key)  # raises if policies contradict each other
        self._policies = given
        if outbound is not None:
            outbound.registry.use(given.usual, given.of)
            self._running.engine.touch()

    @property
    def on_progress(self) -> Callable[[Progress], None] | None:
        """Called with the progress on every change, in the event loop. The log reports an error that it raises.

        Raises:
            ConfigurationError: It is set to something that cannot be called with the progress.
        """
        return self._on_progress

    @on_progress.setter
    def on_progress(self, callback: Callable[[Progress], None] | None) -> None:
        check_callable("on_progress", callback, 1, optional=True)
        self._on_progress = callback

    def on(self, action: str = "") -> Callable[[HandlerT], HandlerT]:
        """Register the decorated function as the handler of messages that the service sends on its own (callbacks).

        A duplex service sends them to the source's listener, or in the Sequence that the source offered. They are
        stored before they are acknowledged. The handler takes the :class:`Message`, as a handler of a
        destination does. If it raises, the source retries it with exponential backoff, and then makes the message a
        dead letter in its store. The source's assurance applies: in order, a Sequence has one handler at a
        time, and replies arrive in order, too. Register handlers before the source is opened; a later opening calls
        them for the messages that an earlier one stored. Messages without a handler are acknowledged and discarded.

        Args:
            action: wsa:Action; "" for every action without its own handler.

        Raises:
            ConfigurationError: The source is open, the action has a handler already, the handler cannot be called with
                a message, or the parentheses of ``@source.on()`` are missing.
        """
        check_action(action, "source")

        def register(handler: HandlerT) -> HandlerT:
            if self._is_open:
                raise ConfigurationError(
                    "the source is open already", remedy="Register its handlers before you open it."
                )
            self._table.check(action, handler)
            self._table.add(action, handler, "")
            return handler

        return register

    def _make_choices(self) -> list[tuple[Versions, bool]]:
        versions = [self._versions] if isinstance(self._versions, Versions) else self._versions or PREFERRED
        return creation_choices(versions, self._offer)

    # --- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(kind is None)
        await self.close(timeout=10.0 if kind is None else 0.0)

    def _leave(self, in_order: bool) -> None:
        """Its block is left: in order, the program has the replies that it was given."""
        if in_order and self._is_open:
            self._running.calls.here.done_with_given()

    async def open(self) -> None:
        """Open the store and resume what it holds.

        Raises:
            StoreError: the store cannot be opened.
            ConfigurationError: it is open already; no ``to`` is given and the store names none, or another; the store
                is a destination's; or it cannot listen where it was told to.
        """
        async with self._changing:
            await end_earlier(self._opened)
            settings = SourceSettings(
                to=self.to,
                location=self._store_location,
                policies=self._policies,
                choices=self._choices,
                http=self._http,
                journal=self._journal_policy,
                envelopes=self._envelopes,
                clock=self.clock,
                table=self._table,
                handling=self.handling,
            )
            check_reachable(
                self._table.handlers, listens=self._http.listen is not None, offers=self._offer is not False
            )
            reset_progress(self.progress)
            self._opened = await RunningSource.open(settings, self.progress, self.incidents, self._tell_progress)
            self.to = self._opened.calls.to

    async def close(self, timeout: float = 10.0) -> None:
        """End every Sequence without unacknowledged messages, wait up to ``timeout`` seconds for the destination's
        answer (and for a database that is away, at least one), then close the store. Unacknowledged messages stay
        there, and the next :meth:`open` resumes them.

        Raises:
            ConfigurationError: The timeout is negative, or the source was opened in another event loop, which still
                runs; then nothing is closed.
        """
        check_seconds("timeout", timeout, endless=False)
        async with self._changing:  # a second call waits for the first
            if self._opened is not None and self._is_open:
                await self._opened.close(timeout)

    # --- sending --------------------------------------------------------------------------------------------------

    @overload
    def send(self, body: Body, **fields: Unpack[MessageFields]) -> Coroutine[Any, Any, Sent]: ...

    @overload
    def send(
        self, body: Body, *, connection: Connection | DBConnection, **fields: Unpack[MessageFields]
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
            body: One XML element: text, bytes or an lxml element; or nothing. Bytes are UTF-8, unless their first bytes
                or their XML declaration name another encoding.
            action: wsa:Action. It must not be empty.
            sequence_key: Messages with equal keys share a Sequence and its order; others do not wait for them.
            message_id: wsa:MessageID, created if None. If the outbox of that key still contains this very message among
                its newest 10,000, it is not stored again: so a program that does not know whether a message was stored
                may send it again. Another message with a MessageID that this process sent before is refused. A later
                process can only compare it with a stored message: a store deletes messages once they are acknowledged.
                With ``connection``, the transaction compares it with the newest 10,000 messages of transactions with a
                MessageID of yours, also with acknowledged ones: the same message with the same key is not stored again,
                and another one is refused.
            headers: Your own header blocks, XML bytes: elements with namespaces, one after the other.
            attachments: Files that travel with the message, stored with it. If the body refers to them in
                ``xop:Include`` elements, the message leaves in MTOM, else as SOAP with Attachments.
            connection: An open transaction of SQLAlchemy or of any driver (PEP 249, such as Django's ``connection``) in
                the database of the source's store. The message is sent if that commits. Not awaited; in any thread and
                process: the process that has the source open, or opens it next, sends it.

        Raises:
            EnvelopeError: It can never be sent as it is (the body is not one XML element, the headers are not elements
                with namespaces, a text contains characters that XML cannot, the body does not match the attachments, a
                processor cannot sign it), or another message has its MessageID.
            DeliveryError: The outbox is stopped; says why and what to do.
            StoreError: It is not durable.
        """
        if connection is None:
            return self._submit(body, action, sequence_key, message_id, headers, attachments, wants_reply=False)
        given = new_identifier() if message_id is None else message_id
        key, now = self._policies.key_of(action) if sequence_key == "" else sequence_key, (self.clock or Clock())()
        record = outgoing_record(key, action, body, given, headers, now, wants_reply=False)
        attach(record, to_attachments(attachments), None)
        self._envelopes.check_content(record.body, record.headers, record.attachments)
        return enqueue(connection, self._store_location, record, is_chosen=message_id is not None)

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
            that it has it: by :meth:`Reply.done`, or by leaving the block of the reply or of the source in order. Until
            then, another request with its MessageID is refused.

        Raises:
            NotAcknowledged: no reply in that time. The request is still stored and still tried; a reply that comes
                later is there for :meth:`reply` with the request's MessageID.
            PeerFault: the service answered with a fault. If you chose the ``message_id``, the source keeps the fault
                like a reply, until :meth:`PeerFault.done`; otherwise raising it confirms it.
            DeliveryError: see :meth:`Sent.acknowledged`.
        """
        check_seconds("timeout", timeout)
        is_chosen = message_id is not None
        if not isinstance(message_id, str) or not self._running.calls.here.has(message_id):
            sent = await self._submit(body, action, sequence_key, message_id, headers, attachments, wants_reply=True)
            message_id = sent.message_id
        else:
            now = self._running.engine.clock()
            record = outgoing_record(sequence_key, action, body, message_id, headers, now, wants_reply=True)
            self._running.calls.given.check(record)
        reply = await self._reply(message_id, timeout)
        try:
            reply.raise_for_fault()
        except HoldfastError:
            # Without its MessageID, the program cannot ask for the reply again.
            if not is_chosen:
                reply.done()
            raise
        return reply

    async def reply(self, message_id: str, timeout: float | None = None) -> Reply:
        """The reply to a request, even one of an earlier process; arguments and errors as for :meth:`request`. It is
        given again until :meth:`Reply.done`."""
        check_seconds("timeout", timeout)
        check_class("message_id", message_id, str, optional=False)
        message = await self._reply(message_id, timeout)
        message.raise_for_fault()
        return message

    async def _reply(self, message_id: str, timeout: float | None) -> Reply:
        self._check_open()
        message = await self._running.calls.here.kept(message_id)
        return await self._running.calls.reply(message_id, timeout) if message is None else message

    def unconfirmed(self) -> list[str]:
        """Return the MessageIDs of the requests whose replies are in the store and not confirmed, the oldest reply
        first; :meth:`reply` returns each. So a program finds the replies that an earlier process did not fetch."""
        self._check_open()
        return self._running.calls.here.requests

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
        engine, given = self._running.engine, message_id
        key, now = self._policies.key_of(action) if key == "" else key, engine.clock()
        message_id = new_identifier() if given is None else given
        record = outgoing_record(key, action, body, message_id, headers, now, wants_reply=wants_reply)
        if files := to_attachments(attachments):
            await attach_in_thread(record, files, engine.store.create_content)
            self._check_open()
        else:
            attach(record, (), None)
        self._envelopes.check_content(record.body, record.headers, record.attachments)
        lane = self._running.calls.lane(key)
        known = await self._running.calls.find_same(lane, record) if given is not None else None
        self._check_open()
        # From here to the submission nothing is awaited: what was found, or not found, still holds when it is stored.
        digest = self._running.calls.given.check(record) if given is not None else b""
        if wants_reply and self._running.calls.here.has(message_id):
            return Sent(self._running.calls, lane, -1, message_id)  # its record is deleted, and its reply is stored
        if known is None:
            lane.check_taking()
        else:
            lane.check()
        if wants_reply:
            # Before the message may leave: its reply may come in the same turn.
            self._running.calls.replies.setdefault(message_id, asyncio.get_running_loop().create_future())
            self._running.calls.asked[message_id] = lane
        if known is not None:
            assert given is not None
            self._running.calls.given.add(given, digest)
            return Sent(self._running.calls, lane, known, message_id)
        self._envelopes.submitting(record, engine.protocol.commit)
        offset = engine.protocol.submit(lane.outbox, record, now)
        lane.ids.add(message_id, offset)
        if given is not None:
            self._running.calls.given.add(given, digest)
        stored = lane.submitted[offset] = asyncio.get_running_loop().create_future()
        engine.touch()
        # Shielded with a MessageID: a repeated send may wait for the same message.
        await (stored if given is None else lane.stored(offset))
        return Sent(self._running.calls, lane, offset, message_id)

    @property
    def _is_open(self) -> bool:
        return self._opened is not None and self._opened.is_open

    @property
    def _running(self) -> RunningSource:
        """What it has from its first opening on. Every call enters here.

        Raises:
            ConfigurationError: It was never open, or is open in another event loop or process.
        """
        if self._opened is None:
            raise ConfigurationError("the source is not open", remedy="Use it within 'async with source:'.")
        if self._opened.is_open:
            self._opened.owner.check()
        return self._opened

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigurationError("the source is not open", remedy="Use it within 'async with source:'.")
        self._running.check()

    def next_offset(self, sequence_key: str = "") -> int:
        """Return the number of messages ever stored with that key: where a numbering sender continues after a crash."""
        self._check_open()
        check_class("sequence_key", sequence_key, str, optional=False)
        lane = self._running.calls.lanes.get(sequence_key)
        return lane.outbox.records.end if lane is not None else 0

    # --- waiting --------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far, also by earlier processes, is acknowledged; errors as for one message.

        A key that is stopped does not keep it from waiting for the others: its error is raised when they are done.
        """
        check_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                if self._running.collecting is not None:
                    await self._running.collecting.collect()
                waits = [self._running.calls.flush(lane) for lane in self._running.calls.lanes.values()]
                for result in await asyncio.gather(*waits, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise NotAcknowledged(
                f"{self.progress.outstanding} messages for {self.to} are not acknowledged after {timeout} s"
                f"{self._running.calls.because()}",
                remedy=f"They are stored and Holdfast keeps retrying. {self._running.calls.how_it_goes_on('them')}",
            ) from None

    async def end(self, sequence_key: str = "", timeout: float | None = None) -> None:
        """Complete the key's Sequence, and wait until all of it is acknowledged and the Sequence has ended.

        The next message with that key starts another Sequence.

        Raises:
            NotAcknowledged: It did not end in that time; Holdfast keeps retrying.
        """
        check_seconds("timeout", timeout)
        check_class("sequence_key", sequence_key, str, optional=False)
        lane = self._running.calls.lane(sequence_key)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._running.calls.end(lane))
        except NotAcknowledged:
            raise
        except TimeoutError:
            raise NotAcknowledged(
                f"the Sequence {named(lane.outbox)} did not end within {timeout} s{self._running.calls.because()}",
                remedy="Unacknowledged messages are stored, and Holdfast keeps retrying.",
            ) from None

    def resume(self) -> None:
        """Resume every stopped key: unacknowledged messages are sent again, in new Sequences if the old ones are lost.
        With exactly-once this is a decision: the destination may have received some of them already."""
        self._choices[:] = self._make_choices()
        self._running.is_resumed = True
        for lane in self._running.calls.lanes.values():
            self._running.calls.resumed(lane)
            if lane.outbox.lifecycle.stopped:
                lane.outbox.resume(self._choices, self._running.engine.clock())
        self._running.engine.touch()

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)

    @property
    def _is_busy(self) -> bool:
        return self._opened is not None and self._opened.is_busy

    def sequences(self) -> list[dict[str, Any]]:
        """The Sequences it sends, and what waits for one; see ``inspection.describe_parts``."""
        from holdfast.endpoint.inspection import describe_protocol

        engine = self._running.engine
        return [one for one in describe_protocol(engine.protocol, engine.clock()) if one["role"] == "source"]
