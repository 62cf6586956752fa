"""XML Schemas from files: which columns they make, what they refuse, and that nothing is fetched.

Covers pipeline/mediation/transformations/xsd.py and pipeline/mediation/transformations/xsd_columns.py.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from pyspark.sql.types import StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.mediation.transformations.xsd import XSD

HEAD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:o" xmlns="urn:o" '
    'elementFormDefault="qualified">'
)


def schema(directory: Path, inside: str, name: str = "o.xsd", head: str = HEAD) -> XSD:
    return XSD.read(saved(directory, inside, name, head))


def saved(directory: Path, inside: str, name: str = "o.xsd", head: str = HEAD) -> Path:
    path = directory / name
    path.write_text(f"{head}{inside}</xs:schema>")
    return path


def element(kind: str, name: str = "o") -> str:
    return f'<xs:element name="{name}"><xs:complexType>{kind}</xs:complexType></xs:element>'


def places(columns: StructType) -> dict[str, tuple[str, dict[str, Any]]]:
    return {field.name: (field.dataType.simpleString(), field.metadata) for field in columns.fields}


ORDER = (
    '<xs:include schemaLocation="types.xsd"/>'
    '<xs:import namespace="http://www.w3.org/XML/1998/namespace" schemaLocation="http://www.w3.org/2001/xml.xsd"/>'
    + element(
        '<xs:sequence><xs:element name="id" type="xs:int"/><xs:element name="amount" type="Amount" nillable="true"/>'
        '<xs:choice maxOccurs="unbounded"><xs:element name="line" type="Line"/>'
        '<xs:element name="note" type="xs:string"/></xs:choice>'
        '<xs:any namespace="##other" minOccurs="0" processContents="lax"/></xs:sequence>'
        '<xs:attribute name="id" type="xs:string"/><xs:attribute ref="xml:lang"/>'
    )
)
TYPES = (
    '<xs:complexType name="Amount"><xs:simpleContent><xs:extension base="Money">'
    '<xs:attribute name="currency" type="xs:string"/></xs:extension></xs:simpleContent></xs:complexType>'
    '<xs:simpleType name="Money"><xs:restriction base="xs:decimal"><xs:totalDigits value="12"/>'
    '<xs:fractionDigits value="2"/></xs:restriction></xs:simpleType>'
    '<xs:complexType name="Base"><xs:sequence><xs:element name="sku" type="xs:string"/></xs:sequence></xs:complexType>'
    '<xs:complexType name="Line"><xs:complexContent><xs:extension base="Base"><xs:sequence>'
    '<xs:element name="n" type="xs:positiveInteger" form="unqualified"/></xs:sequence></xs:extension>'
    "</xs:complexContent></xs:complexType>"
)
BODY = (
    "<o xmlns='urn:o' id='A' xml:lang='de'><id>{}</id>\n<amount currency='EUR'>{}</amount>"
    "<line><sku>a</sku><n xmlns=''>2</n></line></o>"
)


def test_the_columns_of_an_element_are_its_children_attributes_and_text(tmp_path: Path) -> None:
    saved(tmp_path, TYPES, "types.xsd")
    columns = schema(tmp_path, ORDER).columns()
    of_o = {"xml": "element", "namespace": "urn:o"}
    assert places(columns) == {
        "id": ("int", of_o),
        "amount": ("struct<value:decimal(12,2),currency:string,xml_form:string>", {**of_o, "nil": True}),
        "line": ("array<struct<sku:string,n:decimal(38,0)>>", of_o),
        "note": ("array<string>", of_o),
        "id_attribute": ("string", {"xml": "attribute", "namespace": "", "name": "id"}),
        "lang": ("string", {"xml": "attribute", "namespace": "http://www.w3.org/XML/1998/namespace"}),
        "xml_form": ("string", {"xml": "form", "children": True}),
    }
    assert columns["amount"].dataType["value"].metadata == {"xml": "text"}
    assert columns["line"].dataType.elementType["n"].metadata == {"xml": "element", "namespace": ""}
    values, problem = BodyReader(columns).read(BODY.format(7, "1.20").encode())
    assert problem is None
    assert (values["id"], values["id_attribute"], values["lang"]) == (7, "A", "de")
    assert str(values["amount"]["value"]) == "1.2"


def test_a_task_validates_without_any_file(tmp_path: Path) -> None:
    types = saved(tmp_path, TYPES, "types.xsd")
    sent = pickle.dumps(schema(tmp_path, ORDER))
    types.unlink()
    (tmp_path / "o.xsd").unlink()
    there: XSD = pickle.loads(sent)
    assert there.problems(etree.fromstring(BODY.format(7, "1.20"))) == []
    first, second = there.problems(etree.fromstring(BODY.format("x", "1.234")))
    assert first.startswith("line 1: Element '{urn:o}id': 'x' is not a valid value")
    assert second.startswith("line 2: Element '{urn:o}amount': [facet 'fractionDigits']")
    (other,) = there.problems(etree.fromstring("<p/>"))
    assert "No matching global declaration" in other


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("boolean", "boolean"),
        ("float", "float"),
        ("byte", "tinyint"),
        ("unsignedByte", "smallint"),
        ("unsignedInt", "bigint"),
        ("unsignedLong", "decimal(20,0)"),
        ("nonNegativeInteger", "decimal(38,0)"),
        ("decimal", "decimal(38,18)"),
        ("date", "date"),
        ("dateTime", "timestamp"),
        ("duration", "string"),
        ("base64Binary", "string"),
        ("NMTOKENS", "string"),
        ("anySimpleType", "string"),
    ],
)
def test_each_simple_type_is_held_without_loss(tmp_path: Path, kind: str, held: str) -> None:
    inside = f'<xs:element name="o" type="xs:{kind}"/>'
    assert places(schema(tmp_path, inside).columns()) == {"value": (held, {"xml": "text"})}


def test_digits_that_facets_promise_make_a_type_narrow(tmp_path: Path) -> None:
    def held(base: str, facets: str) -> str:
        kind = f'<xs:simpleType name="T"><xs:restriction base="xs:{base}">{facets}</xs:restriction></xs:simpleType>'
        (field,) = schema(tmp_path, f'<xs:element name="o" type="T"/>{kind}').columns().fields
        return str(field.dataType.simpleString())

    assert held("integer", '<xs:totalDigits value="9"/>') == "bigint"
    assert held("integer", '<xs:totalDigits value="30"/>') == "decimal(38,0)"
    assert held("decimal", '<xs:fractionDigits value="3"/>') == "decimal(38,3)"
    assert held("string", '<xs:enumeration value="a"/>') == "string"


def test_an_element_is_chosen_by_its_name(tmp_path: Path) -> None:
    two = schema(tmp_path, '<xs:element name="one" type="xs:int"/><xs:element name="other" type="xs:int"/>')
    assert two.element("one") == two.element("{urn:o}one") == "{urn:o}one"
    with pytest.raises(ConfigurationError, match="declares 2 elements") as caught:
        two.element()
    assert caught.value.remedy == "Name one of them: {urn:o}one, {urn:o}other"
    with pytest.raises(ConfigurationError, match="declares no element 'oter'") as caught:
        two.element("oter")
    assert caught.value.remedy == "Did you mean 'other'?"


def test_children_may_be_of_substitution_groups_groups_and_other_namespaces(tmp_path: Path) -> None:
    saved(
        tmp_path,
        '<xs:element name="note" type="xs:int"/>',
        "other.xsd",
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:p">',
    )
    inside = (
        '<xs:import namespace="urn:p" schemaLocation="other.xsd"/>'
        '<xs:element name="shape" type="xs:string" abstract="true"/>'
        '<xs:element name="round" type="xs:string" substitutionGroup="shape"/>'
        '<xs:group name="g"><xs:sequence><xs:element name="note" type="xs:string"/>'
        '<xs:element ref="p:note"/></xs:sequence></xs:group>'
        + element('<xs:sequence><xs:element ref="shape"/><xs:group ref="g"/></xs:sequence>')
    )
    columns = schema(tmp_path, inside, head=HEAD[:-1] + ' xmlns:p="urn:p">').columns("o")
    assert places(columns) == {
        "round": ("string", {"xml": "element", "namespace": "urn:o"}),
        "note": ("string", {"xml": "element", "namespace": "urn:o"}),
        "note_2": ("int", {"xml": "element", "namespace": "urn:p", "name": "note"}),
    }
    values, _ = BodyReader(columns).read(
        b"<o xmlns='urn:o'><round>r</round><note>n</note><note xmlns='urn:p'>2</note></o>"
    )
    assert values == {"round": "r", "note": "n", "note_2": 2}


@pytest.mark.parametrize(
    ("content", "required"),
    [
        ('<xs:sequence><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int" minOccurs="0"/>'
         '<xs:element name="c" type="xs:int" nillable="true" maxOccurs="5"/></xs:sequence>', "a c"),
        ('<xs:all><xs:element name="a" type="xs:int"/></xs:all>', "a"),
        ('<xs:sequence minOccurs="0"><xs:element name="a" type="xs:int"/></xs:sequence>', ""),
        ('<xs:choice><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int"/></xs:choice>', ""),
        ('<xs:choice><xs:element name="a" type="xs:int"/></xs:choice>', "a"),
        ('<xs:sequence><xs:choice><xs:sequence><xs:element name="a" type="xs:int"/></xs:sequence>'
         '<xs:element name="b" type="xs:int"/></xs:choice><xs:element name="b" type="xs:int"/></xs:sequence>', "b"),
        ('<xs:sequence><xs:element ref="shape"/><xs:element ref="alone"/></xs:sequence>', "one"),
        ('<xs:sequence><xs:element name="a" type="xs:int"/></xs:sequence>'
         '<xs:attribute name="a" use="required"/><xs:attribute name="b"/>', "a a_attribute"),
        ('<xs:simpleContent><xs:extension base="xs:int"><xs:attribute name="u" use="required"/></xs:extension>'
         '</xs:simpleContent>', "u value"),
        ('<xs:simpleContent><xs:extension base="xs:string"/></xs:simpleContent>', ""),
    ],
)  # fmt: skip
def test_the_columns_are_known_without_which_an_element_is_not_valid(
    tmp_path: Path, content: str, required: str
) -> None:
    groups = (
        '<xs:element name="shape" type="xs:string" abstract="true"/>'
        '<xs:element name="round" type="xs:string" substitutionGroup="shape"/>'
        '<xs:element name="square" type="xs:string" substitutionGroup="shape"/>'
        '<xs:element name="alone" type="xs:string" abstract="true"/>'
        '<xs:element name="one" type="xs:string" substitutionGroup="alone"/>'
    )
    assert sorted(schema(tmp_path, groups + element(content)).required("o")) == required.split()


@pytest.mark.parametrize(("kind", "required"), [("xs:int", {"value"}), ("xs:string", set())])
def test_a_single_value_is_required_unless_its_text_may_be_empty(tmp_path: Path, kind: str, required: set[str]) -> None:
    assert schema(tmp_path, f'<xs:element name="o" type="{kind}"/>').required() == required


@pytest.mark.parametrize(
    ("inside", "what"),
    [
        ('<xs:import namespace="urn:x" schemaLocation="http://127.0.0.1:9/x.xsd"/>', "which is on a network"),
        ('<xs:include schemaLocation="//host/x.xsd"/>', "which is on a network"),
        ('<xs:include schemaLocation="nowhere.xsd"/>', "nowhere.xsd cannot be read"),
        ('<xs:element name="o" type="Missing"/>', "is not valid"),
        ('<xs:complexType name="T"><xs:sequence><xs:element name="t" type="T" minOccurs="0"/></xs:sequence>'
         '</xs:complexType><xs:element name="o" type="T"/>', "contains itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_a_remedy(tmp_path: Path, inside: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        schema(tmp_path, inside).columns()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("<a/>", "is not an XML Schema"),
        ("<a", "is not XML"),
        ('<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/hostname">]><a>&e;</a>', "has a DTD"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / "o.xsd").write_text(content)
    with pytest.raises(ConfigurationError, match=what):
        XSD.read(tmp_path / "o.xsd")
