"""What the typed module and the description of a WSDL say of the fields of a type. Covers wsdl/shapes.py."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bodies import made_of, of
from one_operation import one_operation

from holdfast import Source
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wsdl.shapes import MOST_CHOICES, Field, Shapes
from holdfast.wsdl.stubs import typed_module
from holdfast.wsdl.words import in_words

OPTIONS = {"_sequence_key", "_message_id", "_headers", "_attachments", "_timeout"}
INT = '<xs:element name="{}" type="xs:int"/>'
OPTIONAL = '<xs:element name="{}" type="xs:int" minOccurs="0"/>'


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


ALONE = "<xs:choice{}><xs:annotation/><!-- nothing to choose -->{}</xs:choice>"


def test_the_only_alternative_of_a_choice_is_as_optional_as_the_schema_says() -> None:
    content = [
        ALONE.format("", INT.format("a")),
        ALONE.format(' minOccurs="0"', INT.format("b")),
        ALONE.format("", OPTIONAL.format("c")),
        ALONE.format("", ALONE.format("", f"<xs:sequence>{INT.format('d')}{OPTIONAL.format('e')}</xs:sequence>")),
        f"<xs:choice>{ALONE.format('', INT.format('f'))}{INT.format('g')}</xs:choice>",
        ALONE.format("", f"<xs:choice>{INT.format('h')}{INT.format('i')}</xs:choice>"),
        ALONE.format("", '<xs:group ref="v:G"/>'),
    ]
    group = f'<xs:group name="G">{ALONE.format("", INT.format("j"))}</xs:group>'
    made = of(f"<xs:sequence>{''.join(content)}</xs:sequence>", group)
    found = Shapes(made).input(made.operations["Do"])
    needed = {one.name for one in found if not one.is_optional}
    assert (needed, [one.name for one in found]) == ({"a", "d", "j"}, list("abcdefghij"))
    told = in_words(made)
    assert "a: int, b: int, optional, c: int, optional, d: int, e: int, optional" in told
    given = dict.fromkeys(["a", "d", "f", "h", "j"], 1)
    body = made.request(made.operations["Do"], (), given)
    for name in needed:
        with pytest.raises(EnvelopeError, match=name):
            made.request(made.operations["Do"], (), {key: one for key, one in given.items() if key != name})
    assert body.count(b"<") == 2 + 2 * len(given), "each field, and the element around them"


def test_a_repeated_choice_with_one_alternative_is_a_list_of_values_that_have_it() -> None:
    (found,) = fields(ALONE.format(' maxOccurs="3"', INT.format("a"))).values()
    assert (found.is_list, found.is_optional) == (True, False)
    assert [(one.name, one.is_optional) for one in found.shape.fields] == [("a", False)]


def test_each_alternative_of_a_choice_names_the_others_however_deep() -> None:
    inner = f"<xs:choice>{INT.format('a')}<xs:sequence>{INT.format('b')}{INT.format('c')}</xs:sequence></xs:choice>"
    outer = f"<xs:choice>{inner}{INT.format('e')}</xs:choice>"
    for content in (outer, f"<xs:sequence>{outer}</xs:sequence>"):
        found = fields(content + INT.format("d"))
        assert {name: set(one.excluded) for name, one in found.items()} == {
            "a": {"b", "c", "e"},
            "b": {"a", "e"},
            "c": {"a", "e"},
            "d": set(),
            "e": {"a", "b", "c"},
        }
    (items,) = fields(outer.replace("<xs:choice>", '<xs:choice maxOccurs="3">', 1)).values()
    assert {one.name: set(one.excluded) for one in items.shape.fields}["a"] == {"b", "c", "e"}


def test_the_description_of_a_long_choice_is_short() -> None:
    names = [f"f{number}" for number in range(100)]
    told = in_words(of(f"<xs:choice>{''.join(map(INT.format, names))}</xs:choice>"))
    assert "f99: int, optional, not with f0 or f1 or f2 or f3 or f4 or f5 or f6 or f7 or 91 more" in told
    assert len(told) < 200 * len(names)


def test_the_description_says_what_may_be_nil_or_absent_and_what_is_a_list() -> None:
    word = '<xs:simpleType name="W"><xs:restriction base="xs:token"><xs:enumeration value="x"/></xs:restriction>'
    words = f'{word}</xs:simpleType><xs:simpleType name="L"><xs:list itemType="v:W"/></xs:simpleType>'
    element = '<xs:element name="n" type="v:L" nillable="true" minOccurs="0"/>'
    told = in_words(of(f"<xs:sequence>{element}</xs:sequence>", words))
    assert 'Do(n: list of "x", optional, may be nil)' in told


@pytest.mark.parametrize("names", [("a-b", "a_b", "a.b"), ("class", "class_"), ("_x", "_timeout_"), ("self", "self_")])
def test_each_field_has_its_own_parameter_whatever_its_name(names: tuple[str, ...]) -> None:
    made = of(f"<xs:sequence>{''.join(map(INT.format, names))}</xs:sequence>")
    module = typed_module(made)
    namespace: dict[str, Any] = {}
    exec(module, namespace)
    calls: list[dict[str, Any]] = []
    source = SimpleNamespace(call=lambda *_, **values: calls.append(values))
    blocking = namespace[next(one for one in namespace if one.startswith("Blocking"))](source)
    parameters = [one for one in inspect.signature(blocking.Do).parameters if one not in OPTIONS]
    blocking.Do(**{one: at for at, one in enumerate(parameters)})
    assert {name: calls[0][name] for name in names} == {name: at for at, name in enumerate(names)}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_field_with_the_name_of_an_option_is_refused_in_a_module(name: str) -> None:
    made = of(f"<xs:sequence>{INT.format(name)}</xs:sequence>")
    with pytest.raises(ConfigurationError, match=f"Do has the field {name}, and call"):
        typed_module(made)


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


MANY = 'maxOccurs="unbounded"'
GROUPS = [
    f"<xs:{kind} {least} {most}>{first.format('a')}{second.format('b')}</xs:{kind}>"
    for kind in ("sequence", "choice")
    for least in ("", 'minOccurs="0"')
    for most in ("", MANY)
    for first, second in ((INT, INT), (INT, OPTIONAL), (OPTIONAL, OPTIONAL), (INT, ""), (OPTIONAL, ""))
]


@pytest.mark.parametrize(
    "group", [*GROUPS, *(f"<xs:choice {MANY}>{one}{INT.format('c')}</xs:choice>" for one in GROUPS)]
)
def test_a_repeated_group_is_optional_if_a_body_without_it_is_valid(group: str) -> None:
    made = of(f"<xs:sequence>{group}</xs:sequence>")
    found = Shapes(made).input(made.operations["Do"])
    if [one.name for one in found] == ["_value_1"]:
        try:
            made.request(made.operations["Do"], (), {})
        except EnvelopeError:
            assert not found[0].is_optional
        else:
            assert found[0].is_optional


LISTED = '<xs:simpleType><xs:restriction base="xs:{}"><xs:enumeration value="{}"/></xs:restriction></xs:simpleType>'


def test_a_type_without_a_name_has_its_values_wherever_it_is() -> None:
    made = of(
        f'<xs:sequence><xs:element name="one">{LISTED.format("string", "a")}</xs:element>'
        f'<xs:element name="unit" type="v:Unit"/></xs:sequence>'
        f'<xs:attribute name="of" use="required">{LISTED.format("token", "b")}</xs:attribute>',
        f'<xs:complexType name="Unit"><xs:attribute name="two" use="required">{LISTED.format("token", "c")}'
        "</xs:attribute></xs:complexType>",
    )
    assert 'one: Literal["a"], unit: Unit, of: Literal["b"],' in typed_module(made)
    assert 'class Unit(TypedDict):\n    two: Literal["c"]' in typed_module(made)
    assert 'one: "a", unit: Unit, of: "b"' in in_words(made)


def test_types_without_a_name_that_cannot_be_told_apart_are_what_they_restrict() -> None:
    """zeep names both types "one"."""
    made = of(
        f'<xs:sequence><xs:element name="one">{LISTED.format("token", "a")}</xs:element>'
        '<xs:element name="other" type="v:Other"/></xs:sequence>',
        f'<xs:complexType name="Other"><xs:attribute name="one">{LISTED.format("token", "c")}'
        "</xs:attribute></xs:complexType>",
    )
    assert "one: str, other: Other," in typed_module(made)
    assert "Do(one: token, other: Other)" in in_words(made)


def test_a_union_shows_its_members_and_is_a_text_when_it_arrives() -> None:
    made = of(
        '<xs:sequence><xs:element name="one"><xs:simpleType><xs:union memberTypes="xs:int v:K xs:duration"/>'
        "</xs:simpleType></xs:element></xs:sequence>",
        LISTED.format("string", "a").replace("<xs:simpleType>", '<xs:simpleType name="K">'),
    )
    assert 'one: int | Literal["a"] | str,' in typed_module(made)
    assert 'Do(one: int or "a" or duration)' in in_words(made)


def test_any_attributes_are_a_dict_of_texts() -> None:
    made = of('<xs:sequence/><xs:anyAttribute namespace="##other" processContents="lax"/>')
    assert "_attr_1: dict[str, str] | None = None" in typed_module(made)
    assert "_attr_1: any attributes, optional" in in_words(made)


def test_a_declared_fault_has_a_type_that_the_methods_name() -> None:
    text = one_operation(
        f'<xs:element name="In"><xs:complexType/></xs:element><xs:element name="Gone"><xs:complexType><xs:sequence>'
        f"{INT.format('left')}</xs:sequence></xs:complexType></xs:element>"
    )
    text = text.replace(
        "<wsdl:portType",
        '<wsdl:message name="g"><wsdl:part name="p" element="v:Gone"/></wsdl:message><wsdl:portType',
        1,
    )
    text = text.replace(
        '<wsdl:output message="v:m"/>', '<wsdl:output message="v:m"/><wsdl:fault name="Left" message="v:g"/>'
    )
    soap = '<wsdl:fault name="Left"><soap:fault name="Left" use="literal"/></wsdl:fault>'
    module = typed_module(
        made_of(text.replace("</wsdl:output></wsdl:operation>", f"</wsdl:output>{soap}</wsdl:operation>"))
    )
    assert "class Gone(TypedDict):\n    left: int" in module
    assert '"""Raises OperationFault: Left (Gone)."""' in module


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


async def test_an_option_with_the_name_of_a_field_is_refused_in_a_call() -> None:
    source = Source("http://localhost:1/", ":memory:")
    source._contract = of(f"<xs:sequence>{INT.format('_timeout')}</xs:sequence>")
    with pytest.raises(EnvelopeError, match="_timeout is an option"):
        await source.call("Do", _timeout=7)
    with pytest.raises(ConfigurationError, match="not open"):  # the default is no value for the field
        await source.call("Do", 7)
