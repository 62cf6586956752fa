"""Ending: Sequences that a destination closes or terminates of its own accord (WS-RM 1.2 sections 3.5 and 3.6).

The source is told at AcksTo, a few times if it does not answer. One with an anonymous AcksTo cannot be told: it learns
from the answer to its next message, which is SequenceClosed with the final acknowledgement, or SequenceTerminated.
Neither learns of it while a request that was accepted awaits its reply: it would give that up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.destination import RMDestination
from holdfast.core.events import Effect, Transmit
from holdfast.core.faults import SEQUENCE_TERMINATED, sequence_fault
from holdfast.core.inbound import Inbound
from holdfast.core.messages import CloseSequence, Envelope, TerminateSequence
from holdfast.core.states import DestinationAction, DestinationEvent
from holdfast.core.timers import Deadlines

ATTEMPTS = 5
"""So often the source is told; one that stays silent finds out when it asks."""

FIRST_REPEAT = 2.0
"""Seconds until it is told again; doubled each time."""


@dataclass(slots=True)
class _Telling:
    message_id: str | None
    """None: by a fault, which is told once."""
    attempts: int = 0


class Ending:
    """Tells sources that their Sequence is over.

    Args:
        inbound: The Sequences.
        commit: What is said waits for it.
        effects: Where transmissions go.
        new_identifier: Makes a URI never used before.
    """

    def __init__(
        self, inbound: Inbound, commit: GroupCommit, effects: list[Effect], new_identifier: Callable[[], str]
    ) -> None:
        self._inbound = inbound
        self._commit = commit
        self._effects = effects
        self._new_identifier = new_identifier
        self._telling: dict[str, _Telling] = {}
        self._deadlines = Deadlines()

    def begin(self, destination: RMDestination, *, terminate: bool, now: float) -> None:
        """Close the Sequence: it takes no new message; or terminate it: it is over. 1.0 knows only the fault."""
        event = DestinationEvent.DECIDE_TO_TERMINATE if terminate else DestinationEvent.DECIDE_TO_CLOSE
        action = destination.handle(event)
        if action is None:
            destination.handle(DestinationEvent.EXPIRED)
            self._telling[destination.identifier] = _Telling(None)
            self._inbound.end(destination, None, partial(self._tell, destination), now)
        elif action is not DestinationAction.NOTHING:
            self._telling[destination.identifier] = _Telling(self._new_identifier())
            self._inbound.end(destination, None, partial(self._tell, destination), now)

    def answered(self, identifier: str) -> None:
        """CloseSequenceResponse or TerminateSequenceResponse came."""
        self._telling.pop(identifier, None)
        self._deadlines.forget(identifier)

    def pump(self, now: float) -> None:
        """Tell again who has not answered."""
        for identifier in self._deadlines.due(now):
            destination = self._inbound.destinations.get(identifier)
            if destination is not None:
                self._tell(destination, now)

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return self._deadlines.next()

    def _tell(self, destination: RMDestination, now: float) -> None:
        telling = self._telling.get(destination.identifier)
        if telling is None:
            return
        if destination.acks_to.is_anonymous:
            self.answered(destination.identifier)
            return
        if not destination.may_tell_end:
            self._deadlines.want(destination.identifier, now + FIRST_REPEAT)
            return
        if telling.message_id is None:
            self.answered(destination.identifier)
            self._tell_fault(destination)
            return
        telling.attempts += 1
        if telling.attempts > ATTEMPTS or destination.is_over:
            self.answered(destination.identifier)
            return
        envelope = self._envelope(destination)
        envelope.message_id = telling.message_id
        is_closed = destination.is_closed
        envelope.control = (CloseSequence if is_closed else TerminateSequence)(destination.identifier)
        envelope.acknowledgements = (destination.acknowledgement(),)
        self._effects.append(Transmit(destination.acks_to.address, envelope))
        self._deadlines.want(destination.identifier, now + FIRST_REPEAT * 2.0 ** (telling.attempts - 1))

    def _tell_fault(self, destination: RMDestination) -> None:
        envelope = self._envelope(destination)
        envelope.fault = sequence_fault(SEQUENCE_TERMINATED, destination.identifier)
        self._effects.append(Transmit(destination.acks_to.address, envelope))

    @staticmethod
    def _envelope(destination: RMDestination) -> Envelope:
        versions = destination.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to=destination.acks_to.address)
        envelope.reference_parameters = destination.acks_to.reference_parameters
        return envelope
