"""MakeConnection, MessagePending and their faults, both ways, on every path of decoding."""

from __future__ import annotations

import pytest

from holdfast import wire
from holdfast.core.faults import missing_selection, unsupported_selection
from holdfast.core.messages import MC_ANONYMOUS, MC_NS, Acknowledge, Envelope, MakeConnection, SequenceAcknowledgement
from holdfast.core.versions import ALL_VERSIONS, SOAP, Addressing, Versions
from holdfast.exceptions import EnvelopeError
from holdfast.wire.decoding.envelopes import decode_any
from holdfast.wire.decoding.fast import decode_usual

ADDRESS = MC_ANONYMOUS + "urn:uuid:1&2"
ACTION = f"{MC_NS}/MakeConnection"
FAULT = f"{MC_NS}/fault"
RM10 = "http://schemas.xmlsoap.org/ws/2005/02/rm"
RM11 = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
combinations = pytest.mark.parametrize("versions", ALL_VERSIONS, ids=lambda one: one.in_words)


def poll(content: str, action: str = ACTION) -> bytes:
    return (
        f'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing">'
        f"<s:Header><a:Action>{action}</a:Action></s:Header>"
        f'<s:Body><m:MakeConnection xmlns:m="{MC_NS}">{content}</m:MakeConnection></s:Body></s:Envelope>'
    ).encode()


@combinations
@pytest.mark.parametrize("is_carrying", [False, True])
def test_a_poll_is_read_as_it_was_written(versions: Versions, is_carrying: bool) -> None:
    sent = Envelope(versions.soap, versions.addressing, to="http://service/", message_id="urn:1")
    sent.control = MakeConnection(ADDRESS)
    if is_carrying:
        sent.rm, sent.acknowledgements = versions.rm, (SequenceAcknowledgement("urn:s", ((1, 2),)),)
    assert wire.action_of(sent) == ACTION
    read = wire.decode(wire.encode(sent))
    assert (read.action, read.contradiction) == (ACTION, "")
    assert (read.control, read.rm, read.acknowledgements) == (sent.control, sent.rm, sent.acknowledgements)


@combinations
def test_message_pending_is_read_as_it_was_written_on_every_path(versions: Versions) -> None:
    for control in (None, Acknowledge()):
        sent = Envelope(versions.soap, versions.addressing, versions.rm, to=ADDRESS, control=control)
        sent.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 2),)),)
        sent.action = "urn:a" if control is None else ""
        for is_pending in (False, True, False):
            sent.message_pending = is_pending
            data = wire.encode(sent)
            if control is None:
                assert wire.decode(data).message_pending is is_pending
            assert decode_any(data, wire.DEFAULT).message_pending is is_pending
            usual = decode_usual(data, wire.DEFAULT)
            assert usual is None if is_pending else usual is not None


@pytest.mark.parametrize(
    ("attributes", "is_pending"),
    [
        ('pending="1"', True),
        ('pending=" true "', True),
        ('pending="false"', False),
        ('pending="0"', False),
        ("", False),
    ],
)
def test_message_pending_says_so_in_its_attribute(attributes: str, is_pending: bool) -> None:
    data = (
        f'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Header><m:MessagePending xmlns:m="{MC_NS}" '
        f'{attributes} s:mustUnderstand="1"/></s:Header><s:Body><x xmlns="urn:x"/></s:Body></s:Envelope>'
    ).encode()
    read = wire.decode(data)
    assert (read.message_pending, read.headers, read.not_understood) == (is_pending, (), ())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", MakeConnection()),
        (f"<m:Address> {MC_ANONYMOUS}a </m:Address>", MakeConnection(MC_ANONYMOUS + "a")),
        (f'<Identifier xmlns="{RM11}">urn:s</Identifier>', MakeConnection(identifier="urn:s")),
        (f'<Identifier xmlns="{RM10}">urn:s</Identifier>', MakeConnection(identifier="urn:s")),
        ('<y xmlns="urn:x"/><z xmlns="urn:x"/>', MakeConnection(unsupported="{urn:x}y")),
        ("<m:Identifier>urn:s</m:Identifier>", MakeConnection(unsupported=f"{{{MC_NS}}}Identifier")),
    ],
)
def test_every_selection_of_a_poll_is_read(content: str, expected: MakeConnection) -> None:
    assert wire.decode(poll(content)).control == expected


def test_a_poll_with_two_addresses_is_refused() -> None:
    with pytest.raises(EnvelopeError):
        wire.decode(poll("<m:Address>urn:a</m:Address><m:Address>urn:b</m:Address>"))


def test_a_poll_whose_action_and_body_disagree_is_a_contradiction() -> None:
    assert "is a MakeConnection message" in wire.decode(poll("", "urn:a")).contradiction
    other = poll("").replace(f'MakeConnection xmlns:m="{MC_NS}"'.encode(), b'x xmlns:m="urn:x"')
    assert wire.decode(other.replace(b"</m:MakeConnection>", b"</m:x>")).contradiction


@pytest.mark.parametrize("soap", list(SOAP))
def test_the_faults_have_the_specifications_names_action_and_detail(soap: SOAP) -> None:
    for fault in (missing_selection(), unsupported_selection("{urn:x}y")):
        sent = Envelope(soap, Addressing.V2005_08, fault=fault)
        data = wire.encode(sent)
        read = wire.decode(data)
        assert read.fault is not None
        assert (read.action, read.fault.code, read.fault.code_namespace) == (FAULT, fault.code, MC_NS)
        assert (b">u:y</wsmc:UnsupportedElement>" in data) == bool(fault.not_understood)


def test_an_application_cannot_send_a_poll_as_its_own() -> None:
    with pytest.raises(EnvelopeError):
        wire.check_action(ACTION)
    with pytest.raises(EnvelopeError):
        wire.body_content(f'<MakeConnection xmlns="{MC_NS}"/>'.encode())
