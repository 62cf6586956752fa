"""Sequences with an AcksTo where this side no longer listens: which they are, and how an outbox leaves one.

AcksTo never changes (WS-RM 3.4). But a response goes to the ReplyTo of its request, so CloseSequence still brings the
final acknowledgement (WS-RM 3.5): then it is certain which messages arrived, and the others go in another Sequence.
"""

from __future__ import annotations

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.policy import Delivery
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.states.outbound import SourceEvent, SourceState


def earlier_address(outbox: Outbox) -> str:
    """Return the address that the destination was given for its answers, if it is not this side's any more; else ""."""
    source = outbox.source
    if source is None or outbox.forwarding is not None or source.acks_to == outbox.context.local:
        return ""
    return source.acks_to


def leave_earlier_address(outbox: Outbox, source: RMSource, now: float) -> None:
    """Let another Sequence follow a recovered one with an earlier address, if no message can arrive twice by that.

    Call it once, after recovery, when the requests that an earlier run transmitted are known.
    """
    source.is_recovered = False
    numbers = source.numbers
    if not earlier_address(outbox) or source.state not in (SourceState.NONE, SourceState.CREATING, *_OPEN):
        return  # one that ends needs no AcksTo
    if source.state not in _OPEN:
        outbox.drop(now)  # nothing has left in it
        outbox.ready()
        return
    is_sure = not outbox.records.in_doubt()
    if not is_sure and outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE:
        outbox.drop(now)
        outbox.ready()
    elif is_sure or _may_close(source):
        # It ends with what an earlier run may have transmitted. Later messages go in the next Sequence.
        numbers.limit = min(numbers.limit, max(numbers.highest_sent, min(numbers.sent_before, numbers.available)))
        source.want_end()
        if not is_sure:
            outbox.happen(source, SourceEvent.ADDRESS_CHANGED, now)
            # Durable before the destination learns of it, or a crash would add messages to a closed Sequence.
            outbox.context.commit.then(lambda at: _tell(outbox, source, at))
        outbox.context.commit.save(source.local_id, source)


_OPEN = (SourceState.CREATED, SourceState.ROLLOVER)


def _may_close(source: RMSource) -> bool:
    """Whether the final acknowledgement settles all doubts. It does not say where the reply to a request is, and a
    destination may discard what it has accepted behind a gap."""
    is_settled = source.behavior is IncompleteSequenceBehavior.NO_DISCARD and not source.doubt.is_open
    return source.versions.rm.can.closes and is_settled and not (source.waiting.before or source.waiting.unreplied)


def _tell(outbox: Outbox, source: RMSource, now: float) -> None:
    if outbox.source is source and source.state is SourceState.CLOSING:
        source.control.begin(now)
        outbox.ready()
