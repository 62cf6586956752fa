"""The changes of one batch, step by step, whatever the engine. Independent of engine and protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic

from holdfast.core.records import Batch
from holdfast.store.content import Content, Key
from holdfast.store.plan import Move, Plan, Where
from holdfast.store.records import encode_record, release_record
from holdfast.store.references import ReferenceChanges


class Changes(ABC, Generic[Key]):
    """The writes of a batch, and the store's content once the batch is durable. An engine's subclass writes each step.

    Args:
        content: The store's content; it does not change before :meth:`take_over`.

    Attributes:
        plan: The effects of the batch.
        references: What it changes in the references to contents.
        unnamed: After :meth:`take_over`: the contents that no record names any more.

    Raises:
        StoreFailed: The batch breaks a rule of :mod:`holdfast.store.plan`.
    """

    __slots__ = ("_content", "_garbage", "_swept", "plan", "references", "unnamed")

    def __init__(self, content: Content[Key], batch: Batch) -> None:
        self.plan = Plan(content, batch)
        self.references = ReferenceChanges(content.references, self.plan)
        self.unnamed: list[bytes] = []
        self._content = content
        self._garbage = content.garbage
        self._swept: dict[Where, int] = {}

    def _write_steps(self) -> None:
        """Write every effect. Deletions come last: they may concern records of this batch."""
        plan, batch = self.plan, self.plan.batch
        if plan.begins:
            self._begin()
        if batch.appends:
            self._append()
        if batch.runs:
            self._run()
        if plan.moves:
            self._move()
        if plan.held:
            self._hold()
        if batch.queues:
            self._save_queues()
        if batch.sequences:
            self._save_sequences()
        if plan.homes:
            self._settle()
        if plan.cursors:
            self._save_cursors()
        if self.references:
            self._refer()
        if plan.trims:
            self._trim()
        if plan.deletes:
            self._delete()

    @abstractmethod
    def _begin(self) -> None:
        """Create the partitions that receive their first record."""

    @abstractmethod
    def _append(self) -> None:
        """Write the appended records."""

    @abstractmethod
    def _run(self) -> None:
        """Write the runs of staged rows."""

    @abstractmethod
    def _move(self) -> None:
        """Write the released records at their new places; see :meth:`_moved`."""

    @abstractmethod
    def _hold(self) -> None:
        """Write the held records, and delete those that are no longer held."""

    @abstractmethod
    def _save_queues(self) -> None: ...

    @abstractmethod
    def _save_sequences(self) -> None: ...

    @abstractmethod
    def _settle(self) -> None:
        """Write which partition each Sequence belongs to."""

    @abstractmethod
    def _save_cursors(self) -> None: ...

    @abstractmethod
    def _refer(self) -> None:
        """Write the changed references to contents."""

    @abstractmethod
    def _trim(self) -> None:
        """Move first offsets, and delete some of the records below them."""

    @abstractmethod
    def _delete(self) -> None:
        """Delete whole partitions."""

    def _moved(self, read_held: Callable[[list[tuple[str, int]]], list[bytes]]) -> Iterator[tuple[Move, bytes]]:
        """Return the released records, encoded as they enter their queues.

        Raises:
            StoreDamaged: A record that the store holds is missing.
        """
        moves = self.plan.moves
        stored = list(dict.fromkeys((move.sequence, move.number) for move in moves if move.record is None))
        data_of = dict(zip(stored, read_held(stored), strict=True)) if stored else {}
        for move in moves:
            if move.record is not None:
                yield move, encode_record(replace(move.record, released_at=move.now))
            else:
                yield move, release_record(data_of[move.sequence, move.number], move.now)

    def _swept_of(self, where: Where) -> int:
        """Return the offset below which a partition's records are deleted, including this batch."""
        if where in self._swept:
            return self._swept[where]
        there = self._content.partitions.get(where)
        return 0 if there is None else there.swept

    def take_over(self) -> None:
        """Update the content: the batch is durable."""
        content = self._content
        content.take_over(self.plan, self._swept)
        if self.references:
            self.unnamed = self.references.take_over(content.references)
        content.serial += 1
        content.garbage = self._garbage
