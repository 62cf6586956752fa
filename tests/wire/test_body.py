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
        b"<a>" * 300 + b"</a>" * 300,
    ],
)
def test_what_is_not_one_safe_element_is_refused(body: bytes) -> None:
    with pytest.raises(EnvelopeError):
        wire.parse_element(body)
