"""DDL columns as an Arrow schema, for tasks, which have no session to parse types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "STRING": pa.string(),
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "DOUBLE": pa.float64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "ARRAY<STRUCT<lower: BIGINT, upper: BIGINT>>": pa.list_(
            pa.struct([("lower", pa.int64()), ("upper", pa.int64())])
        ),
        "ARRAY<STRING>": pa.list_(pa.string()),
        "ARRAY<BIGINT>": pa.list_(pa.int64()),
        "ARRAY<FLOAT>": pa.list_(pa.float32()),
    }


def arrow_schema(ddl: str) -> pa.Schema:
    """Parse columns into an Arrow schema.

    Raises:
        KeyError: An unsupported type.
    """
    import pyarrow as pa

    types = _types()
    columns, depth, start = [], 0, 0
    for at, letter in enumerate(ddl + ","):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            name, _, kind = ddl[start:at].strip().partition(" ")
            columns.append((name.strip("`"), types[kind]))
            start = at + 1
    return pa.schema(columns)


def record_batch(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch; a row's values are in the order of the columns."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
