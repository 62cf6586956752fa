"""What can go wrong between Spark and a server, beside a wrong setting. Knows nothing of Spark."""

from __future__ import annotations

from holdfast.exceptions import HoldfastError


class PipelineError(HoldfastError):
    """Base of the pipeline's own errors."""


class ServerAway(PipelineError):
    """The server does not answer, or answers that it cannot now (5xx). Nothing is lost; worth trying again."""


class UnknownQueue(PipelineError):
    """The server has no queue of that name."""


class OffsetRefused(PipelineError):
    """An offset that is not one of this queue: of another epoch, moved backwards, or beyond the end."""


class RecordsTrimmed(PipelineError):
    """Records that were asked for have been deleted from the queue."""


class IncompleteRead(PipelineError):
    """The server sent other records than exactly those that were asked for."""
