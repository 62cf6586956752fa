"""The headers of an envelope whose Body is too large. Covers wire/decoding/head.py."""

from __future__ import annotations

import pytest

from holdfast.core.messages import Envelope, Sequence, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire import DEFAULT, decode, encode
from holdfast.wire.decoding.head import head_of

E11 = b"http://schemas.xmlsoap.org/soap/envelope/"


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize("rm", RM)
def test_the_headers_are_those_of_the_whole_envelope(soap: SOAP, rm: RM) -> None:
    addressing = Addressing.V2004_08 if rm is RM.V1_0 else Addressing.V2005_08
    whole = Envelope(soap, addressing, rm, "urn:r", message_id="urn:m", relates_to="urn:q")
    whole.sequence = Sequence("urn:s", 7)
    whole.acknowledgements = (SequenceAcknowledgement("urn:t", ((1, 3),)),)
    whole.body = b"<a xmlns='urn:a'>" + b"x" * 300_000 + b"</a>"
    whole.headers = (b"<h xmlns='urn:h'><Body>not this</Body></h>",)
    data = encode(whole)
    found = decode(head_of(data))
    for name in ("soap", "addressing", "rm", "action", "message_id", "relates_to", "sequence", "acknowledgements"):
        assert getattr(found, name) == getattr(decode(data), name), name
    assert found.body == b"" and found.control is None
    cut = data[: data.index(b"xxx")]
    assert head_of(cut) == head_of(data), "the end is not needed"


@pytest.mark.parametrize(
    "body",
    [
        b"<s:Body>x",
        b"<s:Body >x",
        b"<s:Body\n a='&lt;\"' b=\"'>\">x",
        b"<Body xmlns='http://schemas.xmlsoap.org/soap/envelope/'>x",
        b"<!-- <s:Body> --><s:Body xmlns:q='urn:q' q:Id='1'>x",
        b"<s:Body>",
    ],
)
def test_each_spelling_of_a_body_is_found(body: bytes) -> None:
    data = b'<?xml version="1.0"?><s:Envelope xmlns:s="%b">%b' % (E11, body)
    assert decode(head_of(data)).body == b""


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", LimitExceeded),
        (b"<a", LimitExceeded),
        (b"not XML", EnvelopeError),
        (b"<a></b>", EnvelopeError),
        (b"<a><b></a>", EnvelopeError),
        (b"<!DOCTYPE a [<!ENTITY e 'x'>]><a><Body>", EnvelopeError),
        (b"<a><?pi x?><Body>", EnvelopeError),
        (b"<a><b>" + b"x" * DEFAULT.max_header_bytes + b"</b><Body>", LimitExceeded),
        (b"<a " + b" ".join(b"a%d=''" % number for number in range(20_000)) + b"><Body>", LimitExceeded),
        ("<a><Body>".encode("utf-32"), EnvelopeError),
        (b"\xff\xfe\xff", EnvelopeError),
    ],
    ids=lambda value: str(value[:20]) if isinstance(value, bytes) else "",
)
def test_anything_else_is_an_error(data: bytes, error: type[EnvelopeError]) -> None:
    with pytest.raises(EnvelopeError) as caught:
        decode(head_of(data))
    assert isinstance(caught.value, error)
