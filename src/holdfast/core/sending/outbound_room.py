"""OutboundRoom: bound the bytes of messages that a process has on their way, and choose which outbox sends next.

A message is on its way from its transmission until the HTTP exchange ends, once for each exchange. A silent destination
has several open exchanges of one message.

* A destination has at most ``MOST_OF_ONE`` bytes on their way, and never more than then stays free for others.
* A message to a destination that has nothing on its way needs only free room. An empty room accepts any message.
* An outbox that finds no room joins the line of its destination. Only the first in the line reads and transmits. After
  it has transmitted, it goes to the end.
* While a destination with nothing on its way waits for free room, no other destination gets any. So a stream of small
  messages cannot starve a large one.
"""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 128 << 20
"""Of messages on their way to all destinations together; a single message may be larger."""

MOST_OF_ONE: Final = 32 << 20
"""Of messages on their way to one destination; a single message may be larger."""


class Share:
    """The part of the room that one destination uses.

    Attributes:
        bytes: Bytes of messages on their way to it.
        line: Keys of its waiting outboxes, in order.
        wanted: Bytes that the first outbox in the line needs; 0 if unknown.
    """

    __slots__ = ("bytes", "line", "wanted")

    def __init__(self) -> None:
        self.bytes = 0
        self.line: dict[str, None] = {}
        self.wanted = 0

    def is_turn_of(self, key: str) -> bool:
        """Return whether no other outbox of the destination comes before this one."""
        return not self.line or next(iter(self.line)) == key


class OutboundRoom:
    """The room that all outboxes of a process share.

    Args:
        ready: Receives the keys of outboxes that may try again.
    """

    def __init__(self, ready: dict[str, None]) -> None:
        self.bytes = 0
        """Bytes of messages on their way."""
        self._ready = ready
        self.most, self.most_of_one = MOST_BYTES, MOST_OF_ONE
        self._shares: dict[str, Share] = {}
        self._lines: dict[str, Share] = {}
        """Destinations with a line, in order of their turns."""
        self._places: dict[str, str] = {}
        """Key of a waiting outbox -> its destination."""
        self._next: str | None = None
        """The destination with nothing on its way that gets the next free room; None: no such destination waits."""
        self._is_blocked = self._has_claimed = False
        """Whether the outbox that has its turn must wait, and whether it transmitted while others waited."""

    @property
    def is_waited_for(self) -> bool:
        return bool(self._lines)

    # --- during the turn of an outbox -----------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Begin the turn of an outbox; :meth:`end_turn` must follow."""
        self._is_blocked = self._has_claimed = False

    def claim(self, key: str, to: str, size: int) -> bool:
        """Reserve room for a message, which then leaves. Without room, put its outbox in line and return False."""
        share = self._shares.get(to)
        if share is None:
            share = self._shares[to] = Share()
        is_contended = bool(self._lines)
        if (is_contended and not self._is_free_for(key, to, share)) or not self._fits(share, size):
            self._wait(key, to, share, size)
            return False
        share.bytes += size
        self.bytes += size
        if is_contended:
            self._served(to)
        return True

    def _served(self, to: str) -> None:
        """Put a destination behind the others that wait."""
        self._has_claimed = True
        if to in self._lines:
            self._lines[to] = self._lines.pop(to)
        if self._next is not None:
            self._next = None
            self._wake()

    def may_read(self, key: str, to: str) -> bool:
        """Return whether an outbox may read what it sends next. If others come first, put it into the line."""
        share = self._lines.get(to)
        if share is None or share.is_turn_of(key):
            return True
        self._wait(key, to, share, 0)
        return False

    def _is_free_for(self, key: str, to: str, share: Share) -> bool:
        return (self._next is None or self._next == to) and share.is_turn_of(key)

    def _fits(self, share: Share, size: int) -> bool:
        total = self.bytes + size
        if not share.bytes:
            # Alone it may have any size, or it would never leave.
            return total <= self.most or not self.bytes
        used = share.bytes + size
        # A destination uses no more than it leaves free, so several share the room whatever one of them does.
        return used <= self.most_of_one and used <= self.most - total

    def _wait(self, key: str, to: str, share: Share, size: int) -> None:
        # It was redirected while it waited for another destination.
        if self._places.get(key, to) != to:
            self.leave(key)
        self._is_blocked = True
        self._places[key] = to
        self._lines.setdefault(to, share)
        share.line.setdefault(key)
        if share.is_turn_of(key):
            share.wanted = size
            if self._next is None and not share.bytes:
                # The next free room is for this destination, or small messages to others would starve it.
                self._next = to

    def end_turn(self, key: str, *, is_reading: bool) -> None:
        """End the turn of an outbox. It leaves the line unless it still waits, and goes to its end if it transmitted.

        Args:
            is_reading: Whether the store is reading what the outbox sends next. The outbox then keeps its place.
        """
        to = self._places.get(key)
        if to is None:
            return
        share = self._lines[to]
        if not self._is_blocked and not is_reading:
            self.leave(key)
        elif self._has_claimed and share.is_turn_of(key) and len(share.line) > 1:
            del share.line[key]
            share.line[key] = None
            self._begin_line(to, share)

    # --- when room returns ----------------------------------------------------------------------------------------

    def give_back(self, to: str, size: int) -> None:
        """Free the room of a message after its exchange has ended."""
        share = self._shares.get(to)
        if share is None:
            return
        share.bytes -= size
        self.bytes -= size
        if not share.bytes and not share.line:
            del self._shares[to]
        if self._lines:
            self._wake()

    def leave(self, key: str) -> None:
        """Remove an outbox from its line."""
        to = self._places.pop(key, None)
        if to is None:
            return
        share = self._lines[to]
        was_first = share.is_turn_of(key)
        del share.line[key]
        if was_first:
            self._begin_line(to, share)

    def _begin_line(self, to: str, share: Share) -> None:
        """Start with the next outbox in the line, or forget the empty line."""
        share.wanted = 0
        if self._next == to:
            self._next = None
        if not share.line:
            del self._lines[to]
            if not share.bytes:
                del self._shares[to]
        self._wake()

    def _wake(self) -> None:
        if self._next is not None:
            self._try(self._lines[self._next])
            return
        for to, share in self._lines.items():
            if not self._try(share) and not share.bytes:
                self._next = to
                return

    def _try(self, share: Share) -> bool:
        """Let the first outbox in a line retry if there is room for it, and return whether there is."""
        has_room = self._fits(share, share.wanted)
        if has_room:
            self._ready[next(iter(share.line))] = None
        return has_room
