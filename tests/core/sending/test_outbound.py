"""Outbound: what several outboxes to one address have to do with each other, and what stops one of them.

Covers core/sending/outbox_registry.py, core/sending/reasons.py and core/sending/recovery.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sending import NEW, OLD, TO, Sending, numbers

from holdfast.core.events import Acknowledged, Discarded, Incident, Transmit, Unanswered
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.forwarding.undeliverable import discard
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MAX_MESSAGE_NUMBER,
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import Origin
from holdfast.core.records import Batch
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.grants.creation import MOST_IGNORED_OFFERS
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.reasons import DISCARDED
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

# --- one key and the others -------------------------------------------------------------------------------------------


def test_a_key_that_is_refused_in_every_version_leaves_the_others_all_of_them_to_try() -> None:
    sending = Sending()
    stuck, other = sending.open("stuck"), sending.open("other")
    sending.submit(stuck, "1")
    for _ in sending.choices:
        (create,) = sending.take()
        sending.refuse(create)
    assert [stopped.key for stopped in sending.stopped] == ["stuck"]
    sending.submit(other, "2")
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    assert numbers(sending.take()) == [1]
    assert not other.lifecycle.stopped


def test_what_is_refused_once_is_tried_last_for_every_key_of_the_address() -> None:
    sending = Sending()
    first, second = sending.open("first"), sending.open("second")
    sending.submit(first, "1")
    (create,) = sending.take()
    assert create.envelope.versions == NEW
    sending.refuse(create)
    (create,) = sending.take()
    assert create.envelope.versions == OLD
    sending.grant(create, "urn:s")
    sending.take()
    sending.submit(second, "2")
    (create,) = sending.take()
    assert create.envelope.versions == OLD


def test_the_versions_of_an_address_are_told_once_and_no_warning_comes_with_them() -> None:
    sending = Sending()
    for key in ("a", "b", "c"):
        outbox = sending.open(key)
        outbox.lifecycle.choices = list(
            outbox.lifecycle.choices
        )  # each finds out for itself, as those do that begin together
        sending.submit(outbox, key)
    for create in sending.take():
        sending.refuse(create)
    for number, create in enumerate(sending.take()):
        sending.grant(create, f"urn:s:{number}")
    told = [effect for effect in sending.told if isinstance(effect, Incident)]
    assert [one.level for one in told if one.name == "sequence.refused"] == ["debug"] * 3
    (detected,) = [one for one in told if one.name == "versions.detected"]
    assert (detected.level, detected.detail) == (
        "info",
        {"to": TO, "versions": OLD.in_words, "refused": NEW.in_words},
    )
    sending.take()
    other = sending.open("d")
    sending.choices[:] = [(NEW, False)]
    other.choices = sending.choices
    sending.submit(other, "d")
    (create,) = sending.take()
    sending.refuse(create)
    assert [one.level for one in sending.told if isinstance(one, Incident)][-1] == "warning", "nothing is left to try"


def test_a_stopped_key_that_goes_on_tries_every_version_again() -> None:
    sending = Sending()
    outbox = sending.open()
    sending.submit(outbox, "1")
    for _ in sending.choices:
        sending.refuse(sending.take()[0])
    assert outbox.lifecycle.stopped == "CreateSequenceRefused"
    outbox.resume(sending.choices, sending.now)
    tried = []
    for _ in sending.choices:
        (create,) = sending.take()
        tried.append(create.envelope.versions)
        sending.refuse(create)
    assert set(tried) == {NEW, OLD}
    assert len(sending.stopped) == 2


# --- Retry-After ------------------------------------------------------------------------------------------------------


def test_nothing_goes_to_an_address_that_asked_for_a_pause_until_that_is_over() -> None:
    sending = Sending()
    outbox, sent = sending.opened("a", "1", "2")
    other = sending.open("b")
    for one in sent:
        assert sending.protocol.outbound.pause(TO, 40.0, sending.now) == 40.0
        sending.protocol.failed(one, sending.now)
    sending.submit(other, "3")
    assert sending.take() == []
    for _ in range(39):
        assert sending.wait(1.0) == []
    assert sending.protocol.deadline() == sending.now + 1.0
    assert sorted(one.number for one in sending.wait(1.0)) == [0, 1, 2]
    assert not outbox.lifecycle.stopped


def test_a_pause_is_no_longer_than_its_limit_and_none_where_that_is_zero() -> None:
    sending = Sending(retransmission=RetransmissionPolicy(initial=1.0, cap=1.0, jitter=0.0, max_retry_after=10.0))
    _, (sent,) = sending.opened("a", "1")
    assert sending.protocol.outbound.pause(TO, 86_400.0, sending.now) == 10.0
    sending.protocol.failed(sent, sending.now)
    assert sending.wait(9.0) == []
    assert numbers(sending.wait(1.0)) == [1]

    impatient = Sending(retransmission=RetransmissionPolicy(initial=1.0, cap=1.0, jitter=0.0, max_retry_after=0.0))
    _, (sent,) = impatient.opened("a", "1")
    assert impatient.protocol.outbound.pause(TO, 60.0, impatient.now) == 0.0
    impatient.protocol.failed(sent, impatient.now)
    assert numbers(impatient.wait(1.0)) == [1]


def test_a_pause_of_one_address_says_nothing_of_another() -> None:
    sending = Sending()
    sending.protocol.outbound.pause(TO, 40.0, sending.now)
    sending.submit(sending.open("elsewhere", "http://other/"), "1")
    assert [one.to for one in sending.take()] == ["http://other/"]


# --- MessageNumberRollover --------------------------------------------------------------------------------------------


def test_after_a_rollover_nothing_moves_before_the_peer_acknowledges() -> None:
    sending = Sending(initial_window=4)
    outbox, sent = sending.opened("a", "1", "2", "3", "4")
    sending.acknowledge(sent[0], (1, 1))
    sending.refuse(sent[3], "MessageNumberRollover", identifier="urn:s:a")
    sending.acknowledge(sent[1], (1, 2))
    (ask,) = sending.take()
    assert ask.envelope.ack_requested
    sending.answer(ask, control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:s:a", ((1, 3),)),))
    assert outbox.records.first == 3
    (close,) = sending.take()
    assert close.envelope.control is not None and close.envelope.control.last_message_number == 3  # type: ignore[union-attr]


def test_a_destination_that_takes_no_number_at_all_stops_the_outbox() -> None:
    sending = Sending()
    outbox, sent = sending.opened("a", "1")
    sending.refuse(sent[0], "MessageNumberRollover", identifier="urn:s:a", max_message_number=0)
    assert outbox.lifecycle.stopped == "MessageNumberRollover"
    assert "it takes no message at all" in sending.stopped[0].reason


# --- a Sequence that the destination closed ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_after_a_closed_idle_sequence_go_in_another(is_restarted: bool) -> None:
    sending = Sending()
    outbox, sent = sending.opened("a", "1")
    final = SequenceAcknowledgement("urn:s:a", ((1, 1),), final=True)
    sending.answer(sent[0], control=Acknowledge(), acknowledgements=(final,))
    if is_restarted:
        sending = Sending(sending.store)
        outbox = sending.open()
    sending.submit(outbox, "2")
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    (message,) = sending.take()
    assert (message.envelope.sequence, message.envelope.body) == (Sequence("urn:s:another", 1), b"2")
    assert sending.stopped == []


def test_no_decision_is_needed_if_the_destination_has_all_that_left() -> None:
    sending = Sending(initial_window=1, window=1)
    outbox, (sent,) = sending.opened("a", "1", "2", "3")
    final = SequenceAcknowledgement("urn:s:a", ((1, 1),), final=True)
    sending.answer(sent, control=Acknowledge(), acknowledgements=(final,))
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    assert bodies(sending.take()) == ["2"]
    assert (sending.stopped, outbox.lifecycle.stopped) == ([], "")


@pytest.mark.parametrize("how", ["SequenceTerminated", "UnknownSequence", "TerminateSequence"])
def test_nor_where_it_ends_the_sequence(how: str) -> None:
    sending = Sending(initial_window=1, window=1)
    outbox, (first,) = sending.opened("a", "1", "2", "3")
    sending.acknowledge(first, (1, 1))
    (second,) = sending.take()
    sending.protocol.outbound.pause(TO, 1.0, sending.now)
    sending.acknowledge(second, (1, 2))
    if how == "TerminateSequence":
        envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, control=TerminateSequence("urn:s:a"))
        sending.protocol.receive(envelope, object(), sending.now, origin=Origin(TO))
    else:
        fault = Envelope(NEW.soap, NEW.addressing, NEW.rm, fault=Fault(how, "no", is_rm=True, identifier="urn:s:a"))
        sending.protocol.receive(fault, None, sending.now, origin=Origin(TO))
    third = [sent.number for sent in sending.take()]
    (create,) = sending.wait(1.0)
    sending.grant(create, "urn:s:another")
    assert bodies(sending.take()) == ["3"]
    assert (third, sending.stopped, outbox.lifecycle.stopped) == ([], [], "")


def test_a_decision_resumes_doubtful_messages_of_a_sequence_closed_while_stopped() -> None:
    sending = Sending(initial_window=3)
    outbox, sent = sending.opened("a", "1", "2", "3")
    sending.refuse(sent[1], "ActionNotSupported", is_rm=False, is_addressing=True)
    final = SequenceAcknowledgement("urn:s:a", ((1, 1), (3, 3)), final=True)
    sending.answer(sent[2], control=Acknowledge(), acknowledgements=(final,))
    assert outbox.records.may_have_left(1), "whoever decides is told that it was sent"
    assert sending.wait(60.0) == []
    outbox.resume(sending.choices, sending.now)
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    assert bodies(sending.take()) == ["2"]


def test_a_decision_resumes_messages_of_a_refused_and_then_closed_sequence() -> None:
    sending = Sending(initial_window=4)
    outbox, sent = sending.opened("a", "1", "2", "3", "4")
    sending.refuse(sent[3], "MessageNumberRollover", identifier="urn:s:a", max_message_number=3)
    sending.refuse(sent[1], "ActionNotSupported", is_rm=False, is_addressing=True)
    sending.protocol.failed(sent[0], sending.now, "its answer was lost")
    sending.refuse(sent[2], "SequenceClosed", identifier="urn:s:a")
    assert [type(one.envelope.control) for one in sending.wait(60.0) if not one.envelope.ack_requested] == []
    outbox.resume(sending.choices, sending.now)
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    assert bodies(sending.take()) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("is_limit_known", [True, False])
def test_a_doubt_is_read_back(is_limit_known: bool) -> None:
    old = {"state": "rollover", "in_doubt": True, "is_limit_known": is_limit_known, "limit": 2, "acknowledged": [1, 1]}
    sending, outbox = reading(old, "1", "2", "3")
    asked = [one for one in sending.take() if not one.number]
    assert asked[0].envelope.ack_requested
    sending.answer(asked[0], control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:s:a", ((1, 2),)),))
    (close,) = sending.take()
    assert close.envelope.control == CloseSequence("urn:s:a", 2)
    assert outbox.records.first == 2


# --- stores of an earlier version -------------------------------------------------------------------------------------


OLD_FORM = {
    "role": "source",
    "local_id": "urn:create",
    "outbox": "a",
    "to": None,
    "polled": False,
    "created_at": 100.0,
    "versions": ["1.1", "2005/08", "1.2"],
    "identifier": "urn:s:a",
    "state": "created",
    "start": 0,
    "last_number": None,
    "limit": MAX_MESSAGE_NUMBER,
    "in_doubt": False,
    "is_limit_known": True,
    "acknowledged": [],
    "offer": None,
    "message_ids": {"CreateSequence": "urn:create"},
    "end_wanted": False,
    "last_fault": "",
    "expires": None,
    "expires_at": None,
}
"""An outbound Sequence as it was saved before its end and its outbox had states of their own."""


def reading(old: dict[str, Any], *bodies: str) -> tuple[Sending, Outbox]:
    """An endpoint that reads back what an earlier version saved."""
    first = Sending()
    outbox = first.open()
    first.submit(outbox, *bodies)
    saved = first.store.load()
    batch = Batch()
    batch.sequences.update(dict.fromkeys(saved.sequences))
    batch.sequences["urn:create"] = OLD_FORM | old
    first.store.commit(batch)
    sending = Sending(first.store)
    return sending, sending.open()


@pytest.mark.parametrize("state", ["created", "rollover"])
def test_an_end_that_was_wanted_is_wanted_still(state: str) -> None:
    sending, _ = reading({"end_wanted": True, "state": state, "acknowledged": [1, 1]}, "1")
    (close,) = sending.take()
    assert close.envelope.control == CloseSequence("urn:s:a", 1)


@pytest.mark.parametrize(("state", "expected"), [("closing", CloseSequence), ("terminating", TerminateSequence)])
def test_an_end_that_was_told_is_told_still(state: str, expected: type) -> None:
    sending, _ = reading({"end_wanted": True, "state": state, "acknowledged": [1, 1], "limit": 1}, "1", "2")
    (end,) = sending.take()
    assert isinstance(end.envelope.control, expected)


def test_a_last_message_that_was_decided_and_not_sent_is_sent() -> None:
    old = {"versions": ["1.0", "2005/08", "1.2"], "end_wanted": True, "last_number": 2, "acknowledged": [1, 1]}
    sending, _ = reading(old, "1", "2")
    (last,) = sending.take()
    assert (last.number, last.envelope.sequence) == (2, Sequence("urn:s:a", 2, True))


def test_what_a_closed_sequence_did_not_take_goes_in_another() -> None:
    sending, outbox = reading({"state": "closed", "acknowledged": [1, 1]}, "1", "2")
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:b")
    assert bodies(sending.take()) == ["2"]
    assert not outbox.lifecycle.stopped


@pytest.mark.parametrize("versions", [NEW, OLD])
@pytest.mark.parametrize("key", ["", "a"])
@pytest.mark.parametrize("ends", ["with the requests", "alone"])
def test_the_end_of_replies_ends_no_requests_of_any_key(versions: Versions, key: str, ends: str) -> None:
    """The default key "" is an ordinary one: it does not stand for a Sequence of replies without an Offer."""
    sending = Sending()
    sending.choices = [(versions, True)]
    outbox = sending.open(key)
    sending.submit(outbox, "1")
    for count in (1, 2):
        (create,) = sending.take()
        assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
        offered = create.envelope.control.offer.identifier
        sending.answer(create, control=CreateSequenceResponse(f"urn:s:{count}", accept_acks_to=EndpointReference(TO)))
        (message,) = sending.take()
        if count == 1 and ends == "with the requests":
            sending.answer(message, fault=sequence_fault(UNKNOWN_SEQUENCE, "urn:s:1"))
            continue
        sending.acknowledge(message, (1, 1))
        if ends == "alone":
            sending.answer(None, control=TerminateSequence(offered), message_id="urn:t", action="urn:t")
            break
    sending.submit(outbox, "2")
    sent = sending.take()
    assert bodies(sent) == ["2"]
    sending.acknowledge(sent[0], (1, 2))
    assert not sending.take() and not outbox.lifecycle.is_ending


# --- a Sequence whose time is up --------------------------------------------------------------------------------------


def expiring(version: Versions = NEW, *, bodies: tuple[str, ...] = ("1",)) -> tuple[Sending, Outbox]:
    """An outbox whose Sequence lives for a minute, with all that was submitted acknowledged."""
    sending = Sending()
    sending.choices = [(version, False)]
    outbox = sending.open()
    sending.submit(outbox, *bodies)
    (create,) = sending.take()
    sending.answer(create, control=CreateSequenceResponse("urn:s:a", 60.0))
    for message in sending.take():
        sending.acknowledge(message, (1, message.number))
    return sending, outbox


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_sequence_whose_time_is_up_is_told_its_end_before_another_one_begins(is_restarted: bool) -> None:
    sending, outbox = expiring()
    store, now = sending.store, sending.now
    if is_restarted:  # under a clock that was set forward
        sending = Sending(store)
        outbox = sending.open()
    sending.now = now + 300.0
    (close,) = sending.take()
    assert close.envelope.control == CloseSequence("urn:s:a", 1)
    sending.submit(outbox, "2")
    assert sending.take() == []
    sending.answer(close, control=CloseSequenceResponse("urn:s:a"))
    (end,) = sending.take()
    assert isinstance(end.envelope.control, TerminateSequence)
    sending.answer(end, control=TerminateSequenceResponse("urn:s:a"))
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    (message,) = sending.take()
    assert (message.envelope.sequence, message.envelope.body) == (Sequence("urn:s:another", 1), b"2")
    assert sending.stopped == []


def test_a_sequence_terminating_at_a_crash_is_not_forgotten_when_it_expires() -> None:
    sending, outbox = expiring()
    outbox.want_end(sending.now)
    (close,) = sending.take()
    assert isinstance(close.envelope.control, CloseSequence)
    again = Sending(sending.store)
    again.now = sending.now + 300.0
    again.submit(again.open(), "2")
    (close,) = again.take()
    assert close.envelope.control == CloseSequence("urn:s:a", 1)


@pytest.mark.parametrize("version", [NEW, OLD])
def test_where_the_destination_has_ended_it_too_the_next_sequence_begins(version: Versions) -> None:
    sending, outbox = expiring(version)
    (end,) = sending.wait(60.0)
    expected = CloseSequence("urn:s:a", 1) if version is NEW else TerminateSequence("urn:s:a")
    assert end.envelope.control == expected
    sending.submit(outbox, "2")
    sending.refuse(end, "UnknownSequence", identifier="urn:s:a")
    (create,) = sending.take()
    sending.grant(create, "urn:s:another")
    assert numbers(sending.take()) == [1]
    assert sending.stopped == []


def test_its_end_is_told_no_longer_than_it_was_granted_to_live() -> None:
    sending, outbox = expiring()
    assert len(sending.wait(60.0)) == 1
    sending.submit(outbox, "2")
    told = [sent for _ in range(59) for sent in sending.wait(1.0)]
    assert {type(sent.envelope.control) for sent in told} == {CloseSequence}
    (create,) = sending.wait(1.0)
    assert isinstance(create.envelope.control, CreateSequence)
    assert sending.stopped == []


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_a_message_that_cannot_be_written_stops_its_outbox_and_is_named() -> None:
    sending = Sending()
    outbox, sent = sending.opened("a", "1", "2")
    sending.protocol.outbound.exchanges.unsendable(sent[1], "no XML", sending.now)
    sending.settle()
    (stopped,) = sending.stopped
    assert (stopped.reason, stopped.refused) == ("no XML", ("urn:s:a", 2))
    assert outbox.lifecycle.stopped
    assert sending.wait(60.0) == []


# --- giving up a message ----------------------------------------------------------------------------------------------


def bodies(sent: list[Transmit]) -> list[str]:
    return [one.envelope.body.decode() for one in sent if one.number]


def finish(sending: Sending, sent: Transmit) -> None:
    """Answer CloseSequence and the TerminateSequence that follows."""
    assert isinstance(sent.envelope.control, CloseSequence), sent
    sending.answer(sent, control=CloseSequenceResponse(sent.envelope.control.identifier))
    (terminate,) = sending.take()
    assert isinstance(terminate.envelope.control, TerminateSequence)
    sending.answer(terminate, control=TerminateSequenceResponse(terminate.envelope.control.identifier))


def test_discarding_an_untransmitted_message_puts_no_other_in_doubt() -> None:
    sending = Sending(initial_window=2, window=2)
    outbox, sent = sending.opened("a", "1", "2", "3", "4", "5")
    assert bodies(sent) == ["1", "2"]
    assert not outbox.records.may_have_left(3)
    discard(sending.protocol.outbound, outbox, 3, sending.now)
    sending.acknowledge(sent[1], (1, 2))
    (third,) = sending.take()
    sending.acknowledge(third, (1, 3))
    (close,) = sending.take()
    finish(sending, close)
    (create,) = sending.take()
    sending.grant(create, "urn:s:next")
    (fifth,) = sending.take()
    assert (fifth.number, bodies([fifth])) == (1, ["5"])
    sending.acknowledge(fifth, (1, 1))
    assert outbox.records.is_empty and not outbox.lifecycle.stopped
    assert [effect.offset for effect in sending.told if isinstance(effect, Discarded)] == [3]


def test_a_discarded_refused_message_ends_its_sequence_without_repeats() -> None:
    sending = Sending(initial_window=4)
    outbox, sent = sending.opened("a", "1", "2", "3", "4")
    sending.acknowledge(sent[2], (1, 1), (3, 3))
    sending.refuse(sent[1], "ActionNotSupported", is_rm=False, is_addressing=True)
    assert outbox.lifecycle.stopped == "ActionNotSupported"
    assert outbox.records.may_have_left(1)
    assert outbox.records.in_doubt() == 2
    discard(sending.protocol.outbound, outbox, 1, sending.now)
    assert sending.take() == [], "4 may have arrived: somebody decides"
    outbox.resume(sending.choices, sending.now)
    (create,) = sending.take()
    sending.grant(create, "urn:s:next")
    assert bodies(sending.take()) == ["4"]


def test_where_nothing_else_is_in_doubt_the_others_go_on_by_themselves() -> None:
    sending = Sending(initial_window=1, window=1)
    outbox, _ = sending.opened("a", "1", "2")
    discard(sending.protocol.outbound, outbox, 0, sending.now)
    assert not outbox.lifecycle.stopped
    (create,) = sending.take()
    sending.grant(create, "urn:s:next")
    assert bodies(sending.take()) == ["2"]


def test_where_others_are_in_doubt_a_running_outbox_stops_until_somebody_decides() -> None:
    sending = Sending(initial_window=2)
    outbox, _ = sending.opened("a", "1", "2")
    discard(sending.protocol.outbound, outbox, 0, sending.now)
    sending.settle()
    assert outbox.lifecycle.stopped == DISCARDED
    assert sending.take() == []


def test_the_only_message_of_an_outbox_can_be_given_up() -> None:
    sending = Sending()
    outbox = sending.open()
    sending.submit(outbox, "1")
    sending.take()
    discard(sending.protocol.outbound, outbox, 0, sending.now)
    sending.settle()
    assert outbox.records.is_empty
    again = Sending(sending.store)
    assert again.protocol.outbound.outboxes["a"].records.is_empty


@given(st.data())
def test_whatever_is_given_up_every_other_message_arrives_and_in_order_over_restarts(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 8))
    sending = Sending(initial_window=2, window=3)
    arrived: list[str] = []
    given_up: set[str] = set()
    outbox = sending.open()
    sending.submit(outbox, *map(str, range(total)))
    got: dict[str, set[int]] = {}
    for step in range(300):
        if outbox.records.is_empty:
            break
        if step < 40 and data.draw(st.integers(0, 4)) == 0:
            there = [n for n in range(outbox.records.first, total) if not outbox.records.is_acknowledged(n)]
            if there:
                offset = data.draw(st.sampled_from(there))
                discard(sending.protocol.outbound, outbox, offset, sending.now)
                given_up.add(str(offset))
        elif step < 40 and data.draw(st.integers(0, 5)) == 0:
            sending.settle()
            sending = Sending(sending.store, initial_window=2, window=3)
            outbox = sending.open()
        if outbox.lifecycle.stopped:
            outbox.resume(sending.choices, sending.now)
        for sent in sending.take() or sending.wait(1.0):
            control = sent.envelope.control
            if isinstance(control, CreateSequence):
                sending.grant(sent, f"urn:s:{step}")
            elif isinstance(control, CloseSequence):
                sending.answer(sent, control=CloseSequenceResponse(control.identifier))
            elif isinstance(control, TerminateSequence):
                sending.answer(sent, control=TerminateSequenceResponse(control.identifier))
            elif sent.number:
                assert sent.envelope.sequence is not None
                numbers_there = got.setdefault(sent.envelope.sequence.identifier, set())
                if sent.number not in numbers_there:
                    numbers_there.add(sent.number)
                    arrived.append(sent.envelope.body.decode())
                sending.acknowledge(sent, *((number, number) for number in sorted(numbers_there)))
    assert outbox.records.is_empty
    assert set(arrived) | given_up == set(map(str, range(total))), "nothing is lost"
    certain = [body for body in arrived if arrived.count(body) == 1]
    assert certain == sorted(certain, key=int)


# --- what is sent, and which attempt it is ----------------------------------------------------------------------------


def test_each_transmission_says_which_attempt_it_is() -> None:
    sending = Sending()
    outbox = sending.open()
    sending.submit(outbox, "1")
    creates = sending.take()
    for _ in range(2):
        sending.lose(creates[-1])
        creates += sending.wait(4.0)
    assert [create.attempt for create in creates] == [1, 2, 3]
    sending.grant(creates[-1], "urn:s")
    messages = [*sending.take(), *sending.wait(2.0), *sending.wait(2.0)]
    assert [(one.number, one.attempt) for one in messages] == [(1, 1), (1, 2), (1, 3)]


def test_nothing_is_taken_of_an_answer_with_a_header_that_nobody_understands() -> None:
    """SOAP 1.2 part 1, section 2.6. It is as if there was no answer: what it answers is sent again."""
    sending = Sending()
    outbox = sending.open()
    sending.submit(outbox, "1", wants_reply=True)
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    (asked,) = sending.take()
    acknowledgement = SequenceAcknowledgement("urn:s", ((1, 1),))
    told = {"control": Acknowledge(), "acknowledgements": (acknowledgement,)}
    sending.answer(asked, **told, not_understood=("{urn:h}Header",))
    assert not [effect for effect in sending.told if isinstance(effect, Unanswered | Acknowledged)]
    assert not outbox.records.is_acknowledged(0)
    (again,) = sending.wait(2.0)
    assert (again.number, again.attempt) == (1, 2)
    sending.answer(again, **told)
    assert [type(effect) for effect in sending.told if isinstance(effect, Unanswered | Acknowledged)] == [
        Unanswered,
        Acknowledged,
    ]


KINDS = st.sampled_from(["ack", "ack", "ack", "gap", "nothing"])
ANSWERS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 14), KINDS), max_size=10)


@given(ANSWERS, st.booleans())
def test_answers_that_come_together_say_what_they_say_one_by_one(
    answers: list[tuple[int, int, int, str]], wants_reply: bool
) -> None:
    def after(*, together: bool) -> tuple[object, ...]:
        sending = Sending(window=12, initial_window=12)
        outbox = sending.open()
        sending.submit(outbox, *map(str, range(12)), wants_reply=wants_reply)
        (creating,) = sending.take()
        sending.grant(creating, "urn:s")
        transmitted = {sent.number: sent for sent in sending.take()}
        assert set(transmitted) == set(range(1, 13))
        came: list[tuple[Transmit, Envelope | None]] = []
        for number, lower, upper, kind in answers:
            sent = transmitted[number]
            envelope = Envelope(sent.envelope.soap, sent.envelope.addressing, sent.envelope.rm, control=Acknowledge())
            ranges = ((lower, upper), (upper + 2, upper + 2)) if kind == "gap" else ((lower, upper),)
            envelope.acknowledgements = (SequenceAcknowledgement("urn:s", ranges),)
            came.append((sent, None if kind == "nothing" else envelope))
        sending.now += 0.1
        if together:
            sending.protocol.received_together(came, sending.now)
        else:
            for one in came:
                sending.protocol.received_together([one], sending.now)
        sending.settle()
        source = outbox.source
        assert source is not None
        acknowledged = {
            n for one in sending.told if isinstance(one, Acknowledged) for n in range(one.first, one.last + 1)
        }
        unanswered = sorted(one.message_id for one in sending.told if isinstance(one, Unanswered))
        return (
            source.acknowledged.to_state(),
            list(source.flight),
            dict(source.waiting.unreplied),
            acknowledged,
            unanswered,
            source.last_fault,
        )

    assert after(together=True) == after(together=False)


# --- an Offer that the destination forgot -----------------------------------------------------------------------------


def offering(store: MemoryStore | None = None) -> tuple[Sending, Outbox]:
    sending = Sending(store)
    sending.choices = [(NEW, True)]
    return sending, sending.open()


def offer_of(create: Transmit) -> str:
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    return create.envelope.control.offer.identifier


def accept(sending: Sending, create: Transmit, identifier: str) -> None:
    sending.answer(create, control=CreateSequenceResponse(identifier, accept_acks_to=ANONYMOUS_EPR))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_where_a_repeated_offer_is_not_accepted_another_one_is_offered(is_restarted: bool) -> None:
    """Sandesha2 answers the repeat of a CreateSequence whose response was lost without Accept, and never replies."""
    store = MemoryStore()
    sending, outbox = offering(store)
    sending.submit(outbox, "1", wants_reply=True)
    (first,) = sending.take()
    if is_restarted:
        sending, outbox = offering(store)
        (repeat,) = sending.take()
    else:
        sending.lose(first)
        (repeat,) = sending.wait(2.0)
    assert (offer_of(repeat), repeat.envelope.message_id) == (offer_of(first), first.envelope.message_id)
    sending.grant(repeat, "urn:s:1")
    assert [one.name for one in sending.told if isinstance(one, Incident)][-1:] == ["offer.ignored"]
    (another,) = sending.take()
    assert offer_of(another) != offer_of(first) and another.envelope.message_id != first.envelope.message_id
    accept(sending, another, "urn:s:2")
    (request,) = sending.take()
    assert request.envelope.sequence == Sequence("urn:s:2", 1)
    accept(sending, first, "urn:s:0")  # late
    assert outbox.source is not None and outbox.source.identifier == "urn:s:2"


def test_the_first_grant_is_used_even_if_it_accepts_no_offer() -> None:
    sending, outbox = offering()
    sending.submit(outbox, "1", wants_reply=True)
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    (request,) = sending.take()
    assert request.envelope.sequence == Sequence("urn:s", 1)
    assert not sending.protocol.outbound.sequences.by_offer


def test_a_destination_that_accepts_no_repeated_offer_is_not_asked_for_ever() -> None:
    sending, outbox = offering()
    sending.submit(outbox, "1")
    offers = []
    for number in range(MOST_IGNORED_OFFERS + 1):
        (first,) = sending.take()
        offers.append(offer_of(first))
        sending.lose(first)
        (repeat,) = sending.wait(2.0)
        sending.grant(repeat, f"urn:s:{number}")
    assert len(set(offers)) == MOST_IGNORED_OFFERS + 1
    (message,) = sending.take()
    assert message.envelope.sequence == Sequence(f"urn:s:{MOST_IGNORED_OFFERS}", 1)
    assert not sending.protocol.outbound.sequences.by_offer
