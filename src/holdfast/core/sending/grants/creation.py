"""Creation of outbound Sequences: CreateSequence, its grant and its refusal (WS-RM 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Incident, Transmit
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED, REFUSES_ACCOUNT, REFUSES_CREDENTIALS
from holdfast.core.messages import MC_ANONYMOUS, CreateSequenceResponse, is_polled
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.grants.unusable_grants import why_unusable
from holdfast.core.sending.identifier_claims import ClaimResult, claim_grant
from holdfast.core.sending.outboxes.lifecycle import Choice, Unwelcome
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.reasons import NO_REASON, NOT_ACCEPTED, Why
from holdfast.core.states.outbound import Request, SourceEvent, SourceState

if TYPE_CHECKING:
    from holdfast.core.sending.context import SendingContext

MOST_IGNORED_OFFERS = 3
"""Sequences in a row that are given up because the answer to a repeated CreateSequence accepted no Offer. The next
Sequence is used as it is, as that of a destination that never accepts an Offer."""

MOST_CUT = 4
"""Connections that end without an answer to CreateSequence, in a row, before the next version is tried. A network that
loses a fifth of all messages each way does so to one Sequence in sixty."""


MOST_UNACCEPTED = 2
"""CreateSequences in a row, each repeated as often as answers that are not accepted allow, before the next version is
tried. The second one has another MessageID and another Offer."""


class OutboundCreation:
    """Creates the Sequences of one side's outboxes."""

    def __init__(self, context: SendingContext, new_identifier: Callable[[], str]) -> None:
        self._context = context
        self._new_identifier = new_identifier
        self._detected: dict[str, str] = {}
        """Address that refused other versions first -> the versions that it supports."""
        self._secrets: dict[str | None, str] = {}
        """Address of a peer -> secret in the address that the peer received."""
        self._given: set[str] = set()
        """Secrets in addresses that peers of this side's requests received."""

    def has_given(self, secret: str) -> bool:
        """Return whether a peer that may reply has an address with that secret, as far as this process knows."""
        return secret in self._given

    def adopt(self, outbox: Outbox, source: RMSource) -> None:
        """Remember which secret the peer of a Sequence knows."""
        if source.secret:
            self._secrets[outbox.to] = source.secret
            if not outbox.is_for_replies:  # which get acknowledgements only
                self._given.add(source.secret)

    def leave(self, address: str | None) -> None:
        """Forget what is known of an address to which an outbox no longer sends; others keep their Sequences."""
        secret = self._secrets.pop(address, "")
        # An outbox that sends to another address now has it still.
        if secret in self._given and secret not in self._secrets.values():
            self._given.remove(secret)
        self._detected.pop(address or "", None)

    def begin(self, outbox: Outbox, choice: Choice, now: float) -> None:
        """Save a new Sequence, and then create it at the destination."""
        versions, with_offer = choice
        context = self._context
        source = RMSource(self._new_identifier(), outbox.key, versions, outbox.policy, now)
        source.numbers.start = outbox.records.first
        source.offer = self._new_identifier() if with_offer else None
        # Every repeat has this MessageID, also after a crash, so a destination can recognize it.
        source.control.message_ids[Request.CREATE.value] = source.local_id
        source.address = self._address_of(outbox, source)
        if not is_polled(source.address) and not context.composer.is_anonymous(source):
            if versions.rm.can.creates:
                source.acks_to = source.address or context.local
            source.secret = self._secrets.get(outbox.to) or self._new_identifier().rpartition(":")[2]
        if not versions.rm.can.creates:
            source.identifier = source.local_id
        outbox.adopt(source)
        context.commit.save_new(source.local_id, source, outbox.records.queue.name, outbox.records.partition)
        if source.identifier is not None:
            context.marking.save(source)
            context.effects.append(Incident("sequence.created", source.identifier, detail={"key": outbox.key}))
        # Durable before CreateSequence leaves: a grant finds its Sequence after any crash.
        context.commit.then(partial(self._create, outbox, source))

    def _address_of(self, outbox: Outbox, source: RMSource) -> str:
        """Return the address for messages from the destination of a Sequence, without its secret; "" for the usual one.

        The versions without AcksTo are older than MakeConnection, so their destinations are not polled.
        """
        if outbox.is_polled or MC_ANONYMOUS not in (outbox.address, self._context.local):
            return outbox.address
        return self._context.pollers.address_for(outbox.to or "") if source.versions.rm.can.negotiates else ""

    def _create(self, outbox: Outbox, source: RMSource, now: float) -> None:
        if outbox.source is source:
            source.create(now)
            outbox.ready()

    def receive(self, response: CreateSequenceResponse, relates_to: str | None, now: float) -> RMSource | None:
        """Return the Sequence that a CreateSequenceResponse opened, None for none. It is used once that is durable."""
        context = self._context
        outbox = context.sequences.by_local_id.get(relates_to or "")
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None:
            return None
        if source.state is SourceState.CREATING:
            named = context.sequences.named(response.identifier)
            reason = why_unusable(response, source, outbox, named, context.offered)
            if not reason:
                result, reason = claim_grant(context.claims, source, outbox.to, response.identifier)
                if result is ClaimResult.UNKNOWN:
                    # As if the response was lost: CreateSequence is repeated, and by then the workers have started.
                    detail = {"key": outbox.key, "reason": result.value}
                    context.effects.append(Incident("sequence.grant_ignored", response.identifier, detail=detail))
                    return None
            if reason:
                why = Why(CREATE_SEQUENCE_REFUSED, reason)
                outbox.happen(source, SourceEvent.CREATE_SEQUENCE_REFUSED, now, why)
                return None
        if not source.created(response.identifier, response.expires, now):
            return None
        context.sequences.name(source, response.identifier)
        accept = response.accept_acks_to
        # WS-RM 3.4: without Accept the Offer is declined. CXF declines with the none address in Accept/AcksTo.
        if source.offer is not None and (accept is None or accept.is_none):
            if outbox.lifecycle.is_repeated_creation(source) and outbox.lifecycle.ignored_offers < MOST_IGNORED_OFFERS:
                self._offer_another(outbox, source, response.identifier, now)
                return None
            context.sequences.by_offer.pop(source.offer, None)
            source.offer = None
        self._tell_versions(outbox, source)
        outbox.lifecycle.ignored_offers = outbox.lifecycle.cut_creations = outbox.lifecycle.unaccepted_creations = 0
        outbox.lifecycle.refused.clear()
        outbox.lifecycle.put_off, outbox.lifecycle.unwelcome = False, None
        source.behavior = response.incomplete_sequence_behavior
        # The grant and the mark in one batch; messages leave only once it is durable.
        context.marking.save(source)
        self._context.commit.then(partial(self._opened, outbox, source))
        self._context.effects.append(Incident("sequence.created", response.identifier, detail={"key": outbox.key}))
        return source

    def _tell_versions(self, outbox: Outbox, source: RMSource) -> None:
        """Report which versions a destination speaks, once for each address, if it refused others first."""
        versions = source.versions.in_words
        refused = {one.in_words for one, _ in outbox.lifecycle.refused} - {versions}
        if refused and self._detected.get(outbox.to or "") != versions:
            self._detected[outbox.to or ""] = versions
            detail = {"to": outbox.to, "versions": versions, "refused": "; ".join(sorted(refused))}
            self._context.effects.append(Incident("versions.detected", detail=detail))

    def _offer_another(self, outbox: Outbox, source: RMSource, identifier: str, now: float) -> None:
        """Give up a Sequence granted without Accept, and offer another Sequence with the next CreateSequence. Sandesha2
        accepts the Offer of the first CreateSequence only: of a repeat it says nothing, and it would never reply."""
        outbox.drop(now)
        outbox.lifecycle.ignored_offers += 1
        self._context.effects.append(Incident("offer.ignored", identifier, detail={"key": outbox.key}))
        outbox.ready()

    def _opened(self, outbox: Outbox, source: RMSource, now: float) -> None:
        outbox.happen(source, SourceEvent.GRANT_DURABLE, now, NO_REASON)

    def cut(self, sent: Transmit, now: float) -> None:
        """A connection ended, or stayed silent, where a CreateSequence was to be answered. Instead of a refusal, a peer
        may do that to a version that it does not speak (WCF's server does): after a few times the next one is tried.
        Each is tried so once; then what came first is repeated, for the peer may just be away."""
        outbox = self._context.sequences.by_local_id.get(sent.source)
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None or source.state is not SourceState.CREATING:
            return
        outbox.lifecycle.cut_creations += 1
        versions = source.versions
        left = [choice for choice in outbox.lifecycle.choices if choice not in outbox.lifecycle.refused]
        count = len({one for one, _ in left})
        # Once through all versions. Then the peer is away rather than unwilling, and the first is repeated.
        if outbox.lifecycle.cut_creations % MOST_CUT or outbox.lifecycle.cut_creations > count * MOST_CUT or count == 1:
            return
        outbox.lifecycle.choices.sort(key=lambda choice: choice[0] == versions)
        detail = {"key": outbox.key, "code": "no answer", "reason": "the peer ended the connection without an answer"}
        self._context.effects.append(
            Incident("sequence.refused", level="debug", detail=detail | {"versions": versions.in_words})
        )
        outbox.drop(now)
        outbox.ready()

    def refused(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Try the outbox's next choice after a refused CreateSequence; without one, ask again later or stop."""
        # CXF refuses a repeated CreateSequence, the first of which it granted: its Offer is in use. Another one is not.
        is_new = source.offer is None or not outbox.lifecycle.is_repeated_creation(source)
        if why.code == NOT_ACCEPTED:
            # Metro refuses a repeat of the CreateSequence that it granted, with a fault that it does not secure.
            outbox.lifecycle.unaccepted_creations += 1
            is_new = outbox.lifecycle.unaccepted_creations >= MOST_UNACCEPTED
            if is_new:
                outbox.lifecycle.unaccepted_creations = 0
        outbox.drop(now)
        outbox.lifecycle.put_off = (outbox.lifecycle.put_off or why.may_pass) and why.code not in REFUSES_CREDENTIALS
        if why.code in REFUSES_CREDENTIALS:
            # The next version would be refused for the same reason, and a few wrong passwords may lock the account.
            outbox.lifecycle.refused.update(outbox.lifecycle.choices)
        elif is_new:
            outbox.lifecycle.refuse((source.versions, source.offer is not None))
        is_first = outbox.lifecycle.next_choice is None and outbox.lifecycle.unwelcome is None
        detail = {"key": outbox.key, "code": why.code, "reason": why.reason, "versions": source.versions.in_words}
        if is_first:
            self._context.effects.append(Incident("sequence.refused", level="warning", detail=detail))
        else:
            self._context.effects.append(Incident("sequence.refused", level="debug", detail=detail))
        if outbox.lifecycle.next_choice is None and not self._asks_again(outbox, why, now):
            outbox.stop(why.code, why.reason, now)
        outbox.ready()

    def _asks_again(self, outbox: Outbox, why: Why, now: float) -> bool:
        """Return whether the destination, which refused every choice, is asked again without an operator.

        A forwarder asks for as long as a message's patience: a proxy in front of a service that is being replaced may
        answer in its name. A source asks until its own patience is over, if any choice was refused for a cause that may
        pass.
        """
        unwelcome, policy, forwarding = outbox.lifecycle.unwelcome, outbox.policy.retransmission, outbox.forwarding
        first_at, times = (now, 0) if unwelcome is None else (unwelcome.first_at, unwelcome.times)
        if why.code in REFUSES_ACCOUNT:
            return False
        if forwarding is not None:
            # Both limits: a proxy that answers in the service's name does so many times a second.
            if times + 1 >= forwarding.refusals and now - first_at >= forwarding.patience:
                outbox.lifecycle.unwelcome = None
                return False
            pause = self._context.circuits.pause_after(forwarding.circuit, times)
        else:
            patience = policy.give_up_after
            if not outbox.lifecycle.put_off or (patience is not None and now - first_at >= patience):
                return False
            pause = min(policy.cap, policy.initial * 2.0 ** min(times, 30))
        said = f"{why.code}: {why.reason}" if why.code.startswith("HTTP ") else why.reason
        outbox.lifecycle.ask_later(Unwelcome(first_at, said, times + 1), now + pause)
        return True
