"""Engine: connects the sans-IO protocol to an event loop, a store and a commit thread. Both endpoints use it.

After every input, the engine carries out the effects, reads the records that the core requests, has the open batch
committed when the commit thread is free (later inputs share the next sync), and sets one timer for the protocol's next
deadline. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.messages import ANONYMOUS
from holdfast.core.policy import DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record, Snapshot
from holdfast.endpoint.engine.clock import Cancellable, Clock
from holdfast.endpoint.engine.commits import Commits, Taking, tell
from holdfast.endpoint.engine.store_reads import Records, StoreReads
from holdfast.endpoint.engine.store_watch import StoreWatch
from holdfast.endpoint.envelopes.fault_replies import passed_on
from holdfast.endpoint.failures import brief
from holdfast.endpoint.heap import Heap
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.journal.writer import Journal, begin_journal
from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import Worker
from holdfast.exceptions import HoldfastError, StoreDamaged, StoreError, StoreFailed, clause, message_of, repair_of
from holdfast.store import CommitThread, Store, Transaction

P = ParamSpec("P")

_UNTOLD: Mapping[type[object], Callable[[Any], None]] = MappingProxyType({})


SOURCES_QUEUE = "replies"
CALLBACKS_QUEUE = "callbacks"
"""The queue for messages that a :class:`~holdfast.Source` receives; it marks a store as a source's."""

_BUG = "Start it again: it resumes with the stored messages. Report the bug, with the traceback in the log."

TIMER_DELAY = 0.05
"""Seconds for which the next deadline is not looked up while a batch is being committed. The commit usually ends
sooner, and may change the deadline again."""


def new_identifier() -> str:
    """Return a unique, unguessable URI: a peer that knows a Sequence's Identifier can write to it."""
    return uuid.uuid4().urn


class Engine:
    """One running protocol.

    Args:
        store: The store. The engine commits to it; the caller closes it.
        carry_out: Called in the loop with every effect, in order, except ``ReadWanted``, which the engine carries out.
        on_failed: Called once if the store fails, or after an unexpected error; the endpoint accepts and acknowledges
            nothing from then on.
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
        self._is_bug = False
        self._carry_out = carry_out
        self._on_failed = on_failed
        self._commits: Commits | None = None
        self._watch: StoreWatch | None = None
        self._reading: StoreReads | None = None
        self.journal: Collector | None = None
        """Records effects and durable batches in the journal; None without a journal. Set it after :meth:`start`."""
        self.has_credentials: Callable[[str], bool] = lambda _to: False
        """Whether messages to an address have credentials. Set it before :meth:`start`."""
        self.on_read: Callable[[str, Records], None] = lambda _queue, _records: None
        """Learns of the records of a queue that the protocol gets from the store. Set it before :meth:`start`."""
        self._scheduled = False
        self._heap = Heap()
        self._timer: Cancellable | None = None
        self._timer_at = 0.0
        self._later: Cancellable | None = None
        self._idle: asyncio.Event | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def start(
        self,
        queue: Queue,
        *,
        further: Iterable[Queue] = (),
        policies: Policies | None = None,
        rules: MessageRules | None = None,
        local: str = ANONYMOUS,
        letters: DeadLetters | None = None,
        handling: HandlerSettings | None = None,
        is_restored: bool = False,
        worker: Worker | None = None,
        divide: Callable[[Snapshot], None] = lambda _snapshot: None,
        snapshot: Snapshot | None = None,
    ) -> Snapshot:
        """Recover from the store and run in the current loop.

        The arguments are those of :class:`RMProtocol`, the address where the peer can reach this endpoint, and
        ``is_restored``: whether the store was restored to an earlier state, so that its queues need a new epoch,
        its sinks new identifiers and its forwarders new Sequences;
        ``worker``: this process among several, None for a single process;
        ``divide``: sets the partitions of the queues from the snapshot of the store;
        ``snapshot``: that snapshot, if it is already loaded.

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
        snapshot = self.store.load() if snapshot is None else snapshot
        divide(snapshot)
        self.protocol = RMProtocol(
            queue,
            Environment(
                self.read,
                new_identifier if worker is None else worker.new_identifier,
                random.random,
                local=local,
                claims=None if worker is None or worker.claims is None else worker.claims(self.store.epoch),
                trouble=lambda: str(self.store.trouble or ""),
                has_credentials=lambda to: self.has_credentials(to),
            ),
            further=further,
            letters=letters,
            handling=handling,
            policies=policies,
            rules=rules or MessageRules(tell=passed_on),
        )
        self.protocol.commit.fail = self.fail
        durable, read = self.ending(self._durable), self.ending(self._read)
        self._commits = Commits(self.store, self.protocol, self.clock, self.turn, durable, self.fail)
        self._reading = StoreReads(self.store, self._loop, read, self.fail)
        self.protocol.recover(snapshot, self.clock())
        if is_restored and (closed := self.protocol.restored(self.clock())):
            why = "a message after a lost one would wait for ever; their sources send the rest in new Sequences"
            log.warning("sequences.closed", count=closed, why=f"the store was restored: {why}")
        self._begin_queues({} if worker is None else worker.epochs, is_restored)
        if self.store.went_back:
            self.protocol.commit.then(self._forget_went_back)
        # From here on peers retransmit: waiting for the database loses nothing.
        self.store.retry_for(math.inf)
        self._watch = StoreWatch(self.store, self._commits)
        return snapshot

    def _begin_queues(self, epochs: Mapping[str, str], is_restored: bool) -> None:
        """Give every queue that has none its epoch, and a new one to every queue of a restored store."""
        for one in self.protocol.inbound.queues.values():
            if is_restored:
                one.description.begin(secrets.token_hex(8))
            elif not one.description.epoch:
                one.description.begin(epochs.get(one.name) or secrets.token_hex(8))

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
        try:
            self._turn()
        except Exception as error:
            self.fail(error)

    def ending(self, call: Callable[P, None]) -> Callable[P, None]:
        """Return a call for the loop, which has no caller to raise an error to: the error fails the endpoint."""

        def ending(*args: P.args, **options: P.kwargs) -> None:
            try:
                call(*args, **options)
            except Exception as error:
                self.fail(error)

        return ending

    def _turn(self) -> None:
        self._scheduled = False
        commits = self._commits
        assert commits is not None
        # A peer waits for the batch. Most transmissions follow its commit anyway, so outboxes get their turn after it.
        is_after = not commits.is_committing and self.protocol.commit.is_waited_for and self.protocol.outbound.is_idle
        if self.failure is None and not is_after:
            self.protocol.outbound.pump(self.clock())
        self._see_to_effects()
        if not commits.is_committing and commits.are_wanted and self.failure is None:
            if not commits.are_urgent:
                commits.put_off()
            elif not self._commit(commits) and is_after:
                self.protocol.outbound.pump(self.clock())
                self._see_to_effects()
        if not commits.is_committing:
            self._set_timer()
        elif self._later is None:  # the next turn is near, and the deadlines cost as much as a message
            self._later = self.clock.call_at(self.clock() + TIMER_DELAY, self.ending(self._set_timer_late))
        if not commits.is_committing and not commits.are_wanted:
            self._wake()

    def _see_to_effects(self) -> None:
        if self.failure is not None:
            return
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
                elif self._reading is not None:
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
        assert self._commits is not None
        over = self._commits.commit_alone(take, within)
        if self.failure is not None:
            self._commits.undo_alone()
        self.touch()
        return over

    def _commit(self, commits: Commits) -> bool:
        """Have the next batch committed. If it is durable already, report that at once and return True."""
        if not commits.commit():
            return False
        self._is_durable(commits)
        self._see_to_effects()
        if commits.are_wanted and commits.are_urgent:
            self.touch()
        elif commits.are_wanted:
            commits.put_off()
        return True

    def _read(self, wanted: ReadWanted, records: Records) -> None:
        self._heap.saw(records)
        if self.failure is None:
            self.on_read(wanted.queue, records)
            self.protocol.records_read(wanted, records, self.clock())
            self.touch()

    def _is_durable(self, commits: Commits) -> None:
        batch = commits.take_durable()
        if batch is not None and batch.releases:
            self._heap.used()  # held records of any size passed through memory on their way into queues
        if self.journal is not None and batch is not None:
            try:
                self.journal.durable(batch)
            except Exception as error:
                self._end_journal(error)
        self.protocol.batch_durable(self.clock(), self._see_to_effects)
        commits.tell()

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
        journal, self.journal = begin_journal(
            policy, location, worker, self.clock, granted, snapshot, queues, self.store.epoch
        )
        return journal

    def _end_journal(self, error: Exception) -> None:
        assert self.journal is not None
        log.error("journal.ended", what="messages continue without a journal; this is a bug", exc_info=error)
        self.journal.broken = f"an event could not be recorded: {error!r}"
        self.journal = None

    def _durable(self) -> None:
        assert self._commits is not None
        self._is_durable(self._commits)
        # Without delay: commit the next batch while the endpoint writes the answers to this one.
        self.turn()

    def fail(self, error: BaseException) -> None:
        """Stop accepting and acknowledging: the store has failed or is damaged, or an unexpected error, which is a bug,
        leaves the state of the core unknown. The first error counts."""
        if self.failure is None:
            if not isinstance(error, StoreError):
                log.critical("endpoint.failed", why="an unexpected error, which is a bug", exc_info=error)
                self._is_bug = True
                bug, error = error, StoreFailed(f"an unexpected error ended the endpoint: {brief(error)}", remedy=_BUG)
                error.__cause__ = bug
            self.failure = error
            if self._commits is not None:
                self._commits.undo_alone()
            if self._watch is not None:
                self._watch.stop()
            self._on_failed(error)
        self._wake()
        # They wait for a batch that never comes.
        for done in self._waiting:
            tell(done)

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def health(self) -> HoldfastError | None:
        """Return an error if the endpoint has ended, or the store accepts no messages for now or does not answer."""
        if self.failure is not None:
            return StoreFailed(self._ending(self.failure), remedy=repair_of(self.failure))
        return None if self._watch is None else self._watch.problem()

    def _ending(self, failure: BaseException) -> str:
        return message_of(failure) if self._is_bug else f"the store failed: {message_of(failure)}"

    @property
    def needs_restart(self) -> bool:
        """Whether the store has failed in a way that a restart can fix. A restart cannot fix damage."""
        return self.failure is not None and not isinstance(self.failure, StoreDamaged)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def check(self) -> None:
        """Raise :class:`StoreFailed` if the store has failed, :class:`StoreDamaged` if it was found damaged."""
        if isinstance(self.failure, StoreDamaged):
            raise StoreDamaged(self.failure.message, remedy=self.failure.remedy) from self.failure
        if self.failure is not None:
            raise StoreFailed(
                f"{clause(self._ending(self.failure))}; later messages were not accepted",
                remedy=f"{repair_of(self.failure)} Acknowledged messages are stored.",
            ) from self.failure

    def _set_timer(self) -> None:
        deadline = self.protocol.deadline()
        if deadline is None or self.failure is not None:
            return
        # An earlier timer finds nothing due and sets the next: cheaper than a new one for each message.
        if self._timer is not None and self._timer_at <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.clock.call_at(deadline, self.ending(self._timer_fired))

    def _set_timer_late(self) -> None:
        self._later = None
        self._set_timer()

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
        assert self._commits is not None
        reads = self._reading is not None and self._reading.is_busy
        wants_commit = self._commits.are_wanted and not self._commits.are_put_off
        return self._scheduled or self._commits.is_committing or wants_commit or reads

    async def durable(self) -> None:
        """Wait until all changes so far are durable.

        Raises:
            StoreFailed: the store has failed, so they will not become durable.
        """
        self.check()
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(done)
        self.protocol.commit.then(lambda _now: tell(done))
        self.touch()
        try:
            await done
        finally:
            self._waiting.discard(done)
        self.check()

    async def settled(self) -> None:
        """Wait until there is nothing left to commit, or the store has failed."""
        commits = self._commits
        assert commits is not None
        while (commits.is_committing or commits.are_wanted) and self.failure is None:
            idle = self._idle = self._idle or asyncio.Event()
            commits.is_due = True
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
        self.store.retry_for(0.0)
        self._stop()
        await self._end_threads()

    async def stop(self) -> None:
        """Commit all pending changes and end the threads. The store stays open for its owner to close."""
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        if self.is_running:
            if self.failure is None:
                self.protocol.save_progress(self.clock())
            await self.settled()
            assert self._commits is not None
            self._commits.end_put_off()
            for timer in (self._timer, self._later):
                if timer is not None:
                    timer.cancel()
        self._heap.close()
        await self._end_threads()

    async def _end_threads(self) -> None:
        """End both threads and drop the results of pending reads, which have no reader any more."""
        if self._reading is not None:
            await self._reading.close()
            self._reading = None
        if self._commits is not None:
            await self._commits.close()

    @property
    def is_running(self) -> bool:
        """Whether it commits and sends: it has been started, and not stopped."""
        return self._commits is not None and self._commits.thread is not None

    @property
    def commits(self) -> CommitThread:
        """The commit thread, for its counters.

        Raises:
            StoreFailed: the engine is not running.
        """
        thread = None if self._commits is None else self._commits.thread
        if thread is None:
            raise StoreFailed("the endpoint is not running")
        return thread

    @property
    def progress(self) -> tuple[int, float]:
        """Batches committed, and seconds for which the store has had the next one; from any thread."""
        thread = None if self._commits is None else self._commits.thread
        return (thread.batches, thread.pending_seconds) if thread is not None else (0, 0.0)


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("store.restored_mark_kept", error=repr(done.exception()))
