"""Values of derived types, by the key ``@type``: from Python, from JSON, in a reply, and to a handler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from one_operation import one_operation

from holdfast import Destination, EnvelopeError, Source
from holdfast.cli.running.operation_values import OperationValues
from holdfast.exceptions import ConfigurationError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents

SCHEMA = """
<xs:element name="In"><xs:complexType><xs:sequence>
  <xs:element name="vehicle" type="v:Vehicle" minOccurs="0"/>
  <xs:element name="many" type="v:Vehicle" minOccurs="0" maxOccurs="unbounded"/>
  <xs:element name="car" type="v:Car" minOccurs="0"/>
  <xs:element name="whatever" type="xs:anyType" minOccurs="0"/>
  <xs:element name="lonely" type="v:Lonely" minOccurs="0"/>
  <xs:element name="price" type="v:Price" minOccurs="0"/>
  <xs:choice minOccurs="0" maxOccurs="unbounded">
    <xs:element name="left" type="v:Vehicle"/><xs:element name="right" type="v:Vehicle"/>
  </xs:choice>
</xs:sequence></xs:complexType></xs:element>
<xs:complexType name="Vehicle" abstract="true"><xs:sequence><xs:element name="plate" type="xs:string"/></xs:sequence>
</xs:complexType>
<xs:complexType name="Car"><xs:complexContent><xs:extension base="v:Vehicle"><xs:sequence>
  <xs:element name="doors" type="xs:int"/><xs:element name="tows" type="v:Vehicle" minOccurs="0"/>
</xs:sequence></xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Taxi"><xs:complexContent><xs:extension base="v:Car"><xs:sequence>
  <xs:element name="photo" type="xs:base64Binary"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Bus"><xs:complexContent><xs:extension base="v:Vehicle"><xs:attribute name="seats" type="xs:int"/>
</xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Lonely" abstract="true"><xs:sequence/></xs:complexType>
<xs:complexType name="Price"><xs:simpleContent><xs:extension base="xs:decimal"/></xs:simpleContent></xs:complexType>
<xs:complexType name="Fee"><xs:simpleContent><xs:extension base="v:Price"><xs:attribute name="to" type="xs:string"/>
</xs:extension></xs:simpleContent></xs:complexType>
"""
CAR = {"@type": "{urn:v}Car", "plate": "A", "doors": 5, "tows": None}
TAXI = CAR | {"@type": "{urn:v}Taxi", "photo": b"\0\1"}
BUS = {"@type": "{urn:v}Bus", "plate": "B", "seats": 50}


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    wsdl = tmp_path / "v.wsdl"
    wsdl.write_text(one_operation(SCHEMA))
    return Contract(Documents(wsdl, lambda url: b""))


def there_and_back(contract: Contract, values: dict[str, Any]) -> dict[str, Any]:
    operation = contract.operation("Do")
    found = contract.request_values(operation, contract.request(operation, (), values))
    assert contract.request_values(operation, contract.reply(operation, found)) == found, "a handler may return it"
    return {name: found[name] for name in values}


PLACES: list[dict[str, Any]] = [
    {"vehicle": CAR},
    {"vehicle": BUS},
    {"vehicle": TAXI},
    {"vehicle": CAR | {"tows": TAXI | {"tows": BUS}}},
    {"many": [BUS, TAXI, BUS]},
    {"car": TAXI},
    {"whatever": BUS},
    {"price": {"@type": "{urn:v}Fee", "_value_1": 1, "to": "a"}},
    {"_value_1": [{"left": BUS}, {"right": CAR}]},
]


@pytest.mark.parametrize("values", PLACES, ids=lambda one: f"{one!r:.40}")
def test_a_value_of_a_derived_type_arrives_with_its_type(contract: Contract, values: dict[str, Any]) -> None:
    found = there_and_back(contract, values)
    if "_value_1" in values:  # the other element of each choice is absent
        found["_value_1"] = [{name: one for name, one in each.items() if one is not None} for each in found["_value_1"]]
    assert found == values


@pytest.mark.parametrize("name", ["Car", "{urn:v}Car", etree.QName("urn:v", "Car")], ids=str)
def test_the_local_name_is_enough_if_no_other_type_has_it(contract: Contract, name: Any) -> None:
    assert there_and_back(contract, {"vehicle": CAR | {"@type": name}}) == {"vehicle": CAR}


def test_a_value_of_the_declared_type_has_no_type(contract: Contract) -> None:
    plain = {"plate": "A", "doors": 5, "tows": None}
    assert there_and_back(contract, {"car": plain}) == {"car": plain}
    assert there_and_back(contract, {"car": CAR}) == {"car": plain}


@pytest.mark.parametrize(
    ("values", "says", "remedy"),
    [
        ({"vehicle": {"plate": "A"}}, "vehicle has the abstract type Vehicle", "{urn:v}Car, {urn:v}Taxi, {urn:v}Bus"),
        ({"many": [BUS, {"plate": "A"}]}, r"many\[1\] has the abstract type", "'@type'"),
        ({"lonely": {}}, "lonely has the abstract type", "the WSDL has none"),
        ({"vehicle": CAR | {"@type": "Cab"}}, "vehicle.@type: 'Cab' is no type of this value", "Did you mean 'Car'?"),
        ({"vehicle": CAR | {"@type": "Xyz"}}, "'Xyz' is no type", "Its types are: {urn:v}Car"),
        ({"vehicle": CAR | {"@type": "Vehicle"}}, "'Vehicle' is no type of this value", ""),
        ({"car": BUS}, "car.@type: '{urn:v}Bus' is no type of this value", ""),
        ({"vehicle": CAR | {"@type": 7}}, "'7' is no type", ""),
        ({"vehicle": CAR | {"@type": "a:Car"}}, "'a:Car' is no type", "Did you mean 'Car'?"),
        ({"vehicle": CAR | {"seats": 3}}, "vehicle has no field 'seats'", ""),
        ({"vehicle": TAXI | {"photo": "x"}}, "vehicle.photo takes bytes", ""),
        ({"@type": "Car"}, "@type: 'Car' is no type", ""),
    ],
    ids=lambda one: f"{one!r:.50}",
)
def test_a_type_that_does_not_fit_is_refused(
    contract: Contract, values: dict[str, Any], says: str, remedy: str
) -> None:
    with pytest.raises(EnvelopeError, match=says) as caught:
        contract.request(contract.operation("Do"), (), values)
    assert remedy in str(caught.value)


def test_json_has_the_same_key(contract: Contract) -> None:
    values = OperationValues(contract, "Do", "v.wsdl")
    given = {"vehicle": TAXI | {"photo": "AAE="}, "many": [BUS]}
    found = json.loads(values.reply(*values.message("it", json.dumps(given).encode())))
    assert {name: found[name] for name in given} == given
    with pytest.raises(ConfigurationError, match="abstract type Vehicle"):
        values.message("it", b'{"vehicle": {"plate": "A"}}')


SAME_NAME = SCHEMA.replace("</xs:schema>", "") + (
    '</xs:schema><xs:schema targetNamespace="urn:w" xmlns:w="urn:w"><xs:import namespace="urn:v"/>'
    '<xs:complexType name="Bus"><xs:complexContent><xs:extension base="v:Vehicle"><xs:attribute name="line" '
    'type="xs:int"/></xs:extension></xs:complexContent></xs:complexType>'
)


def test_a_name_of_two_types_needs_its_namespace(tmp_path: Path) -> None:
    wsdl = tmp_path / "v.wsdl"
    wsdl.write_text(one_operation(SAME_NAME))
    contract = Contract(Documents(wsdl, lambda url: b""))
    other = {"@type": "{urn:w}Bus", "plate": "B", "line": 5}
    assert there_and_back(contract, {"many": [BUS, other]}) == {"many": [BUS, other]}
    with pytest.raises(EnvelopeError, match="'Bus' is the name of several types") as caught:
        contract.request(contract.operation("Do"), (), {"vehicle": other | {"@type": "Bus"}})
    assert "{urn:v}Bus, {urn:w}Bus" in caught.value.remedy


def test_a_type_of_the_wsdl_precedes_one_of_xml_schema(tmp_path: Path) -> None:
    wsdl = tmp_path / "v.wsdl"
    wsdl.write_text(one_operation(SCHEMA.replace("Bus", "Name")))
    contract = Contract(Documents(wsdl, lambda url: b""))
    name = BUS | {"@type": "Name"}
    assert there_and_back(contract, {"whatever": name}) == {"whatever": name | {"@type": "{urn:v}Name"}}
    body = contract.request(contract.operation("Do"), (), {"whatever": {"@type": "xs:Name", "_value_1": "a"}})
    assert contract.request_values(contract.operation("Do"), body)["whatever"]["@type"].endswith("XMLSchema}Name")


BARE = SCHEMA.replace('<xs:element name="In">', '<xs:element name="Unused">') + '<xs:element name="In" type="v:Car"/>'


@pytest.mark.parametrize(("schema", "values"), [(SCHEMA, {"vehicle": TAXI}), (BARE, TAXI)], ids=["field", "body"])
async def test_a_handler_gets_and_returns_a_derived_type(
    serve: Any, tmp_path: Path, schema: str, values: dict[str, Any]
) -> None:
    wsdl = tmp_path / "v.wsdl"
    wsdl.write_text(one_operation(schema))
    app, got = Destination(":memory:", wsdl=wsdl), []

    @app.operation("Do")
    def do(**given: Any) -> Any:
        got.append(given)
        return given

    url = await serve(app)
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        reply = await source.call("Do", **values)
    assert {name: got[0][name] for name in values} == values
    assert {name: reply[name] for name in values} == values


async def test_a_handler_with_named_arguments_gets_no_type(serve: Any, tmp_path: Path) -> None:
    wsdl = tmp_path / "v.wsdl"
    wsdl.write_text(one_operation(BARE.replace('<xs:element name="photo" type="xs:base64Binary"/>', "")))
    app, got = Destination(":memory:", wsdl=wsdl), []

    @app.operation("Do")
    def do(plate: str, doors: int, tows: Any) -> Any:
        got.append((plate, doors, tows))
        return {"plate": plate, "doors": doors}

    url = await serve(app)
    async with await Source.from_wsdl(f"{url}?wsdl", ":memory:") as source:
        assert (await source.call("Do", **(CAR | {"@type": "Taxi"})))["plate"] == "A"
    assert got == [("A", 5, None)]


@pytest.mark.parametrize("fields", ["", '<xs:element name="x" type="xs:int"/>'], ids=["no field", "one field"])
def test_a_reply_may_itself_have_a_derived_type(tmp_path: Path, fields: str) -> None:
    schema = f"""<xs:complexType name="B"><xs:sequence>{fields}</xs:sequence></xs:complexType>
    <xs:complexType name="D"><xs:complexContent><xs:extension base="v:B"><xs:sequence>
    <xs:element name="y" type="xs:int"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>
    <xs:element name="In" type="v:B"/>"""
    (tmp_path / "v.wsdl").write_text(one_operation(schema))
    made = Contract(Documents(tmp_path / "v.wsdl", lambda url: b""))
    do = made.operation("Do")
    value = {"@type": "{urn:v}D"} | ({"x": 1} if fields else {}) | {"y": 2}
    assert made.reply_value(do, made.reply(do, value)) == value
    plain = 1 if fields else None
    assert made.reply_value(do, made.reply(do, plain)) == plain
