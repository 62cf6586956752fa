"""Contents in a log: pieces of a fixed size, each under one key and in one write.

So the rules of the log hold for them as for batches: no other process's pieces are between those of an owner, a copy of
the log has them, and the cache. A process that takes the log over deletes those that no record names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from holdfast.exceptions import StoreDamaged
from holdfast.store import records as layout
from holdfast.store.contents import PieceContents

PIECE_BYTES: Final = 256 << 10
"""Bytes of a piece."""


class PieceLog(Protocol):
    """What the contents need of a store."""

    def write_pieces(self, put: tuple[bytes, bytes] | None, erase: tuple[bytes, bytes] | None) -> None:
        """Write a key, or delete a range of keys, once that is durable in the log."""
        ...

    def read_piece(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, *, values: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys that begin with a prefix."""
        ...


class LogContents(PieceContents):
    """The contents of a log.

    Args:
        place: Returns the log, for people.
    """

    def __init__(self, log: PieceLog, place: Callable[[], str]) -> None:
        super().__init__(PIECE_BYTES)
        self._log = log
        self._place = place

    def put(self, name: bytes, piece: int, data: bytes) -> None:
        self._log.write_pieces((layout.piece_key(name, piece), data), None)

    def get(self, name: bytes, piece: int) -> bytes:
        found = self._log.read_piece(layout.piece_key(name, piece))
        if found is None and piece == 0:
            raise StoreDamaged(
                f"The attachments {name.hex()} of a message in the store at {self._place()} are missing.",
                remedy="Start again: the cache is rebuilt from the log.",
            )
        return found or b""

    def delete(self, name: bytes) -> None:
        self._log.write_pieces(None, layout.pieces_range(name))

    def names(self) -> Iterable[bytes]:
        last = b""
        for key, _ in self._log.scan(layout.PIECE, values=False):
            if (name := layout.piece_of(key)[0]) != last:
                last = name
                yield name
