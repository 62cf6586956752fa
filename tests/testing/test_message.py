"""A message made for a unit test is what a handler would have been given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from lxml import etree

import holdfast
from holdfast.testing import message, pair


async def test_a_made_message_equals_a_delivered_one() -> None:
    app = holdfast.Destination()
    got: list[holdfast.Message] = []
    app.on()(got.append)
    header = b"<h:token xmlns:h='urn:h'>7</h:token>"
    async with pair(app) as source:
        sent = await source.send("<order>1</order>", action="urn:a", headers=header)
    made = message(
        "<order>1</order>",
        action="urn:a",
        headers=header,
        **{
            field.name: getattr(got[0], field.name)
            for field in fields(holdfast.Message)
            if field.name not in ("action", "body_bytes", "header_bytes")
        },
    )
    assert made.message_id == sent.message_id
    assert made.body_bytes == got[0].body_bytes
    assert [etree.tostring(one) for one in made.headers] == [etree.tostring(one) for one in got[0].headers]
    for field in fields(holdfast.Message):
        assert field.name == "header_bytes" or getattr(made, field.name) == getattr(got[0], field.name), field.name


def test_nothing_need_be_said_and_the_same_is_made_every_time() -> None:
    one = message()
    assert one == message()
    assert (one.body.tag, one.message_number, one.attempt, one.headers) == ("body", 1, 1, [])
    assert (one.message_id, one.to, one.reply_to, one.relates_to) == (None, None, None, None)
    assert one.delivered_at == one.received_at
    assert message(received_at=5.0).delivered_at == 5.0


@pytest.mark.parametrize("body", ["<order>1</order>", b"<order>1</order>", etree.fromstring("<order>1</order>")])
def test_a_body_is_given_as_it_is_sent(body: Any) -> None:
    assert message(body).body.text == "1"
    assert message(b"").body_bytes == b""


@pytest.mark.parametrize(
    "headers",
    [
        "<a xmlns='urn:a'>1</a><b xmlns='urn:b'/>",
        b"<a xmlns='urn:a'>1</a>\n<b xmlns='urn:b'/>",
        [etree.fromstring("<a xmlns='urn:a'>1</a>"), etree.fromstring("<b xmlns='urn:b'/>")],
    ],
)
def test_headers_are_given_as_text_or_elements(headers: Any) -> None:
    assert [one.tag for one in message(headers=headers).headers] == ["{urn:a}a", "{urn:b}b"]
    assert message(headers=etree.fromstring("<a>1</a>")).headers[0].text == "1"


@pytest.mark.parametrize(
    "given", [{"attempt": 0}, {"message_number": 0}, {"soap": "1.3"}, {"mesage_id": "urn:a"}, {"body_bytes": b"<a/>"}]
)
def test_what_no_message_could_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(holdfast.ConfigurationError) as caught:
        message(**given)
    assert caught.value.remedy


@pytest.mark.parametrize("given", [{"body": "no element"}, {"headers": "<a>"}])
def test_what_is_no_xml_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(holdfast.EnvelopeError):
        message(**given)
