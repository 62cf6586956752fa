"""Quotas: counts of open Sequences, by party and in all, and the order of ended ones.

The shell decides which party a peer is; the core compares only the text.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts of Sequences.

    Args:
        max_remembered: Maximum number of ended Sequences that are remembered.
    """

    def __init__(self, max_remembered: int) -> None:
        self.open_count = 0
        self._max_remembered = max_remembered
        self._of_party: Counter[str] = Counter()
        self._over: dict[str, None] = {}

    def open_of(self, party: str) -> int:
        """Return how many open Sequences a party has; the unknown party ("") has none."""
        return self._of_party[party] if party else 0

    def opened(self, party: str) -> None:
        self.open_count += 1
        if party:
            self._of_party[party] += 1

    def closed(self, party: str) -> None:
        self.open_count -= 1
        if party:
            self._of_party[party] -= 1
            # Each party that ever came would otherwise keep an entry.
            if not self._of_party[party]:
                del self._of_party[party]

    def use(self, max_remembered: int) -> None:
        """Apply another limit of remembered Sequences from now on."""
        self._max_remembered = max_remembered

    def remember(self, identifier: str) -> str | None:
        """Remember an ended Sequence; return the one to forget if there are too many."""
        self._over[identifier] = None
        # The first in the order is the one that ended longest ago.
        return next(iter(self._over)) if len(self._over) > self._max_remembered else None

    def forget(self, identifier: str) -> None:
        self._over.pop(identifier, None)
