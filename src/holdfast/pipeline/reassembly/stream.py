"""Reassembly of a growing capture: messages are released as soon as they are in order, gaps reported after a timeout.

The same code decides as for a finite capture. A call of Spark's state costs as much as decoding several messages. So
messages of a Sequence travel and are stored in packs: one row for each task, one state for each Sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from holdfast.core.rm_destination.destination import Verdict
from holdfast.core.versions import RM_OF_NAME
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.layout import Layout
from holdfast.pipeline.landing.tables import table_of
from holdfast.pipeline.reassembly.rows import (
    BATCH_BYTES,
    BODY,
    CAPTURED_AT,
    DECODED,
    LATE,
    MESSAGES,
    NUMBER,
    POSITION,
    SOURCE,
    UNPLACED,
    Message,
    Reader,
    Unplaced,
    contents,
    decoded_rows,
    first_of,
)
from holdfast.pipeline.reassembly.sequence import Heard, Reassembly
from holdfast.pipeline.reassembly.tables import (
    KEY,
    Reassembled,
    as_capture,
    as_parts,
    as_unplaced,
    of_files,
    refuse_unless,
    standings,
)
from holdfast.pipeline.spark.checkpoints import commit_state, is_there, origin, refuse_foreign_data, refuse_nested
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch
from holdfast.pipeline.spark.workers import spare_collections
from holdfast.settings import NonEmpty, SecondsOrZero, check_arguments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import ExpiredTimerInfo, StreamingQuery, TimerValues

PACKED = "key STRING, kind STRING, packed BINARY"
"""Several rows of one Sequence combined: messages, their duplicates ("duplicates"), what other messages say about it,
and what is known of it\n("state"). The key is the version and the Identifier; rows without a Sequence have a version
that does not exist."""

TIMEOUT = 300.0
"""Seconds without anything about a Sequence after which it is settled: sources retransmit for some minutes."""

MAX_FILES = 10_000
"""Maximum files of one micro-batch; with one envelope each, such a batch takes some seconds."""

_BY = "kind"
"""The column that divides rows into directories, so that a reader of messages need not read the states."""

_FILES = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"

_SHARDS = 16
"""Number of keys for envelopes outside any Sequence, so that they do not all go to one task."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_number = itemgetter(NUMBER)


def _packs(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield the messages in packs of some megabytes, because rows and a task's memory are limited."""
    pack: list[Message] = []
    size = 0
    for message in messages:
        pack.append(message)
        size += len(message[BODY]) + 256
        if size >= BATCH_BYTES:
            yield _encode(pack)
            pack, size = [], 0
    if pack:
        yield _encode(pack)


def pack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert the columns of ``CAPTURE`` into those of ``PACKED``, for ``mapInArrow``."""
    spare_collections()
    schema = arrow_schema(PACKED)
    reader = Reader()
    for batch in batches:
        for content in contents(batch):
            reader.read(*content)
            if reader.size >= 4 * BATCH_BYTES:
                yield record_batch(_packed(reader), schema)
    yield record_batch(_packed(reader), schema)


def _key(sequence: str, rm: str) -> str:
    return f"{rm} {sequence}"


def _of(key: str) -> tuple[str, str]:
    rm, _, sequence = key.partition(" ")
    return sequence, rm


def _packed(reader: Reader) -> list[tuple[str, str, bytes]]:
    found: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for message in reader.messages:
        found[message[0], message[1]].append(message)
    rows = [(_key(*of), "messages", pack) for of, messages in found.items() for pack in _packs(messages)]
    rows += [(_key(*of), "heard", _encode(heard.to_state())) for of, heard in reader.heard.items()]
    unplaced = enumerate(reader.unplaced)
    rows += [(_key(str(number % _SHARDS), "none"), "unplaced", _encode([row])) for number, row in unplaced]
    reader.taken()
    reader.heard = {}
    return rows


class SequenceReassembly(StatefulProcessor):
    """The function that Spark calls with the rows of one Sequence, and at its timeout.

    The state of a Sequence is small and is kept forever, so that a repeat is recognised even after months. Messages
    beyond a gap are in a separate list, which is read when the gap closes, and otherwise only appended to.

    Args:
        timeout: Seconds without anything about a Sequence after which it is settled.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = max(1, round(timeout * 1_000))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the states."""
        spare_collections()
        self._handle = handle
        self._known = handle.getValueState("sequence", "packed BINARY, held BIGINT, active BIGINT, timer BIGINT")
        self._held = handle.getListState("held", "packed BINARY")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Process new messages, and yield those that are in order."""
        if _of(key[0])[1] not in RM_OF_NAME:
            yield from rows
            return
        one, held, _, timer = self._read(key[0])
        came: list[Message] = []
        for row in rows:
            values = _decode(row["packed"])
            if row["kind"] == "heard":
                one.heard.update(Heard.from_state(values))
            else:
                came += values
        came.sort(key=lambda message: (message[NUMBER], first_of(message)))
        there: list[Message] = []
        late: list[Unplaced] = []
        for message in came:
            verdict = one.receive(message[NUMBER])
            if isinstance(verdict, Verdict):
                there.append((*message, verdict is Verdict.DUPLICATE))
            else:
                late.append(_late(message))
        released = one.release()
        upper = one.next_in_order - 1
        if released is not None and held:
            there = [*self._take_held(), *there]
            self._held.clear()
            held = 0
        waiting = [] if one.is_settled else [message for message in there if message[NUMBER] > upper]
        if waiting:
            there = [message for message in there if message[NUMBER] <= upper]
            self._held.appendList([(pack,) for pack in _packs(waiting)])
            held += len(waiting)
        yield from _given(key[0], there, late)
        now = timerValues.getCurrentProcessingTimeInMs()
        if not timer and not one.is_settled:
            timer = now + self._timeout
            self._handle.registerTimer(timer)
        yield self._write(key[0], one, held, now, timer)

    def handleExpiredTimer(
        self, key: tuple[str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Settle a Sequence at its timeout."""
        one, held, active, _ = self._read(key[0])
        due = active + self._timeout
        if due > timerValues.getCurrentProcessingTimeInMs():
            self._handle.registerTimer(due)
            self._write(key[0], one, held, active, due)
            return
        one.settle()
        yield from _given(key[0], self._take_held() if held else [], [])
        if held:
            self._held.clear()
        yield self._write(key[0], one, 0, active, 0)

    def _read(self, key: str) -> tuple[Reassembly, int, int, int]:
        sequence, rm = _of(key)
        known = self._known.get()
        if known is None:
            return Reassembly(sequence, RM_OF_NAME[rm]), 0, 0, 0
        packed, held, active, timer = known
        return Reassembly.from_state(sequence, RM_OF_NAME[rm], _decode(packed)), held, active, timer

    def _write(self, key: str, one: Reassembly, held: int, active: int, timer: int) -> Row:
        packed = _encode(one.to_state())
        self._known.update((packed, held, active, timer))
        return Row(key=key, kind="state", packed=packed)

    def _take_held(self) -> list[Message]:
        return [message for (pack,) in self._held.get() for message in _decode(pack)]


def _given(key: str, there: list[Message], late: list[Unplaced]) -> Iterator[Row]:
    there.sort(key=_number)  # stable, so messages of one number stay in order of arrival, and the first is not a repeat
    for kind, is_duplicate in (("messages", False), ("duplicates", True)):
        for pack in _packs(message[:-1] for message in there if message[-1] is is_duplicate):
            yield Row(key=key, kind=kind, packed=pack)
    if late:
        yield Row(key=key, kind="unplaced", packed=_encode(late))


def _late(message: Message) -> Unplaced:
    sequence, rm, number = message[:3]
    told = "its Sequence was settled by the timeout, without this number"
    return (LATE, told, sequence, rm, number, message[SOURCE], message[POSITION], message[CAPTURED_AT], message[BODY])


def unpack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert the columns of ``PACKED`` into those of ``DECODED``, for ``mapInArrow``.

    The kinds are "message", "duplicate", "state", or the reason why an envelope is unplaced.
    """
    spare_collections()
    schema = arrow_schema(DECODED)
    for batch in batches:
        for key, kind, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if kind == "state":
                rows: list[tuple[Any, ...]] = [("state", *_of(key), *(None,) * (len(schema) - 4), packed)]
            elif kind == "unplaced":
                rows = decoded_rows("", [], [tuple(row) for row in _decode(packed)])
            else:
                rows = decoded_rows(kind.removesuffix("s"), _decode(packed), [])
            yield record_batch(rows, schema)


def capture_stream(
    spark: SparkSession, path: NonEmpty, *, column: str | None = None, max_files: int = MAX_FILES
) -> DataFrame:
    """Return the files of a directory, existing and future, as a stream of a capture; the oldest first.

    A file is read once, in its state at that time: write it elsewhere and move it there.

    Args:
        spark: A session.
        path: A directory, or a pattern of directories.
        column: The files are Parquet, and this column contains the envelopes; None: files as for
            :func:`~holdfast.pipeline.reassembly.tables.capture_of`.
        max_files: Maximum files of one micro-batch.
    """
    check_arguments(capture_stream, locals())
    stream = spark.readStream.option("maxFilesPerTrigger", max_files).option("recursiveFileLookup", "true")
    if column is not None:
        return as_capture(stream.schema(spark.read.parquet(path).schema).parquet(path), column)
    return of_files(stream.format("binaryFile").schema(_FILES).load(path))


def reassembled(capture: DataFrame, *, timeout: SecondsOrZero = TIMEOUT) -> DataFrame:
    """Turn a stream of captured envelopes into a stream of their messages, for your own sink.

    It contains each message of a Sequence once, by ascending number, as soon as all lower numbers are there; after
    ``timeout``, also the messages beyond a gap. ``kind`` says what a row is: "message" (an empty LastMessage has
    ``marker``), "duplicate", "state" (``packed``: what is known of the Sequence now), or why something is unplaced
    (``packed``: its bytes).

    Args:
        capture: A streaming DataFrame with the columns of ``reassembly_rows.CAPTURE``: see
            :func:`~holdfast.pipeline.reassembly.tables.as_capture`.
        timeout: Seconds of silence after which a Sequence is settled: numbers that are missing then stay missing, and
            are refused if they arrive later ("late").
    """
    check_arguments(reassembled, locals())
    packed = as_capture(capture).mapInArrow(pack_batches, PACKED)
    processor = SequenceReassembly(timeout)
    kept = packed.groupBy("key").transformWithState(processor, PACKED, "append", "processingTime")
    return kept.mapInArrow(unpack_batches, DECODED)


def reassemble_stream(
    capture: DataFrame,
    out: NonEmpty,
    *,
    checkpoint: NonEmpty,
    timeout: SecondsOrZero = TIMEOUT,
    interval: SecondsOrZero = 0.0,
) -> StreamingQuery:
    """Start a query that reassembles a growing capture below ``out``; ``read_streamed`` reads the results.

    The query adds each micro-batch once to a Delta table; ``compact`` merges its files. In a Parquet table that an
    earlier version wrote, each batch is a directory. The query runs until it is stopped: without new files, Spark runs
    empty batches, which detect timeouts. See :func:`is_idle` for ending it once everything is processed; AvailableNow
    would never end.

    Args:
        capture, timeout: As in :func:`reassembled`.
        out: Directory, in any file system that Spark supports.
        checkpoint: Directory of the query's progress and state. It belongs to ``out``: keep, move and delete them
            together.
        interval: Seconds from the start of one batch to the next; 0: as soon as one is done.

    Raises:
        ConfigurationError: ``out`` and the checkpoint do not belong together, or ``out`` is not writable.
    """
    check_arguments(reassemble_stream, locals())
    spark = capture.sparkSession
    refuse_nested(spark, out, checkpoint)
    refuse_unless(spark, out, streamed=True)
    table = table_of(spark, out)
    refuse_foreign_data(spark, table, out, checkpoint, only=True)
    layout = Layout(StructType.fromDDL(DECODED))
    if table.kind == "parquet":
        layout = Layout(StructType([field for field in layout.schema if field.name != _BY]), _BY)
    table.prepare(layout)

    def write(batch: DataFrame, batch_id: int) -> None:
        told = origin(batch.sparkSession, checkpoint, batch_id)
        if is_there(table, batch_id, told, out):
            commit_state(batch)
        else:
            table.write(batch.sortWithinPartitions(_BY, *KEY), batch_id, layout, told, if_any=True)

    writer = reassembled(capture, timeout=timeout).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
    return writer.queryName("reassemble").foreachBatch(write).start()


def is_idle(query: StreamingQuery) -> bool:
    """Return whether the newest batch found nothing new: all files that existed at its start are processed."""
    check_arguments(is_idle, locals())
    newest = query.lastProgress
    return newest is not None and not newest["numInputRows"]


def read_streamed(spark: SparkSession, out: NonEmpty) -> Reassembled:
    """Return the results of :func:`reassemble_stream` so far: the tables of ``reassemble``.

    ``messages`` excludes messages that wait beyond a gap.

    Raises:
        ConfigurationError: There is no result yet.
    """
    check_arguments(read_streamed, locals())
    from pyspark.sql import functions as F

    table = table_of(spark, out)
    if table.newest() is None:
        raise ConfigurationError(f"{out} contains no reassembled messages yet", remedy="Wait, or use another directory")
    rows = table.read()
    messages = rows.where("kind = 'message' AND NOT marker").select(*arrow_schema(MESSAGES).names)
    states = rows.where("kind = 'state'").select("sequence", "rm", "packed", "batch")
    states = states.groupBy("sequence", "rm").agg(F.max_by("packed", "batch").alias("packed"))
    nothing = [F.lit(None).cast("bigint").alias(name) for name in ("lower", "upper")]
    states = states.select("sequence", "rm", F.lit("state").alias("part"), *nothing, "packed")
    conflicts = _conflicting(rows.where("kind = 'duplicate'"), messages)
    unplaced = rows.where("kind NOT IN ('message', 'duplicate', 'state')")
    unplaced = unplaced.withColumnsRenamed({"kind": "why", "packed": "raw"}).select(*arrow_schema(UNPLACED).names)
    return Reassembled(messages, standings(states.union(as_parts(conflicts))), unplaced.union(as_unplaced(conflicts)))


def _conflicting(duplicates: DataFrame, messages: DataFrame) -> DataFrame:
    """Return repeats with another body than the first message, which is stored or was an empty LastMessage."""
    from pyspark.sql import functions as F

    first = messages.select(*KEY, F.col("body").alias("_first"))
    joined = duplicates.join(first, [*KEY], "left")
    differs = "(_first IS NULL AND NOT marker) OR (_first IS NOT NULL AND (marker OR body != _first))"
    return joined.where(differs).drop("_first")
