"""Values arrive as they were given, or are refused by the name of their field: each type, and each place of a type.

Covers wsdl/values.py.
"""

from __future__ import annotations

import datetime
import enum
import math
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from zeep.xsd.types import builtins

from holdfast.exceptions import EnvelopeError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

HEAD = """<wsdl:definitions targetNamespace="urn:v" xmlns:v="urn:v" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <wsdl:types><xs:schema targetNamespace="urn:v" elementFormDefault="qualified">"""
TAIL = """</xs:schema></wsdl:types>
  <wsdl:message name="m"><wsdl:part name="p" element="v:In"/></wsdl:message>
  <wsdl:portType name="T"><wsdl:operation name="Do"><wsdl:input message="v:m"/><wsdl:output message="v:m"/>
    </wsdl:operation></wsdl:portType>
  <wsdl:binding name="B" type="v:T"><soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
    <wsdl:operation name="Do"><soap:operation soapAction="urn:v/Do"/><wsdl:input><soap:body use="literal"/></wsdl:input>
      <wsdl:output><soap:body use="literal"/></wsdl:output></wsdl:operation></wsdl:binding>
  <wsdl:service name="S"><wsdl:port name="P" binding="v:B"><soap:address location="http://a.example/"/></wsdl:port>
  </wsdl:service>
</wsdl:definitions>"""
PLACES = """
<xs:element name="In"><xs:complexType>
  <xs:sequence>
    <xs:element name="one" type="{0}" minOccurs="0"/>
    <xs:element name="nil" type="{0}" minOccurs="0" nillable="true"/>
    <xs:element name="many" type="{0}" minOccurs="0" maxOccurs="unbounded"/>
    <xs:element name="nils" type="{0}" minOccurs="0" maxOccurs="unbounded" nillable="true"/>
    <xs:element name="own" type="v:Own" minOccurs="0"/>
    <xs:element name="inner" type="v:Inner" minOccurs="0"/>
    <xs:element name="text" type="v:Text" minOccurs="0"/>
    <xs:choice minOccurs="0" maxOccurs="unbounded">
      <xs:element name="left" type="{0}"/><xs:element name="right" type="{0}"/>
    </xs:choice>
  </xs:sequence>
  <xs:attribute name="of" type="{0}"/>
</xs:complexType></xs:element>
<xs:simpleType name="Own"><xs:restriction base="{0}"/></xs:simpleType>
<xs:complexType name="Inner"><xs:sequence>
  <xs:element name="one" type="{0}" minOccurs="0"/><xs:element name="inner" type="v:Inner" minOccurs="0"/>
</xs:sequence></xs:complexType>
<xs:complexType name="Text"><xs:simpleContent><xs:extension base="{0}"><xs:attribute name="of" type="{0}"/>
</xs:extension></xs:simpleContent></xs:complexType>
"""
UTC = datetime.UTC
DAY, NOON = datetime.date(2026, 2, 3), datetime.time(12, 0, 1)
MOMENT = datetime.datetime(2026, 2, 3, 4, 5, 6, 7000, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "string": ["", " ", "a b", "é\n<&]]>", "None", "\ttab"],
    "normalizedString": ["", "a  b"],
    "token": ["", "a b"],
    "language": ["en-GB"],
    "NMTOKEN": ["-a"],
    "Name": ["a:b"],
    "NCName": ["ab"],
    "anyURI": ["", "urn:a", "a b"],
    "boolean": [True, False],
    "decimal": [Decimal("1.50"), Decimal(0), Decimal("1E+3"), Decimal(10) ** 40],
    "integer": [0, -(10**30)],
    "nonPositiveInteger": [0],
    "negativeInteger": [-1],
    "long": [-(2**63)],
    "int": [2**31 - 1],
    "short": [-1],
    "byte": [-128],
    "nonNegativeInteger": [0],
    "unsignedLong": [2**64 - 1],
    "unsignedInt": [1],
    "unsignedShort": [1],
    "unsignedByte": [255],
    "positiveInteger": [1],
    "float": [1.5, math.inf, -math.inf, 1e-7],
    "double": [1.5, math.inf, -math.inf, 1e-300],
    "duration": [datetime.timedelta(days=1, seconds=2.5), datetime.timedelta(0), -datetime.timedelta(hours=1)],
    "dateTime": [MOMENT, datetime.datetime(1, 1, 1)],
    "time": [NOON, datetime.time(1, 2, 3, tzinfo=UTC)],
    "date": [DAY, datetime.date(1, 1, 1)],
    "gYear": [(2026, None), (2026, UTC)],
    "gYearMonth": [(2026, 2, None)],
    "gMonth": [(2, None), (12, UTC)],
    "gMonthDay": [(2, 3, UTC)],
    "gDay": [(31, None)],
    "base64Binary": [b"", b"\0", b"abcd", bytes(range(256))],
    "hexBinary": [b"", b"\0", b"ab", bytes(range(256))],
    "QName": ["a"],
}
ONE_TO_A_DOCUMENT = {"ID", "IDREF", "IDREFS", "ENTITY", "ENTITIES", "NOTATION", "NMTOKENS"}
"""Types that other places of the document decide about, or that need declarations."""
WRONG: list[tuple[str, Any]] = [
    ("base64Binary", "abcd"),
    ("base64Binary", ""),
    ("base64Binary", [1, 2]),
    ("base64Binary", 4),
    ("hexBinary", "abcd"),
    ("string", b"abcd"),
    ("string", ("a",)),
    ("string", {"a": 1}),
    ("string", {"a"}),
    ("string", iter("a")),
    ("string", True),
    ("string", object()),
    ("anyURI", b"urn:a"),
    ("boolean", "no"),
    ("boolean", "False"),
    ("boolean", 2),
    ("boolean", b"true"),
    ("int", True),
    ("int", 1.5),
    ("int", b"1"),
    ("int", (1,)),
    ("decimal", Decimal("NaN")),
    ("float", "many"),
    ("date", MOMENT),
    ("date", b"2026-02-03"),
    ("dateTime", DAY),
    ("time", MOMENT),
    ("duration", 5),
    ("gYear", "2026"),
    ("gYear", 2026),
]


@cache
def contract(schema: str) -> Contract:
    with TemporaryDirectory() as place:
        wsdl = Path(place, "values.wsdl")
        wsdl.write_text(HEAD + schema + TAIL)
        made = Contract(Documents(wsdl, _no_web))
        made.compile_schema()
        return made


def _no_web(url: str) -> bytes:
    raise AssertionError(url)


def written(schema: str, values: dict[str, Any]) -> bytes:
    made = contract(schema)
    return made.request(made.operation("Do"), (), values)


def read(schema: str, body: bytes) -> Any:
    made = contract(schema)
    return made.request_values(made.operation("Do"), body)


def wherever(value: Any, right: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Bodies with the value in each place, and the name that a refusal has for it."""
    for name in ("one", "nil", "own", "of"):
        yield {name: value}, name
    yield {"many": [right, value]}, "many[1]"
    yield {"nils": [None, value]}, "nils[1]"
    yield {"inner": {"inner": {"one": value}}}, "inner.inner.one"
    yield {"text": {"_value_1": value}}, "text._value_1"
    yield {"text": {"_value_1": right, "of": value}}, "text.of"
    yield {"_value_1": [{"left": right}, {"right": value}]}, "right"


def test_every_type_of_xml_schema_is_tried() -> None:
    known = {cls._default_qname.localname for cls in builtins._types} - {"anyType", "anySimpleType"}
    assert known - ONE_TO_A_DOCUMENT == set(VALUES)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_arrives_as_it_was_given_wherever_it_is(kind: str) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for value in VALUES[kind]:
        for values, _ in wherever(value, VALUES[kind][0]):
            found = read(schema, written(schema, values))
            assert all(_same(found[name], one) for name, one in values.items()), (value, found)


def _same(found: Any, given: Any) -> bool:
    if isinstance(given, dict):
        return all(_same(found[key], one) for key, one in given.items())
    if isinstance(given, list):
        return len(found) == len(given) and all(map(_same, found, given))
    return type(found) is type(given) and bool(found == given)


@pytest.mark.parametrize(("kind", "value"), WRONG, ids=lambda one: f"{one!r:.20}")
def test_a_value_of_a_wrong_type_is_refused_wherever_it_is(kind: str, value: Any) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for values, name in wherever(value, VALUES[kind][0]):
        with pytest.raises(EnvelopeError, match="The values for the operation Do do not fit the WSDL") as caught:
            written(schema, values)
        assert name in caught.value.message or "Element" in caught.value.message or "attribute" in caught.value.message


# --- other kinds of types ---------------------------------------------------------------------------------------------

OTHERS = """
<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="words" type="v:Words" minOccurs="0"/>
  <xs:element name="either" minOccurs="0"><xs:simpleType>
    <xs:union memberTypes="xs:int xs:string"/></xs:simpleType></xs:element>
  <xs:element name="default" type="xs:int" default="5" minOccurs="0"/>
  <xs:element name="colour" type="v:Colour" minOccurs="0"/>
  <xs:element name="place" type="v:Place" minOccurs="0"/>
  <xs:element name="places" type="v:Place" minOccurs="0" maxOccurs="unbounded"/>
  <xs:element name="whatever" type="xs:anyType" minOccurs="0"/>
  <xs:any namespace="##other" processContents="lax" minOccurs="0"/>
</xs:sequence><xs:attribute name="size" type="xs:int" default="7"/></xs:complexType></xs:element>
<xs:simpleType name="Words"><xs:list itemType="xs:string"/></xs:simpleType>
<xs:simpleType name="Colour"><xs:restriction base="xs:string"><xs:enumeration value=""/><xs:enumeration value="red"/>
</xs:restriction></xs:simpleType>
<xs:complexType name="Place"><xs:sequence>
  <xs:element name="street" type="xs:string" minOccurs="0"/></xs:sequence></xs:complexType>
"""


class Colour(str, enum.Enum):  # its str() is "Colour.RED", unlike that of a StrEnum
    RED = "red"


@pytest.mark.parametrize(
    ("field", "value", "arrives"),
    [
        ("words", ["a", "b"], ["a", "b"]),
        ("words", [], []),
        ("either", "", ""),
        ("either", "x", "x"),
        ("either", 1, "1"),
        ("colour", "", ""),
        ("colour", Colour.RED, "red"),
        ("place", {}, {"street": None}),
        ("place", {"street": ""}, {"street": ""}),
        ("place", None, None),
        ("places", [{}, {"street": ""}], [{"street": None}, {"street": ""}]),
        ("places", ({}, {"street": "a"}), [{"street": None}, {"street": "a"}]),
        ("places", [], []),
        ("whatever", "a", "a"),
        ("whatever", "", ""),
        ("default", None, None),
        ("default", 0, 0),
        ("size", 8, 8),
    ],
)
def test_values_of_other_kinds_of_types_arrive_too(field: str, value: Any, arrives: Any) -> None:
    found = read(OTHERS, written(OTHERS, {field: value}))
    assert (found[field], type(found[field])) == (arrives, type(arrives))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("words", "abc", "words takes a list, not 'abc'"),
        ("words", ["a b"], "words[0] is not one word"),
        ("words", ["a", ""], "words[1] is not one word"),
        ("words", ["a", b"b"], "words[1] takes text"),
        ("either", b"x", "either takes text or a number"),
        ("either", [1], "either takes text or a number"),
        ("places", [{}, None], "places[1] is None"),
        ("places", [{"street": ("a",)}], "places[0].street takes text"),
        ("place", {"streets": "a"}, "streets"),
        ("place", ("a", "b"), "place.street takes text"),
        ("whatever", b"a", "whatever takes text or a number"),
        ("whatever", etree.Element("a"), "whatever takes text or a number"),
    ],
)
def test_wrong_values_of_other_kinds_are_refused_too(field: str, value: Any, says: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        written(OTHERS, {field: value})
    assert says in caught.value.message


def test_what_a_schema_has_as_a_default_arrives() -> None:
    found = read(OTHERS, b'<In xmlns="urn:v"><default/></In>')
    assert (found["default"], found["size"]) == (5, 7)


def test_a_comment_in_a_text_does_not_end_it() -> None:
    found = read(OTHERS, b'<In xmlns="urn:v"><!--a--><colour>re<!--b-->d</colour><place><!--c--></place></In>')
    assert (found["colour"], found["place"]) == ("red", {"street": None})


def test_an_element_that_the_schema_leaves_open_arrives_as_it_is() -> None:
    body = b'<In xmlns="urn:v"><open xmlns="urn:other" a="b"/></In>'
    assert etree.tostring(read(OTHERS, body)["_value_1"]) == b'<open xmlns="urn:other" a="b"></open>'


def test_nil_arrives_as_none() -> None:
    body = b'<In xmlns="urn:v" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><nil i:nil="true"/></In>'
    assert read(PLACES.format("xs:string"), body)["nil"] is None


@pytest.mark.parametrize(
    ("kind", "text"), [("dateTime", "12026-01-01T00:00:00"), ("date", "12026-01-01"), ("integer", "1" * 5000)]
)
def test_a_valid_value_that_python_cannot_hold_is_refused_and_is_not_none(kind: str, text: str) -> None:
    for body in (f'<In xmlns="urn:v"><one>{text}</one></In>', f'<In xmlns="urn:v" of="{text}"/>'):
        with pytest.raises(EnvelopeError, match="Python cannot hold"):
            read(PLACES.format(f"xs:{kind}"), body.encode())


def test_binary_values_in_json_are_base64() -> None:
    for kind in ("base64Binary", "hexBinary"):
        made = contract(PLACES.format(f"xs:{kind}"))
        do = made.operation("Do")
        body = made.request(do, (), {"one": "AP8=", "many": [""]}, is_json=True)
        assert made.request_values(do, body)["one"] == b"\0\xff"
        for wrong in ("abc", "a b=", "\u00e9", 5):
            with pytest.raises(EnvelopeError, match=r"one .*base64"):
                made.request(do, (), {"one": wrong}, is_json=True)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\n\r")), st.binary())
def test_any_text_and_any_bytes_arrive_as_they_were_given(text: str, content: bytes) -> None:
    for kind, value in (("string", text), ("base64Binary", content), ("hexBinary", content)):
        schema = PLACES.format(f"xs:{kind}")
        values = {"one": value, "many": [value], "text": {"_value_1": value}}
        found = read(schema, written(schema, values))
        assert all(_same(found[name], one) for name, one in values.items())
