"""A structure of a valid body keeps whether it was there, and all that it had."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from bodies import elements, of, read, written
from lxml import etree

from holdfast.exceptions import EnvelopeError

INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
INNER = (
    '<xs:complexType name="Inner"><xs:sequence><xs:element name="a" type="xs:int"{}/></xs:sequence></xs:complexType>'
)
MANY = '<xs:sequence><xs:element name="n" type="v:Inner" nillable="true" maxOccurs="9"/></xs:sequence>'
NIL = '<v:n i:nil="true"/>'


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (NIL, [None]),
        (f"<v:n><v:a>0</v:a></v:n>{NIL}", [{"a": 0}, None]),
    ],
)
def test_a_nil_structure_is_none(content: str, values: list[Any]) -> None:
    made = of(MANY, INNER.format(""))
    assert read(made, content) == {"n": values}
    assert written(made, {"n": values}) == elements(content)


ATTRIBUTES = """<xs:attribute name="k" type="xs:int" use="required"/><xs:attribute name="o"/>
<xs:anyAttribute processContents="lax"/>"""
CONTENTS = {
    "text": f'<xs:simpleContent><xs:extension base="xs:int">{ATTRIBUTES}</xs:extension></xs:simpleContent>',
    "fields": '<xs:sequence><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int" maxOccurs="2"/>'
    f"</xs:sequence>{ATTRIBUTES}",
    "groups": '<xs:sequence><xs:choice maxOccurs="2"><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:'
    f'int"/></xs:choice><xs:any namespace="##other"/></xs:sequence>{ATTRIBUTES}',
    "nothing": ATTRIBUTES,
}
DERIVED = """<xs:complexType name="D"><xs:{0}Content><xs:extension base="v:N"><xs:attribute name="d"/></xs:extension>
</xs:{0}Content></xs:complexType><xs:element name="h" type="v:N" nillable="true"/>
<xs:element name="m" type="v:D" substitutionGroup="v:h" nillable="true"/>"""
WAYS = {
    "one": ('<xs:element name="n" type="v:N" nillable="true"/>', "<v:n {}/>"),
    "several": ('<xs:element name="n" type="v:N" nillable="true" maxOccurs="9"/>', "<v:n {}/>" * 3),
    "group": (
        '<xs:choice maxOccurs="9"><xs:element name="n" type="v:N" nillable="true"/></xs:choice>',
        "<v:n {}/>" * 2,
    ),
    "derived": ('<xs:element name="n" type="v:N" nillable="true"/>', "<v:n {} i:type='v:D' d='3'/>"),
    "open": ('<xs:element name="n" type="xs:anyType" nillable="true"/>', "<v:n {} i:type='v:D' d='3'/>"),
    "member": ('<xs:element ref="v:h"/>', "<v:m {} d='3'/>"),
    "head": ('<xs:element ref="v:h"/>', "<v:h {}/>"),
    "wildcard": ('<xs:any processContents="lax"/>', "<v:m {}/>"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("is_json", [False, True])
def test_a_nil_structure_keeps_its_attributes(content: str, way: str, is_json: bool) -> None:
    field, given = WAYS[way]
    derived = DERIVED.format("simple" if content == "text" else "complex")
    made = of(
        f"<xs:sequence>{field}</xs:sequence>", f'<xs:complexType name="N">{CONTENTS[content]}</xs:complexType>{derived}'
    )
    do = made.operation("Do")
    given = given.replace("{}", "i:nil='true' k='1' z='5'")
    body = f'<v:In xmlns:v="urn:v" xmlns:i="{INSTANCE}">{given}</v:In>'.encode()
    found = made.reply_value(do, body, is_json=is_json)
    assert shown(made.reply(do, found)) == shown(body)


def shown(body: bytes) -> list[Any]:
    """Return the names and attributes of the elements of a body."""
    found = etree.fromstring(body).iter()
    return [(one.tag, {name: text.rpartition(":")[2] for name, text in one.items()}) for one in found]


def test_a_nil_structure_with_attributes_says_so_and_takes_no_content() -> None:
    made = of(MANY.replace("v:Inner", "v:N"), f'<xs:complexType name="N">{CONTENTS["text"]}</xs:complexType>')
    values = {"@nil": True, "_value_1": None, "k": 1, "o": None, "_attr_1": {}}
    assert read(made, f"{NIL[:-2]} k='1'/>") == {"n": [values]}
    do = made.operation("Do")
    assert made.request(do, (), {"n": [values]}) == made.request(do, (), {"n": [{"@nil": True, "k": 1}]})
    with pytest.raises(EnvelopeError, match=r"n\[0\]._value_1 has a value, but n\[0\] is nil"):
        made.request(do, (), {"n": [values | {"_value_1": 0}]})
    for wrong in ({"@nil": True}, {"@nil": True, "o": "1"}, {"@nil": True, "k": "x"}, {"@nil": True, "k": 1, "p": 1}):
        with pytest.raises(EnvelopeError, match=r"k|'p'|n\[0\].p"):
            made.request(do, (), {"n": [wrong]})


def test_an_empty_structure_is_not_nil() -> None:
    made = of(MANY, INNER.format(' minOccurs="0"'))
    assert read(made, f"<v:n/>{NIL}") == {"n": [{"a": None}, None]}
    body = made.request(made.operations["Do"], (), {"n": [{"a": None}, None]})
    assert body.count(b"nil=") == 1


def test_a_structure_without_fields_is_present_or_absent() -> None:
    made = of(
        '<xs:sequence><xs:element name="e" type="v:Empty" minOccurs="0"/></xs:sequence>',
        '<xs:complexType name="Empty"/>',
    )
    assert read(made, "<v:e/>") == {"e": {}}
    assert read(made, "") == {"e": None}
    assert written(made, {"e": {}}) == [("e", "")]
    assert written(made, {"e": None}) == []


def test_open_attributes_are_those_of_the_body_and_no_others() -> None:
    made = of('<xs:sequence/><xs:anyAttribute processContents="lax"/>')
    assert read(made, "", 'xmlns:o="urn:o" o:z="1"') == {"_attr_1": {"{urn:o}z": "1"}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"{urn:x}a": 1}, "_attr_1['{urn:x}a'] takes text, not a value of the type int."),
        ({"{urn:x}a": None}, "_attr_1['{urn:x}a'] takes text, not a value of the type NoneType."),
        ({"{urn:x}a": "\0"}, r"_attr_1['{urn:x}a'] has the character '\x00', which XML does not allow."),
        ({"{urn:x a": "1"}, "_attr_1['{urn:x a'] takes '{namespace}name' as its name, not '{urn:x a'."),
        ({1: "1"}, "_attr_1[1] takes a text as its name, not a value of the type int."),
        ("x", "_attr_1 takes a dict of names and texts, not 'x'."),
    ],
)
def test_a_wrong_open_attribute_is_refused_by_its_name(given: Any, says: str) -> None:
    inner = '<xs:complexType name="T"><xs:anyAttribute processContents="lax"/></xs:complexType>'
    made = of('<xs:sequence><xs:element name="e" type="v:T"/></xs:sequence>', inner)
    with pytest.raises(EnvelopeError) as refused:
        made.request(made.operations["Do"], (), {"e": {"_attr_1": given}})
    assert refused.value.message.endswith(f"e.{says}")


class Words(enum.StrEnum):
    ONE = "one"


@pytest.mark.parametrize("name", ["a", "{urn:x}a", b"{urn:x}a", etree.QName("urn:x", "a"), "{urn:x", b"\xff", 1])
@pytest.mark.parametrize(
    "value",
    ["é", Words.ONE, b"1", bytearray(b"1"), etree.QName("urn:y", "b"), "\0", b"\0", b"\xc3\xa9", "\ud800", 1, None],
)
def test_an_open_attribute_is_what_lxml_writes_or_refused_by_its_name(name: Any, value: Any) -> None:
    inner = '<xs:complexType name="T"><xs:anyAttribute processContents="lax"/></xs:complexType>'
    made = of('<xs:sequence><xs:element name="e" type="v:T"/></xs:sequence>', inner)
    expected = etree.Element("e")
    try:
        expected.set(name, value)
    except (TypeError, ValueError):
        with pytest.raises(EnvelopeError, match=r"e\._attr_1"):
            made.request(made.operations["Do"], (), {"e": {"_attr_1": {name: value}}})
        return
    body = etree.fromstring(made.request(made.operations["Do"], (), {"e": {"_attr_1": {name: value}}}))
    assert [etree.QName(key).text for key in body[0].attrib] == list(expected.attrib)
    (got,), (wanted,) = body[0].attrib.values(), expected.attrib.values()
    if isinstance(value, etree.QName):
        got, wanted = (
            etree.QName(one.nsmap[text.partition(":")[0]], "b").text
            for one, text in ((body[0], got), (expected, wanted))
        )
    assert got == wanted


@pytest.mark.parametrize("content", ["one<v:b>2</v:b>", "<v:b>1</v:b> two"])
def test_text_between_elements_is_refused_and_not_lost(content: str) -> None:
    made = of('<xs:sequence><xs:element name="b" type="xs:string"/></xs:sequence>', attributes='mixed="true"')
    with pytest.raises(EnvelopeError, match=r"In has the text .* between its elements") as refused:
        read(made, content)
    assert "@app.on" in refused.value.remedy
    assert read(made, "\n  <v:b>2</v:b>\n") == {"b": "2"}


@pytest.mark.parametrize("name", ["é", "Straße", "名"])
def test_names_outside_ascii_are_written(name: str) -> None:
    made = of(f'<xs:sequence><xs:element name="{name}" type="xs:string"/></xs:sequence>')
    assert written(made, read(made, f"<v:{name}>ü</v:{name}>")) == [(name, "ü")]


@pytest.mark.parametrize("text", ["2024-01-01Z", "2024-01-01+02:00", "2024-02-29"])
def test_a_date_keeps_its_time_zone(text: str) -> None:
    made = of('<xs:sequence><xs:element name="d" type="xs:date"/></xs:sequence>')
    values = read(made, f"<v:d>{text}</v:d>")
    assert values["d"].isoformat() == text
    assert values["d"].replace(year=2028).isoformat() == f"2028{text[4:10]}"
    assert written(made, values) == [("d", text)]


def test_a_body_in_another_namespace_is_refused_with_both_names() -> None:
    made = of("<xs:sequence/>")
    with pytest.raises(EnvelopeError, match=r"takes the element \{urn:v\}In, not the element \{urn:w\}In"):
        made.request_values(made.operations["Do"], b'<In xmlns="urn:w"/>')
