"""RMProtocol: all Sequences of one side. The one door to the core.

Three inputs: a call (``submit``, ``reply`` ...), a message (``receive``, ``received``, ``failed``), the timer
(``pump``). Three outputs, to be taken after every input: ``take_effects``, ``take_batch`` (then ``batch_durable`` once
the store has it), and ``deadline``, when ``pump`` wants to be called next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from holdfast.core.acknowledging import Acknowledging
from holdfast.core.addresses import Addresses
from holdfast.core.commit import GroupCommit
from holdfast.core.destination import RMDestination, Verdict, sequence_fault
from holdfast.core.ending import Ending
from holdfast.core.events import Effect, Exchange, Incident, Respond, Transmit
from holdfast.core.inbound import Inbound, Queue
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
    Sequence,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.outbound import Outbound
from holdfast.core.outbox import Outbox, ReadRecords
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.refusals import refusal
from holdfast.core.source import RMSource
from holdfast.core.states import DestinationAction, DestinationEvent, SourceEvent
from holdfast.core.versions import RM, Addressing, Versions


def _always(_value: str) -> bool:
    return True


def _never(_value: str) -> bool:
    return False


_NEW = Verdict.NEW  # an enum's members are slow to look up by its class
_ACKNOWLEDGE = Acknowledge()  # it says nothing by itself


def _reply_key(destination: RMDestination) -> str:
    """The outbox of the replies that go back to where the requests came from."""
    return destination.offered or f"plain/{destination.identifier}"


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
    ):
        self.policy = destination_policy or DestinationPolicy()
        self.commit = GroupCommit()
        self.effects: list[Effect] = []
        self.inbound = Inbound(self.policy, self.commit, self.effects, queue, new_identifier, self)
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
        self._addresses = Addresses(allows)
        self._accepts = accepts
        self._replies = replies
        self._always_replies = always_replies
        self.takes_only_replies = False
        """Whether nobody reads what comes but who asked for it: any other message is acknowledged and not kept."""
        self._waiting: dict[tuple[str, int], list[Exchange]] = {}
        self._patience: deque[tuple[float, str, int, Exchange]] = deque()

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
            self._patience[0][0] if self._patience else None,
        )
        return min((time for time in times if time is not None), default=None)

    def pump(self, now: float) -> None:
        """Do what is due."""
        self.inbound.pump(now)
        self.ending.pump(now)
        self.acknowledging.pump(now)
        while self._patience and self._patience[0][0] <= now:
            _, identifier, number, exchange = self._patience.popleft()
            waiting = self._waiting.get((identifier, number))
            if waiting is not None and exchange in waiting:
                waiting.remove(exchange)
                self.effects.append(Respond(exchange, None))
        self.outbound.pump(now)

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held. Once, before anything else."""
        self.inbound.recover(snapshot, now)
        self.outbound.recover(snapshot, now)
        for destination in self.inbound.destinations.values():
            outbox = self.outbound.outboxes.get(destination.offered or "")
            if outbox is not None:
                outbox.answers = destination.identifier

    # --- calls ----------------------------------------------------------------------------------------------------

    def submit(self, outbox: Outbox, record: Record, now: float) -> int:
        """Take over an outbound message; its offset in the outbox. ``Submitted`` follows when it is durable."""
        return self.outbound.submit(outbox, record)

    def reply(self, record: Record, reply: Record | None, now: float) -> None:
        """The application is done with an inbound message.

        Args:
            record: The message.
            reply: What to answer, None for nothing. Only its action, body and headers count.
            now: Seconds.
        """
        destination = self.inbound.destinations.get(record.sequence)
        number = record.message_number
        if destination is None or number not in destination.awaiting:
            if reply is not None:
                self.effects.append(Incident("reply unwanted", record.sequence, number, "warning"))
            return
        told_by_reply = 0
        if reply is not None:
            outbox = self._reply_outbox(destination, record, now)
            reply.relates_to = record.message_id
            reply.sequence = outbox.key
            reply.message_number = number
            offset = self.outbound.submit(outbox, reply)
            reply_number = offset - outbox.source.start + 1 if outbox.source is not None else 0
            if outbox.source is not None and outbox.source.polled:
                destination.replies[number] = reply_number
            elif outbox.answers is not None and not destination.acks_to.is_anonymous:
                told_by_reply = reply_number
        destination.awaiting.discard(number)
        self.commit.save(destination.identifier, destination)
        self.commit.then(partial(self._completed, destination, number, told_by_reply))

    def _completed(self, destination: RMDestination, number: int, told_by_reply: int, now: float) -> None:
        """The reply, or that there is none, is durable: now the request is acknowledged, together with it; or, if the
        reply is on its way to an address, once that reply is."""
        if told_by_reply:
            self.acknowledging.owe_after_reply(destination, number, told_by_reply)
            return
        destination.acknowledge(number)
        self._answer_waiting(destination, number, now)
        if not destination.acks_to.is_anonymous:
            self.acknowledging.owe(destination, now)

    def _reply_outbox(self, destination: RMDestination, record: Record, now: float) -> Outbox:
        """Where the reply goes: the offered Sequence, else one of our own, else nothing but the back-channel."""
        reply_to = record.reply_to or ANONYMOUS
        if destination.offered is None and reply_to != ANONYMOUS:
            return self.outbound.open(f"to/{reply_to}", reply_to, [(destination.versions, False)])
        outbox = self.outbound.outboxes.get(_reply_key(destination))
        if outbox is None:
            outbox = self._open_reply_outbox(destination, None, now)
        return outbox

    def _open_reply_outbox(self, destination: RMDestination, to: str | None, now: float) -> Outbox:
        key = _reply_key(destination)
        source = RMSource(key, key, destination.versions, self.outbound.policy, now, polled=to is None)
        source.identifier = destination.offered
        source.to = to
        return self.outbound.open_replies(source, now)

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
        exchange: Exchange | None,
        now: float,
        sent: Transmit | None = None,
        party: str = "",
    ) -> None:
        """A message came: as a request (``exchange``), or as the answer to what we ``sent``.

        ``party`` says whose it is, for the share that one peer may have of our Sequences; "" if that is not known.
        """
        if envelope.not_understood:
            names = " ".join(envelope.not_understood)
            fault = Fault("MustUnderstand", f"Nobody here understands the header {names}.")
            self._answer_fault(envelope, fault, exchange)
            return
        if exchange is not None and (not envelope.action or envelope.contradiction):
            refused = refusal(envelope)
            if refused is not None:
                self._answer_fault(envelope, refused, exchange)
                return
        fault_back = None
        for acknowledgement in envelope.acknowledgements:
            identifier = acknowledgement.identifier
            if identifier in self.inbound.offered and self.outbound.find(identifier) is None:
                continue  # of replies whose Sequence ended with the requests', which are being ended once more
            fault_back = self.outbound.receive_acknowledgement(acknowledgement, now) or fault_back
            self._replies_acknowledged(acknowledgement.identifier, now)
        if envelope.fault is not None and envelope.sequence is None and not self._is_reply(envelope, exchange):
            self._receive_fault(envelope, sent, now)
            if exchange is not None:
                self.effects.append(Respond(exchange, None))
            return
        if envelope.sequence is not None and envelope.ack_requested:
            fault_back = self._requested_beside(envelope, envelope.sequence, now) or fault_back
        if fault_back is not None and exchange is not None:
            # The carrier is processed all the same, but the one answer there is tells of the fault.
            self._answer_fault(envelope, fault_back, exchange)
            exchange = None
        control = envelope.control
        if envelope.sequence is not None:
            self._receive_message(envelope, exchange, now)
        elif control is None:
            self._receive_plain(envelope, exchange, now)
        else:
            self._receive_control(envelope, exchange, now, party)

    @staticmethod
    def _is_reply(envelope: Envelope, exchange: Exchange | None) -> bool:
        """Whether a fault without a Sequence is the application's answer to a request: that one is acknowledged with
        it, while a message that the destination itself refuses is not."""
        assert envelope.fault is not None
        answers = exchange is None and envelope.relates_to is not None
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
        self.outbound.pump(now)

    def failed(self, sent: Transmit, now: float) -> None:
        """What we sent did not get an answer."""
        self.outbound.failed(sent, now)
        self.outbound.pump(now)

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

    def _receive_message(self, envelope: Envelope, exchange: Exchange | None, now: float) -> None:
        sequence = envelope.sequence
        assert sequence is not None
        destination = self.inbound.destinations.get(sequence.identifier)
        if destination is None or envelope.rm is not destination.versions.rm:
            self._answer_fault(envelope, sequence_fault("UnknownSequence", sequence.identifier), exchange)
            return
        is_application = not isinstance(envelope.control, LastMessage)
        if is_application:
            fault = self._check_application_message(envelope)
            if fault is not None and sequence.message_number not in destination.accepted:
                self._answer_fault(envelope, fault, exchange)
                return
        awaits_reply = exchange is not None and is_application and self._awaits_reply(envelope)
        asked = self.outbound.request_of(envelope.relates_to, destination.identifier)
        is_kept = asked is not None or not self.takes_only_replies
        verdict = self.inbound.receive(destination, envelope, awaits_reply, exchange, now, is_kept=is_kept)
        if isinstance(verdict, Fault):
            if destination.is_over and not destination.settled:
                # A source that was told so does not come back: the end must be durable before.
                self.commit.then(partial(self._ended_with_fault, envelope, verdict, exchange, destination))
            else:
                self._answer_fault(envelope, verdict, exchange, destination)
        elif verdict is _NEW:
            if asked is not None:
                self.outbound.receive_reply(*asked)
            elif is_application and not is_kept:
                self.effects.append(
                    Incident("unasked message dropped", destination.identifier, sequence.message_number)
                )
        elif verdict is Verdict.DUPLICATE:
            self.effects.append(Incident("duplicate dropped", destination.identifier, sequence.message_number, "debug"))
            self._answer_again(destination, sequence.message_number, exchange, now)
        else:
            self.effects.append(Incident("message not held", destination.identifier, sequence.message_number, "debug"))
            if destination.offered is None:
                self._acknowledge(destination, exchange, now)
            else:
                self._done(exchange)  # .NET: no acknowledgement that leaves out what it answers

    def _ended_with_fault(
        self, envelope: Envelope, fault: Fault, exchange: Exchange | None, destination: RMDestination, now: float
    ) -> None:
        self._answer_fault(envelope, fault, exchange, destination)

    def _check_application_message(self, envelope: Envelope) -> Fault | None:
        if not self._accepts(envelope.action):
            reason = f"No handler here takes the action {envelope.action!r}."
            return Fault("ActionNotSupported", reason, is_addressing=True)
        reason = self._addresses.refusal(envelope.reply_to, envelope.fault_to)
        return Fault("OnlyAnonymousAddressSupported", reason, is_addressing=True) if reason else None

    def _awaits_reply(self, envelope: Envelope) -> bool:
        # One-way messages of WCF have neither MessageID nor ReplyTo, CXF's say ReplyTo none or nothing (2004/08). But
        # no ReplyTo is an anonymous one in WS-Addressing 1.0 (core, section 3.2), and gSOAP's requests may have
        # neither of the two: then only the operation tells.
        if envelope.relates_to is not None or (envelope.reply_to is not None and envelope.reply_to.is_none):
            return False
        if envelope.reply_to is not None and envelope.message_id is not None:
            return self._replies(envelope.action)
        return envelope.addressing is Addressing.V2005_08 and self._always_replies(envelope.action)

    def stored(
        self, destination: RMDestination, number: int, envelope: Envelope, exchange: Exchange | None, now: float
    ) -> None:
        """Message ``number`` is durable (called by :class:`Inbound`)."""
        if isinstance(envelope.control, LastMessage) and destination.offered is not None:
            self._answer_last_message(destination, number, exchange, now)
        elif number in destination.awaiting:
            self._await_reply(destination, number, exchange, now)
        else:
            self._acknowledge(destination, exchange, now)
        if self._waiting and number not in destination.awaiting:
            self._answer_waiting(destination, number, now)
        outbox = self.outbound.by_offer.get(destination.identifier)
        if outbox is not None:
            self.outbound.ready(outbox)  # what it has to send may have waited for this to be acknowledged

    def _answer_waiting(self, destination: RMDestination, number: int, now: float) -> None:
        """Answer those who sent the message again while it, or its reply, was on its way to the disk."""
        for exchange in self._waiting.pop((destination.identifier, number), ()):
            self._answer_again(destination, number, exchange, now)

    def _await_reply(self, destination: RMDestination, number: int, exchange: Exchange | None, now: float) -> None:
        if exchange is None:
            return
        if self._replies_elsewhere(destination):
            self.effects.append(Respond(exchange, None))
            return
        key = (destination.identifier, number)
        self._waiting.setdefault(key, []).append(exchange)
        self._patience.append((now + self.policy.reply_patience, *key, exchange))

    def _replies_elsewhere(self, destination: RMDestination) -> bool:
        outbox = self.outbound.outboxes.get(destination.offered or "")
        return outbox is not None and outbox.source is not None and not outbox.source.polled

    def _answer_last_message(
        self, destination: RMDestination, number: int, exchange: Exchange | None, now: float
    ) -> None:
        """1.0, two-way: LastMessage is answered in kind on the offered Sequence (wcf: it waits for that)."""
        outbox = self.outbound.outboxes.get(destination.offered or "")
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None or destination.awaiting:
            self._acknowledge(destination, exchange, now)
        elif not source.polled:
            self.outbound.want_end(outbox, now)
            self._acknowledge(destination, exchange, now)
        else:
            if source.last_number is None:
                source.last_number = outbox.end - source.start + 1
                source.issue(now)
            destination.replies[number] = source.last_number
            self.commit.save(destination.identifier, destination)
            self.commit.save(source.local_id, source)
            self.commit.then(partial(self._answer_again, destination, number, exchange))

    def _answer_again(self, destination: RMDestination, number: int, exchange: Exchange | None, now: float) -> None:
        """Answer a message that is stored: with its reply if there is one, else with an acknowledgement."""
        if number not in destination.acknowledged:
            # An answer that leaves out the very message it answers ends a session of .NET's.
            self._await_reply(destination, number, exchange, now)
            return
        if number == destination.marker and destination.offered is not None and number not in destination.replies:
            self._answer_last_message(destination, number, exchange, now)
            return
        if number in destination.replied:
            # The requester has the reply and said so. An acknowledgement without it would end .NET's session.
            self._done(exchange)
            return
        reply_number = destination.replies.get(number)
        outbox = self.outbound.outboxes.get(_reply_key(destination))
        if (
            reply_number is None
            or outbox is None
            or outbox.source is None
            or reply_number in outbox.source.acknowledged
            or exchange is None
        ):
            self._acknowledge(destination, exchange, now)
            return
        outbox.source.issue(now)
        envelope = self.outbound.message(outbox, outbox.source, reply_number)
        envelope.acknowledgements = (destination.acknowledgement(),)
        self.effects.append(Respond(exchange, envelope))

    def _replies_acknowledged(self, identifier: str, now: float) -> None:
        """The requester acknowledged replies: they are never asked for again."""
        source = self.outbound.find(identifier)
        outbox = self.outbound.outboxes.get(identifier)
        if source is None or outbox is None or outbox.answers is None:
            return
        destination = self.inbound.destinations.get(outbox.answers)
        if destination is None:
            return
        for number in [n for n, reply in destination.replies.items() if reply in source.acknowledged]:
            del destination.replies[number]
            destination.replied.append(number)
        self.acknowledging.replies_acknowledged(destination, source, now)

    def _receive_plain(self, envelope: Envelope, exchange: Exchange | None, now: float) -> None:
        """No Sequence header: a reply to a request of ours from a peer that was offered no Sequence, or a stranger."""
        if exchange is None and envelope.relates_to is not None:
            asked = self.outbound.request_of(envelope.relates_to)
            if asked is not None:
                self.outbound.receive_reply(*asked)
                record = Record("", 0, envelope.action, envelope.body, now, envelope.message_id, envelope.to)
                record.relates_to = envelope.relates_to
                record.soap = envelope.soap.value
                self.inbound.take_plain(record)
            return
        if envelope.acknowledgements or envelope.ack_requested:
            self._answer_ack_requested(envelope, exchange, now)
        elif exchange is not None:
            if envelope.addressing is Addressing.V2004_08:
                fault = Fault("ActionNotSupported", "Only messages with WS-ReliableMessaging headers are taken here.")
                fault.is_addressing = True
            else:
                fault = sequence_fault("WSRMRequired")
            self._answer_fault(envelope, fault, exchange)

    # --- RM protocol messages -------------------------------------------------------------------------------------

    def _receive_control(self, envelope: Envelope, exchange: Exchange | None, now: float, party: str) -> None:
        control = envelope.control
        if isinstance(control, CreateSequence):
            self._create(envelope, control, exchange, now, party)
        elif isinstance(control, CreateSequenceResponse):
            self._created(envelope, control, exchange, now)
        elif isinstance(control, CloseSequence):
            self._close(envelope, control, exchange, now)
        elif isinstance(control, TerminateSequence):
            self._terminate(envelope, control, exchange, now)
        elif isinstance(control, CloseSequenceResponse):
            self.ending.answered(control.identifier)
            self.outbound.receive_close_response(control.identifier, now)
            self._done(exchange)
        elif isinstance(control, TerminateSequenceResponse):
            self._terminated(control, exchange, now)
        else:
            self._answer_ack_requested(envelope, exchange, now)

    def _done_then(self, exchange: Exchange | None, now: float) -> None:
        self._done(exchange)

    def _done(self, exchange: Exchange | None) -> None:
        if exchange is not None:
            self.effects.append(Respond(exchange, None))

    def _create(
        self, envelope: Envelope, create: CreateSequence, exchange: Exchange | None, now: float, party: str
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
                self._answer_fault(envelope, fault or sequence_fault("CreateSequenceRefused"), exchange)
                return
            if create.offer is not None:
                self._accept_offer(envelope, create, destination, now)
        response = self._response(envelope, destination.versions, self.inbound.response(destination))
        self.commit.then(partial(self._respond, envelope.reply_to, exchange, response))

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
        if not reason:
            return None
        fault = sequence_fault("CreateSequenceRefused")
        fault.reason = reason
        return fault

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
        self._open_reply_outbox(destination, to, now).answers = destination.identifier

    def _created(
        self, envelope: Envelope, response: CreateSequenceResponse, exchange: Exchange | None, now: float
    ) -> None:
        source = self.outbound.receive_create_response(response, envelope.relates_to, now)
        if source is not None and source.offer is not None:
            offered = RMDestination(source.offer, source.versions, ANONYMOUS_EPR, self.policy, now)
            accept = response.accept_acks_to
            if accept is not None and not accept.is_anonymous:
                offered.acks_to = accept
            self.inbound.add(offered)
        self._done(exchange)

    def _close(self, envelope: Envelope, close: CloseSequence, exchange: Exchange | None, now: float) -> None:
        destination = self.inbound.destinations.get(close.identifier)
        if destination is None:
            if self.outbound.ended_by_peer(close.identifier, SourceEvent.CLOSE_SEQUENCE, now):
                response = self._response(envelope, envelope.versions, CloseSequenceResponse(close.identifier))
                self.commit.then(partial(self._respond, envelope.reply_to, exchange, response))
            else:
                self._answer_fault(envelope, sequence_fault("UnknownSequence", close.identifier), exchange)
            return
        if destination.handle(DestinationEvent.CLOSE_SEQUENCE) is not DestinationAction.ANSWER_CLOSE:
            self._answer_fault(envelope, sequence_fault("UnknownSequence", close.identifier), exchange)
            return
        response = self._response(envelope, destination.versions, CloseSequenceResponse(close.identifier))
        then = partial(self._respond_final, destination, envelope.reply_to, exchange, response)
        self.inbound.end(destination, close.last_message_number, then, now)

    def _terminate(
        self, envelope: Envelope, terminate: TerminateSequence, exchange: Exchange | None, now: float
    ) -> None:
        destination = self.inbound.destinations.get(terminate.identifier)
        if destination is None:
            self._terminate_outbound(envelope, terminate, exchange, now)
            return
        destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
        if destination.versions.rm is RM.V1_1:
            response = self._response(envelope, destination.versions, TerminateSequenceResponse(terminate.identifier))
        elif destination.offered is not None and exchange is not None:
            # 1.0, two-way: answered by TerminateSequence of the offered Sequence (wcf: it waits for that).
            response = self._envelope(destination.versions)
            response.control = TerminateSequence(destination.offered)
        else:
            self.inbound.end(destination, terminate.last_message_number, partial(self._done_then, exchange), now)
            return
        then = partial(self._respond_final, destination, envelope.reply_to, exchange, response)
        self.inbound.end(destination, terminate.last_message_number, then, now)

    def _terminate_outbound(
        self, envelope: Envelope, terminate: TerminateSequence, exchange: Exchange | None, now: float
    ) -> None:
        known = self.outbound.ended_by_peer(terminate.identifier, SourceEvent.TERMINATE_SEQUENCE, now)
        if envelope.rm is RM.V1_0:
            self._done(exchange)
        elif known:
            response = self._response(envelope, envelope.versions, TerminateSequenceResponse(terminate.identifier))
            self.commit.then(partial(self._respond, envelope.reply_to, exchange, response))
        else:
            self._answer_fault(envelope, sequence_fault("UnknownSequence", terminate.identifier), exchange)

    def _terminated(self, response: TerminateSequenceResponse, exchange: Exchange | None, now: float) -> None:
        self.ending.answered(response.identifier)
        destination = self.inbound.destinations.get(response.identifier)
        if destination is not None:
            destination.handle(DestinationEvent.TERMINATE_SEQUENCE_RESPONSE)
        self.outbound.receive_terminate_response(response.identifier, now)
        self._done(exchange)

    def discarded(self, destination: RMDestination) -> None:
        """An inbound Sequence is over (called by :class:`Inbound`): so is the one that answered it."""
        for key in (destination.offered, f"plain/{destination.identifier}"):
            outbox = self.outbound.outboxes.get(key or "")
            if outbox is None:
                continue
            if outbox.to is None:
                self.outbound.close_outbox(outbox.key)
            else:
                self.outbound.want_end(outbox, destination.last_activity)
        for key_waiting in [key for key in self._waiting if key[0] == destination.identifier]:
            for exchange in self._waiting.pop(key_waiting):
                self.effects.append(Respond(exchange, None))
        self.acknowledging.forget(destination.identifier)

    def _answer_ack_requested(self, envelope: Envelope, exchange: Exchange | None, now: float) -> None:
        answered = False
        for requested in envelope.ack_requested:
            fault = self._acknowledge_as_asked(requested.identifier, exchange, now)
            if fault is not None:
                self._answer_fault(envelope, fault, exchange)
            exchange, answered = None, True
        if not answered:
            self._done(exchange)

    def _requested_beside(self, envelope: Envelope, sequence: Sequence, now: float) -> Fault | None:
        """AckRequested for other Sequences on a message (section 3.8); its own is acknowledged in its answer."""
        fault = None
        for requested in envelope.ack_requested:
            if requested.identifier != sequence.identifier:
                fault = self._acknowledge_as_asked(requested.identifier, None, now) or fault
        return fault

    def _acknowledge_as_asked(self, identifier: str, exchange: Exchange | None, now: float) -> Fault | None:
        """One AckRequested; the fault to answer it with if there is no such Sequence."""
        destination = self.inbound.destinations.get(identifier)
        if destination is None or destination.handle(DestinationEvent.ACK_REQUESTED) is None:
            return sequence_fault("UnknownSequence", identifier)
        destination.last_activity = now
        self._acknowledge(destination, exchange, now, at_once=True)
        return None

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

    def _acknowledge(
        self, destination: RMDestination, exchange: Exchange | None, now: float, *, at_once: bool = False
    ) -> None:
        """Acknowledge: in the answer to an anonymous sender; soon, with others, to an addressable AcksTo."""
        if destination.acks_to.is_anonymous:
            acknowledgement = destination.acknowledgement()
            if not acknowledgement.ranges and destination.versions.rm is RM.V1_0 and not at_once:
                # 1.0 says "nothing yet" by the range 0-0, which WCF expects where it asks for it and which ends a
                # Sequence of gSOAP's at any other time.
                self._done(exchange)
            elif exchange is not None:
                envelope = self._envelope(destination.versions)
                envelope.control = _ACKNOWLEDGE
                envelope.acknowledgements = (acknowledgement,)
                self.effects.append(Respond(exchange, envelope))
            return
        self._done(exchange)
        if exchange is None and destination.accept_acks_to is None and not at_once:
            return  # replies at a source: acknowledged on its next request
        self.acknowledging.owe(destination, now, at_once=at_once)

    def _respond(
        self, reply_to: EndpointReference | None, exchange: Exchange | None, response: Envelope, now: float
    ) -> None:
        self._send_to(reply_to, exchange, response)

    def _send_to(self, target: EndpointReference | None, exchange: Exchange | None, response: Envelope) -> None:
        """Send to an address that is allowed, else answer on the exchange."""
        is_address = target is not None and not target.is_anonymous and not target.is_none
        if target is not None and is_address and self._addresses.may_send_to(target):
            response.to = target.address
            response.reference_parameters = target.reference_parameters
            self.effects.append(Transmit(target.address, response))
            self._done(exchange)
        elif exchange is not None:
            self.effects.append(Respond(exchange, response))

    def _respond_final(
        self,
        destination: RMDestination,
        reply_to: EndpointReference | None,
        exchange: Exchange | None,
        response: Envelope,
        now: float,
    ) -> None:
        response.acknowledgements = (destination.acknowledgement(),)
        self._respond(reply_to, exchange, response, now)

    def _answer_fault(
        self, envelope: Envelope, fault: Fault, exchange: Exchange | None, destination: RMDestination | None = None
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
            envelope.rm or (RM.V1_0 if envelope.addressing is Addressing.V2004_08 else RM.V1_1),
        )
        answer.fault = fault
        answer.not_understood = envelope.not_understood
        answer.relates_to = envelope.message_id
        if destination is not None and fault.code == "SequenceClosed":
            answer.acknowledgements = (destination.acknowledgement(),)
        target = destination.acks_to if destination is not None else (envelope.fault_to or envelope.reply_to)
        self._send_to(target, exchange, answer)
