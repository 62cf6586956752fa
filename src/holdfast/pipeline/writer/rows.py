"""Rows of a DataFrame in the server's format: ``application/vnd.holdfast.rows``.

Each row is its length as 4 bytes, big-endian, followed by a MessagePack array of the fields in FIELDS. The end is the
length 0xFFFFFFFF and the number of rows as 8 bytes. This module also checks the columns of a DataFrame when a write is
planned. It finds a value that cannot be sent when it writes the row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import types as spark_types

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.writer.options import WriteOptions
from holdfast.settings import suggestion

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = ("key", "queue", "to", "action", "headers", "body", "message_id", "relates_to", "reply_to")
BYTES = ("headers", "body")
"""Fields of bytes: a string column is sent as its UTF-8, unchecked."""

CONTENT_TYPE = "application/vnd.holdfast.rows"
PART_BYTES = 4 << 20
"""Bytes of a part, unless one row is larger: it stays in memory until the server has it."""
ROW_BYTES = 15 << 20
"""Maximum bytes of a row: a server's admin listener accepts no larger request."""

_KAFKAS = {
    "value": "rename it to body",
    "topic": "rename it to queue",
    "key": 'use .option("sequenceKey", "key")',
}
"""Columns of Spark's Kafka sink, and what to do with them."""

_LENGTH = struct.Struct(">I")
_END = struct.Struct(">IQ")

_TEXTS = (spark_types.StringType, spark_types.VarcharType, spark_types.CharType)
_KEYS = (
    *_TEXTS,
    spark_types.IntegralType,
    spark_types.DecimalType,
    spark_types.BooleanType,
    spark_types.DateType,
    spark_types.TimestampType,
    spark_types.TimestampNTZType,
)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The source of each field.

    Args:
        columns: Field -> name of its column; fields without a column are missing.
        defaults: Field -> value if there is no column, or for a null in it.
    """

    columns: dict[str, str]
    defaults: dict[str, str]


def plan_rows(schema: spark_types.StructType, options: WriteOptions) -> RowPlan:
    """Check the columns of a DataFrame; their names are case-insensitive, as in Spark.

    Raises:
        ConfigurationError: A column cannot be written, or is missing; the error names it.
    """
    names = schema.fieldNames()
    spelt = {name.lower(): name for name in names}
    if twice := sorted(name for name in spelt if sum(name == one.lower() for one in names) > 1):
        raise ConfigurationError(f"the DataFrame has two columns {twice[0]}", remedy="Keep one of them with select()")
    key = spelt.get(options.sequence_key.lower())
    if options.sequence_key and not key:
        raise ConfigurationError(
            f"the DataFrame has no column {options.sequence_key}, which option sequenceKey names",
            remedy=suggestion(options.sequence_key, names, f"Its columns are {', '.join(names)}"),
        )
    if missing := [name for name in options.refused_columns if name not in names]:
        raise ConfigurationError(
            f"the DataFrame has no column {missing[0]}, which option refusedColumns names",
            remedy=suggestion(missing[0], names, f"Its columns are {', '.join(names)}"),
        )
    columns = {"key": key} if key else {}
    for column in schema.fields:
        if (field := column.name.lower()) in FIELDS[1:]:
            _check_type(column)
            columns[field] = column.name
        elif column.name != key and column.name not in options.refused_columns:
            remedy = _KAFKAS.get(field, "remove it with select()")
            raise ConfigurationError(
                f"the wsrm sink does not use column {column.name}",
                remedy=f"{remedy}; the sink writes {', '.join(FIELDS[1:])}, and the column of option sequenceKey",
            )
    if key and not isinstance(schema[key].dataType, _KEYS):
        raise ConfigurationError(
            f"column {key} has the type {type_name(schema[key].dataType)}, which option sequenceKey cannot use as text",
            remedy="Cast it to a string",
        )
    defaults = {
        name: text for name, text in (("queue", options.queue), ("to", options.to), ("action", options.action)) if text
    }
    for wanted in (("body",), ("action",), ("queue", "to")):
        if not any(name in columns or name in defaults for name in wanted):
            option = f', or add .option("{wanted[0]}", ...) for all rows' if wanted != ("body",) else ""
            raise ConfigurationError(
                f"the DataFrame has no column {' or '.join(wanted)}", remedy=f"Add one with select(){option}"
            )
    return RowPlan(columns, defaults)


def type_name(kind: spark_types.DataType) -> str:
    """Return a type as Spark's own errors write it: INT, ARRAY<BIGINT>."""
    name: str = kind.simpleString().upper()
    return name


def _check_type(column: spark_types.StructField) -> None:
    field = column.name.lower()
    wanted = (*_TEXTS, spark_types.BinaryType) if field in BYTES else _TEXTS
    if not isinstance(column.dataType, wanted):
        right = "STRING or BINARY" if field in BYTES else "STRING"
        raise ConfigurationError(
            f"column {column.name} has the type {type_name(column.dataType)}, but must be {right}",
            remedy="Cast it" if field != "body" else "Convert it to XML with to_xml(), or cast it",
        )


@dataclass(slots=True)
class Refused:
    """A row that cannot be sent.

    Args:
        batch: The Arrow batch it is in.
        index: Its position in the batch.
        position: Its position among the rows of its task.
        column: The column at fault, "" for none.
        remedy: The server's remedy, "" for none.
    """

    batch: pa.RecordBatch
    index: int
    position: int
    reason: str
    column: str = ""
    remedy: str = ""


class Part:
    """Encoded rows and their origin, kept until the server has accepted them."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._slices: list[tuple[pa.RecordBatch, int, Sequence[int]]] = []
        self.rows = 0

    def begin(self, batch: pa.RecordBatch, position: int) -> list[int]:
        """Return the list of the positions in a batch of rows added from now on; the caller appends to it."""
        places: list[int] = []
        self._slices.append((batch, position, places))
        return places

    def has_room(self, row: bytes) -> bool:
        """Return whether to add a row to this part rather than to another."""
        return not self.rows or len(self._data) + len(row) < PART_BYTES

    def add(self, row: bytes) -> None:
        self._data += _LENGTH.pack(len(row))
        self._data += row
        self.rows += 1

    def encoded(self) -> bytes:
        return bytes(self._data) + _END.pack(0xFFFFFFFF, self.rows)

    def refused(self, row: int, reason: str, column: str = "", remedy: str = "") -> Refused:
        """Return the row with this position in the part, from 0.

        Raises:
            IndexError: The part has no such row.
        """
        left = row
        for batch, position, places in self._slices:
            if 0 <= left < len(places):
                return Refused(batch, places[left], position + places[left], reason, column, remedy)
            left -= len(places)
        raise IndexError(row)


class RowEncoder:
    """Divides the Arrow batches of one task into parts."""

    def __init__(self, plan: RowPlan) -> None:
        self._plan = plan
        self._encoder = msgspec.msgpack.Encoder()
        self._position = 0

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Part | Refused]:
        """Yield all rows in order, in parts of about PART_BYTES, and between them the rows that cannot be sent."""
        part = Part()
        encode = self._encoder.encode
        for batch in batches:
            columns, wrong = self._columns(batch)
            places = part.begin(batch, self._position)
            for index, values in enumerate(zip(*columns, strict=True)):
                row = encode(values) if index not in wrong else b""
                if len(row) > ROW_BYTES:
                    wrong[index] = f"it has {len(row):,} bytes, but at most {ROW_BYTES:,} can be sent", ""
                if index in wrong:
                    yield Refused(batch, index, self._position + index, *wrong[index])
                    continue
                if not part.has_room(row):
                    yield part
                    part = Part()
                    places = part.begin(batch, self._position)
                places.append(index)
                part.add(row)
            self._position += batch.num_rows
        if part.rows:
            yield part

    def _columns(self, batch: pa.RecordBatch) -> tuple[list[list[Any]], dict[int, tuple[str, str]]]:
        """Return the fields' values, and position -> (reason, column) of the rows that cannot be sent."""
        columns, defaults = self._plan.columns, self._plan.defaults
        wrong: dict[int, tuple[str, str]] = {}
        values = {
            name: _values(batch.column(columns[name]), name, columns[name], wrong)
            if name in columns
            else [defaults.get(name)] * batch.num_rows
            for name in FIELDS
            if name not in ("queue", "to")
        }
        if "action" in columns and "action" in defaults:
            values["action"] = [defaults["action"] if one is None else one for one in values["action"]]
        for name in ("body", "action"):
            for index in _nulls(values[name]):
                wrong.setdefault(index, (f"{name} is null", name))
        values["queue"], values["to"] = self._ways(batch, wrong)
        return [values[name] for name in FIELDS], wrong

    def _ways(self, batch: pa.RecordBatch, wrong: dict[int, tuple[str, str]]) -> tuple[list[Any], list[Any]]:
        """Return queues and addresses: a row has one of the two; a row with none gets the option's."""
        columns, defaults = self._plan.columns, self._plan.defaults
        default = defaults.get("queue"), defaults.get("to")
        if "queue" not in columns and "to" not in columns:
            return [default[0]] * batch.num_rows, [default[1]] * batch.num_rows
        queues, addresses = (
            _values(batch.column(columns[name]), name, columns[name], wrong)
            if name in columns
            else list[Any]([None] * batch.num_rows)
            for name in ("queue", "to")
        )
        for index, (queue, to) in enumerate(zip(queues, addresses, strict=True)):
            if queue is None and to is None and default != (None, None):
                queues[index], addresses[index] = default
            elif (queue is None) == (to is None):
                has = "neither queue nor to" if to is None else "a queue and an address, and must have one of them"
                wrong.setdefault(index, (f"it has {has}", "to" if "to" in columns else "queue"))
        return queues, addresses


def _values(column: pa.Array, field: str, name: str, wrong: dict[int, tuple[str, str]]) -> list[Any]:
    """Return a column's values for sending, and mark values that are not UTF-8 as wrong."""
    import pyarrow as pa

    if field in BYTES:
        return column.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:  # Spark does not check text that is cast from binary
        values: list[Any] = []
        for index, one in enumerate(column.cast(pa.binary()).to_pylist()):
            try:
                values.append(one if one is None else one.decode())
            except UnicodeDecodeError:
                values.append("")
                wrong[index] = f"{name} is not UTF-8", name
        return values


def _nulls(values: list[Any]) -> Iterator[int]:
    return (index for index, value in enumerate(values) if value is None) if None in values else iter(())
