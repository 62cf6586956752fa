"""A simulated stranger that knows every Sequence Identifier, but no secret, certificate or open exchange.

It posts forged acknowledgements, Nacks, faults, closures and terminations to every endpoint it can reach. None of these
messages may change the Sequence it names.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.events import Transmit
from holdfast.core.faults import REASONS, sequence_fault
from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    Envelope,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.receiving.answers import envelope_in
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.simulation.actors.reader import At
from holdfast.simulation.nodes.node import REFUSED, STRANGER, Arrival, Journey, Node
from holdfast.simulation.nodes.words import describe
from holdfast.simulation.promises.invariant import InvariantViolation

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "StrangersAreIgnored"
FORGED_FAULTS = tuple(REASONS)
CONTROLS: dict[str, Callable[[str], Control]] = {
    "terminate": TerminateSequence,
    "close": CloseSequence,
    "closed": CloseSequenceResponse,
    "terminated": TerminateSequenceResponse,
}


class Stranger:
    """Posts forged messages to the endpoints of a world.

    Args:
        world: The endpoints.
        at: Schedules an event, in seconds from now.
        chance: Chooses what is forged, and when.
        open_: Called with each forged request on arrival; the response is discarded.
        is_certified: Whether the endpoints use client certificates, which also protect inbound Sequences.
    """

    def __init__(
        self, world: World, at: At, chance: random.Random, open_: Callable[[Arrival], None], *, is_certified: bool
    ) -> None:
        self.world = world
        self._at = at
        self._chance = chance
        self._open = open_
        self._is_certified = is_certified

    def begin(self, times: int, storm: float) -> None:
        """Schedule forged messages during the storm."""
        for _ in range(times):
            self._at(storm * self._chance.random(), self._forge)

    def _forge(self) -> Node | None:
        targets: list[tuple[Node, Outbox | RMDestination]] = []
        for node in self.world.nodes:
            if not node.is_listening or not node.setup.address:
                continue
            for outbox in node.protocol.outbound.outboxes.values():
                source = outbox.source
                # Any peer may speak about replies to an unknown requester, so only certificates protect these.
                is_guarded = self._is_certified or not outbox.is_for_replies
                if source is not None and source.identifier is not None and is_guarded:
                    targets.append((node, outbox))
            if self._is_certified:
                owned = [one for one in node.protocol.inbound.destinations.values() if one.party]
                targets += [(node, one) for one in owned]
        if not targets:
            return None
        node, target = self._chance.choice(targets)
        if isinstance(target, RMDestination):
            return self._post(node, self._about_inbound(target), lambda: target.to_state())
        source = target.source
        assert source is not None
        return self._post(node, self._about_outbound(source), partial(_state_of, target))

    def _post(self, node: Node, envelope: Envelope, state: Callable[[], dict[str, Any]]) -> Node:
        """Deliver a forged message, and compare the state of the named Sequence before and after."""
        journey = Journey(STRANGER, 0, Transmit(node.setup.address, envelope), node.index, 0, has_failed=True)
        arrival = Arrival(journey, node.run, None)
        self._open(arrival)
        self.world.count("forged")
        self.world.note(lambda: f"a stranger posts to {node.name}: {describe(envelope)}")
        before = state()
        node.receive(arrival)
        after = state()
        if after != before:
            changed = sorted(name for name in before if before[name] != after.get(name))
            raise InvariantViolation(
                INVARIANT, f"{node.name} accepts a stranger's {describe(envelope)}: it changed {', '.join(changed)}"
            )
        return node

    # --- forged messages ------------------------------------------------------------------------------------------

    def _about_outbound(self, source: RMSource) -> Envelope:
        identifier = source.identifier
        assert identifier is not None
        envelope = self._envelope(source.versions)
        highest = max(1, source.numbers.highest_sent)
        kinds = ["acknowledgement", "fault", "terminate"]
        if source.versions.rm.can.rollover_ends:
            kinds.append("nack")
        else:
            kinds += ["nack", "final", "close", "closed", "terminated"]
        if source.waiting.unreplied:
            kinds.append("refusal")
        kind = self._chance.choice(kinds)
        if kind in ("acknowledgement", "final"):
            said = SequenceAcknowledgement(identifier, ((1, highest),), final=kind == "final")
            envelope.acknowledgements, envelope.control = (said,), Acknowledge()
        elif kind == "nack":
            said = SequenceAcknowledgement(identifier, nacks=(self._chance.randint(1, highest),))
            envelope.acknowledgements, envelope.control = (said,), Acknowledge()
        elif kind == "fault":
            envelope.fault = sequence_fault(self._chance.choice(FORGED_FAULTS), identifier)
        elif kind == "refusal":
            envelope.relates_to = self._chance.choice([*source.waiting.unreplied.values()])
            envelope.fault = replace(REFUSED)
        else:
            envelope.control = CONTROLS[kind](identifier)
        return envelope

    def _about_inbound(self, destination: RMDestination) -> Envelope:
        identifier = destination.identifier
        envelope = self._envelope(destination.versions)
        kinds = ["message", "ask", "fault", "terminate"]
        if not destination.versions.rm.can.rollover_ends:
            kinds.append("close")
        kind = self._chance.choice(kinds)
        if kind == "message":
            envelope.action, envelope.body = "urn:request", b"forged"
            envelope.sequence = Sequence(identifier, destination.accepted.first_gap)
        elif kind == "ask":
            envelope.ack_requested, envelope.control = (AckRequested(identifier),), RequestAcknowledgement()
        elif kind == "fault":
            envelope.fault = sequence_fault(self._chance.choice(FORGED_FAULTS), identifier)
        else:
            envelope.control = CONTROLS[kind](identifier)
        return envelope

    def _envelope(self, versions: Versions) -> Envelope:
        envelope = envelope_in(versions)
        envelope.message_id = f"urn:stranger:{self._chance.randrange(2**32)}"
        return envelope


def _state_of(outbox: Outbox) -> dict[str, Any]:
    """Return the state that a message about the outbox's Sequence could change, both saved and in memory."""
    source = outbox.source
    if source is None:
        return {"sequence": None}
    return {
        **source.to_state(),
        "sequence": source.local_id,
        "in flight": [(number, entry.due) for number, entry in source.flight.items()],
        "awaited replies": sorted(source.waiting.unreplied),
        "last fault": source.last_fault,
        "refusals": {offset: refusal.times for offset, refusal in outbox.refusals.items()},
        "stopped": outbox.lifecycle.stopped,
        "first": outbox.records.first,
    }
