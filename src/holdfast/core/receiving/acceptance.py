"""Acceptance of application messages, and the answers to rejected ones.

The inbound half stores an accepted message; :class:`Replies` answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from holdfast.core.events import BackChannel, Incident
from holdfast.core.faults import (
    ACTION_NOT_SUPPORTED,
    ONLY_ANONYMOUS_ADDRESS_SUPPORTED,
    TELLS_OF_END,
    UNKNOWN_SEQUENCE,
    addressing_fault,
    no_reply,
    not_reliable,
    not_understood,
    sequence_fault,
)
from holdfast.core.messages import NONE_EPR, Envelope, Expects, Fault, LastMessage, Routed
from holdfast.core.origin import Origin
from holdfast.core.protocol_settings import MessageRules
from holdfast.core.receiving.acknowledgements import Acknowledgements, asks
from holdfast.core.receiving.answers import AnswerSender, fault_fields
from holdfast.core.receiving.authority import Authority
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.receiving.inbound_sequences import record_of
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.receiving.replies import Replies
from holdfast.core.rm_destination.destination import RMDestination, Verdict
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.hooks import Forwarders
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.states.inbound import SettlingAction, SettlingEvent
from holdfast.core.versions import Addressing

_NEW = Verdict.NEW  # an enum's members are slow to look up by its class


def _wants_reply(envelope: Envelope) -> bool:
    # A reply needs a MessageID to relate to (WS-Addressing core, 3.4). A message that relates to another is a reply
    # itself.
    if envelope.reply_to is None or envelope.message_id is None or envelope.relates_to is not None:
        return False
    return not envelope.reply_to.is_none


_NOBODY_REPLIES = no_reply("The message was accepted. No service here replies to requests.")


def _takes_fault(envelope: Envelope) -> bool:
    """Whether the sender of a rejected message wants a fault: without a FaultTo it goes to ReplyTo."""
    target = envelope.fault_to or envelope.reply_to
    return not (target is not None and target.is_none)


@dataclass(slots=True, eq=False)
class _Message:
    """A message with a Sequence header, and what is decided about it before it is stored.

    Args:
        back_channel: Where its answer goes; None: nowhere.
        problem: The fault for another of its headers.
        is_application: Whether the application gets it; LastMessage has no body.
        request: The outbox and the number of this endpoint's request that it answers.
        is_for_others: Whether a requester behind a forwarder receives it.
        refused: Why the application does not take it.
        awaits_reply: Whether its sender waits for a reply.
        is_unanswered: Whether its sender waits for a reply that no handler of this endpoint creates.
    """

    envelope: Envelope
    back_channel: BackChannel | None
    problem: Fault | None
    destination: RMDestination
    number: int
    is_application: bool
    request: tuple[Outbox, int] | None = None
    is_for_others: bool = False
    refused: Fault | None = None
    awaits_reply: bool = False
    is_unanswered: bool = False


class Acceptance:
    """Accepts application messages, or rejects them."""

    def __init__(
        self,
        inbound: Inbound,
        outbound: Outbound,
        authority: Authority,
        replies: Replies,
        acknowledging: Acknowledgements,
        answering: AnswerSender,
        forwarders: Forwarders | None,
        rules: MessageRules,
    ) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._authority = authority
        self._replies = replies
        self._acknowledging = acknowledging
        self._answering = answering
        self._forwarders = forwarders
        self._commit = inbound.commit
        self._effects = inbound.effects
        self._accepts = rules.accepts
        self._replies_to = rules.replies
        self._always_replies = rules.always_replies
        self._unrequested = rules.unrequested

    def refuses_within_sequence(self, envelope: Envelope, back_channel: BackChannel | None) -> bool:
        """Whether a fault about this message is a reply in the offered Sequence, and the message itself is accepted.

        WCF's server does so, and its client ends the whole session for a fault outside the Sequence. A one-way message
        with a MessageID is refused outside: its sender can relate the fault to it, and keeps the message.
        """
        # Without a back-channel no exchange waits for the answer.
        if back_channel is None or envelope.sequence is None or envelope.control is not None or envelope.relates_to:
            return False
        destination = self._inbound.destinations.get(envelope.sequence.identifier)
        if destination is None or destination.offered is None:
            return False
        return envelope.message_id is None or _wants_reply(envelope)

    def receive(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, problem: Fault | None, origin: Origin
    ) -> None:
        """Receive a message with a Sequence header.

        ``problem`` is the fault for another of its headers. If only one answer is possible, the message's own fault
        comes before it, and it comes before an acknowledgement and before a reply that takes time: that reply is
        stored, and answers a repeat.
        """
        sequence = envelope.sequence
        assert sequence is not None
        destination = self._inbound.destinations.get(sequence.identifier)
        # A Sequence belongs to the version that created it: in any other its Identifier is unknown (WS-RM 4.3).
        if destination is None or envelope.rm is not destination.versions.rm:
            self._answering.fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, sequence.identifier), back_channel)
            return
        is_application = not isinstance(envelope.control, LastMessage)
        message = _Message(envelope, back_channel, problem, destination, sequence.message_number, is_application)
        request = message.request = self.request_of(envelope, origin, destination.identifier)
        is_passed_on = request is not None and request[0].forwarding is not None
        message.is_for_others = is_passed_on or self._outbound.is_offered_by_forwarder(destination.identifier)
        refused = message.refused = self._refusal(message)
        if refused is not None and not self.refuses_within_sequence(envelope, back_channel):
            # Outside the Sequence, so the number is not accepted: the source keeps the message.
            self._answering.fault(envelope, refused, back_channel)
            return
        # The reply's place depends on its request, which may have to be read: then this message is received again.
        if request is not None and is_passed_on:
            again = partial(self.receive, envelope, back_channel, problem=problem, origin=origin)
            if not request[0].hooks.forwarders.has(*request, again):
                return  # its request is being read
        self._see_what_it_awaits(message)
        is_unasked = request is None and self._is_unasked(envelope, origin)
        is_kept = refused is None and not message.is_for_others and not is_unasked
        is_request = message.awaits_reply or message.is_unanswered
        verdict = self._inbound.receive(
            destination,
            envelope,
            is_request,
            back_channel if problem is None else None,  # its fault takes the one response
            now,
            is_kept=is_kept,
            is_answered=message.is_unanswered,
            may_reply=is_request and self._replies.outboxes.have_room(destination, envelope),
        )
        if verdict is _NEW:
            is_expected = self._accepted(message, now) or is_kept or not is_application
            if not (is_expected or self._is_reply_kept(envelope, origin, now)):
                self._tell_of_unasked(envelope)
        elif isinstance(verdict, Fault):
            self._refuse(envelope, verdict, back_channel, destination, now)
        elif verdict is Verdict.DUPLICATE:
            # Not a fault (WS-RM 3.9): its acknowledgement may be lost, so it is acknowledged again.
            told = Incident("message.duplicate_dropped", destination.identifier, message.number, "debug")
            self._effects.append(told)
            self._replies.again(destination, message.number, back_channel, now, asked=asks(envelope, destination))
        else:
            self._not_held(message, now)

    def _refusal(self, message: _Message) -> Fault | None:
        """Return why the application does not take a message that is not accepted yet, None if it does."""
        # A number that was accepted is answered as before, whatever the rules are by now.
        if not message.is_application or message.number in message.destination.accepted:
            return None
        refused = self._check_application_message(message.envelope, message.destination.party)
        if refused is None and message.request is None and not message.is_for_others:
            # A reply goes to its requester, whatever the routes are.
            return message.envelope.routed if isinstance(message.envelope.routed, Fault) else None
        return refused

    def _see_what_it_awaits(self, message: _Message) -> None:
        envelope, destination, is_refused = message.envelope, message.destination, message.refused is not None
        if isinstance(envelope.routed, Routed) and envelope.routed.expects is Expects.ONE_WAY:
            envelope.reply_to = NONE_EPR  # the operator knows better than the message
        if message.back_channel is None or message.is_for_others:
            # No exchange of this side waits for an answer, or the requester behind the forwarder does.
            return
        if message.is_application:
            message.awaits_reply = _takes_fault(envelope) if is_refused else self._awaits_reply(envelope, destination)
        if not is_refused and not message.awaits_reply:
            message.is_unanswered = self._leaves_waiting(envelope, destination)

    def _accepted(self, message: _Message, now: float) -> bool:
        """Answer a new message, in the open batch; return whether this endpoint refused it, or waited for it."""
        envelope, destination = message.envelope, message.destination
        if message.problem is not None:
            answer = partial(self._answer_problem, envelope, message.problem, message.back_channel, destination)
            # The fault may acknowledge the message, so it waits until the message is durable.
            self._commit.then(answer)
        if message.refused is not None:
            fields = fault_fields(envelope, message.refused)
            told = Incident("message.refused", destination.identifier, message.number, "warning", fields)
            self._effects.append(told)
            self._replies.refuse(destination, envelope, message.refused, now)
        elif message.is_unanswered:
            self._replies.tell_of_none(destination, message.number, envelope.action)
            self._replies.refuse(destination, envelope, _NOBODY_REPLIES, now)
        if message.request is None:
            # A refused message has been reported already, so it is not unasked.
            return message.refused is not None
        outbox, number = message.request
        if outbox.forwarding is not None:
            outbox.hooks.forwarders.replied(outbox, number, envelope, now)
        else:
            # In the batch that stores the reply: after a crash either both are there, or the request is repeated.
            outbox.receive_reply(number)
        return True

    def _not_held(self, message: _Message, now: float) -> None:
        envelope, destination, back_channel = message.envelope, message.destination, message.back_channel
        self._effects.append(Incident("message.not_held", destination.identifier, message.number, "debug"))
        is_request = message.awaits_reply or message.is_unanswered
        if message.problem is not None:
            self._answer_problem(envelope, message.problem, back_channel, destination, now)
        elif is_request or not (destination.offered is None or asks(envelope, destination)):
            # A requester must not take an acknowledgement for its reply, and .NET expects the message itself in it.
            self._answering.done(back_channel)
        else:
            self._acknowledging.acknowledge(destination, back_channel, now)

    def _leaves_waiting(self, envelope: Envelope, destination: RMDestination) -> bool:
        """Whether a message that gets no reply is a request with a sender that needs one.

        A fault then informs the sender. A one-way message has no ReplyTo, or the address none (WCF, CXF, Sandesha2). A
        message that names the anonymous address in a Sequence without an Offer may be one-way, and its acknowledgement
        is a sufficient answer.
        """
        return _wants_reply(envelope) and _takes_fault(envelope) and self._is_depended_on(envelope, destination)

    def _is_depended_on(self, envelope: Envelope, destination: RMDestination) -> bool:
        assert envelope.reply_to is not None
        return self._replies.are_depended_on(destination, envelope.reply_to.address)

    def _is_unasked(self, envelope: Envelope, origin: Origin) -> bool:
        """Whether nothing here reads the message, which answers no request."""
        # Without that rule, every message goes into the queue except a late reply.
        if self._unrequested is None:
            return self._is_late(envelope, origin)
        envelope.routed = self._unrequested(envelope)
        return envelope.routed is None

    def _is_late(self, envelope: Envelope, origin: Origin) -> bool:
        """Whether it is a late reply to a forwarded request that is already answered.

        It was posted to an address for replies only, so it is no message for the queue.
        """
        return bool(origin.secret) and envelope.relates_to is not None and self._outbound.is_forwarding

    def _is_reply_kept(self, envelope: Envelope, origin: Origin, now: float) -> bool:
        query = origin.query
        if query is None or self._forwarders is None:
            return False
        return self._forwarders.may_be_reply(query, envelope, now)

    def _tell_of_unasked(self, envelope: Envelope) -> None:
        sequence = envelope.sequence
        assert sequence is not None
        if not envelope.fault:
            incident = Incident("message.unsolicited_dropped", sequence.identifier, sequence.message_number)
            self._effects.append(incident)

    def request_of(self, envelope: Envelope, origin: Origin, identifier: str = "") -> tuple[Outbox, int] | None:
        if envelope.relates_to is None:
            return None  # most messages: they pay for no search
        # A reply counts as the acknowledgement of its request, so only a peer that may acknowledge may send it.
        may_answer = partial(self._authority.may_speak, origin=origin)
        return self._outbound.request_of(envelope.relates_to, may_answer, identifier)

    def _refuse(
        self, envelope: Envelope, fault: Fault, back_channel: BackChannel | None, destination: RMDestination, now: float
    ) -> None:
        """Answer a rejected message.

        A source that receives this fault does not return, and abandons requests without a reply. The end and every
        reply must therefore be durable first.
        """
        # Only a fault that reveals the end must wait for it. A fault about the number alone is sent while replies are
        # made.
        is_for_end = fault.code in TELLS_OF_END
        action = destination.handle_end(SettlingEvent.REFUSED if is_for_end else SettlingEvent.REFUSED_FOR_ITSELF)
        if action is SettlingAction.WAIT:
            # Decided again then: the end that is durable determines the answer.
            self._commit.then(partial(self._refuse, envelope, fault, back_channel, destination))
        elif action is SettlingAction.SAY_NOTHING:
            self._answering.done(back_channel)
        elif action is SettlingAction.ANSWER:
            self._answering.fault(envelope, fault, back_channel, destination)

    def _answer_problem(
        self, envelope: Envelope, fault: Fault, back_channel: BackChannel | None, destination: RMDestination, now: float
    ) -> None:
        # WS-RM 3.2: the message is processed as without that header
        if back_channel is None:
            return
        sequence = envelope.sequence
        assert sequence is not None
        # The fault takes the only response, so it carries the acknowledgement, if the message is durable by now.
        is_acknowledged = destination.acks_to.is_answered and sequence.message_number in destination.acknowledged
        acknowledgements = (destination.acknowledgement(),) if is_acknowledged else ()
        self._answering.fault(envelope, fault, back_channel, acknowledgements=acknowledgements)

    def _check_application_message(self, envelope: Envelope, party: str) -> Fault | None:
        # SOAP 1.2 part 1, 2.6: mandatory headers are checked before anything else.
        if envelope.not_understood:
            return not_understood(envelope.not_understood)
        if not self._accepts(envelope.action):
            reason = f"No handler here takes the action {envelope.action!r}."
            return addressing_fault(ACTION_NOT_SUPPORTED, reason, action=envelope.action)
        if envelope.reply_to is None and envelope.fault_to is None:
            return None
        reason = self._answering.addresses.refusal(envelope.reply_to, envelope.fault_to)
        reason = reason or self._outbound.context.mailboxes.refusal(party, envelope.reply_to, envelope.fault_to)
        if not reason:
            return None
        # The fault names the header at fault, and a bad ReplyTo comes first.
        is_of_reply = bool(self._answering.addresses.refusal(envelope.reply_to))
        header = "ReplyTo" if is_of_reply or envelope.fault_to is None else "FaultTo"
        return addressing_fault(ONLY_ANONYMOUS_ADDRESS_SUPPORTED, reason, header=header)

    def _awaits_reply(self, envelope: Envelope, destination: RMDestination) -> bool:
        routed = envelope.routed
        if isinstance(routed, Routed) and routed.expects is Expects.REQUEST:
            return envelope.relates_to is None and (envelope.reply_to is None or not envelope.reply_to.is_none)
        if isinstance(routed, Routed) and routed.replied is not None:
            # Without a ReplyTo it may be a request all the same (Sandesha2, gSOAP): it is acknowledged at once, and a
            # reply that comes waits for a repeat of it (:meth:`Replies.keep`).
            if not (routed.replied and _wants_reply(envelope)):
                return False
            return not routed.replies_at_once or self._is_depended_on(envelope, destination)
        # One-way messages of WCF have neither MessageID nor ReplyTo, CXF's say ReplyTo none or nothing (2004/08). But
        # no ReplyTo is an anonymous one in WS-Addressing 1.0 (core, section 3.2), and gSOAP's requests may have
        # neither of the two: then only the operation tells, unless its sender has named a ReplyTo for another.
        if _wants_reply(envelope):
            destination.asks_by_reply_to = True
            return self._replies_to(envelope.action)
        if envelope.relates_to is not None or (envelope.reply_to is not None and envelope.reply_to.is_none):
            return False
        # A two-way WCF client names one in every request, so its session needs no request before that is known.
        asks_by_reply_to = destination.asks_by_reply_to or destination.is_kept_alive
        is_open = envelope.addressing is Addressing.V2005_08 and not asks_by_reply_to
        return is_open and self._always_replies(envelope.action)

    def receive_plain(self, incoming: Incoming) -> None:
        """Receive a message without a Sequence header.

        It is a reply to this endpoint's request from a peer that was offered no Sequence, or comes from an unknown
        peer.
        """
        envelope, back_channel = incoming.envelope, incoming.back_channel
        # It came in a response of this side's destination, which is never answered.
        if back_channel is None and envelope.relates_to is not None:
            asked = self.request_of(envelope, incoming.origin)
            if asked is not None:
                self._receive_plain_reply(incoming, *asked)
            elif envelope.body:
                self._is_reply_kept(envelope, incoming.origin, incoming.now)
            return
        if envelope.acknowledgements or envelope.ack_requested:
            self._acknowledging.answer(incoming)
        elif back_channel is not None:
            self._answering.fault(envelope, not_reliable(envelope.action, envelope.addressing), back_channel)

    def _receive_plain_reply(self, incoming: Incoming, outbox: Outbox, number: int) -> None:
        envelope = incoming.envelope
        if outbox.forwarding is not None:
            if outbox.hooks.forwarders.has(outbox, number, partial(self._receive_plain_again, incoming)):
                outbox.hooks.forwarders.replied(outbox, number, envelope, incoming.now)
            return
        outbox.receive_reply(number)
        self._inbound.take_plain(record_of(None, envelope, False, incoming.now))

    def _receive_plain_again(self, incoming: Incoming, now: float) -> None:
        incoming.now = now
        self.receive_plain(incoming)
