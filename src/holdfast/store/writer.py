"""The thread that commits, for a shell on one asyncio loop. Knows stores and batches, but no protocol rules.

Passing a batch to the thread and receiving the result wakes a sleeping thread three times, which costs more than a
commit on a quick disk. So the loop itself waits briefly for a commit. Most are durable by then, and the answers leave
immediately. A longer commit reports through the loop, which continues meanwhile, and the loop does not wait for some
later commits.

While the loop waits, its processor is idle, so the thread works there (``processors``).

A server with such a thread should call ``sys.setswitchinterval(0.0005)`` once at its start: with Python's default of 5
ms, a busy loop keeps the thread waiting for the interpreter lock many times longer than the disk takes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Final

from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed, repair_of
from holdfast.store.base import Store, Transaction
from holdfast.store.durations import Durations
from holdfast.store.processors import Place

LONGEST_WAIT: Final = 0.003
"""Maximum seconds that the loop waits for a commit. Other work in the loop, even of a program that shares it, is
delayed by no more than this."""
FEWEST_NOT_WAITED: Final = 1
MOST_NOT_WAITED: Final = 1024
"""Maximum number of commits without a wait after a slow one; the number doubles each time until a commit is quick
enough."""


class Patience:
    """Decides whether to wait for the next commit, from the durations of previous ones. Reads no clock."""

    def __init__(self) -> None:
        self._left = 0
        self._next = FEWEST_NOT_WAITED

    def waits(self) -> bool:
        """Return whether to wait for the commit that begins now; call it once for each commit."""
        if self._left:
            self._left -= 1
            return False
        return True

    def waited(self, *, in_time: bool) -> None:
        """Record whether the last commit with a wait was quick enough."""
        if in_time:
            self._next = FEWEST_NOT_WAITED
        else:
            self._left = self._next
            self._next = min(2 * self._next, MOST_NOT_WAITED)


class CommitThread:
    """Commits batches in the order in which it receives them, in a separate thread.

    Args:
        store: The store. Only this thread commits to it from now on; the caller closes it, after :meth:`close`.
        loop: The loop that calls every method here, and in which the two callbacks run.
        on_durable: Called once for each durable batch, unless :meth:`commit` already returned True for it.
        on_failed: Called once with the error when a commit failed; that batch may be durable or not, and the thread
            accepts no further batch.
        longest_wait: Maximum seconds that :meth:`commit` waits, 0.0 for never; None for :data:`LONGEST_WAIT`.

    Attributes:
        batches, records, bytes: Committed so far; bytes of message bodies.
        durations: How long the store took for each.
        waited: How many of them the loop waited for to the end.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[], object],
        on_failed: Callable[[BaseException], object],
        *,
        longest_wait: float | None = None,
    ) -> None:
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.durations = Durations()
        self.waited = 0
        self._store = store
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._longest_wait = LONGEST_WAIT if longest_wait is None else longest_wait
        self._patience = Patience()
        self._batches: SimpleQueue[tuple[Batch, Transaction | None] | None] = SimpleQueue()
        self._outcome: BaseException | None = None
        # Held until a commit has an outcome, by the thread that takes it. Not a SimpleQueue: that of CPython may wait
        # for ever if the thread is interrupted within ``get`` for longer than the timeout.
        self._has_no_outcome = threading.Lock()
        self._has_no_outcome.acquire()
        self._is_waited_for = False
        self._since = 0.0
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-commit", daemon=True)
        self._thread.start()
        self._place = Place(self._thread.native_id or 0)

    @property
    def pending_seconds(self) -> float:
        """Seconds since the commit in progress began, 0.0 otherwise: a disk may hang."""
        since = self._since
        return perf_counter() - since if since else 0.0

    def commit(self, batch: Batch, within: Transaction | None = None) -> bool:
        """Pass a batch to the thread, and wait briefly for it where that pays off. The caller must not change it later.

        Returns:
            Whether it is durable. If not yet, or if it failed, one of the callbacks follows; until then pass no other
            batch.

        Raises:
            StoreFailed: An earlier commit failed, or this thread was closed.
        """
        if self._failure is not None:
            raise StoreFailed(
                "An earlier commit failed; nothing has been stored or acknowledged since.",
                remedy=repair_of(self._failure),
            ) from self._failure
        if self._closing:
            raise StoreFailed("The store is closing and accepts no further batches.", remedy="Start again.")
        # Set before the batch is put: the thread may be done with it before this thread runs again.
        self._is_waited_for = waits = self._longest_wait > 0.0 and self._patience.waits()
        # While this thread waits, its processor is idle; otherwise both threads need one.
        if waits:
            self._place.here()
        else:
            self._place.anywhere()
        self._batches.put((batch, within))
        return waits and self._wait()

    def _wait(self) -> bool:
        if not self._has_no_outcome.acquire(timeout=self._longest_wait):
            self._is_waited_for = False
            self._place.anywhere()
            self._patience.waited(in_time=False)
            # It may have come between the two: the thread then saw that it is waited for, and told the loop nothing.
            self._loop.call_soon(self._hear)
            return False
        self._patience.waited(in_time=True)
        if self._outcome is not None:
            # Not from here: the caller is in the middle of a turn.
            self._loop.call_soon(self._fail, self._outcome)
            return False
        self.waited += 1
        return True

    def _hear(self) -> None:
        """Take the outcome of the commit that was not waited for, if it is there and was not taken before."""
        if not self._has_no_outcome.acquire(blocking=False):
            return
        if self._outcome is None:
            self._on_durable()
        else:
            self._fail(self._outcome)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._on_failed(error)

    def close(self) -> None:
        """Commit what was handed over, then end the thread; from any thread. The last callback may still be on its way
        in the loop."""
        self._closing = True
        self._batches.put(None)
        self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        # The first failure is final: every later batch assumes that the failed one is stored.
        while error is None and (handed := self._batches.get()) is not None:
            try:
                self._commit(*handed)
            except BaseException as caught:  # the thread must report every error to the loop
                error = caught
            del handed  # or it is kept until the next one comes
            # Given before the look at the flag: whichever thread comes second then finds the outcome.
            self._outcome = error
            self._has_no_outcome.release()
            if not self._is_waited_for:
                self._tell()

    def _commit(self, batch: Batch, within: Transaction | None) -> None:
        self._since = started = perf_counter()
        try:
            (within or self._store).commit(batch)
        finally:
            self._since = 0.0
            self.durations.add(perf_counter() - started)
        self.batches += 1
        self.records += len(batch.appends) + len(batch.holds) + sum([len(run.places) for run in batch.runs])
        self.bytes += sum([len(append[3].body) + len(append[3].attachments) for append in batch.appends])
        self.bytes += sum([len(hold[2].body) + len(hold[2].attachments) for hold in batch.holds])
        self.bytes += sum([run.bytes for run in batch.runs])

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:
            # A closed loop receives no result; committed batches stay committed, and the thread writes the rest.
            if not self._loop.is_closed():
                raise
