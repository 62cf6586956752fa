"""What an application submits obeys the limits of receivers: what passes is read, what they would refuse does not.

Covers wire/encoding/outgoing.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile_urls import NO_HOSTS

from holdfast.core.messages import Envelope, Sequence
from holdfast.core.versions import ALL_VERSIONS
from holdfast.exceptions import EnvelopeError
from holdfast.wire import (
    DEFAULT,
    body_content,
    check_action,
    check_header_blocks,
    check_iri,
    check_text,
    decode,
    encode,
    known_contents,
)
from holdfast.wire.encoding.outgoing import AROUND, LARGEST_HEADERS, MOST_DECLARATIONS, MOST_HEADERS


def read(body: bytes = b"<a/>", headers: bytes = b"", uri: str = "urn:a") -> None:
    """What is written in every version is read again."""
    for versions in ALL_VERSIONS:
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, uri, message_id=uri, to=uri, body=body)
        envelope.headers, envelope.sequence = (headers,) if headers else (), Sequence("urn:s", 1, False)
        assert decode(encode(envelope)).body == body


def deep(levels: int, inside: bytes = b"x") -> bytes:
    return b"<a>" * levels + inside + b"</a>" * levels


INSIDES = [b"x", b"<!-- </a> -->", b"<![CDATA[</a></a>]]>", b"<b/>" * 500, b"x" * 5_000, b"&amp;" * 300]


@pytest.mark.parametrize("inside", INSIDES)
def test_a_body_is_taken_as_deep_as_receivers_read_it(inside: bytes) -> None:
    levels = DEFAULT.max_depth - AROUND - (b"<b/>" in inside)
    body = deep(levels, inside)
    assert body_content(body) == body == body_content(body), "whether its start tag was seen before or not"
    read(body)
    for _ in range(2):
        with pytest.raises(EnvelopeError, match="nested deeper than 62"):
            body_content(deep(levels + 1, inside))
    with pytest.raises(EnvelopeError, match="deeper"):
        read(deep(levels + 1, inside))


def test_of_many_bodies_a_deep_one_is_not_sure() -> None:
    body_content(b"<a>x</a>")
    assert known_contents([b"<a>x</a>", b"<a>" + deep(63, b"").replace(b"a", b"b") + b"</a>"]) == [True, False]


def test_a_body_that_stands_further_inside_may_be_less_deep() -> None:
    body_content(deep(60), 4)
    with pytest.raises(EnvelopeError, match="deeper than 60"):
        body_content(deep(61), 4)


def test_an_element_has_as_many_attributes_as_receivers_take() -> None:
    def wide(count: int) -> bytes:
        return b"<a" + b"".join(b" a%d='1'" % number for number in range(count)) + b"/>"

    assert body_content(wide(DEFAULT.max_attributes - 2))
    read(wide(DEFAULT.max_attributes - 2))
    with pytest.raises(EnvelopeError, match="16,384 attributes"):
        body_content(wide(DEFAULT.max_attributes + 1))


def test_namespaces_are_as_long_and_as_many_as_receivers_take() -> None:
    def long(size: int) -> bytes:
        return b"<p:a xmlns:p='" + b"u" * size + b"'/>"

    read(body_content(long(DEFAULT.max_namespace)))
    with pytest.raises(EnvelopeError, match="2,049 characters"):
        body_content(long(DEFAULT.max_namespace + 1))

    def many(count: int) -> bytes:
        return b"<a" + b"".join(b" xmlns:p%d='urn:%d'" % (number, number) for number in range(count)) + b"/>"

    read(body_content(many(MOST_DECLARATIONS)))
    with pytest.raises(EnvelopeError, match="1,008 namespaces"):
        body_content(many(MOST_DECLARATIONS + 1))
    beside = b"<a>" + b"<b xmlns:p='urn:p'/>" * 3_000 + b"</a>"
    assert body_content(beside) == beside, "those of elements beside one another do not add up"


def test_header_blocks_are_as_deep_as_many_and_as_large_as_receivers_take() -> None:
    def block(levels: int) -> bytes:
        return b"<h:a xmlns:h='urn:h'>" + deep(levels - 1) + b"</h:a>"

    check_header_blocks(block(62))
    read(headers=block(62))
    with pytest.raises(EnvelopeError, match="headers are nested deeper"):
        check_header_blocks(block(63))
    one = b"<h:a xmlns:h='urn:h'/>"
    check_header_blocks(one * MOST_HEADERS)
    read(headers=one * MOST_HEADERS)
    with pytest.raises(EnvelopeError, match="room for 48"):
        check_header_blocks(one * (MOST_HEADERS + 1))
    check_header_blocks(b"<h:a xmlns:h='urn:h'>" + b"x" * (LARGEST_HEADERS - 100) + b"</h:a>")
    with pytest.raises(EnvelopeError, match="room for"):
        check_header_blocks(b"<h:a xmlns:h='urn:h'>" + b"x" * LARGEST_HEADERS + b"</h:a>")


def test_a_uri_is_as_long_as_receivers_keep_it() -> None:
    longest = "urn:" + "a" * (DEFAULT.max_uri - 4)
    check_action(longest)
    check_iri("message_id", longest)
    check_text("relates_to", longest)
    read(uri=longest)
    for check in (check_action, lambda text: check_iri("to", text), lambda text: check_text("relates_to", text)):
        with pytest.raises(EnvelopeError, match="2049 characters"):
            check(longest + "a")
    with pytest.raises(EnvelopeError):
        decode(encode(replace(_with(longest + "a"))))


IRIS = ["urn:a", "urn:orders/Submit", "http://tempuri.org/IOrders/Submit", "http://orders.example/Orders#Submit"]
IRIS += [
    "mailto:a@b.example",
    "a:b",
    "A+1-.:x",
    "urn:stra\u00dfe",
    "http://[::1]:8080/a?b=c&d=%C3%9f",
    "urn:\U00020000",
]
UNFIT = [*' <>"{}|\\^`\t\n\r\x00\x7f\x85\xa0\u2028\ud800\ufdd0\ufffe', "%", "%4g", "%zz"]


@pytest.mark.parametrize("iri", IRIS)
def test_an_absolute_iri_is_accepted_and_arrives_as_it_is(iri: str) -> None:
    check_iri("message_id", iri)
    check_action(iri)
    for versions in ALL_VERSIONS:
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, iri, message_id=iri, to=iri, body=b"<a/>")
        envelope.sequence = Sequence("urn:s", 1)
        read_again = decode(encode(envelope))
        assert (read_again.action, read_again.message_id, read_again.to) == (iri, iri, iri)


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("place", ["{}urn:a", "urn:{}a", "urn:a{}", "urn:a{}b"])
def test_text_with_a_character_that_no_iri_has_is_refused(place: str, unfit: str) -> None:
    for check in (check_action, lambda text: check_iri("to", text)):
        with pytest.raises(EnvelopeError):
            check(place.format(unfit))


@pytest.mark.parametrize(
    "text", ["", "x", "order 7", "order-7", "orders/7", "/a", "7:a", ":a", "urn:", "-a:b", "#a", "\u00e9:a"]
)
def test_text_without_a_scheme_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        check_iri("message_id", text)
    assert refused.value.remedy
    check_action(text or "x", of_peer=True)
    if text and " " not in text:
        check_action(text)  # services have such a soapAction


@pytest.mark.parametrize("text", NO_HOSTS)
def test_an_iri_with_an_invalid_host_is_refused(text: str) -> None:
    for check in (check_action, lambda one: check_iri("to", one), lambda one: check_iri("message_id", one)):
        with pytest.raises(EnvelopeError, match="names an invalid host"):
            check(text)
    check_action(text, of_peer=True)


@pytest.mark.parametrize("text", ["urn:a[1]", "http://h/a[1]?b=[2]#[3]", "http://u@[::1]/", "http://[fe80::1]:80"])
def test_brackets_that_are_no_part_of_a_host_are_accepted(text: str) -> None:
    check_iri("message_id", text)
    check_action(text)


def _with(uri: str) -> Envelope:
    versions = ALL_VERSIONS[0]
    return Envelope(versions.soap, versions.addressing, versions.rm, uri, body=b"<a/>", sequence=Sequence("urn:s", 1))
