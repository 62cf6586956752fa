"""Passages: how a request reaches the process that serves its owner now. Knows no socket, no loop and no clock.

A worker that dies is started again, and one of a cluster's nodes may be taken over by another node. So a request that
brought no answer is sent again, and one to a worker that has moved meanwhile is sent to its new place without waiting
for the old one: what a worker stored it knows, so asking again does no harm. It always goes to the same owner: another
one would not know what the first stored, and would answer a repeated CreateSequence with a second Sequence. While no
process serves the owner, the request waits for a moment, and then its peer has to send it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

PATIENCE: Final = 90.0
"""Seconds for an answer of another worker: it may hold the request for 30 until there is a reply, or be starting."""
LONGEST_WAIT: Final = 2.0
"""Seconds that a request waits for a worker that no process serves, or that has failed it."""

PlaceOf = Callable[[int], str | None]
"""Returns where a worker is; None: no process serves it."""


class Move(Enum):
    """What to do with a request."""

    NOTHING = "nothing"
    ASK = "send it to its worker, wherever that is now"
    GIVE_UP = "let its peer send it again later"


@dataclass(slots=True, eq=False)
class Passage:
    """One request on its way. All times are seconds of one clock.

    Args:
        begun: When it began.
        owner: The worker that answers it; None: any.

    Attributes:
        asked: The worker to which the request was sent, and its place; None: it waits for one.
        attempt: Counts the requests to workers: only the answer to the last one counts.
        sent_at: When it was last sent.
        failed_at: When it failed, or had no worker, for the first time in a row; None: it has not.
        error: Why.
    """

    begun: float
    owner: int | None
    asked: tuple[int, str] | None = None
    attempt: int = 0
    sent_at: float = 0.0
    failed_at: float | None = None
    error: str = ""

    def ask(self, place_of: PlaceOf, any_worker: Callable[[], int | None], now: float) -> int | None:
        """Begin an attempt; return the worker to send the request to. None: it has to wait.

        Args:
            any_worker: Returns a worker that some process serves; None: there is none.
        """
        number = self.owner if self.owner is not None else any_worker()
        place = place_of(number) if number is not None else None
        if number is None or place is None:
            self._wait("no process serves it now", now)
            return None
        self.asked, self.sent_at = (number, place), now
        self.attempt += 1
        return number

    def failed(self, error: str, now: float, *, is_lost: bool) -> Move:
        """Process that the last attempt brought no answer, or one of a process that does not serve the worker.

        Args:
            is_lost: Whether there was no answer.
        """
        if now > self.sent_at + LONGEST_WAIT:
            self.failed_at = None  # the worker had it for a while: this is another failure
        is_first = self.failed_at is None
        self._wait(error, now)
        # It died, and will be back: the request waits in its socket.
        return Move.ASK if is_first and is_lost else Move.NOTHING

    def look(self, place_of: PlaceOf, now: float) -> Move:
        """Decide, from time to time, whether asking again may help now, or has not helped for too long."""
        if self.asked is not None:
            number, place = self.asked
            return Move.ASK if place_of(number) not in (None, place) else Move.NOTHING
        since = self.failed_at if self.failed_at is not None else self.begun
        return Move.GIVE_UP if now > min(since + LONGEST_WAIT, self.begun + PATIENCE) else Move.ASK

    def _wait(self, error: str, now: float) -> None:
        self.asked, self.error = None, error
        if self.failed_at is None:
            self.failed_at = now
