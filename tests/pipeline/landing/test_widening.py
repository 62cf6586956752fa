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
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.widening import adds, as_written, fits, merged, widens

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


def inside(kind: DataType, depth: int) -> DataType:
    """A type that contains another one, in each of the ways that a column can."""
    ways = (
        lambda one: one,
        ArrayType,
        lambda one: MapType(StringType(), one),
        lambda one: StructType([StructField("s", one)]),
        lambda one: ArrayType(MapType(StringType(), StructType([StructField("s", ArrayType(one))]))),
    )
    return ways[depth](kind)


@pytest.mark.parametrize("depth", range(5))
def test_a_field_of_a_struct_may_come_and_go_at_any_depth_and_never_change(depth: int) -> None:
    a, b = StructField("a", IntegerType()), StructField("b", StringType())
    less, more, other = (inside(StructType(fields), depth) for fields in ([a], [b, a], [StructField("a", LongType())]))
    assert (fits(more, less), adds(more, less)) == (True, True)
    assert (fits(less, more), adds(less, more)) == (True, False)
    assert (fits(less, less), adds(less, less)) == (True, False)
    assert not fits(other, less)
    assert not fits(other, more)
    both = merged([StructType([StructField("o", kind)]) for kind in (less, more)])["o"].dataType
    assert fits(more, both)
    assert fits(both, more)
    assert as_written(less, both) == both
