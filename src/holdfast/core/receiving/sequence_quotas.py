"""Shares: how many Sequences are open, of each party and in all, and which of those that are over ended first.

A party is whoever the shell says that a peer is; the core compares nothing but the text.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts of Sequences.

    Args:
        max_remembered: Sequences that are over and are remembered.
    """

    def __init__(self, max_remembered: int) -> None:
        self.open_count = 0
        self._max_remembered = max_remembered
        self._of_party: Counter[str] = Counter()
        self._over: dict[str, None] = {}

    def open_of(self, party: str) -> int:
        """How many open Sequences a party has; those of nobody in particular ("") count for none."""
        return self._of_party[party] if party else 0

    def opened(self, party: str) -> None:
        """There is one more."""
        self.open_count += 1
        if party:
            self._of_party[party] += 1

    def closed(self, party: str) -> None:
        """One is over."""
        self.open_count -= 1
        if party:
            self._of_party[party] -= 1
            if not self._of_party[party]:
                del self._of_party[party]

    def use(self, max_remembered: int) -> None:
        """Remember so many from now on."""
        self._max_remembered = max_remembered

    def remember(self, identifier: str) -> str | None:
        """One that is over is remembered from now on; the one to forget for it, if they are too many."""
        self._over[identifier] = None
        return next(iter(self._over)) if len(self._over) > self._max_remembered else None

    def forget(self, identifier: str) -> None:
        """One that is over is not remembered any more."""
        self._over.pop(identifier, None)
