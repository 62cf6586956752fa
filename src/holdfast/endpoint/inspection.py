"""Reports on Sequences and waiting messages, for the admin listener and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.protocol import RMProtocol
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.states.outbound import SourceState
from holdfast.core.versions import Versions
from holdfast.endpoint.engine.engine import Engine


def describe_protocol(protocol: RMProtocol, now: float) -> list[dict[str, Any]]:
    """Return the report on every Sequence of an endpoint, see :func:`describe_parts`."""
    return describe_parts(protocol.inbound.destinations.values(), protocol.outbound.outboxes.values(), now)


def describe_parts(
    destinations: Iterable[RMDestination], outboxes: Iterable[Outbox], now: float
) -> list[dict[str, Any]]:
    """Describe some Sequences: the inbound ones first, by Identifier.

    An outbox with waiting messages that has requested no Sequence yet appears as one without an Identifier in state
    ``none``.

    Args:
        now: Seconds since 1970-01-01 UTC.

    Returns:
        For each, ``identifier, role, state, versions, ranges, gaps`` (ranges as text), ``count, highest, waiting, age``
        (seconds), ``last_fault``, and the fields of its role. ``waiting``: messages that a destination holds until
        lower numbers arrive, or that a source has not had acknowledged. ``awaiting``: numbers without their reply.
        ``ending``: whether it ends once every transmitted message is acknowledged.
    """
    shown = [_describe_inbound(one, now) for one in destinations]
    shown += [_describe_outbound(one, now) for one in outboxes if one.source is not None or one.records.waiting]
    return sorted(shown, key=lambda one: (one["role"], one["identifier"], one.get("key", "")))


def _describe_inbound(destination: RMDestination, now: float) -> dict[str, Any]:
    replies, ranges = destination.replies, destination.accepted
    return {
        "identifier": destination.identifier,
        "role": "destination",
        "state": destination.state.value,
        "versions": _versions_text(destination.versions),
        "last_fault": destination.last_fault,
        "waiting": len(destination.held),
        "age": max(0.0, now - destination.created_at),
        "expires_at": destination.expires_at,
        "partition": destination.partition,
        "acks_to": destination.acks_to.address,
        "offered": destination.offered,
        "behavior": destination.behavior.value,
        "next_in_order": destination.next_in_order,
        "awaiting": sorted(replies.awaiting.difference(replies.replying, replies.heard)),
        "suspended": _suspension(destination.suspended),
    } | _describe_ranges(ranges, destination.last_message_number or ranges.highest)


def _describe_outbound(outbox: Outbox, now: float) -> dict[str, Any]:
    source, ranges = outbox.source, AcknowledgementRanges()
    shown: dict[str, Any] = {
        "identifier": "",
        "role": "source",
        "state": SourceState.NONE.value,
        "versions": "",
        "last_fault": "",
        "waiting": outbox.records.waiting,
        "age": None,
        "expires_at": None,
        "key": outbox.key,
        "to": outbox.to,
        "start": None,
        "suspended": outbox.lifecycle.stopped or _suspension(outbox.lifecycle.suspended),
    }
    if source is not None:
        ranges, numbers = source.acknowledged, source.numbers
        state = SourceState.CREATED if source.state is SourceState.GRANTED else source.state
        shown |= {
            "identifier": source.identifier or "",
            "state": state.value,
            "versions": _versions_text(source.versions),
            "last_fault": source.last_fault,
            "age": max(0.0, now - source.created_at),
            "expires_at": source.life.expires_at,
            "start": numbers.start,
            "acks_to": source.acks_to or None,
            # An operator's wish to close it lowers the limit to what may have left: `Steering.end_outbound`.
            "ending": state is SourceState.CREATED and numbers.limit <= numbers.mark,
        }
    return shown | _describe_ranges(ranges, ranges.highest)


def _versions_text(versions: Versions) -> str:
    return f"RM {versions.rm.value}, WSA {versions.addressing.value}, SOAP {versions.soap.value}"


def _describe_ranges(ranges: AcknowledgementRanges, upper: int) -> dict[str, Any]:
    gaps = AcknowledgementRanges(ranges.gaps(upper))
    return {"ranges": str(ranges), "gaps": str(gaps), "count": ranges.count, "highest": ranges.highest}


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


def _suspension(reason: str | None) -> str:
    """Return that an operator suspended it, and why; "" if not."""
    return "" if reason is None else f"held back: {reason}" if reason else "held back"


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
