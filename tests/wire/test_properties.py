"""What holds for every envelope: it comes back as it went, and no bytes do more than be refused.

Covers wire/addressing.py and wire/rm.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast import wire
from holdfast.core.messages import (
    ANONYMOUS,
    ANONYMOUS_EPR,
    NONE,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    IncompleteSequenceBehavior,
    LastMessage,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import SEQUENCE_FAULTS, EnvelopeError
from holdfast.wire.decoding.envelopes import decode_any
from holdfast.wire.decoding.fast import decode_usual
from holdfast.wire.faults import action_of_fault
from holdfast.wire.names import ANONYMOUS_URI, actions

# --- what envelopes are made of --------------------------------------------------------------------------------------

xml_characters = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff")
texts = st.text(xml_characters, min_size=1, max_size=30).map(lambda t: t.strip(" \t\r\n")).filter(bool)
identifiers = st.one_of(st.uuids().map(lambda u: u.urn), texts)
addresses = st.one_of(
    st.sampled_from([ANONYMOUS, NONE, "http://a.example/x?y=1&z=<2>", "urn:äöü"]),
    texts.filter(lambda t: t not in (ANONYMOUS, NONE)),
)
# No colon in the text of an element: what looks like a prefix of the envelope's would rightly be declared in it.
plain = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters=":\ufffe\uffff"))


@st.composite
def elements(draw: st.DrawFn, depth: int = 2) -> bytes:
    local = draw(st.sampled_from(["a", "order", "Fault", "Größe", "Body"]))
    style = draw(st.sampled_from(["none", "default", "prefixed"]))
    inner = escape(draw(plain)) if draw(st.booleans()) or depth == 0 else draw(elements(depth=depth - 1)).decode()
    start = {
        "none": f'<{local} xmlns="" k="v>&quot;">',
        "default": f"<{local} xmlns='urn:d'>",
        "prefixed": f'<p:{local} xmlns:p="urn:p" p:k="v">',
    }[style]
    return f"{start}{inner}</{'p:' if style == 'prefixed' else ''}{local}>".encode()


blocks = st.lists(elements(), max_size=2).map(tuple)
bodies = st.one_of(st.just(b""), st.lists(elements(), min_size=1, max_size=2).map(b"".join))
prefixed = elements().filter(lambda e: e.startswith(b"<p:"))


@st.composite
def references(draw: st.DrawFn) -> EndpointReference:
    return EndpointReference(draw(addresses), draw(st.lists(prefixed, max_size=2).map(tuple)))


seconds = st.one_of(st.none(), st.integers(1, 10**9).map(float), st.integers(1, 10**6).map(lambda n: n / 1000))
numbers = st.one_of(st.integers(1, 100), st.integers(1, 2**63 + 5))
legal_numbers = st.one_of(st.integers(1, 100), st.integers(1, 2**63 - 1), st.just(2**63 - 1))
behaviors = st.sampled_from(IncompleteSequenceBehavior)


@st.composite
def acknowledgement_headers(draw: st.DrawFn, rm: RM) -> SequenceAcknowledgement:
    ranges = tuple(draw(st.lists(st.tuples(st.integers(0, 2**64), st.integers(0, 2**64)), max_size=4)))
    is_early = rm not in (RM.V1_0, RM.V1_1)
    nacks = () if ranges or is_early else tuple(draw(st.lists(numbers, max_size=3)))
    final = rm is RM.V1_1 and not nacks and draw(st.booleans())
    if rm is not RM.V1_1 and ranges == ((0, 0),):
        ranges = ()
    buffer_remaining = draw(st.one_of(st.none(), st.integers(0, 2**31 - 1)))
    return SequenceAcknowledgement(draw(identifiers), ranges, nacks, final, buffer_remaining)


@st.composite
def controls(draw: st.DrawFn, rm: RM) -> Control:
    newer = rm is RM.V1_1
    behavior = draw(behaviors) if newer else IncompleteSequenceBehavior.NO_DISCARD
    last = draw(st.one_of(st.none(), legal_numbers)) if newer else None
    identifier = draw(identifiers)
    offer = Offer(identifier, draw(references()) if newer else None, draw(seconds), behavior)
    if rm not in (RM.V1_0, RM.V1_1):
        create = CreateSequence(ANONYMOUS_EPR)
        kinds = [create, CreateSequenceResponse(identifier), TerminateSequence(identifier), Acknowledge()]
        return draw(st.sampled_from([one for one in [*kinds, RequestAcknowledgement()] if type(one) in actions[rm]]))
    choices: list[Callable[[], Control]] = [
        lambda: CreateSequence(draw(references()), draw(seconds), draw(st.sampled_from([None, offer]))),
        lambda: CreateSequenceResponse(
            identifier, draw(seconds), behavior, draw(references()) if draw(st.booleans()) else None
        ),
        lambda: TerminateSequence(identifier, last),
        Acknowledge,
        RequestAcknowledgement,
    ]
    if newer:
        choices += [
            lambda: CloseSequence(identifier, last),
            lambda: CloseSequenceResponse(identifier),
            lambda: TerminateSequenceResponse(identifier),
        ]
    else:
        choices.append(LastMessage)
    return draw(st.sampled_from(choices))()


ADDRESSING_CODES = {
    **{one: ["InvalidMessageInformationHeader", "ActionNotSupported"] for one in Addressing},
    Addressing.V2005_08: ["InvalidAddressingHeader", "InvalidCardinality", "MessageAddressingHeaderRequired"],
}


@st.composite
def faults(draw: st.DrawFn, versions: Versions) -> Fault:
    reason, detail = draw(texts), b"".join(draw(st.lists(prefixed, max_size=2)))
    sender, kind = draw(st.booleans()), draw(st.sampled_from(["rm", "addressing", "soap"]))
    if kind == "soap":
        code = draw(st.sampled_from(["MustUnderstand", "VersionMismatch", "Sender" if sender else "Receiver"]))
        return Fault(code, reason, sender=sender or code != "Receiver", detail=detail)
    soap11 = versions.soap is SOAP.V1_1
    if kind == "addressing":
        code = draw(st.sampled_from(ADDRESSING_CODES[versions.addressing]))
        return Fault(code, reason, is_addressing=True, sender=sender or soap11, detail=detail)
    code = draw(st.sampled_from(sorted(SEQUENCE_FAULTS)))
    fault = Fault(code, reason, is_rm=True, sender=sender, detail=detail)
    if code == "InvalidAcknowledgement":
        fault.acknowledgement = draw(acknowledgement_headers(versions.rm))
        fault.identifier = fault.acknowledgement.identifier
    elif draw(st.booleans()):
        fault.identifier = draw(identifiers)
        if code == "MessageNumberRollover" and versions.rm is RM.V1_1:
            fault.max_message_number = draw(legal_numbers)
    if soap11:
        # Told by a name in faultcode, or by a header: only the latter leaves room for Client and Server.
        named = code in ("CreateSequenceRefused", "WSRMRequired")
        fault.has_sequence_fault_header, fault.sender = not named, sender or named
    return fault


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    versions = draw(st.sampled_from(ALL_VERSIONS))
    optional_text = st.one_of(st.none(), texts)
    optional_reference = st.one_of(st.none(), references())
    envelope = Envelope(
        versions.soap,
        versions.addressing,
        versions.rm,
        action=draw(texts),
        to=draw(optional_text.filter(lambda to: to not in (ANONYMOUS, NONE))),
        message_id=draw(optional_text),
        relates_to=draw(optional_text),
        reply_to=draw(optional_reference),
        fault_to=draw(optional_reference),
        from_=draw(optional_reference),
        sequence=Sequence(draw(identifiers), draw(numbers), versions.rm.can.marks_last and draw(st.booleans())),
        acknowledgements=tuple(
            draw(st.lists(acknowledgement_headers(versions.rm), max_size=2, unique_by=lambda h: h.identifier))
        ),
        ack_requested=tuple(draw(st.lists(identifiers.map(AckRequested), max_size=2))),
        headers=tuple(block for block in draw(blocks)),
    )
    content = draw(st.sampled_from(["body", "control", "fault"]))
    if content == "body":
        envelope.body = draw(bodies)
    elif content == "control":
        envelope.control = draw(controls(versions.rm))
        if isinstance(envelope.control, CreateSequence) and not versions.rm.can.negotiates:
            envelope.control.acks_to = envelope.reply_to or envelope.from_ or ANONYMOUS_EPR
        envelope.action = wire.control_action(versions.rm, envelope.control)
        if isinstance(envelope.control, TerminateSequence) and versions.rm is RM.V2003_03:
            envelope.sequence = None  # the header beside a message of a Sequence is said by `terminates`
    else:
        envelope.fault = draw(faults(versions))
        envelope.action = action_of_fault(versions.rm, versions.addressing, envelope.fault)
    return envelope


def addressed(envelope: Envelope) -> Envelope:
    """As it arrives: WS-Addressing before 2005/08 has no message without a To."""
    if envelope.addressing is not Addressing.V2005_08 and envelope.to is None:
        return replace(envelope, to=ANONYMOUS_URI[envelope.addressing])
    return envelope


# --- there and back --------------------------------------------------------------------------------------------------


@given(envelopes())
@settings(max_examples=examples(200))
def test_an_envelope_comes_back_as_it_went(envelope: Envelope) -> None:
    decoded = wire.decode(wire.encode(envelope))
    envelope = addressed(envelope)
    if envelope.fault is not None and not envelope.fault.is_rm:
        assert wire.parse_element(decoded.body).tag.endswith("}Fault")  # an application's fault is a body as well
        decoded.body = b""
    assert decoded == envelope


@given(envelopes())
def test_an_empty_action_is_filled_in_from_what_the_body_says(envelope: Envelope) -> None:
    if envelope.control is not None or envelope.fault is not None:
        unsaid = replace(envelope, action="")
        assert wire.decode(wire.encode(unsaid)).action == envelope.action == wire.action_of(unsaid)


@given(envelopes())
def test_the_hot_path_answers_as_the_complete_one_or_not_at_all(envelope: Envelope) -> None:
    data = wire.encode(envelope)
    usual = decode_usual(data, wire.DEFAULT)
    assert usual is None or usual == decode_any(data, wire.DEFAULT)


@given(envelopes(), st.sampled_from(["\n", "\r\n  ", "\t"]))
def test_white_space_between_elements_changes_nothing(envelope: Envelope, space: str) -> None:
    data = wire.encode(envelope)
    if b"wsa:ReferenceP" in data or envelope.headers or envelope.body or envelope.fault:
        return  # what is opaque is not ours to lay out
    assert wire.decode(data.replace(b"><", b">" + space.encode() + b"<")) == addressed(envelope)


@given(envelopes(), st.sampled_from(["utf-16-le", "utf-16-be", "utf-16"]))
def test_utf_16_says_the_same(envelope: Envelope, codec: str) -> None:
    text = wire.encode(envelope).decode()
    expected = wire.decode(text.encode())
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-16": b""}[codec]
    for declaration in ("", '<?xml version="1.0" encoding="utf-16"?>'):
        assert wire.decode(mark + (declaration + text).encode(codec)) == expected


# --- bytes of any kind -----------------------------------------------------------------------------------------------


def decodes_or_is_refused(data: bytes) -> Envelope | None:
    try:
        envelope = wire.decode(data)
    except EnvelopeError as error:
        return None if error.soap in ("", "1.1", "1.2") else pytest.fail(f"answered in SOAP {error.soap}")
    assert isinstance(envelope, Envelope)
    return envelope


@given(st.binary(max_size=200))
@example(b"")
@example(b"<")
@example(b"<?xml")
@example(b"\xff\xfe")
@example(b"<\0")
@example(b"\xef\xbb\xbf<a/>")
def test_arbitrary_bytes_are_refused_in_one_way(data: bytes) -> None:
    decodes_or_is_refused(data)


@given(envelopes(), st.data())
@settings(max_examples=examples(200))
def test_a_damaged_envelope_is_read_or_refused_and_both_paths_agree(envelope: Envelope, data: st.DataObject) -> None:
    damaged = bytearray(wire.encode(envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        length = data.draw(st.integers(0, 12))
        patch = data.draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from(
                    [
                        b"<",
                        b">",
                        b"&",
                        b"&amp;",
                        b"'",
                        b'"',
                        b"/>",
                        b"<!--x-->",
                        b"<![CDATA[</s:Body>]]>",
                        b"\r",
                        b":",
                        b"</s:Body>",
                        b"<s:Body>",
                        b"<x/>",
                        b'<x a=">"/>',
                        b' xmlns="urn:x"',
                        b' xmlns:wsa="urn:x"',
                        b"0",
                    ]
                ),
            )
        )
        damaged[at : at + length] = patch
    read = decodes_or_is_refused(bytes(damaged))
    usual = decode_usual(bytes(damaged), wire.DEFAULT) if damaged[:1] == b"<" else None
    if usual is not None:
        assert usual == read == decode_any(bytes(damaged), wire.DEFAULT)


RECORDED = [
    body
    for path in sorted((Path(__file__).parent.parent / "data" / "vectors").glob("*/*/*.*"))
    if path.suffix in (".http", ".xml") and (body := path.read_bytes()[path.read_bytes().find(b"<s") :]).endswith(b">")
]
FRAGMENTS = [
    *(
        b"<!--x-->",
        b"<![CDATA[a]]>",
        b"&amp;",
        b"&lt;",
        b"&#10;",
        b" ",
        b"\r\n",
        b"<x/>",
        b"<x>1</x>",
        b"/",
        b"0",
        b"-",
    ),
    *(
        b"<s:Body/>",
        b"</s:Body><s:Body>",
        b"<s:Fault/>",
        b"<r:None/>",
        b"'",
        b'"',
        b' xmlns="urn:q"',
        b' a=">"',
        b" k='v'",
    ),
    *(b' xmlns:a="urn:q"', b' s:mustUnderstand="1"', b' s:role="urn:z"', b' RelationshipType="urn:q"'),
]


@given(st.sampled_from(RECORDED), st.randoms(use_true_random=False), st.sampled_from([rb"(?=<)", rb"([<>:\"])"]))
@settings(max_examples=examples(300))
def test_a_recorded_message_with_its_pieces_mixed_up_is_read_or_refused(
    data: bytes, chance: Random, cut: bytes
) -> None:
    pieces = re.split(cut, data)
    for _ in range(chance.randint(1, 3)):
        at, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
        match chance.randrange(4):
            case 0:
                pieces[at] = b""
            case 1:
                pieces.insert(at, pieces[other])
            case 2:
                pieces.insert(at, chance.choice(FRAGMENTS))
            case _:
                pieces[at], pieces[other] = pieces[other], pieces[at]
    mixed = b"".join(pieces)
    read = decodes_or_is_refused(mixed)
    usual = decode_usual(mixed, wire.DEFAULT) if mixed[:1] == b"<" else None
    assert usual is None or usual == read == decode_any(mixed, wire.DEFAULT)


SAMPLES = [
    wire.encode(
        Envelope(
            versions.soap,
            versions.addressing,
            versions.rm,
            action="urn:a",
            to="http://b.example",
            reply_to=EndpointReference(ANONYMOUS),
            sequence=Sequence("urn:s", 7),
            acknowledgements=(SequenceAcknowledgement("urn:t", ((1, 3), (5, 5))),),
            headers=(b'<h:h xmlns:h="urn:h">1</h:h>',),
            body="<p:q xmlns:p='urn:p'>ä€𝄞</p:q>".encode(),
        )
    )
    for versions in ALL_VERSIONS
]


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_an_envelope_cut_short_anywhere_is_refused(sample: bytes) -> None:
    for end in range(len(sample)):
        with pytest.raises(EnvelopeError):
            wire.decode(sample[:end])


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_two_envelopes_in_a_row_are_refused(sample: bytes) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(sample + sample)
