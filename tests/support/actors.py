"""Somebody who does something one step at a time, in a thread of its own: when which step happens is the test's to
choose, and after which somebody sleeps or dies."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """Nothing that is written for errors runs, as after kill -9."""


class Actor:
    """Somebody; ``local.actor`` says in its thread who it is.

    Args:
        local: Of the world it lives in.
        do: What it does.
    """

    def __init__(self, local: threading.local, do: Callable[[], object]) -> None:
        self.is_over = self._is_killed = False
        self.error: Exception | None = None
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(local, do), daemon=True).start()

    def _run(self, local: threading.local, do: Callable[[], object]) -> None:
        local.actor = self
        self._go.acquire()
        try:
            if not self._is_killed:
                do()
        except Killed:
            pass
        except Exception as error:
            self.error = error
        self.is_over = True
        self._stands.release()

    def pause(self) -> None:
        self._stands.release()
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def step(self) -> None:
        self._go.release()
        self._stands.acquire()

    def finish(self) -> Actor:
        while not self.is_over:
            self.step()
        return self

    def kill(self) -> None:
        if not self.is_over:
            self._is_killed = True
            self.step()


def pause(local: threading.local) -> None:
    """Let somebody stand before a step; who is nobody does it at once."""
    actor = getattr(local, "actor", None)
    if actor is not None:
        actor.pause()
