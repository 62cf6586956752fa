"""RunningHandlers: since when handlers run, and whether all of them hang. Sans-IO."""

from __future__ import annotations

from typing import Final

from holdfast.core.events import Handle, Incident

REPORT_AFTER: Final = 60.0
"""Seconds without the start or the end of a handler, while none is free, after which the log names the oldest one."""

REPORT_EVERY: Final = 3600.0
"""Seconds between two such reports."""

_REMEDY = (
    "Other messages wait until a handler ends. Find out what the handlers wait for, and set timeouts in the libraries "
    "that they call"
)


class RunningHandlers:
    """The handlers that run.

    Args:
        most: How many run at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._started: dict[tuple[str, int, int], tuple[Handle, float]] = {}
        """The oldest first."""
        self.stuck_since: float | None = None
        """When the last handler started, if that is reported; None while handlers start and end."""
        self.due: float | None = None
        """When :meth:`pump` must be called; None: not before an event."""

    def __len__(self) -> int:
        return len(self._started)

    def begin(self, handle: Handle, now: float) -> None:
        """Register a handler that starts."""
        self._started[handle.queue, handle.partition, handle.offset] = handle, now
        self.due = now + REPORT_AFTER if len(self._started) >= self._most else None

    def end(self, handle: Handle, now: float) -> list[Incident]:
        """Register a handler that has ended. Return the report that handlers are free again, if one is due."""
        del self._started[handle.queue, handle.partition, handle.offset]
        self.due = None
        if self.stuck_since is None:
            return []
        seconds, self.stuck_since = round(now - self.stuck_since, 1), None
        return [Incident("handlers.free", detail={"seconds": seconds})]

    def oldest(self, now: float) -> float:
        """Return for how many seconds the oldest handler has run; 0 if none runs."""
        return max(0.0, now - min((since for _, since in self._started.values()), default=now))

    def pump(self, now: float) -> list[Incident]:
        """Return the report that every handler hangs, if one is due."""
        if self.due is None or now < self.due:
            return []
        if self.stuck_since is None:
            self.stuck_since = self.due - REPORT_AFTER
        self.due = now + REPORT_EVERY
        handle, since = next(iter(self._started.values()))
        record = handle.record
        detail = {
            "running": len(self._started),
            "action": record.action,
            "seconds": round(now - since, 1),
            "remedy": _REMEDY,
        }
        return [Incident("handlers.stuck", record.sequence, record.message_number, "error", detail)]
