"""The endpoint behind an admin interface: a running destination, or a store that no server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.admin.numbering import Numbered, numbering_of
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.inspection import ages
from holdfast.store import Store


class Inspected(Numbered, Protocol):
    """Object that the routes for Sequences, queues, cursors, outboxes and dead letters inspect."""

    engine: Engine
    """Its state; running only for a destination."""
    store: Store
    dead_letters: DeadLetters

    @property
    def readers(self) -> Mapping[str, Readers]: ...


async def describe_queue(app: Inspected, queue: Queue) -> dict[str, Any]:
    """Describe a queue with its cursors. A stopped store knows neither the limit nor the retention."""
    engine, numbers = app.engine, numbering_of(app).of(queue)
    now, old = engine.clock(), await ages(engine, queue)
    cursors = [queue.cursors.shown(one, now, old.get(one.name, 0.0)) for one in queue.cursors.values()]
    limit = engine.protocol.inbound.limits.get(queue.name) if engine.is_running else None
    return {
        "name": queue.name,
        "kind": queue.description.kind,
        "epoch": queue.description.epoch,
        "retention": queue.deletion.keeps if engine.is_running else None,
        "max_messages": limit.records if limit is not None else None,
        "full": limit is not None and not limit.has_room() if engine.is_running else None,
        "records": sum(one.durable_end - one.first for one in queue.partitions),
        "partitions": numbers.bounds(queue),
        "cursors": sorted(map(numbers.describe_cursor, cursors), key=lambda one: (one["kind"], one["name"])),
    }
