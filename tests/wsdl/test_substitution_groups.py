"""Values of other elements than the one that the type names: of a substitution group, or of a wildcard.

Covers wsdl/substitutes.py and wsdl/fields.py.
"""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from bodies import made_of, of
from lxml import etree
from one_operation import one_operation

from holdfast.cli.running.operation_values import OperationValues
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wsdl.contract import Contract

SHAPES = """
<xs:element name="shape" type="v:Shape" abstract="true"/>
<xs:element name="round" type="v:Shape" substitutionGroup="v:shape"/>
<xs:element name="circle" substitutionGroup="v:round"><xs:complexType><xs:complexContent><xs:extension base="v:Shape">
  <xs:sequence><xs:element name="radius" type="xs:decimal" minOccurs="0" nillable="true"/></xs:sequence></xs:extension>
</xs:complexContent></xs:complexType></xs:element>
<xs:element name="square" type="v:Square" substitutionGroup="v:shape" nillable="true"/>
<xs:complexType name="Shape"><xs:sequence><xs:element name="name" type="xs:string"/></xs:sequence></xs:complexType>
<xs:complexType name="Square"><xs:complexContent><xs:extension base="v:Shape"><xs:attribute name="side" type="xs:int"/>
</xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Tile"><xs:complexContent><xs:extension base="v:Square"><xs:attribute name="colour"/>
</xs:extension></xs:complexContent></xs:complexType>
<xs:element name="amount" type="xs:decimal"/>
<xs:element name="count" type="xs:int" substitutionGroup="v:amount"/>
<xs:element name="same" substitutionGroup="v:amount"/>
"""
CONTENT = """<xs:sequence>
  <xs:element ref="v:shape" minOccurs="0"/><xs:element ref="v:amount" minOccurs="0" maxOccurs="unbounded"/>
  <xs:element name="mid" type="xs:int"/><xs:choice minOccurs="0" maxOccurs="unbounded"><xs:element ref="v:round"/>
  <xs:element name="text" type="xs:string"/>
  </xs:choice><xs:any namespace="##other" processContents="lax" minOccurs="0" maxOccurs="unbounded"/>
  <xs:element name="last" type="xs:int"/><xs:any processContents="lax" minOccurs="0"/>
</xs:sequence>"""
REST = {"mid": 1, "last": 2}
CIRCLE = {"@element": "{urn:v}circle", "name": "c", "radius": Decimal("1.5")}
SQUARE = {"@element": "{urn:v}square", "name": "s", "side": 2}
TILE = SQUARE | {"@type": "{urn:v}Tile", "colour": "red"}


@pytest.fixture(scope="module")
def contract() -> Contract:
    return of(CONTENT, SHAPES)


def there_and_back(contract: Contract, values: dict[str, Any]) -> dict[str, Any]:
    do = contract.operation("Do")
    body = contract.request(do, (), values)
    found = contract.request_values(do, body)
    assert contract.reply(do, found) == body, "a handler may return it"
    return {name: found[name] for name in values}


PLACES: list[dict[str, Any]] = [
    {"shape": CIRCLE},
    {"shape": SQUARE},
    {"shape": TILE},
    {"shape": {"@element": "{urn:v}round", "name": "r"}},
    {"shape": {"@element": "{urn:v}square", "@nil": True}},
    {"amount": [Decimal(1), {"@element": "{urn:v}count", "_value_1": 2}, Decimal(3)]},
    {"amount": [{"@element": "{urn:v}same", "_value_1": Decimal("4.5")}]},
    {"_value_1": [{"text": "a"}, {"round": CIRCLE}, {"round": {"name": "r"}}, {"text": ""}]},
    {"last": 5, "_value_3": SQUARE},
    {"_value_3": {"@element": "{urn:v}count", "_value_1": 7}},
]


@pytest.mark.parametrize("values", PLACES, ids=lambda one: f"{one!r:.50}")
def test_a_value_of_another_element_arrives_with_its_name(contract: Contract, values: dict[str, Any]) -> None:
    assert there_and_back(contract, REST | values) == REST | values


@pytest.mark.parametrize("values", PLACES, ids=lambda one: f"{one!r:.50}")
def test_json_has_the_same_keys(contract: Contract, values: dict[str, Any]) -> None:
    made = OperationValues(contract, "Do", "v.wsdl")
    text = json.dumps(REST | values, default=str)
    found = json.loads(made.reply(*made.message("it", text.encode())))
    again = made.message("it", json.dumps({name: one for name, one in found.items() if one is not None}).encode())
    assert again == made.message("it", text.encode())


ROOTS: list[tuple[str, Any]] = [
    *(("shape", one) for one in (CIRCLE, SQUARE, TILE, {"@element": "{urn:v}square", "@nil": True})),
    *(("round", one) for one in (CIRCLE, {"name": "r"})),
    *(("amount", one) for one in (Decimal("1.5"), {"@element": "{urn:v}count", "_value_1": 2})),
]


@pytest.mark.parametrize(("head", "value"), ROOTS, ids=lambda one: f"{one!r:.50}")
def test_a_body_may_be_another_element_of_its_group(head: str, value: Any) -> None:
    with_head = one_operation(SHAPES).replace('element="v:In"', f'element="v:{head}"')
    made = made_of(with_head)
    do = made.operation("Do")
    given = ((), value) if isinstance(value, dict) else ((value,), {})
    body = made.request(do, *given)
    assert made.request_values(do, body) == value
    assert made.reply(do, value) == body
    assert made.reply_value(do, body) in (value, "r"), "the only field of a round thing is its name"
    assert made.operation_of(etree.fromstring(body)) is do
    in_json = OperationValues(made, "Do", "v.wsdl")
    text = json.dumps(value, default=str).encode()
    assert made.request_values(do, in_json.message("it", text)[0]) == value


def test_the_value_of_the_only_field_may_name_its_element_too() -> None:
    made = of('<xs:sequence><xs:element ref="v:shape"/></xs:sequence>', SHAPES)
    do = made.operation("Do")
    body = made.request(do, (CIRCLE,), {})
    assert made.request_values(do, body) == {"shape": CIRCLE}
    assert made.reply(do, CIRCLE) == made.reply(do, {"shape": CIRCLE}) == body


def test_a_body_of_another_group_or_of_an_abstract_element_is_refused() -> None:
    made = made_of(one_operation(SHAPES).replace('element="v:In"', 'element="v:shape"'))
    do = made.operation("Do")
    for values, says in (({"name": "a"}, "abstract element"), ({"@element": "count", "_value_1": 2}, "no element of")):
        with pytest.raises(EnvelopeError, match=says):
            made.request(do, (), values)
    for name in ("{urn:v}count", "circle", "{urn:v}shape"):
        with pytest.raises(EnvelopeError):
            made.request_values(do, etree.tostring(etree.Element(name)))


CHAIN = {
    "h": '<xs:element name="h" type="v:T"/>',
    "n": '<xs:element name="n" substitutionGroup="v:h"/>',
    "m": '<xs:element name="m" substitutionGroup="v:n"/>',
    "T": '<xs:complexType name="T"><xs:sequence><xs:element name="x" type="xs:int"/></xs:sequence></xs:complexType>',
}


@pytest.mark.parametrize("order", list(permutations("hnm")), ids="".join)
def test_a_type_is_inherited_from_the_head_of_the_head_in_any_order(order: tuple[str, ...]) -> None:
    made = of('<xs:sequence><xs:element ref="v:h"/></xs:sequence>', "".join(CHAIN[one] for one in (*order, "T")))
    for name in "nm":
        values = {"h": {"@element": f"{{urn:v}}{name}", "x": 5}}
        assert there_and_back(made, values) == values


@pytest.mark.parametrize("head", ["v:none", "w:none", "none", "v:m", "v:o", "u:none"])
@pytest.mark.parametrize("kind", ["", 'type="xs:int"'])
def test_a_head_that_does_not_exist_is_an_error_of_the_schema(head: str, kind: str) -> None:
    wrong = f'<xs:element name="m" xmlns:w="urn:w" {kind} substitutionGroup="{head}"/>'
    with pytest.raises(ConfigurationError, match="cannot be compiled"):
        of("<xs:sequence/>", wrong + '<xs:element name="o" substitutionGroup="v:m"/>')


def test_the_local_name_is_enough(contract: Contract) -> None:
    assert there_and_back(contract, REST | {"shape": CIRCLE | {"@element": "circle"}})["shape"] == CIRCLE
    values = REST | {"amount": [{"@element": "amount", "_value_1": 1}]}
    assert there_and_back(contract, values)["amount"] == [Decimal(1)]


@pytest.mark.parametrize(
    ("values", "says", "remedy"),
    [
        ({"shape": {"name": "a"}}, "shape is an abstract element", "{urn:v}round, {urn:v}square, {urn:v}circle"),
        ({"shape": {"@element": "shape"}}, "shape.@element: 'shape' is no element", "Its elements are"),
        ({"shape": {"@element": "cirle"}}, "'cirle' is no element of this field", "Did you mean 'circle'?"),
        ({"shape": {"@element": "count"}}, "'count' is no element", ""),
        ({"shape": CIRCLE | {"side": 1}}, "shape has no field 'side'", ""),
        ({"amount": [{"@element": "count", "_value_1": "x"}]}, "count", ""),
        ({"amount": [{"@element": "count"}]}, r"amount\[0\]", ""),
        ({"_value_3": {"@element": "{urn:w}a"}}, "_value_3.@element: the WSDL has no element '{urn:w}a'", "XML"),
        ({"_value_3": 5}, "_value_3 takes an element", ""),
        ({"_value_3": "<a"}, "_value_3: it is not one well-formed XML element", ""),
    ],
    ids=lambda one: f"{one!r:.50}",
)
def test_an_element_that_does_not_fit_is_refused(
    contract: Contract, values: dict[str, Any], says: str, remedy: str
) -> None:
    with pytest.raises(EnvelopeError, match=says) as caught:
        contract.request(contract.operation("Do"), (), REST | values)
    assert remedy in str(caught.value)


def test_open_elements_stay_xml_and_those_after_them_keep_their_place(contract: Contract) -> None:
    do = contract.operation("Do")
    open_ones = ['<a xmlns="urn:o" b="1">x<c/>y</a>', '<a xmlns="urn:o"/>']
    body = contract.request(do, (), {"mid": 1, "_value_2": open_ones, "last": 5})
    found = contract.request_values(do, body)
    assert found["last"] == 5
    assert [etree.tostring(one, method="c14n", exclusive=True).decode() for one in found["_value_2"]] == [
        '<a xmlns="urn:o" b="1">x<c></c>y</a>',
        '<a xmlns="urn:o"></a>',
    ]
    assert contract.reply(do, found) == contract.reply(do, found), "writing leaves the values as they are"
    made = OperationValues(contract, "Do", "v.wsdl")
    shown = json.loads(made.reply(body))["_value_2"]
    assert b">x<c" in made.message("it", json.dumps({"mid": 1, "_value_2": shown, "last": 5}).encode())[0]


# --- values whose type the schema leaves open -------------------------------------------------------------------------

OPEN = """<xs:sequence><xs:element name="any" type="xs:anyType" minOccurs="0" maxOccurs="unbounded"/>
<xs:element name="simple" type="xs:anySimpleType" minOccurs="0"/><xs:element name="number" type="xs:decimal"
minOccurs="0"/><xs:element name="untyped" minOccurs="0" nillable="true"/></xs:sequence>"""
OPEN_TYPES = """<xs:simpleType name="Word"><xs:restriction base="xs:string"><xs:enumeration value="a"/></xs:restriction>
</xs:simpleType><xs:simpleType name="Numbers"><xs:list itemType="xs:int"/></xs:simpleType>
<xs:complexType name="Pair"><xs:sequence><xs:element name="a" type="xs:int"/></xs:sequence></xs:complexType>"""
XSD = "{http://www.w3.org/2001/XMLSchema}"


@pytest.fixture(scope="module")
def open_contract() -> Contract:
    return of(OPEN, OPEN_TYPES)


TYPED: list[tuple[str, Any]] = [
    ("int", 5),
    ("string", ""),
    ("boolean", False),
    ("decimal", Decimal("1.50")),
    ("double", 1.5),
    ("hexBinary", b"\0\xff"),
    ("base64Binary", b""),
    ("QName", "{urn:a}b"),
]


@pytest.mark.parametrize(("kind", "value"), TYPED, ids=lambda one: f"{one}")
def test_a_simple_value_of_an_open_type_keeps_its_type(open_contract: Contract, kind: str, value: Any) -> None:
    typed = {"@type": XSD + kind, "_value_1": value}
    given = {"any": [typed, "text", typed], "simple": typed, "untyped": typed}
    assert there_and_back(open_contract, given) == given
    for name in (kind, f"xs:{kind}"):
        assert there_and_back(open_contract, {"simple": typed | {"@type": name}}) == {"simple": typed}


def test_types_of_the_wsdl_may_be_there_too(open_contract: Contract) -> None:
    for given in (
        {"simple": {"@type": "{urn:v}Word", "_value_1": "a"}},
        {"any": [{"@type": "{urn:v}Numbers", "_value_1": [1, 2]}, {"@type": "{urn:v}Pair", "a": 1}]},
        {"number": {"@type": f"{XSD}int", "_value_1": 5}},
        {"number": Decimal(5)},
    ):
        assert there_and_back(open_contract, given) == given


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"number": {"@type": "xs:string", "_value_1": "a"}}, "'{.*}string' is no type of this value"),
        ({"simple": {"@type": "Pair", "a": 1}}, "'Pair' is no type of this value"),
        ({"simple": {"@type": "xs:int"}}, "simple needs the key '_value_1'"),
        ({"simple": {"@type": "xs:int", "_value_1": "b"}}, "'b' is not a valid value"),
        ({"simple": {"@type": "xs:int", "_value_1": b"b"}}, "simple takes"),
    ],
)
def test_a_type_that_does_not_fit_is_refused(open_contract: Contract, values: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvelopeError, match=says):
        open_contract.request(open_contract.operation("Do"), (), values)


def test_elements_in_an_open_type_are_written_again(open_contract: Contract) -> None:
    do = open_contract.operation("Do")
    body = b'<In xmlns="urn:v"><any><a xmlns="urn:o"/><b xmlns="urn:o">1</b></any><any>x</any></In>'
    found = open_contract.request_values(do, body)
    assert open_contract.request_values(do, open_contract.reply(do, found))["any"][1] == "x"
    assert etree.fromstring(open_contract.reply(do, found))[0][1].text == "1"


@pytest.mark.parametrize("content", ['<any b="1">x</any>', "<any>a<b xmlns='urn:o'/></any>", "<any><b/>a</any>"])
def test_content_that_a_value_cannot_hold_is_refused(open_contract: Contract, content: str) -> None:
    with pytest.raises(EnvelopeError, match="a value of the type xs:anyType cannot hold"):
        open_contract.request_values(open_contract.operation("Do"), f'<In xmlns="urn:v">{content}</In>'.encode())


# --- nil --------------------------------------------------------------------------------------------------------------

NILS = """<xs:sequence><xs:element name="a" type="xs:int" minOccurs="0" nillable="true"/>
<xs:element name="b" type="v:Inner" minOccurs="0" nillable="true"/>
<xs:choice minOccurs="0"><xs:element name="c" type="xs:string" nillable="true"/><xs:element name="d" type="xs:int"/>
</xs:choice><xs:element name="e" type="v:Inner" minOccurs="0"/></xs:sequence>"""
INNER = '<xs:complexType name="Inner"><xs:sequence><xs:element name="x" minOccurs="0" nillable="true" type="xs:int"/>'
INNER += "</xs:sequence></xs:complexType>"


@pytest.mark.parametrize("nil", ["", "a", "b", "c", "ab", "abc", "e"])
def test_nil_is_none_and_is_written_as_nil_again(nil: str) -> None:
    made = of(NILS, INNER)
    do = made.operation("Do")
    start = '<In xmlns="urn:v" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    inner = "".join(f'<{one} i:nil="true"/>' if one != "e" else '<e><x i:nil="1"/></e>' for one in nil)
    found = made.request_values(do, f"{start}{inner}</In>".encode())
    assert found == dict.fromkeys("abcde") | ({"e": {"x": None}} if nil == "e" else {})
    assert getattr(found, "nil", frozenset()) == frozenset(nil) - {"e"}
    again = made.reply(do, found)
    assert [etree.QName(one).localname for one in etree.fromstring(again)] == list(nil)
    assert again.count(b"nil=") == len(nil)
    assert b"nil=" not in made.request(do, (), dict(found)) or nil == "e", "a plain dict has absent fields"
    json_values = {one: {"@nil": True} for one in nil if one != "e"} | (
        {"e": {"x": {"@nil": True}}} if nil == "e" else {}
    )
    assert made.request(do, (), json_values, is_json=True) == again


def test_a_nil_field_with_another_value_is_written_with_it() -> None:
    made = of(NILS, INNER)
    do = made.operation("Do")
    found = made.request_values(do, made.request(do, (), {"a": {"@nil": True}}))
    found["a"] = 5
    assert made.request_values(do, made.reply(do, found))["a"] == 5
