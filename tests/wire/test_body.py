"""Bodies as lxml elements, safely."""

from __future__ import annotations

import pytest

from holdfast import wire
from holdfast.exceptions import EnvelopeError


def test_a_body_becomes_an_element() -> None:
    assert wire.parse_element("<p:x xmlns:p='urn:p'>ä</p:x>".encode()).text == "ä"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a>",
        b"<a/><b/>",
        b'<!DOCTYPE a [<!ENTITY e "v">]><a>&e;</a>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b"<a>" * 3000 + b"</a>" * 3000,
        b"\xef\xbb\xbf <!-- <a> --><?a b?>\n<!-- - --><!DOCTYPE a><a/>",
    ],
)
def test_what_is_not_one_safe_element_is_refused(body: bytes) -> None:
    with pytest.raises(EnvelopeError):
        wire.parse_element(body)


@pytest.mark.parametrize(
    "body",
    [
        b"<a>" + b"x" * 11_000_000 + b"</a>",
        b'<a k="' + b"x" * 11_000_000 + b'"/>',
        b"<a><![CDATA[" + b"x" * 11_000_000 + b"]]></a>",
        b"<a>" + b"<b>1</b>" * 1_400_000 + b"</a>",
        b"<a>" + b"&amp;" * 1_000_000 + b"</a>",
        b"<" + b"a" * 60_000 + b"/>",
        b"<a><!--" + b"x" * 11_000_000 + b"--></a>",
    ],
    ids=["text", "attribute", "CDATA", "elements", "references", "name", "comment"],
)
def test_every_size_that_is_accepted_is_read(body: bytes) -> None:
    data = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>%b</s:Body></s:Envelope>' % body
    kept = wire.decode(data).body
    assert kept == body
    wire.parse_element(kept)


@pytest.mark.parametrize(
    "body",
    [
        "<a xml:id='1 2' xml:space='odd' xml:lang='-'/>",
        "<a xmlns='not a URI' xmlns:b='http://[' xmlns:c='../c'><b:d c:e=''/></a>",
        "<a><!DOCTYPE is text here></a>".replace("<!D", "&lt;!D"),
        "<a><![CDATA[<!DOCTYPE a>]]></a>",
        "<!-- <!DOCTYPE a> --><a/><!-- -->",
        "<a>&#xFFFD;&#x10FFFF; </a>",
        "<a b:c='' xmlns:b='urn:b' c=''/>",
        "<Größe größe='ß'/>",
        "<a>" + "<b>" * 55 + "</b>" * 55 + "</a>",
    ],
)
def test_what_the_two_parsers_may_think_differently_of_is_read_all_the_same(body: str) -> None:
    data = f'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>{body}</s:Body></s:Envelope>'
    wire.parse_element(wire.decode(data.encode()).body)


def test_depths_that_the_limits_of_a_listener_allow_are_read() -> None:
    body = b"<a>" * 1000 + b"</a>" * 1000
    data = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>%b</s:Body></s:Envelope>' % body
    wire.parse_element(wire.decode(data, limits=wire.Limits(max_depth=1002)).body)
