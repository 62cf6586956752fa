from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies import BodyReader


def read(body: str | bytes, *fields: StructField) -> tuple[dict[str, Any], str | None]:
    return BodyReader(StructType(list(fields))).read(body.encode() if isinstance(body, str) else body)


def value(kind: DataType, text: str) -> Any:
    values, problem = read(f"<o><v>{text}</v></o>", StructField("v", kind))
    return problem if problem is not None else values["v"]


ID = StructField("id", IntegerType())


@pytest.mark.parametrize(
    "body",
    [
        "<order><id>7</id></order>",
        "<o:order xmlns:o='urn:o'><o:id>7</o:id></o:order>",
        "<order xmlns='urn:o'><id xmlns=''> 7 </id></order>",
        "<order id='7'/>",
        "<order><!-- no --><id>7<!-- 8 --></id><?pi 9?></order>",
        "<order><id><![CDATA[7]]></id></order>",
    ],
)
def test_a_field_is_the_child_or_the_attribute_of_its_name_whatever_the_prefix(body: str):
    assert read(body, ID) == ({"id": 7}, None)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (StringType(), " a &lt; b ", " a < b "),
        (StringType(), "", ""),
        (ByteType(), "-128", -128),
        (LongType(), "+9223372036854775807", 2**63 - 1),
        (DoubleType(), "1.5E3", 1500.0),
        (DoubleType(), "-INF", float("-inf")),
        (DecimalType(5, 2), "123.450", Decimal("123.45")),
        (DecimalType(5, 2), "-0", Decimal(0)),
        (BooleanType(), " 1 ", True),
        (BooleanType(), "false", False),
        (DateType(), "2013-01-31Z", date(2013, 1, 31)),
        (TimestampType(), "2013-01-31T05:06:07.25+02:00", datetime(2013, 1, 31, 3, 6, 7, 250_000, tzinfo=UTC)),
        (TimestampType(), "2013-01-31T05:06:07", datetime(2013, 1, 31, 5, 6, 7, tzinfo=UTC)),
        (TimestampNTZType(), "2013-01-31T05:06:07", datetime(2013, 1, 31, 5, 6, 7)),
    ],
)
def test_texts_are_read_as_xml_schema_writes_them(kind: DataType, text: str, expected: Any):
    assert value(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (IntegerType(), "seven", "v: 'seven' is not an integer"),
        (IntegerType(), "", "v: '' is not an integer"),
        (IntegerType(), "1_000", "v: '1_000' is not an integer"),
        (IntegerType(), "2147483648", "v: '2147483648' is not an integer of 32 bits"),
        (DoubleType(), "infinity", "v: 'infinity' is not a number"),
        (DecimalType(5, 2), "1234.5", "v: '1234.5' is not a decimal(5,2)"),
        (DecimalType(5, 2), "1.234", "v: '1.234' is not a decimal(5,2)"),
        (BooleanType(), "yes", "v: 'yes' is not a boolean"),
        (DateType(), "2013-02-30", "v: '2013-02-30' is not a date"),
        (TimestampType(), "2013-01-31", "v: '2013-01-31' is not a dateTime"),
        (TimestampType(), "2013-01-31T25:00:00", "v: '2013-01-31T25:00:00' is not a dateTime"),
        (IntegerType(), "<x>1</x>", "v has child elements"),
    ],
)
def test_a_text_that_does_not_fit_is_told_not_swallowed(kind: DataType, text: str, problem: str):
    assert value(kind, text) == problem


def test_the_values_that_can_be_read_are_kept_and_every_problem_is_told():
    fields = [StructField(name, IntegerType()) for name in ("a", "b", "c")]
    assert read("<o><a>1</a><b>x</b><c>2</c><c>3</c></o>", *fields) == (
        {"a": 1, "b": None, "c": None},
        "b: 'x' is not an integer; c occurs 2 times",
    )


def test_what_is_absent_or_nil_is_null_and_a_problem_only_where_the_schema_demands_it():
    nil = "<o xmlns:i='http://www.w3.org/2001/XMLSchema-instance'><id i:nil='true'/></o>"
    assert read("<o/>", ID) == ({"id": None}, None)
    assert read(nil, ID) == ({"id": None}, None)
    assert read("<o/>", StructField("id", IntegerType(), nullable=False)) == ({"id": None}, "id is missing")


def test_two_elements_of_one_name_are_told_apart_by_the_fields_namespace():
    body = "<o xmlns:a='urn:a' xmlns:b='urn:b'><a:id>1</a:id><b:id>2</b:id></o>"
    assert read(body, ID) == ({"id": None}, "id occurs 2 times")
    assert read(body, StructField("id", IntegerType(), metadata={"namespace": "urn:b"})) == ({"id": 2}, None)
    assert read("<o id='3'/>", StructField("id", IntegerType(), metadata={"namespace": "urn:b"})) == (
        {"id": None},
        None,
    )


def test_nested_and_repeated_elements_become_structs_and_arrays():
    item = StructType([ID, StructField("price", DoubleType())])
    fields = [StructField("item", ArrayType(item)), StructField("to", StructType([StructField("city", StringType())]))]
    body = "<o><item id='1'><price>2.5</price></item><to><city>Oslo</city></to><item><id>x</id></item></o>"
    assert read(body, *fields) == (
        {"item": [{"id": 1, "price": 2.5}, {"id": None, "price": None}], "to": {"city": "Oslo"}},
        "item[1].id: 'x' is not an integer",
    )
    assert read("<o/>", *fields) == ({"item": None, "to": None}, None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "not well-formed: "),
        ("no xml", "not well-formed: "),
        ("<a/><b/>", "not well-formed: "),
        (b"<o>\xff</o>", "not well-formed: "),
        ("<!DOCTYPE o [<!ENTITY e 'x'>]><o><id>&e;</id></o>", "has a DOCTYPE"),
    ],
)
def test_a_body_that_cannot_be_read_has_no_values_and_a_reason(body: str | bytes, problem: str):
    values, told = read(body, ID)
    assert values == {"id": None}
    assert told is not None
    assert told.startswith(problem)


@pytest.mark.parametrize("kind", [BinaryType(), MapType(StringType(), StringType()), ArrayType(ArrayType(LongType()))])
def test_a_type_no_text_can_be_read_as_is_refused_with_the_fields_path(kind: DataType):
    with pytest.raises(ConfigurationError, match=r"the field a\.b has type"):
        BodyReader(StructType([StructField("a", StructType([StructField("b", kind)]))]))
