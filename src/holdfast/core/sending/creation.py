"""Creation of outbound Sequences: CreateSequence, its grant and its refusal (WS-RM 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Incident, Transmit
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED
from holdfast.core.messages import CreateSequenceResponse
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.composer import Offered
from holdfast.core.sending.exchanges import Happen
from holdfast.core.sending.identifier_claims import ClaimResult, claim_grant
from holdfast.core.sending.outbox import Choice, Outbox
from holdfast.core.sending.reasons import NO_REASON, Why
from holdfast.core.sending.unusable_grants import why_unusable
from holdfast.core.states import Request, SourceEvent, SourceState

if TYPE_CHECKING:
    from holdfast.core.sending.outbound import Outbound

MOST_IGNORED_OFFERS = 3
"""Sequences in a row that are given up because the answer to a repeated CreateSequence accepted no Offer. The next
Sequence is used as it is, as that of a destination that never accepts an Offer."""

MOST_CUT = 4
"""Connections that end without an answer to CreateSequence, in a row, before the next version is tried. A network that
loses a fifth of all messages each way does so to one Sequence in sixty."""


class OutboundCreation:
    """Creates the Sequences of one side's outboxes.

    Args:
        outbound: The outboxes.
        happen: Moves a Sequence by its table.
        offered: The Sequences that this side offered for replies.
        new_identifier: Makes a URI never used before.
    """

    def __init__(self, outbound: Outbound, happen: Happen, offered: Offered, new_identifier: Callable[[], str]) -> None:
        self._outbound = outbound
        self._new_identifier = new_identifier
        self._happen = happen
        self._offered = offered
        self._detected: dict[str, str] = {}
        """Address that refused other versions first -> the versions that it supports."""
        self._secrets: dict[str | None, str] = {}
        """Address of a peer -> the secret in the address that it was told."""

    def adopt(self, outbox: Outbox, source: RMSource) -> None:
        """Remember which secret the peer of a Sequence knows."""
        if source.secret:
            self._secrets[outbox.to] = source.secret

    def begin(self, outbox: Outbox, choice: Choice, now: float) -> None:
        """Save a new Sequence, and then create it at the destination."""
        versions, with_offer = choice
        outbound = self._outbound
        source = RMSource(self._new_identifier(), outbox.key, versions, outbox.policy, now)
        source.start = outbox.first
        source.offer = self._new_identifier() if with_offer else None
        source.message_ids[Request.CREATE.value] = source.local_id
        source.address = outbox.address
        if not outbound.is_anonymous(source):
            source.secret = self._secrets.get(outbox.to) or self._new_identifier().rpartition(":")[2]
        outbound.adopt(outbox, source)
        outbound.commit.save_new(source.local_id, source, outbox.queue.name, outbox.partition)
        outbound.commit.then(partial(self._create, outbox, source))

    def _create(self, outbox: Outbox, source: RMSource, now: float) -> None:
        if outbox.source is source:
            source.create(now)
            self._outbound.ready(outbox)

    def receive(self, response: CreateSequenceResponse, relates_to: str | None, now: float) -> RMSource | None:
        """Return the Sequence that a CreateSequenceResponse opened, None for none. It is used once that is durable."""
        outbound = self._outbound
        outbox = outbound.sources.get(relates_to or "")
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None:
            return None
        if source.state is SourceState.CREATING:
            reason = why_unusable(response, source, outbox, outbound.named(response.identifier), self._offered)
            if not reason:
                result, reason = claim_grant(outbound.claims, source, outbox.to, response.identifier)
                if result is ClaimResult.UNKNOWN:
                    # As if the response was lost: CreateSequence is repeated, and by then the workers have started.
                    detail = {"key": outbox.key, "reason": result.value}
                    outbound.effects.append(Incident("sequence.grant_ignored", response.identifier, detail=detail))
                    return None
            if reason:
                why = Why(CREATE_SEQUENCE_REFUSED, reason)
                self._happen(outbox, source, SourceEvent.CREATE_SEQUENCE_REFUSED, now, why)
                return None
        if not source.created(response.identifier, response.expires, now):
            return None
        outbound.name(source, response.identifier)
        accept = response.accept_acks_to
        if source.offer is not None and (accept is None or accept.is_none):
            if outbox.is_repeated_creation(source) and outbox.ignored_offers < MOST_IGNORED_OFFERS:
                self._offer_another(outbox, source, response.identifier, now)
                return None
            outbound.by_offer.pop(source.offer, None)
            source.offer = None
        self._tell_versions(outbox, source)
        outbox.ignored_offers = outbox.cut_creations = 0
        outbox.refused.clear()
        outbox.unwelcome = None
        source.behavior = response.incomplete_sequence_behavior
        outbound.marking.save(source)
        self._outbound.commit.then(partial(self._opened, outbox, source))
        self._outbound.effects.append(Incident("sequence.created", response.identifier, detail={"key": outbox.key}))
        return source

    def _tell_versions(self, outbox: Outbox, source: RMSource) -> None:
        """Report which versions a destination speaks, once for each address, if it refused others first."""
        versions = source.versions.in_words
        refused = {one.in_words for one, _ in outbox.refused} - {versions}
        if refused and self._detected.get(outbox.to or "") != versions:
            self._detected[outbox.to or ""] = versions
            detail = {"to": outbox.to, "versions": versions, "refused": "; ".join(sorted(refused))}
            self._outbound.effects.append(Incident("versions.detected", detail=detail))

    def _offer_another(self, outbox: Outbox, source: RMSource, identifier: str, now: float) -> None:
        """Give up a Sequence granted without Accept, and offer another Sequence with the next CreateSequence. Sandesha2
        accepts the Offer of the first CreateSequence only: of a repeat it says nothing, and it would never reply."""
        self._outbound.drop(outbox, source, now)
        outbox.ignored_offers += 1
        self._outbound.effects.append(Incident("offer.ignored", identifier, detail={"key": outbox.key}))
        self._outbound.ready(outbox)

    def _opened(self, outbox: Outbox, source: RMSource, now: float) -> None:
        self._happen(outbox, source, SourceEvent.GRANT_DURABLE, now, NO_REASON)

    def cut(self, sent: Transmit, now: float) -> None:
        """A connection ended, or stayed silent, where a CreateSequence was to be answered. Instead of a refusal, a peer
        may do that to a version that it does not speak (WCF's server does): after a few times the next one is tried.
        Each is tried so once; then what came first is repeated, for the peer may just be away."""
        outbox = self._outbound.sources.get(sent.source)
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None or source.state is not SourceState.CREATING:
            return
        outbox.cut_creations += 1
        versions = source.versions
        left = [choice for choice in outbox.choices if choice not in outbox.refused]
        count = len({one for one, _ in left})
        if outbox.cut_creations % MOST_CUT or outbox.cut_creations > count * MOST_CUT or count == 1:
            return
        outbox.choices.sort(key=lambda choice: choice[0] == versions)
        detail = {"key": outbox.key, "code": "no answer", "reason": "the peer ended the connection without an answer"}
        self._outbound.effects.append(
            Incident("sequence.refused", level="debug", detail=detail | {"versions": versions.in_words})
        )
        self._outbound.drop(outbox, source, now)
        self._outbound.ready(outbox)

    def refused(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Try the outbox's next choice after a refused CreateSequence; without one, ask again later or stop."""
        # CXF refuses a repeated CreateSequence, the first of which it granted: its Offer is in use. Another one is not.
        is_new = source.offer is None or not outbox.is_repeated_creation(source)
        self._outbound.drop(outbox, source, now)
        if is_new:
            outbox.refuse((source.versions, source.offer is not None))
        detail = {"key": outbox.key, "code": why.code, "reason": why.reason, "versions": source.versions.in_words}
        if outbox.next_choice is not None:
            self._outbound.effects.append(Incident("sequence.refused", level="debug", detail=detail))
        else:
            self._outbound.effects.append(Incident("sequence.refused", level="warning", detail=detail))
            giving_up = self._outbound.forwarders.giving_up if outbox.forwarding is not None else None
            if giving_up is None or not giving_up.asks_again(outbox, why.reason, now):
                self._outbound.stop(outbox, why.code, why.reason, now)
        self._outbound.ready(outbox)
