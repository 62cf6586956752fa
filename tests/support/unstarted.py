"""A destination that never starts, for tests of what it is made of."""

from __future__ import annotations

from holdfast import Destination
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.store.memory import MemoryStore


def unstarted() -> RunningDestination:
    """Return what exists of a destination before its recovery."""
    app = Destination(":memory:")
    return RunningDestination(app.settings, MemoryStore(), app.incidents)
