"""The columns of the ``wsrm`` source, and record batches built from records.

``body`` is a STRING, because records contain self-contained XML in UTF-8, and ``from_xml`` accepts nothing else. A
column that every record always has is NOT NULL. Arrow's schema must equal Spark's exactly (order, types, nullability),
so both come from one table. A row may have only some of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.client.blocks import Block, joined
from holdfast.client.errors import PipelineError
from holdfast.core.records import Record
from holdfast.exceptions import StoreFormatError
from holdfast.store.records import LARGE_FIELDS, decode_record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ROWS = 8_192
BATCH_BYTES = 4 << 20

Typed = tuple[str, str, bool]
"""Name, type (string, integer, long, timestamp, boolean), and whether it may be null."""

MESSAGE: list[Typed] = [
    ("sequence", "string", False),
    ("message_number", "long", False),
    ("message_id", "string", True),
    ("action", "string", False),
    ("to", "string", True),
    ("reply_to", "string", True),
    ("relates_to", "string", True),
    ("soap_version", "string", False),
    ("received_at", "timestamp", False),
]
CONTENT: list[Typed] = [("headers", "string", False), ("body", "string", False)]
"""The content of a message, in every table that contains messages."""
ATTRIBUTES = {"soap_version": "soap"}
"""Column -> the attribute of a record, and the server's key in a message's description, if they differ."""

COLUMNS: list[Typed] = [
    ("queue", "string", False),
    ("partition", "integer", False),
    ("offset", "long", False),
    *MESSAGE,
    ("delivered_at", "timestamp", False),
    *CONTENT,
]
POSITION = ("queue", "partition", "offset")
"""The columns of a row that need no record."""


def chosen(table: Iterable[Typed], names: Collection[str]) -> list[Typed]:
    return [column for column in table if column[0] in names]


def spark_struct(columns: Iterable[Typed]) -> StructType:
    from pyspark.sql.types import (
        BooleanType,
        DataType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "integer": IntegerType(),
        "long": LongType(),
        "timestamp": TimestampType(),
        "boolean": BooleanType(),
    }
    return StructType([StructField(name, types[kind], nullable) for name, kind, nullable in columns])


def arrow_struct(columns: Iterable[Typed]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "boolean": pa.bool_(),
    }
    return pa.schema([pa.field(name, types[kind], nullable) for name, kind, nullable in columns])


class BatchBuilder:
    """Builds record batches from one partition's records: many at once, or one by one if a record is unusual.

    Args:
        queue, partition: The origin of the records.
        names: The columns, from COLUMNS.

    Attributes:
        unused: Fields that the server may omit.
    """

    def __init__(self, queue: str, partition: int, names: Collection[str]) -> None:
        self._queue = queue
        self._partition = partition
        self._schema = arrow_struct(chosen(COLUMNS, names))
        self._attributes = [ATTRIBUTES.get(name, name) for name in self._schema.names if name not in POSITION]
        self._fields = set(self._attributes)
        if "delivered_at" in self._fields:
            self._fields = self._fields - {"delivered_at"} | {"received_at", "released_at"}
        # Omitting small fields costs the server more than sending them.
        self.unused = sorted(LARGE_FIELDS - self._fields) if "body" not in self._fields else []

    def positions(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows with only POSITION columns, one row for each offset from ``start`` up to ``end``."""
        import pyarrow as pa

        for first in range(start, end, BATCH_ROWS):
            arrays = self._position(first, min(BATCH_ROWS, end - first))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield batches of about 8,192 rows or 4 MB, whichever is reached first.

        Raises:
            PipelineError: A record cannot be decoded; the error names its position.
        """
        pending: list[Block] = []
        rows = size = 0
        for block in blocks:
            pending.append(block)
            rows += len(block)
            size += len(block.content)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._build(joined(pending))
                pending, rows, size = [], 0, 0
        if pending:
            yield self._build(joined(pending))

    def _build(self, block: Block) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from holdfast.pipeline.reader.block_decoder import columns_of

        lengths = np.frombuffer(block.lengths, np.uint32).astype(np.int64)
        fields = columns_of(block.content, block.begin, lengths, self._fields)
        if fields is None:
            arrays = self._one_by_one(list(block))
        else:
            if "delivered_at" in self._attributes:
                received, released = fields["received_at"], fields["released_at"]
                fields["delivered_at"] = np.where(np.isnan(released), received, released)
            arrays = [_array(fields[attribute], field.type) for attribute, field in self._wanted()]
        return pa.RecordBatch.from_arrays([*self._position(block.first, len(block)), *arrays], schema=self._schema)

    def _position(self, first: int, rows: int) -> list[pa.Array]:
        import numpy as np
        import pyarrow as pa

        made: dict[str, Callable[[], pa.Array]] = {
            "queue": lambda: pa.repeat(pa.scalar(self._queue), rows),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), rows),
            "offset": lambda: pa.array(np.arange(first, first + rows)),
        }
        return [made[name]() for name in self._schema.names if name in made]

    def _wanted(self) -> Iterator[tuple[str, pa.Field]]:
        """Yield the attribute and the type of each column that comes from the record itself."""
        return zip(self._attributes, [one for one in self._schema if one.name not in POSITION], strict=True)

    def _one_by_one(self, encoded: list[tuple[int, bytes]]) -> list[pa.Array]:
        records = [self._decode(offset, data) for offset, data in encoded]
        arrays = []
        for attribute, field in self._wanted():
            column = [getattr(record, attribute) for record in records]
            try:
                arrays.append(_array(column, field.type))
            except Exception:
                for (offset, _), value in zip(encoded, column, strict=True):
                    self._check(offset, field, value)
                raise
        return arrays

    def _check(self, offset: int, field: pa.Field, value: Any) -> None:
        """Find the record with the value that Arrow does not accept for a column."""
        try:
            _array([value], field.type)
        except Exception as error:
            raise self._unreadable(offset, f"{field.name}: {type(error).__name__}: {error}") from error

    def _decode(self, offset: int, data: bytes) -> Record:
        try:
            return decode_record(data)
        except StoreFormatError as error:
            raise self._unreadable(offset, error.message) from error

    def _unreadable(self, offset: int, why: str) -> PipelineError:
        return PipelineError(
            f"queue {self._queue!r} partition {self._partition} offset {offset} cannot be read: {why}",
            remedy="If a newer version wrote it, use that version; otherwise skip it with option startingOffsets",
        )


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column as Arrow stores it.

    Raises:
        OverflowError: A time is not valid, or beyond the range of a timestamp.
    """
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_timestamp(kind):
        return column if isinstance(column, pa.Array) else pa.array(column, kind)
    microseconds = np.rint(np.asarray(column, float) * 1e6)
    if not (np.abs(microseconds) < 2.0**63).all():  # astype would silently produce another time
        raise OverflowError("seconds beyond the range of a timestamp")
    return pa.array(microseconds.astype(np.int64), kind)
