"""The endpoint behind an admin interface: a running destination, or a store that no server runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.endpoint.admin.numbering import Numbered
from holdfast.endpoint.destination.readers import Readers
from holdfast.endpoint.engine.engine import Engine
from holdfast.store import Store


class Inspected(Numbered, Protocol):
    """Object that the routes for Sequences, queues, cursors, outboxes and dead letters inspect."""

    engine: Engine
    """Its state; running only for a destination."""
    store: Store
    dead_letters: DeadLetters

    @property
    def readers(self) -> Mapping[str, Readers]: ...
