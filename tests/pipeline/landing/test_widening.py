from __future__ import annotations

import itertools

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.widening import as_written, merged, widens

WIDER: dict[str, tuple[DataType, list[DataType]]] = {
    "tinyint": (
        ByteType(),
        [
            ShortType(),
            IntegerType(),
            LongType(),
            DoubleType(),
            StringType(),
            DecimalType(5, 2),
            DecimalType(6, 3),
            DecimalType(20, 1),
        ],
    ),
    "smallint": (ShortType(), [IntegerType(), LongType(), DoubleType(), StringType(), DecimalType(20, 1)]),
    "int": (IntegerType(), [LongType(), DoubleType(), StringType(), DecimalType(20, 1)]),
    "bigint": (LongType(), [StringType(), DecimalType(20, 1)]),
    "decimal(5,2)": (DecimalType(5, 2), [DecimalType(6, 3), StringType()]),
    "decimal(6,3)": (DecimalType(6, 3), [StringType()]),
    "decimal(20,1)": (DecimalType(20, 1), [StringType()]),
    "float": (FloatType(), [DoubleType()]),
    "double": (DoubleType(), []),
    "boolean": (BooleanType(), [StringType()]),
    "date": (DateType(), [StringType()]),
    "timestamp": (TimestampType(), []),
    "timestamp_ntz": (TimestampNTZType(), []),
    "string": (StringType(), []),
}
"""Each type, and all those that hold each of its values."""

KINDS = [kind for kind, _ in WIDER.values()]


@pytest.mark.parametrize(
    ("old", "new"), list(itertools.product(KINDS, KINDS)), ids=lambda kind: kind.simpleString() if kind else ""
)
def test_a_type_is_widened_to_one_that_holds_all_of_its_values_and_to_no_other(old: DataType, new: DataType):
    assert widens(old, new) is (old == new or new in WIDER[old.simpleString()][1])


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_the_newest_schema_comes_first_then_what_only_older_ones_have():
    old = struct(a=IntegerType(), b=StringType(), c=struct(x=IntegerType(), y=DateType()))
    new = struct(c=struct(z=StringType(), x=LongType()), a=StringType(), d=BooleanType())
    whole = struct(
        c=struct(z=StringType(), x=LongType(), y=DateType()), a=StringType(), d=BooleanType(), b=StringType()
    )
    assert merged([new, old]) == whole
    assert merged([new]) == new
    assert as_written(old, whole) == struct(
        c=struct(z=StringType(), x=IntegerType(), y=DateType()), a=IntegerType(), d=BooleanType(), b=StringType()
    )
    many = merged([struct(a=ArrayType(struct(x=LongType()))), struct(a=ArrayType(struct(x=IntegerType())))])
    assert many == struct(a=ArrayType(struct(x=LongType())))


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        (struct(a=IntegerType()), struct(a=LongType()), "^a would become int, but is bigint in the landed rows"),
        (struct(a=struct(b=DateType())), struct(a=struct(b=StringType())), r"^a\.b would become date, but is string"),
        (struct(a=ArrayType(ByteType())), struct(a=ArrayType(LongType())), "^a would become tinyint, but is bigint"),
        (struct(a=ArrayType(ByteType())), struct(a=ByteType()), "^a would become array<tinyint>, but is tinyint"),
        (struct(a=ByteType()), struct(A=ByteType()), "^a would become tinyint, but is called A"),
    ],
)
def test_a_type_that_cannot_hold_landed_values_is_refused_with_a_remedy(new: StructType, old: StructType, why: str):
    with pytest.raises(ConfigurationError, match=why) as caught:
        merged([new, old])
    assert "holdfast reland" in caught.value.remedy
