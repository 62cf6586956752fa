"""The thread that commits: group commit for a shell on one asyncio loop. Knows stores and batches, no protocol rule.

While a commit is at the disk the loop goes on gathering; what was submitted meanwhile shares the next sync.

A server with such a thread should call ``sys.setswitchinterval(0.0005)`` once at its start: with Python's default of
5 ms, a busy loop keeps the thread waiting for the interpreter lock many times longer than the disk takes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic, Protocol, TypeVar, runtime_checkable

from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed
from holdfast.store.base import Store

Token = TypeVar("Token")


@runtime_checkable
class _GroupStore(Protocol):
    """A store that can make several batches durable with one sync."""

    def commit_group(self, batches: Sequence[Batch]) -> None: ...


class CommitThread(Generic[Token]):
    """Commits batches in the order of their submission, in one thread of its own.

    Each batch stays atomic by itself; several that wait together become durable by one sync if the store can do that.

    Args:
        store: Where to. Only this thread commits to it from now on; the caller closes it, after :meth:`close`.
        loop: The loop in which the two callbacks run.
        on_durable: Called with each token, in order, once its batch is durable.
        on_failed: Called once with the error when a commit failed; nothing submitted from that batch on is durable for
            certain, and no further batch is taken.
        depth: How many batches may wait; :meth:`submit` blocks above that.

    Attributes:
        batches, records, bytes: Committed so far; bytes of message bodies.
        syncs: Commits to the store they took.
        seconds: Time spent in those.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[Token], object],
        on_failed: Callable[[BaseException], object],
        *,
        depth: int = 8,
    ) -> None:
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.syncs = 0
        self.seconds = 0.0
        self._store = store
        self._group_store = store if isinstance(store, _GroupStore) else None
        self._loop = loop
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._depth = depth
        self._waiting: deque[tuple[Token, Batch]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._since = 0.0
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-commit", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is being committed: a batch submitted now starts at once. A shell that
        submits when idle, and otherwise gathers until the next ``on_durable``, gets the largest groups."""
        return not self._busy and not self._waiting

    @property
    def ready(self) -> bool:
        """Whether :meth:`submit` would neither block nor raise."""
        return self._failure is None and not self._closing and len(self._waiting) < self._depth

    @property
    def pending_seconds(self) -> float:
        """For how long the commit in progress has been with the store, 0.0 if there is none: a disk may hang."""
        since = self._since
        return perf_counter() - since if since else 0.0

    def submit(self, token: Token, batch: Batch) -> None:
        """Hand over a batch, which must not be changed any more. Blocks while ``depth`` batches wait.

        Raises:
            StoreFailed: An earlier commit failed, or this thread was closed.
        """
        with self._changed:
            while len(self._waiting) >= self._depth and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise StoreFailed(
                    "An earlier commit failed; nothing is stored or acknowledged since.",
                    remedy="Free space or repair the disk, then start again.",
                ) from self._failure
            if self._closing:
                raise StoreFailed("The store is being closed and takes no further batch.", remedy="Start again.")
            self._waiting.append((token, batch))
            self._changed.notify_all()

    def close(self) -> None:
        """Commit what waits, then end the thread. The last callbacks may still be on their way in the loop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while group := self._next_group():
            try:
                self._commit([batch for _, batch in group])
            except BaseException as error:  # a thread has nobody above it: whatever it is, the loop must hear of it
                self._fail(error)
                return
            # Before the loop is told: a shell that gathers while we are not idle looks again when told, not later.
            self._busy = False
            for token, _ in group:
                self._tell(self._on_durable, token)

    def _next_group(self) -> list[tuple[Token, Batch]]:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            group = list(self._waiting)
            self._busy = bool(group)
            self._waiting.clear()
            self._changed.notify_all()
            return group

    def _commit(self, batches: list[Batch]) -> None:
        self._since = started = perf_counter()
        if len(batches) > 1 and self._group_store is not None:
            self._group_store.commit_group(batches)
            self.syncs += 1
        else:
            for batch in batches:
                self._store.commit(batch)
                self.syncs += 1
        self._since = 0.0
        self.seconds += perf_counter() - started
        self.batches += len(batches)
        for batch in batches:
            self.records += len(batch.appends) + len(batch.holds)
            self.bytes += sum(len(append[3].body) for append in batch.appends)
            self.bytes += sum(len(hold[2].body) for hold in batch.holds)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._busy = False
            self._waiting.clear()
            self._changed.notify_all()
        self._tell(self._on_failed, error)

    def _tell(self, callback: Callable[..., object], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            # A closed loop has nobody left to tell; what is committed stays committed, the rest is still written.
            if not self._loop.is_closed():
                raise
