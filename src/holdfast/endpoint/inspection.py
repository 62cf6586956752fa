"""What a person wants to know of a Sequence, from its saved state: for the admin listener and the command line."""

from __future__ import annotations

from typing import Any

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Snapshot, State


def describe_sequence(state: State, now: float, held: int = 0) -> dict[str, Any]:
    """One Sequence in words and numbers.

    Returns:
        ``identifier, role, state, versions, ranges, gaps`` (ranges as text), ``count, highest, held, age`` (seconds),
        ``last_fault``, and what only one role has. ``awaiting``: numbers whose reply is not there.
    """
    rm, addressing, soap = state["versions"]
    shown: dict[str, Any] = {
        "identifier": state["identifier"] or "",
        "role": state["role"],
        "state": state["state"],
        "versions": f"RM {rm}, WSA {addressing}, SOAP {soap}",
        "last_fault": state["last_fault"],
    }
    if state["role"] == "destination":
        ranges = AcknowledgementRanges.from_state(state["accepted"])
        upper = state["last_message_number"] or ranges.highest
        shown |= {
            "partition": state["partition"],
            "acks_to": state["acks_to"][0],
            "offered": state["offered"],
            "behavior": state["behavior"],
            "next_in_order": state["next_in_order"],
            "held": held,
            "awaiting": state["awaiting"],
            "age": max(0.0, now - state["created_at"]),
            "expires_at": state["expires_at"],
        }
    else:
        ranges = AcknowledgementRanges.from_state(state["acknowledged"])
        upper = ranges.highest
        shown |= {"key": state["outbox"], "to": state["to"], "start": state["start"], "suspended": state["suspended"]}
    gaps = AcknowledgementRanges(ranges.gaps(upper))
    shown |= {"ranges": str(ranges), "gaps": str(gaps), "count": ranges.count, "highest": ranges.highest}
    return shown


def describe_snapshot(snapshot: Snapshot, now: float) -> list[dict[str, Any]]:
    """Every Sequence of a store, inbound ones first, by identifier."""
    shown = [
        describe_sequence(state, now, len(snapshot.held.get(identifier, ())))
        for identifier, state in snapshot.sequences.items()
    ]
    return sorted(shown, key=lambda one: (one["role"], one["identifier"]))
