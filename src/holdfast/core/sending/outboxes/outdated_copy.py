"""Sequences read from an older copy of the store: how an outbox finds out, and which messages it sends again.

The copy does not know the numbers that a lost run used. The destination has accepted those, so it takes a new message
with such a number for a duplicate, and acknowledges it. Therefore the first new message of a resumed Sequence waits
until the destination says which numbers it has (AckRequested, WS-RM 3.8).
"""

from __future__ import annotations

from holdfast.core.events import Incident
from holdfast.core.messages import SequenceAcknowledgement
from holdfast.core.rm_source.acknowledgement_history import Ranges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.reasons import Why
from holdfast.core.states.outbound import SourceEvent

OUTDATED = "sequence.outdated"
"""The incident that reports it."""

OUTDATED_REMEDY = (
    "The store was restored from an older copy, or the destination is broken. New messages go in another Sequence. The "
    "store does not have the messages that were stored after the copy. Compare your own records with those of the "
    "destination, and send what did not arrive."
)

UNPROVEN = "the destination acknowledges numbers that only a lost run can have used"
"""Why messages of this run are in doubt: the destination may have taken them for duplicates."""


def hear_of_lost_run(outbox: Outbox, source: RMSource, ack: SequenceAcknowledgement, now: float) -> Ranges:
    """Handle an acknowledgement that a Sequence read from the store cannot have caused.

    Returns:
        Numbers of messages that this run sent, counted as acknowledged, and deleted, although the destination may have
        only the messages that the lost run sent with these numbers.
    """
    known = source.numbers.known
    assert known is not None, outbox.key
    end = max([upper for _, upper in ack.ranges] + list(ack.nacks))
    detail = {"key": outbox.key, "to": outbox.to, "known": known, "acknowledged": end, "remedy": OUTDATED_REMEDY}
    incident = Incident(OUTDATED, source.identifier or "", known + 1, "error", detail)
    outbox.context.effects.append(incident)
    sent = source.numbers.with_record(source.numbers.highest_sent)
    if sent <= known:
        outbox.happen(source, SourceEvent.OUTDATED, now)
        return ()
    passed = outbox.records.first - source.numbers.start
    # Those that are still stored are sent again.
    source.acknowledged.discard_above(max(known, passed))
    outbox.happen(source, SourceEvent.OUTDATED_LATE, now, Why("Outdated", UNPROVEN))
    return ((known + 1, passed),) if passed > known else ()


def remain_without_word(outbox: Outbox, source: RMSource) -> None:
    """Handle an answer to AckRequested without an acknowledgement: CXF answers with nothing.

    After enough of them, new messages go to another Sequence.
    """
    # Elsewhere acknowledgements follow the empty answers, so the source asks more often.
    enough = ANSWERED_ENOUGH if outbox.context.composer.is_anonymous(source) else 2 * ANSWERED_ENOUGH
    if source.asks_first and source.control.attempts >= enough:
        outbox.context.marking.leave_new(source, is_restored=False)
        outbox.ready()
