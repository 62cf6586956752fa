"""AnswerRoom: bounds the bytes of large answers that a process receives and keeps at a time.

A small answer needs no room. A connection with a larger answer claims room for all of it, and is not read until the
claim is granted: the peer waits, nothing fails. One origin has a share, so that a slow origin does not block the
others. The room is released once the answer is no longer used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final
from weakref import WeakKeyDictionary

SMALL_ANSWER: Final = 64 * 1024
"""Bytes of an answer that need no room."""

MOST_BYTES: Final = 128 * 1024 * 1024
"""Of large answers, over all origins; a single one may be larger."""

MOST_OF_ONE: Final = 32 * 1024 * 1024
"""Of those from one origin; a single one may be larger."""


class Claim:
    """Room for one answer. It is given back by :meth:`end`, or when nothing refers to the claim any more."""

    __slots__ = ("_room", "is_ended", "is_granted", "origin", "resume", "size")

    def __init__(self, room: AnswerRoom, origin: Hashable, size: int) -> None:
        self.origin = origin
        self.size = size
        self.is_granted = False
        self.is_ended = False
        self.resume: Callable[[], None] | None = None
        self._room = room

    def grant(self) -> None:
        self.is_granted = True
        if self.resume is not None:
            self.resume()
            self.resume = None

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended, self.resume = True, None
            self._room.end(self)

    def __del__(self) -> None:
        if not self.is_ended:
            self._room.end_soon(self.origin, self.size)


class AnswerRoom:
    """The room of all clients of one event loop.

    Args:
        most: Bytes, over all origins.
        most_of_one: Bytes, from one origin.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = MOST_BYTES, most_of_one: int = MOST_OF_ONE) -> None:
        self.bytes = 0
        self._loop = loop
        self._most, self._most_of_one = most, most_of_one
        self._of: Counter[Hashable] = Counter()
        self._waiting: dict[Claim, None] = {}

    def claim(self, origin: Hashable, size: int, resume: Callable[[], None]) -> Claim:
        """Claim room for an answer.

        Args:
            resume: Called when there is room, unless there is room at once: then the claim is granted already.
        """
        claim = Claim(self, origin, size)
        self._waiting[claim] = None
        self._grant()
        if not claim.is_granted:
            claim.resume = resume
        return claim

    def _grant(self) -> None:
        """Grant claims that fit, in the order of arrival.

        An origin beyond its share blocks only its own claims; the first claim that waits for the rest of the room is
        next.
        """
        for claim in list(self._waiting):
            of_one = self._of.get(claim.origin, 0)
            # An answer larger than the share passes alone, or it would wait for ever.
            if of_one and of_one + claim.size > self._most_of_one:
                continue
            if self.bytes and self.bytes + claim.size > self._most:
                return
            del self._waiting[claim]
            self._take(claim)
            claim.grant()

    def _take(self, claim: Claim) -> None:
        self.bytes += claim.size
        self._of[claim.origin] += claim.size

    def _give_back(self, origin: Hashable, size: int) -> None:
        self.bytes -= size
        self._of[origin] -= size
        if not self._of[origin]:
            del self._of[origin]
        self._grant()

    def end(self, claim: Claim) -> None:
        self._waiting.pop(claim, None)
        if claim.is_granted:
            self._give_back(claim.origin, claim.size)

    def end_soon(self, origin: Hashable, size: int) -> None:
        """End a granted claim, from any thread."""
        if not self._loop.is_closed():
            # The last reference may end in any thread.
            self._loop.call_soon_threadsafe(self._give_back, origin, size)


_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, AnswerRoom] = WeakKeyDictionary()


def room_of(loop: asyncio.AbstractEventLoop) -> AnswerRoom:
    found = _rooms.get(loop)
    if found is None:
        found = _rooms[loop] = AnswerRoom(loop)
    return found
