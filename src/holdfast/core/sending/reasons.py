"""Reasons: what a fault or the clock is to an outbound Sequence, and what is told of it."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.faults import (
    CREATE_SEQUENCE_REFUSED,
    ENDS_FOR_SOURCE,
    INVALID_ACKNOWLEDGEMENT,
    MESSAGE_NUMBER_ROLLOVER,
    SEQUENCE_CLOSED,
)
from holdfast.core.messages import Fault
from holdfast.core.states import SourceEvent
from holdfast.core.versions import Capabilities

NOT_DURABLE_YET = "not durable yet"
"""What was saved once of a Sequence from CreateSequenceResponse until that was durable."""

UNSENDABLE = "cannot be written"
"""Why an outbox is stopped whose next message no envelope can hold."""

DISCARDED = "a message was given up"
"""Why an outbox is stopped whose Sequence was given up with a message that may have been transmitted."""

NO_ANSWER_WHAT_ARRIVED = "nobody knows what arrived"
"""Why an outbox is stopped that gives up a message, and whose destination does not say which others it has."""


class Why(NamedTuple):
    """What is told of something that happened to a Sequence.

    Args:
        code: A fault's code, or a word for what happened.
        reason: What the peer said, or a sentence.
        number: The message it is about; 0: none.
        limit: The highest number that the peer takes, if it said so.
    """

    code: str = ""
    reason: str = ""
    number: int = 0
    limit: int | None = None


NO_REASON = Why()
WHEN_DUE = {
    SourceEvent.EXPIRED: Why("Expires", "its time was up"),
    SourceEvent.EXPIRED_WHEN_DONE: Why("Expires", "its time was up"),
    SourceEvent.SILENT: Why("given up", "the destination gave no sign of life"),
    SourceEvent.UNANSWERED: Why("unanswered", "nobody answers to its end"),
}
"""What is told of what the clock alone made happen."""


def event_of(fault: Fault, number: int, can: Capabilities) -> SourceEvent:
    """What a fault is to the Sequence that it is about; ``number``: of the message that it answers, 0 for none."""
    if fault.is_rm:
        if fault.code == MESSAGE_NUMBER_ROLLOVER and not can.rollover_ends:
            return SourceEvent.ROLLOVER_FAULT
        if fault.code in (*ENDS_FOR_SOURCE, MESSAGE_NUMBER_ROLLOVER):
            return SourceEvent.ENDING_FAULT
        if fault.code == SEQUENCE_CLOSED:
            return SourceEvent.CLOSED_FAULT
        if fault.code == INVALID_ACKNOWLEDGEMENT:
            return SourceEvent.ACKNOWLEDGEMENT_FAULT
        if fault.code == CREATE_SEQUENCE_REFUSED and not number:
            return SourceEvent.CREATE_SEQUENCE_REFUSED
    return SourceEvent.MESSAGE_FAULT if fault.sender and number else SourceEvent.OTHER_FAULT
