"""Where each worker is, and how many connections it has. In memory that all workers share.

A worker is in a process of this host, at another node, or nowhere. A server on one host has all its workers there,
always. A node of a cluster has some of them, and the supervisor writes the memory again whenever that changes. This
module moves nothing.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.outages import Trouble

MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the memory: for the most partitions and nodes, each with the longest URL and the longest reason."""

AWAY: Final = 2**31 - 1
"""Number of connections of a worker that does not run."""

_HEAD = struct.Struct("=QII")
"""The number of the version, the length of the text, and its checksum."""
_NUMBER = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each worker is.

    Args:
        local: The workers that accept requests on this host.
        remote: Worker -> URL of the node that has it.
        nodes: Other node -> URL.
        trouble: Why this node has no contact with what keeps the leases; None: it has.
        cut_off: Which other nodes cannot reach this one, and where, if they are most of them; otherwise "".
        failed: Worker that could not be started on this host, and that others should have -> why.
        engine: What keeps the leases, for people.
    """

    local: frozenset[int] = frozenset()
    remote: Mapping[int, str] = field(default_factory=dict)
    starting: frozenset[int] = frozenset()
    nodes: Mapping[str, str] = field(default_factory=dict)
    trouble: Trouble | None = None
    cut_off: str = ""
    failed: Mapping[int, str] = field(default_factory=dict)
    engine: str = ""


class Placements:
    """The memory with the present placement. Create it before the workers are forked; one process writes it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, MOST_BYTES)
        self._version = -1
        self._known = Placement()
        self.set(self._known)

    def set(self, placement: Placement) -> None:
        self._known = placement
        text = json.dumps(msgspec.to_builtins(placement, str_keys=True)).encode()
        version = _HEAD.unpack_from(self._memory)[0] + 1
        end = _HEAD.size + len(text)
        # The text first: a reader that comes between finds a wrong checksum, and keeps what it knows.
        self._memory[_HEAD.size : end] = text
        _HEAD.pack_into(self._memory, 0, version, len(text), zlib.crc32(text))

    @property
    def now(self) -> Placement:
        """The present placement. While it is being written, the one before."""
        version, length, checksum = _HEAD.unpack_from(self._memory)
        if version != self._version:
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if zlib.crc32(text) == checksum:
                self._known = msgspec.convert(json.loads(text), Placement, str_keys=True)
                self._version = version
        return self._known


class Loads:
    """The number of connections of each worker. None of them runs yet; create it before the workers are forked.

    Each worker writes its own number occasionally. A worker that transfers a connection increments the number of the
    recipient. The numbers are hints, and may be wrong for a moment.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._memory = mmap.mmap(-1, _NUMBER.size * count)
        for number in range(count):
            self.set(number, AWAY)

    def set(self, number: int, connections: int) -> None:
        _NUMBER.pack_into(self._memory, _NUMBER.size * number, connections)

    def of(self, number: int) -> int:
        """Return the number of connections of a worker."""
        found: int = _NUMBER.unpack_from(self._memory, _NUMBER.size * number)[0]
        return found

    def add_one(self, number: int) -> None:
        """Count a connection that was transferred to a worker, unless it has ended since."""
        if (connections := self.of(number)) != AWAY:
            self.set(number, connections + 1)

    def least(self) -> int:
        """Return the worker with the fewest connections."""
        return min(range(self._count), key=self.of)
