"""Requests that wait for their answer, and how long some of them did."""

from __future__ import annotations

from time import perf_counter

from holdfast.http.exchange import Exchange
from holdfast.store.durations import Durations

MEASURED = 16
"""One request in so many is measured."""


class Unanswered:
    """Unanswered exchanges of one destination.

    Attributes:
        durations: Seconds from the reading of a request to its answer, measured once in :data:`MEASURED` requests.
    """

    __slots__ = ("_count", "_since", "durations")

    def __init__(self) -> None:
        self.durations = Durations()
        self._since: dict[Exchange, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(self, exchange: Exchange) -> None:
        self._count += 1
        self._since[exchange] = 0.0 if self._count % MEASURED else perf_counter()

    def take(self, exchange: Exchange) -> bool:
        """Remove an exchange that is answered now, and return whether it was waiting."""
        since = self._since.pop(exchange, None)
        if since:
            self.durations.add(perf_counter() - since)
        return since is not None

    def take_all(self) -> list[Exchange]:
        """Remove and return all waiting exchanges; the caller answers them without their results."""
        waiting = list(self._since)
        self._since.clear()
        return waiting
