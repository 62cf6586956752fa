"""Forwarded requests, and the replies that return to their requesters.

A forwarded request has a MessageID made here (:meth:`Outbox.message_id`), by which its reply finds it. The reply is no
message of a queue: :class:`Replies` stores it like a handler's reply, in one batch with its receipt. After a crash
either both are present, or the destination is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.events import Incident
from holdfast.core.faults import TOO_LARGE_FOR_BROKER, no_reply
from holdfast.core.forwarding.undeliverable import UndeliverableMessages
from holdfast.core.messages import Envelope, Fault
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Addressing

_NO_REPLY = no_reply("The service received the request and sent no reply.")


def tell_requesters(
    registry: OutboxRegistry,
    replies: Replies,
    outbox: Outbox,
    records: list[tuple[int, Record]],
    told: Callable[[Record], Record | None],
    now: float,
) -> None:
    """Reply to the requests among records that a forwarder is about to discard.

    A request that another forwarder still has to send gets no reply. Call this in the batch that discards them.

    Args:
        outbox: The forwarder's outbox. An application's outbox has no requesters here.
        told: Makes the reply.
    """
    if outbox.forwarding is None:
        return
    # Several forwarders may carry one record: the requester hears of a failure only when none is left.
    others = [one for one in registry.outboxes.values() if one.records.shares_partition(outbox.records)]
    for offset, record in records:
        is_owed = record.wants_reply and not outbox.records.is_acknowledged(offset)
        if is_owed and all(one.records.is_acknowledged(offset) for one in others):
            replies.reply(record, told(record), now)


class ForwardedRequests:
    """Connection between forwarders and the requesters of their messages.

    Args:
        tell: Makes the reply that carries a fault, in that version of WS-Addressing; None if no reply is wanted.
        replies: Receives replies to requests.
    """

    def __init__(
        self,
        letters: DeadLetters,
        tell: Callable[[Record, Fault, Addressing], Record | None],
        registry: OutboxRegistry,
        replies: Replies,
    ) -> None:
        self._tell = tell
        self._registry = registry
        self._replies = replies
        self.giving_up = UndeliverableMessages(letters, tell, registry, replies)

    def has(self, outbox: Outbox, number: int, again: Callable[[float], None]) -> bool:
        """Whether request ``number`` is in memory; if not, ``again(now)`` follows its read.

        The answer to it is then received as if it arrived just now.
        """
        source = outbox.source
        assert source is not None, (outbox.key, number)
        return self._registry.reading.has(outbox, source, number, again)

    def replied(self, outbox: Outbox, number: int, envelope: Envelope, now: float) -> None:
        """Send the reply to message ``number``, which is in memory, with the open batch."""
        request = outbox.records.here[outbox.records.offset_of(number)]
        # The receipt of the reply and its way to the requester are in one batch.
        outbox.receive_reply(number)
        self._replies.reply(request, self._reply(request, envelope, now), now)

    def may_be_reply(self, query: Record, envelope: Envelope, now: float) -> bool:
        """Store a reply to a forwarded message that awaits none; return whether it is one.

        It comes in the answer to that message. The message's sender may repeat it to request the reply.
        """
        # Both may be None: gSOAP's requests may have no MessageID, and its answers no RelatesTo.
        if envelope.relates_to != query.message_id:
            return False
        reply = self._reply(query, envelope, now)
        return reply is not None and self._replies.keep(query, reply, now)

    def _reply(self, request: Record, envelope: Envelope, now: float) -> Record | None:
        fault, addressing = envelope.fault, self._replies.addressing_of(request)
        # Another version of SOAP or WS-Addressing has other fault codes: the requester gets the same fault in its own.
        if fault is not None and (
            envelope.soap.value != request.soap or (fault.is_addressing and envelope.addressing is not addressing)
        ):
            return self._tell(request, fault, addressing)  # the requester would not understand it unchanged
        headers = b"".join(envelope.headers)
        soap, attachments = envelope.soap.value, envelope.attachments
        reply = Record("", 0, envelope.action, envelope.body, now, soap=soap, headers=headers, attachments=attachments)
        reply.fault_to = request.fault_to if fault is not None else None
        return reply

    def unanswered(self, outbox: Outbox, number: int, now: float) -> None:
        """Answer a request that the destination has and will not reply to with a fault."""
        source = outbox.source
        if source is None or number not in source.waiting.unreplied or number in source.waiting.replying:
            return  # while its request was read
        if number > source.numbers.limit:
            return  # it is requested again in the next Sequence
        if self.has(outbox, number, partial(self.unanswered, outbox, number)):
            request = outbox.records.here[outbox.records.offset_of(number)]
            entry = source.flight.get(number)
            reason = entry.too_large if entry is not None else ""
            outbox.receive_reply(number)
            detail = {"action": request.action, "forwarder": outbox.key} | ({"reason": reason} if reason else {})
            told = Incident("request.no_reply", request.sequence, request.message_number, "warning", detail)
            self._registry.effects.append(told)
            fault = self._tell(
                request, TOO_LARGE_FOR_BROKER if reason else _NO_REPLY, self._replies.addressing_of(request)
            )
            self._replies.reply(request, fault, now)
