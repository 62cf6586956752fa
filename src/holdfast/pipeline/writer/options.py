"""Names, defaults and limits of the options of writes with ``format("wsrm")``.

This module imports neither Spark nor network code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.options.server import ServerOptions, access_of
from holdfast.pipeline.options.values import (
    as_boolean,
    as_name,
    option,
    parsed,
)

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of Spark itself, which it also passes to the writer of a stream."""

_ELSEWHERE = {
    "kafka.bootstrap.servers": "set the server with option broker, a URL: http://127.0.0.1:8081",
    "topic": "set the queue with option queue, or with a column of that name",
    "path": "call save() or start() without a path; queue or to sets the destination",
}
"""Options of Spark's Kafka sink and file sinks, and what to use instead."""


def _sink(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", text):
        raise ConfigurationError(
            f"option {name}={text!r} is not a valid name on the server",
            remedy="Use up to 200 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit",
        )
    return text


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise ConfigurationError(
            f"option {name}={text!r} is not a whole number from 0 with at most 15 digits",
            remedy="Write the number of the batch",
        )
    return int(text)


def _directory(name: str, text: str) -> str:
    if not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise ConfigurationError(
            f"option {name}={text!r} is neither an absolute path nor a URI",
            remedy="Use a directory that the driver and every executor can reach: /shared/refused, s3://bucket/refused",
        )
    return text.rstrip("/")


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(as_name(name, one.strip()) for one in text.split(","))


@dataclass(frozen=True, slots=True)
class WriteOptions(ServerOptions):
    """Validated options of a batch or streaming write. The metadata holds each option's camelCase name.

    Args:
        queue: Queue on the server for rows without a value in the columns ``queue`` and ``to``.
        to: Address for rows without a value in these columns, instead of a queue.
        action: Action of rows without a value in the column ``action``.
        sequence_key: Name of the column that groups rows: the writer sends all rows with the same value in one
            Sequence, in order. By default, all rows of the write are in one Sequence.
        sink_id: Name of the sink on the server: letters, digits, dots, hyphens and underscores. The default for a
            stream is its query id. If you name the sink, the server rejects another query (a new checkpoint) until you
            rebind the sink.
        batch_id: Number of this batch write within ``sinkId``. If the batch was published before, the write sends
            nothing, so you can repeat a write, and ``foreachBatch`` delivers exactly once. The server rejects an
            unpublished batch with a number below the last one.
        query_id: Query that ``batchId`` counts batches of, for a batch write. The default is the streaming query that
            contains the write.
        idempotency_key: Key of a single batch write. Another write with the same key sends nothing.
        rebind: Whether this query takes over a sink that another query wrote to. It then numbers its batches from the
            beginning.
        refused: Directory of a Parquet table for rows that cannot be sent. By default, such a row fails the write. If
            the value of an option is wrong, such as the queue, the write fails nevertheless.
        refused_columns: Columns that the writer does not send, separated by commas. That table contains them, so that
            you recognize its rows.
    """

    queue: str = field(default="", metadata=option("queue", as_name))
    to: str = field(default="", metadata=option("to", as_name))
    action: str = field(default="", metadata=option("action", as_name))
    sequence_key: str = field(default="", metadata=option("sequenceKey", as_name))
    sink_id: str = field(default="", metadata=option("sinkId", _sink))
    batch_id: int | None = field(default=None, metadata=option("batchId", _whole))
    query_id: str = field(default="", metadata=option("queryId", _sink))
    idempotency_key: str = field(default="", metadata=option("idempotencyKey", as_name))
    rebind: bool = field(default=False, metadata=option("rebind", as_boolean))
    refused: str = field(default="", metadata=option("refused", _directory))
    refused_columns: tuple[str, ...] = field(default=(), metadata=option("refusedColumns", _names))

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> WriteOptions:
        """Parse the options as Spark passes them: text values under case-insensitive names.

        Raises:
            ConfigurationError: An option name is unknown (the error suggests the nearest one), a value is invalid, the
                broker is missing, or options contradict each other.
        """
        given = {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}
        values = parsed(cls, given, "sink", _ELSEWHERE)
        made = cls(**values, access=access_of(values))
        made._check(stream)
        return made

    def _check(self, stream: bool) -> None:
        if self.queue and self.to:
            raise ConfigurationError("options queue and to exclude each other", remedy="Remove one of them")
        if stream:
            for name, value in (
                ("batchId", self.batch_id is not None),
                ("queryId", self.query_id),
                ("idempotencyKey", self.idempotency_key),
            ):
                if value:
                    raise ConfigurationError(
                        f"option {name} is for a batch write; a stream has its own", remedy="Remove it"
                    )
            return
        if self.idempotency_key and (self.sink_id or self.batch_id is not None):
            raise ConfigurationError(
                "option idempotencyKey is for a single write, options sinkId and batchId are for a series of writes",
                remedy="Remove one or the other",
            )
        if bool(self.sink_id) != (self.batch_id is not None):
            raise ConfigurationError(
                "a batch write needs both options sinkId and batchId, or neither",
                remedy='ForeachBatch: .option("sinkId", "alerts").option("batchId", batch_id)',
            )
        if (self.query_id or self.rebind) and not self.sink_id:
            raise ConfigurationError(
                "options queryId and rebind need a sink with a name", remedy="Add options sinkId and batchId"
            )


__all__ = ["WriteOptions"]
