"""Acknowledging: when an addressable AcksTo hears what it may hear. An anonymous one hears it in every answer.

Owns the count of messages it has not heard of, and the timer. What may be acknowledged is the destination's to say.
"""

from __future__ import annotations

from holdfast.core.destination import RMDestination
from holdfast.core.events import Effect, Transmit
from holdfast.core.inbound import Inbound
from holdfast.core.messages import Acknowledge, Envelope
from holdfast.core.policy import DestinationPolicy
from holdfast.core.source import RMSource
from holdfast.core.timers import Deadlines


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
        self._replied: dict[str, dict[int, int]] = {}
        """Of each Sequence, requests whose replies are not acknowledged. Not saved: after a crash they are
        acknowledged at once, since that they are accepted is all that is known."""
        self._due = Deadlines()

    def owe(self, destination: RMDestination, now: float, *, at_once: bool = False) -> None:
        """There is one more message to acknowledge: soon, together with others; or at once."""
        owed = self._owed[destination.identifier] = self._owed.get(destination.identifier, 0) + 1
        if at_once or owed >= self._policy.acknowledgement_count:
            self._send(destination.identifier)
        else:
            self._due.want(destination.identifier, now + self._policy.acknowledgement_interval)

    def owe_after_reply(self, destination: RMDestination, number: int, reply_number: int) -> None:
        """Acknowledge request ``number`` once its sender has acknowledged the reply to it.

        A client of CXF's that got no HTTP answer to a request takes no reply before it has sent the request again,
        which it does until that is acknowledged.
        """
        self._replied.setdefault(destination.identifier, {})[number] = reply_number

    def replies_acknowledged(self, destination: RMDestination, replies: RMSource, now: float) -> None:
        """The sender of the requests acknowledged replies to them."""
        replied = self._replied.get(destination.identifier, {})
        for number in [number for number, reply in replied.items() if reply in replies.acknowledged]:
            del replied[number]
            destination.acknowledge(number)
            self.owe(destination, now)

    def forget(self, identifier: str) -> None:
        """The Sequence is over."""
        self._owed.pop(identifier, None)
        self._due.forget(identifier)
        self._replied.pop(identifier, None)

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
        envelope.control = Acknowledge()
        envelope.acknowledgements = (destination.acknowledgement(),)
        self._effects.append(Transmit(acks_to.address, envelope))
