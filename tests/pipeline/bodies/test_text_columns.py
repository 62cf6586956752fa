"""The careful way of ``simple_types`` is the model: what a column converter takes has its value, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
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
    TimestampNTZType,
    TimestampType,
)

from holdfast.pipeline.bodies.leniencies import LENIENCIES
from holdfast.pipeline.bodies.simple_types import Misfit, converter
from holdfast.pipeline.bodies.text_columns import column_converter

KINDS = [
    StringType(),
    ByteType(),
    ShortType(),
    IntegerType(),
    LongType(),
    DecimalType(5, 2),
    DecimalType(2, 2),
    DecimalType(38, 18),
    DecimalType(38, 0),
    FloatType(),
    DoubleType(),
    BooleanType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
]

days = st.builds(
    "{:04}-{:02}-{:02}".format,
    st.sampled_from([0, 1, 2, 999, 1582, 1900, 2000, 2012, 2013, 2999, 3000, 9999, 12013]),
    st.integers(0, 13),
    st.integers(0, 32),
)
fractions = st.integers(0, 12).flatmap(lambda digits: st.from_regex(rf"\A(\.[0-9]{{{digits}}}0*)?\Z"))
times = st.builds("T{:02}:{:02}:{:02}{}".format, st.integers(0, 25), st.integers(0, 60), st.integers(0, 61), fractions)
zones = st.sampled_from(["", "", "Z", "+00:00", "-05:00", "+13:59", "+14:00", "-14:00", "+14:01", "+5:00", "z", "ZZ"])
numbers = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        [f"{sign}{2**bits + more}" for sign in ("", "-") for bits in (7, 15, 31, 63) for more in (-1, 0, 1)]
    ),
    st.from_regex(r"\A[+-]?[0-9]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?\Z"),
    st.floats().map(repr),
)
texts = st.one_of(
    st.builds("{}{}{}".format, days, times, zones),
    st.builds("{}{}".format, days, zones),
    numbers,
    st.sampled_from(["", " ", "true", "false", "1", "0", "TRUE", "INF", "-INF", "NaN", "0x1", "1_0", " 1", "1\n", "١"]),
    st.text(max_size=8),
)


def compared(kind: DataType, lenient: Iterable[str], given: list[str | None]) -> list[bool]:
    """Which texts are taken, after a look at their values."""
    arrow = to_arrow_type(kind, timezone="UTC")
    careful = converter("v", kind, frozenset(lenient))
    values, taken = column_converter(kind, arrow, frozenset(lenient))(pa.array(given, pa.string()))
    values.validate(full=True)
    assert values.type == arrow
    assert len(values) == len(taken) == len(given)
    for text, value, is_taken in zip(given, values, taken.to_pylist(), strict=True):
        if is_taken:  # a Misfit, here, fails the test
            expected = None if text is None else careful(text)
            assert repr(value) == repr(pa.array([expected], arrow)[0]), text  # -0.0 is no 0.0
    return taken.to_pylist()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.simpleString())
@given(given=st.lists(texts | st.none(), max_size=20), lenient=st.sets(st.sampled_from(sorted(LENIENCIES))))
def test_what_is_taken_has_the_value_that_the_careful_way_gives(
    kind: DataType, given: list[str | None], lenient: set[str]
):
    compared(kind, lenient, given)


PLAIN = {
    StringType(): ["", " a ", "é"],
    ByteType(): ["127", "-128", "007"],
    LongType(): ["-8999999999999999999", "0"],
    DecimalType(5, 2): ["999.99", "-1", "0.5"],
    DoubleType(): ["1.5", "-0", "0.1"],
    BooleanType(): ["true", "0"],
    DateType(): ["2013-01-31", "0001-01-01"],
    TimestampType(): ["2013-01-31T05:06:07", "2013-01-31T05:06:07.25Z", "2013-12-31T23:59:59.1234560-13:59"],
    TimestampNTZType(): ["2013-01-31T05:06:07.5"],
}


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.simpleString())
def test_what_peers_write_is_taken(kind: DataType):
    assert all(compared(kind, [], [*PLAIN[kind], None]))


def test_what_leniencies_are_for_is_taken_with_them_only():
    for kind, text, leniency in [
        (IntegerType(), "", "empty"),
        (TimestampType(), "2013-01-31T05:06:07.1234567+02:00", "nanoseconds"),
        (DateType(), "2013-01-31+01:00", "zones"),
        (TimestampNTZType(), "2013-01-31T05:06:07Z", "zones"),
    ]:
        assert compared(kind, [leniency], [text]) == [True]
        assert compared(kind, [], [text]) == [False]
        with pytest.raises(Misfit):
            converter("v", kind)(text)
