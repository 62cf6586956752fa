"""Statistics of each file for a Delta table's log, which let a reader skip files by a condition.

Numbers, days, times and short texts have minimum and maximum values there; other types only their number of nulls. A
bound may be too wide, but never too narrow. Delta keeps milliseconds, so the maximum time is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

if TYPE_CHECKING:
    from pyspark.sql import Column

MOST_COLUMNS = 32
"""Number of columns with statistics, from the first; as many as Delta's own writers describe."""
MOST_TEXT = 100
"""Maximum characters of a text as a bound: a longer one would have to be cut, and the maximum then increased."""
_EPOCH = datetime(1970, 1, 1)
_BOUNDED = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DateType, T.TimestampType, T.StringType)


def described(schema: T.StructType) -> list[T.StructField]:
    """Return the columns with statistics, in order."""
    return [one for one in schema.fields[:MOST_COLUMNS] if isinstance(one.dataType, _BOUNDED)]


def asked(columns: list[T.StructField]) -> list[Column]:
    """Return the expressions to compute over each file's rows; ``told`` converts the results for the log."""
    from pyspark.sql import functions as F

    made = [F.count(F.lit(1)).alias("rows")]
    for number, field in enumerate(columns):
        column = F.col(f"`{field.name}`")
        made.append(F.count(column).alias(f"count_{number}"))
        value = _as_number(column, field.dataType)
        least, greatest = F.min(value), F.max(value)
        if isinstance(field.dataType, T.StringType):  # a single long text makes the file's bounds unknown
            is_short = F.max(F.length(column)) <= MOST_TEXT
            least, greatest = F.when(is_short, least), F.when(is_short, greatest)
        made += [least.alias(f"min_{number}"), greatest.alias(f"max_{number}")]
    return made


def told(columns: list[T.StructField], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's statistics in the form of the log."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, field in enumerate(columns):
        nulls[field.name] = row["rows"] - row[f"count_{number}"]
        for found, name, is_greatest in ((least, "min", False), (greatest, "max", True)):
            value = row[f"{name}_{number}"]
            bound = _bound(value, field.dataType, is_greatest) if value is not None else None
            if bound is not None:
                found[field.name] = bound
    return {"numRecords": row["rows"], "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _as_number(column: Column, kind: T.DataType) -> Column:
    """Days and times are compared as numbers: Spark has years that Python has not."""
    from pyspark.sql import functions as F

    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    return F.unix_date(column) if isinstance(kind, T.DateType) else column


def _bound(value: Any, kind: T.DataType, is_greatest: bool) -> Any:
    """Return a bound in the form of the log; None, which means unknown, for a time outside the years 1 to 9999."""
    try:
        if isinstance(kind, T.DateType):
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        if isinstance(kind, T.TimestampType):
            # A time within a millisecond must stay below the maximum.
            at = _EPOCH + timedelta(milliseconds=-(-value // 1000) if is_greatest else value // 1000)
            return f"{at.isoformat(timespec='milliseconds')}Z"
    except OverflowError:
        return None
    return value
