"""State tables of both ends as data: whatever moves from state to state does so by one of them.

Rows and columns of an inbound and an outbound Sequence follow the non-normative state tables of WS-RM 1.2 (appendix D).
A cell is (what to do, next state). What a cell says is done, and nothing else is done about its event. An event is the
peer's or ours. Where a table has no cell for what a peer did, the peer is told that it speaks of an unknown Sequence.
Where it has none for what we did (a call, a timer), that is a mistake of ours, and an error: :class:`NoSuchMove`.

This room owns states, events, actions and cells. It knows no object that has a state. Open ``outbound`` first;
``inbound`` has the tables of the other end, ``outbox`` those of what outlives a Sequence. ``drawing`` makes the
diagrams of the docs (``python -m holdfast.core.states``).
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
from holdfast.core.states.table import (
    Event,
    NoSuchMove,
    absent,
)

__all__ = [
    "CIRCUIT_TABLE",
    "DESTINATION_TABLES",
    "DOUBT_TABLE",
    "END_TABLE",
    "OUTBOX_TABLE",
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
    "absent",
    "diagram",
]
