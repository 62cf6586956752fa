"""The endpoint behind an admin interface: a running destination, or a store that no server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.engine import Engine
from holdfast.endpoint.worker import Worker
from holdfast.store import Store


class Inspected(Protocol):
    """Object that the routes for Sequences, queues, cursors, outboxes and dead letters inspect."""

    engine: Engine
    """Its state; running only for a destination."""
    store: Store
    dead_letters: DeadLetters

    @property
    def worker(self) -> Worker | None:
        """This process among several; None for a single one, or a stopped store."""
        ...

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The queues that store messages, by name."""
        ...

    @property
    def readers(self) -> Mapping[str, Readers]:
        """The readers of each queue."""
        ...
