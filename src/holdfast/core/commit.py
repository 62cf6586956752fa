"""GroupCommit: changes gathered into one batch, and what happens once that batch is durable.

Everything that was decided while a batch was open becomes durable with it, so one sync serves many messages. What may
be said only then waits here as a call, made in the order it was asked for. Batches are durable in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from holdfast.core.records import Batch, Snapshot, State


class Saved(Protocol):
    """A Sequence, or whatever else is saved whole."""

    def to_state(self) -> State:
        """What to save."""
        ...


class Opened:
    """Stands for a batch while it is open: what was asked for under the same one becomes durable together."""

    __slots__ = ()


class GroupCommit:
    """The open batch and those on their way to the disk."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.opened = Opened()
        """Another one for each batch."""
        self._changed: dict[str, Saved] = {}
        self.is_waited_for = False
        """Whether somebody waits for the open batch to be durable. What a source knows to have arrived is saved now and
        then only, and nobody hears of it."""
        self._then: list[Callable[[float], None]] = []
        self._taken: deque[list[Callable[[float], None]]] = deque()

    def save(self, identifier: str, sequence: Saved) -> None:
        """Save the Sequence as it is when the batch is taken."""
        self._changed[identifier] = sequence

    def save_new(self, identifier: str, sequence: Saved, queue: str, partition: int) -> None:
        """Save a new Sequence, which lives with that partition: its messages go into it, or come from it."""
        self.batch.homes[identifier] = (queue, partition)
        self._changed[identifier] = sequence

    def settle(self, identifier: str, queue: str, partition: int, snapshot: Snapshot) -> None:
        """Say where a recovered Sequence lives, if it began before that was said."""
        if identifier not in snapshot.homes:
            self.batch.homes[identifier] = (queue, partition)

    def forget(self, identifier: str) -> None:
        """Forget the Sequence and what is held for it."""
        self._changed.pop(identifier, None)
        self.batch.sequences[identifier] = None

    def then(self, call: Callable[[float], None], *, is_waited_for: bool = True) -> None:
        """Make the call, with the time, when all that the open batch holds now is durable; ``is_waited_for``: whether
        somebody waits for it."""
        self._then.append(call)
        self.is_waited_for |= is_waited_for

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to commit or to say after a commit."""
        return bool(self._then or self._changed or self.batch)

    def take(self) -> Batch:
        """The open batch, closed; the next one opens. Give it to the store, then call :meth:`durable`."""
        batch, self.batch = self.batch, Batch()
        self.opened = Opened()
        for identifier, sequence in self._changed.items():
            batch.sequences[identifier] = sequence.to_state()
        self._changed.clear()
        self._taken.append(self._then)
        self._then = []
        self.is_waited_for = False
        return batch

    def durable(self, now: float) -> None:
        """The oldest batch taken is durable."""
        for call in self._taken.popleft():
            call(now)
