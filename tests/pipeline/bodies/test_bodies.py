"""Bodies as columns: which element a field is, and how its text becomes a value.

Covers pipeline/bodies/reader.py.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from holdfast.pipeline.bodies.leniencies import MAX_ELEMENTS
from holdfast.pipeline.bodies.reader import MAX_PROBLEMS, BodyReader


def read(body: str | bytes, *fields: StructField) -> tuple[dict[str, Any], str | None]:
    return BodyReader(StructType(list(fields))).read(body.encode() if isinstance(body, str) else body)


def value(kind: DataType, text: str) -> Any:
    values, problem = read(f"<o><v>{text}</v></o>", StructField("v", kind))
    return problem if problem is not None else values["v"]


ID = StructField("id", IntegerType())
TEXT = StructField("v", StringType())
LAUGHS = "".join(f"<!ENTITY {name} '{f'&{before};' * 99}'>" for before, name in zip("abcdy", "bcdyz", strict=True))


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
        (DateType(), "2013-01-31", date(2013, 1, 31)),
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
        (IntegerType(), "", "v: '' is empty"),
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


def test_an_absent_or_nil_element_is_null_and_a_problem_only_if_required():
    nil = "<o xmlns:i='http://www.w3.org/2001/XMLSchema-instance'><id i:nil='true'/></o>"
    assert read("<o/>", ID) == ({"id": None}, None)
    assert read(nil, ID) == ({"id": None}, None)
    assert read("<o/>", StructField("id", IntegerType(), nullable=False)) == ({"id": None}, "id is missing")


def test_elements_with_one_name_are_distinguished_by_the_fields_namespace():
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
        ("", "the body is empty"),
        (" \n", "the body is empty"),
        ("no xml", "not well-formed: "),
        ("<a/><b/>", "not well-formed: "),
        (b"<o>\xff</o>", "not well-formed: "),
        ("<o>\x00</o>", "not well-formed: "),
        (b"<o>\xed\xa0\x80</o>", "not well-formed: "),
        ("<o>&#xD800;</o>", "not well-formed: "),
        ("<o>&e;</o>", "not well-formed: "),
        ("<o>" + "<a>" * 5000 + "</a>" * 5000 + "</o>", "not well-formed: Excessive depth"),
        ("<o>" + "<a/>" * (MAX_ELEMENTS + 1) + "</o>", "has more than 1000000 elements"),
        ("<!DOCTYPE o [<!ENTITY e 'x'>]><o><id>&e;</id></o>", "has a DOCTYPE"),
        ("\ufeff<?xml version='1.0'?>\n<!-- <a> -->\n<!DOCTYPE o SYSTEM 'file:///etc/passwd'><o/>", "has a DOCTYPE"),
        (f"<!DOCTYPE o [<!ENTITY a '{'a' * 99}'>{LAUGHS}]><o id='&z;'/>", "has a DOCTYPE"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_a_body_that_cannot_be_read_has_no_values_and_a_reason(body: str | bytes, problem: str):
    values, told = read(body, ID)
    assert values == {"id": None}
    assert told is not None
    assert told.startswith(problem)


def test_a_body_is_utf_8_whatever_it_says_of_itself():
    for encoding in ("ISO-8859-1", "UTF-16", "UTF-7", "nosuch"):
        assert read(f"<?xml version='1.0' encoding='{encoding}'?><o><v>é+AOk-</v></o>", TEXT) == ({"v": "é+AOk-"}, None)


def test_a_body_as_large_as_a_server_may_have_accepted_is_read():
    huge = "x" * 11_000_000  # above what libxml2 takes of itself
    assert read(f"<o><v>{huge}</v><id>1</id></o>", TEXT, ID) == ({"v": huge, "id": 1}, None)


def test_a_text_is_whole_whatever_stands_in_between():
    assert read("<o><v>a<!-- b -->c<?d e?>f<![CDATA[<g>]]>h&amp;</v></o>", TEXT) == ({"v": "acf<g>h&"}, None)


def test_problems_are_told_up_to_a_number():
    body = "<o>" + "<id>x</id>" * 10_000 + "</o>"
    values, told = read(body, StructField("id", ArrayType(IntegerType())))
    assert values == {"id": [None] * 10_000}
    assert told is not None
    assert told.startswith("id[0]: 'x' is not an integer; id[1]: ")
    assert told.endswith(f"id[{MAX_PROBLEMS - 1}]: 'x' is not an integer; and {10_000 - MAX_PROBLEMS} more")


def test_a_deviation_from_the_schema_is_reported():
    nested = StructField("to", StructType([StructField("city", StringType(), nullable=False)]))
    nil = "xmlns:i='http://www.w3.org/2001/XMLSchema-instance' i:nil='1'"
    for attribute in ("", " a='1'"):
        told = read(f"<o><to{attribute}>Oslo</to></o>", nested)[1]
        assert told == "to: 'Oslo' is text, not an element with children"
    assert read("<o><to/></o>", nested) == ({"to": {"city": None}}, "to.city is missing")
    assert read(f"<o><to><city {nil}/></to></o>", nested) == ({"to": {"city": None}}, "to.city is nil")
    assert read("<o xmlns:a='urn:a' xmlns:b='urn:b' a:id='1' b:id='2'/>", ID)[1] == "id occurs 2 times, as attributes"
    assert read("<o xmlns:a='urn:a' a:id='1' id='2'/>", ID) == ({"id": 2}, None)
    assert read("<o xmlns:a='urn:a' a:id='1'/>", ID) == ({"id": 1}, None)


def test_a_field_called_value_takes_the_text_of_an_element_with_attributes():
    money = StructField("total", StructType([StructField("value", IntegerType()), StructField("cur", StringType())]))
    assert read("<o><total cur='EUR'>5</total></o>", money) == ({"total": {"value": 5, "cur": "EUR"}}, None)
    assert read("<o><total cur='EUR'>abc</total></o>", money)[1] == "total.value: 'abc' is not an integer"
    assert read("<o><total cur='EUR'> </total></o>", money) == ({"total": {"value": None, "cur": "EUR"}}, None)
    child = "<o><total cur='EUR'><value>5</value></total></o>"
    assert read(child, money) == read("<o><total cur='EUR' value='5'/></o>", money)
    only = StructField("total", StructType([StructField("cur", StringType())]))
    assert read("<o><total cur='EUR'>5</total></o>", only) == ({"total": {"cur": "EUR"}}, None), "not asked for"


def test_leniencies_hold_for_every_field_and_their_names_are_checked():
    fields = StructType([ID, StructField("in", StructType([StructField("at", ArrayType(TimestampType()))]))])
    body = b"<o><id/><in><at>2013-01-31T05:06:07.1234567Z</at><at> </at></in></o>"
    values, told = BodyReader(fields, {"empty", "nanoseconds"}).read(body)
    assert (values["id"], values["in"]["at"][0].microsecond, values["in"]["at"][1], told) == (None, 123456, None, None)
    assert (
        BodyReader(fields, {"empty"}).read(body)[1]
        == "in.at[0]: '2013-01-31T05:06:07.1234567Z' is finer than a microsecond"
    )
    with pytest.raises(ConfigurationError, match="'nano' is not a leniency") as caught:
        BodyReader(fields, ["nano"])
    assert "empty, nanoseconds, zones" in caught.value.remedy


@given(body=st.binary(max_size=40) | st.binary(max_size=20).map(lambda inside: b"<o><id>" + inside + b"</id></o>"))
def test_no_bytes_at_all_make_the_reader_fail(body: bytes):
    values, told = BodyReader(StructType([ID, TEXT])).read(body)
    assert values.keys() == {"id", "v"}
    assert told is None or not told.startswith("cannot be read")
    assert told is not None or body.startswith((b"<", b" ", b"\t", b"\r", b"\n", b"\xef\xbb\xbf"))


def test_how_many_elements_a_body_may_have_can_be_told():
    reader = BodyReader(StructType([ID]), max_elements=3)
    assert reader.read(b"<o><id>1</id><x/></o>") == ({"id": 1}, None)
    assert reader.read(b"<o><id>1</id><x/><x/></o>") == ({"id": None}, "has more than 3 elements")


def test_names_that_a_peer_invents_are_not_remembered_without_end():
    reader = BodyReader(StructType([ID]))
    for i in range(3_000):
        assert reader.read(f"<o><n{i}/><id>{i}</id></o>".encode()) == ({"id": i}, None)
    assert len(reader.root._by_tag) == 1_000


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (StructType([ID, StructField("ID", IntegerType())]), "the schema has two fields called 'id'"),
        (StructType([StructField("a", StructType([ID, ID]))]), "a has two fields called 'id'"),
        (StructType([StructField("a", ArrayType(StructType([])))]), "a has no fields"),
    ],
)
def test_a_struct_that_spark_could_not_store_is_refused(fields: StructType, why: str):
    with pytest.raises(ConfigurationError, match=why):
        BodyReader(fields)


@pytest.mark.parametrize("kind", [BinaryType(), MapType(StringType(), StringType()), ArrayType(ArrayType(LongType()))])
def test_a_type_no_text_can_be_read_as_is_refused_with_the_fields_path(kind: DataType):
    with pytest.raises(ConfigurationError, match=r"the field a\.b has type"):
        BodyReader(StructType([StructField("a", StructType([StructField("b", kind)]))]))


def test_a_field_takes_what_its_metadata_says_of_its_place():
    amount = StructType(
        [
            StructField("value", DecimalType(8, 2), metadata={"xml": "text"}),
            StructField("currency", StringType(), metadata={"xml": "attribute"}),
        ]
    )
    schema = StructType(
        [
            StructField("id", IntegerType(), metadata={"xml": "element"}),
            StructField("id_attribute", StringType(), metadata={"xml": "attribute", "name": "id"}),
            StructField("amount", amount),
            StructField("ours", StringType(), metadata={"name": "note", "namespace": "urn:us"}),
            StructField("theirs", StringType(), metadata={"name": "note", "namespace": "urn:them"}),
        ]
    )
    reader = BodyReader(schema)
    body = (
        b"<o id='a'><id>1</id><amount currency='EUR'>12.50</amount>"
        b"<note xmlns='urn:them'>t</note><note xmlns='urn:us'>u</note></o>"
    )
    assert reader.read(body) == (
        {
            "id": 1,
            "id_attribute": "a",
            "amount": {"value": Decimal("12.50"), "currency": "EUR"},
            "ours": "u",
            "theirs": "t",
        },
        None,
    )
    assert reader.read(b"<o id='7'><amount>9</amount></o>")[0]["id"] is None
    values, problem = reader.read(b"<o><amount><value>9</value></amount></o>")
    assert (values["amount"], problem) == ({"value": None, "currency": None}, "amount.value has child elements")
    assert reader.read(b"<o><amount>nine</amount></o>")[1] == "amount.value: 'nine' is not a decimal number"
    for kind in (ArrayType(StringType()), amount):
        with pytest.raises(ConfigurationError, match="cannot be read from 'attribute'"):
            BodyReader(StructType([StructField("x", kind, metadata={"xml": "attribute"})]))
    with pytest.raises(ConfigurationError, match="'child'"):
        BodyReader(StructType([StructField("x", StringType(), metadata={"xml": "child"})]))
