"""Headers known by their form are read as the complete path reads them, or left to it.

Covers wire/decoding/forms.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from examples import examples
from holdfast import wire
from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    EndpointReference,
    Envelope,
    Sequence,
    SequenceAcknowledgement,
)
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import EnvelopeError
from holdfast.wire import Limits
from holdfast.wire.decoding import forms
from holdfast.wire.decoding.envelopes import decode_any
from holdfast.wire.decoding.fast import decode_usual
from holdfast.wire.names import RM_NS


def forget() -> None:
    forms._forms.clear()
    forms._once.clear()


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    forget()
    yield
    forget()


def envelope(versions: Versions = ALL_VERSIONS[-1], number: int = 7) -> Envelope:
    made = Envelope(versions.soap, versions.addressing, versions.rm)
    made.action, made.to, made.message_id = "urn:a/Submit", "http://here.example/rm?x=1", f"urn:uuid:{number:036}"
    made.reply_to = EndpointReference("anonymous")
    made.from_ = EndpointReference("http://there.example/")
    made.sequence = Sequence("urn:s:1", number)
    made.ack_requested = (AckRequested("urn:s:1"),)
    made.body = b"<order xmlns='urn:o'>%d</order>" % number
    return made


def learn(data: bytes) -> None:
    usual = decode_usual(data, wire.DEFAULT)
    assert usual is not None
    forms.learn(data, usual)


def agrees(data: bytes) -> Envelope | None:
    """What the known forms make of it, once compared with what the complete path does."""
    known = forms.decode_known(data, wire.DEFAULT)
    if known is not None:
        assert known == decode_any(data, wire.DEFAULT)
    return known


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_the_next_message_of_a_sequence_is_read_by_its_form(versions: Versions) -> None:
    assert forms.decode_known(wire.encode(envelope(versions)), wire.DEFAULT) is None
    learn(wire.encode(envelope(versions)))
    following = envelope(versions, 8)
    following.sequence = Sequence("urn:another", 12345678901)
    following.reply_to = EndpointReference("http://elsewhere.example/acks")
    assert agrees(wire.encode(following)) == following


def test_decoding_learns_by_itself() -> None:
    wire.decode(wire.encode(envelope()))
    assert agrees(wire.encode(envelope(number=8))) == envelope(number=8)


@pytest.mark.parametrize("change", ["no sequence", "a reply", "no addresses", "an empty body"])
def test_other_forms_of_the_same_peer_are_kept_beside_the_first(change: str) -> None:
    learn(wire.encode(envelope()))
    other = envelope()
    if change == "no sequence":
        other.sequence, other.rm = None, RM.V1_1
    elif change == "a reply":
        other.relates_to = "urn:uuid:request"
    elif change == "no addresses":
        other.reply_to = other.from_ = other.to = None
    else:
        other.body = b""
    data = wire.encode(other)
    if change != "an empty body":
        assert agrees(data) is None
    learn(data)
    assert agrees(data) == other
    assert agrees(wire.encode(envelope())) == envelope()


def test_an_empty_body_with_a_reliable_messaging_action_is_that_message() -> None:
    asking = envelope()
    asking.sequence, asking.body = None, b""
    asking.action = "http://docs.oasis-open.org/ws-rx/wsrm/200702/AckRequested"
    learn(wire.encode(asking))
    known = agrees(wire.encode(asking))
    assert known is not None
    assert known.control is not None


def test_headers_that_vary_in_more_than_their_values_are_not_learnt() -> None:
    foreign, gap, final, two = envelope(), envelope(), envelope(), envelope()
    foreign.headers = (b'<x xmlns="urn:x">1</x>',)
    gap.acknowledgements = (SequenceAcknowledgement("urn:s:2", ((1, 3), (5, 5))),)
    final.acknowledgements = (SequenceAcknowledgement("urn:s:2", ((1, 3),), final=True),)
    two.acknowledgements = (
        SequenceAcknowledgement("urn:s:2", ((1, 3),)),
        SequenceAcknowledgement("urn:s:3", ((1, 3),)),
    )
    for one in (foreign, gap, final, two):
        learn(wire.encode(one))
        assert agrees(wire.encode(one)) is None


VALUES = [
    b"", b" ", b"0", b"-1", b"1e3", b"+4", b"9" * 64, b"9" * 65, b"\n 12\t", b"urn:x", b"a>b", b"]]>", b"a&amp;b",
    b"&", b"&#65;",
    b"<x/>", b"</wsa:To>", b"<!-- c -->", b"<![CDATA[x]]>", b"<?pi x?>", b"\r\n12", b"\0", b"\x01", b"\x7f",
    b"\xc3\xa9", b"\xff", b"\xc2\x85", b"http://www.w3.org/2005/08/addressing/none",
]  # fmt: skip


def acknowledgement(
    versions: Versions = ALL_VERSIONS[-1], upper: int = 7, buffer: int | None = 256, identifier: str = "urn:s:2"
) -> Envelope:
    made = Envelope(versions.soap, versions.addressing, versions.rm, control=Acknowledge())
    assert versions.rm is not None
    made.action = f"{RM_NS[versions.rm]}/SequenceAcknowledgement"
    made.acknowledgements = (SequenceAcknowledgement(identifier, ((1, upper),), buffer_remaining=buffer),)
    return made


@pytest.mark.parametrize("buffer", [None, 256])
@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_the_next_acknowledgement_is_read_by_its_form_and_no_parser_looks_at_it(
    versions: Versions, buffer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.decode(wire.encode(acknowledgement(versions, 7, buffer)))
    following = wire.encode(acknowledgement(versions, 12345, None if buffer is None else 0, "urn:another"))
    assert agrees(following) is not None
    expected = decode_any(following, wire.DEFAULT)
    monkeypatch.setattr(forms, "parser_for", None)
    assert forms.decode_known(following, wire.DEFAULT) == expected


def test_an_acknowledgement_beside_a_message_is_read_by_its_form() -> None:
    both = envelope()
    both.acknowledgements = (SequenceAcknowledgement("urn:s:2", ((1, 3),)),)
    learn(wire.encode(both))
    both.acknowledgements = (SequenceAcknowledgement("urn:s:2", ((3, 12),)),)
    assert agrees(wire.encode(both)) == both


@pytest.mark.parametrize("written", [b'Upper="7" Lower="1"', b"Upper='7'  Lower='1' ", b"Lower='1'\tUpper='7'"])
def test_the_two_numbers_of_a_range_are_read_as_they_are_written(written: bytes) -> None:
    data = wire.encode(acknowledgement()).replace(b'Lower="1" Upper="7"', written)
    none = b"<wsrm:None/><netrm:BufferRemaining"
    for one in (data, data.replace(b"<netrm:BufferRemaining", none)):
        learn(one)
        known = agrees(one.replace(b'"7"', b'"8"').replace(b"'7'", b"'8'"))
        assert known is not None
        assert known.acknowledgements[0].ranges == ((1, 8),)


@pytest.mark.parametrize("old", [b'"1"', b'"7"', b">256<", b">urn:s:2<"])
@pytest.mark.parametrize("versions", [ALL_VERSIONS[0], ALL_VERSIONS[-1]], ids=str)
def test_whatever_stands_in_an_acknowledgement_is_read_as_the_complete_path_reads_it(
    versions: Versions, old: bytes
) -> None:
    data = wire.encode(acknowledgement(versions))
    assert old in data
    for value in [*VALUES, b"00", b"01", b"2147483648", b'"', b"'"]:
        forget()
        learn(data)
        agrees(data.replace(old, old[:1] + value + old[-1:]))


@settings(max_examples=examples(400))
@given(st.data())
def test_a_damaged_acknowledgement_of_a_known_form_is_read_as_if_unknown(draw: st.DataObject) -> None:
    learn(wire.encode(acknowledgement()))
    damaged = bytearray(wire.encode(acknowledgement(upper=draw.draw(st.integers(1, 10**6)))))
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, len(damaged)))
        pieces = [
            b"<",
            b">",
            b"/",
            b'"',
            b"&amp;",
            b"<s:Body>",
            b"</s:Header>",
            b"<!DOCTYPE a>",
            b' a="b"',
            b"0",
            b"<a/>",
        ]
        piece = draw.draw(st.one_of(st.binary(max_size=3), st.sampled_from(pieces)))
        damaged[at : at + draw.draw(st.integers(0, 4))] = piece
    agrees(bytes(damaged))


def test_the_limits_of_each_call_hold_for_an_acknowledgement_too() -> None:
    data = wire.encode(acknowledgement())
    learn(data)
    assert agrees(data) is not None
    assert forms.decode_known(data, Limits(max_depth=3)) is None
    assert forms.decode_known(data, Limits(max_namespace=5)) is None


@pytest.mark.parametrize("old", [b"urn:a/Submit", b"http://here.example/rm?x=1", b"urn:s:1", b">7<"])
def test_whatever_stands_for_a_value_is_read_as_the_complete_path_reads_it(old: bytes) -> None:
    data = wire.encode(envelope())
    for value in VALUES:
        forget()
        learn(data)
        replaced = data.replace(old, b">" + value + b"<" if old == b">7<" else value, 1)
        known = agrees(replaced)
        if any(byte in value for byte in b"&<>\r\0\x01\xff"):
            assert known is None, value


@pytest.mark.parametrize("learnt", ["a>b", "]]&gt;", ">"])
@pytest.mark.parametrize("value", ["]]>", "a]]>b", ">", "a>b"])
def test_the_end_of_a_cdata_section_in_a_value_is_refused_in_any_form(learnt: str, value: str) -> None:
    data = wire.encode(envelope())
    old = b"http://here.example/rm?x=1"
    with contextlib.suppress(AssertionError):
        learn(data.replace(old, learnt.encode()))
    changed = data.replace(old, value.encode())
    known = forms.decode_known(changed, wire.DEFAULT)
    if "]]>" in value:
        assert known is None
        assert decode_usual(changed, wire.DEFAULT) is None
        with pytest.raises(EnvelopeError, match="not well-formed"):
            wire.decode(changed)
    else:
        assert known in (None, wire.decode(changed))


@settings(max_examples=examples(400))
@given(st.data())
def test_a_damaged_message_of_a_known_form_is_read_as_the_complete_path_reads_it(draw: st.DataObject) -> None:
    data = wire.encode(envelope())
    learn(data)
    damaged = bytearray(wire.encode(envelope(number=draw.draw(st.integers(1, 10**6)))))
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, len(damaged)))
        piece = draw.draw(
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b"<", b">", b"/", b"&amp;", b"<s:Body>", b"</s:Header>", b"<!DOCTYPE a>", b' a="b"']),
            )
        )
        damaged[at : at + draw.draw(st.integers(0, 4))] = piece
    agrees(bytes(damaged))


@pytest.mark.parametrize(
    "body",
    [b"<a>", b"<a></b>", b"<p:a/>", b"<?pi?><a/>", b"<a xmlns:s='urn:other'/>", b"<a/></s:Body><s:Body>", b"\xff"],
)
def test_the_rest_of_the_document_is_checked_all_the_same(body: bytes) -> None:
    data = wire.encode(envelope())
    learn(data)
    changed = data.replace(envelope().body, body)
    try:
        complete = decode_any(changed, wire.DEFAULT)
    except EnvelopeError:
        assert forms.decode_known(changed, wire.DEFAULT) is None
    else:
        assert forms.decode_known(changed, wire.DEFAULT) in (None, complete)


def test_prefixes_of_the_envelope_are_declared_in_a_body_that_uses_them() -> None:
    data = wire.encode(envelope()).replace(b"<order xmlns='urn:o'>7", b'<order xmlns="urn:o" wsa:k="1">7')
    learn(data)
    known = agrees(data)
    assert known is not None
    assert b'xmlns:wsa="' in known.body


def test_the_limits_of_each_call_hold() -> None:
    made = envelope()
    made.body = b"<a>" * 30 + b"</a>" * 30
    data = wire.encode(made)
    learn(data)
    assert forms.decode_known(data, wire.DEFAULT) == made
    header = data.index(b"<s:Body")
    for limits in (Limits(max_depth=10), Limits(max_headers=3), Limits(max_header_bytes=header - 1)):
        assert forms.decode_known(data, limits) is None


def test_what_is_remembered_is_bounded() -> None:
    data = wire.encode(envelope())
    for number in range(forms._MAX_ROOTS + 2):
        learn(data.replace(b"<s:Envelope", b'<s:Envelope xmlns:n%d="urn:n"' % number))
    assert len(forms._forms) <= forms._MAX_ROOTS
    forms._forms.clear()
    forms._once.clear()
    for number in range(forms._MAX_FORMS + 2):
        learn(data.replace(b"<wsa:To ", b'<wsa:To n="%d" ' % number))
    ((tag, (_, known)),) = forms._forms.items()
    assert len(known) == forms._MAX_FORMS
    assert data.startswith(tag)
    learn(data)
    for number in range(forms._MAX_REFERENCES + 2):
        other = envelope()
        other.from_ = EndpointReference(f"http://from.example/{number}")
        assert agrees(wire.encode(other)) == other
    assert all(len(form.references) <= forms._MAX_REFERENCES for _, known in forms._forms.values() for form in known)


def test_a_long_header_is_neither_learnt_nor_read_here() -> None:
    made = envelope()
    made.to = "http://here.example/" + "x" * 5000
    learn(wire.encode(made))
    assert not forms._forms
    learn(wire.encode(envelope()))
    assert forms.decode_known(wire.encode(made), wire.DEFAULT) is None


def test_a_message_with_addressing_headers_only_has_no_reliable_version() -> None:
    plain = Envelope(SOAP.V1_1, Addressing.V2005_08, action="urn:a", message_id="urn:m", body=b"<a/>")
    learn(wire.encode(plain))
    assert agrees(wire.encode(plain)) == plain


# --- WS-Security --------------------------------------------------------------------------------------------------

SECURITY = (
    b'<o:Security s:mustUnderstand="1" xmlns:o="urn:o" xmlns:u="urn:u"><u:Timestamp u:Id="TS-1" kept="1">'
    b"<u:Created>2026-11-28T11:18:13.123Z</u:Created></u:Timestamp>\n<o:Empty/><o:Name>alice</o:Name></o:Security>"
)


def secured(block: bytes = SECURITY, number: int = 7) -> bytes:
    return wire.encode(envelope(number=number)).replace(b"</s:Header>", block + b"\n</s:Header>")


def learn_secured(block: bytes = SECURITY) -> None:
    learn(secured(block))
    learn(secured(block))


def test_a_security_header_is_learnt_when_its_form_is_repeated() -> None:
    later = SECURITY.replace(b"TS-1", b"TS-2").replace(b"13.123Z", b"14Z").replace(b"alice", b"bob, the second")
    learn(secured())
    assert agrees(secured(later, 8)) is None
    learn(secured(later, 8))
    known = agrees(secured(later, 9))
    assert known is not None
    assert known.not_understood == ("{urn:o}Security",)
    assert b"bob, the second" in known.headers[0]
    assert b'xmlns:s="' in known.headers[0]


def test_the_texts_of_a_security_header_are_taken_out_with_it() -> None:
    learn_secured()
    whole = secured(SECURITY.replace(b"alice", b"bob"), 8)
    known = forms.decode_known(whole, wire.DEFAULT)
    assert known is not None
    assert known.known_block is not None
    block, form, texts = known.known_block
    assert block is known.headers[0]
    assert list(texts) == [element.text or "" for element in etree.fromstring(block).iter()]
    again = forms.decode_known(secured(), wire.DEFAULT)
    assert again is not None
    assert again.known_block is not None
    assert again.known_block[1] is form


def test_each_of_two_security_headers_keeps_its_own_texts() -> None:
    learn_secured(SECURITY + SECURITY.replace(b"alice", b"bob"))
    known = forms.decode_known(secured(SECURITY + SECURITY.replace(b"alice", b"carol")), wire.DEFAULT)
    assert known is not None
    assert known.known_block is not None
    block, _, texts = known.known_block
    assert block is known.headers[1]
    assert texts[-1] == "carol"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'u:Id="TS-1"', b'xmlns:Id="urn:1"'),
        (b'kept="1"', b'kept="2"'),
        (b'mustUnderstand="1"', b'mustUnderstand="0"'),
        (b"urn:u", b"urn:v"),
        (b"o:Name", b"u:Name"),
        (b"<o:Empty/>", b"<o:Empty></o:Empty>"),
        (b"\n", b" "),
    ],
)
def test_what_is_neither_text_nor_an_id_belongs_to_the_form(old: bytes, new: bytes) -> None:
    learn_secured()
    assert agrees(secured()) is not None
    assert agrees(secured(SECURITY.replace(old, new))) is None


@pytest.mark.parametrize("old", [b"alice", b"TS-1", b"\n", b"2026-11-28T11:18:13.123Z"])
def test_whatever_stands_in_a_security_header_is_read_alike(old: bytes) -> None:
    for value in [*VALUES, b'"', b"'", b"wsa:To", b"s:x", b" x ", b"]]", b"TS-1"]:
        forget()
        learn_secured()
        agrees(secured(SECURITY.replace(old, value)))


@pytest.mark.parametrize("place", [b"</u:Timestamp>", b"<o:Empty/>", b"</o:Name>"])
def test_a_security_header_with_text_after_an_end_tag_is_not_learnt(place: bytes) -> None:
    block = SECURITY.replace(place, place + b"s:x")
    learn_secured(block)
    assert agrees(secured(block)) is None


def test_a_namespace_declared_in_an_id_is_no_value() -> None:
    block = SECURITY.replace(b'u:Id="TS-1"', b'xmlns:Id="urn:1"')
    learn_secured(block)
    assert agrees(secured(block)) is not None
    assert agrees(secured(block.replace(b"urn:1", b"urn:2"))) is None


@pytest.mark.parametrize("inserted", [b"", b" Id=", b" c='1' d=", b" xmlns:o='urn:v' d=", b" not well-formed "])
def test_an_attribute_whose_value_looks_like_an_id_is_no_id(inserted: bytes) -> None:
    block = SECURITY.replace(b'kept="1"', b'a=" Id=" b=" Id="')
    learn_secured(block)
    assert agrees(secured(block)) is not None
    assert agrees(secured(block.replace(b'" b=" Id="', b'"' + inserted + b'" Id="'))) is None


@settings(max_examples=examples(400))
@given(st.data())
def test_a_damaged_security_header_of_a_known_form_is_read_alike(draw: st.DataObject) -> None:
    learn_secured()
    damaged = bytearray(secured())
    start = damaged.index(b"<o:Security")
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(start, start + len(SECURITY)))
        pieces = [b"<", b">", b"/", b'"', b"&amp;", b"s:x", b"<a/>", b"</s:Header>", b' a="b"', b"<!-- -->", b"\r"]
        damaged[at : at + draw.draw(st.integers(0, 4))] = draw.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from(pieces))
        )
    agrees(bytes(damaged))


def test_forms_that_occurred_once_are_bounded() -> None:
    for number in range(forms._MAX_ONCE + 2):
        learn(secured(SECURITY.replace(b'kept="1"', b'kept="%d"' % number)))
    assert len(forms._once) <= forms._MAX_ONCE
    assert not forms._forms


def test_the_namespaces_around_a_security_header_have_their_limit() -> None:
    learn_secured()
    assert forms.decode_known(secured(), Limits(max_inserted_bytes=10)) is None
