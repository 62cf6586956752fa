"""The log: one line an event, through the standard library's logger ``holdfast``, as key=value or JSON.

A body is never logged. The sequence and the message number are in every line that has them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

from holdfast.core.events import Incident
from holdfast.core.origin import without_secrets
from holdfast.http.tls import own_validity

MOST_LINES = 10
"""Lines of one event in ``LINES_WINDOW`` seconds, if other machines can cause any number of them."""
LINES_WINDOW = 60.0

_worker: int | None = None


def _numbered(logger: Any, name: str, event: Any) -> Any:
    if _worker is not None:
        event["worker"] = _worker
    return event


_render: Any = structlog.processors.KeyValueRenderer(key_order=["event"], sort_keys=False)


def _rendered(logger: Any, name: str, event: Any) -> Any:
    # Whoever wrote the text of the event, a peer or this side: it may quote an address with its secret.
    return without_secrets(_render(logger, name, event))


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("holdfast"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        _numbered,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _rendered,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)


def configure_logs(level: str = "info", *, json: bool = False, worker: int | None = None) -> None:
    """Write the log to standard error, for stand-alone programs (a library leaves this to its host).

    Args:
        level: "debug", "info", "warning", "error" or "critical".
        json: Whether each line is a JSON object instead of key=value.
        worker: The number of this process among several, for each line; None if it is the only one.
    """
    global _render, _worker
    _worker = worker
    _render = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("holdfast")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def log_incident(incident: Incident, **more: Any) -> None:
    """Write what the core has to tell, with more fields."""
    fields: dict[str, Any] = {**(incident.detail or {}), **more}
    if incident.identifier:
        fields["sequence"] = incident.identifier
    if incident.number:
        fields["message_number"] = incident.number
    getattr(log, incident.level)(incident.name, **fields)


class LineLimit:
    """Bounds the lines of one event that other machines can cause as often as they like.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._lines = 0
        self._left_out = 0

    def admit(self) -> int | None:
        """Return None if the next line must be left out, else how many were left out since the previous one."""
        now = self._clock()
        if self._lines == 0 or now >= self._ends_at:
            self._ends_at, self._lines = now + LINES_WINDOW, 0
        if self._lines == MOST_LINES:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


# --- warnings about own certificates ----------------------------------------------------------------------------------

SECONDS_LEFT = 14 * 86_400.0
"""A certificate that expires within this time is reported."""
NOT_VALID = "Replace it, or correct this machine's clock"
"""The remedy for a certificate that is not valid now: it expired, or is not valid yet."""


def warn_of_validity(file: str, since: float, until: float, now: float, refused: str) -> None:
    """Log that a certificate is not valid now, or expires soon.

    Args:
        since, until: When it is valid, in seconds since 1970.
        refused: What peers do with an invalid one, as a sentence.
    """
    remedy = f"{NOT_VALID}. {refused}"
    if not since <= now <= until:
        log.warning("certificate.not_valid", file=file, since=_day(since), until=_day(until), remedy=remedy)
    elif until - now < SECONDS_LEFT:
        log.warning("certificate.expires", file=file, until=_day(until), remedy=f"Renew it before that. {refused}")


def warn_of_tls(*files: str | None) -> None:
    """Log which of these files with an own certificate for TLS have one that is not valid, or expires soon."""
    for file in files:
        found = None if file is None else own_validity(file)
        if file is not None and found is not None:
            warn_of_validity(file, *found, time.time(), "Peers refuse the TLS connection.")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
