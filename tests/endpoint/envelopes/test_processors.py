"""What a processor is given: header blocks to read, add and remove, what HTTP says, and an answer to give."""

from __future__ import annotations

import pytest
from lxml import etree

from holdfast import ConfigurationError, EnvelopeError, MessageContext
from holdfast.core.messages import Acknowledge, Envelope, Fault, Sequence
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.exchange import Request
from holdfast.wire import decode, encode

TENANT = "{urn:t}Tenant"
ACME = b'<t:Tenant xmlns:t="urn:t">acme</t:Tenant>'
OTHER = b"<o:Other  xmlns:o='urn:o' />"


def message(*headers: bytes, soap: SOAP = SOAP.V1_2) -> Envelope:
    return Envelope(soap, Addressing.V2005_08, RM.V1_1, "urn:a", body=b"<a/>", headers=headers)


def context(envelope: Envelope, *, is_answer: bool = False, request: Request | None = None) -> MessageContext:
    return MessageContext(envelope, "inbound", "destination", {}, is_answer=is_answer, request=request)


@pytest.mark.parametrize("headers", [(ACME, OTHER), (OTHER, ACME), (OTHER + ACME,), (ACME + OTHER, OTHER)])
def test_a_header_block_is_found_by_its_name_wherever_it_stands(headers: tuple[bytes, ...]) -> None:
    given = context(message(*headers))
    found = given.header(TENANT)
    assert found is not None
    assert found.text == "acme"
    assert given.header("{urn:o}Tenant") is None
    assert len(given.headers) == sum(block.count(b"xmlns") for block in headers)


@pytest.mark.parametrize("headers", [(ACME, OTHER), (OTHER, ACME, ACME), (OTHER + ACME,), (ACME + OTHER,), (OTHER,)])
def test_a_header_block_is_removed_and_the_others_stay(headers: tuple[bytes, ...]) -> None:
    given = context(message(*headers))
    given.remove_header(TENANT)
    assert [element.tag for element in given.headers] == ["{urn:o}Other"]
    if OTHER in headers:
        assert given.envelope.headers == (OTHER,), "octet for octet"
    given.add_header(ACME)
    assert given.header(TENANT) is not None


@pytest.mark.parametrize("soap", list(SOAP))
@pytest.mark.parametrize("block", [ACME, ACME.decode(), etree.fromstring(ACME)])
def test_a_header_block_that_is_added_goes_out_and_must_be_understood_if_it_says_so(
    soap: SOAP, block: bytes | str | etree._Element
) -> None:
    for must_understand in (False, True):
        envelope = message(soap=soap)
        context(envelope).add_header(block, must_understand=must_understand)
        read = decode(encode(envelope))
        assert read.not_understood == ((TENANT,) if must_understand else ())
        found = context(read).header(TENANT)
        assert found is not None
        assert found.text == "acme"


@pytest.mark.parametrize("block", ["", "acme", "<Tenant/>", "<a xmlns='urn:a'/><b xmlns='urn:b'/>", "<t:a/>"])
def test_what_can_be_no_header_block_is_not_added(block: str) -> None:
    envelope = message()
    with pytest.raises(EnvelopeError):
        context(envelope).add_header(block)
    assert envelope.headers == ()


def test_headers_that_belong_to_reliable_messaging_are_not_added() -> None:
    with pytest.raises(EnvelopeError, match="which Holdfast writes"):
        context(message()).add_header("<w:To xmlns:w='http://www.w3.org/2005/08/addressing'>x</w:To>")


def test_it_says_what_the_message_is() -> None:
    envelope = message()
    given = context(envelope)
    assert (given.is_application, given.sequence, given.message_number) == (True, "", 0)
    envelope.sequence = Sequence("urn:s", 7)
    assert (given.sequence, given.message_number) == ("urn:s", 7)
    envelope.control = Acknowledge()
    assert not given.is_application
    envelope.control, envelope.fault = None, Fault("Sender", "no")
    assert not given.is_application


def test_it_says_what_http_says_of_the_request() -> None:
    request = Request("POST", "/", {b"x-request-id": b"7"}, b"", "10.0.0.1:5", True)
    given = context(message(), request=request)
    assert (given.http_headers["x-request-id"], given.peer, given.is_secure) == ("7", "10.0.0.1:5", True)
    asked = context(message(), is_answer=True)
    assert (dict(asked.http_headers), asked.peer, asked.is_secure, asked.peer_certificate) == ({}, None, False, None)


def test_an_answer_says_what_it_answers_in_the_versions_of_the_request() -> None:
    asked = message(soap=SOAP.V1_1)
    asked.message_id = "urn:m"
    given = context(asked)
    given.answer("<pong/>", action="urn:pong", headers=ACME)
    answer = given.given_answer
    assert given.is_answered
    assert answer is not None
    assert (answer.soap, answer.addressing, answer.relates_to) == (SOAP.V1_1, Addressing.V2005_08, "urn:m")
    assert (answer.action, answer.body, answer.headers) == ("urn:pong", b"<pong/>", (ACME,))
    nothing = context(message())
    nothing.answer()
    assert nothing.is_answered
    assert nothing.given_answer is None


def test_only_a_request_can_be_answered_and_only_with_what_can_be_written() -> None:
    with pytest.raises(ConfigurationError, match="is_answer"):
        context(message(), is_answer=True).answer()
    for body, action, headers in [("<a>", "urn:a", b""), ("<a/>", "", b""), ("<a/>", "urn:a", b"<h/>")]:
        given = context(message())
        with pytest.raises(EnvelopeError):
            given.answer(body, action=action, headers=headers)
        assert not given.is_answered
