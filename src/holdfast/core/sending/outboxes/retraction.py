"""Retraction: a destination no longer acknowledges what it had acknowledged, and the source has deleted."""

from __future__ import annotations

from holdfast.core.events import Incident
from holdfast.core.messages import IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.records import OutboxRecords

RETRACTED = "acknowledgement.retracted"
"""The incident that reports it."""

RETRACTED_REMEDY = (
    "The destination lost these messages: part of its log, or to an older copy or a failover. "
    "Ask its operator, and send them again from your own records: the source has deleted them."
)


def made_after(source: RMSource, ack: SequenceAcknowledgement) -> float | None:
    """Return a time in seconds before which the destination cannot have made an acknowledgement; None if unknown.

    A destination acknowledges a number only after its first transmission, however the acknowledgement arrives. Call
    this before the source takes the acknowledgement in, which ends the flight of what it covers.
    """
    covered = AcknowledgementRanges(ack.ranges)
    for lower, upper in reversed(list(covered.outside(source.acknowledged))):
        # An earlier run may have transmitted what is not above ``sent_before``.
        for number in range(upper, max(lower, source.numbers.sent_before + 1) - 1, -1):
            entry = source.flight.get(number)
            if entry is not None and not entry.is_begun_again:
                return entry.first_sent_at  # numbers begin in ascending order, so it is the latest
    return None


def retraction(
    outbox: OutboxRecords, source: RMSource, ack: SequenceAcknowledgement, asked_at: float | None, now: float
) -> Incident | None:
    """Take a valid acknowledgement into the Sequence's history, and return the incident if it retracts another one.

    Args:
        outbox: That of the Sequence.
        source: The Sequence.
        ack: What its destination says; no Nack.
        asked_at: The destination made the acknowledgement at that time or later, in seconds: when the request left
            that it answers, or see :func:`made_after`. None if that is unknown.
        now: Seconds.
    """
    # WS-RM 3.4: a destination may discard what is behind a gap, or everything, when the Sequence ends with one.
    may_shrink = ack.final and source.behavior is not IncompleteSequenceBehavior.NO_DISCARD
    lost = source.history.hear(ack.ranges, None if may_shrink else asked_at, now)
    if not lost:
        return None
    numbers = ", ".join(f"{lower}-{upper}" if lower < upper else str(lower) for lower, upper in lost)
    detail = {"key": outbox.key, "to": outbox.to, "messages": numbers, "remedy": RETRACTED_REMEDY}
    return Incident(RETRACTED, source.identifier or "", lost[0][0], "error", detail)
