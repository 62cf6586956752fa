"""Engine: connects the sans-IO protocol to an event loop, a store and a commit thread. Both endpoints use it.

After every input, the engine carries out the effects, reads the records that the core requests, passes the open batch
to the commit thread when that is free (later inputs share the next sync), and sets one timer for the protocol's next
deadline. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.forwarding.forwarded_requests import Forwarding
from holdfast.core.handling.delivery import Handling
from holdfast.core.messages import ANONYMOUS
from holdfast.core.policy import DestinationPolicy, SourcePolicy, StagingPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.endpoint.envelopes.fault_replies import passed_on
from holdfast.endpoint.heap import Heap, share_arenas
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal, begin_journal
from holdfast.endpoint.logs import log
from holdfast.endpoint.store_reads import Reading, Records
from holdfast.endpoint.worker import Worker
from holdfast.exceptions import HoldfastError, StoreAway, StoreDamaged, StoreError, StoreFailed
from holdfast.store import CommitThread, Store, Transaction, open_store
from holdfast.store.directory import is_public

_Result = TypeVar("_Result")

HANGING_SECONDS = 5.0
"""Seconds after which the log and the health check report a commit: the disk does not answer."""

PUT_OFF = 0.05
"""Seconds for which a batch without waiting callers stays open, such as one of received acknowledgements.

A caller that was just notified may store another message, which would otherwise wait for the sync of this batch. If the
process crashes during the pause, acknowledged messages are sent again."""

_WATCH_SECONDS = 1.0
_LONGEST_PAUSE = 2.0
"""Seconds between two attempts to open a store while its database does not answer."""

_UNTOLD: Mapping[type[object], Callable[[Any], None]] = MappingProxyType({})


class Clock:
    """Seconds since 1970 that never go back and never jump while the process runs, whatever the wall clock does.

    Tests put one of their own in its place (``holdfast.testing.pair``).
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return the present time."""
        return time.monotonic() + self._offset

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancellable:
        """Make the call in the running loop when it is ``when``, or soon if that is past."""
        # The loop's clock and ours tick alike: both are the machine's monotonic one.
        return asyncio.get_running_loop().call_later(max(0.0, when - self()), callback)


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Call it off."""
        ...


async def open_off_loop(location: str | Path | Store) -> Store:
    """:func:`~holdfast.store.open_store` in a thread, since recovery may take a while. Waits for a database that is
    away.

    Cancelled meanwhile, it leaves the store closed, so that it can be opened again.

    Raises:
        StoreError: as open_store does.
    """
    share_arenas()  # before there are threads
    store = await patiently(lambda: _open_once(location))
    if isinstance(location, str | Path) and is_public(place := Path(location)):
        log.warning("store.public", store=str(place.absolute()), remedy="Every user can read the store: chmod 700")
    return store


async def patiently(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Make a call that opens a store; again, while its database is away or starting, for as long as its patience says.

    Raises:
        StoreAway: The database did not answer for so long.
    """
    waited, pause = 0.0, 0.25
    while True:
        try:
            return await call()
        except StoreAway as error:
            if waited >= error.patience:
                raise
            if not waited:
                log.warning("store.away", error=error.message, seconds=error.patience)
            await asyncio.sleep(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_PAUSE)


async def in_thread(call: Callable[[], _Result]) -> _Result:
    """Make a call in a thread. If cancelled, wait for its end: the call must not outlive its caller."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def _open_once(location: str | Path | Store) -> Store:
    opening = asyncio.ensure_future(asyncio.to_thread(open_store, location))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opened = await opening
        if opened is not location:
            opened.close()
        raise


SOURCES_QUEUE = "replies"
"""The queue for messages that a :class:`~holdfast.Source` receives; it marks a store as a source's."""


def new_identifier() -> str:
    """Return a unique, unguessable URI: a peer that knows a Sequence's Identifier can write to it."""
    return uuid.uuid4().urn


@dataclass(slots=True)
class _Taken:
    """A batch from the core, the transaction it belongs to, and the future of the caller that waits for it alone."""

    batch: Batch
    within: Transaction | None = None
    over: asyncio.Future[None] | None = None


Taking = Callable[[], tuple[Batch | None, Batch]]
"""Takes two batches from the core: one that must be durable first, or None, and the batch itself."""


class Engine:
    """One running protocol.

    Args:
        store: The store. The engine commits to it; the caller closes it.
        carry_out: Called in the loop with every effect, in order, except ``ReadWanted``, which the engine carries out.
        on_failed: Called once if the store fails; the endpoint accepts and acknowledges nothing from then on.
        clock: The source of time.
    """

    def __init__(
        self,
        store: Store,
        carry_out: Callable[[Effect], None],
        on_failed: Callable[[BaseException], None],
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or Clock()
        self.failure: BaseException | None = None
        self._carry_out = carry_out
        self._on_failed = on_failed
        self._thread: CommitThread | None = None
        self._reading: Reading | None = None
        self._committing = False
        self._alone: deque[tuple[Taking, Transaction, asyncio.Future[None]]] = deque()
        self._taken: deque[_Taken] = deque()
        """Batches taken from the core but not yet passed to the commit thread."""
        self._over: asyncio.Future[None] | None = None
        """The future of the caller that waits for the batch in the commit thread alone."""
        self._under_way: Batch | None = None
        """The batch in the commit thread."""
        self.journal: Collector | None = None
        """Records effects and durable batches in the journal; None without a journal. Set it after :meth:`start`."""
        self._scheduled = False
        self._heap = Heap()
        self._put_off: Cancellable | None = None
        """The timer that commits an open batch without waiting callers after ``PUT_OFF`` seconds."""
        self._is_due = False
        """Whether to commit the open batch without further delay."""
        self._timer: Cancellable | None = None
        self._timer_at = 0.0
        self._idle: asyncio.Event | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._told = ""

    def start(
        self,
        queue: Queue,
        *,
        further: Iterable[Queue] = (),
        destination_policy: DestinationPolicy | None = None,
        source_policy: SourcePolicy | None = None,
        source_policy_for: Callable[[str], SourcePolicy] | None = None,
        allows: Callable[[str], bool] = lambda _address: False,
        accepts: Callable[[str], bool] = lambda _action: True,
        replies: Callable[[str], bool] = lambda _action: True,
        always_replies: Callable[[str], bool] = lambda _action: False,
        local: str = ANONYMOUS,
        handling: Handling | None = None,
        forwarding: Forwarding | None = None,
        staging_policy: StagingPolicy | None = None,
        is_restored: bool = False,
        worker: Worker | None = None,
        divide: Callable[[Snapshot], None] = lambda _snapshot: None,
    ) -> Snapshot:
        """Recover from the store and run in the current loop.

        The arguments are those of :class:`RMProtocol` and its settings, and
        ``is_restored``: whether the store was restored to an earlier state, so that its queues need a new epoch,
        its sinks new identifiers and its forwarders new Sequences;
        ``worker``: this process among several, None for a single process;
        ``divide``: sets the partitions of the queues from the snapshot of the store.

        Returns:
            The snapshot of the store.
        """
        if self.store.went_back and not is_restored:
            raise StoreFailed(
                f"The store was restored from an older copy: {self.store.went_back}.",
                remedy="Restore the newest copy if there is one. Otherwise, start once with --restored, or "
                "app.keep(restored=True), so that new messages do not reuse numbers or offsets.",
            )
        self._loop = asyncio.get_running_loop()
        snapshot = self.store.load()
        divide(snapshot)
        self.protocol = RMProtocol(
            queue,
            Environment(
                self.read,
                new_identifier if worker is None else worker.new_identifier,
                random.random,
                local=local,
                claims=None if worker is None else worker.claims,
            ),
            further=further,
            handling=handling,
            forwarding=forwarding,
            policies=Policies(
                destination=destination_policy or DestinationPolicy(),
                source=source_policy or SourcePolicy(),
                source_for=source_policy_for,
                staging=staging_policy or StagingPolicy(),
            ),
            rules=MessageRules(
                allows=allows, accepts=accepts, replies=replies, always_replies=always_replies, tell=passed_on
            ),
        )
        self._thread = CommitThread(self.store, self._loop, self._durable, self._failed)
        self._reading = Reading(self.store, self._loop, self._read, self.fail)
        self.protocol.recover(snapshot, self.clock())
        if is_restored:
            self.protocol.restored()
        epochs = {} if worker is None else worker.epochs
        for one in self.protocol.inbound.queues.values():
            if is_restored:
                one.description.begin(secrets.token_hex(8))
            elif not one.description.epoch:
                one.description.begin(epochs.get(one.name) or secrets.token_hex(8))
        if self.store.went_back:
            self.protocol.commit.then(self._forget_went_back)
        self.store.outlasts = True
        self._look_after()
        return snapshot

    def _forget_went_back(self, _now: float = 0.0) -> None:
        """Clear the store's record of the restore, once its effects are durable."""
        assert self._loop is not None
        log.warning("store.went_back", when=self.store.went_back)
        self._loop.run_in_executor(None, self.store.forget_went_back).add_done_callback(_log_failure)

    def read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        """Records of the store, as its own ``read`` gives them; a store that cannot give them has failed.

        Raises:
            StoreError: It has.
        """
        try:
            return self.store.read(queue, partition, start, end)
        except StoreError as error:
            self.fail(error)
            raise

    async def records(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        """Read records without blocking the loop. The state of the endpoint may change during the wait.

        Raises:
            StoreError: It has failed, or the endpoint is closed.
        """
        self.check()
        if self._reading is None:
            raise StoreFailed("the endpoint is not running", remedy="Start it.")
        records = await self._reading.records(queue, partition, start, end)
        self._heap.saw(records)
        return records

    def touch(self) -> None:
        """Schedule the outputs of the protocol after an input.

        One run serves all inputs of this turn of the loop and the next, so that requests which are already in the
        sockets share the commit.
        """
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._loop.call_soon, self.turn)

    def turn(self) -> None:
        """Perform the outputs of the protocol immediately, after inputs that :meth:`touch` collected."""
        self._scheduled = False
        # A peer waits for the batch. Most transmissions follow its commit anyway, so outboxes get their turn after it.
        is_after = not self._committing and self.protocol.commit.is_waited_for and self.protocol.outbound.is_idle
        if self.failure is None and not is_after:
            self.protocol.outbound.pump(self.clock())
        self._see_to_effects()
        if not self._committing and self._wants_commit and self.failure is None:
            if not self._is_urgent:
                self._put_commit_off()
            elif not self._commit() and is_after:
                self.protocol.outbound.pump(self.clock())
                self._see_to_effects()
        self._set_timer()
        if not self._committing and not self._wants_commit:
            self._wake()

    def _put_commit_off(self) -> None:
        if self._put_off is None:
            self._put_off = self.clock.call_at(self.clock() + PUT_OFF, self._put_off_over)

    def _put_off_over(self) -> None:
        self._put_off = None
        self._is_due = True
        self.turn()

    def _end_put_off(self) -> None:
        self._is_due = False
        if self._put_off is not None:
            self._put_off.cancel()
            self._put_off = None

    def _see_to_effects(self) -> None:
        protocol = self.protocol
        journaled = self.journal.of_effect if self.journal is not None else _UNTOLD
        while protocol.effects:
            for effect in protocol.take_effects():
                if type(effect) is not ReadWanted:
                    if (tell := journaled.get(type(effect))) is not None:
                        try:
                            tell(effect)
                        except Exception as error:
                            self._end_journal(error)
                            journaled = _UNTOLD
                    self._carry_out(effect)
                elif self._reading is not None and self.failure is None:
                    self._reading.read(effect)

    def commit_alone(self, take: Taking, within: Transaction) -> asyncio.Future[None]:
        """Commit a batch as the last part of a handler's transaction, which ends with it.

        Args:
            take: Called when no other batch is being committed. Returns two batches from the core: one that must be
                durable first, or None, and the batch itself.
            within: The transaction. If the store has failed, it is rolled back.

        Returns:
            A future that is done when the batch is durable or the store has failed.
        """
        over: asyncio.Future[None] = self._loop.create_future()
        self._alone.append((take, within, over))
        if self.failure is not None:
            self._undo_alone()
        self.touch()
        return over

    def _undo_alone(self) -> None:
        for _, within, over in self._alone:
            self._loop.run_in_executor(None, within.end)
            self._tell(over)
        self._alone.clear()
        for handed in self._taken:
            if handed.within is not None:
                self._loop.run_in_executor(None, handed.within.end)
            self._tell(handed.over)
        self._taken.clear()
        self._tell(self._over)

    @property
    def _wants_commit(self) -> bool:
        return bool(self._taken or self._alone) or self.protocol.wants_commit

    @property
    def _is_urgent(self) -> bool:
        """Whether a caller or peer waits for the next commit."""
        return bool(self._taken or self._alone) or self.protocol.commit.is_waited_for or self._is_due

    def _next_batch(self) -> _Taken:
        if not self._taken and self._alone:
            take, within, over = self._alone.popleft()
            before, alone = take()
            if before is not None:
                self._taken.append(_Taken(before))
            self._taken.append(_Taken(alone, within, over))
        return self._taken.popleft() if self._taken else _Taken(self.protocol.take_batch())

    def _commit(self) -> bool:
        """Pass the next batch to the commit thread. If it is durable already, report that at once and return True."""
        assert self._thread is not None
        self._end_put_off()
        taken = self._next_batch()
        self._over = taken.over
        self._under_way = taken.batch
        if not self._thread.commit(taken.batch, taken.within):
            self._committing = True
            return False
        self._is_durable()
        self._tell(self._over)
        self._see_to_effects()
        if self._wants_commit and self._is_urgent:
            self.touch()
        elif self._wants_commit:
            self._put_commit_off()
        return True

    def _read(self, wanted: ReadWanted, records: Records) -> None:
        self._heap.saw(records)
        if self.failure is None:
            self.protocol.records_read(wanted, records, self.clock())
            self.touch()

    def _is_durable(self) -> None:
        batch, self._under_way = self._under_way, None
        if batch is not None and batch.releases:
            self._heap.used()  # held records of any size passed through memory on their way into queues
        if self.journal is not None and batch is not None:
            try:
                self.journal.durable(batch)
            except Exception as error:
                self._end_journal(error)
        self.protocol.batch_durable(self.clock(), self._see_to_effects)

    def keep_journal(
        self,
        policy: JournalPolicy | None,
        location: str | Path | Store,
        worker: Worker | None,
        granted: DestinationPolicy,
        snapshot: Snapshot,
    ) -> Journal | None:
        """Start the journal, as :func:`begin_journal` does; return None if there is no journal."""
        queues = self.protocol.inbound.queues.values()
        journal, self.journal = begin_journal(policy, location, worker, self.clock, granted, snapshot, queues)
        return journal

    def _end_journal(self, error: Exception) -> None:
        """Stop the journal after an error in it, so that messages continue."""
        assert self.journal is not None
        log.error("journal.ended", what="messages continue without a journal; this is a bug", exc_info=error)
        self.journal.broken = f"an event could not be recorded: {error!r}"
        self.journal = None

    def _durable(self) -> None:
        self._committing = False
        self._is_durable()
        self._tell(self._over)
        # Without delay: commit the next batch while the endpoint writes the answers to this one.
        self.turn()

    def _failed(self, error: BaseException) -> None:
        self._committing = False
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop accepting and acknowledging because the store has failed or is damaged. The first error counts."""
        if self.failure is None:
            self.failure = error
            self._undo_alone()
            self._on_failed(error)
        self._wake()
        for done in self._waiting:
            self._tell(done)

    def _wake(self) -> None:
        """Wake every caller that waits until there is nothing left to commit."""
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def health(self) -> HoldfastError | None:
        """Return an error if the store has failed, accepts no new messages for now, or does not answer; else None."""
        if self.failure is not None:
            if isinstance(self.failure, HoldfastError):
                return StoreFailed(f"the store failed: {self.failure.message}", remedy=self.failure.remedy)
            return StoreFailed(
                f"the store failed: {self.failure}", remedy="Free space or repair the disk, then start again."
            )
        if self.store.trouble:
            return StoreFailed(self.store.trouble, remedy="Fix the cause. The engine then resumes automatically.")
        if self._thread is not None and (seconds := self._thread.pending_seconds) >= HANGING_SECONDS:
            return StoreFailed(
                f"the store has not answered for {seconds:.0f} seconds; no message is acknowledged meanwhile",
                remedy="Check its disk or its database. The server resumes when the store answers.",
            )
        return None

    @property
    def needs_restart(self) -> bool:
        """Whether the store has failed in a way that a restart can fix. A restart cannot fix damage."""
        return self.failure is not None and not isinstance(self.failure, StoreDamaged)

    def _look_after(self) -> None:
        """Log, checking once a second, when a health problem begins and when it ends."""
        wrong = self.health() if self.failure is None else None
        kind = "" if wrong is None else "store.unavailable" if self.store.trouble else "store.hanging"
        if wrong is not None and kind != self._told:
            log.warning(kind, what=wrong.message, remedy=wrong.remedy)
        elif self._told and not kind:
            log.warning("store.available", after=self._told)
        self._told = kind
        self._watch = self._loop.call_later(_WATCH_SECONDS, self._look_after)

    def _stop(self) -> None:
        self.store.outlasts = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def check(self) -> None:
        """Raise :class:`StoreFailed` if the store has failed, :class:`StoreDamaged` if it was found damaged."""
        if isinstance(self.failure, StoreDamaged):
            raise StoreDamaged(self.failure.message, remedy=self.failure.remedy) from self.failure
        if self.failure is not None:
            raise StoreFailed(
                f"the store failed: {self.failure}; later messages were not accepted",
                remedy="Free space or repair the disk, then start again. Acknowledged messages are stored.",
            ) from self.failure

    def _set_timer(self) -> None:
        deadline = self.protocol.deadline()
        if deadline is None or self.failure is not None:
            return
        if self._timer is not None and self._timer_at <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.clock.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self.failure is None:
            self.protocol.pump(self.clock())
        self.turn()

    @property
    def is_busy(self) -> bool:
        """Whether work is in progress that needs neither a timer nor a peer."""
        if self.failure is not None:
            return False
        reads = self._reading is not None and self._reading.is_busy
        wants_commit = self._wants_commit and self._put_off is None
        return self._scheduled or self._committing or wants_commit or reads

    async def durable(self) -> None:
        """Wait until all changes so far are durable.

        Raises:
            StoreFailed: the store has failed, so they will not become durable.
        """
        self.check()
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(done)
        self.protocol.commit.then(lambda _now: self._tell(done))
        self.touch()
        try:
            await done
        finally:
            self._waiting.discard(done)
        self.check()

    @staticmethod
    def _tell(done: asyncio.Future[None] | None) -> None:
        if done is not None and not done.done():
            done.set_result(None)

    async def settled(self) -> None:
        """Wait until there is nothing left to commit, or the store has failed."""
        while (self._committing or self._wants_commit) and self.failure is None:
            idle = self._idle = self._idle or asyncio.Event()
            self._is_due = True
            self.touch()
            await idle.wait()

    async def caught_up(self) -> None:
        """Wait until every read that the core has requested is complete, or the store has failed."""
        while True:
            if self.protocol.outbound.reading.is_recovering:  # recovery may request further reads
                self.touch()
            while self._scheduled and self.failure is None:
                await asyncio.sleep(0)
            if self._reading is not None:
                await self._reading.caught_up()
            if self.failure is not None or not self.protocol.outbound.reading.is_recovering:
                return

    async def give_up(self) -> None:
        """End the threads, if any, without committing, after a failed start."""
        self._stop()
        await self._end_threads()

    async def stop(self) -> None:
        """Commit all pending changes and end the threads. The store stays open for its owner to close."""
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            await self.settled()
            self._end_put_off()
            if self._timer is not None:
                self._timer.cancel()
        self._heap.close()
        await self._end_threads()

    async def _end_threads(self) -> None:
        """End both threads and drop the results of pending reads, which have no reader any more."""
        if self._reading is not None:
            await self._reading.close()
            self._reading = None
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)
            self._thread = None

    @property
    def is_running(self) -> bool:
        """Whether it commits and sends: it has been started, and not stopped."""
        return self._thread is not None

    @property
    def commits(self) -> CommitThread:
        """The commit thread, for its counters.

        Raises:
            StoreFailed: the engine is not running.
        """
        if self._thread is None:
            raise StoreFailed("the endpoint is not running")
        return self._thread

    @property
    def progress(self) -> tuple[int, float]:
        """Batches committed, and seconds for which the store has had the next one; from any thread."""
        thread = self._thread
        return (thread.batches, thread.pending_seconds) if thread is not None else (0, 0.0)


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("store.restored_mark_kept", error=repr(done.exception()))
