"""Values arrive as they were given, or are refused by the name of their field: each type, and each place of a type.

Covers wsdl/values.py and wsdl/simple_types.py.
"""

from __future__ import annotations

import datetime
import enum
import math
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import Any, get_args, get_origin

import pytest
from bodies import made_of
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from one_operation import one_operation
from zeep.xsd.types import builtins

from holdfast.cli.running.operation_values import OperationValues
from holdfast.exceptions import EnvelopeError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.stubs import typed_module


class Float64(float):
    """As NumPy has them."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)})"

    __str__ = float.__repr__


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
    "gYear": [(2026, None), (2026, UTC), (-44, None), (12026, None)],
    "gYearMonth": [(2026, 2, None), (-44, 2, UTC)],
    "gMonth": [(2, None), (12, UTC)],
    "gMonthDay": [(2, 3, UTC)],
    "gDay": [(31, None)],
    "base64Binary": [b"", b"\0", b"abcd", bytes(range(256))],
    "hexBinary": [b"", b"\0", b"ab", bytes(range(256))],
    "QName": ["{urn:a}a", "{urn:v}a"],
}
OTHER_FORMS: list[tuple[str, Any, Any]] = [
    ("gYear", 2026, (2026, None)),
    ("gYear", "2026", (2026, None)),
    ("gYear", "-0044Z", (-44, UTC)),
    ("gYearMonth", "2026-02", (2026, 2, None)),
    ("gMonth", 2, (2, None)),
    ("gMonthDay", "--02-03", (2, 3, None)),
    ("gDay", 3, (3, None)),
    ("QName", etree.QName("urn:a", "a"), "{urn:a}a"),
    ("dateTime", "2024-01-01T24:00:00", datetime.datetime(2024, 1, 2)),
    ("dateTime", "2023-12-31T24:00:00.000Z", datetime.datetime(2024, 1, 1, tzinfo=UTC)),
    ("time", "24:00:00", datetime.time(0)),
    ("date", "2026-02-03", DAY),
    ("int", "7", 7),
    ("decimal", 7, Decimal(7)),
    ("decimal", 1.1, Decimal("1.1")),
    ("decimal", Float64(1.5), Decimal("1.5")),
    ("double", Float64(1.5), 1.5),
    ("decimal", 1e-6, Decimal("0.000001")),
    ("decimal", -1e22, Decimal(-(10**22))),
    ("NMTOKENS", ["a", "b"], "a b"),
    ("NMTOKENS", ("a",), "a"),
    ("double", Decimal("1E-7"), 1e-7),
]
"""Type, what may be given besides its values, and what arrives."""
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
    ("string", 7.5),
    ("token", 7),
    ("normalizedString", Decimal(7)),
    ("anyURI", b"urn:a"),
    ("anyURI", 7),
    ("boolean", "no"),
    ("boolean", "False"),
    ("boolean", 2),
    ("boolean", b"true"),
    ("int", True),
    ("int", 1.5),
    ("int", b"1"),
    ("int", (1,)),
    ("decimal", Decimal("NaN")),
    ("decimal", math.nan),
    ("decimal", math.inf),
    ("float", "many"),
    ("date", MOMENT),
    ("date", b"2026-02-03"),
    ("dateTime", DAY),
    ("time", MOMENT),
    ("duration", 5),
    ("gYear", 2026.0),
    ("gYear", True),
    ("gYearMonth", 2026),
    ("gYearMonth", (2026, 2)),
    ("gMonthDay", (2, "3", None)),
    ("gYear", (2026, "Z")),
    ("gDay", ()),
    ("float", 1e300),
    ("float", "3.5e38"),
    ("double", 10**400),
    ("double", Decimal("-1e309")),
    ("dateTime", 12),
    ("time", 12),
    ("date", 12),
    ("QName", "{urn:a}"),
    ("QName", "a:b"),
    ("string", "\x01"),
    ("string", "\ud800"),
    ("token", "\0"),
    ("anyURI", "\uffff"),
    ("int", "\x0b"),
]


@cache
def contract(schema: str) -> Contract:
    return made_of(one_operation(schema))


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
    yield {"_value_1": [{"left": right}, {"right": value}]}, "_value_1[1].right"


def test_every_type_of_xml_schema_is_tried() -> None:
    known = {cls._default_qname.localname for cls in builtins._types} - {"anyType", "anySimpleType"}
    assert known - ONE_TO_A_DOCUMENT == set(VALUES)


ODD = [
    (),
    (1,),
    (1, 2),
    (None, None),
    ("a", None),
    [],
    {},
    {"a": 1},
    b"x",
    object(),
    True,
    -1,
    1e300,
    "\ud800",
    "x",
    range(3),
]


@pytest.mark.parametrize("kind", VALUES)
def test_whatever_a_value_is_its_refusal_names_the_field(kind: str) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for value in ODD:
        try:
            written(schema, {"inner": {"one": value}})
        except EnvelopeError as error:
            message = error.message.removeprefix("The values for the operation Do do not fit the WSDL")
            assert message.startswith((": inner.one", ". Element 'one'")), (value, message)


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_arrives_as_it_was_given_wherever_it_is(kind: str) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for value in VALUES[kind]:
        for values, _ in wherever(value, VALUES[kind][0]):
            found = read(schema, written(schema, values))
            assert all(_same(found[name], one) for name, one in values.items()), (value, found)
            assert _same(read(schema, written(schema, found)), found)  # a handler may return what it took


@pytest.mark.parametrize("kind", [*VALUES, "NMTOKENS"])
def test_a_reply_in_json_is_taken_back_as_it_was_printed(kind: str) -> None:
    made = contract(PLACES.format(f"xs:{kind}"))
    schema, values = PLACES.format(f"xs:{kind}"), OperationValues(made, "Do", "in.wsdl")
    nil = {"nil": {"@nil": True}, "nils": [None]}
    for value in VALUES.get(kind, ["a", "a b"]):
        bodies = [written(schema, one) for one, _ in wherever(value, VALUES.get(kind, ["a"])[0])]
        for body in (*bodies, made.request(made.operation("Do"), (), nil)):
            printed = values.reply(body)
            again, _ = values.message("line 1", printed.encode())
            assert _same(read(schema, again), read(schema, body)), printed
            assert again.count(b":nil=") == body.count(b":nil="), printed


@pytest.mark.parametrize("value", [["a b"], [1], [""], [None]])
def test_a_list_of_a_built_in_list_type_has_words(value: list[Any]) -> None:
    with pytest.raises(EnvelopeError, match=r"one\[0\]"):
        written(PLACES.format("xs:NMTOKENS"), {"one": value})


@pytest.mark.parametrize("kind", VALUES)
def test_the_type_of_a_value_in_the_module_is_that_of_the_values_that_arrive(kind: str) -> None:
    content = f'<xs:complexType><xs:sequence><xs:element name="one" type="xs:{kind}"/></xs:sequence></xs:complexType>'
    made = contract(f'<xs:element name="In">{content}</xs:element>')
    module = typed_module(made)
    told = module.partition("one: ")[2].partition(", _sequence_key")[0]
    namespace: dict[str, Any] = {}
    exec(module, namespace)
    for value in VALUES[kind]:
        sent = made.request(made.operations["Do"], (), {"one": value})
        found = made.request_values(made.operations["Do"], sent)["one"]
        assert told == "DurationValue" or _is(found, eval(told, namespace)), (told, found)
    assert told != "Any"


def _is(value: Any, annotation: Any) -> bool:
    if get_origin(annotation) is not tuple:
        return isinstance(value, annotation)
    parts = get_args(annotation)
    return len(value) == len(parts) and all(map(isinstance, value, parts))


@pytest.mark.parametrize(("kind", "value", "arrives"), OTHER_FORMS, ids=lambda one: f"{one!r:.20}")
def test_a_value_in_another_form_of_its_type_arrives(kind: str, value: Any, arrives: Any) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for (values, _), (expected, _) in zip(wherever(value, value), wherever(arrives, arrives), strict=True):
        found = read(schema, written(schema, values))
        assert all(_same(found[name], one) for name, one in expected.items())


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


NUMBER = '<xs:element name="{}" type="xs:int" {}/>'
EITHER = f"<xs:choice {{}}>{NUMBER.format('a', '')}{NUMBER.format('b', '')}</xs:choice>"
REPEATED = 'maxOccurs="9"'
OPTIONAL, TWICE, NILLABLE = 'minOccurs="0"', 'maxOccurs="2"', 'nillable="true"'
GROUPS = {
    "a choice": (EITHER.format(REPEATED), "a, b"),
    "a choice in a sequence": (
        f"<xs:sequence {REPEATED}>{NUMBER.format('c', '')}{EITHER.format('')}</xs:sequence>",
        "c, a, b",
    ),
    "a sequence in a choice": (
        f"<xs:choice {REPEATED}><xs:sequence>{NUMBER.format('a', '')}{NUMBER.format('c', '')}</xs:sequence>"
        f"{NUMBER.format('b', '')}</xs:choice>",
        "a, c, b",
    ),
}


@pytest.mark.parametrize(("group", "known"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("inside", ["{}", f"<xs:sequence {REPEATED}>{NUMBER.format('z', '')}{{}}</xs:sequence>"])
def test_fields_that_an_item_of_a_group_cannot_have_are_refused_by_its_place(
    group: str, known: str, inside: str
) -> None:
    content = f"<xs:complexType><xs:sequence>{inside.format(group)}</xs:sequence></xs:complexType>"
    schema = f'<xs:element name="In">{content}</xs:element>'
    right = {"c": 1, "a": 1} if "c" in known else {"a": 1}
    path = "_value_1[1]" if inside == "{}" else "_value_1[0]._value_1[1]"
    for wrong, told in (
        ({**right, "b": 2}, f"{path} cannot have 'b' together with 'a': they are alternatives of a choice"),
        ({**right, "x": 2}, f"{path} has no field 'x'. The fields are: {known}."),
    ):
        items = [right, wrong]
        values = {"_value_1": items if inside == "{}" else [{"z": 1, "_value_1": items}]}
        with pytest.raises(EnvelopeError) as caught:
            written(schema, values)
        assert f"do not fit the WSDL: {told}" in caught.value.message


EMPTY = {
    "a choice": EITHER.format(REPEATED),
    "a sequence": f"<xs:sequence {REPEATED}>{NUMBER.format('a', OPTIONAL)}</xs:sequence>",
    "a choice of a list": f"<xs:choice {REPEATED}>{NUMBER.format('a', TWICE)}{NUMBER.format('b', '')}</xs:choice>",
}


@pytest.mark.parametrize("group", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("item", [{}, {"a": None}, {"a": []}])
def test_an_item_of_a_group_that_would_write_nothing_is_refused(group: str, item: dict[str, Any]) -> None:
    schema = f'<xs:element name="In"><xs:complexType><xs:sequence>{group}</xs:sequence></xs:complexType></xs:element>'
    with pytest.raises(EnvelopeError, match=r"_value_1\[1\]"):
        written(schema, {"_value_1": [{"a": 1}, item]})


def test_a_nil_alternative_of_a_repeated_choice_is_sent_again_as_it_arrived() -> None:
    either = f"<xs:choice {REPEATED}>{NUMBER.format('a', '')}{NUMBER.format('b', NILLABLE)}</xs:choice>"
    schema = f'<xs:element name="In"><xs:complexType><xs:sequence>{either}</xs:sequence></xs:complexType></xs:element>'
    body = written(schema, {"_value_1": [{"a": 1}, {"b": {"@nil": True}}, {"a": 2}]})
    found = read(schema, body)["_value_1"]
    assert found == [{"a": 1}, {"b": None}, {"a": 2}]
    for again in (found, [dict(one) for one in found]):
        assert written(schema, {"_value_1": again}) == body


def test_too_many_open_elements_are_refused_with_their_number() -> None:
    content = '<xs:sequence><xs:any maxOccurs="2" processContents="skip"/></xs:sequence>'
    schema = f'<xs:element name="In"><xs:complexType>{content}</xs:complexType></xs:element>'
    with pytest.raises(EnvelopeError, match="_value_1 takes at most 2 elements, not 3"):
        written(schema, {"_value_1": ["<a/>", "<b/>", "<c/>"]})


def test_values_that_are_nested_too_deeply_are_refused_as_such() -> None:
    values: dict[str, Any] = {"one": 1}
    for _ in range(2000):
        values = {"inner": values}
    with pytest.raises(EnvelopeError, match="nested too deeply") as caught:
        written(PLACES.format("xs:int"), values)
    assert "max_depth" in caught.value.remedy


UNION = """<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="one" minOccurs="0"><xs:simpleType>
<xs:union memberTypes="{}"/></xs:simpleType></xs:element></xs:sequence></xs:complexType></xs:element>"""


@pytest.mark.parametrize(
    ("members", "value", "arrives"),
    [
        ("xs:int xs:string", 5, "5"),
        ("xs:int xs:string", "5", "5"),
        ("xs:int xs:boolean", True, "true"),
        ("xs:int xs:date", DAY, "2026-02-03"),
        ("xs:double xs:string", math.inf, "INF"),
        ("xs:int xs:long", 5, 5),
        ("xs:decimal xs:int", Decimal("1.50"), Decimal("1.50")),
    ],
)
def test_a_value_of_a_union_is_a_text_unless_its_members_have_one_type(members: str, value: Any, arrives: Any) -> None:
    schema = UNION.format(members)
    assert _same(read(schema, written(schema, {"one": value})), {"one": arrives})


@pytest.mark.parametrize("value", [5, 7.5, True, b"x", ["x"]])
def test_a_union_of_texts_takes_a_text(value: Any) -> None:
    with pytest.raises(EnvelopeError, match=": one takes "):
        written(UNION.format("xs:token xs:string"), {"one": value})


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
        ("words", ("a", "b"), ["a", "b"]),
        ("words", {"a": 1}.keys(), ["a"]),
        ("places", {0: {}}.values(), [{"street": None}]),
        ("places", deque([{}]), [{"street": None}]),
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
        ("place", ("a", "b"), "place takes a dict of its fields (street), not a value of the type tuple"),
        ("place", "a", "place takes a dict of its fields (street), not 'a'"),
        ("place", 7, "place takes a dict"),
        ("place", [], "place takes a dict"),
        ("place", [{}], "place takes a dict"),
        ("place", etree.Element("street"), "place takes a dict"),
        ("places", [{}, "a"], "places[1] takes a dict"),
        ("words", iter("ab"), "words takes a list"),
        ("places", iter([{}]), "places takes a list"),
        ("places", {"street": {"a": 1}}, "places.street takes text"),
        ("place", {"streets": "a"}, "place has no field 'streets'. Did you mean 'street'?"),
        ("nothing", 1, "there is no field 'nothing'"),
        ("whatever", b"a", "whatever takes text or a number"),
        ("whatever", {"a": 1}, "whatever takes text or a number"),
        ("whatever", "\x01", "whatever has the character"),
        ("whatever", etree.Element("a"), "whatever takes text or a number"),
    ],
)
def test_wrong_values_of_other_kinds_are_refused_too(field: str, value: Any, says: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        written(OTHERS, {field: value})
    assert says in caught.value.message


@pytest.mark.parametrize("value", [7, "a", [1, 2], (1, "2")])
def test_a_reply_of_several_fields_is_not_made_of_one_value(value: Any) -> None:
    made = contract(OTHERS)
    with pytest.raises(EnvelopeError, match=r"The reply of Do takes a dict of its fields \(words, either, "):
        made.reply(made.operation("Do"), value)


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
    ("kind", "text"),
    [
        ("dateTime", "12026-01-01T00:00:00"),
        ("dateTime", "9999-12-31T24:00:00"),
        ("date", "12026-01-01"),
        ("date", "-0044-03-15"),
        ("integer", "1" * 5000),
    ],
)
def test_a_valid_value_that_python_cannot_hold_is_refused_and_is_not_none(
    kind: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, body in (
        ("one", f'<In xmlns="urn:v"><one>{text}</one></In>'),
        ("many", f'<In xmlns="urn:v"><many>{text}</many></In>'),
        ("of", f'<In xmlns="urn:v" of="{text}"/>'),
    ):
        with pytest.raises(EnvelopeError, match=f"the element In cannot be read: {name}: Python cannot hold"):
            read(PLACES.format(f"xs:{kind}"), body.encode())
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", VALUES)
def test_white_space_around_a_value_does_not_change_it(kind: str) -> None:
    if kind in ("string", "normalizedString"):
        return  # it is part of these
    schema = PLACES.format(f"xs:{kind}")
    for value in VALUES[kind]:
        body = etree.fromstring(written(schema, {"one": value, "many": [value, value], "inner": {"one": value}}))
        for one in body.iter():
            if not len(one):
                one.text = f"\n  {one.text or ''}\t"
        assert _same(read(schema, etree.tostring(body)), {"one": value, "many": [value, value]})


NAMES = """
<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="{0}" type="xs:string"/>
  <xs:element name="inner" type="v:Inner" minOccurs="0" maxOccurs="unbounded"/>
</xs:sequence></xs:complexType></xs:element>
<xs:complexType name="Inner"><xs:sequence><xs:element name="{0}" type="xs:string"/></xs:sequence>
  <xs:attribute name="{1}" type="xs:int"/></xs:complexType>
"""


@pytest.mark.parametrize(
    "name", ["self", "cls", "class", "a-b", "args", "kwargs", "items", "value", "operation", "xml.a"]
)
def test_a_field_may_have_any_name(name: str) -> None:
    attribute = "of" if name == "self" else "self"
    schema = NAMES.format(name, attribute)
    values = {name: "a", "inner": [{name: "b", attribute: 1}, {name: ""}]}
    found = read(schema, written(schema, values))
    assert all(_same(found[key], one) for key, one in values.items())
    with pytest.raises(EnvelopeError, match=f"Missing element {name}"):
        written(schema, {"inner": []})


def test_an_error_about_a_choice_names_its_fields() -> None:
    with pytest.raises(EnvelopeError, match="either cannot have 'b' together with 'a'"):
        written(CHOICE, {"either": {"a": 1, "b": "x"}})
    for value in ({"a": 1}, {"b": "x"}):
        found = read(CHOICE, written(CHOICE, {"either": value}))
        assert _same(found["either"], value)
        assert _same(read(CHOICE, written(CHOICE, found)), found)


CHOICE = """
<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="either" type="v:Either"/></xs:sequence>
</xs:complexType></xs:element>
<xs:complexType name="Either"><xs:choice><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:string"/>
</xs:choice></xs:complexType>
"""


@pytest.mark.parametrize(
    ("kind", "text", "form", "wrong"),
    [
        ("base64Binary", "AP8=", "base64", ("abc", "a b=", "\u00e9", 5)),
        ("hexBinary", "00FF", "hexadecimal", ("abc", "0 0", "AP8=", "\u00e9", 5)),
    ],
)
def test_binary_values_in_json_are_texts_as_their_type_has_them(
    kind: str, text: str, form: str, wrong: tuple[Any, ...]
) -> None:
    made = contract(PLACES.format(f"xs:{kind}"))
    do = made.operation("Do")
    values = {"one": text, "many": ["", text], "of": text, "_value_1": [{"left": text}, {"right": ""}]}
    body = made.request(do, (), values, is_json=True)
    assert made.request_values(do, body)["one"] == b"\0\xff"
    found = made.reply_value(do, body, is_json=True)
    assert {name: found[name] for name in ("one", "many", "of")} == {
        name: values[name] for name in ("one", "many", "of")
    }
    assert found["_value_1"] == [{"left": text}, {"right": ""}]
    for value in wrong:
        with pytest.raises(EnvelopeError, match=f"one .*{form}"):
            made.request(do, (), {"one": value}, is_json=True)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\n\r")), st.binary())
def test_any_text_and_any_bytes_arrive_as_they_were_given(text: str, content: bytes) -> None:
    for kind, value in (("string", text), ("base64Binary", content), ("hexBinary", content)):
        schema = PLACES.format(f"xs:{kind}")
        values = {"one": value, "many": [value], "text": {"_value_1": value}}
        found = read(schema, written(schema, values))
        assert all(_same(found[name], one) for name, one in values.items())


# --- names and lists of names -----------------------------------------------------------------------------------------

NAME_LISTS = """
<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="one" type="v:Names" minOccurs="0"/>
  <xs:element name="text" minOccurs="0"><xs:complexType><xs:simpleContent><xs:extension base="v:Names">
    <xs:attribute name="of" type="v:Names"/></xs:extension></xs:simpleContent></xs:complexType></xs:element>
</xs:sequence><xs:attribute name="of" type="v:Names"/><xs:attribute name="self" type="xs:QName"/>
</xs:complexType></xs:element>
<xs:simpleType name="Names"><xs:list itemType="xs:QName"/></xs:simpleType>
"""


@pytest.mark.parametrize("names", [[], ["{urn:a}a"], ["{urn:a}a", "{urn:b}b", "{urn:v}c"]], ids=len)
def test_names_in_lists_have_their_namespaces_too(names: list[str]) -> None:
    for values in ({"one": names}, {"of": names}, {"text": {"_value_1": names, "of": names}}, {"self": "{urn:a}a"}):
        assert _same(read(NAME_LISTS, written(NAME_LISTS, values)), values)


def test_the_prefix_of_a_name_is_the_one_that_its_own_element_sees() -> None:
    body = b'<In xmlns="urn:v" xmlns:p="urn:p" of="p:a b" self="c"><text xmlns:p="urn:q" of="p:a">p:b x</text></In>'
    found = read(NAME_LISTS, body)
    assert (found["of"], found["self"]) == (["{urn:p}a", "{urn:v}b"], "{urn:v}c")
    assert found["text"] == {"_value_1": ["{urn:q}b", "{urn:v}x"], "of": ["{urn:q}a"]}


# --- more digits than Python's classes hold ---------------------------------------------------------------------------

EXACT = [
    ("dateTime", "2026-02-03T04:05:06.1234567Z", datetime.datetime(2026, 2, 3, 4, 5, 6, 123456, UTC)),
    ("dateTime", "2026-02-03T04:05:06.123456789", datetime.datetime(2026, 2, 3, 4, 5, 6, 123456)),
    ("time", "04:05:06.1234567-05:00", None),
    ("duration", "PT1.1234567S", datetime.timedelta(seconds=1, microseconds=123457)),
    ("duration", "-P1DT0.0000001S", None),
]


@pytest.mark.parametrize(("kind", "text", "nearest"), EXACT, ids=lambda one: f"{one}")
def test_digits_that_python_cannot_hold_are_written_again(kind: str, text: str, nearest: Any) -> None:
    schema = PLACES.format(f"xs:{kind}")
    for values, _ in wherever(text, text):
        body = written(schema, values)
        found = read(schema, body)
        assert written(schema, {name: found[name] for name in values}) == body, "an echo is exact"
        if nearest is not None and "one" in values:
            assert found["one"] == nearest and isinstance(found["one"], type(nearest))
            # What is calculated from it has Python's digits.
            assert text not in written(schema, {"one": found["one"] + datetime.timedelta(0)}).decode()


def test_zeros_are_no_digits_that_are_lost() -> None:
    found = read(PLACES.format("xs:dateTime"), b'<In xmlns="urn:v"><one>2026-02-03T04:05:06.1230000Z</one></In>')["one"]
    assert type(found) is datetime.datetime and found.microsecond == 123000


def test_a_duration_with_months_and_too_many_digits_is_refused() -> None:
    with pytest.raises(EnvelopeError, match=r"one: Python cannot hold the value 'P1MT0\.1234567S'"):
        read(PLACES.format("xs:duration"), b'<In xmlns="urn:v"><one>P1MT0.1234567S</one></In>')


MOMENTS = """
<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="day" type="xs:date" minOccurs="0"/><xs:element name="number" type="xs:int" minOccurs="0"/>
</xs:sequence><xs:attribute name="at" type="xs:dateTime"/></xs:complexType></xs:element>
"""


def test_a_refusal_does_not_blame_the_spaces_around_another_value() -> None:
    with pytest.raises(EnvelopeError, match="Element 'number': 'x' is not a valid value"):
        read(MOMENTS, b'<In xmlns="urn:v"><day> 2024-02-29 </day><number>x</number></In>')


def test_spaces_around_a_time_in_an_attribute_do_not_change_it() -> None:
    found = read(MOMENTS, b'<In xmlns="urn:v" at=" 2024-02-29T00:00:00 "/>')
    assert found["at"] == datetime.datetime(2024, 2, 29)


def test_a_nil_structure_is_none_also_if_its_type_has_attributes_with_defaults() -> None:
    schema = """<xs:element name="In"><xs:complexType><xs:sequence>
      <xs:element name="order" nillable="true" type="v:Order"/></xs:sequence></xs:complexType></xs:element>
    <xs:complexType name="Order"><xs:sequence><xs:element name="number" type="xs:int"/></xs:sequence>
      <xs:attribute name="urgent" type="xs:boolean" default="false"/><xs:anyAttribute processContents="lax"/>
    </xs:complexType>"""
    start = b'<In xmlns="urn:v" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><order i:nil="true"'
    assert read(schema, start + b"/></In>") == {"order": None}
    assert read(schema, start + b' urgent="1"/></In>')["order"]["urgent"] is True
    assert read(schema, b'<In xmlns="urn:v"><order><number>1</number></order></In>')["order"]["urgent"] is False
