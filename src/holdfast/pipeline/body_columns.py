"""The columns of a landed row: the message's own, those read from its body, and why one could not be read.

What an executor does for a landing; every value is held against Arrow before Spark sees it. Knows nothing of the
network, nor of where rows go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies import BodyReader
from holdfast.pipeline.reading import MAX_ELEMENTS

if TYPE_CHECKING:
    import pyarrow as pa

ENVELOPE = StructType(
    [
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
"""The columns that every landed row has, as the source gives them."""

CORRUPT = "corrupt_record"
"""The last column: what is wrong with the body, null where all is well."""


class BodyColumns:
    """For ``mapInArrow``: adds the parsed columns and ``corrupt_record`` to the envelope's.

    Args:
        fields: Fields of the body's element.
        prefix: Put before their names.
        lenient: What is passed over instead of flagged, of ``reading.LENIENCIES``.
        max_elements: A body with more elements is not read, but flagged.

    Raises:
        ConfigurationError: Two columns would have the same name, a type cannot be read from a text, or there is no
            such leniency.
    """

    def __init__(
        self,
        fields: StructType,
        prefix: str = "",
        lenient: Collection[str] = (),
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        self._fields = fields
        self._lenient = frozenset(lenient)
        self._max_elements = max_elements
        taken = {name.lower() for name in (*ENVELOPE.fieldNames(), CORRUPT, "batch")}
        for name in (prefix + field.name for field in fields.fields):
            if name.lower() in taken:
                raise ConfigurationError(
                    f"two landed columns would be called {name!r}",
                    remedy="give the parsed ones a prefix: prefix='body_'",
                )
            taken.add(name.lower())
        BodyReader(fields, self._lenient)  # refused here, not in a task
        parsed = [StructField(prefix + field.name, _nullable(field.dataType)) for field in fields.fields]
        self.schema = StructType([*ENVELOPE.fields, *parsed, StructField(CORRUPT, StringType())])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: the batches with their new columns."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        reader = BodyReader(self._fields, self._lenient, self._max_elements)
        kinds = [to_arrow_type(_nullable(field.dataType), timezone="UTC") for field in self._fields.fields]
        for batch in batches:
            bodies = batch.column(batch.schema.get_field_index("body")).cast(pa.binary()).to_pylist()
            read = [reader.read(body) for body in bodies] if kinds else [({}, None)] * len(bodies)
            problems = [problem for _, problem in read]
            arrays = [batch.column(i) for i in range(batch.num_columns)]
            for field, kind in zip(self._fields.fields, kinds, strict=True):
                arrays.append(_array([values[field.name] for values, _ in read], kind, field.name, problems))
            arrays.append(pa.array(problems, pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=self.schema.fieldNames())


def _array(values: list[Any], kind: pa.DataType, name: str, problems: list[str | None]) -> pa.Array:
    """The values as Arrow holds them; one that it does not take is null, and a problem of its row."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except Exception:  # of one value or more; which ones is found out below
        taken = list(values)
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except Exception as error:
            taken[row] = None
            told = f"{name}: Arrow takes no such {kind}: {str(error)[:200]}"
            problems[row] = f"{problems[row]}; {told}" if problems[row] else told
    return pa.array(taken, kind)


def _nullable(kind: DataType) -> DataType:
    """The type with null allowed everywhere: a corrupt row has nulls where the schema promises none."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    return kind
