"""RunningSource: what a source has from its opening to its closing, and in which order it is created and closed.

This module owns the open store, the engine, the sender, the listener for answers and the journal, and what the
protocol's effects do to them. ``source`` has the settings and the calls of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast

from holdfast.core.events import Delivered, Effect, Handle, Incident, Respond, Transmit
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import ANONYMOUS, MC_ANONYMOUS
from holdfast.core.origin import secret_in, with_secret
from holdfast.core.policy import Assurance, DestinationPolicy
from holdfast.core.protocol_settings import Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record, Snapshot
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.outdated_copy import OUTDATED
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.core.sending.outboxes.records import stored_outboxes
from holdfast.core.versions import Versions
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.engine.engine import CALLBACKS_QUEUE, SOURCES_QUEUE, Engine
from holdfast.endpoint.engine.opening import close_after_error, open_off_loop, patiently
from holdfast.endpoint.engine.owning_loop import OwningLoop
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.handling.callbacks import Callbacks
from holdfast.endpoint.handling.handlers import HandlerTable
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal
from holdfast.endpoint.listeners import listen_for_answers
from holdfast.endpoint.logs import LineLimit, log, log_incident
from holdfast.endpoint.sending.listener import Listener
from holdfast.endpoint.sending.policies import SequencePolicies
from holdfast.endpoint.sending.sender import Sender
from holdfast.endpoint.sending.stopped import (
    elsewhere,
    log_earlier_addresses,
    nothing_to_resume,
    outdated_text,
    retracted_text,
)
from holdfast.endpoint.source.calls import Calls
from holdfast.endpoint.source.enqueued_messages import EnqueuedMessages
from holdfast.endpoint.source.http_settings import SourceHTTP
from holdfast.endpoint.source.pending_sends import (
    Progress,
    note_answer,
    note_failure,
    note_outdated,
    note_retracted,
    note_room,
)
from holdfast.endpoint.source.replies import Replies
from holdfast.endpoint.worker import check_no_cluster
from holdfast.exceptions import ConfigurationError, DeliveryError, StoreFailed
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.http.urls import in_url, parse_url
from holdfast.store import Store, Transactional, is_sql, shown, store_exists

_REPLIES = DestinationPolicy(
    assurance=Assurance(in_order=False), inactivity_timeout=None, advertise_buffer=False, max_sequences=1 << 20
)
"""Policy of the Sequences in which replies arrive."""


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What a source is given before it is opened; ``Source`` documents each.

    Args:
        to: The destination's URL; None: the one in the store.
        choices: Versions to try for each new outbox, with or without an offer.
        http: How it reaches its destination, and where it listens.
        journal: Directory and retention of the event journal; None for no journal.
        clock: Replaces the machine's clock in tests.
        table: The handlers of messages that the service sends on its own.
    """

    to: str | None
    location: str | Path | Store
    policies: SequencePolicies
    choices: list[tuple[Versions, bool]]
    http: SourceHTTP
    journal: JournalPolicy | None
    envelopes: Envelopes
    clock: Clock | None
    table: HandlerTable
    handling: HandlingPolicy


class RunningSource:
    """A source's store, engine, sender, listener and journal, created by :meth:`open`."""

    def __init__(
        self,
        settings: SourceSettings,
        store: Store,
        progress: Progress,
        incidents: Counter[str],
        tell_progress: Callable[[], None],
    ) -> None:
        http, self.is_open = settings.http, False
        self._settings, self._progress, self._incidents = settings, progress, incidents
        self._on_progress = tell_progress
        self._progress_failures = LineLimit()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.owner = OwningLoop("source", "use holdfast.sync.Source, which any thread may call")
        self.store = store
        self.engine = Engine(store, self._carry_out, self._store_failed, settings.clock)
        self.calls = Calls(self.engine, self.owner, progress, settings.location, settings.choices, settings.envelopes)
        self._sender = Sender(
            self.engine,
            http.transport or http.new_client(connections_per_host=64),
            settings.envelopes,
            http.headers,
            on_transport_error=self._transport_error,
            on_answer=self._answered,
            spooling=settings.envelopes.spooling_replies_in_answers(store.create_content),
        )
        self._sender.on_reply = self.calls.given.mark
        self.engine.on_read = self.calls.given.read
        self._listener: Listener | None = None
        self.server: HTTPServer | None = None
        self.collecting: EnqueuedMessages | None = None
        self._journal: Journal | None = None
        self._callbacks = Callbacks(settings.table, settings.handling)
        self._retracted: dict[str, Outbox] = {}
        """Outbox by key, for each with retracted messages."""
        self.is_resumed = False

    # --- life -----------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, settings: SourceSettings, progress: Progress, incidents: Counter[str], tell_progress: Callable[[], None]
    ) -> Self:
        """Open the store and resume what it holds; raises what :meth:`holdfast.Source.open` raises."""
        location = settings.location
        if settings.to is None and not await patiently(lambda: asyncio.to_thread(store_exists, location)):
            raise nothing_to_resume(shown(location))  # and none is made
        if isinstance(location, str | Path) and is_sql(location):
            await patiently(lambda: asyncio.to_thread(check_no_cluster, location))
        store = await open_off_loop(location)
        # Undone in the opposite order if the start fails, or is cancelled.
        async with contextlib.AsyncExitStack() as on_error:
            on_error.callback(close_after_error, store)
            running = cls(settings, store, progress, incidents, tell_progress)
            on_error.push_async_callback(running._end_journal)
            on_error.push_async_callback(running.engine.give_up)
            on_error.push_async_callback(running._callbacks.stop, 0.0)
            running._push_stops(on_error, 0.0)
            await running._start()
            on_error.pop_all()
        running.is_open = True
        return running

    async def _start(self) -> None:
        settings, calls, engine = self._settings, self.calls, self.engine
        loaded = self.store.load()
        calls.local = local = await self._listen(loaded)
        queue, is_restored = Queue(SOURCES_QUEUE), bool(self.store.went_back)
        policies, callbacks = settings.policies, self._callbacks
        inbound = _REPLIES if callbacks.settings is None else replace(_REPLIES, assurance=policies.usual.assurance)
        snapshot = engine.start(
            queue,
            further=callbacks.queues,
            policies=Policies(inbound, policies.usual, policies.of),
            rules=replace(callbacks.rules, allows=self._is_the_service),
            local=local,
            letters=callbacks.letters,
            handling=callbacks.settings,
            is_restored=is_restored,
            divide=callbacks.divide,
            snapshot=loaded,
        )
        kept = policies.of(settings.to or "", "").kept_replies
        calls.here = Replies(kept, queue, engine, self._in_the_loop, calls.replied, calls.given.read_mark)
        outbound, now = engine.protocol.outbound, engine.clock()
        calls.to = _destination_of(settings.location, settings.to, snapshot, outbound, now)
        self._journal = engine.keep_journal(settings.journal, settings.location, None, inbound, snapshot)
        self._note_retracted(one for one in outbound.outboxes.values() if one.lifecycle.retracted.ranges)
        self._progress.problem = log_earlier_addresses(outbound.outboxes.values(), local) or self._progress.problem
        # Before the outboxes may send: an answer looks for its lane.
        calls.take_up()
        callbacks.begin(engine, inbound.assurance, settings.envelopes)
        await calls.here.take_up(snapshot)
        for outbox in list(engine.protocol.outbound.outboxes.values()):
            outbox.ready()
        engine.touch()
        await engine.caught_up()  # nothing is sent or taken in before it knows what an earlier run sent
        engine.check()
        if self._listener is not None:
            self._listener.begin()
        if isinstance(self.store, Transactional):
            self.collecting = EnqueuedMessages(engine, self.store, self._submit_enqueued)
            await self.collecting.collect()
            engine.check()

    def _is_the_service(self, address: str) -> bool:
        """Whether an address is the service's own, for acknowledgements of replies that it sends without an Offer. If
        the source polls for these, the address has a secret, and only the answers to polls bring one."""
        to = self.calls.to or ""
        listens = self._settings.http.listen is not None
        return address == (to if listens else with_secret(to, secret_in(address)))

    async def _listen(self, snapshot: Snapshot) -> str:
        http = self._settings.http
        if http.listen is None:
            return MC_ANONYMOUS if http.poll else ANONYMOUS
        mark = self.calls.given.mark
        self._listener = Listener(self.engine, self._settings.envelopes, self._sender.pauses, mark)
        spooling = self._settings.envelopes.spooling(self.store.create_content)
        host, port = http.listen
        earlier = 0 if port or http.address else _earlier_port(host, snapshot)
        with contextlib.suppress(ConfigurationError):  # another program listens there by now
            if earlier:
                self.server = await listen_for_answers(self._listener.handle, host, earlier, spooling)
        if self.server is None:
            self.server = await listen_for_answers(self._listener.handle, host, port, spooling)
        return http.address or f"http://{in_url(host)}:{self.server.port}/"

    async def close(self, timeout: float) -> None:
        """End every Sequence without unacknowledged messages, for up to ``timeout`` seconds; close the store."""
        if self.owner.has_ended:
            await self._close_after_loop()
            return
        self.owner.check()
        self.is_open = False
        # A database that is away must not hold up the end.
        self.store.retry_for(timeout)
        # Each step is taken also if one before it fails, or its caller is cancelled: the store must not stay locked.
        async with contextlib.AsyncExitStack() as remaining:
            remaining.callback(self._fail_calls)
            # An abandoned handler keeps the store locked, or another process would handle its message as well.
            remaining.callback(self._callbacks.when_returned, self.store.close)
            remaining.push_async_callback(self._end_journal)
            remaining.push_async_callback(self.engine.stop)
            remaining.callback(self.engine.protocol.stop)
            remaining.push_async_callback(self._callbacks.stop, timeout)
            self._push_stops(remaining, 1.0)
            if timeout > 0 and self.engine.failure is None:
                await self._end_finished(timeout)
            self._forget_retracted()

    def _note_retracted(self, outboxes: Iterable[Outbox]) -> None:
        """Report retracted messages of these outboxes, together with all others. The log has a line for each loss."""
        self._retracted |= {outbox.key: outbox for outbox in outboxes}
        if self._retracted:
            note_retracted(self._progress, retracted_text(self._retracted.values()))

    def _forget_retracted(self) -> None:
        """Let the next start report no loss that this run has reported to an operator, who resumed it."""
        for outbox in self._retracted.values() if self.is_resumed and self.engine.failure is None else ():
            outbox.lifecycle.retracted.are_reported = True
            outbox.save()

    def _fail_calls(self) -> None:
        closed = DeliveryError("the source was closed", remedy="Open it again: it sends its stored messages.")
        self.calls.fail_all(closed, closed)

    async def _close_after_loop(self) -> None:
        """Close the store of a source whose loop has ended, and nothing else with it."""
        self.is_open = False
        await self.engine.give_up()
        self._callbacks.when_returned(self.store.close)

    def _push_stops(self, remaining: contextlib.AsyncExitStack, timeout: float) -> None:
        """Push what stops everything that gives the engine work. An exit stack calls the last one first."""
        remaining.push_async_callback(self._settings.envelopes.close)
        remaining.push_async_callback(self._stop_listening, timeout)
        remaining.push_async_callback(self._sender.stop)
        remaining.push_async_callback(self._stop_collecting)

    async def _stop_listening(self, timeout: float) -> None:
        if self.server is not None:
            await self.server.close(timeout)

    async def _stop_collecting(self) -> None:
        if self.collecting is not None:
            await self.collecting.close()

    async def _end_finished(self, timeout: float) -> None:
        ending = [
            self.calls.end(lane)
            for lane in self.calls.lanes.values()
            if lane.outbox.records.is_empty and lane.outbox.source is not None and not lane.outbox.lifecycle.stopped
        ]
        if ending:
            done, _ = await asyncio.wait(ending, timeout=timeout)
            for ended in done:
                ended.exception()  # logged when it came; all of it is acknowledged

    async def _end_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    def _in_the_loop(self, call: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            if self.is_open:
                call()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is given again
            self._loop.call_soon_threadsafe(lambda: call() if self.is_open else None)

    def check(self) -> None:
        """Raise the error that keeps the store from taking a message, if there is one."""
        self.engine.check()
        if (trouble := self.store.trouble) is not None:
            raise StoreFailed(f"The message is not stored. {trouble.what}", remedy=trouble.remedy)

    def _submit_enqueued(self, record: Record) -> None:
        lane = self.calls.lane(record.sequence)
        offset = self.engine.protocol.submit(lane.outbox, record, self.engine.clock())
        lane.ids.add(record.message_id or "", offset)

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do without waiting for time to pass or for the destination."""
        is_sending = self.engine.is_busy or self._settings.envelopes.is_busy or self._sender.is_busy
        return self.is_open and (is_sending or self._callbacks.is_busy)

    # --- what comes back ------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Transmit):
            self._sender.transmit(effect)
            self._progress.resent += effect.number > 0 and effect.attempt > 1
        elif isinstance(effect, Incident):
            self._incidents[effect.name] += 1
            log_incident(effect)
            if effect.name == RETRACTED and effect.detail is not None:
                self._note_retracted([self.engine.protocol.outbound.outboxes[effect.detail["key"]]])
            elif effect.name == OUTDATED and effect.detail is not None:
                note_outdated(self._progress, outdated_text(effect))
        elif isinstance(effect, Respond):
            self._settings.envelopes.respond(cast(Exchange, effect.back_channel), effect.envelope)
        elif isinstance(effect, Handle):
            self._callbacks.hand_over(effect)
        elif not isinstance(effect, Delivered) or effect.queue == SOURCES_QUEUE:
            self.calls.tell(effect)
        self._tell_progress()

    def _tell_progress(self) -> None:
        try:
            self._on_progress()
        except Exception as error:  # the program's own: whatever it raises, messages are sent
            if (left_out := self._progress_failures.admit()) is not None:
                log.error("progress.not_told", left_out=left_out, exc_info=error)

    def _answered(self, sent: Transmit) -> None:
        was_failing = note_answer(self._progress)
        outbox = self.engine.protocol.outbound.sequences.by_local_id.get(sent.source)
        pace = outbox.source.pace if outbox is not None and outbox.source is not None else None
        has_room = pace is None or pace.buffer_remaining != 0 or self._progress.outstanding == 0
        if note_room(self._progress, has_room=has_room) or was_failing:
            self._tell_progress()

    def _transport_error(self, _sent: Transmit, reason: str) -> None:
        note_failure(self._progress, reason)
        self._tell_progress()

    def _store_failed(self, error: BaseException) -> None:
        log.critical("store.failed", error=repr(error), unacknowledged=self._progress.outstanding)
        self.calls.store_failed(error)
        self._callbacks.store_failed()


def _destination_of(
    location: str | Path | Store, to: str | None, snapshot: Snapshot, outbound: Outbound, now: float
) -> str:
    """Check that a store belongs to a source of this destination, and return the destination's address.

    Raises:
        ConfigurationError: It belongs to another destination, or to none.

    Returns:
        The address as the store has it, if that means the same as ``to``.
    """
    foreign = [
        name
        for name, queue in snapshot.queues.items()
        if queue.get("kind") == "inbox" and name not in (SOURCES_QUEUE, CALLBACKS_QUEUE)
    ]
    if foreign:
        raise ConfigurationError(
            f"the store {shown(location)} belongs to a destination: it contains the queue {foreign[0]!r}",
            remedy="Name another store: a destination and a source each need their own.",
        )
    known = {str(outbox.about["to"]) for outbox in stored_outboxes(snapshot)}
    if to is None and len(known) == 1:
        return known.pop()
    if to is None:
        raise nothing_to_resume(shown(location))
    alike = {one for one in known if _same_place(one, to)}
    if known - alike:
        outboxes = outbound.outboxes.values()
        waiting = sum(outbox.records.waiting for outbox in outboxes)
        if waiting or any(outbox.source is not None and outbox.source.identifier for outbox in outboxes):
            raise elsewhere(shown(location), sorted(known), to, waiting)
        for outbox in list(outboxes):  # nothing waits in it and no Sequence is open: it may serve another one
            if outbox.source is not None:
                outbox.drop(now)  # its destination granted none
            outbound.registry.redirect(outbox, to)
            if outbox.lifecycle.stopped:
                outbox.resume(outbox.lifecycle.choices, now)  # the reason was the other destination's
        return to
    return to if to in known or not alike else min(alike)


def _earlier_port(host: str, snapshot: Snapshot) -> int:
    """Return the port at which open Sequences expect this side's listener of any port; 0 if there are none."""
    listened = re.compile(rf"http://{re.escape(in_url(host))}:(\d+)/")
    addresses = (state.get("acks_to", "") for state in snapshot.sequences.values() if state["role"] == "source")
    return next((int(found[1]) for address in addresses if (found := listened.fullmatch(address))), 0)


def _same_place(one: str, other: str) -> bool:
    """Whether two URLs are the same resource: they may differ in the case of the host, or in what is the default."""
    try:
        return parse_url(one) == parse_url(other)
    except ConfigurationError:  # a transport of the user's own has addresses of its own
        return one == other


async def end_earlier(opened: RunningSource | None) -> None:
    """Close what an event loop left open that has ended, or the store would stay locked.

    Raises:
        ConfigurationError: It is open in a loop that runs.
    """
    if opened is None or not opened.is_open:
        return
    if not opened.owner.has_ended:
        raise ConfigurationError(
            "the source is already open", remedy="Open it once. Any task of its event loop may then use it."
        )
    await opened.close(0.0)
