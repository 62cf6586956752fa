"""Retraction: a destination that lost what it had acknowledged is named at once.

Covers core/sending/outboxes/peer_answers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sending import NEW, OLD, Sending

from holdfast.core.events import Ended, Incident, Transmit
from holdfast.core.faults import SEQUENCE_CLOSED, sequence_fault
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequenceResponse,
    Envelope,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.origin import Origin
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source import acknowledgement_history
from holdfast.core.rm_source.acknowledgement_history import Retractions
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import REFUSED_ENOUGH, RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.core.versions import Versions

LONG = 60.0
"""Seconds: many times the timeout after which a request is sent again."""


def opened(behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD) -> tuple[Sending, Outbox]:
    """A Sequence urn:s of which the destination has acknowledged 1 to 10."""
    sending = Sending(initial_window=10)
    outbox, sent = granted(sending, behavior)
    sending.now += 0.1
    acknowledge(sending, sent[-1], (1, 10))
    return sending, outbox


def acknowledge(sending: Sending, sent: Transmit, *ranges: tuple[int, int], **fields: Any) -> None:
    what = SequenceAcknowledgement("urn:s", ranges, **{key: fields.pop(key) for key in ("final",) if key in fields})
    sending.answer(sent, **{"control": Acknowledge(), "acknowledgements": (what,)} | fields)


def posted_to(sending: Sending) -> Outbox:
    """A Sequence urn:s whose destination posts acknowledgements to an address, and has acknowledged 1 to 10."""
    outbox, _ = granted(sending)
    sending.now += 0.1
    post(sending, outbox, (1, 10))
    return outbox


def granted(
    sending: Sending,
    behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD,
    **fields: Any,
) -> tuple[Outbox, list[Transmit]]:
    """A Sequence urn:s of which 1 to 10 were sent."""
    outbox = sending.open()
    sending.submit(outbox, *map(str, range(1, 11)), **fields)
    (create,) = sending.take()
    sending.answer(create, control=CreateSequenceResponse("urn:s", incomplete_sequence_behavior=behavior))
    return outbox, sending.take()


def post(sending: Sending, outbox: Outbox, *ranges: tuple[int, int]) -> None:
    """The destination posts an acknowledgement to the address that the source told it."""
    assert outbox.source is not None
    what = SequenceAcknowledgement("urn:s", ranges)
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, control=Acknowledge(), acknowledgements=(what,))
    sending.protocol.receive(envelope, object(), sending.now, origin=Origin(secret=outbox.source.secret))
    sending.settle()


def retracted(sending: Sending) -> list[Incident]:
    return [one for one in sending.told if isinstance(one, Incident) and one.name == RETRACTED]


def following(sending: Sending, outbox: Outbox) -> Transmit:
    sending.now += 0.1
    sending.submit(outbox, "next")
    return sending.take()[-1]


def test_an_acknowledgement_of_less_than_before_is_reported_with_a_remedy() -> None:
    sending, outbox = opened()
    acknowledge(sending, following(sending, outbox), (1, 6), (11, 11))
    (incident,) = retracted(sending)
    assert incident.level == "error" and incident.identifier == "urn:s" and incident.number == 7
    assert incident.detail is not None and incident.detail["messages"] == "7-10"
    assert "send these messages again" in incident.detail["remedy"]
    acknowledge(sending, following(sending, outbox), (1, 6), (11, 12))
    assert len(retracted(sending)) == 1


def test_it_is_noticed_after_a_restart_of_the_source_too() -> None:
    sending, outbox = opened()
    following(sending, outbox)
    assert outbox.source is not None
    sending.protocol.commit.save(outbox.source.local_id, outbox.source)
    sending.settle()
    again = Sending(sending.store)
    again.now = sending.now + 1
    (outbox,) = again.protocol.outbound.outboxes.values()
    sent = next(one for one in again.take() if one.number == 11)
    again.now += 0.1
    sent.left_at = again.now
    acknowledge(again, sent, (1, 6))
    assert [one.detail and one.detail["messages"] for one in retracted(again)] == ["7-10"]


pieces = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda one: (one[0], sum(one))), max_size=12)


@given(st.lists(st.tuples(st.sampled_from("ab"), pieces), max_size=8), st.integers(1, 8))
def test_whatever_was_retracted_is_kept_or_counted(told: list[tuple[str, list[tuple[int, int]]]], most: int) -> None:
    retractions, all_of = Retractions(), dict[str, set[int]]()
    with patch.object(acknowledgement_history, "MOST_RETRACTED", most):
        for name, ranges in told:
            new = AcknowledgementRanges(AcknowledgementRanges(ranges).outside(_ranges(all_of.setdefault(name, set()))))
            retractions.add(name, tuple(new))
            all_of[name] |= {number for lower, upper in new for number in range(lower, upper + 1)}
    again = Retractions()
    again.restore(retractions.to_state())
    named = {name: {n for a, b in ranges for n in range(a, b + 1)} for name, ranges in again.ranges.items()}
    assert all(numbers <= all_of[name] for name, numbers in named.items())
    assert sum(map(len, named.values())) + again.others == sum(map(len, all_of.values()))
    assert sum(map(len, again.ranges.values())) <= most
    retractions.are_reported = True
    assert retractions.to_state() is None


def _ranges(numbers: set[int]) -> AcknowledgementRanges:
    return AcknowledgementRanges((number, number) for number in sorted(numbers))


def test_all_that_was_retracted_is_kept_over_pieces_sequences_and_restarts() -> None:
    sending, outbox = opened()
    acknowledge(sending, following(sending, outbox), (1, 8))
    acknowledge(sending, following(sending, outbox), (1, 3))
    kept = {"urn:s": "4-10"}
    for one in (sending, Sending(sending.store, now=sending.now + 1)):
        (outbox,) = one.protocol.outbound.outboxes.values()
        assert {name: str(ranges) for name, ranges in outbox.lifecycle.retracted.ranges.items()} == kept
    assert outbox.source is not None
    outbox.drop(one.now)
    one.settle()
    one = Sending(one.store, now=one.now + 1)
    (outbox,) = one.protocol.outbound.outboxes.values()
    assert list(outbox.lifecycle.retracted.ranges) == ["urn:s"], "the Sequence has ended"


def test_a_state_of_a_version_without_history_begins_one() -> None:
    _, outbox = opened()
    assert outbox.source is not None
    state = outbox.source.to_state()
    del state["history"]
    again = RMSource.from_state(state, outbox.policy, 10, 200.0)
    assert again.history.to_state() == [] and list(again.acknowledged) == [(1, 10)]


NO_DISCARD, FOLLOWING, ENTIRE = (
    IncompleteSequenceBehavior.NO_DISCARD,
    IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP,
    IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE,
)


@pytest.mark.parametrize("is_fault", [False, True])
@pytest.mark.parametrize(
    ("behavior", "before", "final", "lost"),
    [
        (NO_DISCARD, [(1, 10)], [(1, 6)], ["7-10"]),
        (NO_DISCARD, [(1, 6), (8, 10)], [(1, 6)], ["8-10"]),
        (FOLLOWING, [(1, 10)], [(1, 6)], ["7-10"]),
        (FOLLOWING, [(1, 6), (8, 10)], [(1, 6)], []),
        (FOLLOWING, [(2, 10)], [], []),
        (ENTIRE, [(1, 10)], [], []),
    ],
)
def test_a_final_acknowledgement_proves_a_loss_that_no_gap_excuses(
    behavior: IncompleteSequenceBehavior,
    before: list[tuple[int, int]],
    final: list[tuple[int, int]],
    lost: list[str],
    is_fault: bool,
) -> None:
    sending = Sending(initial_window=10)
    outbox, sent = granted(sending, behavior)
    acknowledge(sending, sent[-1], *before)
    fields: dict[str, Any] = {}
    if is_fault:
        fields = {"control": None, "fault": sequence_fault(SEQUENCE_CLOSED, "urn:s")}
    acknowledge(sending, following(sending, outbox), *final, final=True, **fields)
    assert [one.detail and one.detail["messages"] for one in retracted(sending)] == lost


def test_an_acknowledgement_in_a_stored_reply_to_a_repeat_may_be_old() -> None:
    sending, outbox = opened()
    sent = following(sending, outbox)
    sent.attempt = 2
    acknowledge(sending, sent, (1, 6), control=None, action="urn:reply", body=b"<r/>")
    assert not retracted(sending)


def test_it_is_noticed_where_acknowledgements_are_posted_to_an_address() -> None:
    sending = Sending(local="http://here/answers", initial_window=10)
    outbox = posted_to(sending)
    following(sending, outbox)
    post(sending, outbox, (1, 6), (11, 11))
    (incident,) = retracted(sending)
    assert incident.detail is not None and incident.detail["messages"] == "7-10"
    following(sending, outbox)
    post(sending, outbox, (1, 6), (11, 12))
    assert len(retracted(sending)) == 1


def test_a_posted_acknowledgement_that_was_overtaken_is_no_retraction() -> None:
    sending = Sending(local="http://here/answers", initial_window=10)
    outbox, _ = granted(sending)
    sending.now += 0.1
    post(sending, outbox, (1, 6), (8, 8))
    post(sending, outbox, (1, 10))
    following(sending, outbox)
    post(sending, outbox, (1, 6))
    post(sending, outbox, (1, 6), (8, 8))
    assert not retracted(sending)


def test_an_overtaken_post_about_a_request_that_was_repeated_is_no_retraction() -> None:
    sending = Sending(local="http://here/answers", initial_window=10)
    outbox, sent = granted(sending, wants_reply=True)
    for one in sent:
        sending.protocol.received(one, None, sending.now)
    sending.now += 0.1
    post(sending, outbox, (1, 10))
    assert sending.wait(2.0)[0].number == 1
    post(sending, outbox, (1, 6))
    assert not retracted(sending)


def test_a_posted_acknowledgement_of_a_number_of_an_earlier_run_proves_nothing() -> None:
    sending = Sending(local="http://here/answers", initial_window=10)
    outbox, _ = granted(sending)
    sending.now += 0.1
    post(sending, outbox, (1, 6), (8, 8), (10, 10))
    assert outbox.source is not None
    sending.protocol.commit.save(outbox.source.local_id, outbox.source)
    sending.settle()
    again = Sending(sending.store, now=sending.now + 1, local="http://here/answers", initial_window=1)
    (outbox,) = again.protocol.outbound.outboxes.values()
    assert {one.number for one in again.take()} == {7}
    again.now += 1
    post(again, outbox, (1, 8), (10, 10))
    assert {one.number for one in again.take()} == {9}
    again.now += 1
    post(again, outbox, (1, 6), (9, 9))
    assert not retracted(again), "the earlier run may have sent number 9, and it may have arrived first"
    following(again, outbox)
    post(again, outbox, (1, 6), (9, 9), (11, 11))
    assert [one.detail and one.detail["messages"] for one in retracted(again)] == ["7-8, 10"]


def test_a_posted_acknowledgement_of_a_request_sent_anew_proves_nothing() -> None:
    sending = Sending(local="http://here/answers", initial_window=10)
    outbox, _ = granted(sending)
    source = outbox.source
    assert source is not None
    sending.now += 0.1
    post(sending, outbox, (1, 6), (8, 10))
    sending.now += 0.1
    source.flight.remove(7)
    source.flight.begin_again(7, None, sending.now)
    post(sending, outbox, (1, 7))
    assert not retracted(sending)


def test_a_retraction_in_a_stored_reply_to_a_later_request_is_reported() -> None:
    sending, outbox = opened()
    sent = following(sending, outbox)
    sent.attempt = 2
    acknowledge(sending, sent, (1, 6), (11, 11), control=None, action="urn:reply", body=b"<r/>")
    assert [one.detail and one.detail["messages"] for one in retracted(sending)] == ["7-10"]


# --- a destination that refuses the end of a Sequence -----------------------------------------------------------------


def ending(versions: Versions, behavior: IncompleteSequenceBehavior) -> tuple[Sending, list[Transmit]]:
    """A Sequence whose end is wanted with everything acknowledged, and the first request that tells it."""
    sending = Sending()
    sending.choices = [(versions, False)]
    outbox = sending.open()
    sending.submit(outbox, "1")
    (create,) = sending.take()
    sending.answer(create, control=CreateSequenceResponse("urn:s", incomplete_sequence_behavior=behavior))
    (message,) = sending.take()
    sending.acknowledge(message, (1, 1))
    outbox.want_end(sending.now)
    sent = sending.take()
    if versions is OLD:
        assert sent[0].number == 2, "LastMessage"
        sending.acknowledge(sent[0], (1, 2))
        sent = sending.take()
    return sending, sent


def refusals(sending: Sending) -> list[Incident]:
    return [one for one in sending.told if isinstance(one, Incident) and one.name == "sequence.end_refused"]


def repeated(sending: Sending, sent: list[Transmit], answer: Callable[[Transmit], None], times: int) -> list[Transmit]:
    """Answer the end of a Sequence and its repeats; return the last one."""
    for _ in range(times):
        (request,) = sent
        assert isinstance(request.envelope.control, CloseSequence | TerminateSequence)
        answer(request)
        sent = sending.wait(LONG)
    return sent


# In 1.0, any answer to TerminateSequence that is accepted ends the Sequence, a fault too.
@pytest.mark.parametrize(
    ("versions", "is_fault"), [(NEW, True), (NEW, False), (OLD, False)], ids=["fault", "not accepted", "1.0"]
)
def test_a_sequence_whose_end_is_refused_often_enough_ends_with_a_warning(versions: Versions, is_fault: bool) -> None:
    sending, sent = ending(versions, IncompleteSequenceBehavior.NO_DISCARD)

    def answer(request: Transmit) -> None:
        if is_fault:
            sending.refuse(request, "Server", is_rm=False)
        else:
            sending.protocol.failed(request, sending.now)

    sent = repeated(sending, sent, answer, REFUSED_ENOUGH - 1)
    assert not refusals(sending) and len(sent) == 1
    assert repeated(sending, sent, answer, 1) == []
    (incident,) = refusals(sending)
    assert (incident.identifier, incident.level) == ("urn:s", "warning")
    assert incident.detail is not None and incident.detail["refusals"] == REFUSED_ENOUGH
    assert any(isinstance(one, Ended) for one in sending.told)
    assert sending.protocol.outbound.outboxes["a"].source is None
    assert "refused" in sending.protocol.outbound.outboxes["a"].last_answer
    assert Sending(sending.store, now=sending.now).wait(LONG) == []


@pytest.mark.parametrize("is_ending", [False, True], ids=["open", "ending"])
def test_a_refused_copy_of_an_acknowledged_message_stops_nothing(is_ending: bool) -> None:
    # As Metro refuses it after CloseSequence, at times with a code that is not WS-RM's.
    sending = Sending()
    outbox, (message,) = sending.opened("a", "1")
    (copy,) = sending.wait(LONG)
    assert copy.number == message.number
    sending.acknowledge(message, (1, 1))
    if is_ending:
        outbox.want_end(sending.now)
        (close,) = sending.take()
    sending.refuse(copy, "SequenceClosed", is_rm=False, sender=True)
    assert not sending.stopped
    if is_ending:
        sending.answer(close, control=CloseSequenceResponse("urn:s:a"))
        (end,) = sending.take()
        assert isinstance(end.envelope.control, TerminateSequence)
    else:
        sending.submit(outbox, "2")
        assert [one.number for one in sending.take()] == [2]


def test_a_refused_copy_of_a_request_without_its_reply_stops_the_outbox() -> None:
    sending = Sending()
    outbox, sent = granted(sending, wants_reply=True)
    post(sending, outbox, (1, 10))
    assert outbox.source is not None and 1 in outbox.source.waiting.unreplied
    sending.refuse(sent[0], "Server", is_rm=False, sender=True)
    assert sending.stopped


def test_a_destination_that_does_not_answer_hears_of_the_end_without_a_limit() -> None:
    sending, sent = ending(NEW, IncompleteSequenceBehavior.NO_DISCARD)
    times = 3 * REFUSED_ENOUGH
    assert repeated(sending, sent, lambda one: sending.protocol.failed(one, sending.now, "no connection"), times)
    assert repeated(sending, sent, lambda one: sending.protocol.failed(one, sending.now, has_left=False), times)
    assert not refusals(sending)


def test_a_destination_that_discards_hears_of_the_end_without_a_limit() -> None:
    sending, sent = ending(NEW, IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE)
    times = 3 * REFUSED_ENOUGH
    assert repeated(sending, sent, lambda one: sending.protocol.failed(one, sending.now), times)
    assert not refusals(sending)


def test_a_last_message_with_answers_that_are_not_accepted_is_left_out() -> None:
    sending = Sending()
    sending.choices = [(OLD, False)]
    outbox = sending.open()
    sending.submit(outbox, "1")
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    (message,) = sending.take()
    sending.acknowledge(message, (1, 1))
    outbox.want_end(sending.now)
    sent = sending.take()
    for _ in range(ANSWERED_ENOUGH):
        (last,) = sent
        assert last.number == 2
        sending.protocol.failed(last, sending.now)
        sent = sending.wait(LONG)
    (end,) = sent
    assert isinstance(end.envelope.control, TerminateSequence)
