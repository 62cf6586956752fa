"""RMProtocol: all Sequences of one side, and the only entry point to the core.

The core has four inputs: calls (``submit``, ``handling.handled`` ...), messages (``receive``, ``received``,
``failed``), requested records (``records_read``) and the timer (``pump``). It has three outputs, which the shell must
read after every input: ``take_effects``, ``take_batch`` (then ``batch_durable`` once the store has it), and
``deadline``, the time of the next ``pump``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from holdfast.core.commit import GroupCommit, changing
from holdfast.core.events import BackChannel, Effect, ReadWanted, Transmit
from holdfast.core.faults import not_understood, refusal
from holdfast.core.forwarding.forwarded_requests import ForwardedRequests
from holdfast.core.handling.delivery import HandlerSchedule, HandlerSettings
from holdfast.core.messages import Control, Envelope, Fault
from holdfast.core.origin import STRANGER, Origin
from holdfast.core.protocol_messages.make_connection import ReceivedPolls
from holdfast.core.protocol_messages.peer_acknowledgements import PeerAcknowledgements, is_reply
from holdfast.core.protocol_messages.sequence_creation import SequenceCreation
from holdfast.core.protocol_messages.sequence_termination import SequenceTermination
from holdfast.core.protocol_messages.table import CONTROLS
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.receiving.acceptance import Acceptance
from holdfast.core.receiving.acknowledgements import Acknowledgements
from holdfast.core.receiving.allowed_addresses import Addresses
from holdfast.core.receiving.answers import AnswerSender
from holdfast.core.receiving.authority import Authority
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.receiving.replies import Replies
from holdfast.core.receiving.sessions import SessionPartitions
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.context import OutboxHooks, SendingContext
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import reply_unproven
from holdfast.core.sending.polling.mailboxes import Mailboxes
from holdfast.core.sending.recovery import recover_outbound
from holdfast.core.sinks.staging import Sinks
from holdfast.core.states.inbound import DestinationEvent


class RMProtocol:
    """The source and the destination of one side, and their connections: offers, replies, answers.

    Args:
        queue: The queue of inbound messages.
        environment: What the shell provides.
        further: Other queues, for messages that are routed there.
        policies: For its Sequences and sinks.
        rules: Which messages the application accepts, answers and may send.
        letters: The queue of dead letters. With it, forwarders are supported.
        handling: How the handlers of the queue are called; None for a queue without handlers.
    """

    def __init__(
        self,
        queue: Queue,
        environment: Environment,
        *,
        further: Iterable[Queue] = (),
        policies: Policies | None = None,
        rules: MessageRules | None = None,
        letters: DeadLetters | None = None,
        handling: HandlerSettings | None = None,
    ):
        policies, rules = policies or Policies(), rules or MessageRules()
        new_identifier = environment.new_identifier
        self.policy = policies.destination
        self.commit = GroupCommit()
        self.effects: list[Effect] = []
        self.queues = Queues(self.commit, self.effects, environment.read)
        self.sequences = InboundSequences(self.policy, self.commit, self.effects, queue, further)
        for one in self.sequences.queues.values():
            self.queues.add(one)
        mailboxes = Mailboxes()
        self.answering = AnswerSender(Addresses(rules.allows), self.commit, self.effects, mailboxes)
        self.acknowledging = Acknowledgements(self.sequences, self.answering, self.effects)
        context = SendingContext(
            self.commit,
            self.effects,
            new_identifier,
            environment.jitter,
            environment.local,
            self.acknowledging,
            mailboxes,
            environment.claims,
            environment.has_credentials,
            self.sequences.reply_patience,
        )
        registry = OutboxRegistry(policies.source, context, self.queues, policies.source_for)
        self.replies = Replies(
            self.sequences, registry, self.acknowledging, self.answering, self.commit, self.effects, rules.tell
        )
        has_sessions = queue.description.sessions > 0
        self.sessions = SessionPartitions(self.sequences, registry.outboxes) if has_sessions else None
        self.inbound = Inbound(self.sequences, self.replies, self.sessions, environment.trouble)
        self.forwarding: ForwardedRequests | None = None
        if letters is not None:
            self.forwarding = ForwardedRequests(letters, rules.tell, registry, self.replies)
        self._hooks = OutboxHooks(self.inbound.forget_offered, self.inbound.redirect_offered, self.forwarding)
        self.outbound = Outbound(registry, self._hooks)
        self.authority = Authority(self.sequences, registry, self.effects)
        self.granting = SequenceCreation(self.sequences, self.outbound, self.replies, self.answering, new_identifier)
        self.ending = SequenceTermination(
            self.inbound, self.outbound, self.authority, self.answering, self.commit, new_identifier
        )
        self.polling = ReceivedPolls(self.sequences, self.outbound, self.acknowledging, self.replies, self.answering)
        self.accepting = Acceptance(
            self.inbound,
            self.outbound,
            self.authority,
            self.replies,
            self.acknowledging,
            self.answering,
            self.forwarding,
            rules,
        )
        self.hearing = PeerAcknowledgements(self.inbound, self.outbound, self.authority, self.replies, self.receive)
        self.staging = Sinks(policies.staging, self.commit, self.effects, self.queues, self.inbound, new_identifier)
        self.handling: HandlerSchedule | None = None
        if letters is not None and handling is not None:
            handled = self.sequences.queues[handling.queue or queue.name]
            self.handling = HandlerSchedule(handled, letters, handling, self.sequences, self.replies)

    # --- outputs --------------------------------------------------------------------------------------------------

    def take_effects(self) -> list[Effect]:
        """Return the pending effects in order, each once."""
        effects = self.effects[:]
        self.effects.clear()
        return self.outbound.context.pollers.posted(effects)

    @property
    def wants_commit(self) -> bool:
        """Whether a batch is available from :meth:`take_batch`."""
        return self.commit.is_wanted

    def take_batch(self) -> Batch:
        """Return the changes so far. Make batches durable in this order, and call :meth:`batch_durable` for each."""
        return self.commit.take()

    def batch_durable(self, now: float, answer: Callable[[], None] = lambda: None) -> None:
        """Make the calls that waited for the oldest batch taken, which is now durable.

        ``answer`` is called before messages are transmitted, so that peers that wait for an answer have it first.
        """
        # First what became durable: the answers and acknowledgements that waited for it.
        self.commit.durable(now)
        answer()
        self.outbound.pump(now)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next."""
        times = (
            self.inbound.deadline(),
            self.outbound.deadline(),
            self.acknowledging.deadline(),
            self.ending.deadline(),
            self.replies.deadline(),
            self.polling.deadline(),
            self.staging.deadline(),
            self.handling.deadline() if self.handling is not None else None,
        )
        return min((time for time in times if time is not None), default=None)

    def records_read(self, wanted: ReadWanted, records: list[tuple[int, Record]], now: float) -> None:
        """Process requested records from the store: ``(offset, record)``, ascending, as its ``read`` returns them."""
        wanted.take(records, now)
        self.outbound.pump(now)

    def pump(self, now: float) -> None:
        """Do all work that is due."""
        self.inbound.pump(now)
        self.ending.pump(now)
        self.acknowledging.pump(now)
        self.replies.pump(now)
        self.polling.pump(now)
        self.staging.pump(now)
        if self.handling is not None:
            self.handling.pump(now)
        self.outbound.pump(now)

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the state from the store. Call once, before any other input."""
        self.inbound.recover(snapshot, now)
        # After the inbound half: replies answer its Sequences.
        recover_outbound(self.outbound.registry, self._hooks, self.queues, snapshot, now)
        self.granting.recover()
        self.replies.outboxes.recover(now, is_server=self.forwarding is not None)
        # After both halves: a session's end cuts outboxes.
        self.inbound.recover_sessions(now)
        self.staging.recover(snapshot, now)
        # Last: everything that a move may touch is recovered.
        self.inbound.held.go_on(now)

    def stop(self) -> None:
        """Stop moving records within the store; the next start continues."""
        self.staging.moves.stop()
        self.inbound.held.stop()

    def save_progress(self, now: float) -> None:
        """Save what peers have acknowledged, before a stop: the next start neither shows nor sends it again."""
        for outbox in self.outbound.outboxes.values():
            outbox.save_progress(now)

    def restored(self, now: float) -> int:
        """Adapt, after recovery, to a store that was restored from an older copy.

        New objects must not get names that other objects had in the lost period: sinks get new identifiers, and
        forwarders get new Sequences. Inbound Sequences are closed, as their sources have deleted what was acknowledged
        in the lost period: later messages would wait behind that gap for ever.

        Returns:
            How many inbound Sequences are closed.
        """
        self.staging.restored()
        for outbox in self.outbound.outboxes.values():
            source = outbox.source
            if source is not None and not source.polled and not outbox.is_for_replies:
                source.numbers.know_stored()
                outbox.context.marking.leave_new(source, is_restored=True)
        close = DestinationEvent.DECIDE_TO_CLOSE
        waiting = [one for one in self.inbound.destinations.values() if one.waits_behind_gaps and one.moves_at(close)]
        for destination in waiting:
            self.ending.begin(destination, terminate=False, now=now)
        return len(waiting)

    # --- calls ----------------------------------------------------------------------------------------------------

    @changing
    def submit(self, outbox: Outbox, record: Record, now: float) -> int:
        """Append an outbound message to an outbox, and return its offset. ``Submitted`` follows once it is durable."""
        return outbox.submit(record)

    @changing
    def end_inbound(self, identifier: str, now: float, *, terminate: bool = False) -> bool:
        """Close or terminate an inbound Sequence on this side's initiative, and return whether it was open."""
        destination = self.inbound.destinations.get(identifier)
        if destination is None or destination.is_over:
            return False
        self.ending.begin(destination, terminate=terminate, now=now)
        return True

    # --- messages -------------------------------------------------------------------------------------------------

    @changing
    def receive(
        self,
        envelope: Envelope,
        back_channel: BackChannel | None,
        now: float,
        sent: Transmit | None = None,
        origin: Origin = STRANGER,
    ) -> None:
        """Process a message: a request (answered on ``back_channel``), or the answer to what this side ``sent``.

        ``origin`` describes the sender of a request: which Sequences it may use, and which sender's quota it uses.
        """
        if sent is not None:
            origin = Origin(sent.to, query=sent.query)
        # SOAP 1.2 part 1, 2.6: no part of a message is processed before every mandatory block is understood.
        if envelope.not_understood and not self.accepting.refuses_within_sequence(envelope, back_channel):
            self.answering.fault(envelope, not_understood(envelope.not_understood), back_channel)
            return
        if back_channel is not None and (not envelope.action or envelope.contradiction):
            refused = refusal(envelope)
            if refused is not None:
                self.answering.fault(envelope, refused, back_channel)
                return
        # A peer that may not use one of its Sequences changes nothing by any other part of it either.
        refused = self.authority.refusal(envelope, origin)
        if refused is not None:
            self.answering.fault(envelope, refused, back_channel)
            return
        problem = None
        # Before its acknowledgements: this transmission was not accepted, whatever they cover.
        if sent is not None and envelope.fault is not None:
            self.outbound.exchanges.refused(sent, envelope.fault)
        is_application_fault = envelope.fault is not None and not envelope.fault.is_rm
        if is_application_fault and (envelope.sequence is not None or is_reply(envelope, back_channel)):
            self.hearing.service_fault(envelope, sent, origin, now)
        # WS-RM 3.9: acknowledgements come with any message, and count whatever becomes of the rest of it.
        if envelope.acknowledgements:
            origin = origin if sent is not None else origin.naming(envelope)
            problem = self.hearing.acknowledgements(envelope, origin, now, sent)
        if envelope.fault is not None and envelope.sequence is None and not is_reply(envelope, back_channel):
            self.hearing.fault(envelope, envelope.fault, sent, origin, now)
            self.answering.done(back_channel)
            return
        asked: list[RMDestination] = []
        if envelope.ack_requested:
            asked, unknown = self.acknowledging.requested(envelope, now)
            problem = problem or unknown
        # To an address it goes in a separate message: the answer is free for the content of this one (WS-RM 3.2).
        if problem is not None and self.answering.fault_beside(envelope, problem):
            problem = None
        if envelope.sequence is not None:
            if self.granting.begins(envelope, back_channel, origin, now):
                self.accepting.receive(envelope, back_channel, now, problem, origin)
            # A final acknowledgement ends the Sequence of requests, so its message, maybe a reply, is stored first.
            if any(one.final for one in envelope.acknowledgements):
                self.commit.then(partial(self.hearing.ends, envelope, origin, sent))
        elif envelope.control is None:
            self.accepting.receive_plain(Incoming(envelope, back_channel, now, origin, problem, asked))
        else:
            self._receive_control(envelope.control, Incoming(envelope, back_channel, now, origin, problem, asked))
        # 2003/03: SequenceTerminate ends the Sequence after the message that it comes with.
        if envelope.terminates:
            self.ending.terminate_beside(envelope.terminates, now)

    @changing
    def refuse(self, envelope: Envelope, fault: Fault, back_channel: BackChannel) -> None:
        """Reject a message: process no part of it, and answer it with the fault."""
        self.answering.fault(envelope, fault, back_channel)

    def received(self, sent: Transmit, envelope: Envelope | None, now: float) -> None:
        """Process the peer's answer to a transmission: a message, or None for an empty 200 or 202."""
        self.received_together([(sent, envelope)], now)

    @changing
    def received_together(self, answers: list[tuple[Transmit, Envelope | None]], now: float) -> None:
        """Process several answers that arrived together; see :meth:`received`."""
        self.hearing.answers(answers, now)

    @changing
    def failed(
        self,
        sent: Transmit,
        now: float,
        unreachable: str = "",
        *,
        has_left: bool = True,
        not_accepted: str = "",
        is_too_large: bool = False,
    ) -> None:
        """Process a transmission that received no answer, or one that this side does not accept.

        Args:
            unreachable: The reason, if the destination caused the failure: no connection, no answer in time, or an
                answer that is not a SOAP message. Empty for an answer that is not accepted.
            has_left: Whether the destination may have received it; False without a connection.
            not_accepted: The reason for an answer that is not accepted, if there is one.
            is_too_large: Whether the reason is its size. The message is not repeated: AckRequested asks about it, and
                a request that arrived has no reply.
        """
        # The exchange ends before its failure is processed: a retransmission may follow at once.
        self.outbound.exchanges.ended(sent, now)
        self.outbound.exchanges.failed(
            sent, now, unreachable, has_left=has_left, not_accepted=not_accepted, is_too_large=is_too_large
        )
        self.acknowledging.failed(sent, now)
        self.outbound.context.pollers.failed(sent, now)

    @changing
    def reply_unproven(self, envelope: Envelope, reason: str, now: float, origin: Origin) -> None:
        """Process the headers of a reply that is too large to check who sent it. Nothing in them counts as received.

        Args:
            reason: Why it cannot be received, for its requester.
            origin: As for :meth:`receive`.
        """
        found = self.accepting.request_of(envelope, origin, envelope.sequence.identifier if envelope.sequence else "")
        if found is not None:
            reply_unproven(*found, reason, now)

    # --- RM protocol messages -------------------------------------------------------------------------------------

    def _receive_control(self, control: Control, incoming: Incoming) -> None:
        row = CONTROLS[type(control)]
        problem, back_channel = incoming.problem, incoming.back_channel
        if problem is not None and back_channel is not None and row.yields(self, control):
            self.answering.fault(incoming.envelope, problem, back_channel)
            incoming.back_channel = None
        row.take(self, incoming)
