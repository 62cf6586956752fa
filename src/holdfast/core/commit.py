"""GroupCommit: changes gathered into one batch, and the calls to make once that batch is durable.

Every decision made while a batch is open becomes durable with it, so one sync serves many messages. Announcements that
must wait for durability are registered here as calls, which run in the order of registration. Batches become durable in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.core.records import Batch, Snapshot, State
from holdfast.exceptions import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


class Saved(Protocol):
    """A Sequence, or another object that is saved as a whole."""

    def to_state(self) -> State: ...


class Committing(Protocol):
    """An object that puts its changes into a commit."""

    @property
    def commit(self) -> GroupCommit: ...


C = TypeVar("C", bound=Committing)


def changing(call: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Mark a call of the shell that changes the state of the core: an unexpected error in it ends the endpoint.

    The state is unknown after it: a message may count as received that is in no batch. So nothing more is committed or
    acknowledged, and the next start recovers from the store. A ``ConfigurationError`` refuses the call before any
    change, so it is the caller's alone.
    """

    @wraps(call)
    def changed(self: C, /, *args: P.args, **options: P.kwargs) -> R:
        try:
            return call(self, *args, **options)
        except ConfigurationError:
            raise
        except Exception as error:
            self.commit.fail(error)
            raise

    return changed


class Opened:
    """Token of an open batch: requests made under the same token become durable together."""

    __slots__ = ()


class GroupCommit:
    """The open batch, and the batches that the store is writing."""

    def __init__(self) -> None:
        self.fail: Callable[[Exception], None] = _ignore
        """Called with an unexpected error in a call that is :func:`changing`. The shell sets it."""
        self.batch = Batch()
        self.opened = Opened()
        """Token of the open batch, a new one for each batch."""
        self._changed: dict[str, Saved] = {}
        self._at_last: dict[str, Callable[[Batch], None]] = {}
        self.is_waited_for = False
        """Whether a caller or peer waits for the open batch to be durable. For example, nothing waits when a source
        saves acknowledged numbers, which happens only occasionally."""
        self._then: list[Callable[[float], None]] = []
        self._taken: deque[list[Callable[[float], None]]] = deque()

    def save(self, identifier: str, sequence: Saved) -> None:
        """Save the Sequence in its state when the batch is taken."""
        self._changed[identifier] = sequence

    def at_last(self, name: str, write: Callable[[Batch], None]) -> None:
        """Call ``write`` with the open batch when it is committed. A later call for a name replaces an earlier one."""
        self._at_last[name] = write

    def save_new(self, identifier: str, sequence: Saved, queue: str, partition: int) -> None:
        """Save a new Sequence together with its home partition, which receives or provides its messages."""
        self.batch.homes[identifier] = (queue, partition)
        self._changed[identifier] = sequence

    def settle(self, identifier: str, queue: str, partition: int, snapshot: Snapshot) -> None:
        """Set the home of a recovered Sequence that was saved without one."""
        if identifier not in snapshot.homes:
            self.batch.homes[identifier] = (queue, partition)

    def forget(self, identifier: str) -> None:
        """Delete the Sequence and its held records."""
        self._changed.pop(identifier, None)
        # A save that is pending would bring it back.
        self.batch.sequences[identifier] = None

    def then(self, call: Callable[[float], None], *, is_waited_for: bool = True) -> None:
        """Make the call, with the time, once the current content of the open batch is durable.

        ``is_waited_for``: whether a caller or peer waits for it.
        """
        self._then.append(call)
        self.is_waited_for |= is_waited_for

    @property
    def is_wanted(self) -> bool:
        """Whether there are changes to commit, or calls to make after a commit."""
        return bool(self._then or self._changed or self._at_last or self.batch)

    def take(self) -> Batch:
        """Close and return the open batch, and open the next one. Pass it to the store, then call :meth:`durable`."""
        batch, self.batch = self.batch, Batch()
        self.opened = Opened()
        for identifier, sequence in self._changed.items():
            # The state as it is now: several changes of a Sequence in one batch cost one encoding.
            batch.sequences[identifier] = sequence.to_state()
        self._changed.clear()
        # After the Sequences: a description may depend on everything that the batch changes.
        for write in self._at_last.values():
            write(batch)
        self._at_last.clear()
        # The store makes batches durable in the order in which they were taken.
        self._taken.append(self._then)
        self._then = []
        self.is_waited_for = False
        return batch

    def durable(self, now: float) -> None:
        """Make the calls of the oldest batch taken, which is now durable."""
        for call in self._taken.popleft():
            call(now)


def _ignore(_error: Exception) -> None:
    """Leave an error to the caller. The explorer copies the core, so this is no lambda."""
