"""What a run waits for, as lines on standard error while a batch takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

EVERY = 10.0
"""Seconds without a finished batch before the first line, and between two lines."""


class Waiting:
    """Report the queries that work on a batch. Queries that wait for messages are not reported.

    Args:
        tell: Prints a line.
        clock: Returns seconds.
    """

    def __init__(
        self, tell: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell or (lambda line: click.echo(line, err=True))
        self._clock = clock
        self._since = self._last = clock()
        self._batches = 0

    def look(self, queries: Mapping[str, Any], batches: int) -> None:
        """Print a line if it is time for one.

        Args:
            queries: Name -> Spark's query. Its ``status`` is a request to Spark, so most calls do not read it.
            batches: Number of batches that have ended.
        """
        now = self._clock()
        if batches != self._batches:
            self._batches, self._since, self._last = batches, now, now
        if now - self._last < EVERY:
            return
        self._last = now
        stands = {name: query.status for name, query in queries.items()}
        at_work = {name: one["message"] for name, one in stands.items() if one["isTriggerActive"]}
        # Without data, an active query only asks for the ends of its queues.
        at_work = {name: message for name, message in at_work.items() if stands[name]["isDataAvailable"]}
        if not at_work:
            self._since = now
            return
        said = "; ".join(f"{name}: {message}" for name, message in at_work.items())
        self._tell(f"no batch has ended for {now - self._since:.0f} s; {said}")
