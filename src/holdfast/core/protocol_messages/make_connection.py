"""MakeConnection: which waiting messages a poll may have, and who may poll for them (WS-MakeConnection 3.2).

The address of a peer that polls contains an identifier that only the peer knows. So a peer that names the address
may poll for it, unless it belongs to a user: then only that user may.
"""

from __future__ import annotations

from holdfast.core.events import BackChannel, Incident
from holdfast.core.faults import missing_selection, unsupported_selection
from holdfast.core.messages import MakeConnection
from holdfast.core.origin import Origin, owner_of
from holdfast.core.receiving.acknowledgements import Acknowledgements
from holdfast.core.receiving.answers import AnswerSender
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.receiving.replies import Replies
from holdfast.core.sending.outbound import Outbound


class ReceivedPolls:
    def __init__(
        self,
        sequences: InboundSequences,
        outbound: Outbound,
        acknowledging: Acknowledgements,
        replies: Replies,
        answering: AnswerSender,
    ) -> None:
        self._sequences = sequences
        self._outbound = outbound
        self._acknowledging = acknowledging
        self._replies = replies
        self._answering = answering
        self._mailboxes = outbound.context.mailboxes

    def poll(self, incoming: Incoming) -> None:
        envelope, poll, back_channel = incoming.envelope, incoming.envelope.control, incoming.back_channel
        assert isinstance(poll, MakeConnection), poll
        if back_channel is None:
            return  # no message can go in an answer to an answer
        if incoming.problem is not None:
            self._answering.fault(envelope, incoming.problem, back_channel)
        # WS-MakeConnection 4.1, 4.2: an unknown selection or none is a fault.
        elif poll.unsupported:
            self._answering.fault(envelope, unsupported_selection(poll.unsupported), back_channel)
        elif not poll.address and not poll.identifier:
            self._answering.fault(envelope, missing_selection(), back_channel)
        # Its answer acknowledges, so the message that waits is left to the next poll.
        elif incoming.asked:
            self._acknowledging.answer(incoming)
        elif poll.identifier:
            self._poll_sequence(poll, back_channel, incoming.origin, incoming.now)
        else:
            self._poll_address(poll.address, None, back_channel, incoming.origin, incoming.now)

    def _poll_address(
        self, address: str, keys: frozenset[str] | None, back_channel: BackChannel, origin: Origin, now: float
    ) -> None:
        box = self._mailboxes.get(address)
        if box is not None and box.owner and box.owner != owner_of(origin.party):
            self._refuse(back_channel, origin)
            return
        if box is None:
            # As for an address for which nothing waits: the peer learns nothing.
            self._answering.done(back_channel)
            return
        self._mailboxes.polled(box, now)
        for identifier in box.sequences:
            # A peer that polls is alive, although it sends no message.
            self._sequences.destinations[identifier].last_activity = now
        self._outbound.context.polls.add(back_channel, address, keys, now)

    def _poll_sequence(self, poll: MakeConnection, back_channel: BackChannel, origin: Origin, now: float) -> None:
        """Answer a poll for a Sequence: that of the requests, or that of their replies.

        The specification has no such poll since its drafts; Sandesha2 makes them for an anonymous client.
        """
        identifier = poll.identifier
        destination = self._sequences.destinations.get(self._sequences.offered.get(identifier, identifier))
        if destination is None:
            self._answering.done(back_channel)
            return
        # Only the owner of the Sequence: a poll takes replies away.
        if owner_of(destination.party) and owner_of(destination.party) != owner_of(origin.party):
            self._refuse(back_channel, origin)
            return
        destination.last_activity = now
        outbox = self._replies.outboxes.outbox_of(destination)
        if outbox is not None and outbox.is_polled and poll.address in ("", outbox.to):
            assert outbox.to is not None
            self._poll_address(outbox.to, frozenset((outbox.key,)), back_channel, origin, now)
        elif poll.address or not self._replies.give(destination, back_channel, now):
            self._acknowledging.acknowledge(destination, back_channel, now)

    def _refuse(self, back_channel: BackChannel, origin: Origin) -> None:
        detail = {"what": "it polls for the messages of another user", "party": origin.party}
        self._sequences.effects.append(Incident("message.unauthorized", level="warning", detail=detail))
        self._answering.done(back_channel)

    def _is_open(self, identifier: str) -> bool:
        return not self._sequences.destinations[identifier].is_over

    # --- time -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._mailboxes.deadline()

    def pump(self, now: float) -> None:
        """Discard what waits for peers that have not polled for as long as a Sequence lives without a message."""
        for box in self._mailboxes.abandoned(self._sequences.policy.inactivity_timeout, self._is_open, now):
            for key in list(box.outboxes):
                detail: dict[str, object] = {"key": key, "why": "their requester does not poll"}
                self._sequences.effects.append(Incident("replies.discarded", level="warning", detail=detail))
                self._replies.discard(self._outbound.outboxes[key], now)
