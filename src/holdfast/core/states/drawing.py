"""Diagrams of the state tables for the docs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

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
    SOURCE_TABLES,
    DoubtAction,
    DoubtEvent,
    DoubtState,
    EndAction,
    EndEvent,
    EndState,
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
from holdfast.core.states.poller import POLLER_TABLE, PollerAction, PollerEvent, PollerState
from holdfast.core.states.table import Event
from holdfast.core.versions import RM


class Drawn(NamedTuple):
    """A table, and the order of its rows."""

    cells: Mapping[tuple[Any, Any], tuple[Any, Any]]
    states: type[Enum]
    events: type[Event]
    actions: type[Enum]


TABLES: dict[str, Drawn] = {
    **{
        f"destination-{rm.value}": Drawn(DESTINATION_TABLES[rm], DestinationState, DestinationEvent, DestinationAction)
        for rm in reversed(RM)
    },
    "settling": Drawn(SETTLING_TABLE, SettlingState, SettlingEvent, SettlingAction),
    **{f"source-{rm.value}": Drawn(SOURCE_TABLES[rm], SourceState, SourceEvent, SourceAction) for rm in reversed(RM)},
    "end": Drawn(END_TABLE, EndState, EndEvent, EndAction),
    "doubt": Drawn(DOUBT_TABLE, DoubtState, DoubtEvent, DoubtAction),
    "outbox": Drawn(OUTBOX_TABLE, OutboxState, OutboxEvent, OutboxAction),
    "circuit": Drawn(CIRCUIT_TABLE, CircuitState, CircuitEvent, CircuitAction),
    "withdrawal": Drawn(WITHDRAWAL_TABLE, WithdrawalState, WithdrawalEvent, WithdrawalAction),
    "poller": Drawn(POLLER_TABLE, PollerState, PollerEvent, PollerAction),
}
"""Every table, by the name of its diagram."""


def diagram(name: str) -> str:
    """Return the Mermaid state diagram of one of :data:`TABLES`."""
    aliases = {state: state.value.replace(",", "").replace(" ", "_") for state in TABLES[name].states}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {alias}' for state, alias in aliases.items() if alias != state.value]
    for (state, event), (action, after) in TABLES[name].cells.items():
        if state is not after:
            lines.append(f"    {aliases[state]} --> {aliases[after]}: {event.value} / {action.value}")
    return "\n".join(lines) + "\n"
