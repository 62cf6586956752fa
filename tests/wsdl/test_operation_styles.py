"""Operations with one bare value, in RPC style or with header parts; those that cannot be used; values in JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from bodies import made_of
from lxml import etree
from one_operation import one_operation

from holdfast import Destination, Message
from holdfast.cli.running.message_files import MessageFiles
from holdfast.cli.running.operation_values import OperationValues
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.testing import pair
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.stubs import typed_module
from holdfast.wsdl.words import in_words
from holdfast.zeep import AsyncTransport, Transport


def bare(kind: str, attributes: str = "") -> Contract:
    return made_of(one_operation(f'<xs:element name="In" type="xs:{kind}" {attributes}/>'))


@pytest.mark.parametrize(
    ("kind", "text", "value", "shown"),
    [
        ("int", "5", 5, "int"),
        ("string", '""', "", "str"),
        ("decimal", '"1.50"', Decimal("1.50"), "Decimal"),
        ("boolean", "false", False, "bool"),
        ("hexBinary", '"00FF"', b"\0\xff", "bytes"),
        ("base64Binary", '"AP8="', b"\0\xff", "bytes"),
        ("anyType", '"a"', "a", "Any"),
        ("NMTOKENS", '"a b"', "a b", "str"),
    ],
)
def test_a_body_may_be_one_value(kind: str, text: str, value: Any, shown: str) -> None:
    made = bare(kind)
    do = made.operation("Do")
    body = made.request(do, (value,), {})
    assert made.request_values(do, body) == value
    assert made.reply_value(do, made.reply(do, value)) == value
    in_json = OperationValues(made, "Do", "a.wsdl")
    assert in_json.message("it", text.encode()) == (body, b"")
    assert json.loads(in_json.reply(body, b"")) == json.loads(text)
    name = "anything" if kind == "anyType" else kind
    assert f"Do({name}) -> {name}" in in_words(made)
    assert f"def Do(self, value: {shown}, *" in typed_module(made)


def test_one_value_may_be_nil_or_name_its_type() -> None:
    made = bare("int", 'nillable="1"')
    do = made.operation("Do")
    assert made.reply_value(do, made.reply(do, None)) is None
    assert made.request_values(do, made.request(do, (None,), {})) is None
    assert "value: int | None, *" in typed_module(made)
    made = bare("anySimpleType")
    typed = {"@type": "{http://www.w3.org/2001/XMLSchema}int", "_value_1": 5}
    found = made.operation("Do")
    assert made.request_values(found, made.request(found, (typed,), {})) == typed


def test_a_whole_body_may_be_nil_with_attributes() -> None:
    kind = '<xs:attribute name="k"/><xs:attribute name="m"/>'
    made = made_of(
        one_operation(f'<xs:element name="In" nillable="1"><xs:complexType>{kind}</xs:complexType></xs:element>')
    )
    do = made.operation("Do")
    values = {"k": "1", "m": None, "@nil": True}
    body = made.request(do, (), {"k": "1", "@nil": True})
    assert body.count(b'nil="true"') == 1
    assert made.request_values(do, body) == values
    assert made.reply(do, values) == body


@pytest.mark.parametrize(("given", "named"), [((), {}), ((1, 2), {}), ((1,), {"value": 2}), ((), {"timeout": 5})])
def test_a_body_of_one_value_takes_exactly_one(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    made = bare("int")
    with pytest.raises(EnvelopeError, match="In is one value without fields"):
        made.request(made.operation("Do"), given, named)


@pytest.mark.parametrize("name", ["value", "_value_1"])
def test_the_one_value_of_a_body_may_be_named(name: str) -> None:
    """A fault's detail always is: app.fault() takes the fields of a detail by name."""
    made = bare("int")
    do = made.operation("Do")
    assert made.request(do, (), {name: 5}) == made.request(do, (5,), {})
    with pytest.raises(EnvelopeError, match="It is named 'value', not 'timeout'"):
        made.request(do, (), {"timeout": 5})


# --- RPC style, and parts ---------------------------------------------------------------------------------------------

PART = '<wsdl:part name="p" element="v:In"/>'
RPC = (
    one_operation(
        '<xs:complexType name="T"><xs:sequence><xs:element name="x" type="xs:int"/></xs:sequence></xs:complexType>'
    )
    .replace(PART, '<wsdl:part name="a" type="xs:int"/><wsdl:part name="b" type="v:T"/>')
    .replace("<soap:binding ", '<soap:binding style="rpc" ')
    .replace('use="literal"', 'use="literal" namespace="urn:r"')
)
INPUT = '<wsdl:input><soap:body use="literal" namespace="urn:r"/></wsdl:input>'
TWO = one_operation('<xs:element name="In" type="xs:int"/><xs:element name="Head" type="xs:int"/>').replace(
    PART, PART + '<wsdl:part name="q" element="v:Head"/>'
)


def test_an_rpc_reply_has_the_name_of_its_operation() -> None:
    made = made_of(RPC)
    do = made.operation("Do")
    values = {"a": 0, "b": {"x": 1}}
    body = made.request(do, (), values)
    assert etree.fromstring(body).tag == "{urn:r}Do"
    assert made.request_values(do, body) == values
    reply = b'<r:DoResponse xmlns:r="urn:r"><a>0</a><b><v:x xmlns:v="urn:v">1</v:x></b></r:DoResponse>'
    assert made.reply_value(do, reply) == values
    assert etree.fromstring(made.reply(do, values)).tag == "{urn:r}DoResponse"
    assert OperationValues(made, "Do", "a.wsdl").message("it", json.dumps(values).encode()) == (body, b"")


def test_an_rpc_body_may_have_the_name_of_an_element_of_the_schema() -> None:
    for name in ("Do", "DoResponse"):
        element = f'<xs:element name="{name}" type="xs:boolean"/><xs:complexType name="T">'
        made = made_of(RPC.replace("urn:r", "urn:v").replace('<xs:complexType name="T">', element))
        do = made.operation("Do")
        values = {"a": 0, "b": {"x": 1}}
        assert made.request_values(do, made.request(do, (), values)) == values
        assert made.reply_value(do, made.reply(do, values)) == values
        with pytest.raises(EnvelopeError, match="'a': 'x'"):
            made.request(do, (), {**values, "a": "x"})


def test_an_rpc_part_may_have_any_type() -> None:
    made = made_of(RPC.replace('type="v:T"/>', 'type="xs:anyType"/>'))
    do = made.operation("Do")
    values = {"a": 0, "b": {"@type": "{http://www.w3.org/2001/XMLSchema}int", "_value_1": 5}}
    assert made.request_values(do, made.request(do, (), values)) == values


def test_a_part_in_a_header_is_none_of_the_body() -> None:
    for output in ('<soap:body use="literal" parts="p"/>', '<soap:body parts=" p " use="literal"/>'):
        made = made_of(
            TWO.replace('<soap:body use="literal"/>', output).replace(
                "<wsdl:input><", '<wsdl:input><soap:header message="v:m" part="q" use="literal"/><'
            )
        )
        do = made.operation("Do")
        assert made.request_values(do, made.request(do, (5,), {})) == 5


TYPED = [
    text.replace('<soap:body use="literal"/>', body)
    for kind in ("xs:int", "v:In", "xs:anyType")
    for body in ('<soap:body use="literal"/>', '<soap:body parts="p" use="literal"/>')
    for text in [
        one_operation('<xs:element name="In" type="xs:int"/><xs:complexType name="In"/>').replace(
            '<wsdl:part name="p" element="v:In"/>', f'<wsdl:part name="p" type="{kind}"/>'
        )
    ]
]
"""Document style with a part that has a type. WS-I Basic Profile 1.1 (R2204) forbids it, and zeep accepts it."""


@pytest.mark.parametrize(
    ("wsdl", "says"),
    [
        (TWO, "a body of it has several elements"),
        (
            RPC.replace('use="literal"', 'use="encoded" encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"'),
            "SOAP enc",
        ),
        *((one, "in document style, a part needs an element, and its part p has a type") for one in TYPED),
        (RPC.replace('<wsdl:input message="v:m"/>', "").replace(INPUT, ""), "no wsdl:input"),
        (RPC.replace(INPUT.replace("input", "output"), ""), "no wsdl:output"),
    ],
)
def test_an_operation_that_cannot_be_used_says_why(wsdl: str, says: str) -> None:
    made = made_of(wsdl)
    assert not made.operations
    assert says in made.unusable["Do"]
    with pytest.raises(ConfigurationError, match=says):
        made.operation("Do")
    assert "Do: not usable, because" in in_words(made)


# --- JSON -------------------------------------------------------------------------------------------------------------

ONE_FIELD = one_operation(
    '<xs:element name="In"><xs:complexType><xs:sequence><xs:element name="a" type="xs:integer"/></xs:sequence>'
    "</xs:complexType></xs:element>"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 2}', "it has the key 'a' twice in one object"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "it has the key 'b' twice"),
        ("[" * 200_000, "it is nested too deeply"),
        ('{"a":' * 200_000, "it is nested too deeply"),
        (f'{{"a": {"9" * 5000}}}', "more digits than Python allows"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ("[1]", "it is not an object but list"),
        ("", "it is not JSON"),
    ],
    ids=lambda one: f"{one:.30}",
)
def test_json_that_says_two_things_or_too_much_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        OperationValues(made_of(ONE_FIELD), "Do", "a.wsdl").message("it", text.encode())


def test_blank_lines_between_messages_are_none(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"a": 1}\n  \n{"a": 2}\n\n')
    files = MessageFiles((str(file),), True, "", "", OperationValues(made_of(ONE_FIELD), "Do", "a.wsdl"), False)
    assert [one.name for one in files] == [f"{file}, line 2", f"{file}, line 4"]
    assert files.count() == 2


@pytest.mark.parametrize("kind", [Transport, AsyncTransport])
@pytest.mark.parametrize(
    ("name", "says"), [("session", "SourceHTTP"), ("cache", "loaded once"), ("timeout", "reply_timeout")]
)
def test_an_argument_of_zeeps_transport_has_a_hint(kind: Any, name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has no argument '{name}'") as caught:
        kind(":memory:", **{name: None})
    assert says in caught.value.remedy


# --- handlers of an input without fields ------------------------------------------------------------------------------

BARE = '<xs:element name="In" type="xs:int" nillable="true"/>'
EMPTY = '<xs:element name="In"><xs:complexType/></xs:element>'
DERIVED = (
    '<xs:element name="In" type="v:B"/><xs:complexType name="B"/><xs:complexType name="D"><xs:complexContent>'
    '<xs:extension base="v:B"><xs:sequence><xs:element name="a" type="xs:int"/></xs:sequence></xs:extension>'
    "</xs:complexContent></xs:complexType>"
)
HANDLERS: dict[str, Any] = {
    "()": lambda: None,
    "(value)": lambda value: value,
    "(value=None)": lambda value=None: value,
    "(a, b)": lambda a, b: a,
    "(a, b=1)": lambda a, b=1: a,
    "(*, value)": lambda *, value: value,
    "(*values)": lambda *values: values[0] if values else None,
    "(**values)": lambda **values: values,
}


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize(
    ("schema", "values", "refused"),
    [
        (BARE, [5, None], ["()", "(a, b)", "(*, value)", "(**values)"]),
        (EMPTY, [None], ["(value)", "(a, b)", "(a, b=1)", "(*, value)"]),
        (DERIVED, [{"@type": "{urn:v}D", "a": 5}], ["(a, b)", "(*, value)"]),
    ],
)
def test_a_handler_that_cannot_take_the_input_is_refused_at_the_start(
    tmp_path: Path, schema: str, values: list[Any], refused: list[str], name: str
) -> None:
    wsdl = tmp_path / "in.wsdl"
    wsdl.write_text(one_operation(schema))
    app = Destination(wsdl=wsdl)
    if name in refused:
        with pytest.raises(ConfigurationError, match=r"The operation Do takes .* do not fit: .*\n *Write def"):
            app.operation("Do")(HANDLERS[name])
        return
    app.operation("Do")(HANDLERS[name])
    with pair(app) as source:
        for value in values:
            given = [value] if schema is BARE else []
            if schema is DERIVED and name in ("()", "(**values)"):
                continue  # they take values of the declared type, which has none
            assert source.call("Do", *given, **(value if schema is DERIVED else {}), _timeout=60) in (value, {}, None)


def test_a_handler_of_one_value_gets_the_message_after_it(tmp_path: Path) -> None:
    wsdl = tmp_path / "in.wsdl"
    wsdl.write_text(one_operation(BARE))
    app = Destination(wsdl=wsdl)

    def first(message: Message, value: int) -> int:
        return value

    with pytest.raises(ConfigurationError, match=r"Write def first\(value, message\)"):
        app.operation("Do")(first)

    @app.operation("Do")
    def last(value: int, message: Message) -> int:
        assert message.action == "urn:v/Do"
        return value

    with pair(app) as source:
        assert source.call("Do", 5, _timeout=60) == 5
