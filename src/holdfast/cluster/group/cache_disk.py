"""CacheDisk: whether the disk of a node's cache has room for partitions.

The log in Kafka has every message, so a node without room gives its partitions to nodes with room. Each time its disk
is full, it waits longer until it takes part again, so that partitions do not move to and fro.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.exceptions import StoreError
from holdfast.store.kafka.cache import clear_closed
from holdfast.store.rocksdb.free_space import CACHE_BYTES

INTERVAL: Final = 1.0
"""Seconds between two looks."""
LONGEST_PAUSE: Final = 300.0
"""Seconds with room until a node whose disk was full again and again takes part; after twice as many, all that is
forgotten."""
_ROOM_BYTES: Final = 2 * CACHE_BYTES
"""Bytes that end a shortage: the store of an empty partition accepts messages then."""
_PATIENCE: Final = 3 * INTERVAL
"""Seconds from a shortage to the handover, the first time. Meanwhile, nodes with caches on the same disk report that
they are short too."""
_PROBE: Final = "probe"


class CacheDisk:
    """The disk of a node's cache.

    Args:
        place: The directory of the caches.
        pause: Seconds with room after which the node takes part again, the first time.

    Attributes:
        why: Why the node should have no partitions; "": it has room.
        emptied: The caches that were emptied since the look before, and the bytes of each.
    """

    def __init__(self, place: Path, pause: float) -> None:
        self._place = place
        self._first_pause = self._pause = min(pause, LONGEST_PAUSE)
        self._wanted = 0
        self._next = 0.0
        self._is_looking = False
        self._found: tuple[float, str, dict[Path, int]] | None = None
        """What the last look found, until it is judged: the free bytes, what is wrong, and the emptied caches."""
        self._room_since: float | None = None
        self._short_since = 0.0
        self._patience = _PATIENCE
        self._gives_at: float | None = None
        self.why = ""
        self.emptied: dict[Path, int] = {}

    def look(
        self,
        now: float,
        wanted: int | None,
        *,
        has_failed: bool,
        closed: Callable[[], Mapping[Path, Mapping[str, str]]] = dict,
    ) -> str:
        """Look once a second, without waiting for the disk except the first time, and return :attr:`why`.

        Args:
            now: The time.
            wanted: Bytes that the workers of this node want to be free; 0: they accept messages. None: it has none.
            has_failed: Whether a worker could not be started.
            closed: Returns the caches that this node does not need, and which log each belongs to. They are emptied if
                the disk had no room for five minutes, because they may be what fills it.
        """
        if wanted is not None:
            self._wanted = wanted
        if now >= self._next and not self._is_looking:
            is_first, self._next, self._is_looking = not self._next, now + INTERVAL, True
            is_stuck = self.why and self._room_since is None and now >= self._short_since + LONGEST_PAUSE
            examine = partial(self._examine, closed() if is_stuck else {}, writes=has_failed or bool(self.why))
            if is_first:  # so that a node without room starts as one
                examine()
            else:
                self._begin(examine)
        self.emptied = {}
        if self._found is not None:
            (free, problem, self.emptied), self._found, self._is_looking = self._found, None, False
            self._judge(now, self._shortage(free) or problem)
        return self.why

    def _judge(self, now: float, why: str) -> None:
        if why:
            if not self.why and self._room_since is not None and now > self._room_since + 2 * LONGEST_PAUSE:
                self._pause = self._first_pause
            if not self.why or self._room_since is not None:
                self._short_since = now
            self.why, self._room_since = why, None
        elif self._room_since is None:
            self._room_since = now
        if self.why and self._room_since is not None and now >= self._room_since + self._pause:
            self.why, self._wanted, self._pause = "", 0, min(LONGEST_PAUSE, 2 * self._pause)

    def makes_way(self, now: float, has_room_beside: bool | None) -> bool:
        """Whether the node leaves its partitions to others. Each time they cannot serve them, it waits longer.

        Args:
            now: The time.
            has_room_beside: Whether another node can serve them; None: unknown, because this node has just started.
        """
        made_way = self._gives_at is not None and now >= self._gives_at
        if not self.why:
            self._gives_at, self._patience = None, _PATIENCE
        elif has_room_beside is False:
            self._gives_at = None
            if made_way:
                self._patience = min(LONGEST_PAUSE, 2 * self._patience)
        elif self._gives_at is None:
            self._gives_at = now if has_room_beside is None else now + self._patience
        return self._gives_at is not None and now >= self._gives_at

    def _shortage(self, free: float) -> str:
        least = max(self._wanted, _ROOM_BYTES if self.why else CACHE_BYTES)
        if free >= least:
            return ""
        return f"less than {max(least, _ROOM_BYTES) >> 20} MB are free for its cache at {self._place}"

    def _begin(self, examine: Callable[[], None]) -> None:
        """Examine the disk in a thread: a slow one must not delay the trust of the workers."""
        threading.Thread(target=examine, name="holdfast-disk", daemon=True).start()

    def _examine(self, closed: Mapping[Path, Mapping[str, str]], *, writes: bool) -> None:
        emptied: dict[Path, int] = {}
        for place, identity in closed.items():
            with suppress(StoreError, OSError):
                emptied[place] = clear_closed(place, identity)
        emptied = {place: size for place, size in emptied.items() if size}
        try:
            self._found = (self._free(), self._probe() if writes else "", emptied)
        except Exception as error:  # whatever it is: without a finding, the disk would not be examined again
            what = error.strerror if isinstance(error, OSError) else repr(error)
            self._found = (math.inf, f"its cache at {self._place} cannot be examined: {what}", emptied)

    def _free(self) -> int:
        space = os.statvfs(self._place)
        return space.f_bavail * space.f_frsize

    def _probe(self) -> str:
        """Return why nothing can be written; "" if something can."""
        file = self._place / _PROBE
        try:
            try:
                with file.open("wb") as probe:
                    probe.write(bytes(4096))
                    probe.flush()
                    os.fsync(probe.fileno())
            finally:
                file.unlink(missing_ok=True)
        except OSError as error:
            return f"its cache at {self._place} cannot be written: {error.strerror}"
        return ""
