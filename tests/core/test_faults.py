"""Faults: every code spelt once, every one with its reason, and what each says of a Sequence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast
from holdfast.core import faults
from holdfast.core.faults import REASONS, creation_refused, not_reliable, not_understood, refusal, sequence_fault
from holdfast.core.messages import CloseSequence, Envelope, Fault, Sequence
from holdfast.core.versions import ALL_VERSIONS, Addressing, Versions
from holdfast.exceptions import SEQUENCE_FAULTS

SOURCE = Path(holdfast.__file__).parent
CODES = {
    value
    for name, value in vars(faults).items()
    if name.isupper() and isinstance(value, str) and not value.startswith("http")
}
SPELLING = {"exceptions.py", "core/faults.py"}
"""Where codes are spelt: WS-RM's as errors, the others as what the core means by them."""


def test_every_fault_of_the_specification_has_its_reason() -> None:
    assert set(REASONS) == set(SEQUENCE_FAULTS)
    assert set(REASONS) < CODES


def test_what_a_fault_says_of_a_sequence_is_said_of_faults_there_are() -> None:
    for codes in (faults.ENDS_FOR_SOURCE, faults.ENDS_FOR_DESTINATION, faults.TELLS_OF_END):
        assert codes
        assert codes <= set(REASONS)
    # Whoever is told that a Sequence is over, of either side, forgets it; one that is closed still answers.
    assert faults.TELLS_OF_END - {faults.SEQUENCE_CLOSED} == faults.ENDS_FOR_DESTINATION


def test_a_fault_about_a_sequence_names_it_and_gives_the_reason() -> None:
    fault = sequence_fault(faults.SEQUENCE_CLOSED, "urn:s")
    assert (fault.code, fault.identifier, fault.is_rm, fault.sender) == ("SequenceClosed", "urn:s", True, True)
    assert fault.reason == REASONS["SequenceClosed"]


def test_a_refusal_says_why_and_whose_turn_it_is() -> None:
    fault = creation_refused("Full.", sender=False)
    assert (fault.code, fault.reason, fault.is_rm, fault.sender) == ("CreateSequenceRefused", "Full.", True, False)


def test_headers_that_nobody_understands_are_named() -> None:
    fault = not_understood(("{urn:a}B", "{urn:c}D"))
    assert fault.code == "MustUnderstand"
    assert "{urn:a}B {urn:c}D" in fault.reason


def test_no_code_is_spelt_anywhere_else() -> None:
    """A code in a text of its own is one that nobody finds who looks for what heeds it."""
    spelt = [
        f"{name}:{node.lineno}: {node.value}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in SPELLING
        for node in constants(ast.parse(path.read_text(encoding="utf-8")))
        if node.value in CODES
    ]
    assert not spelt, "\n".join(spelt)


def constants(tree: ast.Module) -> list[ast.Constant]:
    """Every constant of a module but the names that it offers."""
    offered = {
        id(constant)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        for constant in ast.walk(node)
    }
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in offered]


WSSE = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"


def test_a_fault_for_secured_messages_suggests_to_secure_the_transport() -> None:
    assert "security mode to Transport" in not_understood((f"{{{WSSE}}}Security",)).reason
    assert "security mode" not in not_understood(("{urn:x}Security",)).reason
    for trust in ("http://schemas.xmlsoap.org/ws/2005/02/trust", "http://docs.oasis-open.org/ws-sx/ws-trust/200512"):
        assert "security mode to Transport" in not_reliable(f"{trust}/RST/Issue", Addressing.V2005_08).reason
    assert "ReliableSession.Enabled = true" in not_reliable("urn:a", Addressing.V2005_08).reason
    assert not_reliable("urn:a", None).code == "WSRMRequired"
    assert not_reliable("urn:a", Addressing.V2004_08).code == "ActionNotSupported"


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_a_message_without_an_action_is_refused_in_its_addressing_versions_own_words(versions: Versions) -> None:
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, sequence=Sequence("urn:s", 1))
    fault = refusal(envelope)
    assert fault is not None
    assert fault.is_addressing
    is_old = versions.addressing is not Addressing.V2005_08
    assert fault.code == ("MessageInformationHeaderRequired" if is_old else "MessageAddressingHeaderRequired")
    envelope.action = "urn:a"
    assert refusal(envelope) is None


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_a_body_that_contradicts_its_action_is_an_invalid_header(versions: Versions) -> None:
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, action="urn:a", contradiction="It does.")
    fault = refusal(envelope)
    assert fault is not None
    is_old = versions.addressing is not Addressing.V2005_08
    assert fault.code == ("InvalidMessageInformationHeader" if is_old else "InvalidAddressingHeader")
    assert fault.reason == "It does."


def test_faults_and_messages_known_by_their_body_need_no_action_of_their_own_here() -> None:
    versions = ALL_VERSIONS[0]
    envelope = Envelope(versions.soap, versions.addressing, versions.rm, sequence=Sequence("urn:s", 1))
    envelope.fault = Fault("Sender", "no")
    assert refusal(envelope) is None
    envelope.fault, envelope.control = None, CloseSequence("urn:s")
    assert refusal(envelope) is None
