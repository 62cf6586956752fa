"""The columns of a landed row: the message's own, those parsed from its body, and the reason if parsing failed.

Executors run this code for a landing. Arrow checks every value before Spark sees it. The module does not depend on the
network or on the destination of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.leniencies import ALSO, MAX_ELEMENTS
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.bodies.templates import AlikeReader, nullable
from holdfast.pipeline.spark.workers import spare_collections

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ENVELOPE = StructType(
    [
        StructField("queue", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("sequence", StringType()),
        StructField("message_number", LongType()),
        StructField("message_id", StringType()),
        StructField("action", StringType()),
        StructField("received_at", TimestampType()),
        StructField("delivered_at", TimestampType()),
        StructField("body", StringType()),
    ]
)
"""The columns of every landed row, as the source returns them."""

CORRUPT = "corrupt_record"
"""The last column: the problem of the body; null without one."""

PART_BYTES = 8 << 20
"""Maximum bytes of bodies that are parsed together, except for a single larger body."""


PREFIX = 'Give the parsed columns a prefix, such as "body_", with option prefix'
"""Remedy for a parsed column with the name of another one."""


class BodyColumns:
    """For ``mapInArrow``: adds the parsed columns and ``corrupt_record`` to the envelope's.

    Args:
        fields: Fields of the body's element.
        prefix: Prefix of their names.
        lenient: Deviations to ignore instead of flagging them, from ``leniencies.LENIENCIES``.
        max_elements: A body with more elements is flagged and not parsed.
        also: Further columns of the source, from ALSO.
        element: The name of the body's element; a body with another one is flagged and not parsed. "": any.

    Raises:
        ConfigurationError: Two columns would have the same name, a type cannot be read from a text, or there is no such
            leniency or column.
    """

    def __init__(
        self,
        fields: StructType,
        prefix: str = "",
        lenient: Collection[str] = (),
        max_elements: int = MAX_ELEMENTS,
        also: Collection[str] = (),
        element: str = "",
    ) -> None:
        if element and not fields.fields:
            raise ConfigurationError(
                f"the bodies must be <{element}>, but no schema describes their fields", remedy="Give a schema as well"
            )
        if strange := sorted(set(also).difference(ALSO)):
            raise ConfigurationError(f"{strange[0]!r} is not a column for also", remedy=f"Use {', '.join(ALSO)}")
        further = [StructField(name, StringType()) for name in ALSO if name in also]
        self.envelope = StructType([*ENVELOPE.fields, *further])
        self._fields = fields
        self._lenient = frozenset(lenient)
        self._max_elements = max_elements
        self._element = element
        taken = {name.lower() for name in (*self.envelope.fieldNames(), CORRUPT, "batch")}
        seen: dict[str, str] = {}
        for name in fields.fieldNames():
            if (prefix + name).lower() in taken:
                raise ConfigurationError(f"two landed columns would have the name {prefix + name!r}", remedy=PREFIX)
            if other := seen.get(name.lower()):
                raise ConfigurationError(
                    f"the schema has the fields {other!r} and {name!r}, but Spark's columns are case-insensitive",
                    remedy="Rename one of them in a schema file in Spark's JSON, with its name in the XML as metadata: "
                    f'{{"name": "{name}"}}',
                )
            seen[name.lower()] = name
        BodyReader(fields, self._lenient)  # raises here instead of in a task
        parsed = [StructField(prefix + field.name, nullable(field.dataType)) for field in fields.fields]
        self.schema = StructType([*self.envelope.fields, *parsed, StructField(CORRUPT, StringType())])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        spare_collections()
        bodies = Bodies(self._fields, self._lenient, self._max_elements, self._element)
        for batch in batches:
            for part in parts_of(batch, "body"):
                arrays, problems = bodies.read(part.column("body"))
                own = [part.column(i) for i in range(part.num_columns)]
                yield pa.RecordBatch.from_arrays([*own, *arrays, problems], names=self.schema.fieldNames())


class Bodies:
    """Parses the columns of bodies by a schema, most of them together, in a task."""

    def __init__(self, fields: StructType, lenient: Collection[str], max_elements: int, element: str = "") -> None:
        self._fields = fields
        self._reader = BodyReader(fields, lenient, max_elements, element)
        self._alike = AlikeReader(self._reader, fields) if fields.fields else None

    def read(self, bodies: pa.StringArray) -> tuple[list[pa.Array], pa.StringArray]:
        """Return the columns by field, and the problem of each body; null without one.

        Args:
            bodies: Some megabytes at most, see ``parts_of``.
        """
        import numpy as np
        import pyarrow as pa

        problems = pa.nulls(len(bodies), pa.string())
        if self._alike is None:
            return [], problems
        arrays, read = self._together(self._alike, bodies)
        rest = np.flatnonzero(~read)
        if len(rest):
            left = bodies.take(rest).cast(pa.binary()).to_pylist()
            found, told = self._one_by_one(left, [array.type for array in arrays])
            order = np.arange(len(bodies))
            order[rest] = np.arange(len(bodies), len(bodies) + len(rest))
            arrays = [pa.concat_arrays(both).take(order) for both in zip(arrays, found, strict=True)]
            problems = pa.concat_arrays([problems, told]).take(order)
        return arrays, problems

    def _together(self, alike: AlikeReader, bodies: pa.Array) -> tuple[list[pa.Array], np.ndarray[Any, Any]]:
        import numpy as np

        try:
            return alike.read(bodies)
        except Exception:  # a bug, or too little memory for so many: one by one, it costs one row
            logging.getLogger(__name__).warning("bodies could not be read together", exc_info=True)
            return [column.nulls(len(bodies)) for column in alike.columns], np.zeros(len(bodies), bool)

    def _one_by_one(self, bodies: list[bytes], kinds: list[pa.DataType]) -> tuple[list[pa.Array], pa.Array]:
        import pyarrow as pa

        read = [self._reader.read(body) for body in bodies]
        problems = [problem for _, problem in read]

        def tell(row: int, problem: str) -> None:
            before = problems[row]
            problems[row] = f"{before}; {problem}" if before else problem

        arrays = [
            arrow_of([values[field.name] for values, _ in read], kind, field.name, tell)
            for field, kind in zip(self._fields.fields, kinds, strict=True)
        ]
        return arrays, pa.array(problems, pa.string())


def parts_of(batch: pa.RecordBatch, column: str) -> Iterator[pa.RecordBatch]:
    """Yield parts of the batch to parse at once, as parsing needs up to ten times their size in memory."""
    import numpy as np
    import pyarrow.compute as pc

    size = np.cumsum(pc.binary_length(batch.column(column)).fill_null(0).to_numpy())
    start = 0
    while start < max(1, batch.num_rows):
        before = size[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(size, before + PART_BYTES, "right")))
        yield batch.slice(start, end - start)
        start = end


def arrow_of(values: Sequence[Any], kind: pa.DataType, name: str, tell: Callable[[int, str], None]) -> pa.Array:
    """Return the values of a column in Arrow; a value that Arrow rejects becomes null, and is reported with its row."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except Exception:  # caused by one or more values, which are identified below
        taken = list(values)
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except Exception as error:
            taken[row] = None
            tell(row, f"{name}: Arrow rejects this {kind}: {str(error)[:200]}")
    return pa.array(taken, kind)
