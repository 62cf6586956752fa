"""Notices a store that takes nothing new, or does not answer."""

from __future__ import annotations

import asyncio

from holdfast.endpoint.engine.commits import Commits
from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreFailed
from holdfast.store import Store

HANGING_SECONDS = 5.0
"""Seconds after which the log and the health check report a commit: the disk does not answer."""

_WATCH_SECONDS = 1.0


def _remedy(trouble: str) -> str:
    """Return the remedy for a store's own trouble, which names the disk, Kafka or the database, or has a remedy."""
    if trouble.startswith("The disk"):
        return "Free space there. The server then resumes automatically."
    if trouble.endswith("."):
        return "The server then resumes automatically."
    return f"Check {'Kafka' if trouble.startswith('Kafka') else 'the database'}. The server resumes when it answers."


class StoreWatch:
    """Logs, checking once a second, when a problem of the store begins, has another remedy, and ends."""

    def __init__(self, store: Store, commits: Commits) -> None:
        self._store = store
        self._commits = commits
        self._told: dict[str, str] = {}
        """The remedies that the log has, in order, with the kind of problem of each; empty: there is no problem."""
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[None] | None = None
        self._look()

    def problem(self) -> StoreFailed | None:
        """Return an error if the store accepts no new messages for now, or does not answer; else None."""
        if self._store.trouble:
            return StoreFailed(self._store.trouble, remedy=_remedy(self._store.trouble))
        thread = self._commits.thread
        if thread is not None and (seconds := thread.pending_seconds) >= HANGING_SECONDS:
            return StoreFailed(
                f"the store has not answered for {seconds:.0f} seconds; no message is acknowledged meanwhile",
                remedy="Check its disk or its database. The server resumes when the store answers.",
            )
        return None

    def _look(self) -> None:
        self._next = self._loop.call_later(_WATCH_SECONDS, self._look)
        wrong = self.problem()
        kind = "" if wrong is None else "store.unavailable" if self._store.trouble else "store.hanging"
        if wrong is not None and wrong.remedy not in self._told:
            self._told[wrong.remedy] = kind
            log.warning(kind, what=wrong.message, remedy=wrong.remedy)
        elif self._told and not kind:
            log.warning("store.available", after=list(self._told.values())[-1])
            self._told.clear()
        # A disk that hangs holds one thread, and not the loop.
        if self._looking is None or self._looking.done():
            self._looking = self._loop.run_in_executor(None, self._store.look)

    def stop(self) -> None:
        """Look no longer: the engine stops, or the store has failed."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
