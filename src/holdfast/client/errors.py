"""Errors between Spark and a server, except for wrong settings. Knows nothing of Spark."""

from __future__ import annotations

from holdfast.exceptions import HoldfastError


class PipelineError(HoldfastError):
    """Base of the pipeline's own errors."""


class ServerAway(PipelineError):
    """The server does not answer, or answers that it cannot now (5xx). Nothing is lost; worth trying again."""


class NobodyThere(ServerAway):
    """The address refuses connections, or its host does not exist."""


class UnknownQueue(PipelineError):
    """The server has no queue of that name."""


class OffsetRefused(PipelineError):
    """An offset that is not one of this queue: of another epoch, moved backwards, or beyond the end."""


class RecordsTrimmed(PipelineError):
    """Records that were asked for have been deleted from the queue."""


class IncompleteRead(PipelineError):
    """The server sent other records than exactly those that were asked for."""


class SinkBound(PipelineError):
    """The sink takes the batches of another query."""


class BatchRefused(PipelineError):
    """The sink does not take this batch: others are missing before it, or overtook it, or what was staged is gone."""


class TokenKnown(PipelineError):
    """A part was staged under this token before."""


class RowRefused(PipelineError):
    """A row cannot be sent.

    Args:
        row: Which one of its part, from 0.
        reason: Why.
        column: The column that is to blame, "" for none.
        remedy: What the server says to do about it.
    """

    def __init__(self, row: int, reason: str, column: str = "", remedy: str = "") -> None:
        super().__init__(f"row {row} cannot be sent: {reason}", remedy=remedy)
        self.row = row
        self.reason = reason
        self.column = column


class WriteRefused(PipelineError):
    """A row of the DataFrame cannot be sent, and nothing of the write was."""
