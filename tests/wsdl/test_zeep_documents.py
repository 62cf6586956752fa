"""What other implementations accept in a WSDL, and zeep or libxml2 does not. All was found in public WSDLs.

Covers wsdl/zeep_documents.py and wsdl/schemas.py.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from bodies import elements, of, read, written
from one_operation import one_operation

from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.documents import Documents, Schema

LISTS = """<xs:simpleType name="Numbers"><xs:list itemType="xs:int"/></xs:simpleType>
<xs:simpleType name="Two"><xs:restriction base="v:Numbers"><xs:length value="2"/></xs:restriction></xs:simpleType>
<xs:simpleType name="Same"><xs:restriction base="v:Two"><xs:enumeration value="1 1"/></xs:restriction></xs:simpleType>
<xs:simpleType name="Days"><xs:restriction><xs:simpleType><xs:list><xs:simpleType><xs:restriction base="xs:date"/>
</xs:simpleType></xs:list></xs:simpleType><xs:maxLength value="3"/></xs:restriction></xs:simpleType>
<xs:simpleType name="Small"><xs:restriction base="xs:int"><xs:maxInclusive value="9"/></xs:restriction></xs:simpleType>
<xs:simpleType name="Smalls"><xs:restriction base="v:All"><xs:minLength value="1"/></xs:restriction></xs:simpleType>
<xs:simpleType name="All"><xs:list itemType="v:Small"/></xs:simpleType>
<xs:complexType name="Both"><xs:simpleContent><xs:extension base="v:Two"><xs:attribute name="a" type="v:Smalls"/>
</xs:extension></xs:simpleContent></xs:complexType>"""


@pytest.mark.parametrize(
    ("kind", "content", "value", "wrong"),
    [
        ("Two", "<v:n>3 4</v:n>", [3, 4], "<v:n>3</v:n>"),
        ("Same", "<v:n>1 1</v:n>", [1, 1], "<v:n>3 4</v:n>"),
        ("Days", "<v:n>2026-11-30</v:n>", [datetime.date(2026, 11, 30)], "<v:n>30.11.</v:n>"),
        ("Smalls", "<v:n>8 9</v:n>", [8, 9], "<v:n>10</v:n>"),
        ("Both", "<v:n a='8 9'>3 4</v:n>", {"_value_1": [3, 4], "a": [8, 9]}, "<v:n a=''>3 4</v:n>"),
    ],
)
def test_a_restriction_of_a_list_is_a_list(kind: str, content: str, value: Any, wrong: str) -> None:
    made = of(f'<xs:sequence><xs:element name="n" type="v:{kind}"/></xs:sequence>', LISTS)
    assert read(made, content) == {"n": value}
    assert written(made, {"n": value}) == elements(content)
    with pytest.raises(EnvelopeError, match="n"):
        read(made, wrong)


@pytest.mark.parametrize("base", ["v:Numbers", "v:Two"])
def test_a_restricted_list_may_be_in_another_schema_with_other_prefixes(tmp_path: Path, base: str) -> None:
    (tmp_path / "k.xsd").write_text(
        '<schema xmlns="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:k" xmlns:own="urn:k">'
        '<simpleType name="Numbers"><list itemType="own:Number"/></simpleType><simpleType name="Number">'
        '<restriction base="int"/></simpleType><simpleType name="Two"><restriction base="own:Numbers"/></simpleType>'
        "</schema>"
    )
    schema = (
        '<xs:import namespace="urn:k" schemaLocation="k.xsd"/><xs:element name="In"><xs:complexType><xs:sequence>'
        '<xs:element name="n"><xs:simpleType><xs:restriction base="KIND" xmlns:k="urn:k"/></xs:simpleType></xs:element>'
        "</xs:sequence></xs:complexType></xs:element>"
    )
    (tmp_path / "in.wsdl").write_text(one_operation(schema.replace("KIND", base.replace("v:", "k:"))))
    made = Contract(Documents(tmp_path / "in.wsdl", lambda url: b""))
    assert written(made, {"n": [1, 2]}) == [("n", "1 2")]


NULLABLE = '<xs:element name="{}" type="xs:int" nillable="true"/>'


@pytest.mark.parametrize(
    ("attributes", "values", "content"),
    [
        ("", {"a": None, "b": None}, "<v:a i:nil='1'/><v:b i:nil='1'/>"),
        ("", {"a": 1, "b": None}, "<v:a>1</v:a><v:b i:nil='1'/>"),
        ('minOccurs="0"', {"a": None, "b": None}, ""),
        ('minOccurs="1"', {"a": None, "b": None}, "<v:a i:nil='1'/><v:b i:nil='1'/>"),
    ],
)
def test_what_a_group_of_all_needs_is_nil_if_it_is_none(attributes: str, values: dict[str, Any], content: str) -> None:
    made = of(f"<xs:all {attributes}>{NULLABLE.format('a')}{NULLABLE.format('b')}</xs:all>")
    assert written(made, values) == elements(content)
    assert read(made, content) == values


def test_a_part_of_an_optional_group_of_all_is_refused() -> None:
    made = of(f'<xs:all minOccurs="0">{NULLABLE.format("a")}{NULLABLE.format("b")}</xs:all>')
    with pytest.raises(EnvelopeError, match="b"):
        written(made, {"a": 1})


def test_a_header_block_needs_no_use(tmp_path: Path) -> None:
    block = '<soap:header message="v:m" part="q"><soap:headerfault message="v:m" part="q"/></soap:header>'
    text = one_operation('<xs:element name="In" type="xs:int"/><xs:element name="Head" type="xs:int"/>')
    text = text.replace("</wsdl:message>", '<wsdl:part name="q" element="v:Head"/></wsdl:message>')
    (tmp_path / "in.wsdl").write_text(text.replace('<soap:body use="literal"/>', f'<soap:body use="literal"/>{block}'))
    made = Contract(Documents(tmp_path / "in.wsdl", lambda url: b""))
    do = made.operation("Do")
    assert made.request_values(do, made.request(do, (5,), {})) == 5


@pytest.mark.parametrize("block", ['message="v:none" part="q"', 'message="v:m" part="none"'])
def test_a_header_block_that_the_wsdl_lacks_is_left_out(tmp_path: Path, block: str) -> None:
    text = one_operation('<xs:element name="In" type="xs:int"/>')
    block = f'<soap:body use="literal"/><soap:header {block} use="literal"/>'
    (tmp_path / "in.wsdl").write_text(text.replace('<soap:body use="literal"/>', block))
    made = Contract(Documents(tmp_path / "in.wsdl", lambda url: b""))
    do = made.operation("Do")
    assert made.request_values(do, made.request(do, (5,), {})) == 5
    assert not do.headers


def test_an_inline_schema_may_use_another_one_that_it_does_not_import(tmp_path: Path) -> None:
    other = '<xs:schema targetNamespace="urn:o"><xs:complexType name="O"><xs:attribute name="a"/></xs:complexType>'
    schema = '<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="n" type="o:O" xmlns:o="urn:o"/>'
    text = one_operation(f"{schema}</xs:sequence></xs:complexType></xs:element>")
    (tmp_path / "in.wsdl").write_text(text.replace("<wsdl:types>", f"<wsdl:types>{other}</xs:schema>"))
    made = Contract(Documents(tmp_path / "in.wsdl", lambda url: b""))
    made.compile_schema()
    assert read(made, "<v:n a='x'/>") == {"n": {"a": "x"}}


def test_restrictions_of_restrictions_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    of_schema = Schema.named
    monkeypatch.setattr(Schema, "named", lambda self, user, name: named.append(1) or of_schema(self, user, name))
    counts = []
    for number in (10, 40):
        chain = "".join(
            f'<xs:simpleType name="T{one + 1}"><xs:restriction base="v:T{one}"/></xs:simpleType>'
            for one in range(number)
        )
        named.clear()
        schema = f'<xs:simpleType name="T0"><xs:list itemType="xs:int"/></xs:simpleType>{chain}'
        made = of(f'<xs:sequence><xs:element name="n" type="v:T{number}"/></xs:sequence>', schema)
        assert read(made, "<v:n>1 2</v:n>") == {"n": [1, 2]}
        counts.append(len(named))
    assert counts[1] < 5 * counts[0], "else a WSDL of a peer stops the program that loads it"


def test_restrictions_in_a_circle_end() -> None:
    circle = "".join(
        f'<xs:simpleType name="T{one}"><xs:restriction base="v:T{1 - one}"/></xs:simpleType>' for one in range(2)
    )
    with pytest.raises(ConfigurationError):
        of('<xs:sequence><xs:element name="n" type="v:T0"/></xs:sequence>', circle)
