"""Answers of a peer about the Sequence of an outbox: acknowledgements, faults, its end, and silence.

A destination that no longer acknowledges what it had acknowledged retracts messages that the source has deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.events import Incident, Unanswered
from holdfast.core.faults import (
    INVALID_ACKNOWLEDGEMENT,
    LOCKS_ACCOUNT,
    MESSAGE_NUMBER_ROLLOVER,
    REFUSES_ACCOUNT,
    SEQUENCE_CLOSED,
    UNKNOWN_SEQUENCE,
    may_pass,
    sequence_fault,
)
from holdfast.core.messages import MAX_MESSAGE_NUMBER, Fault, SequenceAcknowledgement
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.acknowledgement_history import Ranges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.outdated_copy import OUTDATED_REMEDY, hear_of_lost_run, remain_without_word
from holdfast.core.sending.reasons import NOT_ACCEPTED, Why, event_of
from holdfast.core.states.outbound import DoubtAction, DoubtEvent, SourceAction, SourceEvent, SourceState

_ENDING_FAULTS = (SourceEvent.ENDING_FAULT, SourceEvent.CLOSED_FAULT)
_OPENED = frozenset({*SourceState} - {SourceState.NONE, SourceState.CREATING})
_REFUSALS = (SourceEvent.MESSAGE_FAULT, SourceEvent.OTHER_FAULT)
"""Events of a fault about a forwarded message that do not concern its Sequence."""

RETRACTED = "acknowledgement.retracted"
"""The incident that reports it."""

RETRACTED_REMEDY = (
    "The destination lost part of its log, was restored from an older copy, or failed over to a replica that lagged "
    "behind. Ask its operator, and send these messages again from your own records: the source has deleted them. If "
    "the destination delivers in order, later messages of the Sequence wait there until its operator closes it."
)

END_REFUSED_REMEDY = (
    "The destination acknowledged every message of the Sequence, so none is lost. It may keep the Sequence until its "
    "own timeout. Check why it refuses CloseSequence or TerminateSequence, or answers without the demanded security."
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
    outbox: Outbox, source: RMSource, ack: SequenceAcknowledgement, asked_at: float | None, now: float
) -> Incident | None:
    """Take a valid acknowledgement into the Sequence's history, and return the incident if it retracts another one.

    Args:
        ack: What its destination says; no Nack.
        asked_at: The destination made the acknowledgement at that time or later, in seconds: when the request left
            that it answers, or see :func:`made_after`. None if that is unknown.
    """
    history = source.history
    lost = history.hear_final(ack.ranges, source.behavior) if ack.final else history.hear(ack.ranges, asked_at, now)
    return _lost(outbox, source, lost, RETRACTED_REMEDY) if lost else None


def _lost(outbox: Outbox, source: RMSource, lost: Ranges, remedy: str) -> Incident:
    if not (outbox.is_for_replies or outbox.is_for_address):
        outbox.lifecycle.retracted.add(source.identifier or "", lost)
        outbox.save()
    detail = {"key": outbox.key, "to": outbox.to, "messages": numbers_text(lost), "remedy": remedy}
    return Incident(RETRACTED, source.identifier or "", lost[0][0], "error", detail)


def numbers_text(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{lower}-{upper}" if lower < upper else str(lower) for lower, upper in ranges)


def receive_acknowledgement(
    outbox: Outbox, ack: SequenceAcknowledgement, now: float, asked_at: float | None = None
) -> Fault | None:
    """Process a peer's acknowledgement of the outbox's Sequence; return the fault, if any.

    The peer must be allowed to report about the Sequence. ``asked_at``: when the request that it answers was sent,
    None if that is unknown or no evidence of its age, as for a posted acknowledgement.
    """
    source = outbox.source
    assert source is not None, outbox.key
    if source.numbers.known is not None and source.is_outdated_by(ack):
        unproven = hear_of_lost_run(outbox, source, ack, now)
        if unproven:
            outbox.context.effects.append(_lost(outbox, source, unproven, OUTDATED_REMEDY))
        if outbox.source is not source:
            return None
    said = ack
    if source.numbers.is_restored:
        ack = source.numbers.known_part(ack)
        if any(upper > MAX_MESSAGE_NUMBER for _, upper in said.ranges):
            said = ack
    # Before the acknowledgement is processed: it must find the requests of an earlier run.
    source.waiting.named(ack.ranges, source.numbers)
    if outbox.withdrawal is not None:
        outbox.hooks.forwarders.giving_up.acknowledged(outbox, ack)
    if asked_at is None and source.is_valid(ack):
        asked_at = made_after(source, ack)
    # Before the acknowledgement is processed, which may leave nothing in flight. An earlier one may be on its way.
    is_word = asked_at is not None or source.control.attempts > 0 or bool(source.flight)
    was_in_doubt = source.doubt.is_open
    action, newly = source.receive_acknowledgement(ack, now)
    if newly:
        outbox.report(newly, now)
    if was_in_doubt and not source.doubt.is_open:
        outbox.context.commit.save(source.local_id, source)
    if action is SourceAction.RAISE_INVALID_ACKNOWLEDGEMENT:  # WS-RM 4.4
        source.last_fault = INVALID_ACKNOWLEDGEMENT
        return sequence_fault(INVALID_ACKNOWLEDGEMENT, ack.identifier, acknowledgement=ack)
    if is_word and action is not None and source.numbers.is_word_awaited:
        outbox.context.marking.hear(source)
    # A Nack names what is missing, so it retracts nothing.
    if not ack.nacks and action is not None:
        _report_retracted(outbox, source, said, asked_at, now)
    if action is SourceAction.MARK_AND_REPORT:
        outbox.report_rest(source, now, Why(SEQUENCE_CLOSED, "the destination closed the Sequence"))
    outbox.ready()
    return None if action is not None else sequence_fault(UNKNOWN_SEQUENCE, ack.identifier)


def _report_retracted(
    outbox: Outbox, source: RMSource, ack: SequenceAcknowledgement, asked_at: float | None, now: float
) -> None:
    incident = retraction(outbox, source, ack, asked_at, now)
    if incident is not None:
        outbox.context.commit.save(source.local_id, source)
        outbox.context.effects.append(incident)


def receive_fault(outbox: Outbox, fault: Fault, number: int, now: float, relates_to: str | None = None) -> None:
    """Handle a fault about an outbound Sequence: the named one, else the one being sent.

    Args:
        number: The message that it answers; 0 for none, or for a message that only ``relates_to`` names.
        relates_to: The MessageID that it names.
    """
    source = outbox.source
    assert source is not None, outbox.key
    number = number or source.flight.number_of(relates_to)
    event = _event_of(outbox, source, fault, number)
    source.last_fault = fault.code
    source.life.heard(now)
    if (not number or number == source.numbers.last) and _stops(outbox, source, fault.code):
        if not outbox.lifecycle.stopped:
            outbox.stop(fault.code, fault.reason, now)
        return
    # A service that does not know the LastMessage of WS-RM 1.0 refuses nothing of the application's.
    if number and number == source.numbers.last and event in _REFUSALS and not fault.is_rm:
        _last_message_refused(outbox, source, now)
        return
    # A forwarder decides about each refused message; a source stops.
    if outbox.forwarding is not None and number and event in _REFUSALS and not fault.is_rm:
        if fault.code in REFUSES_ACCOUNT:
            source.not_delivered(number, now)
            if not outbox.lifecycle.stopped:  # those that were on their way are refused as well
                outbox.stop(fault.code, fault.reason, now)
            return
        outbox.hooks.forwarders.giving_up.refused(outbox, number, fault, now)
        return
    why = Why(fault.code, fault.reason, number, fault.max_message_number, may_pass(fault))
    outbox.happen(source, event, now, why)
    if event is SourceEvent.OTHER_FAULT and not number:
        _end_refused(outbox, source, now)
        remain_without_word(outbox, source)
    outbox.ready()


def _stops(outbox: Outbox, source: RMSource, code: str) -> bool:
    """Whether a fault on a request or LastMessage of an open Sequence stops the outbox.

    A repeat would be refused again, and brings the account of the credentials nearer to its lock.
    """
    if code in LOCKS_ACCOUNT and source.state in _OPENED and not outbox.is_for_replies:
        return True
    # A question about messages that are not acknowledged.
    return code in REFUSES_ACCOUNT and source.state is SourceState.CREATED and bool(source.flight)


def refused(outbox: Outbox, source: RMSource, number: int, now: float, reason: str) -> None:
    """Handle an answer that this side does not accept, such as a fault without the demanded signature.

    It has no authority over the Sequence. But a destination that gives no other answer to the end of the Sequence would
    be notified of it without end, and one that gives no other answer to CreateSequence asked without end.
    """
    if number and number == source.numbers.last:
        _last_message_refused(outbox, source, now)
    elif not number and source.creation_not_accepted():
        said = f"none of {source.control.refusals} answers to CreateSequence is accepted"
        why = Why(NOT_ACCEPTED, f"{said}: {reason}" if reason else said)
        outbox.happen(source, SourceEvent.CREATE_SEQUENCE_NOT_ACCEPTED, now, why)
    elif not number:
        _end_refused(outbox, source, now)
        remain_without_word(outbox, source)


def _end_refused(outbox: Outbox, source: RMSource, now: float) -> None:
    """Count a refused notification of the end of the Sequence, and end the Sequence after enough of them."""
    if not source.end_refused():
        return
    reason = f"the destination refused the end of the Sequence {source.control.refusals} times"
    outbox.last_answer = reason
    detail = {"key": outbox.key, "to": outbox.to, "refusals": source.control.refusals, "remedy": END_REFUSED_REMEDY}
    incident = Incident("sequence.end_refused", source.identifier or "", level="warning", detail=detail)
    outbox.context.effects.append(incident)
    outbox.happen(source, SourceEvent.UNANSWERED, now, Why("refused", reason))


def _last_message_refused(outbox: Outbox, source: RMSource, now: float) -> None:
    """Handle a fault on LastMessage, or on AckRequested sent instead of it."""
    number = source.numbers.last or 0
    entry = source.flight.get(number)
    if entry is not None:
        source.leave_last_message(number)
        source.not_delivered(number, now)
    outbox.ready()


def _event_of(outbox: Outbox, source: RMSource, fault: Fault, number: int) -> SourceEvent:
    """Return the event of a fault; ``number``: the message concerned, 0 for none."""
    event = event_of(fault, number, source.versions.rm.can)
    if event in _REFUSALS and number in source.acknowledged and number not in source.waiting.unreplied:
        # Metro does so once it closed the Sequence, at times with an encrypted fault whose code is not WS-RM's.
        return SourceEvent.COPY_FAULT
    if event not in _ENDING_FAULTS:
        return event
    if outbox.awaits_certainty():
        return SourceEvent.ENDING_FAULT_EARLY
    is_news = source.last_fault != fault.code
    if is_news and not outbox.needs_decision(source) and outbox.records.first < outbox.records.durable_end:
        detail = {"key": outbox.key, "code": fault.code, "reason": fault.reason}
        incident = Incident("sequence.replaced", source.identifier or "", level="warning", detail=detail)
        outbox.context.effects.append(incident)
    return event


def heard(outbox: Outbox, event: SourceEvent, now: float) -> SourceAction | None:
    """Handle the destination's end of the Sequence, or its answer to ours; return the action."""
    source = outbox.source
    assert source is not None, outbox.key
    source.life.heard(now)
    outbox.ready()
    return outbox.happen(source, event, now, Why(event.value, "the destination ended the Sequence"))


def doubt_remains(outbox: Outbox, source: RMSource, now: float) -> None:
    """Handle a peer that does not report what it has, despite repeated requests.

    It refuses numbers above a limit (CXF answers AckRequested with nothing).
    """
    is_lost = source.doubt.resolve(DoubtEvent.SAYS_NOTHING) is DoubtAction.LOSE
    if is_lost and outbox.withdrawal is not None:
        outbox.hooks.forwarders.giving_up.silent(outbox, source, now)
    elif is_lost:
        why = Why(MESSAGE_NUMBER_ROLLOVER, "the destination does not say what arrived")
        outbox.happen(source, SourceEvent.DOUBT_STAYS, now, why)
    else:
        outbox.context.commit.save(source.local_id, source)


def acknowledged_alone(outbox: Outbox, ack: SequenceAcknowledgement, number: int, now: float) -> None:
    """The answer to message ``number`` is nothing but an acknowledgement of the outbox's Sequence. If it names a
    request, there is no reply and there will be none: they leave together (or, with CXF, the reply was lost for
    good). That is so only once no other exchange carries the request: the reply may come back on that one. Where
    replies go to an address, an answer says nothing of them."""
    source = outbox.source
    if source is None or number not in source.waiting.unreplied or not outbox.context.composer.is_anonymous(source):
        return
    if number in source.waiting.replying or not any(lower <= number <= upper for lower, upper in ack.ranges):
        return
    entry = source.flight.get(number)
    if entry is not None and entry.exchanges:
        return
    if outbox.forwarding is not None:
        outbox.hooks.forwarders.unanswered(outbox, number, now)
        return
    _reply_missing(outbox, source, number, entry.too_large if entry is not None else "", now)


def reply_unproven(outbox: Outbox, number: int, reason: str, now: float) -> None:
    """A reply to request ``number`` is too large to check who sent it, so it is neither believed nor acknowledged, and
    its sender repeats it for ever. The request ends without its reply once the destination has acknowledged it: the
    first of such replies may be another one's, while the right one is on its way."""
    source = outbox.source
    entry = source.flight.get(number) if source is not None else None
    if source is None or entry is None or number not in source.waiting.unreplied or number in source.waiting.replying:
        return
    entry.too_large = reason
    entry.unproven += 1
    if entry.unproven < ANSWERED_ENOUGH or entry.was_lost:
        return
    if outbox.forwarding is not None:
        outbox.hooks.forwarders.unanswered(outbox, number, now)
    else:
        _reply_missing(outbox, source, number, reason, now)


def _reply_missing(outbox: Outbox, source: RMSource, number: int, reason: str, now: float) -> None:
    outbox.context.effects.append(Unanswered(outbox.key, source.waiting.unreplied[number], reason))
    outbox.replied(source, number, now)
