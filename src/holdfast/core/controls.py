"""Controls: what takes each kind of RM protocol message, and what it may be answered with. One row a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from holdfast.core.destination import RMDestination
from holdfast.core.events import BackChannel
from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Fault,
    LastMessage,
    RequestAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.states import DestinationEvent

if TYPE_CHECKING:
    from holdfast.core.protocol import RMProtocol


@dataclass(slots=True)
class Incoming:
    """A message without a Sequence header on its way to who takes it.

    Args:
        envelope: The message.
        back_channel: Where its answer may go; None if it came as an answer, or has its answer.
        now: Seconds.
        party: Whose it is, "" if that is not known.
        problem: The fault for another of its headers, None for none.
        asked: The Sequences with an anonymous AcksTo that it asks an acknowledgement of. An answer that is another's
            leaves them out: .NET reads one acknowledgement in it, and no second.
    """

    envelope: Envelope
    back_channel: BackChannel | None
    now: float
    party: str = ""
    problem: Fault | None = None
    asked: Sequence[RMDestination] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of one kind of RM protocol message.

    Args:
        take: Takes it.
        answers: What its answer may say, if that is no fault. Empty: it is an answer itself, and has none.
        event: What it is to the inbound Sequence that it names, if it is about the end of one.
    """

    take: Callable[[RMProtocol, Incoming], None]
    answers: frozenset[type[Control]] = frozenset()
    event: DestinationEvent | None = None

    def yields(self, protocol: RMProtocol, control: Control) -> bool:
        """Whether the fault for another of its headers may be the answer to it (WS-RM 3.2): for an answer, which has
        none, and for the first that ends a Sequence, whose repeat gets its response. What goes with the headers alone
        says it in its own answer, and a CreateSequence would be taken for refused."""
        if self.event is None:
            return not self.answers
        destination = protocol.inbound.destinations.get(getattr(control, "identifier", ""))
        return destination is not None and destination.moves_at(self.event)


_HEADERS_ALONE = Row(
    lambda protocol, incoming: protocol.acknowledging.answer(incoming),
    answers=frozenset({Acknowledge}),
)

CONTROLS: dict[type[Control], Row] = {
    CreateSequence: Row(
        lambda protocol, incoming: protocol.granting.create(incoming),
        answers=frozenset({CreateSequenceResponse}),
    ),
    CreateSequenceResponse: Row(lambda protocol, incoming: protocol.granting.created(incoming)),
    CloseSequence: Row(
        lambda protocol, incoming: protocol.ending.close(incoming),
        answers=frozenset({CloseSequenceResponse}),
        event=DestinationEvent.CLOSE_SEQUENCE,
    ),
    CloseSequenceResponse: Row(lambda protocol, incoming: protocol.ending.closed(incoming)),
    TerminateSequence: Row(
        lambda protocol, incoming: protocol.ending.terminate(incoming),
        answers=frozenset({TerminateSequenceResponse, TerminateSequence}),
        event=DestinationEvent.TERMINATE_SEQUENCE,
    ),
    TerminateSequenceResponse: Row(lambda protocol, incoming: protocol.ending.terminated(incoming)),
    LastMessage: _HEADERS_ALONE,
    Acknowledge: _HEADERS_ALONE,
    RequestAcknowledgement: _HEADERS_ALONE,
}
"""Every kind there is; a LastMessage here is one without the Sequence header that would make it a message."""

assert CONTROLS.keys() == set(get_args(Control)), "every RM protocol message has a row"
