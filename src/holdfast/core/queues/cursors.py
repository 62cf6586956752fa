"""Cursors of one queue: what each reader, handler and outbound Sequence has passed.

A **cursor** is an offset in each partition; its owner has finished every record below it. There are three kinds: the
cursor of the handlers (:data:`HANDLER`), the named cursors of external readers, and the cursors of outbound Sequences
(:data:`OUTBOUND`), each of which has only one partition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.ranges import AcknowledgementRanges, ranges_of
from holdfast.core.records import State
from holdfast.exceptions import ConfigurationError

HANDLER = "handler"
"""Name of the handlers' cursor."""
OUTBOUND = "outbound/"
"""Prefix of an outbox key in the name of its cursor. Only internal names contain a slash."""
ASIDE = "aside/"
"""Prefix of the name under which an unreadable saved state is kept."""

_READER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_reader(name: str) -> None:
    """Check that a name is valid for a reader's cursor.

    Raises:
        ConfigurationError: the name is reserved or not valid.
    """
    if name == HANDLER:
        raise ConfigurationError(
            f"the name {HANDLER!r} is reserved for the destination's handlers", remedy="Give the reader another name."
        )
    if _READER.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:120]!r} is not a valid name of a reader",
            remedy="Use up to 100 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit.",
        )


class TooManyReaders(ConfigurationError):
    """A queue has reached its limit of readers' cursors."""


@dataclass(slots=True)
class Cursor:
    """The progress of one reader, of the handlers, or of outbound Sequences.

    Args:
        offsets: Partition -> saved offset; the owner has finished every record below it. The cursor of an outbound
            Sequence has one partition, the others have every partition.
        moved_at: When it last moved, seconds since 1970-01-01 UTC; None if unknown.
        about: Other state that is saved with the cursor of an outbound Sequence.
    """

    name: str
    offsets: dict[int, int]
    moved_at: float | None = None
    about: State = field(default_factory=dict)
    is_outbound: bool = field(init=False)
    """Whether outbound Sequences follow the partition."""

    def __post_init__(self) -> None:
        self.is_outbound = self.name.startswith(OUTBOUND)

    @property
    def is_readers(self) -> bool:
        return self.name != HANDLER and not self.is_outbound

    @property
    def kind(self) -> str:
        """Return the kind that operators see."""
        return "outbound" if self.is_outbound else "reader" if self.is_readers else "handler"


class Cursors(dict[str, Cursor]):
    """The cursors of one queue, by name."""

    def __init__(self, records: QueueRecords) -> None:
        super().__init__()
        self._records = records
        self.everywhere: dict[str, Cursor] = {}
        """The cursors with every partition: those of readers and of the handlers."""
        self.are_followed = False
        """Whether outbound Sequences follow the queue."""
        self._handled: dict[int, State] = {}
        self._misplaced: set[int] = set()

    # --- changes --------------------------------------------------------------------------------------------------

    def add(self, name: str, now: float, max_readers: int | None) -> Cursor:
        """Create the cursor of a reader or of the handlers.

        Raises:
            ConfigurationError: the name is not valid for a reader.
            TooManyReaders: the queue has as many readers as it may have.
        """
        cursor = Cursor(name, dict(enumerate(self._records.firsts)), now)
        if cursor.is_readers:
            check_reader(name)
            if max_readers is not None and sum(one.is_readers for one in self.values()) >= max_readers:
                raise TooManyReaders(
                    f"the queue {self._records.name!r} has {max_readers} readers, which is its limit",
                    remedy="Delete the cursors of readers that no longer exist: holdfast queues lists them.",
                )
        self[name] = self.everywhere[name] = cursor
        return cursor

    def add_outbound(self, name: str, partition: int, start: int | None) -> None:
        """Create the cursor of outbound Sequences, which :meth:`describe` saves."""
        one = self._records.partitions[partition]
        # Not before the first record, which is deleted, and not beyond the last durable one, which a crash could lose.
        begin = one.first if start is None else min(max(start, one.first), one.durable_end)
        self[name] = Cursor(name, {partition: begin})
        one.outbound.add(name)
        self.are_followed = True

    def remove(self, name: str) -> None:
        cursor = self.pop(name)
        self.everywhere.pop(name, None)
        for partition in cursor.offsets:
            self._records.partitions[partition].outbound.discard(name)
            self._records.save_cursor(partition, name, None)
        if cursor.is_outbound:
            self.are_followed = any(one.is_outbound for one in self.values())

    def save(self, cursor: Cursor, partition: int) -> None:
        state: State = {**cursor.about, "offset": cursor.offsets[partition]}
        if cursor.moved_at is not None:
            state["at"] = cursor.moved_at
        self._records.save_cursor(partition, cursor.name, state)

    def say_about(self, name: str, partition: int, about: State) -> None:
        """Save the position of an outbound Sequences' cursor, and its other state."""
        cursor = self[name]
        cursor.about = about
        self.save(cursor, partition)

    # --- the handlers' --------------------------------------------------------------------------------------------

    def handled(self, partition: int, *, at_most_once: bool = False) -> State:
        """Return which records the handlers have finished. Below ``floor``, every request is answered too.

        Deleted records count as finished. If the handlers' position was lost and no record may be delivered twice,
        every record counts as finished.
        """
        one = self._records.partitions[partition]
        saved = self._handled.get(partition, {"done": []})
        done = AcknowledgementRanges.from_state(saved["done"])
        # The position was lost: with at-most-once, every record may have been handled.
        upper = one.end if at_most_once and partition in self._misplaced else one.first
        if upper:
            done.add_range(1, upper)
        return {"done": done.to_state(), "floor": max(one.first, saved.get("floor", 0))}

    def is_handled_saved(self, partition: int) -> bool:
        """Whether the store already has the handlers' finished records, so that another save is unnecessary."""
        saved = self._handled.get(partition)
        return saved is not None and saved["done"] == self.handled(partition)["done"]

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, name: str, partition: int, state: State) -> bool:
        """Restore one cursor in one partition, and return whether its state was readable.

        An unreadable state is kept under another name.
        """
        partitions = self._records.partitions
        one = partitions[partition] if partition < len(partitions) else None
        offset = None if one is None else _offset_of(name, state, one.end)
        is_readable = one is not None and offset is not None
        if not is_readable:
            # Kept under another name: a later version, or an operator, may still read it.
            self._records.save_cursor(partition, ASIDE + name, state)
            self._records.save_cursor(partition, name, None)
            if name == HANDLER:
                self._misplaced.add(partition)
            elif one is not None:
                # The other state of an outbox may be readable: it keeps its versions and its doubts.
                rest = state if name.startswith(OUTBOUND) else {}
                self._records.save_cursor(partition, name, {**rest, "offset": one.first})
        if one is not None:
            self._place(name, partition, max(offset or 0, one.first), state)
        return is_readable

    def _place(self, name: str, partition: int, offset: int, state: State) -> None:
        is_outbound = name.startswith(OUTBOUND)
        cursor = self.setdefault(name, Cursor(name, {} if is_outbound else dict(enumerate(self._records.firsts))))
        cursor.offsets[partition] = offset
        if not is_outbound:
            self.everywhere[name] = cursor
        if name == HANDLER:
            if partition not in self._misplaced:
                self._handled[partition] = state
            return
        if is_outbound:
            self._records.partitions[partition].outbound.add(name)
            self.are_followed = True
            cursor.about = {key: value for key, value in state.items() if key not in ("offset", "at")}
        at = state.get("at")
        # The type exactly, because a bool is an int, and a damaged state may hold anything.
        if type(at) is float:
            cursor.moved_at = at if cursor.moved_at is None else max(at, cursor.moved_at)

    # --- for people -----------------------------------------------------------------------------------------------

    def unpassed(self) -> dict[str, list[tuple[int, int]]]:
        """Return, for each cursor, the partition and offset of the oldest records that it has not passed."""
        partitions = self._records.partitions
        return {
            cursor.name: [
                (partition, position)
                for partition, offset in cursor.offsets.items()
                if (position := max(offset, partitions[partition].first)) < partitions[partition].durable_end
            ]
            for cursor in self.values()
        }

    def shown(self, cursor: Cursor, now: float, age: float) -> dict[str, Any]:
        """Return the report on a cursor for operators.

        ``lag``: records not passed yet; ``age``: seconds that the oldest of them has been in the queue, 0 without any;
        ``idle``: seconds since the cursor moved, None if unknown.
        """
        lag = 0
        for partition, offset in cursor.offsets.items():
            one = self._records.partitions[partition]
            lag += one.durable_end - max(offset, one.first)
        return {
            "name": cursor.name,
            "kind": cursor.kind,
            "offsets": dict(cursor.offsets),
            "lag": lag,
            "age": age if lag else 0.0,
            "idle": None if cursor.moved_at is None else max(0.0, now - cursor.moved_at),
        }


def _offset_of(name: str, state: State, end: int) -> int | None:
    """Return the offset below which a cursor's saved state reports every record finished; None if it is unreadable."""
    if name != HANDLER:
        offset = state.get("offset")
        return offset if type(offset) is int and 0 <= offset <= end else None
    done = ranges_of(state.get("done"), end)
    if done is None:
        return None
    floor = state.get("floor", done.first_gap - 1)
    return floor if type(floor) is int and 0 <= floor < done.first_gap else None
