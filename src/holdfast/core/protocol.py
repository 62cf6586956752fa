"""RMProtocol: all Sequences of one side. The one door to the core.

Four inputs: a call (``submit``, ``handling.handled`` ...), a message (``receive``, ``received``, ``failed``), records
that were asked for (``records_read``), the timer (``pump``). Three outputs, to be taken after every input:
``take_effects``, ``take_batch`` (then ``batch_durable`` once the store has it), and ``deadline``, when ``pump`` wants
to be called next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.acknowledging import Acknowledging
from holdfast.core.addresses import Addresses
from holdfast.core.commit import GroupCommit
from holdfast.core.destination import RMDestination, Verdict
from holdfast.core.ending import Ending
from holdfast.core.events import BackChannel, Effect, Incident, ReadWanted, Respond, Transmit
from holdfast.core.faults import (
    ACTION_NOT_SUPPORTED,
    CREATE_SEQUENCE_REFUSED,
    ONLY_ANONYMOUS_ADDRESS_SUPPORTED,
    SEQUENCE_CLOSED,
    TELLS_OF_END,
    UNKNOWN_SEQUENCE,
    WSRM_REQUIRED,
    addressing_fault,
    creation_refused,
    not_understood,
    sequence_fault,
)
from holdfast.core.handling import Handling
from holdfast.core.inbound import Inbound
from holdfast.core.messages import (
    ANONYMOUS,
    ANONYMOUS_EPR,
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    LastMessage,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.outbound import Outbound
from holdfast.core.outbox import Outbox, ReadRecords
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.queues import Queue
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.refusals import refusal
from holdfast.core.replies import Replies, asks
from holdfast.core.states import DestinationAction, DestinationEvent, DestinationState, SourceEvent
from holdfast.core.versions import Addressing, Versions, newest_rm


def _always(_value: str) -> bool:
    return True


def _never(_value: str) -> bool:
    return False


_NEW = Verdict.NEW  # an enum's members are slow to look up by its class
_ACKNOWLEDGE = Acknowledge()  # it says nothing by itself


def _wants_reply(envelope: Envelope) -> bool:
    """Whether a message says that its sender waits for a reply."""
    if envelope.reply_to is None or envelope.message_id is None or envelope.relates_to is not None:
        return False
    return not envelope.reply_to.is_none


class RMProtocol:
    """Both halves of one side, and what ties them: offers, replies, answers.

    Args:
        queue: Where inbound messages go.
        read: Reads records back from the store.
        new_identifier: Makes a URI never used before.
        jitter: A number in [0, 1), another at each call.
        destination_policy: For inbound Sequences.
        source_policy: For outbound Sequences.
        allows: Whether messages may be sent to an address that a peer names; nothing but anonymous by default.
        accepts: Whether the application takes messages with this action.
        replies: Whether the application answers requests with this action; if not, they are acknowledged at once.
        always_replies: Whether this action is a request also where the message says nothing of a reply.
        local: The address the peer can send to; :data:`ANONYMOUS` for a source without a listener.
        handling: The handlers of the queue; None if it has none.
    """

    def __init__(
        self,
        queue: Queue,
        read: ReadRecords,
        new_identifier: Callable[[], str],
        jitter: Callable[[], float],
        *,
        destination_policy: DestinationPolicy | None = None,
        source_policy: SourcePolicy | None = None,
        allows: Callable[[str], bool] = _never,
        accepts: Callable[[str], bool] = _always,
        replies: Callable[[str], bool] = _always,
        always_replies: Callable[[str], bool] = _never,
        local: str = ANONYMOUS,
        handling: Handling | None = None,
    ):
        self.policy = destination_policy or DestinationPolicy()
        self.commit = GroupCommit()
        self.effects: list[Effect] = []
        queue.join(self.commit, self.effects, read)
        self.inbound = Inbound(self.policy, self.commit, self.effects, queue, new_identifier)
        self.outbound = Outbound(
            source_policy or SourcePolicy(),
            self.commit,
            self.effects,
            read,
            new_identifier,
            jitter,
            local,
            self.inbound,
        )
        self.ending = Ending(self.inbound, self.commit, self.effects, new_identifier)
        self.acknowledging = Acknowledging(self.inbound, self.policy, self.effects)
        self.inbound.answers = self.replies = Replies(
            self.inbound, self.outbound, self.acknowledging, self.commit, self.effects, self.policy
        )
        self.handling = handling
        if handling is not None:
            handling.join(self.inbound, self.replies, self.commit, self.effects)
        self._addresses = Addresses(allows)
        self._accepts = accepts
        self._replies = replies
        self._always_replies = always_replies
        self.takes_only_replies = False
        """Whether nobody reads what comes but who asked for it: any other message is acknowledged and not kept."""

    # --- outputs --------------------------------------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        """What is to be done and told, in order; each once."""
        effects = self.effects[:]
        self.effects.clear()
        return effects

    @property
    def wants_commit(self) -> bool:
        """Whether there is a batch to take."""
        return self.commit.is_wanted

    def take_batch(self) -> Batch:
        """The changes so far. Make them durable, in this order, and call :meth:`batch_durable` for each."""
        return self.commit.take()

    def batch_durable(self, now: float) -> None:
        """The oldest batch taken is durable: what waited for it may be said."""
        self.commit.durable(now)
        self.outbound.pump(now)

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        times = (
            self.inbound.deadline(),
            self.outbound.deadline(),
            self.acknowledging.deadline(),
            self.ending.deadline(),
            self.replies.deadline(),
            self.handling.deadline() if self.handling is not None else None,
        )
        return min((time for time in times if time is not None), default=None)

    def records_read(self, wanted: ReadWanted, records: list[tuple[int, Record]], now: float) -> None:
        """The store gave what was asked for: ``(offset, record)``, ascending, as its ``read`` does."""
        wanted.take(records, now)
        self.outbound.pump(now)

    def pump(self, now: float) -> None:
        """Do what is due."""
        self.inbound.pump(now)
        self.ending.pump(now)
        self.acknowledging.pump(now)
        self.replies.pump(now)
        if self.handling is not None:
            self.handling.pump(now)
        self.outbound.pump(now)

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held. Once, before anything else."""
        self.inbound.recover(snapshot, now)
        self.outbound.recover(snapshot, now)
        self.replies.recover(now)

    # --- calls ----------------------------------------------------------------------------------------------------

    def submit(self, outbox: Outbox, record: Record, now: float) -> int:
        """Take over an outbound message; its offset in the outbox. ``Submitted`` follows when it is durable."""
        return self.outbound.submit(outbox, record)

    def end_inbound(self, identifier: str, now: float, *, terminate: bool = False) -> bool:
        """Close an inbound Sequence of our own accord, or terminate it; whether it was there and open."""
        destination = self.inbound.destinations.get(identifier)
        if destination is None or destination.is_over:
            return False
        self.ending.begin(destination, terminate=terminate, now=now)
        return True

    # --- messages -------------------------------------------------------------------------------------------------

    def receive(
        self,
        envelope: Envelope,
        back_channel: BackChannel | None,
        now: float,
        sent: Transmit | None = None,
        party: str = "",
    ) -> None:
        """A message came: as a request (answered on ``back_channel``), or as the answer to what we ``sent``.

        ``party`` says whose it is, for the share that one peer may have of our Sequences; "" if that is not known.
        """
        if envelope.not_understood:
            self._answer_fault(envelope, not_understood(envelope.not_understood), back_channel)
            return
        if back_channel is not None and (not envelope.action or envelope.contradiction):
            refused = refusal(envelope)
            if refused is not None:
                self._answer_fault(envelope, refused, back_channel)
                return
        problem = self._take_acknowledgements(envelope, now)
        if envelope.fault is not None and envelope.sequence is None and not self._is_reply(envelope, back_channel):
            self._receive_fault(envelope, sent, now)
            self._done(back_channel)
            return
        if envelope.sequence is not None and envelope.ack_requested:
            problem = problem or self._requested_beside(envelope, envelope.sequence, now)
        if problem is not None and self._tell_beside(envelope, problem):
            problem = None
        if envelope.sequence is not None:
            self._receive_message(envelope, back_channel, now, problem)
        elif envelope.control is None:
            self._receive_plain(envelope, back_channel, now, problem)
        else:
            self._receive_control(envelope, back_channel, now, problem, party)

    def _take_acknowledgements(self, envelope: Envelope, now: float) -> Fault | None:
        """Every SequenceAcknowledgement of a message; the fault for the first that is bad. What carries it is processed
        as without it (section 3.3)."""
        problem = None
        for acknowledgement in envelope.acknowledgements:
            identifier = acknowledgement.identifier
            if identifier in self.inbound.offered and self.outbound.find(identifier) is None:
                continue  # of replies whose Sequence ended with the requests', which are being ended once more
            fault = self.outbound.receive_acknowledgement(acknowledgement, now)
            problem = problem or fault
            self.replies.acknowledged(identifier, now)
        return problem

    def _tell_beside(self, envelope: Envelope, fault: Fault) -> bool:
        """Tell of a bad header in a message of its own, to where faults go; False if that is only the answer."""
        target = envelope.fault_to or envelope.reply_to
        if target is None or not self._has_address(target):
            return False
        self._answer_fault(envelope, fault, None)
        return True

    @staticmethod
    def _is_reply(envelope: Envelope, back_channel: BackChannel | None) -> bool:
        """Whether a fault without a Sequence is the application's answer to a request: that one is acknowledged with
        it, while a message that the destination itself refuses is not."""
        assert envelope.fault is not None
        answers = back_channel is None and envelope.relates_to is not None
        return answers and not envelope.fault.is_rm and bool(envelope.acknowledgements)

    def received(self, sent: Transmit, envelope: Envelope | None, now: float) -> None:
        """The peer answered what we sent: with a message, or with nothing (``None``: an empty 200 or 202)."""
        if isinstance(sent.envelope.control, TerminateSequence):
            self.outbound.terminate_sent(sent.source, envelope is None, now)
        if envelope is not None:
            self.receive(envelope, None, now, sent)
            if sent.number and isinstance(envelope.control, Acknowledge):
                for acknowledgement in envelope.acknowledgements:
                    self.outbound.acknowledged_alone(acknowledgement, sent.number, now)
        if envelope is None or envelope.fault is None:
            self.outbound.answered(sent, now, was_empty=envelope is None)

    def failed(self, sent: Transmit, now: float) -> None:
        """What we sent did not get an answer."""
        self.outbound.failed(sent, now)

    def _receive_fault(self, envelope: Envelope, sent: Transmit | None, now: float) -> None:
        fault = envelope.fault
        assert fault is not None
        destination = self.inbound.destinations.get(fault.identifier or "")
        if destination is not None and fault.is_rm:
            self.inbound.fault_received(destination, fault.code, now)
        else:
            # A refusal that comes as a message of its own tells by RelatesTo which CreateSequence it is about.
            source = sent.source if sent else envelope.relates_to or ""
            self.outbound.receive_fault(fault, source, sent.number if sent else 0, now, envelope.relates_to)

    # --- application messages -------------------------------------------------------------------------------------

    def _receive_message(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, problem: Fault | None
    ) -> None:
        """A message with a Sequence header.

        ``problem`` is the fault for another of its headers. Where there is but one answer, the message's own fault
        goes before it, and it goes before an acknowledgement and before a reply that takes its time: that is kept, and
        given to a repeat.
        """
        sequence = envelope.sequence
        assert sequence is not None
        destination = self.inbound.destinations.get(sequence.identifier)
        if destination is None or envelope.rm is not destination.versions.rm:
            self._answer_fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, sequence.identifier), back_channel)
            return
        is_application = not isinstance(envelope.control, LastMessage)
        if is_application:
            fault = self._check_application_message(envelope)
            if fault is not None and sequence.message_number not in destination.accepted:
                self._answer_fault(envelope, fault, back_channel)
                return
        awaits_reply = back_channel is not None and is_application and self._awaits_reply(envelope)
        asked = self.outbound.request_of(envelope.relates_to, destination.identifier)
        is_kept = asked is not None or not self.takes_only_replies
        answered = back_channel if problem is None else None
        verdict = self.inbound.receive(destination, envelope, awaits_reply, answered, now, is_kept=is_kept)
        if isinstance(verdict, Fault):
            if destination.is_settling:
                # A source that was told so does not come back: the end must be durable before.
                self.commit.then(partial(self._refuse, envelope, verdict, back_channel, destination))
            else:
                self._refuse(envelope, verdict, back_channel, destination, now)
        elif verdict is _NEW:
            if problem is not None:
                self.commit.then(partial(self._answer_problem, envelope, problem, back_channel, destination))
            if not awaits_reply and back_channel is not None and _wants_reply(envelope):
                assert envelope.reply_to is not None
                reply_to = envelope.reply_to.address
                self.replies.tell_of_none(destination, sequence.message_number, envelope.action, reply_to)
            if asked is not None:
                self.outbound.receive_reply(*asked)
            elif is_application and not is_kept:
                self.effects.append(
                    Incident("unasked message dropped", destination.identifier, sequence.message_number)
                )
        elif verdict is Verdict.DUPLICATE:
            self.effects.append(Incident("duplicate dropped", destination.identifier, sequence.message_number, "debug"))
            self.replies.again(
                destination, sequence.message_number, back_channel, now, asked=asks(envelope, destination)
            )
        else:
            self.effects.append(Incident("message not held", destination.identifier, sequence.message_number, "debug"))
            if problem is not None:
                self._answer_problem(envelope, problem, back_channel, destination, now)
            elif destination.offered is None or asks(envelope, destination):
                self.acknowledging.acknowledge(destination, back_channel, now)
            else:
                self._done(back_channel)  # .NET: no acknowledgement that leaves out what it answers

    def _refuse(
        self, envelope: Envelope, fault: Fault, back_channel: BackChannel | None, destination: RMDestination, now: float
    ) -> None:
        """Answer a message that is not accepted; its Sequence may have ended, which is not told before it may be."""
        has_ended = fault.code in TELLS_OF_END and destination.state is not DestinationState.CREATED
        if has_ended and not destination.may_tell_end:
            self._done(back_channel)
        else:
            self._answer_fault(envelope, fault, back_channel, destination)

    def _answer_problem(
        self, envelope: Envelope, fault: Fault, back_channel: BackChannel | None, destination: RMDestination, now: float
    ) -> None:
        """Answer a message with the fault for a header that it carried, and acknowledge it in that if it may be."""
        if back_channel is None:
            return
        sequence = envelope.sequence
        assert sequence is not None
        is_acknowledged = destination.acks_to.is_anonymous and sequence.message_number in destination.acknowledged
        acknowledgements = (destination.acknowledgement(),) if is_acknowledged else ()
        self._answer_fault(envelope, fault, back_channel, acknowledgements=acknowledgements)

    def _check_application_message(self, envelope: Envelope) -> Fault | None:
        if not self._accepts(envelope.action):
            reason = f"No handler here takes the action {envelope.action!r}."
            return addressing_fault(ACTION_NOT_SUPPORTED, reason)
        reason = self._addresses.refusal(envelope.reply_to, envelope.fault_to)
        return addressing_fault(ONLY_ANONYMOUS_ADDRESS_SUPPORTED, reason) if reason else None

    def _awaits_reply(self, envelope: Envelope) -> bool:
        # One-way messages of WCF have neither MessageID nor ReplyTo, CXF's say ReplyTo none or nothing (2004/08). But
        # no ReplyTo is an anonymous one in WS-Addressing 1.0 (core, section 3.2), and gSOAP's requests may have
        # neither of the two: then only the operation tells.
        if _wants_reply(envelope):
            return self._replies(envelope.action)
        if envelope.relates_to is not None or (envelope.reply_to is not None and envelope.reply_to.is_none):
            return False
        return envelope.addressing is Addressing.V2005_08 and self._always_replies(envelope.action)

    def _receive_plain(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, problem: Fault | None
    ) -> None:
        """No Sequence header: a reply to a request of ours from a peer that was offered no Sequence, or a stranger."""
        if back_channel is None and envelope.relates_to is not None:
            asked = self.outbound.request_of(envelope.relates_to)
            if asked is not None:
                self.outbound.receive_reply(*asked)
                record = Record("", 0, envelope.action, envelope.body, now, envelope.message_id, envelope.to)
                record.relates_to = envelope.relates_to
                record.soap = envelope.soap.value
                self.inbound.take_plain(record)
            return
        if envelope.acknowledgements or envelope.ack_requested:
            self._answer_ack_requested(envelope, back_channel, now, problem)
        elif back_channel is not None:
            if envelope.addressing is Addressing.V2004_08:
                reason = "Only messages with WS-ReliableMessaging headers are taken here."
                fault = addressing_fault(ACTION_NOT_SUPPORTED, reason)
            else:
                fault = sequence_fault(WSRM_REQUIRED)
            self._answer_fault(envelope, fault, back_channel)

    # --- RM protocol messages -------------------------------------------------------------------------------------

    def _receive_control(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, problem: Fault | None, party: str
    ) -> None:
        control = envelope.control
        if problem is not None and back_channel is not None and self._has_no_answer_yet(control):
            self._answer_fault(envelope, problem, back_channel)
            back_channel = None
        if isinstance(control, CreateSequence):
            self._create(envelope, control, back_channel, now, party)
        elif isinstance(control, CloseSequence):
            self._close(envelope, control, back_channel, now)
        elif isinstance(control, TerminateSequence):
            self._terminate(envelope, control, back_channel, now)
        elif isinstance(control, Acknowledge | RequestAcknowledgement | LastMessage):
            self._answer_ack_requested(envelope, back_channel, now, problem)
        else:
            self._receive_response(envelope, back_channel, now)

    def _has_no_answer_yet(self, control: Control | None) -> bool:
        """Whether the answer to it may be the fault for another of its headers: it is for the first time that a
        Sequence is ended (a repeat gets its response), and for a response, which has none. A CreateSequence would be
        taken for refused."""
        if isinstance(control, CloseSequence | TerminateSequence):
            destination = self.inbound.destinations.get(control.identifier)
            states = [DestinationState.CREATED]
            if isinstance(control, TerminateSequence):
                states += [DestinationState.CLOSED, DestinationState.TERMINATING]
            return destination is not None and destination.state in states
        return isinstance(control, CreateSequenceResponse | CloseSequenceResponse | TerminateSequenceResponse)

    def _receive_response(self, envelope: Envelope, back_channel: BackChannel | None, now: float) -> None:
        control = envelope.control
        if isinstance(control, CreateSequenceResponse):
            self._created(envelope, control, back_channel, now)
        elif isinstance(control, CloseSequenceResponse):
            self.ending.answered(control.identifier)
            self.outbound.receive_close_response(control.identifier, now)
            self._done(back_channel)
        else:
            assert isinstance(control, TerminateSequenceResponse), control
            self._terminated(control, back_channel, now)

    def _done_then(self, back_channel: BackChannel | None, now: float) -> None:
        self._done(back_channel)

    def _done(self, back_channel: BackChannel | None) -> None:
        if back_channel is not None:
            self.effects.append(Respond(back_channel, None))

    def _create(
        self, envelope: Envelope, create: CreateSequence, back_channel: BackChannel | None, now: float, party: str
    ) -> None:
        destination = self.inbound.repeated(create, envelope.message_id, party)
        if destination is None:
            versions = envelope.versions
            fault = self._check_create(envelope, create)
            if fault is None and versions is not None:
                granted = self.inbound.create(create, versions, envelope.message_id, now, party)
                if isinstance(granted, RMDestination):
                    destination = granted
                else:
                    fault = granted
            if destination is None:
                self._answer_fault(envelope, fault or sequence_fault(CREATE_SEQUENCE_REFUSED), back_channel)
                return
            if create.offer is not None:
                self._accept_offer(envelope, create, destination, now)
        response = self._response(envelope, destination.versions, self.inbound.response(destination))
        self.commit.then(partial(self._respond, envelope.reply_to, back_channel, response))

    def _check_create(self, envelope: Envelope, create: CreateSequence) -> Fault | None:
        reason = ""
        if envelope.versions is None:
            reason = "These versions of WS-ReliableMessaging and WS-Addressing do not go together."
        elif create.acks_to.is_none:
            reason = "AcksTo must be able to receive acknowledgements: it cannot be the address 'none'."
        elif create.offer is not None and create.offer.endpoint is not None and create.offer.endpoint.is_none:
            reason = "The Endpoint of an Offer must be able to receive: it cannot be the address 'none'."
        elif create.offer is not None and self._is_taken(create.offer.identifier):
            reason = f"The offered Identifier {create.offer.identifier} is in use."
        else:
            endpoint = create.offer.endpoint if create.offer is not None else None
            reason = self._addresses.refusal(create.acks_to, envelope.reply_to, endpoint)
        return creation_refused(reason) if reason else None

    def _is_taken(self, identifier: str) -> bool:
        known = (self.outbound.by_identifier, self.inbound.destinations, self.inbound.offered)
        return any(identifier in identifiers for identifiers in known)

    def _accept_offer(self, envelope: Envelope, create: CreateSequence, destination: RMDestination, now: float) -> None:
        offer = create.offer
        assert offer is not None
        # Accept/AcksTo: the request's To, octet for octet, which WCF insists on.
        destination.accept_acks_to = EndpointReference(envelope.to or "") if envelope.to else ANONYMOUS_EPR
        target = offer.endpoint or envelope.reply_to or create.acks_to
        to = None if target.is_anonymous or target.is_none else target.address
        self.replies.accept_offer(destination, to, now)

    def _created(
        self, envelope: Envelope, response: CreateSequenceResponse, back_channel: BackChannel | None, now: float
    ) -> None:
        source = self.outbound.receive_create_response(response, envelope.relates_to, now)
        if source is not None and source.offer is not None:
            offered = RMDestination(source.offer, source.versions, ANONYMOUS_EPR, self.policy, now)
            accept = response.accept_acks_to
            if accept is not None and not accept.is_anonymous:
                offered.acks_to = accept
            self.inbound.add(offered)
        self._done(back_channel)

    def _close(self, envelope: Envelope, close: CloseSequence, back_channel: BackChannel | None, now: float) -> None:
        destination = self.inbound.destinations.get(close.identifier)
        if destination is None:
            if self.outbound.ended_by_peer(close.identifier, SourceEvent.CLOSE_SEQUENCE, now):
                response = self._response(envelope, envelope.versions, CloseSequenceResponse(close.identifier))
                self.commit.then(partial(self._respond, envelope.reply_to, back_channel, response))
            else:
                self._answer_fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, close.identifier), back_channel)
            return
        if destination.handle(DestinationEvent.CLOSE_SEQUENCE) is not DestinationAction.ANSWER_CLOSE:
            self._answer_fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, close.identifier), back_channel)
            return
        response = self._response(envelope, destination.versions, CloseSequenceResponse(close.identifier))
        then = partial(self._respond_final, destination, envelope.reply_to, back_channel, response)
        self.inbound.end(destination, close.last_message_number, then, now, by_source=True)

    def _terminate(
        self, envelope: Envelope, terminate: TerminateSequence, back_channel: BackChannel | None, now: float
    ) -> None:
        destination = self.inbound.destinations.get(terminate.identifier)
        if destination is None:
            self._terminate_outbound(envelope, terminate, back_channel, now)
            return
        destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
        if destination.versions.rm.can.answers_terminate:
            response = self._response(envelope, destination.versions, TerminateSequenceResponse(terminate.identifier))
        elif destination.offered is not None and back_channel is not None:
            # 1.0, two-way: answered by TerminateSequence of the offered Sequence (wcf: it waits for that).
            response = self._envelope(destination.versions)
            response.control = TerminateSequence(destination.offered)
        else:
            done = partial(self._done_then, back_channel)
            self.inbound.end(destination, terminate.last_message_number, done, now, by_source=True)
            return
        then = partial(self._respond_final, destination, envelope.reply_to, back_channel, response)
        self.inbound.end(destination, terminate.last_message_number, then, now, by_source=True)

    def _terminate_outbound(
        self, envelope: Envelope, terminate: TerminateSequence, back_channel: BackChannel | None, now: float
    ) -> None:
        known = self.outbound.ended_by_peer(terminate.identifier, SourceEvent.TERMINATE_SEQUENCE, now)
        if envelope.rm is not None and not envelope.rm.can.answers_terminate:
            self._done(back_channel)
        elif known:
            response = self._response(envelope, envelope.versions, TerminateSequenceResponse(terminate.identifier))
            self.commit.then(partial(self._respond, envelope.reply_to, back_channel, response))
        else:
            self._answer_fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, terminate.identifier), back_channel)

    def _terminated(self, response: TerminateSequenceResponse, back_channel: BackChannel | None, now: float) -> None:
        self.ending.answered(response.identifier)
        destination = self.inbound.destinations.get(response.identifier)
        if destination is not None:
            destination.handle(DestinationEvent.TERMINATE_SEQUENCE_RESPONSE)
            self.inbound.ended_by_source(destination, now)
        self.outbound.receive_terminate_response(response.identifier, now)
        self._done(back_channel)

    def _answer_ack_requested(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, problem: Fault | None
    ) -> None:
        """A message that is nothing but headers: every AckRequested is answered, in one answer where that is so."""
        acknowledgements = []
        versions = envelope.versions
        for requested in envelope.ack_requested:
            destination = self._asked_for(requested.identifier, now)
            if destination is None:
                problem = problem or sequence_fault(UNKNOWN_SEQUENCE, requested.identifier)
            elif destination.acks_to.is_anonymous:
                acknowledgements.append(destination.acknowledgement())
                versions = destination.versions
            else:
                self.acknowledging.owe(destination, now, at_once=True)
        if problem is not None:
            self._answer_fault(envelope, problem, back_channel, acknowledgements=tuple(acknowledgements))
        elif acknowledgements and back_channel is not None:
            answer = self._envelope(versions)
            answer.control = _ACKNOWLEDGE
            answer.acknowledgements = tuple(acknowledgements)
            self.effects.append(Respond(back_channel, answer))
        else:
            self._done(back_channel)

    def _requested_beside(self, envelope: Envelope, sequence: Sequence, now: float) -> Fault | None:
        """AckRequested for other Sequences on a message (section 3.8); its own is acknowledged in its answer."""
        problem = None
        for requested in envelope.ack_requested:
            if requested.identifier == sequence.identifier:
                continue
            destination = self._asked_for(requested.identifier, now)
            if destination is None:
                problem = problem or sequence_fault(UNKNOWN_SEQUENCE, requested.identifier)
            else:
                self.acknowledging.acknowledge(destination, None, now, at_once=True)
        return problem

    def _asked_for(self, identifier: str, now: float) -> RMDestination | None:
        """The Sequence that an AckRequested names; None if it is unknown, or over and that may be told."""
        destination = self.inbound.destinations.get(identifier)
        if destination is None:
            return None
        if destination.handle(DestinationEvent.ACK_REQUESTED) is None and destination.may_tell_end:
            return None
        destination.last_activity = now
        return destination

    # --- answers --------------------------------------------------------------------------------------------------

    @staticmethod
    def _envelope(versions: Versions | None) -> Envelope:
        assert versions is not None
        return Envelope(versions.soap, versions.addressing, versions.rm)

    def _response(self, request: Envelope, versions: Versions | None, control: Control) -> Envelope:
        """What answers an RM protocol message in kind."""
        response = self._envelope(versions)
        response.control = control
        response.relates_to = request.message_id or None
        return response

    def _respond(
        self, reply_to: EndpointReference | None, back_channel: BackChannel | None, response: Envelope, now: float
    ) -> None:
        self._send_to(reply_to, back_channel, response)

    def _has_address(self, target: EndpointReference) -> bool:
        return not target.is_anonymous and not target.is_none and self._addresses.may_send_to(target)

    def _send_to(self, target: EndpointReference | None, back_channel: BackChannel | None, response: Envelope) -> None:
        """Send to an address that is allowed, else answer on the back-channel."""
        if target is not None and self._has_address(target):
            response.to = target.address
            response.reference_parameters = target.reference_parameters
            self._done(back_channel)  # before the answer: some lose one that overtakes its 202
            self.effects.append(Transmit(target.address, response))
        elif back_channel is not None:
            self.effects.append(Respond(back_channel, response))

    def _respond_final(
        self,
        destination: RMDestination,
        reply_to: EndpointReference | None,
        back_channel: BackChannel | None,
        response: Envelope,
        now: float,
    ) -> None:
        response.acknowledgements = (destination.acknowledgement(),)
        self._respond(reply_to, back_channel, response, now)

    def _answer_fault(
        self,
        envelope: Envelope,
        fault: Fault,
        back_channel: BackChannel | None,
        destination: RMDestination | None = None,
        acknowledgements: tuple[SequenceAcknowledgement, ...] = (),
    ) -> None:
        """Answer with a fault; about a known Sequence it goes where its acknowledgements go."""
        level = "warning" if fault.is_rm else "info"
        sequence = envelope.sequence
        about = fault.identifier or (sequence.identifier if sequence is not None else "")
        number = sequence.message_number if sequence is not None and about == sequence.identifier else 0
        self.effects.append(Incident("fault raised", about, number, level, {"code": fault.code}))
        answer = Envelope(
            envelope.soap,
            envelope.addressing or Addressing.V2005_08,
            envelope.rm or newest_rm(envelope.addressing),
        )
        answer.fault = fault
        answer.not_understood = envelope.not_understood
        answer.relates_to = envelope.message_id
        answer.acknowledgements = acknowledgements
        if destination is not None and fault.code == SEQUENCE_CLOSED:
            answer.acknowledgements = (destination.acknowledgement(),)
        target = destination.acks_to if destination is not None else (envelope.fault_to or envelope.reply_to)
        self._send_to(target, back_channel, answer)
