"""Reassembly of a finite capture: each message once, in order, and how complete every Sequence is.

``sequence`` decides. There are many numbers, and Sequences may be huge, so Spark sorts, and finds the first message of
each number and the ranges; ``sequence`` gets only the ranges. No task holds all messages of a Sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.versions import RM_OF_NAME
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.layout import BATCH, LOG
from holdfast.pipeline.landing.parquet import listed
from holdfast.pipeline.landing.tables import read_landed, replace_table
from holdfast.pipeline.reassembly.rows import CONFLICT, DECODED, MESSAGES, PLACE, UNPLACED, decode_batches
from holdfast.pipeline.reassembly.sequence import Heard, Reassembly
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch
from holdfast.settings import NonEmpty, check_arguments, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_RANGES = "ARRAY<STRUCT<lower: BIGINT, upper: BIGINT>>"

SEQUENCES = (
    "sequence STRING, rm STRING, state STRING, ended STRING, last_message_number BIGINT, lowest_last BIGINT,"
    f" in_order_to BIGINT, ranges {_RANGES}, missing {_RANGES}, beyond_last {_RANGES}, acknowledged {_RANGES},"
    f" not_captured {_RANGES}, seen BIGINT, numbers BIGINT, duplicates BIGINT, conflicts ARRAY<BIGINT>, late BIGINT,"
    " created BOOLEAN, faults ARRAY<STRING>, first_captured_at TIMESTAMP, last_captured_at TIMESTAMP"
)
"""The gap report, a row for each Sequence; the columns are those of ``sequence.Standing`` and ``Heard``."""

PARTS = "sequence STRING, rm STRING, part STRING, lower BIGINT, upper BIGINT, packed BINARY"
"""Parts of the knowledge about a Sequence: accepted ranges ("had"), statements of other messages ("heard"), numbers
with another body ("conflict"), or the complete knowledge of a stream ("state")."""

_TABLES = {"messages": MESSAGES, "sequences": SEQUENCES, "unplaced": UNPLACED}

ROWS_OF_A_TASK = 250_000
"""Messages that one task sorts: a few hundred megabytes, most of them on disk."""

KEY = ("sequence", "rm", "message_number")
_BY_PLACE = ("captured_at", "source", "position", "digest")


@dataclass(frozen=True, slots=True)
class Reassembled:
    """The three tables of a reassembly.

    Args:
        messages: Every message once. Sorted by Sequence and number, within each file and across the files.
        sequences: The gap report.
        unplaced: Envelopes that are not messages of a Sequence, or are surplus: place and reason.
    """

    messages: DataFrame
    sequences: DataFrame
    unplaced: DataFrame


def capture_of(spark: SparkSession, *paths: str) -> DataFrame:
    """Return files as a capture: every file below the directories.

    Each is an envelope, or HTTP messages one after another, or WARC records, also compressed with gzip (``.gz``).

    Args:
        spark: A session.
        paths: Files, directories and patterns, on any file system that Spark supports.
    """
    check_arguments(capture_of, locals())
    return of_files(spark.read.format("binaryFile").option("recursiveFileLookup", "true").load([*paths]))


def of_files(found: DataFrame) -> DataFrame:
    """Return Spark's rows of whole files as a capture."""
    from pyspark.sql import functions as F

    at = F.col("modificationTime").alias("captured_at")
    return found.select(F.col("path").alias("source"), F.lit(0).cast("bigint").alias("position"), at, "content")


def as_capture(rows: DataFrame, content: str = "content") -> DataFrame:
    """Return any DataFrame as a capture: the column ``content``, BINARY or STRING, and the origin of each row.

    The origin comes from the columns ``source``, ``position`` and ``captured_at``, if they exist.

    Raises:
        ConfigurationError: there is no such column.
    """
    check_arguments(as_capture, locals())
    from pyspark.sql import functions as F

    if content not in rows.columns:
        raise ConfigurationError(
            f"the capture has no column {content!r}, only {', '.join(rows.columns)}",
            remedy=suggestion(
                content, rows.columns, "Name the column with the envelopes: as_capture(rows, NAME), or --column NAME"
            ),
        )
    columns: list[Column] = []
    for place in PLACE.split(", "):
        name, _, kind = place.partition(" ")
        columns.append((F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name))
    return rows.select(*columns, F.col(content).cast("binary").alias("content"))


def reassemble(
    capture: DataFrame, out: NonEmpty, *, on_step: Callable[[str, int | None], None] | None = None
) -> Reassembled:
    """Reassemble a capture into Delta tables below ``out``: ``messages``, ``sequences`` and ``unplaced``.

    Of several messages with one number, the first is kept, by ``captured_at``, ``source`` and ``position``. The order
    of the capture and its division into files change nothing else. A second run replaces the tables.

    Args:
        capture: The columns of ``reassembly_rows.CAPTURE``: see :func:`capture_of` and :func:`as_capture`.
        out: Directory, in any file system that Spark supports.
        on_step: Called after each step with its name ("decoded", with the number of messages; "sequences", "messages",
            "unplaced": that table is written).

    Returns:
        The three tables, as written.

    Raises:
        ConfigurationError: ``out`` belongs to a stream's reassembly.
    """
    check_arguments(reassemble, locals())
    from pyspark.sql import functions as F

    spark = capture.sparkSession
    refuse_unless(spark, out, streamed=False)
    staged = f"{out}/decoded"
    decoded = as_capture(capture).mapInArrow(decode_batches, DECODED)
    decoded.write.mode("overwrite").partitionBy("kind").parquet(staged)
    decoded = spark.read.schema(DECODED).parquet(staged)
    messages = decoded.where("kind = 'message'")
    found = messages.count()
    tasks = _tasks(spark, found)
    told = on_step or (lambda step, count: None)
    told("decoded", found)

    narrow = messages.select(*KEY, "digest").repartitionByRange(tasks, *KEY).sortWithinPartitions(*KEY)
    narrow.mapInArrow(islands, PARTS).write.mode("overwrite").parquet(f"{staged}-ranges")
    had = spark.read.schema(PARTS).parquet(f"{staged}-ranges")
    disputed = had.where(F.col("part") == CONFLICT)
    conflicts = conflicting(messages, disputed).persist()

    heard = decoded.where("kind = 'heard'").select(
        "sequence", "rm", F.lit("heard").alias("part"), *[F.lit(None).cast("bigint")] * 2, "packed"
    )
    parts = had.where(F.col("part") == "had").union(heard).union(as_parts(conflicts))
    sequences = replace_table(standings(parts), f"{out}/sequences")
    told("sequences", None)

    first = messages.repartitionByRange(tasks, *KEY).withColumn("_nth", F.row_number().over(_by_number()))
    first = first.where("_nth = 1 AND NOT marker").select(*arrow_schema(MESSAGES).names)
    whole = replace_table(first, f"{out}/messages")
    told("messages", None)

    unplaced = decoded.where("kind NOT IN ('message', 'heard')").withColumnsRenamed({"kind": "why", "packed": "raw"})
    names = arrow_schema(UNPLACED).names
    rest = replace_table(unplaced.select(*names).union(as_unplaced(conflicts)), f"{out}/unplaced")
    told("unplaced", None)
    conflicts.unpersist()
    files.delete(spark, staged)
    files.delete(spark, f"{staged}-ranges")
    return Reassembled(whole, sequences, rest)


def read_reassembled(spark: SparkSession, out: NonEmpty) -> Reassembled:
    """Return the tables that :func:`reassemble` wrote.

    Raises:
        ConfigurationError: The directory contains no tables, or the run did not finish.
    """
    check_arguments(read_reassembled, locals())
    there = files.names(spark, f"{out}/unplaced")  # the last table to be written
    if LOG in there:
        return Reassembled(*(read_landed(spark, f"{out}/{name}").drop(BATCH) for name in _TABLES))
    if "_SUCCESS" in there:  # an earlier version wrote plain Parquet files
        return Reassembled(*(spark.read.schema(of).parquet(f"{out}/{name}") for name, of in _TABLES.items()))
    raise ConfigurationError(f"{out} contains no reassembled messages", remedy="Run holdfast reassemble to its end")


def refuse_unless(spark: SparkSession, out: str, *, streamed: bool) -> None:
    """Check that ``out`` contains no reassembly of the other kind.

    Raises:
        ConfigurationError: It does.
    """
    there = files.names(spark, out)
    if "messages" in there if streamed else LOG in there or listed(spark, out):
        kind = "run without a stream" if streamed else "stream"
        raise ConfigurationError(f"{out} belongs to another {kind} of reassemble", remedy="Use another directory")


def _tasks(spark: SparkSession, rows: int) -> int:
    return int(max(int(spark.conf.get("spark.sql.shuffle.partitions")), rows // ROWS_OF_A_TASK + 1))


def _by_number() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy(*KEY).orderBy(*_BY_PLACE)


# --- ranges ----------------------------------------------------------------------------------------------------------


def islands(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert sorted numbers into ranges, and find the numbers with two bodies, for ``mapInArrow``.

    The input is ``sequence, rm, message_number, digest``, the output ``PARTS``. Ranges end with their batch; a later
    step joins them.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = arrow_schema(PARTS)
    before: pa.RecordBatch | None = None  # the last row; its number may continue here
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch] if before is None else [before, batch]).combine_chunks()
        start = 0 if before is None else 1
        before = batch.slice(batch.num_rows - 1)
        sequence, rm, number, digest = rows.columns
        above, below = slice(None, -1), slice(1, None)

        def differs(column: Any, above: slice = above, below: slice = below) -> Any:
            size = len(column)
            return pc.not_equal(column.slice(1), column.slice(0, size - 1)).to_numpy()

        numbers = number.to_numpy()
        is_other = differs(sequence) | differs(rm)
        step = numbers[below] - numbers[above]
        begins = np.concatenate(([True], is_other | (step > 1)))
        begins[start] = True
        firsts = np.flatnonzero(begins[start:]) + start
        lasts = np.concatenate((firsts[1:], [len(numbers)])) - 1
        disputed = np.flatnonzero(~is_other & (step == 0) & differs(digest)) + 1
        for part, lower, upper in (("had", firsts, lasts), (CONFLICT, disputed, disputed)):
            size = len(lower)
            if size:
                columns = [sequence.take(lower).combine_chunks(), rm.take(lower).combine_chunks()]
                nothing = pa.nulls(size, pa.binary())
                columns += [pa.array([part] * size), pa.array(numbers[lower]), pa.array(numbers[upper]), nothing]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


# --- conflicts -------------------------------------------------------------------------------------------------------


def conflicting(messages: DataFrame, disputed: DataFrame) -> DataFrame:
    """Return messages with a number that an earlier message with another body has."""
    from pyspark.sql import functions as F

    numbers = disputed.select("sequence", "rm", F.col("lower").alias("message_number")).distinct()
    rows = messages.join(F.broadcast(numbers), [*KEY], "left_semi")
    kept = F.first("digest").over(_by_number())
    return rows.withColumn("_kept", kept).where("digest != _kept").drop("_kept")


def as_parts(conflicts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("message_number")
    return conflicts.select(
        "sequence", "rm", F.lit(CONFLICT).alias("part"), number.alias("lower"), number.alias("upper"),
        F.lit(None).cast("binary").alias("packed"),
    )  # fmt: skip


def as_unplaced(conflicts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return conflicts.select(
        F.lit(CONFLICT).alias("why"),
        F.lit("another body with this number came first").alias("problem"),
        "sequence",
        "rm",
        "message_number",
        "source",
        "position",
        "captured_at",
        F.col("body").cast("binary").alias("raw"),
    )


# --- standings -------------------------------------------------------------------------------------------------------


def standings(parts: DataFrame) -> DataFrame:
    """Return the gap report from all knowledge: ``PARTS`` into ``SEQUENCES``."""
    order = ("sequence", "rm", "part", "lower")
    return parts.repartition("sequence", "rm").sortWithinPartitions(*order).mapInArrow(_judge, SEQUENCES)


_REPORTED = 1_024


def _judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(SEQUENCES)
    rows: list[tuple[Any, ...]] = []
    for row in _judged(batches):
        rows.append(row)
        if len(rows) >= _REPORTED:
            yield record_batch(rows, schema)
            rows = []
    yield record_batch(rows, schema)


def _judged(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    key: tuple[str, str] | None = None
    one: Reassembly | None = None
    conflicts: list[int] = []
    for batch in batches:
        for sequence, rm, part, lower, upper, packed in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if one is None or key != (sequence, rm):
                if one is not None and key is not None:
                    yield reported(*key, one, conflicts)
                key, one, conflicts = (sequence, rm), Reassembly(sequence, RM_OF_NAME[rm]), []
            if part == "had":
                one.had(lower, upper)
            elif part == CONFLICT:
                conflicts.append(lower)
            elif part == "heard":
                one.heard.update(Heard.from_state(msgspec.msgpack.decode(packed)))
            else:
                one = Reassembly.from_state(sequence, RM_OF_NAME[rm], msgspec.msgpack.decode(packed))
    if one is not None and key is not None:
        yield reported(*key, one, conflicts)


def reported(sequence: str, rm: str, one: Reassembly, conflicts: list[int]) -> tuple[Any, ...]:
    standing, heard = one.standing(), one.heard
    return (
        sequence,
        rm,
        standing.state,
        standing.ended,
        standing.last_message_number,
        standing.lowest_last,
        standing.in_order_to,
        standing.ranges,
        standing.missing,
        standing.beyond_last,
        standing.acknowledged,
        standing.not_captured,
        standing.seen,
        standing.numbers,
        standing.seen - standing.numbers - len(conflicts) - standing.late,
        conflicts,
        standing.late,
        heard.created,
        sorted(heard.faults),
        heard.first_at,
        heard.last_at,
    )
