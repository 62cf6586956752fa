"""Batches of changes on their way from the core to the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Batch
from holdfast.endpoint.engine.clock import Cancellable, Clock
from holdfast.store import CommitThread, Store, Transaction

PUT_OFF = 0.05
"""Seconds for which a batch without waiting callers stays open, such as one of received acknowledgements.

A caller that was just notified may store another message, which would otherwise wait for the sync of this batch. If the
process crashes during the pause, acknowledged messages are sent again."""


@dataclass(slots=True)
class _Taken:
    """A batch from the core, the transaction it belongs to, and the future of the caller that waits for it alone."""

    batch: Batch
    within: Transaction | None = None
    over: asyncio.Future[None] | None = None


Taking = Callable[[], tuple[Batch | None, Batch]]
"""Takes two batches from the core: one that must be durable first, or None, and the batch itself."""


class Commits:
    """Commits the batches of one protocol one at a time, in the order in which the core made them.

    Args:
        store: The store. The thread here commits to it; the caller closes it.
        on_due: Called when a batch that was put off is due.
        on_durable: Called in the loop once a batch is durable, unless :meth:`commit` returned True for it.
        on_failed: Called in the loop once, with the error of a commit that failed.
    """

    def __init__(
        self,
        store: Store,
        protocol: RMProtocol,
        clock: Clock,
        on_due: Callable[[], None],
        on_durable: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.is_committing = False
        """Whether the commit thread has a batch."""
        self.is_due = False
        """Whether to commit the open batch without further delay."""
        self._protocol = protocol
        self._clock = clock
        self._on_due = on_due
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._alone: deque[tuple[Taking, Transaction, asyncio.Future[None]]] = deque()
        self._taken: deque[_Taken] = deque()
        """Batches taken from the core but not yet passed to the commit thread."""
        self._over: asyncio.Future[None] | None = None
        """The future of the caller that waits for the batch in the commit thread alone."""
        self._under_way: Batch | None = None
        """The batch in the commit thread."""
        self._put_off: Cancellable | None = None
        """The timer that commits an open batch without waiting callers after ``PUT_OFF`` seconds."""
        self.thread: CommitThread | None = CommitThread(store, self._loop, self._durable, self._failed)
        """None once it has ended."""

    @property
    def are_wanted(self) -> bool:
        return bool(self._taken or self._alone) or self._protocol.wants_commit

    @property
    def are_urgent(self) -> bool:
        """Whether a caller or peer waits for the next commit."""
        return bool(self._taken or self._alone) or self._protocol.commit.is_waited_for or self.is_due

    @property
    def are_put_off(self) -> bool:
        """Whether the open batch waits for changes that callers wait for."""
        return self._put_off is not None

    def put_off(self) -> None:
        """Leave the open batch open for ``PUT_OFF`` seconds."""
        if self._put_off is None:
            self._put_off = self._clock.call_at(self._clock() + PUT_OFF, self._put_off_over)

    def _put_off_over(self) -> None:
        self._put_off = None
        self.is_due = True
        self._on_due()

    def end_put_off(self) -> None:
        """Call the timer of :meth:`put_off` off."""
        self.is_due = False
        if self._put_off is not None:
            self._put_off.cancel()
            self._put_off = None

    def commit(self) -> bool:
        """Pass the next batch to the commit thread; return whether it is durable already."""
        assert self.thread is not None
        self.end_put_off()
        taken = self._next_batch()
        self._over = taken.over
        self._under_way = taken.batch
        self.is_committing = not self.thread.commit(taken.batch, taken.within)
        return not self.is_committing

    def _next_batch(self) -> _Taken:
        if not self._taken and self._alone:
            take, within, over = self._alone.popleft()
            # Only now, with no other batch in progress: what precedes it must be durable first.
            before, alone = take()
            if before is not None:
                self._taken.append(_Taken(before))
            self._taken.append(_Taken(alone, within, over))
        return self._taken.popleft() if self._taken else _Taken(self._protocol.take_batch())

    def take_durable(self) -> Batch | None:
        batch, self._under_way = self._under_way, None
        return batch

    def tell(self) -> None:
        """Tell the caller that waits for the durable batch alone, once the core knows that it is durable."""
        tell(self._over)

    def _durable(self) -> None:
        self.is_committing = False
        self._on_durable()

    def _failed(self, error: BaseException) -> None:
        self.is_committing = False
        self._on_failed(error)

    def commit_alone(self, take: Taking, within: Transaction) -> asyncio.Future[None]:
        """Commit a batch as the last part of a transaction; see :meth:`Engine.commit_alone`."""
        over: asyncio.Future[None] = self._loop.create_future()
        self._alone.append((take, within, over))
        return over

    def undo_alone(self) -> None:
        """Roll every waiting transaction back, and tell its caller, as the store has failed."""
        for _, within, over in self._alone:
            # In a thread: the database may not answer.
            self._loop.run_in_executor(None, within.end)
            tell(over)
        self._alone.clear()
        for handed in self._taken:
            if handed.within is not None:
                self._loop.run_in_executor(None, handed.within.end)
            tell(handed.over)
        self._taken.clear()
        tell(self._over)

    async def close(self) -> None:
        if self.thread is not None:
            await asyncio.to_thread(self.thread.close)
            self.thread = None


def tell(done: asyncio.Future[None] | None) -> None:
    """Tell the caller that waits for it, unless it was told before."""
    if done is not None and not done.done():
        done.set_result(None)
