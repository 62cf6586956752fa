"""Partitions of a queue: append-only lists of records, with the state that the queue keeps for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.queues.retention import Sizes
from holdfast.core.records import Record

Grown = Callable[[int, Record | None, float], None]
"""``grown(offset, record, now)``: the record at ``offset`` is durable; None if it must be read from the store."""


@dataclass(slots=True)
class Partition:
    """One append-only list of records.

    Args:
        first: The first existing offset.
        end: The offset of the next record accepted.
        durable_end: Records below it are durable.
        expired: The retention has released the records below it.
        lapsed: Readers' cursors no longer protect the records below it.
        purged: The operator has released the records below it.
        due: When to search again for records beyond the retention's age; None: when a record arrives.
        is_searched: Whether a search for such records is in progress.
        sizes: Sizes of its records, if the retention limits the size.
        is_cut: Whether a deletion is in progress and reads the last record to delete.
        has_passed_content: Whether handlers finished a record with a content in the store since the last deletion.
        passed: Offset and record that a Sequence's owner passed last; None if it is not in memory.
        followers: Functions to call for each durable record, by cursor.
        outbound: Names of the cursors that outbound Sequences follow here.
    """

    first: int = 0
    end: int = 0
    durable_end: int = 0
    expired: int = 0
    lapsed: int = 0
    purged: int = 0
    due: float | None = None
    is_searched: bool = False
    sizes: Sizes | None = None
    is_cut: bool = False
    has_passed_content: bool = False
    passed: tuple[int, Record] | None = None
    followers: dict[str, Grown] = field(default_factory=dict)
    outbound: set[str] = field(default_factory=set)

    def trimmed(self) -> None:
        """Adapt to a deletion of its first records."""
        self.has_passed_content = False
        self.expired, self.lapsed = max(self.expired, self.first), max(self.lapsed, self.first)
        if self.sizes is not None:
            self.sizes.cut(self.first)
