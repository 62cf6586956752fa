"""Controls: every kind of RM protocol message has its row, and is answered with what that says."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from asked import Endpoint

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    MakeConnection,
    Offer,
    RequestAcknowledgement,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.protocol_messages.table import CONTROLS
from holdfast.core.versions import RM

UNKNOWN = (SequenceAcknowledgement("urn:nowhere", ((1, 1),)),)
NAMING_ONE = (CloseSequence, CloseSequenceResponse, TerminateSequence, TerminateSequenceResponse)


def said_about(kind: type[Control], identifier: str) -> Control:
    if kind is CreateSequence:
        return CreateSequence(ANONYMOUS_EPR)
    if kind is MakeConnection:
        return MakeConnection("urn:nobody")
    return kind(identifier) if kind in (CreateSequenceResponse, *NAMING_ONE) else kind()  # type: ignore[call-arg]


def ask(endpoint: Endpoint, kind: type[Control], identifier: str, **headers: Any) -> Envelope | None:
    asked = {"ack_requested": (AckRequested(identifier),)} if kind is RequestAcknowledgement else {}
    return endpoint.ask(control=said_about(kind, identifier), message_id="urn:x", **asked, **headers)


def test_every_kind_of_rm_protocol_message_has_a_row() -> None:
    assert CONTROLS.keys() == set(get_args(Control))


@pytest.mark.parametrize("kind", CONTROLS)
@pytest.mark.parametrize("rm", [version.value for version in RM])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_two_way", [False, True])
def test_it_is_answered_with_what_its_row_says_or_with_a_fault_or_not_at_all(
    kind: type[Control], rm: str, is_known: bool, is_two_way: bool
) -> None:
    endpoint = Endpoint(rm)
    identifier = endpoint.create(**({"offer": Offer("urn:o")} if is_two_way else {}))
    for _ in range(2):
        answer = ask(endpoint, kind, identifier if is_known else "urn:nowhere")
        assert answer is None or answer.action != "no answer yet"
        if answer is not None and answer.fault is None:
            assert type(answer.control) in CONTROLS[kind].answers
        if not CONTROLS[kind].answers:
            assert answer is None


def test_each_answer_that_a_row_names_is_given_in_some_version() -> None:
    given: dict[type[Control], set[type[Control]]] = {kind: set() for kind in CONTROLS}
    for rm in RM:
        for kind in CONTROLS:
            endpoint = Endpoint(rm.value)
            identifier = endpoint.create(offer=Offer("urn:o"))
            asked = {"ack_requested": (AckRequested(identifier),)}
            answer = endpoint.ask(control=said_about(kind, identifier), message_id="urn:x", **asked)
            if answer is not None and answer.control is not None:
                given[kind].add(type(answer.control))
    assert given == {kind: set(row.answers) for kind, row in CONTROLS.items()}


@pytest.mark.parametrize("kind", CONTROLS)
def test_the_fault_for_another_header_takes_the_place_of_an_answer_as_its_row_says(kind: type[Control]) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    first = ask(endpoint, kind, identifier, acknowledgements=UNKNOWN)
    again = ask(endpoint, kind, identifier, acknowledgements=UNKNOWN)
    if kind is CreateSequence:  # it would be taken for refused
        told = [False, False]
    elif CONTROLS[kind].event is not None:  # a repeat gets its response
        told = [True, False]
    else:
        told = [True, True]
    assert [answer is not None and answer.fault is not None for answer in (first, again)] == told


def test_a_row_without_answers_is_an_answer_itself() -> None:
    answers = {kind for row in CONTROLS.values() for kind in row.answers}
    for kind, row in CONTROLS.items():
        # An Acknowledge may ask, with the headers that it is made of; 1.0's TerminateSequence is answered in kind.
        assert (kind in answers - {Acknowledge, TerminateSequence}) == (not row.answers), kind
