"""The log: one line an event, through the standard library's logger ``holdfast``, as key=value or JSON.

A body is never logged. The sequence and the message number are in every line that has them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from holdfast.core.events import Incident

_worker: int | None = None


def _numbered(logger: Any, name: str, event: Any) -> Any:
    if _worker is not None:
        event["worker"] = _worker
    return event


_render: Any = structlog.processors.KeyValueRenderer(key_order=["event"], sort_keys=False)


def _rendered(logger: Any, name: str, event: Any) -> Any:
    return _render(logger, name, event)


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


def log_incident(incident: Incident) -> None:
    """Write what the core has to tell."""
    fields: dict[str, Any] = dict(incident.detail or {})
    if incident.identifier:
        fields["sequence"] = incident.identifier
    if incident.number:
        fields["message_number"] = incident.number
    getattr(log, incident.level)(incident.name, **fields)
