"""What a handler is given, and the faults that go out and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from holdfast import ApplicationFault, Attachment, EnvelopeError, Message, PeerFault
from holdfast.core.messages import Envelope
from holdfast.core.records import Record
from holdfast.core.versions import SOAP, Addressing
from holdfast.endpoint.envelopes.message import body_bytes, empty_response, fault_body
from holdfast.wire import decode, encode, parse_element
from holdfast.wire.text import escape_attribute


def message(body: bytes = b"<a>1</a>", headers: bytes = b"") -> Message:
    return Message.from_record(Record("urn:s", 3, "urn:a", body, 12.5, "urn:m", headers=headers), attempt=2)


def test_a_message_is_what_its_record_says() -> None:
    one = message()
    assert (one.sequence, one.message_number, one.action, one.message_id) == ("urn:s", 3, "urn:a", "urn:m")
    assert (one.received_at, one.attempt, one.soap, one.reply_to) == (12.5, 2, "1.2", None)
    assert one.body_bytes == b"<a>1</a>"
    assert one.delivered_at == 12.5


def test_the_body_is_parsed_once_when_it_is_asked_for() -> None:
    one = message()
    assert one.body is one.body
    assert one.body.text == "1"
    with pytest.raises(EnvelopeError):
        _ = message(b"").body


def test_header_blocks_are_elements() -> None:
    one = message(headers=b"<h:one xmlns:h='urn:h'>1</h:one><two/>")
    assert [etree.QName(header).localname for header in one.headers] == ["one", "two"]
    assert message().headers == []


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("sender", [True, False])
def test_a_fault_comes_back_as_it_was_raised(soap: str, sender: bool) -> None:
    fault = ApplicationFault("no <such> carrier", sender=sender, detail=b"<carrier xmlns='urn:c'>XX</carrier>")
    with pytest.raises(PeerFault) as caught:
        message(fault_body(fault, soap)).raise_for_fault()
    codes = ("Client", "Server") if soap == "1.1" else ("Sender", "Receiver")
    assert caught.value.message == "no <such> carrier"
    assert caught.value.code == codes[0 if sender else 1]
    detail = etree.fromstring(caught.value.detail)
    assert (detail.tag, detail.text) == ("{urn:c}carrier", "XX")


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("code", ["{urn:c}OutOfStock", "OutOfStock"])
def test_the_services_own_code_is_the_most_specific_one(soap: str, code: str) -> None:
    body = fault_body(ApplicationFault("sold out", code=code), soap)
    with pytest.raises(PeerFault) as caught:
        message(body).raise_for_fault()
    assert caught.value.code == "OutOfStock"
    envelope = Envelope(SOAP(soap), Addressing.V2005_08, action="urn:c/Fault", body=body)
    fault = decode(encode(envelope)).fault
    assert fault is not None
    assert (fault.code, fault.code_namespace) == ("OutOfStock", "urn:c" if code.startswith("{") else "")


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_names_in_the_detail_of_a_fault_keep_their_prefixes(soap: str) -> None:
    xsi = "http://www.w3.org/2001/XMLSchema-instance"
    detail = f'<q:left xmlns:q="urn:c" xmlns:i="{xsi}" i:type="q:Count">ö</q:left>'
    body = fault_body(ApplicationFault("sold out", subcode="{urn:c}OutOfStock", detail=detail), soap)
    (left,) = etree.fromstring(body).iter("{urn:c}left")
    assert (left.get(f"{{{xsi}}}type"), left.nsmap["q"], left.text) == ("q:Count", "urn:c", "ö")


@pytest.mark.parametrize("soap", ["1.1", "1.2"])
@pytest.mark.parametrize("subcode", ["{urn:c}OutOfStock", "OutOfStock"])
@pytest.mark.parametrize(
    ("told", "top"),
    [
        ({}, "Sender"),
        ({"sender": False}, "Receiver"),
        ({"code": "Receiver"}, "Receiver"),
        ({"code": "Sender", "sender": False}, "Sender"),
        ({"code": "{http://www.w3.org/2003/05/soap-envelope}Receiver"}, "Receiver"),
    ],
)
def test_a_subcode_stands_below_the_code_of_soap_s_own(soap: str, subcode: str, told: Any, top: str) -> None:
    fault = ApplicationFault("sold out", subcode=subcode, **told)
    assert fault.sender is (top == "Sender")
    body = fault_body(fault, soap)
    root = etree.fromstring(body)
    if soap == "1.1":
        assert len(root.findall("faultcode")) == 1
    else:
        assert root.findtext("{*}Code/{*}Value") == f"s:{top}"
        assert len(root.findall(".//{*}Subcode")) == 1
    read = decode(encode(Envelope(SOAP(soap), Addressing.V2005_08, action="urn:c/Fault", body=body))).fault
    assert read is not None
    assert (read.code, read.code_namespace) == ("OutOfStock", "urn:c" if subcode.startswith("{") else "")
    assert read.sender is (top == "Sender" or soap == "1.1"), "SOAP 1.1 says the most specific code alone"


@pytest.mark.parametrize("code", ["{urn:c}OutOfStock", "OutOfStock", "{urn:c}Sender", "Client"])
def test_above_a_subcode_there_is_a_code_of_soap_s_own_alone(code: str) -> None:
    with pytest.raises(EnvelopeError, match="must be Sender or Receiver") as caught:
        ApplicationFault("sold out", code=code, subcode="{urn:c}OutOfStock")
    assert "subcode" in caught.value.remedy


@pytest.mark.parametrize("argument", ["code", "subcode"])
@pytest.mark.parametrize("name", ["out of stock", "{urn:c}", "{urn:c}a b", "<c/>", "{no uri}Out"])
def test_what_is_no_name_is_no_code_of_a_fault(argument: str, name: str) -> None:
    with pytest.raises(EnvelopeError, match=f"The {argument} of a fault must be a name"):
        ApplicationFault("sold out", **{argument: name})


@pytest.mark.parametrize("detail", ["<left/>", b"<left/>", etree.Element("left"), bytearray(b"<left/>")])
def test_the_detail_of_a_fault_is_one_element_in_any_form_that_a_body_has(detail: Any) -> None:
    """An element without children is false to Python, and was left out."""
    fault = ApplicationFault("sold out", detail=detail)
    assert fault.detail == b"<left/>"
    with pytest.raises(PeerFault) as caught:
        message(fault_body(fault, "1.2")).raise_for_fault()
    assert etree.fromstring(caught.value.detail).tag == "left"


@pytest.mark.parametrize("detail", ["no element", b"<a/><b/>", 7, {"left": 0}])
def test_what_is_no_element_is_no_detail_of_a_fault(detail: Any) -> None:
    with pytest.raises(EnvelopeError, match="detail of a fault must be one XML element"):
        ApplicationFault("sold out", detail=detail)


@pytest.mark.parametrize(
    "namespace", ["http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"]
)
def test_a_whole_soap_envelope_is_no_body(namespace: str) -> None:
    whole = f"<?xml version='1.0'?><s:Envelope xmlns:s='{namespace}'><s:Body><a/></s:Body></s:Envelope>"
    for one in (whole, whole.encode(), etree.fromstring(whole)):
        with pytest.raises(EnvelopeError, match="complete SOAP envelope") as caught:
            body_bytes(one)
        assert "inside its soap:Body" in caught.value.remedy
    assert body_bytes("<Envelope xmlns='urn:post'/>") == b"<Envelope xmlns='urn:post'/>"


def test_the_subcode_of_a_soap_1_2_fault_is_its_code() -> None:
    body = (
        b"<s:Fault xmlns:s='http://www.w3.org/2003/05/soap-envelope' xmlns:x='urn:x'><!-- why --><s:Code>"
        b"<s:Value>s:Sender</s:Value><s:Subcode><s:Value>x:TooLate</s:Value></s:Subcode></s:Code><s:Reason/></s:Fault>"
    )
    with pytest.raises(PeerFault, match="answered with a fault") as caught:
        message(body).raise_for_fault()
    assert caught.value.code == "TooLate"


@pytest.mark.parametrize("namespace", [soap.value for soap in SOAP])
@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        ("", "Receiver", "the peer answered with a fault"),
        ("No.", "Receiver", "No."),
        ("<f:Code/><f:Reason>No.</f:Reason>", "Receiver", "No."),
        ("<f:Code><f:Value/></f:Code>", "Receiver", "the peer answered with a fault"),
        ("<faultcode/><faultstring>No.</faultstring>", "Receiver", "No."),
        ("<faultcode>f:Own.Auth</faultcode><faultstring>No.</faultstring>", "Own.Auth", "No."),
        ("<f:faultcode>f:Own</f:faultcode><f:faultstring>No.</f:faultstring>", "Own", "No."),
        ("<f:Code><f:Value>f:Own</f:Value></f:Code><f:Reason><f:Text>No.</f:Text></f:Reason>", "Own", "No."),
    ],
)
def test_a_fault_of_any_shape_raises(content: str, code: str, reason: str, namespace: str) -> None:
    """The decoder reads the same code in it."""
    name = {"1.1": "http://schemas.xmlsoap.org/soap/envelope/", "1.2": "http://www.w3.org/2003/05/soap-envelope"}
    body = f"<f:Fault xmlns:f='{name[namespace]}'>{content}</f:Fault>".encode()
    with pytest.raises(PeerFault) as caught:
        message(body).raise_for_fault()
    assert (caught.value.code, caught.value.message) == (code, reason)
    for soap in SOAP:
        fault = decode(encode(Envelope(soap, Addressing.V2005_08, action="urn:f", body=body))).fault
        assert fault is not None and fault.code == code


@pytest.mark.parametrize("name", ["a@b", "missing"])
def test_a_fault_has_the_attachments_that_it_names(name: str) -> None:
    """A PeerFault has no attachments. Without the one that it names, it is still the answer."""
    include = '<x:Include xmlns:x="http://www.w3.org/2004/08/xop/include" href="cid:a@b"/>'
    body = fault_body(ApplicationFault("no", detail=f"<d>{include}</d>"), "1.2")
    one = replace(message(body, f"<h>{include}</h>".encode()), attachments=[Attachment(b"abc", content_id=name)])
    with pytest.raises(PeerFault, match="no") as caught:
        one.raise_for_fault()
    for content in (caught.value.detail, caught.value.header_bytes):
        assert etree.fromstring(content).text == ("YWJj" if name == "a@b" else None)


@pytest.mark.parametrize("body", [b"<a>Fault</a>", b"<Fault/>", b"<f:Fault xmlns:f='urn:other'/>", b""])
def test_what_only_looks_like_a_fault_is_none(body: bytes) -> None:
    message(body).raise_for_fault()


def test_bodies_of_every_kind_become_one_element_or_are_refused() -> None:
    element = etree.fromstring("<r><a x='1'>ö</a>tail</r>")[0]
    assert body_bytes(element) == '<a x="1">ö</a>'.encode()
    assert body_bytes("<a>ö</a>") == "<a>ö</a>".encode()
    assert body_bytes("<?xml version='1.0' encoding='UTF-8'?>\n<a>ö</a>") == "<a>ö</a>".encode()
    assert body_bytes(b"") == body_bytes("  \n") == b""
    for wrong in ("text", "<a/><b/>", "<a", b"\xff\xfe<", "<!DOCTYPE a><a/>"):
        with pytest.raises(EnvelopeError):
            body_bytes(wrong)


def test_a_fault_may_be_given_an_error_as_its_reason_and_any_text() -> None:
    for reason in (KeyError("a"), "no XML: \0"):
        body = fault_body(ApplicationFault(reason), "1.2")  # type: ignore[arg-type]
        assert etree.fromstring(body) is not None


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="{}"), max_size=20))
def test_an_empty_response_has_the_name_of_any_request_that_is_accepted(namespace: str) -> None:
    """Also if a namespace is not a URI, as of old WSDLs: the handler has run already."""
    request = body_bytes(f'<p:Do xmlns:p="{escape_attribute(namespace or "urn:x")}"/>')
    name = etree.QName(parse_element(empty_response(request)))
    assert (name.namespace, name.localname) == (namespace or "urn:x", "DoResponse")
    assert empty_response(b"<Do/>") == b"<DoResponse/>"
    assert empty_response(b"") == b""
