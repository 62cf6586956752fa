"""State tables of both endpoints, as data. Every change of state follows one of them.

The tables of an inbound and an outbound Sequence follow the non-normative state tables of WS-RM 1.2 (appendix D). A
cell is (action, next state). The code performs the cell's action for an event, and nothing else. An event is the peer's
or ours. If a table has no cell for the peer's event, the peer refers to an unknown Sequence and is answered
accordingly. If it has no cell for our own event (a call, a timer), Holdfast has a bug and raises :class:`NoSuchMove`.

This package owns states, events, actions and cells. It knows no object that has a state. Open ``outbound`` first.
``inbound`` has the tables of the other end, and ``outbox`` and ``poller`` those of objects that outlive a Sequence.
``drawing`` makes the diagrams of the docs (``python -m holdfast.core.states``).
"""

from __future__ import annotations

from holdfast.core.states.drawing import (
    TABLES,
    diagram,
)
from holdfast.core.states.inbound import (
    DESTINATION_TABLES,
    SETTLING_TABLE,
    DestinationAction,
    DestinationEvent,
    DestinationState,
    SettlingAction,
    SettlingEvent,
    SettlingState,
)
from holdfast.core.states.outbound import (
    DOUBT_TABLE,
    END_TABLE,
    REQUESTS,
    SOURCE_TABLES,
    DoubtAction,
    DoubtEvent,
    DoubtState,
    EndAction,
    EndEvent,
    EndState,
    Request,
    SourceAction,
    SourceEvent,
    SourceState,
)
from holdfast.core.states.outbox import (
    CIRCUIT_TABLE,
    OUTBOX_TABLE,
    WITHDRAWAL_TABLE,
    CircuitAction,
    CircuitEvent,
    CircuitState,
    OutboxAction,
    OutboxEvent,
    OutboxState,
    WithdrawalAction,
    WithdrawalEvent,
    WithdrawalState,
)
from holdfast.core.states.poller import (
    POLLER_TABLE,
    PollerAction,
    PollerEvent,
    PollerState,
)
from holdfast.core.states.table import (
    Event,
    NoSuchMove,
    step,
)

__all__ = [
    "CIRCUIT_TABLE",
    "DESTINATION_TABLES",
    "DOUBT_TABLE",
    "END_TABLE",
    "OUTBOX_TABLE",
    "POLLER_TABLE",
    "REQUESTS",
    "SETTLING_TABLE",
    "SOURCE_TABLES",
    "TABLES",
    "WITHDRAWAL_TABLE",
    "CircuitAction",
    "CircuitEvent",
    "CircuitState",
    "DestinationAction",
    "DestinationEvent",
    "DestinationState",
    "DoubtAction",
    "DoubtEvent",
    "DoubtState",
    "EndAction",
    "EndEvent",
    "EndState",
    "Event",
    "NoSuchMove",
    "OutboxAction",
    "OutboxEvent",
    "OutboxState",
    "PollerAction",
    "PollerEvent",
    "PollerState",
    "Request",
    "SettlingAction",
    "SettlingEvent",
    "SettlingState",
    "SourceAction",
    "SourceEvent",
    "SourceState",
    "WithdrawalAction",
    "WithdrawalEvent",
    "WithdrawalState",
    "diagram",
    "step",
]
