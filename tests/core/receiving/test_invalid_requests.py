"""Requests that are refused whatever else they say."""

from __future__ import annotations

import pytest

from holdfast.core.messages import CloseSequence, Envelope, Fault, Sequence
from holdfast.core.receiving.invalid_requests import refusal
from holdfast.core.versions import ALL_VERSIONS, Addressing, Versions


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
