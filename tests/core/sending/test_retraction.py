"""Retraction: a destination that lost what it had acknowledged is named at once."""

from __future__ import annotations

from typing import Any

import pytest
from sending import Sending

from holdfast.core.events import Incident, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CreateSequenceResponse,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
)
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox import Outbox
from holdfast.core.sending.retraction import RETRACTED


def opened(behavior: IncompleteSequenceBehavior = IncompleteSequenceBehavior.NO_DISCARD) -> tuple[Sending, Outbox]:
    """A Sequence urn:s of which the destination has acknowledged 1 to 10."""
    sending = Sending(initial_window=10)
    outbox = sending.open()
    sending.submit(outbox, *map(str, range(1, 11)))
    (create,) = sending.take()
    sending.answer(create, control=CreateSequenceResponse("urn:s", incomplete_sequence_behavior=behavior))
    sent = sending.take()
    sending.now += 0.1
    acknowledge(sending, sent[-1], (1, 10))
    return sending, outbox


def acknowledge(sending: Sending, sent: Transmit, *ranges: tuple[int, int], **fields: Any) -> None:
    what = SequenceAcknowledgement("urn:s", ranges, **{key: fields.pop(key) for key in ("final",) if key in fields})
    sending.answer(sent, **{"control": Acknowledge(), "acknowledgements": (what,)} | fields)


def retracted(sending: Sending) -> list[Incident]:
    return [one for one in sending.told if isinstance(one, Incident) and one.name == RETRACTED]


def following(sending: Sending, outbox: Outbox) -> Transmit:
    sending.now += 0.1
    sending.submit(outbox, "next")
    return sending.take()[-1]


def test_a_destination_that_acknowledges_less_than_before_is_reported_with_what_to_do() -> None:
    sending, outbox = opened()
    acknowledge(sending, following(sending, outbox), (1, 6), (11, 11))
    (incident,) = retracted(sending)
    assert incident.level == "error" and incident.identifier == "urn:s" and incident.number == 7
    assert incident.detail is not None and incident.detail["messages"] == "7-10"
    assert "send them again" in incident.detail["remedy"]
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


def test_a_state_of_a_version_without_history_begins_one() -> None:
    _, outbox = opened()
    assert outbox.source is not None
    state = outbox.source.to_state()
    del state["history"]
    again = RMSource.from_state(state, outbox.policy, 10, 200.0)
    assert again.history.to_state() == [] and list(again.acknowledged) == [(1, 10)]


@pytest.mark.parametrize(
    ("behavior", "count"),
    [(IncompleteSequenceBehavior.NO_DISCARD, 1), (IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP, 0)],
)
def test_a_final_acknowledgement_may_shrink_where_the_destination_discards(
    behavior: IncompleteSequenceBehavior, count: int
) -> None:
    sending, outbox = opened(behavior)
    acknowledge(sending, following(sending, outbox), (1, 6), final=True)
    assert len(retracted(sending)) == count


def test_an_acknowledgement_in_a_stored_reply_to_a_repeat_may_be_old() -> None:
    sending, outbox = opened()
    sent = following(sending, outbox)
    sent.attempt = 2
    acknowledge(sending, sent, (1, 6), control=None, action="urn:reply", body=b"<r/>")
    assert not retracted(sending)
