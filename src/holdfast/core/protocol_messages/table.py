"""Controls: what takes each kind of RM protocol message, and what it may be answered with. One row a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, get_args

from holdfast.core.messages import (
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    LastMessage,
    MakeConnection,
    RequestAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.protocol_messages.make_connection import ReceivedPolls
from holdfast.core.protocol_messages.sequence_creation import SequenceCreation
from holdfast.core.protocol_messages.sequence_termination import SequenceTermination
from holdfast.core.receiving.acknowledgements import Acknowledgements
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.states.inbound import DestinationEvent


class Takers(Protocol):
    """The rooms that take RM protocol messages."""

    acknowledging: Acknowledgements
    ending: SequenceTermination
    granting: SequenceCreation
    inbound: Inbound
    polling: ReceivedPolls


@dataclass(frozen=True, slots=True)
class Row:
    """Handling of one kind of RM protocol message.

    Args:
        answers: Possible answers, besides a fault. Empty: the message is itself an answer, and has none.
        event: Its event for the inbound Sequence that it names, if it concerns the end of that Sequence.
    """

    take: Callable[[Takers, Incoming], None]
    answers: frozenset[type[Control]] = frozenset()
    event: DestinationEvent | None = None

    def yields(self, takers: Takers, control: Control) -> bool:
        """Whether a fault for another header may replace the answer to this message (WS-RM 3.2).

        It may if the message is itself an answer, which has none, or the first request that ends a Sequence: a repeat
        of that request gets the response. Other protocol messages report the fault in their own answers. The sender of
        a CreateSequence would take the fault for a refusal.
        """
        # WS-RM 3.2: the fault for another header must not cost the message its own answer.
        if self.event is None:
            return not self.answers
        destination = takers.inbound.destinations.get(getattr(control, "identifier", ""))
        return destination is not None and destination.moves_at(self.event)


_HEADERS_ALONE = Row(
    lambda takers, incoming: takers.acknowledging.answer(incoming),
    answers=frozenset({Acknowledge}),
)

CONTROLS: dict[type[Control], Row] = {
    CreateSequence: Row(
        lambda takers, incoming: takers.granting.create(incoming),
        answers=frozenset({CreateSequenceResponse}),
    ),
    CreateSequenceResponse: Row(lambda takers, incoming: takers.granting.created(incoming)),
    CloseSequence: Row(
        lambda takers, incoming: takers.ending.close(incoming),
        answers=frozenset({CloseSequenceResponse}),
        event=DestinationEvent.CLOSE_SEQUENCE,
    ),
    CloseSequenceResponse: Row(lambda takers, incoming: takers.ending.closed(incoming)),
    TerminateSequence: Row(
        lambda takers, incoming: takers.ending.terminate(incoming),
        answers=frozenset({TerminateSequenceResponse, TerminateSequence}),
        event=DestinationEvent.TERMINATE_SEQUENCE,
    ),
    TerminateSequenceResponse: Row(lambda takers, incoming: takers.ending.terminated(incoming)),
    LastMessage: _HEADERS_ALONE,
    Acknowledge: _HEADERS_ALONE,
    RequestAcknowledgement: _HEADERS_ALONE,
    MakeConnection: Row(
        lambda takers, incoming: takers.polling.poll(incoming),
        answers=frozenset({Acknowledge}),  # and every message that waits for a poll
    ),
}
"""All kinds of protocol messages. A LastMessage in this list has no Sequence header, which would make it a message."""

assert CONTROLS.keys() == set(get_args(Control)), "every RM protocol message has a row"
