"""The column ``problems``: the problems of a row, each a text; an empty list without problems.

Each step that checks rows appends to it and drops no row. A later step separates the rows without problems. A null is
no problem, neither instead of the list nor in it: functions write ``when`` without ``otherwise``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import arrow_of, parts_of
from holdfast.pipeline.spark.workers import spare_collections
from holdfast.settings import check_arguments, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PROBLEMS = "problems"
"""The column's name."""
_LIST = "array<string>"

Reasons = list[str]
Work = Callable[["pa.Array"], tuple[Any, Sequence[Reasons]]]
"""Takes one column's values; returns those of the new column, in Arrow or Python, and the problems of each."""


def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the rows without problems, without the column ``problems``, and the rows with problems.

    Each row is in exactly one of the two. Nulls count as no problem.

    Args:
        rows: The result of ``parse_xml``, ``validate`` or ``to_xml``, or of a function that adds ``problems``.

    Raises:
        ConfigurationError: ``problems`` is not a list of texts.
    """
    check_arguments(split, locals())
    from pyspark.sql import functions as F

    told = with_problems(rows)
    wrong = F.size(PROBLEMS) > 0
    return told.where(~wrong).drop(PROBLEMS), told.where(wrong)


def has_problems(rows: DataFrame) -> bool:
    """Return whether rows have the column ``problems``; Spark ignores the case of its name."""
    return PROBLEMS in (name.lower() for name in rows.columns)


def with_problems(rows: DataFrame) -> DataFrame:
    """Return rows whose ``problems`` is a list of texts without nulls, empty for a row without problems.

    Raises:
        ConfigurationError: ``problems`` is not a list of texts.
    """
    return rows.withColumn(PROBLEMS, so_far(rows))


def so_far(rows: DataFrame) -> Column:
    """Return the problems that rows already have, as a list of texts without nulls.

    Raises:
        ConfigurationError: ``problems`` is not a list of texts.
    """
    from pyspark.sql import functions as F

    nothing = F.array().cast(_LIST)
    if not has_problems(rows):
        return nothing
    kind = next(field.dataType for field in rows.schema.fields if field.name.lower() == PROBLEMS)
    of = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if not isinstance(of, T.StringType | T.NullType) or isinstance(kind, T.StringType):
        raise ConfigurationError(
            f"the column {PROBLEMS} is {kind.simpleString()}, not {_LIST}",
            remedy="Make it a list of texts, empty or null for a row without problems, or give it another name",
        )
    return F.array_compact(F.coalesce(F.col(PROBLEMS).cast(_LIST), nothing))


def with_column(
    rows: DataFrame, column: str, into: str, kind: T.DataType, work: Callable[[], Work], *, keep: bool = True
) -> DataFrame:
    """Add a column that Python computes from another one, and its problems to ``problems``.

    Args:
        column: The column to read.
        into: The new column, which replaces one with the same name; "": none.
        work: Called once in each task; returns the function for each value.
        keep: Whether the column that is read stays.

    Raises:
        ConfigurationError: The rows have no such column.
    """
    check_column(rows, column)
    gone = {into.lower(), PROBLEMS, *([] if keep else [column.lower()])}
    kept = [field for field in rows.schema.fields if field.name.lower() not in gone]
    told = T.StructField(PROBLEMS, T.ArrayType(T.StringType()))
    made = [T.StructField(into, kind)] if into else []
    wanted = T.StructType([*kept, *made, told])
    return with_problems(rows).mapInArrow(_Worker([one.name for one in kept], column, into, kind, work), wanted)


def check_column(rows: DataFrame, column: str) -> None:
    """Raise ConfigurationError if the rows have no such column, or it is neither text nor a struct."""
    found = next((field for field in rows.schema.fields if field.name.lower() == column.lower()), None)
    if found is None:
        raise ConfigurationError(
            f"the rows have no column {column!r}",
            remedy=" ".join(
                filter(None, (suggestion(column, rows.columns), f"The rows have {', '.join(rows.columns)}"))
            ),
        )
    if not isinstance(found.dataType, T.StringType | T.StructType):
        raise ConfigurationError(f"{column} is {found.dataType.simpleString()}, not text", remedy="Cast it to STRING")


class _Worker:
    """The work of a task on its batches."""

    def __init__(self, kept: list[str], column: str, into: str, kind: T.DataType, work: Callable[[], Work]) -> None:
        self._kept, self._column, self._into, self._kind, self._work = kept, column, into, kind, work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        spare_collections()
        work = self._work()
        kind = to_arrow_type(self._kind, timezone="UTC")
        for batch in (part for whole in batches for part in self._parts(whole)):
            names = [name.lower() for name in batch.schema.names]
            values, found = work(batch.column(names.index(self._column.lower())))
            problems = [
                [*(before or ()), *now]
                for before, now in zip(batch.column(names.index(PROBLEMS)).to_pylist(), found, strict=True)
            ]
            arrays = [batch.column(names.index(name.lower())) for name in self._kept]
            if self._into:
                is_arrow = isinstance(values, pa.Array)
                tell = partial(_add, problems)
                arrays.append(values.cast(kind) if is_arrow else arrow_of(values, kind, self._into, tell))
            arrays.append(pa.array(problems, pa.list_(pa.string())))
            made = [self._into] if self._into else []
            yield pa.RecordBatch.from_arrays(arrays, names=[*self._kept, *made, PROBLEMS])

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield parts of a batch to process together, because texts may be long."""
        import pyarrow as pa

        name = next(name for name in batch.schema.names if name.lower() == self._column.lower())
        return parts_of(batch, name) if pa.types.is_string(batch.column(name).type) else iter([batch])


def _add(problems: list[Reasons], row: int, problem: str) -> None:
    problems[row].append(problem)
