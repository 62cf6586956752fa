"""Dead letters as columns, from the server's descriptions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.reader.columns import ATTRIBUTES, CONTENT, MESSAGE, Typed, arrow_struct, chosen

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: list[Typed] = [
    ("letter", "long", False),
    ("failed_at", "timestamp", True),
    ("attempts", "integer", True),
    ("error", "string", False),
    ("reason", "string", False),
    ("code", "string", True),
    ("queue", "string", True),
    ("partition", "integer", True),
    ("offset", "long", True),
    ("forwarder", "string", True),
    ("retry", "boolean", False),
    *MESSAGE,
    *CONTENT,
]


def batch_of(letters: list[dict[str, Any]], names: Collection[str]) -> pa.RecordBatch:
    """Return dead letters as rows with these columns."""
    import pyarrow as pa

    schema = arrow_struct(chosen(COLUMNS, names))
    return pa.RecordBatch.from_arrays([_array(letters, field) for field in schema], schema=schema)


def micros(seconds: float) -> int:
    """Convert seconds to the column's microseconds."""
    return round(seconds * 1e6)


def _array(letters: list[dict[str, Any]], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    values = [letter.get(ATTRIBUTES.get(field.name, field.name)) for letter in letters]
    if pa.types.is_timestamp(field.type):
        values = [None if value is None else micros(value) for value in values]
    return pa.array(values, field.type)
