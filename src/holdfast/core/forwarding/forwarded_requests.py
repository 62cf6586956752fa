"""Forwarding: what comes of messages that are sent on. Replies go back to who asked, in the batch that takes them.

A forwarded request has a MessageID of ours (:meth:`Outbox.message_id`), by which its reply finds it. The reply is no
message of a queue: :class:`Replies` keeps it where a handler's reply would be kept, with what says that it came. So
after a crash either both are there, or the destination is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.events import Incident
from holdfast.core.faults import no_reply
from holdfast.core.forwarding.undeliverable import GivingUp
from holdfast.core.messages import Envelope, Fault
from holdfast.core.queues.dead_letters import DeadLetters, Letter
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outbox import Outbox
from holdfast.core.versions import Addressing

_NO_REPLY = no_reply("The service received the request and sent no reply.")


def tell_requesters(
    outbound: Outbound,
    replies: Replies,
    outbox: Outbox,
    records: list[tuple[int, Record]],
    told: Callable[[Record], Record | None],
    now: float,
) -> None:
    """Reply to the requests among records that a forwarder is about to give up, unless another forwarder still has
    them to send. To be called in the batch that gives them up.

    Args:
        outbound: Every outbox.
        replies: Where replies go.
        outbox: The forwarder's. Nobody here waits for replies to what an application sends.
        records: With their offsets.
        told: Makes what is replied.
        now: Seconds.
    """
    if outbox.forwarding is None:
        return
    others = [
        one
        for one in outbound.outboxes.values()
        if one.queue is outbox.queue and one.partition == outbox.partition and one is not outbox
    ]
    for offset, record in records:
        is_owed = record.wants_reply and not outbox.is_acknowledged(offset)
        if is_owed and all(one.is_acknowledged(offset) for one in others):
            replies.reply(record, told(record), now)


class Forwarding:
    """What forwarders know of those whose messages they send on.

    Args:
        letters: Where goes what is given up.
        seal, unseal: A letter as the record that is kept, and back.
        tell: A fault as the reply to a request, in that version of WS-Addressing; None for one that wants no reply.
    """

    def __init__(
        self,
        letters: DeadLetters,
        *,
        seal: Callable[[Letter], Record],
        unseal: Callable[[Record], Letter],
        tell: Callable[[Record, Fault, Addressing], Record | None],
    ) -> None:
        self._tell = tell
        self.giving_up = GivingUp(letters, seal, unseal, tell)

    def join(self, outbound: Outbound, replies: Replies) -> None:
        """Say who sends messages on, and who takes replies."""
        self._outbound = outbound
        self._replies = replies
        outbound.forwarders = self
        self.giving_up.join(outbound, replies)

    def has(self, outbox: Outbox, number: int, again: Callable[[float], None]) -> bool:
        """Whether the request that is message ``number`` is in memory; if not, ``again(now)`` is called when it was
        read. What came for it is then received as if it came just now."""
        source = outbox.source
        assert source is not None, (outbox.key, number)
        return self._outbound.reading.has(outbox, source, number, again)

    def replied(self, outbox: Outbox, number: int, envelope: Envelope, now: float) -> None:
        """The reply to message ``number``, which is in memory, goes to the requester with the open batch."""
        request = outbox.here[outbox.offset_of(number)]
        self._outbound.receive_reply(outbox, number)
        self._replies.reply(request, self._reply(request, envelope, now), now)

    def may_be_reply(self, query: Record, envelope: Envelope, now: float) -> bool:
        """Take the reply to a forwarded message that awaits none, from the answer to that message: its sender may send
        it again to ask for the reply. Whether it is one, and is kept."""
        if envelope.relates_to != query.message_id:
            return False
        reply = self._reply(query, envelope, now)
        return reply is not None and self._replies.keep(query, reply, now)

    def _reply(self, request: Record, envelope: Envelope, now: float) -> Record | None:
        fault, addressing = envelope.fault, self._replies.addressing_of(request)
        if fault is not None and (
            envelope.soap.value != request.soap or (fault.is_addressing and envelope.addressing is not addressing)
        ):
            return self._tell(request, fault, addressing)  # the requester would not understand it as it is
        headers = b"".join(envelope.headers)
        return Record("", 0, envelope.action, envelope.body, now, soap=envelope.soap.value, headers=headers)

    def unanswered(self, outbox: Outbox, number: int, now: float) -> None:
        """The destination has the request that is message ``number``, and will send no reply: a fault tells the
        requester."""
        source = outbox.source
        if source is None or number not in source.unreplied or number in source.replying:
            return  # while its request was read
        if number > source.limit:
            return  # it is asked for again in the next Sequence
        if self.has(outbox, number, partial(self.unanswered, outbox, number)):
            request = outbox.here[outbox.offset_of(number)]
            self._outbound.receive_reply(outbox, number)
            detail = {"action": request.action, "forwarder": outbox.key}
            told = Incident("request.no_reply", request.sequence, request.message_number, "warning", detail)
            self._outbound.effects.append(told)
            fault = self._tell(request, _NO_REPLY, self._replies.addressing_of(request))
            self._replies.reply(request, fault, now)
