"""Long texts in every place of a message: how long they take to read must not grow faster than they do.

Covers wire/text.py and wire/body.py. A quadratic search takes many minutes here.
"""

from __future__ import annotations

import pytest

from holdfast.exceptions import EnvelopeError
from holdfast.wire import decode
from holdfast.wire.body import in_utf8

LENGTH = 1 << 18
SOAP_1_1, SOAP_1_2 = "http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope"


def fault(code: str = "s:Sender", more: str = "", reason: str = "x", detail: str = "") -> tuple[str, str, str]:
    given = (
        f"<s:Code><s:Value>{code}</s:Value>{more}</s:Code><s:Reason><s:Text xml:lang='en'>{reason}</s:Text></s:Reason>"
    )
    return SOAP_1_2, "", f"<s:Fault>{given}<s:Detail>{detail}</s:Detail></s:Fault>"


def fault_1_1(code: str = "s:Client", reason: str = "x", detail: str = "") -> tuple[str, str, str]:
    given = f"<faultcode>{code}</faultcode><faultstring>{reason}</faultstring><detail>{detail}</detail>"
    return SOAP_1_1, "", f"<s:Fault>{given}</s:Fault>"


PLACES = {
    "code": fault(code="{}"),
    "subcode": fault(more="<s:Subcode><s:Value>{}</s:Value></s:Subcode>"),
    "reason": fault(reason="{}"),
    "detail": fault(detail="<d>{}</d>"),
    "faultcode": fault_1_1(code="{}"),
    "faultstring": fault_1_1(reason="{}"),
    "detail of SOAP 1.1": fault_1_1(detail="<d>{}</d>"),
    "body": (SOAP_1_2, "", "<x>{}</x>"),
    "attribute": (SOAP_1_2, "", "<x a='{}'/>"),
    "header": (SOAP_1_2, "<h:x xmlns:h='urn:h'>{}</h:x>", "<x/>"),
    "attribute of a header": (SOAP_1_2, "<h:x xmlns:h='urn:h' a='{}'/>", "<x/>"),
    "role": (SOAP_1_2, "<h:x xmlns:h='urn:h' s:role='{}'/>", "<x/>"),
    "To": (SOAP_1_2, "<a:To>{}</a:To>", "<x/>"),
    "reference parameter": (
        SOAP_1_2,
        "<a:ReplyTo><a:Address>http://x/</a:Address><a:ReferenceParameters><p xmlns='urn:p'>{}</p>"
        "</a:ReferenceParameters></a:ReplyTo>",
        "<x/>",
    ),
    "Identifier": (SOAP_1_2, "<r:Sequence><r:Identifier>{}</r:Identifier></r:Sequence>", "<x/>"),
    "MessageNumber": (
        SOAP_1_2,
        "<r:Sequence><r:Identifier>urn:s</r:Identifier><r:MessageNumber>{}</r:MessageNumber></r:Sequence>",
        "<x/>",
    ),
    "Expires": (SOAP_1_2, "", "<r:CreateSequence><r:Expires>{}</r:Expires></r:CreateSequence>"),
}


def refusal(data: bytes) -> str:
    """Why a message is refused; "" if it is read."""
    try:
        decode(data)
    except EnvelopeError as error:
        return error.message
    return ""


@pytest.mark.parametrize("unit", ["ä", "ä:", "a:", "s:", "-"])
@pytest.mark.parametrize("place", PLACES)
def test_a_message_with_a_long_text_is_read_in_linear_time(place: str, unit: str) -> None:
    soap, header, body = PLACES[place]
    spaces = (
        f'xmlns:s="{soap}" xmlns:a="http://www.w3.org/2005/08/addressing" '
        'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"'
    )
    text = f"<s:Envelope {spaces}><s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    data = text.replace("{}", unit * (LENGTH // len(unit.encode()))).encode()
    assert len(refusal(data)) < 1_000


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("before", [b"", b"<a>"])
@pytest.mark.parametrize("unit", [b" ", b"<?xml ", b"<?xml encoding='a' ", b"encoding=", b"<", b"=' "])
def test_the_declaration_of_a_document_is_sought_in_linear_time(mark: bytes, before: bytes, unit: bytes) -> None:
    document = before + unit * (LENGTH // len(unit))
    assert in_utf8(mark + document) == document
