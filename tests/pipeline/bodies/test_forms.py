"""Bodies into columns and back: the same body, or a reason why not.

Random schemas have every construct in which the values of columns alone do not determine the body: choices and groups
that repeat, elements that are nillable and optional, attributes of nil elements, derived types, wildcards, mixed text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lxml import etree
from pyspark.sql import types as T

from examples import examples
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import Bodies
from holdfast.pipeline.bodies.forms import FORM
from holdfast.pipeline.bodies.leniencies import MAX_ELEMENTS
from holdfast.pipeline.bodies.reader import BodyReader
from holdfast.pipeline.mediation.transformations.writing import XMLWriter, shaped
from holdfast.pipeline.mediation.transformations.xsd import XSD

XSI = "http://www.w3.org/2001/XMLSchema-instance"
HEAD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:o" xmlns="urn:o" '
    'elementFormDefault="qualified">'
    '<xs:complexType name="Noted"><xs:sequence><xs:element name="in" type="xs:int" nillable="true" minOccurs="0"/>'
    '</xs:sequence><xs:attribute name="why" type="xs:string"/></xs:complexType>'
    '<xs:complexType name="Sum"><xs:simpleContent><xs:extension base="xs:int"><xs:attribute name="cur"/>'
    "</xs:extension></xs:simpleContent></xs:complexType>"
    '<xs:complexType name="Base"><xs:sequence><xs:element name="b" type="xs:int"/></xs:sequence></xs:complexType>'
    '<xs:complexType name="Derived"><xs:complexContent><xs:extension base="Base"><xs:sequence>'
    '<xs:element name="more" type="xs:int" minOccurs="0"/></xs:sequence></xs:extension></xs:complexContent>'
    '</xs:complexType><xs:complexType name="Mixed" mixed="true"><xs:sequence>'
    '<xs:element name="b" type="xs:int" minOccurs="0"/></xs:sequence></xs:complexType>'
    '<xs:complexType name="Open"><xs:sequence><xs:element name="b" type="xs:int"/>'
    '<xs:any namespace="##other" processContents="skip" minOccurs="0"/></xs:sequence>'
    '<xs:anyAttribute namespace="##other" processContents="skip"/></xs:complexType>'
)
TYPES = {"t": "xs:int", "n": "xs:int", "c": "Noted", "s": "Sum", "d": "Base", "m": "Mixed", "w": "Open"}
"""The first letter of an element's name -> its type: one name has one type in a schema."""
NILLABLE = "ncs"
OCCURS = [(1, 1), (0, 1), (1, 3), (0, 3), (2, 2)]


class Group:
    """A sequence, a choice or an ``all``, of elements' names and of other groups, each with how often it occurs."""

    def __init__(self, model: str, parts: list[tuple[Group | str, tuple[int, int]]]) -> None:
        self.model, self.parts = model, parts

    def xsd(self, occurs: tuple[int, int] = (1, 1)) -> str:
        inside = "".join(
            one.xsd(often)
            if isinstance(one, Group)
            else f'<xs:element name="{one}" type="{TYPES[one[0]]}" minOccurs="{often[0]}" maxOccurs="{often[1]}" '
            f'nillable="{str(one[0] in NILLABLE).lower()}"/>'
            for one, often in self.parts
        )
        return f'<xs:{self.model} minOccurs="{occurs[0]}" maxOccurs="{occurs[1]}">{inside}</xs:{self.model}>'

    def write(self, parent: Any, draw: Any, occurs: tuple[int, int] = (1, 1)) -> None:
        """Add children that are valid by this group."""
        for _ in range(draw(st.integers(*occurs))):
            parts = self.parts
            if self.model == "choice":
                parts = [draw(st.sampled_from(parts))]
            elif self.model == "all":
                parts = draw(st.permutations(parts))
            for one, often in parts:
                if isinstance(one, Group):
                    one.write(parent, draw, often)
                else:
                    for _ in range(draw(st.integers(*often))):
                        fill(etree.SubElement(parent, f"{{urn:o}}{one}"), draw)


def fill(element: Any, draw: Any) -> None:
    """Add valid content to an element, by the first letter of its name."""
    kind = etree.QName(element).localname[0]
    if kind == "c" and draw(st.booleans()):
        element.set("why", "w")
    if kind == "s" and draw(st.booleans()):
        element.set("cur", "EUR")
    if kind in NILLABLE and draw(st.booleans()):
        element.set(f"{{{XSI}}}nil", "true")
        return
    if kind in "tns":
        element.text = str(draw(st.integers(0, 9)))
    elif kind == "c" and draw(st.booleans()):
        inner = etree.SubElement(element, "{urn:o}in")
        if draw(st.booleans()):
            inner.set(f"{{{XSI}}}nil", "true")
        else:
            inner.text = "5"
    elif kind in "dmw":
        if kind == "m" and draw(st.booleans()):
            element.text = "text"
        if kind != "m" or draw(st.booleans()):
            etree.SubElement(element, "{urn:o}b").text = "1"
        if kind == "w" and draw(st.booleans()):
            etree.SubElement(element, "{urn:p}other").text = "1"
        if kind == "w" and draw(st.booleans()):
            element.set("{urn:p}other", "1")
        if kind == "d" and draw(st.booleans()):
            element.set(f"{{{XSI}}}type", "Derived")
            if draw(st.booleans()):
                etree.SubElement(element, "{urn:o}more").text = "2"


@st.composite
def groups(draw: st.DrawFn, depth: int = 2) -> Group:
    model = draw(st.sampled_from(["sequence", "choice", *(["all"] if depth == 2 else [])]))
    parts: list[tuple[Group | str, tuple[int, int]]] = []
    for _ in range(draw(st.integers(1, 3))):
        if depth and model != "all" and draw(st.integers(0, 2)) == 0:
            parts.append((draw(groups(depth - 1)), draw(st.sampled_from(OCCURS))))
        else:
            name = draw(st.sampled_from(sorted(TYPES))) + draw(st.sampled_from(["", "", "1", "2", "3"]))
            parts.append((name, draw(st.sampled_from(OCCURS[:2] if model == "all" else OCCURS))))
    return Group(model, parts)


def told(element: Any) -> Any:
    """What an element says, without its prefixes."""
    return element.tag, dict(element.attrib), (element.text or "").strip(), [told(child) for child in element]


@given(data=st.data())
@settings(max_examples=examples(300))
def test_a_body_is_written_as_it_was_read_or_the_reason_is_told(data: st.DataObject, tmp_path_factory: Any) -> None:
    group = data.draw(groups())
    nillable = data.draw(st.booleans())
    file = tmp_path_factory.getbasetemp() / "forms.xsd"
    file.write_text(
        f'{HEAD}<xs:element name="o" nillable="{str(nillable).lower()}"><xs:complexType>{group.xsd()}'
        '<xs:attribute name="id"/></xs:complexType></xs:element></xs:schema>'
    )
    try:
        xsd = XSD.read(file)
    except ConfigurationError:
        assume(False)  # two parts begin with one name: an XSD must be deterministic
    fields = xsd.columns("o")
    root = etree.Element("{urn:o}o", nsmap={None: "urn:o", "xsi": XSI})
    if nillable and data.draw(st.booleans()):
        root.set("id", "1")
        root.set(f"{{{XSI}}}nil", "true")
    else:
        group.write(root, data.draw)
    assert xsd.problems(etree.fromstring(etree.tostring(root))) == []
    body = etree.tostring(root)
    values, problem = BodyReader(fields).read(body)
    is_derived = any(element.get(f"{{{XSI}}}type") for element in root.iter())
    assert bool(problem) == is_derived, (body, problem)
    arrays, problems = Bodies(fields, (), MAX_ELEMENTS).read(pa.array([body.decode()] * 20))
    assert set(problems.to_pylist()) == {problem}
    if is_derived:
        assert "xsi:type is {urn:o}Derived, but the columns are those of {urn:o}Base" in str(problem)
        return
    assert {name: array[7].as_py() for name, array in zip(fields.fieldNames(), arrays, strict=True)} == values
    writer = XMLWriter(shaped(fields, fields, "o"), "urn:o", "o", "urn:o")
    is_unheld = any("urn:p" in str(one.tag) + str(one.attrib) or one.text == "text" for one in root.iter())
    if is_unheld:
        with pytest.raises(ValueError, match="content that no column holds"):
            writer.element(values)
        return
    written = writer.element(values)
    assert told(written) == told(root), (body, values)


def columns(tmp_path: Path, content: str) -> T.StructType:
    (tmp_path / "o.xsd").write_text(
        f'{HEAD}<xs:element name="o"><xs:complexType>{content}</xs:complexType></xs:element></xs:schema>'
    )
    return XSD.read(tmp_path / "o.xsd").columns("o")


ORDERED = (
    '<xs:sequence maxOccurs="unbounded"><xs:element name="key" type="xs:string"/>'
    '<xs:element name="val" type="xs:string" minOccurs="0"/></xs:sequence>'
)
OPTIONAL = '<xs:sequence><xs:element name="opt" type="xs:int" nillable="true" minOccurs="0"/></xs:sequence>'


@pytest.mark.parametrize(
    ("content", "body", "form"),
    [
        (ORDERED, "<key>a</key><key>b</key><val>vb</val>", None),
        (ORDERED, "<key>a</key><val>va</val><key>b</key>", "key val key"),
        (OPTIONAL, "", None),
        (OPTIONAL, "<opt>1</opt>", None),
        (OPTIONAL, f"<opt xmlns:xsi='{XSI}' xsi:nil='true'/>", "opt:nil"),
    ],
)
def test_the_form_is_null_unless_the_other_columns_are_ambiguous(
    tmp_path: Path, content: str, body: str, form: str | None
) -> None:
    values, problem = BodyReader(columns(tmp_path, content)).read(f"<o xmlns='urn:o'>{body}</o>".encode())
    assert problem is None
    assert values[FORM] == form


@pytest.mark.parametrize(
    "content",
    [
        '<xs:sequence><xs:element name="a" type="xs:int" maxOccurs="9"/><xs:element name="b"/></xs:sequence>',
        '<xs:choice><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int"/></xs:choice>',
        '<xs:sequence><xs:element name="a" type="xs:int" nillable="true"/></xs:sequence>',
        '<xs:sequence maxOccurs="9"><xs:element name="a" type="xs:int" nillable="true"/></xs:sequence>',
    ],
)
def test_an_element_whose_columns_determine_it_has_no_form(tmp_path: Path, content: str) -> None:
    assert FORM not in columns(tmp_path, content).fieldNames()


def test_a_row_with_other_children_than_its_form_names_is_refused(tmp_path: Path) -> None:
    fields = columns(tmp_path, ORDERED)
    writer = XMLWriter(fields, "urn:o", "o", "urn:o")
    for value in (
        {"key": ["b"], "val": ["va"]},
        {"key": ["a", "b", "c"], "val": ["va"]},
        {"key": ["a", "b"], "val": []},
    ):
        with pytest.raises(ValueError, match="set xml_form to null to write the children in the order of the columns"):
            writer.element({**value, FORM: "key val key"})
    written = etree.tostring(writer.element({"key": ["a", "b"], "val": ["v"], FORM: None}), encoding="unicode")
    assert written == '<o xmlns="urn:o"><key>a</key><key>b</key><val>v</val></o>'
    # of a nil child, a value set by SQL counts
    writer = XMLWriter(columns(tmp_path, OPTIONAL), "urn:o", "o", "urn:o")
    written = etree.tostring(writer.element({"opt": 5, FORM: "opt:nil"}), encoding="unicode")
    assert written == '<o xmlns="urn:o"><opt>5</opt></o>'


def test_a_struct_for_an_element_of_another_type_may_bring_its_form(tmp_path: Path) -> None:
    own = columns(tmp_path, ORDERED)
    other = columns(tmp_path, '<xs:sequence><xs:element name="key" type="xs:string" maxOccurs="9"/></xs:sequence>')
    assert shaped(T.StructType([own["key"], own[FORM]]), other, "o").fieldNames() == ["key"]
