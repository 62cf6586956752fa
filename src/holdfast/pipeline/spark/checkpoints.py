"""A query's checkpoint: the name of its cursor, its progress, and the tables that belong to it.

Spark writes ``metadata`` (the query's id), ``offsets/N`` before batch N and ``commits/N`` after it. A table records the
query of its newest batch, and how far that batch reaches. So a checkpoint that was copied, restored, or belongs to
another table is detected before anything is written.
"""

from __future__ import annotations

import json
import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.client.admin import Access
from holdfast.client.data_plane import DataPlane, Patience
from holdfast.client.errors import OffsetRefused, PipelineError
from holdfast.client.offsets import Place, Places, Positions, QueueRange, Range, parse
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

READER_FILE = "holdfast-reader"
"""File in the checkpoint with the name of its cursor on the server."""


class Table(Protocol):
    """A table that belongs to a checkpoint; see ``landing.parquet.ParquetTable``."""

    def begun(self) -> str:
        """Return its current content; "" if it is empty."""
        ...

    def foreign(self) -> str:
        """Return content that Holdfast did not write; otherwise ""."""
        ...

    def newest(self) -> tuple[int, str] | None:
        """Return the newest batch, and its origin."""
        ...

    def has(self, batch: int) -> bool: ...

    def origin(self, batch: int) -> str:
        """Return the batch's origin, "" if unknown."""
        ...


def reader_of(spark: SparkSession, checkpoint: str, what: str = "land") -> str:
    """Return the name of a checkpoint's cursor; the first call creates it and writes it into the checkpoint.

    The name moves with the checkpoint, and no other checkpoint has it. Its prefix ``what`` names its user.
    """
    if READER_FILE not in files.names(spark, checkpoint):
        files.publish_text(spark, f"{checkpoint}/{READER_FILE}", f"{what}-{secrets.token_hex(6)}")
    return files.read_text(spark, f"{checkpoint}/{READER_FILE}").strip()


def settle(
    spark: SparkSession,
    broker: str,
    checkpoint: str,
    *,
    queues: Collection[str] = (),
    reader: str | None = None,
    access: Access | None = None,
    away: float = 60.0,
) -> dict[str, Positions]:
    """Move the cursors to the end of the checkpoint's last batch, because Spark leaves them one batch behind at a run's
    end.

    Args:
        spark: A classic session.
        broker: URL of the server's admin listener.
        checkpoint: The query's.
        queues: The queues it reads, if known; unknown for a pattern.
        reader: Name of the cursors; None: the checkpoint's own.
        access: Credentials for the server, if it requires any.
        away: Seconds to wait for a server that does not answer.

    Returns:
        Queue -> the new position of its cursor; empty if no batch has been completed yet.

    Raises:
        ServerAway: The server did not answer in that time. Harmless: the next run's first batch moves the cursor.
        OffsetRefused: The checkpoint belongs to other queues.
    """
    done = _numbers(spark, f"{checkpoint}/commits")
    if not done:
        return {}
    places = _places(spark, checkpoint, max(done))
    for queue in queues:
        if queue not in places.queues:
            raise OffsetRefused(
                f"the checkpoint {checkpoint} does not belong to queue {queue!r}",
                remedy="Use the queue that was read with it",
            )
    name = reader or reader_of(spark, checkpoint)

    def moved(queue: str, place: Place) -> Positions:
        return plane.advance_cursor(queue, name, place.epoch, place.positions, place.known)

    with closing(DataPlane(broker, access)) as plane:
        return {
            queue: Patience(away).call(lambda queue=queue, place=place: moved(queue, place))  # type: ignore[misc]
            for queue, place in places.queues.items()
        }


def _numbers(spark: SparkSession, log: str) -> list[int]:
    return [int(name) for name in files.names(spark, log) if name.isdigit()]


def _sources(spark: SparkSession, checkpoint: str, batch: int) -> list[Any]:
    lines = files.read_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()
    return [None if line == "-" else json.loads(line) for line in lines[2:]]  # below version and settings


def _places(spark: SparkSession, checkpoint: str, batch: int) -> Places:
    return parse(_sources(spark, checkpoint, batch)[0])


def ranges_of_queues(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[QueueRange]:
    """Return the ranges between two offsets of a ``wsrm`` source, also those without a record."""
    before, after = parse(start).positions, parse(end)
    ranges = []
    for queue, place in sorted(after.queues.items()):
        for partition, until in sorted(place.positions.items()):
            begin = place.begins.get(partition, before.get((queue, partition), 0))
            ranges.append((queue, Range(partition, begin, until)))
    return ranges


def topic_positions(offset: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, int], int]:
    """Return the positions in an offset of Spark's Kafka source, by topic and partition."""
    return {(topic, int(part)): at for topic, parts in offset.items() for part, at in parts.items()}


def where_it_stands(spark: SparkSession, checkpoint: str) -> dict[str, Any]:
    """Return the position of a query with one source, in the source's form; empty before its first batch."""
    done = _numbers(spark, f"{checkpoint}/commits")
    return dict(_sources(spark, checkpoint, max(done))[0] or {}) if done else {}


def watermark_of(spark: SparkSession, checkpoint: str, batch: int) -> int:
    """Return the watermark of a batch, in milliseconds since 1970."""
    settings = files.read_text(spark, f"{checkpoint}/offsets/{batch}").splitlines()[1]
    return int(json.loads(settings)["batchWatermarkMs"])


def origin(spark: SparkSession, checkpoint: str, batch: int) -> str:
    """Return the query of a batch, and each of its sources' positions at its end, for the batch's table."""
    return json.dumps({"query": query_id(spark, checkpoint), "ends": _sources(spark, checkpoint, batch)})


def query_id(spark: SparkSession, checkpoint: str) -> str:
    return str(json.loads(files.read_text(spark, f"{checkpoint}/metadata"))["id"])


def is_there(table: Table, batch: int, origin: str, out: str) -> bool:
    """Whether a batch is already in its table.

    Raises:
        PipelineError: The table has it from another query, or with other messages.
    """
    if not table.has(batch):
        return False
    there = table.origin(batch)
    if there and there != origin:
        raise PipelineError(
            f"batch {batch} of {out} has other messages than this query's batch {batch}",
            remedy="Its checkpoint is not the one of the table, or is a copy that was used separately: use the "
            "table's checkpoint, or write to another directory with a new checkpoint",
        )
    return True


def commit_state(batch: DataFrame) -> None:
    """Compute a batch after its rows were written, because Spark requires each batch to commit its query's state."""
    batch.write.format("noop").mode("overwrite").save()


def refuse_nested(spark: SparkSession, out: str, checkpoint: str) -> None:
    """Check that a table and a checkpoint are in separate directories.

    Raises:
        ConfigurationError: They are one directory, or one is inside the other, so that who cleans up, copies or deletes
            one would damage the other.
    """
    is_inside = files.contains(spark, out, checkpoint), files.contains(spark, checkpoint, out)
    if any(is_inside):
        what = {
            (True, True): "are the same directory",
            (True, False): "are nested: the checkpoint is inside",
            (False, True): "are nested: the table is inside",
        }[is_inside]
        raise ConfigurationError(
            f"the table {out} and the checkpoint {checkpoint} {what}",
            remedy=f"Use a directory next to the table, such as {out.rstrip('/')}.checkpoint",
        )


def refuse_foreign_data(
    spark: SparkSession, table: Table, out: str, checkpoint: str, *, every: bool = False, only: bool = False
) -> None:
    """Check that a table and a checkpoint belong together.

    Args:
        spark: A classic session.
        table: The table below ``out``.
        out: Its directory.
        checkpoint: The query's.
        every: Every batch of the query is in the table, even one without rows.
        only: The query has written to no other directory since it began, so each done batch has left content here.

    Raises:
        ConfigurationError: They do not; or Holdfast did not write the table; or the directory is not writable.
    """
    if foreign := table.foreign():
        raise ConfigurationError(
            f"{out} contains {foreign}, which Holdfast did not write",
            remedy="Use a separate directory: Holdfast can read files of other writers, but not append to them",
        )
    known = _numbers(spark, f"{checkpoint}/offsets")
    if table.begun() and not known:
        raise ConfigurationError(
            f"{out} contains batches, but the checkpoint {checkpoint} is new: its batches would start at 0 again",
            remedy="Use the checkpoint of the table; if it is lost, write to another directory",
        )
    done = max(_numbers(spark, f"{checkpoint}/commits"), default=-1)
    newest, told = table.newest() or (-1, "")
    if every and done > newest:
        raise ConfigurationError(
            f"the checkpoint {checkpoint} is at batch {done}, but {out} "
            + (f"is only at {newest}" if newest >= 0 else "has no batch"),
            remedy="Use the directory of this checkpoint; for another directory, use a new checkpoint",
        )
    if only and done >= 0 and not files.names(spark, out):
        raise ConfigurationError(
            f"the checkpoint {checkpoint} is at batch {done}, but {out} is empty",
            remedy="Use the directory of this checkpoint; for another directory, use a new checkpoint",
        )
    if newest > max(known, default=-1):
        raise ConfigurationError(
            f"{out} contains batch {newest}, but the checkpoint {checkpoint} is only at {max(known)}: it is a "
            "copy, or was restored",
            remedy="Use the checkpoint of the table; if it is lost, write to another directory",
        )
    if told and not _is_of(spark, checkpoint, newest, told, known):
        raise ConfigurationError(
            f"{out} was written with a checkpoint other than {checkpoint}, or with a copy of it",
            remedy="Use the checkpoint of the table; if it is lost, write to another directory",
        )
    files.check_writable(spark, out)


def _is_of(spark: SparkSession, checkpoint: str, batch: int, told: str, known: Collection[int]) -> bool:
    """Whether a batch with that origin may belong to the checkpoint, which forgets old batches."""
    if batch in known:
        return origin(spark, checkpoint, batch) == told
    return bool(json.loads(told)["query"] == query_id(spark, checkpoint))
