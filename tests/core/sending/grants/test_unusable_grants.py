"""Grants: a Sequence that is granted and cannot be used counts as refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sending import Sending

from holdfast.core.events import Stopped
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Fault,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.policy import Assurance

OTHER = "http://other/"


def test_an_identifier_granted_twice_is_refused_and_the_first_keeps_its_messages() -> None:
    sending = Sending(initial_window=2)
    first, create = sending.creating("a")
    sending.grant(create, "urn:x")
    on_their_way = sending.take()
    second, create = sending.creating("b")
    sending.grant(create, "urn:x")
    (refused,) = sending.incidents("sequence.refused")
    assert refused.detail is not None and "urn:x" in refused.detail["reason"]
    assert second.source is None
    (stopped,) = [one for one in sending.told if isinstance(one, Stopped)]
    assert stopped.key == "b"
    acknowledgement = SequenceAcknowledgement("urn:x", ((1, 2),))
    sending.answer(on_their_way[0], control=Acknowledge(), acknowledgements=(acknowledgement,))
    assert first.records.is_acknowledged(1) and not second.records.is_acknowledged(0)


def test_two_peers_may_grant_one_identifier_and_each_acknowledges_its_own() -> None:
    sending = Sending(initial_window=2)
    first, create = sending.creating("a")
    sending.grant(create, "urn:x")
    sending.take()
    second, create = sending.creating("b", OTHER)
    sending.grant(create, "urn:x")
    (message, _) = sending.take()
    acknowledgement = SequenceAcknowledgement("urn:x", ((1, 2),))
    sending.answer(message, control=Acknowledge(), acknowledgements=(acknowledgement,))
    assert second.records.is_acknowledged(1) and not first.records.is_acknowledged(0)
    again = Sending(sending.store)
    assert {outbox.key for outbox in again.protocol.outbound.sequences.named("urn:x")} == {"a", "b"}


def test_an_identifier_may_be_granted_again_once_its_sequence_is_over() -> None:
    sending = Sending(initial_window=2)
    outbox, create = sending.creating("a")
    sending.grant(create, "urn:x")
    sending.take()
    outbox.drop(sending.now)  # type: ignore[arg-type]
    outbox.ready()
    (create,) = sending.take()
    sending.grant(create, "urn:x")
    assert outbox.source is not None and outbox.source.identifier == "urn:x"


def test_the_identifier_of_the_offered_sequence_is_no_other_sequence_s() -> None:
    sending = Sending()
    sending.choices = [(sending.choices[0][0], True)]
    outbox, create = sending.creating("a")
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    sending.grant(create, create.envelope.control.offer.identifier)
    assert outbox.source is None and sending.incidents("sequence.refused")


@pytest.mark.parametrize(("expires", "is_usable"), [(0.001, False), (0.0, False), (1.0, True), (None, True)])
def test_a_life_too_short_for_a_message_is_a_refusal(expires: float | None, is_usable: bool) -> None:
    sending = Sending()
    outbox, create = sending.creating("a")
    sending.answer(create, control=CreateSequenceResponse("urn:x", expires))
    assert (outbox.source is not None) is is_usable
    assert bool(outbox.lifecycle.stopped) is not is_usable


@pytest.mark.parametrize("how", ["TerminateSequence", "UnknownSequence"])
def test_sequences_that_end_unacknowledged_are_created_at_growing_intervals(how: str) -> None:
    sending = Sending(initial_window=1, assurance=Assurance.parse("at-least-once in-order"))
    _, create = sending.creating("a")
    times: list[float] = []
    for number in range(8):
        times.append(sending.now)
        sending.grant(create, f"urn:{number}")
        (message,) = sending.take()
        if how == "UnknownSequence":
            sending.answer(message, fault=Fault(how, "gone", is_rm=True, identifier=f"urn:{number}"))
        else:
            sending.answer(message, control=TerminateSequence(f"urn:{number}"))
        found = sending.take()
        while not found:
            found = sending.wait(0.25)
        (create,) = found
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert len(sending.incidents("sequence.creation_delayed")) == 7
