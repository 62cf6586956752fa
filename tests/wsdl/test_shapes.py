"""What the typed module and the description of a WSDL say of the fields of a type. Covers wsdl/shapes.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bodies import of

from holdfast.wsdl.shapes import MOST_CHOICES, Field, Shapes
from holdfast.wsdl.stubs import typed_module
from holdfast.wsdl.words import in_words

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


def test_an_optional_argument_may_be_nil_if_the_schema_says_so() -> None:
    one = '<xs:element name="{}" type="xs:int" minOccurs="0"/>'
    nillable = one.format("n").replace("/>", ' nillable="true"/>')
    module = typed_module(of(f"<xs:sequence>{nillable}{one.format('m')}</xs:sequence>"))
    assert "n: int | NilValue | None = None, m: int | None = None," in module
    assert "NilValue" not in typed_module(of(f"<xs:sequence>{one.format('m')}</xs:sequence>"))
    namespace: dict[str, object] = {}
    exec(module, namespace)
    assert "NilValue" in str(namespace["__all__"])


def test_a_reply_of_listed_values_makes_a_module_that_python_reads() -> None:
    kind = '<xs:simpleType name="K"><xs:restriction base="xs:string"><xs:enumeration value="a&quot;b"/>'
    content = '<xs:sequence><xs:element name="n" type="v:K"/></xs:sequence>'
    module = typed_module(of(content, f"{kind}</xs:restriction></xs:simpleType>"))
    compile(module, "stubs.py", "exec")
    assert """-> Literal["a\\"b"]:""" in module


# --- values that name their type or element ---------------------------------------------------------------------------

FAMILY = """<xs:complexType name="Vehicle" abstract="true"><xs:sequence><xs:element name="plate" type="xs:string"/>
</xs:sequence></xs:complexType>
<xs:complexType name="Car"><xs:complexContent><xs:extension base="v:Vehicle"><xs:sequence>
<xs:element name="tows" type="v:Vehicle" minOccurs="0"/></xs:sequence></xs:extension></xs:complexContent>
</xs:complexType><xs:complexType name="Taxi"><xs:complexContent>
<xs:extension base="v:Car"/></xs:complexContent></xs:complexType>
<xs:element name="shape" type="xs:string" abstract="true"/><xs:element name="dot" substitutionGroup="v:shape"/>"""
USES = '<xs:element name="one" type="v:Vehicle"/><xs:element name="many" type="v:Car" maxOccurs="9"/>'
USES += '<xs:element ref="v:shape"/>'
PROGRAM = """
import holdfast.sync
from stubs import BlockingT, TaxiTyped


def use(source: holdfast.sync.Source) -> None:
    client = BlockingT(source)
    taxi: TaxiTyped = {"@type": "{urn:v}Taxi", "plate": "D"}
    found = client.Do(
        one={"@type": "{urn:v}Taxi", "plate": "A", "tows": {"@type": "{urn:v}Car", "plate": "B"}},
        many=[{"plate": "C"}, taxi],
        shape={"@element": "{urn:v}dot", "_value_1": "x"},
    )
    print(found["one"]["@type"], found["shape"]["_value_1"])
"""


def test_a_field_lists_derived_types_and_other_elements() -> None:
    made = of(f"<xs:sequence>{USES}</xs:sequence>", FAMILY)
    told = in_words(made)
    assert "one: CarTyped or TaxiTyped, many: list of Car or TaxiTyped, shape: DotElement" in told
    assert 'DotElement: @element: "{urn:v}dot", _value_1: string' in told
    stubs = typed_module(made)
    assert "one: CarTyped | TaxiTyped, many: list[Car | TaxiTyped], shape: DotElement" in stubs
    assert 'TaxiTyped = TypedDict("TaxiTyped", {"@type": "Literal[\\"{urn:v}Taxi\\"]"' in stubs


@pytest.mark.nightly
def test_a_type_checker_knows_derived_types_and_other_elements(tmp_path: Path) -> None:
    made = of(f"<xs:sequence>{USES}</xs:sequence>", FAMILY)
    (tmp_path / "stubs.py").write_text(typed_module(made))
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(PROGRAM)
    wrong.write_text(PROGRAM.replace('one={"@type": "{urn:v}Taxi", "plate"', 'one={"plate"'))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    for program, is_right in ((right, True), (wrong, False)):
        done = subprocess.run([*command, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_right, done.stdout


def test_many_derived_types_are_not_listed() -> None:
    more = "".join(
        f'<xs:complexType name="T{at}"><xs:complexContent><xs:extension base="v:Vehicle"/></xs:complexContent>'
        "</xs:complexType>"
        for at in range(MOST_CHOICES + 1)
    )
    made = of('<xs:sequence><xs:element name="one" type="v:Vehicle"/></xs:sequence>', FAMILY + more)
    assert "one: dict[str, Any]," in typed_module(made)
