"""What the typed module and the description of a WSDL say of the fields of a type. Covers wsdl/shapes.py."""

from __future__ import annotations

from bodies import of

from holdfast.wsdl.shapes import Field, Shapes
from holdfast.wsdl.stubs import typed_module

INT = '<xs:element name="{}" type="xs:int"/>'


def fields(content: str) -> dict[str, Field]:
    made = of(f"<xs:sequence>{content}</xs:sequence>")
    return {one.name: one for one in Shapes(made).input(made.operations["Do"])}


def test_each_alternative_of_a_choice_may_be_absent_however_deep() -> None:
    inner = f"<xs:choice>{INT.format('a')}<xs:sequence>{INT.format('b')}{INT.format('c')}</xs:sequence></xs:choice>"
    found = fields(inner + INT.format("d") + f'<xs:sequence minOccurs="0">{INT.format("e")}</xs:sequence>')
    assert {name: one.is_optional for name, one in found.items()} == {
        "a": True,
        "b": True,
        "c": True,
        "d": False,
        "e": True,
    }


def test_a_repeated_group_is_a_list_of_structures_with_its_fields() -> None:
    found = fields(
        f'<xs:choice minOccurs="0" maxOccurs="unbounded">{INT.format("a")}{INT.format("b")}</xs:choice>'
        f'<xs:sequence maxOccurs="2">{INT.format("c")}</xs:sequence>'
    )
    choice, group = found["_value_1"], found["_value_2"]
    assert choice.is_list
    assert choice.is_optional
    assert [(one.name, one.is_optional) for one in choice.shape.fields] == [("a", True), ("b", True)]
    assert group.is_list
    assert not group.is_optional
    assert [(one.name, one.is_optional) for one in group.shape.fields] == [("c", False)]


def test_an_item_of_a_list_that_may_be_nil_may_be_none() -> None:
    many = '<xs:element name="n" type="xs:int" nillable="true" maxOccurs="unbounded"/>'
    assert "n: list[int | None]," in typed_module(of(f"<xs:sequence>{many}</xs:sequence>"))
