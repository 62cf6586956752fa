"""Partitions of a queue: each one append-only list of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.queues.retention import Sizes
from holdfast.core.records import Record

Grown = Callable[[int, Record | None], None]
"""``grown(offset, record)``: the record there is durable; None if it must be read from the store."""


@dataclass(slots=True)
class Partition:
    """One append-only list of records.

    Args:
        first: The first offset that is there.
        end: The offset of the next record accepted.
        durable_end: Records below it are durable.
        before: Fingerprint of the last record below ``first``, "" if it is not known.
        expired: Below it the retention has let go.
        lapsed: Below it no reader's cursor protects any more.
        purged: Below it an operator wants nothing kept.
        due: When to look again what has become too old; None: when something comes.
        is_searched: Whether is being looked for what has become too old.
        sizes: What its records take, where size counts.
        is_cut: Whether records are being deleted: the last of them is read.
        passed: The last record that a Sequence's owner has passed, and its offset; None if it is not in memory.
        followers: Who is told of each record that is durable, by cursor.
    """

    first: int = 0
    end: int = 0
    durable_end: int = 0
    before: str = ""
    expired: int = 0
    lapsed: int = 0
    purged: int = 0
    due: float | None = None
    is_searched: bool = False
    sizes: Sizes | None = None
    is_cut: bool = False
    passed: tuple[int, Record] | None = None
    followers: dict[str, Grown] = field(default_factory=dict)
