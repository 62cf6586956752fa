"""Where the content of a message goes that is too large for memory. A connection has one, for a message at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from holdfast.http.exchange import HTTPLimits, Spool

SPOOL_FROM: Final = 1024 * 1024
"""Bytes of a content with attachments from which it is spooled."""


class ContentSpool:
    """The spool of the request, or of the answer, that is being received.

    Attributes:
        spool: Takes the content if it is large; None: the content is kept in memory.
        size: Bytes of the content, once it is spooled.
        is_flushing: Whether another thread writes: until then, leave the rest in the peer's socket.
    """

    __slots__ = ("is_flushing", "size", "spool")

    def __init__(self) -> None:
        self.spool: Spool | None = None
        self.size = 0
        self.is_flushing = False

    def limit(self, limits: HTTPLimits) -> int:
        """Return the largest content of the request."""
        if self.spool is None:
            return limits.max_body
        return max(limits.max_body, limits.max_attachments, self.spool.drops_up_to)

    def exceeds(self, limits: HTTPLimits) -> bool:
        """Whether to refuse what is spooled. A content that is not refused is dropped beyond the limits."""
        assert self.spool is not None
        if self.size > max(limits.max_body, limits.max_attachments):
            self.spool.drop()
        return self.size > self.limit(limits)

    def takes(self, length: int, most: int) -> bool:
        """Whether a content of that length, as far as it is known, is spooled. ``most``: the largest one in memory."""
        # Once a part of it is spooled, the rest must follow.
        return self.spool is not None and (self.size > 0 or length > min(self.spool.begins_at, most))

    def add(self, before: bytes | bytearray, body: bytes) -> None:
        """Add a piece, and what was received before the content was spooled."""
        assert self.spool is not None
        if before:
            self.spool.add(bytes(before))
        self.spool.add(body)
        self.size += len(before) + len(body)

    def flush(self, then: Callable[[Spool], None]) -> bool:
        """Write what was added in another thread, if it is enough; then make the call. Return whether that began."""
        spool = self.spool
        if spool is None or not self.size or self.is_flushing or not spool.wants_flush:
            return False
        self.is_flushing = True

        def flushed(done: asyncio.Future[None]) -> None:
            self.is_flushing = False
            done.result()
            then(spool)

        # In another thread: a disk must not stop the loop.
        asyncio.get_running_loop().run_in_executor(None, spool.flush).add_done_callback(flushed)
        return True

    def take(self) -> Spool | None:
        """Return the spool of a whole content, None if it was not spooled, and prepare for the next message."""
        spool, size = self.spool, self.size
        self.spool, self.size = None, 0
        return spool if size else None
