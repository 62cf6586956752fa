"""Content-Type and SOAPAction."""

from __future__ import annotations

import pytest

from holdfast import wire
from holdfast.core.versions import SOAP
from holdfast.wire.http import names_other_action


def test_soap_1_1_says_the_action_in_a_header_of_its_own() -> None:
    assert wire.http_headers(SOAP.V1_1, "urn:a") == {
        "Content-Type": "text/xml; charset=utf-8",
        "SOAPAction": '"urn:a"',
    }
    assert wire.http_headers(SOAP.V1_1)["SOAPAction"] == '""'


def test_soap_1_2_says_the_action_in_the_content_type() -> None:
    assert wire.http_headers(SOAP.V1_2, "urn:a") == {
        "Content-Type": 'application/soap+xml; charset=utf-8; action="urn:a"'
    }
    assert wire.content_type(SOAP.V1_2) == "application/soap+xml; charset=utf-8"


def test_an_action_cannot_break_out_of_its_header() -> None:
    assert wire.http_headers(SOAP.V1_1, 'a"b\\c\r\nX: y')["SOAPAction"] == '"a\\"b\\\\cX: y"'


def test_an_action_beyond_ascii_is_percent_encoded_for_a_header_holds_none_such() -> None:
    assert wire.http_headers(SOAP.V1_1, "urn:böd/Ę 1%20")["SOAPAction"] == '"urn:b%C3%B6d/%C4%98 1%20"'
    assert wire.http_headers(SOAP.V1_1, "urn:\udc80\x00")["SOAPAction"] == '"urn:?%00"'


@pytest.mark.parametrize(
    ("value", "soap"),
    [
        ("text/xml", SOAP.V1_1),
        ("Text/XML; charset=UTF-8", SOAP.V1_1),
        ('application/soap+xml;charset=utf-8;action="urn:a"', SOAP.V1_2),
        (" application/soap+xml ", SOAP.V1_2),
        ("text/html", None),
        ("", None),
    ],
)
def test_a_content_type_says_which_soap_it_is(value: str, soap: SOAP | None) -> None:
    assert wire.soap_of_content_type(value) is soap


@pytest.mark.parametrize(
    ("soap_action", "media", "is_other"),
    [
        ('"urn:a b"', "text/xml", False),
        ("urn:a b", "text/xml", False),
        ('""', "text/xml", False),
        ("", "text/xml; charset=utf-8", False),
        ('"urn:b"', "text/xml", True),
        ("", 'application/soap+xml; action="urn:a b"', False),
        ("", 'application/soap+xml; charset=utf-8; action="urn:\\a b"; x=y', False),
        ("", "application/soap+xml;action=urn:b;charset=utf-8", True),
        ("", 'application/soap+xml; action=""', False),
        ("", 'application/soap+xml; reaction="urn:b"', False),
        ("", 'multipart/related; start-info="application/soap+xml; action=\\"urn:a b\\""', False),  # CXF's
    ],
)
def test_the_action_of_the_http_headers_is_compared_with_that_of_the_message(
    soap_action: str, media: str, is_other: bool
) -> None:
    assert names_other_action("urn:a b", soap_action, media) is is_other


def test_an_action_beyond_ascii_is_compared_as_it_is_written() -> None:
    headers = wire.http_headers(SOAP.V1_1, "urn:böd")
    assert not names_other_action("urn:böd", headers["SOAPAction"], "text/xml")
    assert not names_other_action("urn:böd", "", wire.content_type(SOAP.V1_2, "urn:böd"))
