"""OwningLoop: the event loop and the process in which an endpoint was opened, and the check that a call comes from
there.

Elsewhere a call would wait forever: the endpoint's futures wake only the loop that created them, and a forked process
has none of the parent's threads.
"""

from __future__ import annotations

import asyncio
import os
import threading

from holdfast.exceptions import ConfigurationError

_AFTER_FORK = "Open it after the fork, in the process that uses it."


def check_process(what: str, opened_in: int) -> None:
    """Raise ConfigurationError if this is another process than the one that opened an endpoint."""
    if os.getpid() != opened_in:
        raise ConfigurationError(f"the {what} was opened in process {opened_in}", remedy=_AFTER_FORK)


class OwningLoop:
    """The running loop.

    Args:
        what: The endpoint, for errors.
        instead: What another loop or thread can use, for the remedy; "" for nothing.
    """

    def __init__(self, what: str, instead: str = "") -> None:
        self._what, self._instead = what, f", or {instead}" if instead else ""
        self._loop, self._thread, self._process = asyncio.get_running_loop(), threading.get_ident(), os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether the loop is closed, so that no call can use the endpoint any more."""
        return self._loop.is_closed() and os.getpid() == self._process

    def check(self) -> None:
        """Raise ConfigurationError if the caller is not in the loop, nor in its thread while no loop runs."""
        check_process(self._what, self._process)
        if self._loop.is_closed():
            raise ConfigurationError(
                f"the {self._what} was opened in an event loop that has ended",
                remedy=f"Open, use and close it within one asyncio.run(){self._instead}. Stored messages are safe.",
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if threading.get_ident() == self._thread:
                return
        else:
            if loop is self._loop:
                return
        raise ConfigurationError(
            f"the {self._what} was opened in another event loop", remedy=f"Use it in that loop{self._instead}."
        )
