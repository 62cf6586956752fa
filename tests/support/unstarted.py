"""A destination that never starts, for tests of what it is made of."""

from __future__ import annotations

import asyncio

from holdfast import Destination
from holdfast.endpoint.destination.running_destination import RunningDestination
from holdfast.store.memory import MemoryStore


def unstarted() -> RunningDestination:
    """Return what exists of a destination before its recovery. It belongs to the running event loop, or to one that has
    ended."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_unstarted())
    return _made()


async def _unstarted() -> RunningDestination:
    return _made()


def _made() -> RunningDestination:
    app = Destination(":memory:")
    return RunningDestination(app.settings, MemoryStore(), app.incidents)
