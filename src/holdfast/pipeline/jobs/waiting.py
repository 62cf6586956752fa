"""What a command waits for, as lines on standard error while a batch or the whole work takes long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

EVERY = 10.0
"""Seconds before the first line, and between two lines."""
Tell = Callable[[str], object]
"""Prints a line."""


def _echo(line: str) -> None:
    click.echo(line, err=True)


@contextlib.contextmanager
def progress_reported(tracker: Any, tell: Tell = _echo, every: float = EVERY) -> Iterator[None]:
    """Report, every few seconds of the block, its duration and the tasks that Spark runs.

    Args:
        tracker: The session's ``statusTracker()``.
        tell: Called in a separate thread.
        every: Seconds between two lines.
    """
    ended, begun = threading.Event(), time.monotonic()

    def report() -> None:
        with contextlib.suppress(Exception):  # Spark has ended, which the block reports
            while not ended.wait(every):
                line = "; ".join([f"still working, {time.monotonic() - begun:.0f} s", *_work_of(tracker)])
                if not ended.is_set():
                    tell(line)

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(EVERY)


def _work_of(tracker: Any) -> Iterator[str]:
    stages = [one for one in map(tracker.getStageInfo, tracker.getActiveStageIds()) if one is not None]
    if stages:
        done, tasks = (sum(getattr(one, name) for one in stages) for name in ("numCompletedTasks", "numTasks"))
        yield f"{done:,} of Spark's current {tasks:,} tasks are done"


class Waiting:
    """Report the queries that work on a batch. Queries that wait for messages are not reported.

    Args:
        tell: Prints a line.
        clock: Returns seconds.
    """

    def __init__(self, tell: Tell = _echo, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
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
