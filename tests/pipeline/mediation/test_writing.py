"""Values to XML and back: nothing is lost on the way, whatever the values and wherever they stand.

Covers pipeline/mediation/transformations/writing.py.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from pyspark.sql import types as T

from examples import examples
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.mediation.transformations.writing import XMLWriter, shaped

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs",)).filter(
        lambda one: one in "\t\n" or ("\x20" <= one not in ("\ufffe", "\uffff") and not "\x7f" <= one <= "\x9f")
    )
)
VALUES: list[tuple[T.DataType, st.SearchStrategy[Any]]] = [
    (T.StringType(), TEXTS),
    (T.BooleanType(), st.booleans()),
    (T.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (T.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (T.DoubleType(), st.floats(allow_nan=False)),
    (T.FloatType(), st.floats(width=32, allow_nan=False)),
    (T.DecimalType(10, 3), st.decimals(-9_999_999, 9_999_999, places=3)),
    (T.DateType(), st.dates()),
    (T.TimestampType(), st.datetimes(timezones=st.just(UTC))),
    (T.TimestampNTZType(), st.datetimes()),
]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
NAMESPACES = st.sampled_from(["", "urn:a", "urn:b", "http://www.w3.org/XML/1998/namespace"])


@st.composite
def kinds(draw: st.DrawFn, depth: int) -> tuple[T.DataType, st.SearchStrategy[Any]]:
    if depth and draw(st.integers(0, 2)) == 0:
        return draw(structs(depth - 1))
    return draw(st.sampled_from(VALUES))


@st.composite
def structs(draw: st.DrawFn, depth: int) -> tuple[T.StructType, st.SearchStrategy[Any]]:
    """A struct as an XSD could make one, and values of it."""
    fields: list[T.StructField] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    is_text = draw(st.booleans())
    for place, name in enumerate(names):
        if place and draw(st.booleans()):
            kind, value = draw(st.sampled_from(VALUES))
            fields.append(T.StructField(name, kind, metadata={"xml": "attribute", "namespace": draw(NAMESPACES)}))
            values[name] = st.none() | value
        elif is_text:
            if any(field.metadata["xml"] == "text" for field in fields):
                continue
            kind, value = draw(st.sampled_from(VALUES[1:]))  # an empty STRING and none are one in XML
            fields.append(T.StructField(name, kind, metadata={"xml": "text"}))
            values[name] = value
        else:
            kind, value = draw(kinds(depth))
            metadata = {"xml": "element", "namespace": draw(NAMESPACES), "nil": True}
            many = draw(st.booleans())
            fields.append(T.StructField(name, T.ArrayType(kind) if many else kind, metadata=metadata))
            values[name] = (
                (st.none() | st.lists(st.none() | value, min_size=1, max_size=3)) if many else st.none() | value
            )
    return T.StructType(fields), st.fixed_dictionaries(values)


@given(st.data())
@settings(max_examples=examples(100))
def test_what_is_written_is_read_as_it_was(data: st.DataObject) -> None:
    fields, values = data.draw(structs(2))
    value = data.draw(values)
    writer = XMLWriter(fields, data.draw(NAMESPACES), "o", "urn:a", data.draw(st.sampled_from(["", "p"])))
    text = etree.tostring(writer.element(value), encoding="unicode")
    read, problem = BodyReader(fields).read(text.encode())
    assert problem is None, text
    assert read == value, text


@given(st.text())
def test_a_text_that_xml_cannot_hold_is_refused_and_no_other_changed(text: str) -> None:
    writer = XMLWriter(T.StructType([T.StructField("t", T.StringType())]), "", "o", "")
    try:
        root = writer.element({"t": text})
    except ValueError:
        return
    again = etree.fromstring(etree.tostring(root))
    assert (again[0].text or "") == text


def written(kind: T.DataType, value: Any, **metadata: Any) -> str:
    fields = T.StructType([T.StructField("v", kind, metadata=metadata)])
    return str(etree.tostring(XMLWriter(fields, "urn:x", "o", "urn:x").element({"v": value}), encoding="unicode"))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (T.FloatType(), 0.10000000149011612, "0.1"),
        (T.DoubleType(), float("inf"), "INF"),
        (T.DoubleType(), float("nan"), "NaN"),
        (T.DecimalType(5, 2), Decimal("1.50"), "1.50"),
        (T.DecimalType(8, 2), Decimal("42"), "42.00"),
        (T.DecimalType(38, 18), Decimal("42.100000000000000000"), "42.1"),
        (T.DecimalType(38, 0), Decimal(10) ** 30, "1" + 30 * "0"),
        (T.DateType(), date(13, 1, 2), "0013-01-02"),
        (T.TimestampType(), datetime(2026, 1, 2, 3, 4, 5, 60_000, tzinfo=UTC), "2026-01-02T03:04:05.06Z"),
        (T.TimestampNTZType(), datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (T.BinaryType(), b"\x00\xff", "AP8="),
        (T.BooleanType(), True, "true"),
    ],
)
def test_values_have_the_texts_of_xml_schema(kind: T.DataType, value: Any, text: str) -> None:
    assert written(kind, value) == f'<o xmlns="urn:x"><v>{text}</v></o>'


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "2026-07-02T05:04:05+02:00"),
        ("-03:30", "2026-07-01T23:34:05-03:30"),
        ("UTC", "2026-07-02T03:04:05Z"),
        ("", "2026-07-02T03:04:05Z"),
    ],
)
def test_a_timestamp_is_written_in_the_zone_that_is_asked_for(zone: str, text: str) -> None:
    at, late = datetime(2026, 7, 2, 3, 4, 5, tzinfo=UTC), datetime(1800, 1, 1, tzinfo=UTC)
    writer = XMLWriter(T.StructType([T.StructField("v", T.TimestampType())]), "", "o", "", zone=zone)
    assert writer.element({"v": at})[0].text == text
    if zone == "Europe/Berlin":
        with pytest.raises(ValueError, match="which XML cannot express"):
            writer.element({"v": late})
    # Each end of the calendar has no year of four digits on one side of Greenwich.
    for end, beyond in ((datetime.max, "Europe/Berlin"), (datetime.min, "-03:30")):
        if zone == beyond:
            with pytest.raises(ValueError, match="not in the years 0001 to 9999"):
                writer.element({"v": end.replace(tzinfo=UTC)})
    with pytest.raises(ConfigurationError, match="the time zone 'Berlin' does not exist"):
        XMLWriter(T.StructType([]), "", "o", "", zone="Berlin")


def test_null_is_no_element_or_nil_where_the_schema_wants_one() -> None:
    assert written(T.StringType(), None) == '<o xmlns="urn:x"/>'
    assert 'xsi:nil="true"' in written(T.StringType(), None, nil=True)


def test_an_element_of_no_namespace_does_not_get_that_of_its_parent() -> None:
    assert written(T.StringType(), "t", namespace="") == '<m:o xmlns:m="urn:x"><v>t</v></m:o>'


def field(name: str, kind: T.DataType, **metadata: Any) -> T.StructField:
    return T.StructField(name, kind, metadata=metadata)


SHAPE = T.StructType(
    [
        field("b", T.StringType(), xml="element", namespace="urn:x"),
        field("a", T.StructType([field("value", T.StringType(), xml="text")]), xml="element", namespace="urn:x"),
        field("id", T.IntegerType(), xml="attribute", namespace=""),
    ]
)


def test_fields_take_the_order_and_the_place_that_an_xsd_has_for_them() -> None:
    given_fields = T.StructType([field("ID", T.LongType()), field("B", T.StringType())])
    made = shaped(given_fields, SHAPE, "o")
    assert [(one.name, one.metadata["xml"], one.metadata["name"]) for one in made.fields] == [
        ("B", "element", "b"),
        ("ID", "attribute", "id"),
    ]
    text = etree.tostring(XMLWriter(made, "urn:x", "o", "urn:x").element({"ID": 1, "B": "t"}), encoding="unicode")
    assert text == '<o xmlns="urn:x" id="1"><b>t</b></o>'


@pytest.mark.parametrize(
    ("fields", "what", "remedy"),
    [
        ([field("idd", T.LongType())], "the XSD has no 'idd' in o", "Did you mean 'id'?"),
        ([field("a", T.StringType())], "o.a is a single value, not a struct in the XSD", "struct<value:string>"),
        (
            [field("b", T.ArrayType(T.StringType()))],
            "o.b is an array, but occurs only once",
            "Select one of its values",
        ),
        ([field("b", SHAPE)], "o.b is a struct, not a single text", "string"),
    ],
)
def test_a_field_that_an_xsd_has_no_place_for_is_refused(fields: list[T.StructField], what: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=what.replace(".", r"\.")) as caught:
        shaped(T.StructType(fields), SHAPE, "o")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (field("m", T.MapType(T.StringType(), T.StringType())), "has no text form in XML"),
        (field("a b", T.StringType()), "'a b' is not a valid name of an element"),
        (field("v", T.ArrayType(T.StringType()), xml="attribute"), "is not a child"),
    ],
)
def test_what_has_no_place_in_xml_is_refused_before_any_row(one: T.StructField, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        XMLWriter(T.StructType([one]), "", "o", "")
