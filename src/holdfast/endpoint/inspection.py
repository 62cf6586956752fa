"""Reports on Sequences and waiting messages, for the admin listener and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.protocol import RMProtocol
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import StoredOutbox, replies_queue, stored_outboxes
from holdfast.core.states.outbound import SourceState
from holdfast.endpoint.engine.engine import Engine


def describe_sequence(state: State, now: float, waiting: int) -> dict[str, Any]:
    """Describe one Sequence.

    Args:
        now: Seconds since 1970-01-01 UTC.
        waiting: Messages that a destination holds until lower numbers arrive, or that a source has not had
            acknowledged.

    Returns:
        ``identifier, role, state, versions, ranges, gaps`` (ranges as text), ``count, highest, waiting, age``
        (seconds), ``last_fault``, and the fields of its role. ``awaiting``: numbers without their reply. ``ending``:
        whether it ends once every transmitted message is acknowledged.
    """
    rm, addressing, soap = state["versions"]
    shown: dict[str, Any] = {
        "identifier": state["identifier"] or "",
        "role": state["role"],
        "state": state["state"],
        "versions": f"RM {rm}, WSA {addressing}, SOAP {soap}",
        "last_fault": state["last_fault"],
        "waiting": waiting,
        "age": max(0.0, now - state["created_at"]) if "created_at" in state else None,
        "expires_at": state["expires_at"],
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
            "awaiting": state["awaiting"],
            "suspended": held_back(state.get("suspended")),
        }
    else:
        ranges = AcknowledgementRanges.from_state(state["acknowledged"])
        upper = ranges.highest
        shown |= {"key": state["outbox"], "to": state["to"], "start": state["start"], "suspended": ""}
        shown["acks_to"] = state.get("acks_to") or None
        # An operator's wish to close it lowers the limit to what may have left: `Steering.end_outbound`.
        shown["ending"] = state["state"] == SourceState.CREATED.value and state["limit"] <= state["mark"]
    return shown | _describe_ranges(ranges, upper)


def _describe_ranges(ranges: AcknowledgementRanges, upper: int) -> dict[str, Any]:
    gaps = AcknowledgementRanges(ranges.gaps(upper))
    return {"ranges": str(ranges), "gaps": str(gaps), "count": ranges.count, "highest": ranges.highest}


def describe_snapshot(snapshot: Snapshot, now: float) -> list[dict[str, Any]]:
    """Describe every Sequence of a store, inbound ones first, by identifier; and, as one without an identifier in state
    ``none``, every outbox with waiting messages that has requested no Sequence yet."""
    outboxes = {outbox.key: outbox for outbox in stored_outboxes(snapshot)}
    shown = []
    for identifier, state in snapshot.sequences.items():
        if state["role"] == "destination":
            shown.append(describe_sequence(state, now, len(snapshot.held.get(identifier, ()))))
            continue
        outbox = outboxes.pop(state["outbox"], None) or _of_replies(state)
        one = describe_sequence(state, now, _unacknowledged(state, outbox, snapshot))
        one["to"] = outbox.about["to"]
        one["suspended"] = outbox.about["stopped"] or held_back(outbox.about.get("suspended"))
        shown.append(one)
    for outbox in outboxes.values():
        first, end = snapshot.bounds.get((outbox.queue, outbox.partition), (0, 0))
        waiting = end - max(first, outbox.about.get("offset", first))
        if waiting > 0:
            shown.append(_describe_outbox(outbox, waiting))
    return sorted(shown, key=lambda one: (one["role"], one["identifier"], one.get("key", "")))


def describe_protocol(protocol: RMProtocol, now: float) -> list[dict[str, Any]]:
    """Return the report on a running endpoint."""
    return describe_parts(protocol.inbound.destinations.values(), protocol.outbound.outboxes.values(), now)


def describe_parts(
    destinations: Iterable[RMDestination], outboxes: Iterable[Outbox], now: float
) -> list[dict[str, Any]]:
    """Return the report on some of its Sequences: inbound ones, and those that carry outboxes."""
    snapshot = Snapshot()
    for destination in destinations:
        snapshot.sequences[destination.identifier] = destination.to_state()
        snapshot.held[destination.identifier] = list(destination.held)
    for outbox in outboxes:
        where = outbox.records.queue.name, outbox.records.partition
        snapshot.bounds[where] = (
            outbox.records.queue.partitions[outbox.records.partition].first,
            outbox.records.durable_end,
        )
        snapshot.cursors[*where, outbox.records.cursor] = outbox.about() | {"offset": outbox.records.first}
        if outbox.source is not None:
            snapshot.sequences[outbox.source.local_id] = outbox.source.to_state()
    return describe_snapshot(snapshot, now)


def describe_flight(outbox: Outbox, now: float) -> dict[str, Any] | None:
    """Describe the messages in flight of an outbox's Sequence: its window, how many numbers are in flight, the next
    one, the retransmission timeout in seconds, and the seconds since its destination was last heard. None without a
    Sequence."""
    source = outbox.source
    if source is None:
        return None
    return {
        "window": source.pace.size,
        "in_flight": len(source.flight),
        "next_number": source.numbers.next,
        "retransmission_timeout": source.pace.round_trip.timeout,
        "last_heard": max(0.0, now - source.life.last_heard),
    }


def held_back(reason: str | None) -> str:
    """Return that an operator suspended it, and why; "" if not."""
    return "" if reason is None else f"held back: {reason}" if reason else "held back"


def _of_replies(state: State) -> StoredOutbox:
    """The outbox of replies, of which nothing is known but its Sequence."""
    return StoredOutbox(state["outbox"], replies_queue(state["outbox"]), 0, {"to": state["to"], "stopped": ""})


def _unacknowledged(state: State, outbox: StoredOutbox, snapshot: Snapshot) -> int:
    """Return the number of unacknowledged messages of an outbound Sequence; 1.0's LastMessage does not count."""
    _, end = snapshot.bounds.get((outbox.queue, outbox.partition), (0, 0))
    acknowledged = AcknowledgementRanges.from_state(state["acknowledged"])
    if state["last_number"] is not None:
        acknowledged.discard(state["last_number"])
    behind = AcknowledgementRanges.from_state(outbox.about.get("left_out", [])).count
    return max(0, int(end) - int(state["start"]) - acknowledged.count - behind)


def _describe_outbox(outbox: StoredOutbox, waiting: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"identifier": "", "role": "source", "state": SourceState.NONE.value, "versions": ""}
    shown |= {"last_fault": "", "waiting": waiting, "age": None, "expires_at": None}
    shown |= {"key": outbox.key, "to": outbox.about["to"], "start": None}
    shown["suspended"] = outbox.about["stopped"] or held_back(outbox.about.get("suspended"))
    return shown | _describe_ranges(AcknowledgementRanges(), 0)


async def describe_queue(engine: Engine, queue: Queue) -> dict[str, Any]:
    """Describe a queue with its cursors as :meth:`Queue.describe` does, and its limit. A stopped store knows neither
    the limit nor the retention."""
    shown = queue.describe(engine.clock(), await ages(engine, queue))
    if not engine.is_running:
        return shown | {"retention": None, "max_messages": None, "full": None}
    limit = engine.protocol.inbound.limits.get(queue.name)
    return shown | {
        "max_messages": limit.records if limit is not None else None,
        "full": limit is not None and not limit.has_room(),
    }


async def ages(engine: Engine, queue: Queue) -> dict[str, float]:
    """For each cursor of a running endpoint's queue the seconds that the oldest record has been there that it has not
    passed."""
    unpassed = queue.cursors.unpassed()
    times = {where: _delivered(await engine.records(queue.name, *where, where[1] + 1)) for where in _places(unpassed)}
    return _ages(unpassed, times, engine.clock())


async def oldest(engine: Engine, queue: Queue) -> float | None:
    """Return the age in seconds of the oldest record in a running endpoint's queue; None without records."""
    times = []
    for number, one in enumerate(queue.partitions):
        if one.first < one.durable_end:
            at = _delivered(await engine.records(queue.name, number, one.first, one.first + 1))
            times += [at] if at is not None else []
    return max(0.0, engine.clock() - min(times)) if times else None


def _places(unpassed: dict[str, list[tuple[int, int]]]) -> set[tuple[int, int]]:
    return {where for places in unpassed.values() for where in places}


def _delivered(found: list[tuple[int, Record]]) -> float | None:
    return found[0][1].delivered_at if found else None


def _ages(
    unpassed: dict[str, list[tuple[int, int]]], times: dict[tuple[int, int], float | None], now: float
) -> dict[str, float]:
    return {
        name: max((now - at for where in places if (at := times[where]) is not None), default=0.0)
        for name, places in unpassed.items()
    }
