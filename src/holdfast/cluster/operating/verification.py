"""Verification: what a check of a cluster found, whatever its engine is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check.

    Args:
        place: The database or the topic, for people.
        problems: The broken rules, each as a sentence.
        partitions: How many partitions have a store.
        records: How many records their stores have.
        numbers: Numbers that never fall: what each belongs to -> its value.
        bodies: How many records were read and decoded.
        caches: How many caches of this machine were compared with their logs.
        starts: Outbound Sequence -> the offset of its message 1, which never changes.
    """

    place: str
    problems: tuple[str, ...]
    partitions: int
    records: int
    numbers: Mapping[str, int] = field(default_factory=dict)
    bodies: int = 0
    caches: int = 0
    starts: Mapping[str, int] = field(default_factory=dict)


def fallen(before: Verification | None, numbers: Mapping[str, int]) -> list[str]:
    """Return a sentence for each number that fell since an earlier check of the same cluster.

    Args:
        before: The earlier check; None: there was none.
        numbers: The numbers now.
    """
    found = before.numbers if before is not None else {}
    return [
        f"The {name} fell from {value} to {numbers[name]}."
        for name, value in found.items()
        if numbers.get(name, value) < value
    ]


def moved(before: Verification | None, starts: Mapping[str, int]) -> list[str]:
    """Return a sentence for each outbound Sequence whose numbers belong to other records than at an earlier check."""
    return [
        f"Message 1 of outbound Sequence {name} was record {known} of its outbox, but is {starts[name]} now."
        for name, known in (before.starts if before is not None else {}).items()
        if starts.get(name, known) != known
    ]
