"""Opens a store without blocking the loop, and waits for one that is away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.endpoint.heap import share_arenas
from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreAway, StoreError, StoreLocked
from holdfast.store import Store, Turn, open_store
from holdfast.store.directory import is_public

_Result = TypeVar("_Result")

ORPHAN_SECONDS = 20.0
"""Seconds that a worker waits for its store. A worker without a supervisor ends in less."""
_LOCKED_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
"""Seconds between two attempts to open a store while its database does not answer."""


async def open_off_loop(location: str | Path | Store, turn: Turn | None = None) -> Store:
    """:func:`~holdfast.store.open_store` in a thread, since recovery may take a while. Waits for a database that is
    away.

    Cancelled meanwhile, it leaves the store closed, so that it can be opened again.

    Raises:
        StoreError: as open_store does.
    """
    share_arenas()  # before there are threads
    store = await patiently(lambda: _open_once(location, turn))
    if isinstance(location, str | Path) and is_public(place := Path(location)):
        log.warning("store.public", store=str(place.absolute()), remedy="Every user can read the store: chmod 700")
    return store


async def open_after_orphans(location: str | Path) -> Store:
    """:func:`open_off_loop` for a worker. A worker of a killed supervisor may still have its store open.

    Raises:
        StoreError: As open_off_loop does; StoreLocked after :data:`ORPHAN_SECONDS`.
    """
    waited = 0.0
    while True:
        try:
            return await open_off_loop(location)
        except StoreLocked as error:
            if waited >= ORPHAN_SECONDS:
                raise
            if not waited:
                log.warning("store.locked", error=error.message, remedy=error.remedy, seconds=ORPHAN_SECONDS)
            await asyncio.sleep(_LOCKED_PAUSE)
            waited += _LOCKED_PAUSE


async def patiently(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Make a call that opens a store; again, while its database is away or starting, for as long as its patience says.

    Raises:
        StoreAway: The database did not answer for so long.
    """
    waited, pause = 0.0, 0.25
    while True:
        try:
            return await call()
        except StoreAway as error:
            if waited >= error.patience:
                raise
            if not waited:
                log.warning("store.away", error=error.message, remedy=error.remedy, seconds=error.patience)
            await asyncio.sleep(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_PAUSE)


def close_after_error(store: Store) -> None:
    """Close the store of an endpoint that failed to start: its caller gets the error of the start."""
    with contextlib.suppress(StoreError):
        store.close()


async def in_thread(call: Callable[[], _Result]) -> _Result:
    """Make a call in a thread. If cancelled, wait for its end: the call must not outlive its caller."""
    running = _in_thread(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


def _in_thread(call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    running = asyncio.ensure_future(asyncio.to_thread(call))
    # A cancelled caller does not take its error, and asyncio would write a traceback to standard error.
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    return running


class _Cancellable:
    """A turn that may be cancelled."""

    def __init__(self, turn: Turn | None) -> None:
        self._turn = turn
        self.cancelled = threading.Event()

    def may_claim(self, epoch: int, *, is_free: bool) -> bool:
        if self.cancelled.is_set():
            raise StoreLocked("The opening was cancelled while another process had the store.", remedy="Open it again.")
        return self._turn is None or self._turn.may_claim(epoch, is_free=is_free)

    def claimed(self, epoch: int) -> None:
        if self._turn is not None:
            self._turn.claimed(epoch)


async def _open_once(location: str | Path | Store, turn: Turn | None) -> Store:
    cancellable = _Cancellable(turn)
    opening = _in_thread(partial(open_store, location, turn=cancellable))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        cancellable.cancelled.set()
        await asyncio.wait({opening})
        if opening.exception() is None and opening.result() is not location:
            opening.result().close()
        raise
