"""Reading envelopes: what is refused, what is tolerated, and what a body keeps when it is cut out.

Covers wire/decoding/envelopes.py, wire/decoding/fast.py and wire/tree.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import wire
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    LastMessage,
    Offer,
    Sequence,
    TerminateSequence,
)
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import AddressingError, EnvelopeError, LimitExceeded, VersionMismatch
from holdfast.wire.decoding import fast
from holdfast.wire.decoding.envelopes import decode_any
from holdfast.wire.decoding.fast import decode_usual
from holdfast.wire.tree import is_deep

S11 = "http://schemas.xmlsoap.org/soap/envelope/"
S12 = "http://www.w3.org/2003/05/soap-envelope"
WSA04 = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
WSA10 = "http://www.w3.org/2005/08/addressing"
RM10 = "http://schemas.xmlsoap.org/ws/2005/02/rm"
RM11 = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
SECURED = Path(__file__).parents[1] / "data" / "vectors" / "cxf-secured"


def message(header: str = "", body: str = "<x xmlns='urn:x'/>", *, soap: str = S12, more: str = "") -> bytes:
    return (
        f'<s:Envelope xmlns:s="{soap}" xmlns:a="{WSA10}" xmlns:a4="{WSA04}" xmlns:r="{RM11}" xmlns:r0="{RM10}"{more}>'
        f"<s:Header>{header}</s:Header><s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def sequence(number: str = "1", identifier: str = "urn:s", *, prefix: str = "r", more: str = "") -> str:
    return (
        f"<{prefix}:Sequence><{prefix}:Identifier>{identifier}</{prefix}:Identifier>"
        f"<{prefix}:MessageNumber>{number}</{prefix}:MessageNumber>{more}</{prefix}:Sequence>"
    )


@pytest.mark.parametrize(
    "data",
    [
        f"<s:Envelope xmlns:s='{S12}'><s:Body/><s:Body/></s:Envelope>",
        f"<s:Header xmlns:s='{S12}'/>",
        f"<s:Envelope xmlns:s='{S12}'><s:Body><s:Fault/><x xmlns='{S12}'/></s:Body></s:Envelope>",
        f"<s:Envelope xmlns:s='{S12}'><s:Fault/></s:Envelope>",
    ],
)
def test_an_expanded_name_in_an_error_has_both_braces(data: str) -> None:
    with pytest.raises(EnvelopeError) as raised:
        wire.decode(data.encode())
    assert f"'{{{S12}}}" in raised.value.message, raised.value.message


# --- what is no envelope ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not XML",
        b"<a>",
        b"<s:Envelope/>",
        message() + b"<again/>",
        message(body="<x:y/>"),
        message(body="<x a='1' a='2'/>"),
        message(body="&undeclared;"),
        message(body="\x01"),
        message()[:-3],
        message().replace(b"<s:Header></s:Header>", b"").replace(b"s:Body", b"s:Corpse"),
        message().replace(b"</s:Envelope>", b"<s:Body/></s:Envelope>"),
        message().replace(b"</s:Body>", b"</s:Body><s:Body>").replace(b"</s:Envelope>", b"</s:Body></s:Envelope>"),
        message().replace(b"</s:Header>", b"</s:Header><s:Header/>"),
        message().replace(b"<s:Body><x xmlns='urn:x'/></s:Body>", b""),
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(data)


@pytest.mark.parametrize("root", [b"<html/>", b'<Envelope xmlns="urn:soap-3"/>', b"<Envelope/>"])
def test_another_root_is_a_version_mismatch(root: bytes) -> None:
    with pytest.raises(VersionMismatch):
        wire.decode(root)


@pytest.mark.parametrize(
    "prolog",
    [
        b"<!DOCTYPE x>",
        b'<!DOCTYPE x [<!ENTITY e "v">]>',
        b'<!DOCTYPE x SYSTEM "http://attacker.example/x.dtd">',
        b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>',
        b'<?xml version="1.0"?><!DOCTYPE x>',
    ],
)
def test_a_document_type_declaration_is_refused_before_anything_is_resolved(prolog: bytes) -> None:
    with pytest.raises(EnvelopeError, match="document type"):
        wire.decode(prolog + message(body="&c;"))


@pytest.mark.parametrize("data", [b"<?php x?>" + message(), message(body="<?go somewhere?><x/>"), message() + b"<?x?>"])
def test_a_processing_instruction_is_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"processing instructions|XML declaration"):
        wire.decode(data)


def test_an_error_says_which_soap_version_to_answer_in() -> None:
    for soap, version in ((S11, "1.1"), (S12, "1.2")):
        with pytest.raises(EnvelopeError) as caught:
            wire.decode(message(sequence("0"), soap=soap))
        assert caught.value.soap == version


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_message_above_the_size_limit_is_refused() -> None:
    data = message()
    assert wire.decode(data, limits=wire.Limits(max_bytes=len(data))).soap is SOAP.V1_2
    with pytest.raises(LimitExceeded):
        wire.decode(data, limits=wire.Limits(max_bytes=len(data) - 1))


def nested(levels: int) -> str:
    return "<x>" * levels + "</x>" * levels


@pytest.mark.parametrize("end", ["", "<!-- </</</ -->", "<![CDATA[</</</]]>", "<y/>" * 100, " />/>/> "])
def test_depth_is_counted_exactly_in_a_body(end: str) -> None:
    # The Envelope and the Body are the first two of 64.
    assert wire.decode(message(body=f"<z>{nested(61)}{end}</z>")).body
    with pytest.raises(LimitExceeded):
        wire.decode(message(body=f"<z>{end}{nested(62)}</z>"))


def test_many_elements_beside_one_another_are_no_depth() -> None:
    body = "<o>" + "<i><k>1</k><v/></i>" * 2_000 + "</o>"
    assert wire.decode(message(body=body)).body == body.encode()


def test_small_elements_close_beside_one_another_are_no_depth_to_the_hot_path() -> None:
    flat = "<x>" + "<b>1</b>" * 5_000 + "</x>"
    assert decode_usual(message(body=flat), wire.DEFAULT) is not None
    for levels, deep in ((50, False), (70, True)):
        body = f"<x>{'<b>1</b>' * 500}{nested(levels)}{'<b>1</b>' * 500}</x>"
        assert is_deep(message(body=body), 64) == deep


def test_depth_is_limited_in_a_header_too() -> None:
    with pytest.raises(LimitExceeded):
        wire.decode(message(f"<h:h xmlns:h='urn:h'>{nested(70)}</h:h>"))


def test_a_million_open_elements_are_refused_early() -> None:
    with pytest.raises(LimitExceeded):
        wire.decode(message(body="<a>" * 1_000_000))


@pytest.mark.parametrize("block", ["<h:h xmlns:h='urn:h'/>", "<h/>", "<h></h>"])
def test_too_many_header_blocks_are_refused(block: str) -> None:
    assert len(wire.decode(message(block * 64)).headers) == 64
    with pytest.raises(LimitExceeded):
        wire.decode(message(block * 65))


def test_a_header_of_too_many_bytes_is_refused_however_long_the_message() -> None:
    block = f"<h:h xmlns:h='urn:h'>{'x' * 300_000}</h:h>"
    for body in ("<x/>", f"<x>{'y' * 600_000}</x>"):
        with pytest.raises(LimitExceeded, match="header"):
            wire.decode(message(block, body))


def test_a_large_body_under_a_small_header_is_read() -> None:
    body = f"<x>{'y' * 600_000}<!-- a comment --></x>"
    assert wire.decode(message(sequence(), body)).body == body.encode()


def test_an_rm_body_of_too_many_elements_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        wire.decode(message(body=f"<r:CreateSequence>{'<y/>' * 10_001}</r:CreateSequence>"))


def test_an_acknowledgement_of_too_many_ranges_is_refused() -> None:
    def acknowledgement(count: int) -> str:
        ranges = '<r:AcknowledgementRange Lower="1" Upper="1"/>' * count
        return f"<r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier>{ranges}</r:SequenceAcknowledgement>"

    limits = wire.Limits(max_ranges=20)
    (read,) = wire.decode(message(acknowledgement(20)), limits=limits).acknowledgements
    assert len(read.ranges) == 20
    with pytest.raises(LimitExceeded):
        wire.decode(message(acknowledgement(21)), limits=limits)


def test_ten_thousand_attributes_are_read_in_a_body_as_bytes() -> None:
    body = "<x " + " ".join(f'a{n}="1"' for n in range(10_000)) + "/>"
    assert wire.decode(message(body=body)).body == body.encode()


# --- encodings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "declared"), [("iso-8859-1", "ISO-8859-1"), ("utf-8", "utf-8"), ("windows-1252", "Windows-1252")]
)
def test_a_declared_encoding_is_obeyed_and_the_body_is_utf_8(codec: str, declared: str) -> None:
    text = f'<?xml version="1.0" encoding="{declared}"?>\n' + message(body="<x>Größe</x>").decode()
    assert wire.decode(text.encode(codec)).body == "<x>Größe</x>".encode()


def test_a_utf_8_mark_is_taken_off() -> None:
    assert wire.decode(b"\xef\xbb\xbf" + message()).body == b"<x xmlns='urn:x'/>"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_read_with_and_without_a_mark(codec: str) -> None:
    assert wire.decode(message(body="<x>ä</x>").decode().encode(codec)).body == "<x>ä</x>".encode()


@pytest.mark.parametrize("encoding", ["zip", "rot13", "unicode_escape", "utf-7", "idna", "x" * 50])
def test_an_encoding_that_xml_does_not_have_is_refused(encoding: str) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + message())


@pytest.mark.parametrize("data", [b"\xff\xfe<\0a", b"\xfe\xff\xd8\x00", message(body="<x>ä</x>").replace(b"\xc3", b"")])
def test_bytes_that_are_not_what_they_claim_are_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(data)


# --- the body --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "<x/>",
        "<x>see https://example/?q and minutes:seconds, s: or 12:30</x>",
        " <x/> <!-- b? --> <y/> ",
        "<x><![CDATA[</z:Body></z:Envelope>]]></x>",
        "<x>]]&gt;&lt;</x>",
        "<q:x xmlns:q='urn:q' q:k='>'/>",
        "<x><s1:Body xmlns:s1='urn:b'></s1:Body></x>",
    ],
)
def test_a_body_that_needs_nothing_from_outside_stays_octet_for_octet(body: str) -> None:
    data = message(body=body)
    assert wire.decode(data).body == body.encode()
    assert decode_any(data, wire.DEFAULT).body == body.encode()


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("<t:x/>", b'<t:x xmlns:t="urn:t"/>'),
        ("<x><t:y/></x>", b'<x xmlns:t="urn:t"><t:y/></x>'),
        ("<x k='t:name'/>", b"<x xmlns:t=\"urn:t\" k='t:name'/>"),
        ("<x>t:name</x>", b'<x xmlns:t="urn:t">t:name</x>'),
        ("<t:x/><y/><t:z/>", b'<t:x xmlns:t="urn:t"/><y/><t:z xmlns:t="urn:t"/>'),
        ("<t:x xmlns:t='urn:mine'/>", b"<t:x xmlns:t='urn:mine'/>"),
        ("<t:x\n\tk='>'>1</t:x>\n", b"<t:x xmlns:t=\"urn:t\"\n\tk='>'>1</t:x>\n"),
    ],
)
def test_a_body_takes_along_the_namespaces_it_uses(body: str, kept: bytes) -> None:
    data = message(body=body, more=' xmlns:t="urn:t"')
    assert wire.decode(data).body == kept
    assert decode_any(data, wire.DEFAULT).body == kept


def test_what_looks_like_the_end_of_the_body_is_not_taken_for_it() -> None:
    for inner in ("<![CDATA[</s:Body></s:Envelope>]]>", "<s:Body></s:Body>", "<!-- </s:Body></s:Envelope> -->"):
        body = wire.decode(message(body=f"<x>{inner}</x>")).body
        assert body == f'<x xmlns:s="{S12}">{inner}</x>'.encode()


def test_a_body_takes_along_a_default_namespace_and_one_declared_on_the_body() -> None:
    data = (
        f'<Envelope xmlns="{S12}"><Header/><Body xmlns:t="urn:a&amp;b"><t:x><y xmlns="">1</y></t:x></Body></Envelope>'
    )
    kept = f'<t:x xmlns="{S12}" xmlns:t="urn:a&amp;b"><y xmlns="">1</y></t:x>'
    assert wire.decode(data.encode()).body == kept.encode()


@pytest.mark.parametrize("body", ["", " \n ", None])
def test_a_body_with_nothing_in_it_is_empty(body: str | None) -> None:
    data = message(body=body or "")
    if body is None:
        data = data.replace(b"<s:Body></s:Body>", b"<s:Body/>")
    assert wire.decode(data).body == b""


@pytest.mark.parametrize(
    "text", ["text", "&#65;", "<![CDATA[x]]>", " a<x/>", "a<!-- --><x/>", "<!-- -->a<x/>", f"a{'b' * 99}"]
)
def test_text_where_the_bodys_element_should_be_is_refused_on_every_path(text: str) -> None:
    data = message(body=text)
    for _ in range(2):
        wire.decode(message())
    assert decode_usual(data, wire.DEFAULT) is None
    with pytest.raises(EnvelopeError, match="text instead of an element"):
        wire.decode(data)


def test_a_body_of_comments_and_white_space_is_empty() -> None:
    assert wire.decode(message(body=" <!-- --> <!---->\n")).body == b""


def test_an_envelope_without_header_is_an_application_message() -> None:
    envelope = wire.decode(f'<e:Envelope xmlns:e="{S11}"><e:Body><x/></e:Body></e:Envelope>'.encode())
    assert (envelope.soap, envelope.addressing, envelope.rm) == (SOAP.V1_1, None, None)
    assert envelope.body == b"<x/>"


def test_comments_and_white_space_around_everything_are_tolerated() -> None:
    data = message(f"\n <!-- now --> {sequence()}\n").replace(b"<s:Body>", b"<!-- b -->\n<s:Body>")
    envelope = wire.decode(b" \n<!-- first -->" + data + b"\n<!-- last -->\n")
    assert envelope.sequence == Sequence("urn:s", 1)


# --- RM headers ------------------------------------------------------------------------------------------------------


def test_white_space_around_values_is_taken_off() -> None:
    envelope = wire.decode(message(sequence(" \n7\t", "\r\n urn:s ")))
    assert envelope.sequence == Sequence("urn:s", 7)


@pytest.mark.parametrize("number", ["0", "-1", "", "one", "1.0", "1e3", "٣", "1_000", "9" * 65])
def test_a_message_number_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(message(sequence(number)))


def test_a_message_number_above_the_maximum_is_read_so_that_the_core_can_refuse_it() -> None:
    read = wire.decode(message(sequence(str(2**63)))).sequence
    assert read is not None
    assert read.message_number == 2**63


@pytest.mark.parametrize(
    "header",
    [
        sequence() + sequence("2"),
        "<r:Sequence><r:MessageNumber>1</r:MessageNumber></r:Sequence>",
        "<r:Sequence><r:Identifier>urn:s</r:Identifier></r:Sequence>",
        "<r:Sequence/>",
        sequence(identifier=" "),
        sequence() + sequence(prefix="r0"),
        "<r:AckRequested/>",
        "<r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier></r:SequenceAcknowledgement>",
        "<r:SequenceAcknowledgement><r:None/></r:SequenceAcknowledgement>",
        *(
            f"<r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier>{said}</r:SequenceAcknowledgement>"
            for said in (
                '<r:AcknowledgementRange Lower="1"/>',
                '<r:AcknowledgementRange Lower="-1" Upper="1"/>',
                '<r:AcknowledgementRange Lower="a" Upper="1"/>',
                "<r:Nack>x</r:Nack>",
            )
        ),
        "<r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier><r:None/></r:SequenceAcknowledgement>" * 2,
    ],
)
def test_a_malformed_or_doubled_rm_header_is_refused(header: str) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(message(header))


def acknowledged(said: str, prefix: str = "r") -> tuple[tuple[int, int], ...]:
    name = f"{prefix}:SequenceAcknowledgement"
    header = f"<{name}><{prefix}:Identifier>urn:s</{prefix}:Identifier>{said}</{name}>"
    data = message(header)
    envelope = decode_any(data, wire.DEFAULT)
    assert wire.decode(data) == envelope
    return envelope.acknowledgements[0].ranges


DOUBLED = {
    "Sequence's Identifier": sequence().replace(
        "<r:MessageNumber>", "<r:Identifier>urn:t</r:Identifier><r:MessageNumber>"
    ),
    "Sequence's Identifier, later": sequence(more="<r:Identifier>urn:s</r:Identifier>"),
    "MessageNumber": sequence(more="<r:MessageNumber>2</r:MessageNumber>"),
    "LastMessage": sequence(prefix="r0", more="<r0:LastMessage/><r0:LastMessage/>"),
    "AckRequested's Identifier": f"<r:AckRequested>{'<r:Identifier>a</r:Identifier>' * 2}</r:AckRequested>",
    **{
        f"an acknowledgement's {name}": f"<r:SequenceAcknowledgement><r:Identifier>urn:t</r:Identifier>{more}"
        "</r:SequenceAcknowledgement>"
        for name, more in {
            "Identifier": "<r:Identifier>urn:u</r:Identifier><r:None/>",
            "None": "<r:None/><r:None/>",
            "Final": "<r:AcknowledgementRange Lower='1' Upper='1'/><r:Final/><r:Final/>",
            "BufferRemaining": "<r:None/>" + "<n:BufferRemaining>1</n:BufferRemaining>" * 2,
        }.items()
    },
}


@pytest.mark.parametrize("what", DOUBLED)
def test_a_part_of_an_rm_header_that_is_doubled_is_refused_on_every_path(what: str) -> None:
    netrm = ' xmlns:n="http://schemas.microsoft.com/ws/2006/05/rm"'
    data = message(DOUBLED[what], more=netrm)
    for number in (1, 2):
        wire.decode(message(sequence(str(number)), more=netrm))
    assert fast.decode_usual(data, wire.DEFAULT) is None
    with pytest.raises(EnvelopeError, match=r"has two|two .* headers"):
        wire.decode(data)


@pytest.mark.parametrize("name", ["Identifier", "AcksTo", "Expires", "Offer", "LastMsgNumber", "Accept", "Endpoint"])
def test_a_part_of_an_rm_message_that_is_doubled_is_refused(name: str) -> None:
    address = "<a:Address>urn:x</a:Address>"
    parts = {
        "Identifier": "<r:Identifier>urn:s</r:Identifier>",
        "AcksTo": f"<r:AcksTo>{address}</r:AcksTo>",
        "Expires": "<r:Expires>PT1H</r:Expires>",
        "Endpoint": f"<r:Endpoint>{address}</r:Endpoint>",
        "LastMsgNumber": "<r:LastMsgNumber>1</r:LastMsgNumber>",
        "Accept": f"<r:Accept><r:AcksTo>{address}</r:AcksTo></r:Accept>",
    }
    endpoint = parts["Endpoint"] * (2 if name == "Endpoint" else 1)
    parts["Offer"] = f"<r:Offer><r:Identifier>urn:o</r:Identifier>{endpoint}</r:Offer>"
    bodies = {
        "CreateSequence": ("AcksTo", "Expires", "Offer"),
        "CloseSequence": ("Identifier", "LastMsgNumber"),
        "TerminateSequence": ("Identifier", "LastMsgNumber"),
        "CreateSequenceResponse": ("Identifier", "Expires", "Accept"),
        "CloseSequenceResponse": ("Identifier",),
        "TerminateSequenceResponse": ("Identifier",),
    }
    for local, names in bodies.items():
        if name not in names and not (name == "Endpoint" and "Offer" in names):
            continue
        content = "".join(parts[part] * (2 if part == name else 1) for part in names)
        with pytest.raises(EnvelopeError, match=f"has two {name}"):
            wire.decode(message(body=f"<r:{local}>{content}</r:{local}>"))


@pytest.mark.parametrize("local", ["CloseSequence", "TerminateSequence"])
@pytest.mark.parametrize("number", [2**63, 2**64, 10**63])
def test_a_last_msg_number_that_no_message_can_have_is_refused(local: str, number: int) -> None:
    body = f"<r:{local}><r:Identifier>urn:s</r:Identifier><r:LastMsgNumber>{{}}</r:LastMsgNumber></r:{local}>"
    with pytest.raises(EnvelopeError, match="LastMsgNumber is above 9223372036854775807"):
        wire.decode(message(body=body.format(number)))
    highest = wire.decode(message(body=body.format(2**63 - 1))).control
    assert isinstance(highest, CloseSequence | TerminateSequence)
    assert highest.last_message_number == 2**63 - 1


# --- what Action and Body say ----------------------------------------------------------------------------------------

CLOSE = "<r:CloseSequence><r:Identifier>urn:s</r:Identifier></r:CloseSequence>"
FAULT = "<s:Fault><s:Code><s:Value>s:Sender</s:Value></s:Code><s:Reason><s:Text>no</s:Text></s:Reason></s:Fault>"
AGREEMENTS = [
    (f"{RM11}/CloseSequence", CLOSE, True),
    (f"{RM11}/TerminateSequence", CLOSE, False),
    (f"{RM10}/CreateSequence", CLOSE, False),
    ("urn:mine", CLOSE, False),
    ("", CLOSE, False),
    (f"{RM11}/CloseSequence", "<x/>", False),
    (f"{RM11}/CloseSequence", "", False),
    (f"{RM11}/CloseSequence", FAULT, False),
    (f"{RM11}/AckRequested", "", True),
    (f"{RM11}/AckRequested", "<x/>", False),
    (f"{RM11}/SequenceAcknowledgement", "<x/>", False),
    (f"{RM10}/LastMessage", "<x/>", False),
    (f"{RM11}/fault", FAULT, True),
    (f"{RM11}/fault", "<x/>", False),
    (f"{WSA10}/fault", FAULT, True),
    (f"{WSA10}/soap/fault", "<x/>", False),
    (f"{WSA04}/fault", "", False),
    ("urn:mine", FAULT, True),
    ("urn:mine", "<x/>", True),
    ("", "<x/>", True),
]


@pytest.mark.parametrize(("action", "body", "agree"), AGREEMENTS)
def test_a_body_that_contradicts_its_action_is_known_for_it_on_every_path(action: str, body: str, agree: bool) -> None:
    written = f"<a:Action>{action}</a:Action>" if action else ""
    for header in (written, written + "<a:MessageID>urn:1</a:MessageID>", f"<!-- any -->{written}"):
        for _ in range(2):
            assert (wire.decode(message(header, body)).contradiction == "") == agree


def test_ranges_win_over_the_none_that_cxf_always_writes() -> None:
    assert acknowledged('<r:AcknowledgementRange Upper=" 3" Lower=" 1 "/><r:None/>') == ((1, 3),)


def test_nothing_accepted_is_none_in_1_1_and_the_range_0_0_in_1_0() -> None:
    assert acknowledged("<r:None/>") == ()
    assert acknowledged('<r0:AcknowledgementRange Upper="0" Lower="0"/>', "r0") == ()
    assert acknowledged('<r:AcknowledgementRange Upper="0" Lower="0"/>') == ((0, 0),)
    assert acknowledged('<r0:AcknowledgementRange Upper="5" Lower="0"/>', "r0") == ((0, 5),)


def test_final_is_read_before_and_after_the_ranges() -> None:
    for said in ('<r:Final/><r:AcknowledgementRange Lower="1" Upper="2"/>', "<r:None/><r:Final></r:Final>"):
        header = f"<r:SequenceAcknowledgement><r:Identifier>u:s</r:Identifier>{said}</r:SequenceAcknowledgement>"
        assert wire.decode(message(header)).acknowledgements[0].final


def test_extension_children_of_rm_headers_are_passed_over() -> None:
    header = sequence(more="<h:extra xmlns:h='urn:h'><r:MessageNumber>9</r:MessageNumber></h:extra>")
    assert wire.decode(message(header)).sequence == Sequence("urn:s", 1)


def test_1_0s_hint_in_ack_requested_is_dropped() -> None:
    for hint in ("MessageNumber", "MaxMessageNumberUsed"):
        header = f"<r0:AckRequested><r0:Identifier>urn:s</r0:Identifier><r0:{hint}>4</r0:{hint}></r0:AckRequested>"
        envelope = wire.decode(message(header))
        assert [request.identifier for request in envelope.ack_requested] == ["urn:s"]
        assert envelope.rm is RM.V1_0


def test_last_message_exists_in_1_0_only() -> None:
    older = wire.decode(message(sequence(prefix="r0", more="<r0:LastMessage/>"))).sequence
    newer = wire.decode(message(sequence(more="<r:LastMessage/>"))).sequence
    assert older == Sequence("urn:s", 1, last_message=True)
    assert newer == Sequence("urn:s", 1)


def test_an_empty_body_with_an_rm_action_is_the_message_of_that_action() -> None:
    envelope = wire.decode(message(f"<a:Action>{RM11}/SequenceAcknowledgement</a:Action>", ""))
    assert envelope.control == Acknowledge()
    assert envelope.rm is RM.V1_1
    envelope = wire.decode(message(f"<a:Action>{RM10}/LastMessage</a:Action>", ""))
    assert envelope.control == LastMessage()
    assert envelope.rm is RM.V1_0


def test_an_rm_element_without_meaning_in_a_body_is_an_applications() -> None:
    body = f"<Sequence xmlns='{RM11}'/>"
    assert wire.decode(message(body=body)).body == body.encode()


@pytest.mark.parametrize(
    "body",
    [
        "<r:CreateSequence/>",
        "<r:CreateSequence><r:AcksTo/></r:CreateSequence>",
        "<r:CloseSequence/>",
        "<r0:CloseSequence><r0:Identifier>urn:s</r0:Identifier></r0:CloseSequence>",
        "<r:TerminateSequence><r:Identifier>u:s</r:Identifier><r:LastMsgNumber>0</r:LastMsgNumber></r:TerminateSequence>",
        "<r:TerminateSequence><r:Identifier>urn:s</r:Identifier></r:TerminateSequence><x/>",
        "<r:CreateSequenceResponse><r:Identifier>u:s</r:Identifier><r:Expires>-PT1S</r:Expires></r:CreateSequenceResponse>",
    ],
)
def test_a_malformed_rm_message_is_refused(body: str) -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(message(body=body))


def test_cxfs_bodies_for_the_reverse_sequence_are_read_as_what_they_mean() -> None:
    for prefix in ("r", "r0"):
        epr = f"<{prefix}:AcksTo><a:Address>urn:c</a:Address></{prefix}:AcksTo>"
        created = wire.decode(message(body=f"<{prefix}:CreateSequenceOneway>{epr}</{prefix}:CreateSequenceOneway>"))
        assert created.control == CreateSequence(EndpointReference("urn:c"))
        name, identifier = f"{prefix}:CreateSequenceResponseOneway", f"<{prefix}:Identifier>urn:s</{prefix}:Identifier>"
        assert wire.decode(message(body=f"<{name}>{identifier}</{name}>")).control == CreateSequenceResponse("urn:s")


def test_gsoaps_1_1_children_of_a_1_0_offer_are_passed_over() -> None:
    offer = (
        "<r0:Offer><r0:Identifier>urn:o</r0:Identifier><r0:Endpoint><a:Address/></r0:Endpoint>"
        "<r0:IncompleteSequenceBehavior>NoDiscard</r0:IncompleteSequenceBehavior></r0:Offer>"
    )
    acks_to = "<r0:AcksTo><a:Address>urn:c</a:Address></r0:AcksTo>"
    control = wire.decode(message(body=f"<r0:CreateSequence>{acks_to}{offer}</r0:CreateSequence>")).control
    assert control == CreateSequence(EndpointReference("urn:c"), offer=Offer("urn:o"))


def test_an_illegal_incomplete_sequence_behavior_is_ignored() -> None:
    behavior = "<r:IncompleteSequenceBehavior>Whatever</r:IncompleteSequenceBehavior>"
    body = f"<r:CreateSequenceResponse><r:Identifier>urn:s</r:Identifier>{behavior}</r:CreateSequenceResponse>"
    assert wire.decode(message(body=body)).control == CreateSequenceResponse("urn:s")


@pytest.mark.parametrize("value", ["-1", "2147483648", "many", ""])
def test_a_buffer_remaining_out_of_range_is_refused(value: str) -> None:
    netrm = "http://schemas.microsoft.com/ws/2006/05/rm"
    said = f'<r:None/><n:BufferRemaining xmlns:n="{netrm}">{value}</n:BufferRemaining>'
    header = f"<r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier>{said}</r:SequenceAcknowledgement>"
    with pytest.raises(EnvelopeError):
        wire.decode(message(header))


# --- foreign and mandatory headers -----------------------------------------------------------------------------------


def not_understood(header: str, soap: str = S12) -> tuple[str, ...]:
    data = message(header, soap=soap)
    envelope = decode_any(data, wire.DEFAULT)
    assert wire.decode(data) == envelope
    return envelope.not_understood


def for_receiver(header: str, soap: str = S12) -> tuple[str, ...]:
    data = message(header, soap=soap)
    envelope = decode_any(data, wire.DEFAULT)
    assert wire.decode(data) == envelope
    return envelope.for_receiver


def test_a_mandatory_header_that_nobody_knows_is_named() -> None:
    assert not_understood("<h:h xmlns:h='urn:h' s:mustUnderstand='true'/>") == ("{urn:h}h",)
    assert not_understood("<h:h xmlns:h='urn:h' s:mustUnderstand=' 1 '/>") == ("{urn:h}h",)
    assert not_understood("<h:h xmlns:h='urn:h' s:mustUnderstand='0'/>") == ()
    assert not_understood("<h:h xmlns:h='urn:h'/>") == ()


def test_a_mandatory_header_for_another_node_is_ignored() -> None:
    header = "<h:h xmlns:h='urn:h' s:mustUnderstand='1' s:role='{}'/>"
    assert not_understood(header.format("urn:cache")) == ()
    assert not_understood(header.format(S12 + "/role/next")) == ("{urn:h}h",)
    assert not_understood(header.format(S12 + "/role/ultimateReceiver")) == ("{urn:h}h",)
    assert for_receiver(header.format(S12 + "/role/next")) == ()
    assert for_receiver(header.format(S12 + "/role/ultimateReceiver")) == ("{urn:h}h",)
    assert for_receiver("<h:h xmlns:h='urn:h' s:mustUnderstand='true'/>") == ("{urn:h}h",)
    actor = "<h:h xmlns:h='urn:h' s:mustUnderstand='1' s:actor='{}'/>"
    assert not_understood(actor.format("urn:cache"), S11) == ()
    assert not_understood(actor.format("http://schemas.xmlsoap.org/soap/actor/next"), S11) == ("{urn:h}h",)


def test_a_security_binding_is_never_passed_over() -> None:
    assert not_understood("<r:UsesSequenceSTR s:mustUnderstand='1'/>") == (f"{{{RM11}}}UsesSequenceSTR",)
    assert not_understood("<r:UsesSequenceSSL/>") == (f"{{{RM11}}}UsesSequenceSSL",)


def test_addressing_and_rm_headers_are_understood() -> None:
    header = (
        "<a:Action s:mustUnderstand='1'>urn:a</a:Action><a:To s:mustUnderstand='true'>urn:t</a:To>"
        + sequence().replace("<r:Sequence>", "<r:Sequence s:mustUnderstand='1'>")
    )
    assert not_understood(header) == ()


def test_a_sequence_header_for_another_role_is_not_ours() -> None:
    header = sequence().replace("<r:Sequence>", "<r:Sequence s:role='urn:cache' s:mustUnderstand='1'>")
    envelope = wire.decode(message(header))
    assert envelope.sequence is None
    assert envelope.not_understood == ()


def test_foreign_headers_are_kept_self_contained() -> None:
    header = "<t:a k='>'><b/></t:a><c xmlns='urn:c'>t:x</c>"
    data = message(header, more=' xmlns:t="urn:t"')
    kept = (b"<t:a xmlns:t=\"urn:t\" k='>'><b/></t:a>", b"<c xmlns:t=\"urn:t\" xmlns='urn:c'>t:x</c>")
    assert wire.decode(data).headers == kept
    assert decode_any(data, wire.DEFAULT).headers == kept


# --- addressing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "<a:Action>urn:a</a:Action><a:Action>urn:a</a:Action>",
        "<a:To>urn:a</a:To><a:To>urn:b</a:To>",
        "<a:MessageID>urn:a</a:MessageID>" * 2,
        "<a:RelatesTo>urn:a</a:RelatesTo>" * 2,
        "<a:ReplyTo><a:Address>urn:a</a:Address></a:ReplyTo>" * 2,
        "<a:ReplyTo/>",
        "<a:ReplyTo><a:Address>urn:a</a:Address><a:Address>urn:b</a:Address></a:ReplyTo>",
    ],
)
def test_doubled_or_malformed_addressing_headers_are_refused(header: str) -> None:
    with pytest.raises(AddressingError):
        wire.decode(message(header))


def test_an_empty_addressing_header_that_is_doubled_is_refused_too() -> None:
    with pytest.raises(AddressingError):
        wire.decode(message("<a:To/><a:To/>"))


def test_of_two_addressing_versions_the_one_with_the_action_counts() -> None:
    header = "<a4:To>urn:old</a4:To><a:Action>urn:a</a:Action><a4:MessageID>urn:m</a4:MessageID>"
    envelope = wire.decode(message(header))
    assert envelope.addressing is Addressing.V2005_08
    assert (envelope.action, envelope.to, envelope.message_id) == ("urn:a", None, None)
    assert len(envelope.headers) == 2


def test_the_anonymous_address_of_each_version_is_known_and_no_others() -> None:
    for prefix, uri in (("a", WSA10 + "/anonymous"), ("a4", WSA04 + "/role/anonymous")):
        header = f"<{prefix}:ReplyTo><{prefix}:Address> {uri}\n</{prefix}:Address></{prefix}:ReplyTo>"
        reply_to = wire.decode(message(header)).reply_to
        assert reply_to is not None
        assert reply_to.is_anonymous
    other = f"<a:ReplyTo><a:Address>{WSA04}/role/anonymous</a:Address></a:ReplyTo>"
    assert wire.decode(message(other)).reply_to == EndpointReference(WSA04 + "/role/anonymous")


def test_none_is_known() -> None:
    reply_to = wire.decode(message(f"<a:ReplyTo><a:Address>{WSA10}/none</a:Address></a:ReplyTo>")).reply_to
    assert reply_to is not None
    assert reply_to.is_none


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"<a:RelatesTo RelationshipType='{WSA10}/reply'>urn:r</a:RelatesTo>", "urn:r"),
        ("<a:RelatesTo RelationshipType='urn:cause'>urn:r</a:RelatesTo>", None),
        ("<a:RelatesTo RelationshipType='urn:cause'>urn:c</a:RelatesTo><a:RelatesTo>urn:r</a:RelatesTo>", "urn:r"),
        ("<a4:RelatesTo RelationshipType='a4:Reply'>urn:r</a4:RelatesTo>", "urn:r"),
        ("<a4:RelatesTo>urn:r</a4:RelatesTo>", "urn:r"),
        ("<a4:RelatesTo RelationshipType='a:Reply'>urn:r</a4:RelatesTo>", None),
    ],
)
def test_relates_to_counts_with_the_reply_relationship_only(header: str, expected: str | None) -> None:
    assert wire.decode(message(header)).relates_to == expected


def test_reference_parameters_are_self_contained_elements() -> None:
    header = (
        "<a:ReplyTo><a:Address>urn:a</a:Address><a:ReferenceParameters><t:k>1</t:k><plain/></a:ReferenceParameters>"
        "<a:Metadata><t:m/></a:Metadata></a:ReplyTo>"
    )
    reply_to = wire.decode(message(header, more=' xmlns:t="urn:t"')).reply_to
    assert reply_to == EndpointReference("urn:a", (b'<t:k xmlns:t="urn:t">1</t:k>', b"<plain/>"))


def test_2004s_reference_properties_are_read_as_well() -> None:
    header = (
        "<a4:ReplyTo><a4:Address>urn:a</a4:Address><a4:ReferenceProperties><k>1</k></a4:ReferenceProperties>"
        "<a4:ReferenceParameters><l/></a4:ReferenceParameters></a4:ReplyTo>"
    )
    assert wire.decode(message(header)).reply_to == EndpointReference("urn:a", (b"<k>1</k>", b"<l/>"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://a/?b=1&amp;c=2", "http://a/?b=1&c=2"),
        ("http://a/?b=1&amp;amp;c=&quot;&lt;&gt;&apos;", "http://a/?b=1&amp;c=\"<>'"),
        ("http://a/?b=&#x32;", "http://a/?b=2"),
        ("&#32;urn:a<![CDATA[&amp;]]><!-- no -->z\r\n", "urn:a&amp;z"),
    ],
)
def test_characters_written_as_references_are_read(written: str, meant: str) -> None:
    reply_to = f"<a:ReplyTo><a:Address>{written}</a:Address></a:ReplyTo>"
    data = message(f"<a:To>{written}</a:To>{reply_to}{sequence(identifier=written)}")
    envelope = wire.decode(data)
    assert envelope == decode_any(data, wire.DEFAULT)
    assert (envelope.to, envelope.reply_to, envelope.sequence) == (
        meant,
        EndpointReference(meant),
        Sequence(meant, 1),
    )


def test_an_address_with_a_query_is_no_reason_to_leave_the_hot_path() -> None:
    usual = decode_usual(message("<a:To>http://a/?b=1&amp;c=2</a:To>"), wire.DEFAULT)
    assert usual is not None
    assert usual.to == "http://a/?b=1&c=2"


# --- the hot path ----------------------------------------------------------------------------------------------------


def test_what_the_hot_path_remembers_of_tags_is_bounded() -> None:
    for number in range(6_000):
        data = message(f'<h:h{number} xmlns:h="urn:h" i="{number}"/><a:To>urn:t</a:To>')
        usual = decode_usual(data, wire.DEFAULT)
        assert usual is not None
        assert usual.to == "urn:t"
    assert fast._seen <= fast._MAX_SEEN


@pytest.mark.parametrize(
    "header",
    [
        f"<h:h xmlns:h='urn:h'><s:Body xmlns:s='{S12}'/></h:h>",
        '<h:h xmlns:h="urn:h"><s:Body></s:Body><r:None/></h:h>',
        "<a:To>urn:t<r:None/></a:To>",
        "<a:ReplyTo><a4:Address>urn:a</a4:Address></a:ReplyTo>",
        '<h:h xmlns:h="urn:h" k="a>b/"><i k="/>"/></h:h><a:To>urn:t</a:To>',
        "<a:To a:k='v'>urn:t</a:To>text between",
        "<h:h xmlns:h='urn:h'></h:h> and > after it",
        '<h:h xmlns:h="urn:h"/> and > after it',
        '<h:h xmlns:h="urn:h\r\n"/>',
        '<To xmlns="urn:h">&lt;r:Sequence&gt;</To><a:To>urn:a&amp;b</a:To>',
        "<a:Action xmlns:a='urn:not-addressing'>urn:t</a:Action>",
    ],
)
def test_odd_headers_read_the_same_on_both_paths(header: str) -> None:
    data = message(header)
    usual = decode_usual(data, wire.DEFAULT)
    if usual is not None:
        assert usual == decode_any(data, wire.DEFAULT)


NESTED = "".join(f'<n{at}:k xmlns:n{at}="urn:{at}">' for at in range(14))
NESTED += "".join(f"</n{at}:k>" for at in reversed(range(14)))


@pytest.mark.parametrize("blocks", [8, 40, 55, 56, 57, 63, 64, 65, 200])
@pytest.mark.parametrize("content", ["", "<k/>", '<n:k xmlns:n="urn:n"/>' * 3, "<k><k><k>1</k></k></k>", NESTED])
def test_large_headers_are_read_the_same_on_both_paths_under_any_limit(blocks: int, content: str) -> None:
    data = message(f"<a:To>urn:t</a:To>{sequence()}" + f'<h:h xmlns:h="urn:h">{content}</h:h>' * blocks)
    tags = data.count(b"<")
    for limits in (
        wire.DEFAULT,
        *[wire.Limits(max_headers=blocks + more) for more in range(1, 12)],
        *[wire.Limits(max_elements=max(72, tags // 2 + more)) for more in range(-3, 9)],
        *[wire.Limits(max_declarations=16 + more) for more in range(4)],
        wire.Limits(max_depth=4),
    ):
        usual = decode_usual(data, limits)
        assert usual is None or usual == decode_any(data, limits)


def test_a_signed_message_is_read_on_the_hot_path() -> None:
    signed = [one for one in SECURED.glob("*/*-req.http") if b"<ds:SignatureValue" in one.read_bytes()]
    on_it = 0
    for path in signed:
        data = path.read_bytes().partition(b"\r\n\r\n")[2]
        usual = decode_usual(data, wire.DEFAULT)
        assert usual is None or usual == decode_any(data, wire.DEFAULT)
        on_it += usual is not None and data.count(b"<", 0, data.index(b"Body")) > wire.DEFAULT.max_headers
    assert on_it >= len(signed) // 2, (on_it, len(signed))
