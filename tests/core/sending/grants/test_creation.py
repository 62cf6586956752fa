"""A peer that does not grant a Sequence in a way that can be accepted: the next version is tried after a few times."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from sending import NEW, OLD, STEADY, Sending

from holdfast.core.events import Incident, Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse
from holdfast.core.rm_source.source import REFUSED_ENOUGH
from holdfast.core.sending.grants.creation import MOST_CUT, MOST_UNACCEPTED
from holdfast.core.sending.reasons import NOT_ACCEPTED
from holdfast.core.versions import Versions


def asked(sending: Sending, count: int, *, has_left: bool = True) -> list[Versions]:
    """The versions of so many CreateSequences, of which none has an answer."""
    found = []
    for _ in range(count):
        create = next_creation(sending)
        found.append(Versions(create.envelope.rm or "", create.envelope.addressing or "", create.envelope.soap))
        sending.protocol.failed(create, sending.now, "the connection was cut", has_left=has_left)
        if has_left:
            sending.protocol.outbound.creation.cut(create, sending.now)
    return found


def next_creation(sending: Sending) -> Transmit:
    for _ in range(100):
        taken = sending.take()
        if taken:
            (create,) = taken
            assert isinstance(create.envelope.control, CreateSequence)
            return create
        sending.now += 0.5
    raise AssertionError("no CreateSequence in 50 s")


def opened(*choices: tuple[Versions, bool]) -> Sending:
    sending = Sending()
    sending.choices = [*choices]
    sending.submit(sending.open(), "1")
    return sending


def test_after_a_few_connections_without_an_answer_the_next_version_is_tried() -> None:
    sending = opened((NEW, True), (NEW, False), (OLD, True), (OLD, False))
    assert asked(sending, MOST_CUT + 1) == [NEW] * MOST_CUT + [OLD]
    create = next_creation(sending)
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    assert [one.number for one in sending.take()] == [1]


def test_each_version_is_tried_once_and_then_the_first_is_repeated() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, 4 * MOST_CUT) == [NEW] * MOST_CUT + [OLD] * MOST_CUT + [NEW] * 2 * MOST_CUT
    assert sending.stopped == []


@pytest.mark.parametrize("choices", [((NEW, True), (NEW, False)), ((OLD, False),)])
def test_where_one_version_is_told_no_other_is_tried(choices: tuple[tuple[Versions, bool], ...]) -> None:
    sending = opened(*choices)
    assert asked(sending, 3 * MOST_CUT) == [choices[0][0]] * 3 * MOST_CUT


def test_a_peer_that_is_not_there_is_asked_in_the_same_version() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, 3 * MOST_CUT, has_left=False) == [NEW] * 3 * MOST_CUT


def test_a_grant_begins_the_count_again() -> None:
    sending = opened((NEW, False), (OLD, False))
    assert asked(sending, MOST_CUT - 1) == [NEW] * (MOST_CUT - 1)
    sending.answer(next_creation(sending), control=CreateSequenceResponse("urn:s"))
    assert next(iter(sending.protocol.outbound.outboxes.values())).lifecycle.cut_creations == 0


# --- answers that are not accepted, such as faults without the demanded signature -------------------------------------


def not_accepted(sending: Sending, times: int) -> list[str | None]:
    """The MessageIDs of so many CreateSequences; no answer to them is accepted."""
    found = []
    for _ in range(times):
        create = next_creation(sending)
        found.append(create.envelope.message_id)
        sending.protocol.failed(create, sending.now, not_accepted="no signature")
        assert next(iter(sending.protocol.outbound.outboxes.values())).last_answer == "no signature"
        sending.settle()
    return found


@pytest.mark.parametrize("with_offer", [False, True])
def test_after_enough_answers_that_are_not_accepted_another_sequence_is_asked_for(with_offer: bool) -> None:
    sending = opened((NEW, with_offer))
    first = not_accepted(sending, REFUSED_ENOUGH)
    create = next_creation(sending)
    assert len({*first}) == 1 and create.envelope.message_id not in first, "a repeat may be what the peer refuses"
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    assert [one.number for one in sending.take()] == [1]
    assert sending.stopped == []


@pytest.mark.parametrize("with_offer", [False, True])
def test_a_source_stops_when_no_answer_in_any_version_is_accepted(with_offer: bool) -> None:
    sending = opened((NEW, with_offer), (OLD, with_offer))
    asked = not_accepted(sending, 2 * MOST_UNACCEPTED * REFUSED_ENOUGH)
    assert len({*asked}) == 2 * MOST_UNACCEPTED
    (stopped,) = sending.stopped
    assert stopped.code == NOT_ACCEPTED and stopped.reason.endswith("is accepted: no signature")
    assert sending.wait(1000.0) == [], "until the operator resumes it"
    (warning,) = [one for one in sending.told if isinstance(one, Incident) and one.level == "warning"]
    assert warning.name == "sequence.refused"
    outbox = sending.protocol.outbound.outboxes["a"]
    again = Sending(sending.store, now=sending.now)
    for one in (sending, again):
        assert one.wait(1000.0) == []
        resumed = one.protocol.outbound.outboxes["a"]
        resumed.resume([(NEW, with_offer)], one.now)
        assert resumed.lifecycle.unaccepted_creations == 0
        sending = one
        not_accepted(sending, REFUSED_ENOUGH)
        sending.answer(next_creation(sending), control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
        assert [sent.number for sent in sending.take()] == [1]
    assert outbox.lifecycle.unaccepted_creations == 0


def test_a_peer_that_is_away_is_asked_without_a_limit_whatever_it_said_before() -> None:
    sending = opened((NEW, False))
    not_accepted(sending, REFUSED_ENOUGH - 1)
    for _ in range(3 * REFUSED_ENOUGH):
        sending.protocol.failed(next_creation(sending), sending.now, "no connection", has_left=False)
        sending.settle()
    assert sending.stopped == []


# --- a service that refuses for a while -------------------------------------------------------------------------------

NEVER: list[dict[str, Any]] = [
    {"code": "CreateSequenceRefused"},
    {"code": "CreateSequenceRefused", "sender": False},
    {"code": "WSRMRequired", "sender": False},
    {"code": "Sender", "is_rm": False},
    {"code": "MustUnderstand", "is_rm": False},
    {"code": "HTTP 404", "is_rm": False},
]
NOT_NOW: list[dict[str, Any]] = [
    {"code": "Receiver", "is_rm": False, "sender": False},
    {"code": "EndpointUnavailable", "is_rm": False, "is_addressing": True, "sender": False},
    {"code": "Own", "is_rm": False, "code_namespace": "urn:own", "sender": False},
    {"code": "HTTP 200", "is_rm": False, "sender": False},
]
BAD_CREDENTIALS = {"code": "InvalidSecurity", "is_rm": False, "sender": False}


@pytest.mark.every(4)
@pytest.mark.parametrize("first", [*NEVER, *NOT_NOW, BAD_CREDENTIALS], ids=str)
def test_a_source_asks_again_after_a_refusal_that_may_pass(first: dict[str, Any]) -> None:
    for second in [*NEVER, *NOT_NOW, BAD_CREDENTIALS]:
        sending = opened((NEW, False), (OLD, False))
        answers = itertools.cycle([first, second])
        asked, end = list[float](), sending.now + 300.0
        while sending.now < end:
            for create in sending.take():
                assert isinstance(create.envelope.control, CreateSequence)
                asked.append(sending.now)
                sending.refuse(create, **next(answers))
            sending.now += 0.25
        if BAD_CREDENTIALS in (first, second) or not (first in NOT_NOW or second in NOT_NOW):
            assert len(sending.stopped) == 1 and len(asked) <= 2, "it waits for the operator"
            continue
        # Two variants in each round, and at most ``cap`` between two rounds.
        assert sending.stopped == [] and 200.0 < len(asked) / 2 * STEADY.cap < 305.0
        (warning,) = [one for one in sending.incidents("sequence.refused") if one.level == "warning"]
        assert warning.detail["code"] == second["code"], "once, however long it lasts"
        sending.answer(next_creation(sending), control=CreateSequenceResponse("urn:s"))
        assert [one.number for one in sending.take()] == [1]


@pytest.mark.parametrize("patience", [0.5, 60.0])
def test_a_source_with_limited_patience_stops_after_it(patience: float) -> None:
    sending = Sending(retransmission=replace(STEADY, give_up_after=patience))
    outbox = sending.open()
    sending.submit(outbox, "1")
    for _ in range(2):
        begun, told = sending.now, len(sending.stopped)
        while len(sending.stopped) == told:
            sending.refuse(next_creation(sending), **NOT_NOW[0])
        assert patience <= sending.now - begun <= patience + 2 * STEADY.cap
        assert sending.stopped[-1].code == "Receiver" and sending.wait(1000.0) == []
        outbox.resume(sending.choices, sending.now)
    sending.answer(next_creation(sending), control=CreateSequenceResponse("urn:s"))
    assert [one.number for one in sending.take()] == [1]


def test_the_reason_may_be_unknown() -> None:
    sending = opened((NEW, False))
    for _ in range(MOST_UNACCEPTED * REFUSED_ENOUGH):
        sending.lose(next_creation(sending))
    (stopped,) = sending.stopped
    assert stopped.reason == f"none of {REFUSED_ENOUGH} answers to CreateSequence is accepted"
