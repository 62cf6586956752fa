"""Every recorded message of CXF and WCF is read as what its index says it is.

Covers wire/names.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import wire
from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.wire.decoding.envelopes import decode_any
from holdfast.wire.decoding.fast import decode_usual

VECTORS = Path(__file__).parent.parent / "data" / "vectors"
_LINE = re.compile(r"(\d+) +[\d.]+s leg\d (req|res) +(.*)")
_STATUS = re.compile(r"HTTP/1\.1 (\d+) ")


@dataclass(frozen=True)
class Recorded:
    path: Path
    says: str


def _recorded() -> Iterator[Recorded]:
    # Those of wcf-server are read, and acted upon, in tests/interop/test_wcf_recorded_server.py.
    for index in sorted([*VECTORS.glob("cxf/*/index.txt"), *VECTORS.glob("wcf/*/index.txt")]):
        for line in index.read_text().splitlines():
            match = _LINE.match(line)
            assert match is not None, line
            path = index.parent / f"{match[1]}-{match[2]}.http"
            if path.exists():
                yield Recorded(path, match[3])


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        whole, body = whole + body[:length], body[length + 2 :]
    return whole


def message_of(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xml":
        return data
    head, _, body = data.partition(b"\r\n\r\n")
    return unchunked(body) if b"transfer-encoding: chunked" in head.lower() else body


WITH_A_BODY = (
    CreateSequence,
    CreateSequenceResponse,
    CloseSequence,
    CloseSequenceResponse,
    TerminateSequence,
    TerminateSequenceResponse,
)
RECORDED = list(_recorded())
WITH_ENVELOPE = [recorded for recorded in RECORDED if message_of(recorded.path)]
SECURED = [path for path in sorted(VECTORS.glob("wcf-secured/*/*.xml")) if message_of(path)]


def name_of(value: Recorded) -> str:
    return f"{value.path.parent.name}/{value.path.stem}"


def each_case(paths: Iterable[Path]) -> pytest.MarkDecorator:
    """Give a test the recordings of one case after the other, by number."""
    cases: dict[str, list[Path]] = {}
    for path in paths:
        cases.setdefault(path.parent.name, []).append(path)
    return pytest.mark.parametrize("paths", cases.values(), ids=cases)


SAYS = {recorded.path: recorded.says for recorded in WITH_ENVELOPE}


def test_the_recordings_are_there() -> None:
    assert len(WITH_ENVELOPE) > 400
    assert len(SECURED) > 50
    assert {recorded.path.parent.parent.name for recorded in WITH_ENVELOPE} == {"cxf", "wcf"}


@pytest.mark.parametrize("recorded", [r for r in RECORDED if r not in WITH_ENVELOPE], ids=name_of)
def test_a_message_without_an_envelope_is_recorded_as_empty(recorded: Recorded) -> None:
    assert "(empty)" in recorded.says


def action_said(says: str) -> str:
    return next(word for word in says.split() if "://" in word or word.startswith("urn:"))


@each_case(SAYS)
def test_a_recorded_message_is_read_as_its_index_says(paths: list[Path]) -> None:
    for path in paths:
        check_message(wire.decode(message_of(path)), SAYS[path])


def check_message(envelope: Envelope, says: str) -> None:
    assert envelope.action == action_said(says)
    numbers = re.findall(r" MessageNumber:(\d+)", says)
    assert ([envelope.sequence.message_number] if envelope.sequence else []) == [int(number) for number in numbers]
    assert bool(envelope.sequence and envelope.sequence.last_message) == ("LastMessage:" in says)
    ranges = [pair for header in envelope.acknowledgements for pair in header.ranges]
    assert ranges == [(int(low), int(high)) for low, high in re.findall(r"ack\[(\d+)-(\d+)\]", says)]
    assert any(header.final for header in envelope.acknowledgements) == ("Final:" in says)
    check_creation(envelope, says)
    status = _STATUS.match(says)
    assert (envelope.fault is not None) == (status is not None and status[1] == "500")
    assert envelope.not_understood == ()


def check_creation(envelope: Envelope, says: str) -> None:
    control = envelope.control
    offer = control.offer if isinstance(control, CreateSequence) else None
    assert (offer is not None) == (" Offer" in says)
    accepted = control.accept_acks_to if isinstance(control, CreateSequenceResponse) else None
    assert (accepted is not None) == (" Accept" in says.replace("Accepted", ""))
    if "Expires:PT0S" in says:
        # CXF's "never".
        assert isinstance(control, CreateSequence | CreateSequenceResponse)
        assert control.expires is None


@each_case(SAYS)
def test_a_recorded_message_has_the_versions_of_its_case(paths: list[Path]) -> None:
    for path in paths:
        envelope, case = wire.decode(message_of(path)), path.parent.name
        assert envelope.addressing is (Addressing.V2004_08 if "wsa2004" in case else Addressing.V2005_08), path
        assert envelope.rm is (RM.V1_0 if "rm10" in case else RM.V1_1), path
        assert envelope.soap is (SOAP.V1_2 if "soap12" in case else SOAP.V1_1), path


@pytest.mark.parametrize("recorded", [r for r in WITH_ENVELOPE if " 500 " in r.says], ids=name_of)
def test_a_refusal_by_wcf_is_read_through_its_redeclared_prefix(recorded: Recorded) -> None:
    fault = wire.decode(message_of(recorded.path)).fault
    assert fault is not None
    assert fault.code == "CreateSequenceRefused"
    assert fault.is_rm
    assert fault.sender
    assert "must contain an offer for a return sequence" in fault.reason


@each_case([*SAYS, *SECURED])
def test_the_hot_path_and_the_complete_one_read_the_same(paths: list[Path]) -> None:
    for path in paths:
        data = message_of(path)
        envelope = decode_any(data, wire.DEFAULT)
        usual = decode_usual(data, wire.DEFAULT)
        if envelope.fault is not None or isinstance(envelope.control, WITH_A_BODY):
            assert usual is None, path
        else:
            assert usual == envelope, path


@each_case(SECURED)
def test_a_secured_message_shows_its_addressing_and_rm_headers(paths: list[Path]) -> None:
    for path in paths:
        check_headers(wire.decode(message_of(path)), message_of(path))


def check_headers(envelope: Envelope, data: bytes) -> None:
    security = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd}Security"
    assert (security in envelope.not_understood) == (b":Security s:mustUnderstand" in data)
    assert envelope.addressing is Addressing.V2005_08
    assert (envelope.sequence is not None) == (b"<r:Sequence " in data)
    assert len(envelope.acknowledgements) == data.count(b"<r:SequenceAcknowledgement>")
    assert envelope.action.encode() in data
    for block in envelope.headers:
        wire.parse_element(block)


def test_buffer_remaining_of_the_wcf_server_is_read() -> None:
    path = VECTORS / "wcf" / "pair-rm11-wsa2005-soap12-twoway" / "002-res.http"
    (acknowledgement,) = wire.decode(message_of(path)).acknowledgements
    assert acknowledgement.buffer_remaining == 8


def test_a_body_cut_out_keeps_the_namespaces_declared_above_it() -> None:
    path = VECTORS / "wcf" / "pair-rm11-wsa2005-soap12-twoway" / "002-req.http"
    envelope = wire.decode(message_of(path))
    assert wire.parse_element(envelope.body).tag == "{urn:holdfast:interop}echo"
