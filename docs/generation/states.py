"""The state tables, drawn."""

from __future__ import annotations

import importlib


def states(name: str) -> str:
    """Return one diagram and its table."""
    module = importlib.import_module("holdfast.core.states.drawing")
    table = module.TABLES[name]
    lines = ["```mermaid", module.diagram(name).rstrip(), "```", "", "| state | event | origin | action | next state |"]
    lines.append("| --- | --- | --- | --- | --- |")
    order, events = list(table.states), list(table.events)
    for state, event in sorted(table.cells, key=lambda cell: (order.index(cell[0]), events.index(cell[1]))):
        action, after = table.cells[state, event]
        origin = "ours" if event.is_ours else "the peer's"
        moved = after.value if after is not state else "—"
        lines.append(f"| {state.value} | {event.value} | {origin} | {action.value} | {moved} |")
    return "\n".join(lines)


def tables() -> list[str]:
    """Return the names of the state tables."""
    return list(importlib.import_module("holdfast.core.states.drawing").TABLES)
