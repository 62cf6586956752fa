"""StartSignals: ends the start of a mounted destination when its process is asked to end.

A host tells its applications of a shutdown only after they have started, and a start waits for a database that is away.
So the destination hears the signals itself until then, and the host's handlers are called too.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from holdfast.endpoint.logs import log
from holdfast.exceptions import StoreError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StartInterrupted(StoreError):
    """The process was asked to end before the destination had started."""


class StartSignals:
    """The starts of one destination that are in progress."""

    def __init__(self) -> None:
        self._starts: set[asyncio.Task[None]] = set()
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        """The host's handlers of the signals that are heard now."""
        self._number = 0
        """The signal that has come; 0 before one."""

    async def run(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await a start, until a signal comes for which the host has a handler.

        Raises:
            StartInterrupted: A signal has come. The start is undone.
        """
        task = asyncio.ensure_future(start())
        if not self._starts:
            self._hear(asyncio.get_running_loop())
        self._starts.add(task)
        try:
            await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._number or (current is not None and current.cancelling()):
                raise
            raise StartInterrupted(
                f"{signal.Signals(self._number).name} ended the start of the destination. No message was accepted",
                remedy="Start the process again.",
            ) from None
        finally:
            self._starts.discard(task)
            if not self._starts:
                self._hear_no_more()

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        self._number = 0
        if threading.current_thread() is not threading.main_thread():
            return  # the host ends this loop in another way: signals come to the main thread only

        def on_signal(number: int, frame: FrameType | None) -> None:
            self._number = number
            loop.call_soon_threadsafe(self._end_starts)
            self._before[number](number, frame)

        for number in _SIGNALS:
            before = signal.getsignal(number)
            if callable(before):  # otherwise the signal ends the process at once, or does nothing
                self._before[number] = before
                signal.signal(number, on_signal)
        self._on_signal = on_signal

    def _hear_no_more(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) is self._on_signal:  # else the host has set another one meanwhile
                signal.signal(number, before)
        self._before = {}

    def _end_starts(self) -> None:
        if self._starts:
            log.info("server.stopping", how="the start is ended")
        for task in self._starts:
            task.cancel()
