"""The options of writes with ``format("wsrm")``: names, defaults, limits. Knows nothing of Spark or of the network."""

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
"""Spark shows a stream's writer these options of its own."""

_ELSEWHERE = {
    "kafka.bootstrap.servers": "the server is named by option broker, a URL: http://127.0.0.1:8081",
    "topic": "a queue is named by option queue, or by a column of that name",
    "path": "call save() or start() without one; queue or to says where",
}
"""Options of Spark's Kafka sink, or of sinks that write files, and what there is instead."""


def _sink(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", text):
        raise ConfigurationError(
            f"option {name}={text!r} cannot be a name on the server",
            remedy="use letters and digits, then dots, hyphens and underscores too, 200 at most",
        )
    return text


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise ConfigurationError(f"option {name}={text!r} is not a whole number from 0 on, of 15 digits at most")
    return int(text)


def _directory(name: str, text: str) -> str:
    if not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise ConfigurationError(
            f"option {name}={text!r} is neither an absolute path nor a URI",
            remedy="give a directory that the driver and every executor reach: /shared/refused, s3://bucket/refused",
        )
    return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class WriteOptions(ServerOptions):
    """The checked options of a write, batch or stream. Option names are the camelCase ones of the metadata.

    Args:
        queue: The queue of the server for rows that name none, nor an address, by columns ``queue`` and ``to``.
        to: The address that those rows are sent to, instead of a queue.
        action: The Action of rows that have none by a column ``action``.
        sequence_key: Name of the column whose value keeps rows together: those of one value go out in one Sequence, in
            their order. Without it all rows of the write are one Sequence.
        sink_id: Name of the sink on the server: letters, digits, dots, hyphens and underscores. A stream's own is its
            query id; with a name, another query (a new checkpoint) is refused until it is bound.
        batch_id: Which batch of ``sinkId`` a batch write is. One that was published before sends nothing: so a write
            can be repeated, and ``foreachBatch`` is exact. One below the last that was not is refused.
        query_id: Whose batches ``batchId`` counts, of a batch write. Without it, the streaming query that it runs in.
        idempotency_key: Of a batch write alone: another write with this key sends nothing.
        rebind: Whether a sink that another query wrote to becomes this query's, which begins its batches again.
        refused: Directory of a Parquet table for the rows that cannot be sent. Without it, such a row fails the write.
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

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> WriteOptions:
        """Options as Spark hands them over: texts, under names whose case does not count.

        Args:
            options: What was given.
            stream: Whether a streaming query writes, and not a batch.

        Raises:
            ConfigurationError: A name nobody knows, with the nearest right one; a value that cannot be used; no broker;
                options that do not go together.
        """
        given = {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}
        values = parsed(cls, given, "sink", _ELSEWHERE)
        made = cls(**values, access=access_of(values))
        made._check(stream)
        return made

    def _check(self, stream: bool) -> None:
        if self.queue and self.to:
            raise ConfigurationError("options queue and to exclude each other", remedy="leave one of them out")
        if stream:
            for name, value in (
                ("batchId", self.batch_id is not None),
                ("queryId", self.query_id),
                ("idempotencyKey", self.idempotency_key),
            ):
                if value:
                    raise ConfigurationError(
                        f"option {name} is for a batch write; a stream has its own", remedy="leave it out"
                    )
            return
        if self.idempotency_key and (self.sink_id or self.batch_id is not None):
            raise ConfigurationError(
                "option idempotencyKey is for a single write, options sinkId and batchId for one of many",
                remedy="leave out one or the other",
            )
        if bool(self.sink_id) != (self.batch_id is not None):
            raise ConfigurationError(
                "a batch write has options sinkId and batchId both, or neither",
                remedy='foreachBatch: .option("sinkId", "alerts").option("batchId", batch_id)',
            )
        if (self.query_id or self.rebind) and not self.sink_id:
            raise ConfigurationError(
                "options queryId and rebind are for a sink that has a name", remedy="add options sinkId and batchId"
            )


__all__ = ["WriteOptions"]
