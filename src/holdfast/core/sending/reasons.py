"""Reasons: what a fault or timeout means for an outbound Sequence, and its report."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.faults import (
    CREATE_SEQUENCE_REFUSED,
    ENDS_FOR_SOURCE,
    INVALID_ACKNOWLEDGEMENT,
    MESSAGE_NUMBER_ROLLOVER,
    REFUSES_ACCOUNT,
    SEQUENCE_CLOSED,
)
from holdfast.core.messages import Fault
from holdfast.core.states.outbound import SourceEvent
from holdfast.core.versions import Capabilities

UNSENDABLE = "cannot be written"
"""Why an outbox is stopped: no envelope can hold its next message."""

DISCARDED = "a message was given up"
"""Why an outbox is stopped: its Sequence was dropped with a message that may have been transmitted."""

NO_ANSWER_WHAT_ARRIVED = "nobody knows what arrived"
"""Why an outbox is stopped: it dead-letters a message, and its destination does not report which others it has."""

NOT_POLLED = "polls refused"
"""Why an outbox is stopped: its destination does not answer the polls for replies and acknowledgements."""


NOT_ACCEPTED = "answers not accepted"
"""Why an outbox is stopped: this side accepts no answer of its destination to CreateSequence."""


class Why(NamedTuple):
    """Report of an event of a Sequence.

    Args:
        code: A fault's code, or a word for the event.
        reason: The peer's reason, or a sentence.
        number: The message concerned; 0: none.
        limit: The highest number that the peer accepts, if it sent one.
        may_pass: Whether the same request may succeed later.
    """

    code: str = ""
    reason: str = ""
    number: int = 0
    limit: int | None = None
    may_pass: bool = False


NO_REASON = Why()
WHEN_DUE = {
    SourceEvent.EXPIRED: Why("Expires", "the Sequence expired"),
    SourceEvent.EXPIRED_WHEN_DONE: Why("Expires", "the Sequence expired"),
    SourceEvent.SILENT: Why("given up", "the destination was silent too long"),
    SourceEvent.UNANSWERED: Why("unanswered", "the destination did not answer the end of the Sequence"),
}
"""Reports of the events that the clock alone causes."""


def event_of(fault: Fault, number: int, can: Capabilities) -> SourceEvent:
    """Return the event that a fault is for its Sequence.

    ``number``: the number of the message that it answers, 0 for none.
    """
    if fault.is_rm:
        # WS-RM 4.5: in 1.1 the Sequence continues below the limit. In 1.0 a rollover ends it (WS-RM 1.0 4).
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
    # A Sender fault blames the message, so the same message would fail again; any other may be gone next time.
    # SOAP 1.1 has no Sender in a code of WS-Security.
    is_final = fault.sender or fault.code in REFUSES_ACCOUNT
    return SourceEvent.MESSAGE_FAULT if is_final and number else SourceEvent.OTHER_FAULT
