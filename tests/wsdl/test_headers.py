"""Header blocks that a WSDL declares: their values, their names, and which ones have none."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from bodies import made_of
from header_service import SESSION, header_wsdl
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from holdfast.exceptions import EnvelopeError
from holdfast.wsdl.contract import Contract
from holdfast.wsdl.words import in_words

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"))
SESSIONS = st.fixed_dictionaries(
    {"key": TEXTS, "hop": st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=3), max_size=3)},
    optional={"of": st.integers(-(2**31), 2**31 - 1)},
)
OWN, OTHER = "{urn:h}Tenant", "{urn:other}Tenant"
ENVELOPES = {"1.1": "http://schemas.xmlsoap.org/soap/envelope/", "1.2": "http://www.w3.org/2003/05/soap-envelope"}


@cache
def contract(text: bytes = header_wsdl()) -> Contract:
    return made_of(text.decode())


def written(values: Any, operation: str = "Do") -> bytes:
    return contract().header_bytes(contract().operation(operation).headers, values)


def read(headers: bytes, operation: str = "Do") -> dict[str, Any]:
    return contract().header_values(contract().operation(operation).headers, headers)


@given(SESSIONS, st.none() | st.binary(max_size=20), st.none() | TEXTS, st.none() | st.integers(0, 9))
def test_values_of_header_blocks_arrive_as_they_were_given(session: Any, trace: Any, own: Any, other: Any) -> None:
    values = {"Session": session, "Trace": trace, OWN: own, OTHER: other}
    expected = {**values, "Session": {"of": None, **session}}
    assert read(written(values)) == expected
    assert read(b"<a:a xmlns:a='urn:a'/>" + written(values)) == expected, "other header blocks do not matter"


@pytest.mark.parametrize("name", ["own", "other", OWN, OTHER])
def test_a_block_is_named_by_its_element_or_its_part(name: str) -> None:
    found = read(written({"session": SESSION, name: "7"}))
    assert (found[OWN], found[OTHER]) == ((None, 7) if name in ("other", OTHER) else ("7", None))
    assert read(written({"Tenant": "a"}, "Note"), "Note") == {"Tenant": "a"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "requires the header Session for the operation Do"),
        ({"Session": None}, "requires the header Session"),
        (b"", "requires the header Session"),
        (b"<Session", "the headers are not well-formed XML"),
        ({"Sesion": SESSION}, "no header 'Sesion' for the operation Do"),
        ({"Tenant": "a", "Session": SESSION}, "no header 'Tenant'"),
        ({"session": SESSION, "Session": SESSION}, "Session is given twice"),
        ({"Session": {"kee": "a"}}, "header Session do not fit the WSDL: there is no field 'kee'"),
        ({"Session": {"key": 1.5j}}, "key takes text"),
        ({"Session": {"key": "a", "of": 2**40}}, "'of'"),
        ({"Session": "a"}, "the header Session takes a dict of its fields"),
        ({"Session": SESSION, OWN: {"a": 1}}, "Tenant takes text"),
        ({"Session": SESSION, "Trace": "abcd"}, "Trace takes bytes"),
        ({"Session": etree.fromstring("<Session xmlns='urn:h'><no/></Session>")}, "'no'"),
        ("text", "headers must be a dict of values by name, or bytes of XML, not str"),
    ],
)
def test_wrong_headers_are_refused_by_their_name(values: Any, named: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        written(values)
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ("", "requires the header Session"),
        ("<h:Session xmlns:h='urn:h'/>", "The header Session does not fit the WSDL. Element 'Session': Missing"),
        ("<h:Session xmlns:h='urn:h'><h:key/></h:Session>" * 2, "has the header Session twice"),
    ],
)
def test_a_message_with_invalid_headers_is_refused_by_their_name(headers: str, named: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        read(headers.encode())
    assert named in caught.value.message


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_attributes_of_the_envelope_are_no_values_and_stay_on_an_element(soap: str) -> None:
    """Any header block may have them, whatever its schema says."""
    wsu = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
    role = f"{ENVELOPES['1.2']}/role/next"
    block = (
        f'<h:Session xmlns:h="urn:h" xmlns:s="{ENVELOPES[soap]}" xmlns:u="{wsu}" s:mustUnderstand="1" s:role="{role}" '
        'u:Id="a" of="3"><h:key>a</h:key></h:Session>'
    )
    assert read(block.encode())["Session"] == {"of": 3, "key": "a", "hop": []}
    assert etree.fromstring(written({"Session": etree.fromstring(block)})).get(f"{{{ENVELOPES[soap]}}}role") == role


@pytest.mark.parametrize(("soap", "name"), [("1.1", "actor"), ("1.2", "role")])
def test_a_block_for_another_node_is_no_value_of_the_message(soap: str, name: str) -> None:
    """An intermediary may read a block of the same name, with other content."""

    def block(role: str | None, key: str) -> bytes:
        given = "" if role is None else f'xmlns:s="{ENVELOPES[soap]}" s:{name}="{role}"'
        return f'<h:Session xmlns:h="urn:h" {given}><h:{key}>a</h:{key}></h:Session>'.encode()

    own = [None, "", f" {ENVELOPES[soap]}/role/next ", f"{ENVELOPES[soap]}/role/ultimateReceiver"]
    if soap == "1.1":
        own[2:] = ["http://schemas.xmlsoap.org/soap/actor/next"]
    for role in own:
        for headers in (block("urn:proxy", "no") + block(role, "key"), block(role, "key") + block("urn:proxy", "key")):
            assert read(headers)["Session"]["key"] == "a"
            assert written(headers) == headers
    for call in (read, written):
        with pytest.raises(EnvelopeError, match="requires the header Session"):
            call(block("urn:proxy", "key"))


@pytest.mark.parametrize("namespace", [*ENVELOPES.values(), "http://www.w3.org/2005/08/addressing", "urn:wss"])
def test_blocks_that_holdfast_or_a_processor_writes_have_no_values(namespace: str) -> None:
    name = "Security" if namespace == "urn:wss" else "Action"
    text = header_wsdl().decode().replace("urn:other", namespace).replace('"Tenant" type="xs:int"', f'"{name}"')
    made = contract(text.replace("o:Tenant", f"o:{name}").encode())
    assert [*made.operation("Do").headers] == ["Session", "Trace", "Tenant"]


def test_nil_is_a_value_and_an_absent_block_is_none() -> None:
    assert b"nil" in written({"Session": SESSION, "Trace": {"@nil": True}})
    assert read(written({"Session": SESSION})) == {"Session": SESSION, "Trace": None, OWN: None, OTHER: None}


def test_headers_from_json_have_texts_for_bytes() -> None:
    blocks = contract().operation("Do").headers
    made = contract().header_bytes(blocks, {"Session": SESSION, "Trace": "AAE="}, is_json=True)
    assert contract().header_values(blocks, made)["Trace"] == b"\0\1"
    assert contract().header_values(blocks, made, is_json=True)["Trace"] == "AAE="


def test_the_headers_of_a_fault_are_those_of_the_headerfaults() -> None:
    operation = contract().operation("Do")
    assert ([*operation.fault_headers], [*operation.reply_headers]) == (["Unknown"], ["Usage"])
    block = b"<h:Unknown xmlns:h='urn:h'>a</h:Unknown>"
    assert contract().header_values(operation.fault_headers, block) == {"Unknown": "a"}


def test_the_headers_are_shown_with_their_types() -> None:
    lines = in_words(contract())
    for line in ("header Session: Session", f"header {OWN}: string, optional", "header of the reply Usage: Usage"):
        assert f"      {line}" in lines
    assert "Session: key: string, hop: list of decimal, optional, of: int, optional" in lines


def test_decimal_hops_keep_their_digits() -> None:
    assert read(written({"Session": SESSION}))["Session"]["hop"] == [Decimal("1.50")]
