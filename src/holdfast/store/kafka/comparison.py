"""Compares a cache with its log: the cache has what the records up to its checkpoint say, byte for byte.

The cache may be that of a running process: it is compared as it was when its engine last wrote its memory to files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Final, cast

from holdfast.exceptions import StoreError
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.kafka import cache
from holdfast.store.kafka.cache import Applied, TemporaryCache
from holdfast.store.kafka.replay import Checkpoint, Replay, Written
from holdfast.store.kafka.topic import KafkaLog
from holdfast.store.rocksdb import opening

_TRIES: Final = 5
"""How often to begin again with a cache that changes while it is opened."""
_OWN: Final = (cache.CHECKPOINT, layout.TRIMMED)
"""Keys of the cache that the log does not have."""

_Items = Iterable[tuple[bytes, bytes]]


def compare_cache(place: Path, log: KafkaLog, shown: str) -> str | None:
    """Compare a cache with its log; the comparison writes the log's content to a temporary directory.

    Args:
        shown: The log, for the problem.

    Returns:
        The broken rule as a sentence; "" if the cache keeps it; None if there is nothing to compare: the cache is
        empty, or older than what the log still has.

    Raises:
        KafkaAway: Kafka does not answer.
    """
    if not (place / directory.ENGINE).exists():
        return None
    try:
        cache.require_own(place, log.identity)
        with contextlib.closing(_view(place)) as view:
            point = cache.decode_checkpoint(cast("bytes | None", view.engine.get(cache.CHECKPOINT)))
            return None if point is None else _compare(place, view, point, log, shown)
    except StoreError as error:
        return f"The cache of the log at {shown} cannot be compared with it: {error.message}"


def _view(place: Path) -> opening.View:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StoreError, OSError):
            return opening.View(place)
    return opening.View(place)


def _compare(place: Path, view: opening.View, point: Checkpoint, log: KafkaLog, shown: str) -> str | None:
    first, end = log.bounds()  # after the cache was read
    if point.next < first:
        return None
    where = f"The cache of the log at {shown}"
    if point.next > end:
        return f"{where} has record {point.next - 1}, but the log ends before record {end}."
    with contextlib.closing(TemporaryCache(place)) as expected:
        replay, applied = Replay(Checkpoint(next=first), shown), Applied(shown, expected.engine.write)
        for offset, record in log.read(first) if point.next > first else ():
            if isinstance(found := replay.read(offset, record), Written):
                applied.add(found)
            if replay.next == point.next:
                break
        applied.write()
        reached = replay.checkpoint
        if reached is None:
            return None  # within the copy with which the log begins
        if (reached.next, reached.epoch, reached.serial) != (point.next, point.epoch, point.serial):
            says = f"write {point.serial} of epoch {point.epoch} ends at record {point.next}"
            return f"{where} says that {says}, but in the log it is write {reached.serial} of epoch {reached.epoch}."
        difference = _difference(cast(_Items, view.engine.items()), cast(_Items, expected.engine.items()))
    return f"{where} {difference}, as of record {point.next}." if difference else ""


def _difference(found: _Items, expected: _Items) -> str:
    """Return how a content differs from the expected one; "" if it does not."""
    ours, theirs = ((item for item in items if item[0] not in _OWN) for items in (found, expected))
    for one, other in zip_longest(ours, theirs):
        if one == other:
            continue
        if other is None or (one is not None and one[0] < other[0]):
            return f"has the key {one[0][:80]!r}, which the log does not have"
        if one is None or one[0] > other[0]:
            return f"lacks the key {other[0][:80]!r}, which the log has"
        return f"has another value of the key {one[0][:80]!r} than the log"
    return ""
