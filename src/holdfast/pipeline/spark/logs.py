"""The log of Spark's source and sink: lines with the time, the level and an event, as those of a broker.

It belongs to the standard library's logger ``holdfast.pipeline``. Spark runs source and sink in Python processes that
configure no logging, so each line also names the query, by its reader or its sink.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

from holdfast.core.origin import without_secrets

_render = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])


def _rendered(logger: Any, name: str, event: Any) -> Any:
    return without_secrets(_render(logger, name, event))


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("holdfast.pipeline"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _rendered,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)
