"""Texts of simple types: against an XML Schema processor, exact arithmetic, and Arrow."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from elementpath.datatypes import DateTime
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type
from xmlschema import XMLSchema11

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.leniencies import LENIENCIES
from holdfast.pipeline.bodies.simple_types import Misfit, converter

NAMES: dict[T.DataType, str] = {
    T.ByteType(): "integer",
    T.ShortType(): "integer",
    T.IntegerType(): "integer",
    T.LongType(): "integer",
    T.DecimalType(10, 2): "decimal",
    T.DecimalType(38, 0): "decimal",
    T.DecimalType(38, 38): "decimal",
    T.DecimalType(1, 0): "decimal",
    T.FloatType(): "double",
    T.DoubleType(): "double",
    T.BooleanType(): "boolean",
    T.DateType(): "date",
    T.TimestampType(): "dateTime",
    T.TimestampNTZType(): "dateTime",
}
XSD = XMLSchema11(
    "<schema xmlns='http://www.w3.org/2001/XMLSchema'>"
    + "".join(f"<element name='{name}' type='{name}'/>" for name in sorted(set(NAMES.values())))
    + "</schema>"
).elements
LOSSES = ("bits", "decimal(", "too large", "too small", "outside the years", "finer than", "with a zone")
"""What a text may be refused for that XML Schema allows: the type cannot hold it."""

digits = st.text("0123456789", min_size=1, max_size=45)
numbers = st.builds("{}{}{}{}".format, st.sampled_from(["", "+", "-"]), digits, st.just("") | digits.map(".{}".format),
                    st.just("") | st.integers(-400, 400).map("e{}".format))  # fmt: skip
years = st.sampled_from(["2013", "0001", "9999", "0000", "-0001", "10000", "02013", "1582", "0004"])
days = st.builds("{}-{:02}-{:02}".format, years, st.integers(0, 13), st.integers(0, 32))
zones = st.sampled_from(
    ["", "", "Z", "+00:00", "-00:00", "+14:00", "-14:00", "+14:01", "+05:30", "-13:59", "z", "+1:00"]
)
seconds = st.sampled_from(["00", "59", "60", "00.0", "59.5", "00.123456", "00.1234567", "59.12345670000", "00."])
times = st.builds("{:02}:{}:{}".format, st.integers(0, 25), st.sampled_from(["00", "59", "60"]), seconds)
texts = st.one_of(
    numbers,
    days,
    st.builds("{}{}".format, days, zones),
    st.builds("{}T{}{}".format, days, st.just("24:00:00") | times, zones),
    st.sampled_from(
        ["INF", "+INF", "-INF", "NaN", "inf", "Infinity", "true", "false", "1", "0", "TRUE", "", ".", "١٢"]
    ),
    st.text(max_size=12),
)
padded = st.builds(
    "{}{}{}".format, st.sampled_from(["", " ", "\t\r\n"]), texts, st.sampled_from(["", "\n ", "\xa0", "\x85"])
)


def read(kind: T.DataType, text: str, *lenient: str) -> Any:
    """The value as it comes out of Arrow, or the reason why there is none."""
    try:
        value = converter("v", kind, frozenset(lenient))(text)
    except Misfit as misfit:
        return misfit
    return pa.array([value], to_arrow_type(kind, timezone="UTC")).to_pylist()[0]


@pytest.mark.parametrize(("kind", "name"), NAMES.items(), ids=lambda given: str(given))
@given(text=padded)
@example(text="1.0000000000000000000000000000000001")
@example(text="1e300")
@example(text="1e-300")
@example(text="340282356779733661637539395458142568447.999")
@example(text="0001-01-01T00:00:00+14:00")
@example(text="9999-12-31T24:00:00")
@example(text="99999999.99")
@example(text="-128")
def test_a_text_is_the_value_xml_schema_gives_it_or_refused_with_the_reason(kind: T.DataType, name: str, text: str):
    found = read(kind, text)
    stripped = text.strip(" \t\r\n")
    # xmlschema takes Unicode's spaces and digits for XML's
    valid = stripped.isascii() and stripped.strip() == stripped != "" and XSD[name].type.is_valid(stripped)
    if isinstance(found, Misfit):
        assert not valid or any(loss in str(found) for loss in LOSSES)
    else:
        assert valid
        assert_is(kind, found, stripped)


def assert_is(kind: T.DataType, found: Any, text: str) -> None:
    """By arithmetic of its own, exact where the type is."""
    if isinstance(kind, T.BooleanType):
        assert found == (text in ("true", "1"))
    elif isinstance(kind, T.DateType):
        assert found == date(*map(int, text.split("-")))
    elif isinstance(kind, T.TimestampType | T.TimestampNTZType):
        moment = DateTime.fromstring(text)
        zone = moment.tzinfo
        offset = zone.utcoffset(None) if zone else timedelta(0)
        midnight = datetime(
            moment.year, moment.month, moment.day, tzinfo=UTC if isinstance(kind, T.TimestampType) else None
        )
        clock = timedelta(
            hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond
        )
        assert found == midnight + clock - offset
    elif isinstance(kind, T.FloatType | T.DoubleType):
        assert_is_nearest(kind, found, text)
    else:
        assert Fraction(found) == Fraction(text)
        assert not isinstance(found, Decimal) or -found.as_tuple().exponent == kind.scale  # type: ignore[attr-defined]


def assert_is_nearest(kind: T.DataType, found: float, text: str) -> None:
    if text in ("INF", "+INF", "-INF", "NaN"):
        assert str(found) == text.lower().lstrip("+")
        return
    assert math.isfinite(found)
    exact = Fraction(text)
    assert bool(found) == bool(exact)
    bits, lowest = (24, -149) if isinstance(kind, T.FloatType) else (53, -1074)
    unit = Fraction(2) ** max(math.frexp(found)[1] - bits, lowest)
    assert abs(Fraction(found) - exact) <= unit * Fraction(500001, 1000000)  # a FLOAT is rounded twice


def test_strings_keep_every_character():
    assert read(T.StringType(), " a\tb\n ") == " a\tb\n "
    assert read(T.StringType(), "", "empty") == ""


@pytest.mark.parametrize("kind", NAMES, ids=str)
def test_an_empty_text_is_null_only_where_that_is_allowed(kind: T.DataType):
    for text in ("", " \n"):
        assert str(read(kind, text)) == "empty"
        assert read(kind, text, "empty") is None


@pytest.mark.parametrize(
    ("kind", "text", "leniency", "expected"),
    [
        (T.TimestampType(), "2013-01-31T05:06:07.1234567Z", "nanoseconds", datetime(2013, 1, 31, 5, 6, 7, 123456, UTC)),
        (T.TimestampNTZType(), "2013-01-31T05:06:07.1234567", "nanoseconds", datetime(2013, 1, 31, 5, 6, 7, 123456)),
        (T.TimestampNTZType(), "2013-01-31T05:06:07+02:00", "zones", datetime(2013, 1, 31, 5, 6, 7)),
        (T.DateType(), "2013-01-31+14:00", "zones", date(2013, 1, 31)),
    ],
)
def test_what_a_type_cannot_hold_is_left_out_only_where_that_is_allowed(
    kind: T.DataType, text: str, leniency: str, expected: Any
):
    assert isinstance(read(kind, text), Misfit)
    assert isinstance(read(kind, text, *LENIENCIES.keys() - {leniency}), Misfit)
    assert read(kind, text, leniency) == expected


@pytest.mark.every(5)
@pytest.mark.parametrize("text", ["9" * 10_000_000, "." + "9" * 10_000_000, "9" * 10_000_000 + "x"])
@pytest.mark.parametrize("kind", [T.LongType(), T.DecimalType(38, 10), T.DoubleType(), T.TimestampType()], ids=str)
def test_a_huge_text_is_refused_at_once(kind: T.DataType, text: str):
    found = read(kind, text)  # int() alone would take an hour
    assert isinstance(found, Misfit) or found == 1.0


@pytest.mark.parametrize("kind", [T.BinaryType(), T.TimeType(), T.DayTimeIntervalType(), T.VariantType()], ids=str)
def test_a_type_that_no_text_is_read_as_is_refused(kind: T.DataType):
    with pytest.raises(ConfigurationError, match="the field v has type") as caught:
        converter("v", kind)
    assert "try_cast" in caught.value.remedy
