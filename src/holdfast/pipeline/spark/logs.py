"""The log of Spark's source and sink: lines with the time, the level and an event, as those of a broker.

It belongs to the standard library's logger ``holdfast.pipeline``. Spark runs source and sink in Python processes that
configure no logging, so each line also names the query, by its reader or its sink. Executors have no structlog.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from holdfast.core.origin import without_secrets

_logger = logging.getLogger("holdfast.pipeline")


class PipelineLog:
    """Writes events with their fields."""

    def info(self, event: str, **facts: object) -> None:
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: object) -> None:
        self._write(logging.WARNING, event, facts)

    def _write(self, level: int, event: str, facts: dict[str, object]) -> None:
        if _logger.isEnabledFor(level):
            at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            shown = {"timestamp": at, "level": logging.getLevelName(level).lower(), "event": event, **facts}
            text = " ".join(f"{name}={value!r}" for name, value in shown.items())
            _logger.log(level, "%s", without_secrets(text))


log = PipelineLog()
