"""Where records and states are kept: one interface, several stores. Knows records and batches, no protocol rule."""

from __future__ import annotations

from pathlib import Path

from holdfast.exceptions import ConfigurationError
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.writer import CommitThread

IN_MEMORY = ":memory:"
"""The location of a store that is gone with its process."""

__all__ = ["IN_MEMORY", "CommitThread", "MemoryStore", "Store", "open_store"]


def open_store(location: str | Path | Store) -> Store:
    """The store at ``location``, made there if nothing is.

    Args:
        location: ``":memory:"`` for one that is forgotten with the process, the path of a directory, or an open store,
            which is returned as it is.

    Raises:
        ConfigurationError: The location is neither.
        StoreLocked: Another process, or this one, has it open already.
        StoreFormatError: The directory is something else, or was written by another version; it is untouched.
        StoreFailed: It cannot be opened.
    """
    if not isinstance(location, str | Path):
        return location
    if location == IN_MEMORY:
        return MemoryStore()
    if not str(location) or "://" in str(location):
        raise ConfigurationError(
            f"{str(location)!r} is no place for a store.", remedy="Give the path of a directory, or ':memory:'."
        )
    from holdfast.store.rocksdb import RocksDBStore  # its engine is loaded only where it is used

    return RocksDBStore(location)
