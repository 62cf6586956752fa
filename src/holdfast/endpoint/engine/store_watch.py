"""Notices a store that takes nothing new, or does not answer."""

from __future__ import annotations

import asyncio

from holdfast.endpoint.engine.commits import Commits
from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreFailed
from holdfast.outages import Outage, Trouble
from holdfast.store import Store

HANGING_SECONDS = 5.0
"""Seconds after which the log and the health check report a commit: the disk does not answer."""

_WATCH_SECONDS = 1.0


class StoreWatch:
    """Logs, checking once a second, when a problem of the store begins, has another remedy, and ends."""

    def __init__(self, store: Store, commits: Commits) -> None:
        self._store = store
        self._commits = commits
        self._loop = asyncio.get_running_loop()
        self._outage = Outage(self._loop.time)
        self._logged = ""
        """The event that the log had last of the outage."""
        self._next: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[None] | None = None
        self._look()

    def problem(self) -> StoreFailed | None:
        """Return an error if the store accepts no new messages for now, or does not answer; else None."""
        if (trouble := self._store.trouble) is not None:
            return StoreFailed(trouble.what, remedy=f"{trouble.remedy} The server then resumes automatically.".lstrip())
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
        if wrong is None:
            if (seconds := self._outage.end()) is not None:
                log.warning("store.available", after=self._logged, seconds=seconds)
        elif self._outage.go_on(Trouble(wrong.message, wrong.remedy)):
            self._logged = "store.unavailable" if self._store.trouble is not None else "store.hanging"
            log.warning(self._logged, what=wrong.message, remedy=wrong.remedy)
        # A disk that hangs holds one thread, and not the loop.
        if self._looking is None or self._looking.done():
            self._looking = self._loop.run_in_executor(None, self._store.look)

    def stop(self) -> None:
        """Look no longer: the engine stops, or the store has failed."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
