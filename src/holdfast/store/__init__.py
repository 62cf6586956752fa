"""Stores: where records and states are kept. One interface, several implementations.

This package owns how a batch becomes durable and is read again. It knows records and batches, but no protocol rules.
Open ``base`` first, then ``records``. ``rocksdb`` is the embedded store, ``sql`` is for databases, ``kafka`` for logs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.exceptions import ConfigurationError, StoreMissing, clause
from holdfast.store.address import check_location, is_kafka, is_remote, is_sql, shown
from holdfast.store.base import Cached, Counted, Store, Transaction, Transactional, Turn
from holdfast.store.memory import MemoryStore
from holdfast.store.writer import CommitThread

IN_MEMORY = ":memory:"
"""The location of a store that ends with its process."""

__all__ = [
    "IN_MEMORY",
    "Cached",
    "CommitThread",
    "Counted",
    "MemoryStore",
    "Store",
    "Transaction",
    "Transactional",
    "Turn",
    "check_client",
    "is_kafka",
    "is_remote",
    "is_sql",
    "open_store",
    "shown",
    "store_exists",
]


def open_store(location: str | Path | Store, *, read_only: bool = False, turn: Turn | None = None) -> Store:
    """Return the store at ``location``; create it if it does not exist.

    Args:
        location: ``":memory:"`` for a store that ends with the process, the path of a directory, the URL of a database
            (``postgresql://``, ``mysql://`` or ``mariadb://``) or of a log (``kafka://``), or an open store, which is
            returned unchanged.
        read_only: Open the store's current content for reading, even if another process has it open; nothing is created
            or changed.
        turn: When this process may take a store in a log from its owner. Until then, it only reads the log. Other
            stores are taken at once. None: at once.

    Raises:
        ConfigurationError: The location is invalid, or the packages that a database needs are not installed.
        StoreLocked: Another process, or this one, has it open already.
        StoreFormatError: The location holds something else, or another version wrote the store; it is unchanged.
        StoreMissing: If read-only: there is no store.
        StoreFailed: It cannot be opened.
    """
    check_location(location)
    if not isinstance(location, str | Path):
        return location
    if location == IN_MEMORY and not read_only:
        return MemoryStore()
    if is_sql(location):
        return _open_sql(str(location), read_only=read_only)
    if is_kafka(location):
        return _open_kafka(str(location), read_only=read_only, turn=turn)
    if not str(location) or "://" in str(location):
        raise ConfigurationError(
            f"{shown(location)!r} is not the location of a store.",
            remedy="Give the path of a directory, ':memory:', or the URL of a database or a log: postgresql://, "
            "mysql://, mariadb:// or kafka://.",
        )
    from holdfast.store.rocksdb.store import RocksDBStore  # imported here so that other stores need not load its engine

    return RocksDBStore(location, read_only=read_only)


def store_exists(location: str | Path | Store) -> bool:
    """Whether the location holds a store or anything else; creates nothing. A store in memory is always new.

    Raises:
        StoreError: A database does not answer.
    """
    check_location(location)
    if not isinstance(location, str | Path):
        return True
    if location == IN_MEMORY:
        return False
    if is_kafka(location):
        return _has_records(str(location))
    if not is_sql(location):
        return Path(location).exists()
    try:
        open_store(location, read_only=True).close()
    except StoreMissing:
        return False
    return True


def check_client(location: str) -> None:
    """Check that Kafka's client accepts the options of a URL, and can read the files that they name. Connects nowhere.

    Raises:
        ConfigurationError: It does not, or is not installed.
    """
    from holdfast.store.kafka.address import read_kafka_address

    try:
        from holdfast.store.kafka.topic import KafkaLog
    except ImportError as error:
        raise _no_kafka(location, error) from error
    KafkaLog(replace(read_kafka_address(location), servers="")).check()


def _open_sql(location: str, *, read_only: bool) -> Store:
    try:
        from holdfast.store.sql.store import SQLStore
    except ImportError as error:
        raise ConfigurationError(
            f"A store in a database, {shown(location)!r}, needs packages that are not installed: {clause(error)}.",
            remedy="pip install 'holdfast[sql]'",
        ) from error
    try:
        return SQLStore(location, read_only=read_only)
    except ImportError as error:  # the driver, which SQLAlchemy loads when it is first used
        raise ConfigurationError(
            f"A store in a database, {shown(location)!r}, needs a driver that is not installed: {clause(error)}.",
            remedy="pip install 'holdfast[sql]'",
        ) from error


def _open_kafka(location: str, *, read_only: bool, turn: Turn | None) -> Store:
    try:
        from holdfast.store.kafka.store import KafkaStore
    except ImportError as error:
        raise _no_kafka(location, error) from error
    return KafkaStore(location, read_only=read_only, turn=turn)


def _has_records(location: str) -> bool:
    try:
        from holdfast.store.kafka.store import has_records
    except ImportError as error:
        raise _no_kafka(location, error) from error
    return has_records(location)


def _no_kafka(location: str, error: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"A store in Kafka, {shown(location)!r}, needs packages that are not installed: {clause(error)}.",
        remedy="pip install 'holdfast[kafka]'",
    )
