"""Acknowledging: when an addressable AcksTo hears what it may hear. An anonymous one hears it in every answer.

Owns the count of messages it has not heard of, and the timer: when it hears, never what. That is the destination's to
say.
"""

from __future__ import annotations

from holdfast.core.destination import RMDestination
from holdfast.core.events import BackChannel, Effect, Respond, Transmit
from holdfast.core.inbound import Inbound
from holdfast.core.messages import Acknowledge, Envelope
from holdfast.core.policy import DestinationPolicy
from holdfast.core.timers import Deadlines

_ACKNOWLEDGE = Acknowledge()  # it says nothing by itself


class Acknowledging:
    """Sends stand-alone acknowledgements.

    Args:
        inbound: The Sequences.
        policy: How long and for how many messages one may wait.
        effects: Where transmissions go.
    """

    def __init__(self, inbound: Inbound, policy: DestinationPolicy, effects: list[Effect]) -> None:
        self._inbound = inbound
        self._policy = policy
        self._effects = effects
        self._owed: dict[str, int] = {}
        self._due = Deadlines()

    def acknowledge(
        self, destination: RMDestination, back_channel: BackChannel | None, now: float, *, at_once: bool = False
    ) -> None:
        """Acknowledge: in the answer to an anonymous sender; soon, with others, to an addressable AcksTo."""
        if destination.acks_to.is_anonymous:
            if back_channel is None:
                return
            acknowledgement = destination.acknowledgement()
            envelope = None
            # Where one of nothing may be misunderstood, it goes to whom has asked for it: WCF expects it then.
            if at_once or acknowledgement.ranges or destination.versions.rm.can.acknowledges_nothing:
                versions = destination.versions
                envelope = Envelope(versions.soap, versions.addressing, versions.rm)
                envelope.control = _ACKNOWLEDGE
                envelope.acknowledgements = (acknowledgement,)
            self._effects.append(Respond(back_channel, envelope))
            return
        if back_channel is not None:
            self._effects.append(Respond(back_channel, None))
        elif destination.accept_acks_to is None and not at_once:
            return  # replies at a source: acknowledged on its next request
        self.owe(destination, now, at_once=at_once)

    def owe(self, destination: RMDestination, now: float, *, at_once: bool = False) -> None:
        """There is one more message to acknowledge: soon, together with others; or at once.

        A source that ended its Sequence without all its replies listens no more: it hears nothing, least of all that a
        request is acknowledged whose reply is still to be made.
        """
        if destination.is_over and destination.waived:
            return
        owed = self._owed[destination.identifier] = self._owed.get(destination.identifier, 0) + 1
        if at_once or owed >= self._policy.acknowledgement_count:
            self._send(destination.identifier)
        else:
            self._due.want(destination.identifier, now + self._policy.acknowledgement_interval)

    def forget(self, identifier: str) -> None:
        """The Sequence is over."""
        self._owed.pop(identifier, None)
        self._due.forget(identifier)

    def pump(self, now: float) -> None:
        """Send what is due."""
        for identifier in self._due.due(now):
            self._send(identifier)

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return self._due.next()

    def _send(self, identifier: str) -> None:
        self._owed.pop(identifier, None)
        self._due.forget(identifier)
        destination = self._inbound.destinations.get(identifier)
        if destination is None or destination.acks_to.is_anonymous:
            return
        versions, acks_to = destination.versions, destination.acks_to
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to=acks_to.address)
        envelope.reference_parameters = acks_to.reference_parameters
        envelope.control = _ACKNOWLEDGE
        envelope.acknowledgements = (destination.acknowledgement(),)
        self._effects.append(Transmit(acks_to.address, envelope))
