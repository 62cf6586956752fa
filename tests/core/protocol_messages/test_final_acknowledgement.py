"""A destination that closes a Sequence says so beside a reply, or with replies behind a gap: no reply is lost by it."""

from __future__ import annotations

from typing import Any

from sending import NEW, Sending

from holdfast.core.events import Delivered, Incident, Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Sequence,
    SequenceAcknowledgement,
)


def asked(count: int) -> tuple[Sending, str, list[Transmit]]:
    """A Sequence with requests under way, and the Identifier of the Sequence that was offered for replies."""
    sending = Sending()
    sending.choices = [(NEW, True)]
    outbox = sending.open()
    for number in range(1, count + 1):
        sending.submit(outbox, str(number), wants_reply=True)
    (create,) = sending.take()
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    return sending, create.envelope.control.offer.identifier, sending.take()


def delivered(sending: Sending) -> list[int]:
    """Offsets of the replies that are in the queue."""
    found = [effect for effect in sending.told if isinstance(effect, Delivered)]
    return [one.offset + step for one in found for step in range(getattr(one, "count", 1))]


def gaps_reported(sending: Sending) -> int:
    return sum(isinstance(one, Incident) and one.name == "sequence.incomplete" for one in sending.told)


def answer(offered: str, number: int, *, final: bool = False, ranges: Any = ((1, 3),)) -> dict[str, Any]:
    acknowledgement = SequenceAcknowledgement("urn:s", ranges, final=final)
    reply = {"sequence": Sequence(offered, number), "action": "urn:reply", "body": b"<r/>"}
    return {"acknowledgements": (acknowledgement,), **reply}


def test_the_reply_that_a_final_acknowledgement_comes_with_is_delivered_first() -> None:
    sending, offered, (first, second, third) = asked(3)
    sending.answer(second, **answer(offered, 2))
    sending.answer(third, **answer(offered, 3))
    assert delivered(sending) == []
    sending.answer(first, **answer(offered, 1, final=True))
    assert delivered(sending) == [0, 1, 2]
    assert gaps_reported(sending) == 0


def test_replies_held_behind_a_lost_one_are_delivered_and_the_gap_is_reported() -> None:
    sending, offered, (first, second, third) = asked(3)
    sending.answer(second, **answer(offered, 2))
    sending.answer(third, **answer(offered, 3))
    final = SequenceAcknowledgement("urn:s", ((1, 3),), final=True)
    sending.answer(first, control=Acknowledge(), acknowledgements=(final,))
    assert delivered(sending) == [0, 1]
    assert gaps_reported(sending) == 1
