"""Differences between two configurations: which a running broker cannot apply, and which two nodes may not have.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args

from holdfast.broker.config import BrokerConfig
from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.config.values import Kind, Secret
from holdfast.settings import Unit, hints_of

_FILES = ("the path of a file", "a directory")
_FIXED = (
    "store",
    "store_password_file",
    "store_password_env",
    "partitions",
    "sessions",
    "workers",
    "listen.host",
    "listen.port",
    "admin.enabled",
    "admin.host",
    "admin.port",
    "security.nonces",
    "journal.enabled",
    "journal.directory",
    "journal.age",
    "journal.size",
    "journal.file_age",
    "journal.file_size",
)
"""Keys that the broker reads only at its start. TLS, queues and the ends of forwarders are checked separately."""
_TABLES = (
    "holdfast.broker.config",
    "holdfast.broker.cluster_config",
    "holdfast.broker.signature_config",
    "holdfast.http.tls",
)
"""Modules of the classes whose keys are compared one by one."""
_SHARED = (
    "partitions",
    "sessions",
    "allow_addresses",
    "default_queue",
    "namespaces",
    "security",
    "sequences",
    "limits",
    "sinks",
    "queues",
    "routes",
    "forwarders",
    "policies",
)
"""Keys that all nodes of a cluster should have alike."""
_RESTART = "Restore the old value, or restart the broker."


def what_changes(old: BrokerConfig, new: BrokerConfig) -> list[str]:
    """Return the keys with other values: each key of named tables, and only the table for others."""
    return [".".join(map(str, path)) for path in _differences(old, new)]


def what_cannot_change(old: BrokerConfig, new: BrokerConfig) -> Iterator[Wrong]:
    """Yield the differences that a running broker cannot apply."""
    for path in _differences(old, new):
        key = ".".join(map(str, path))
        if key == "store_password_file" and _has_same_file(old, new):
            continue  # new connections use what the file contains then
        if key in _FIXED or (path[0] == "cluster" and (path[1:2] != ("tls",) or len(path) == 2)):
            yield path, "this cannot change while the broker runs", _RESTART
        elif key in ("listen.tls", "admin.tls"):
            yield path, "TLS cannot be switched on or off while the broker runs", _RESTART
        elif path[0] == "queues" and len(path) == 2:
            is_new = all(one.name != path[1] for one in old.queues)
            what = "a queue cannot be added" if is_new else "a queue cannot be removed"
            yield path, f"{what} while the broker runs", _RESTART
        elif path == ("queues",):
            yield path, "the first queue cannot change while the broker runs", _RESTART
        elif path[0] == "forwarders" and len(path) == 3 and path[2] == "queue":
            remedy = "Give the new forwarder another name. The broker keeps the unsent messages of the old one."
            yield path, "the queue of a forwarder cannot change", remedy
        elif path[0] == "forwarders" and len(path) == 3 and path[2] == "to":
            yield path, "the destination of a forwarder cannot change while the broker runs", _RESTART


def what_nodes_share(config: BrokerConfig) -> dict[str, str]:
    """Return table or key of the configuration -> what of it all nodes of a cluster should have alike, as text.

    It contains no secret. Of a file it contains only whether the configuration names one, because machines may keep
    their files in different places; of the file with users, their names.
    """
    found = {name: repr(_shared(getattr(config, name))) for name in _SHARED}
    found["listen.public_url"] = repr(config.listen.public_url)
    if config.cluster is not None:
        found["cluster"] = repr((config.cluster.lease, config.cluster.partitions))
    return found


def _shared(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        hints = hints_of(type(value))
        return [
            (field.name, _named_files(content) if _names_files(hints[field.name]) else _shared(content))
            for field in fields(value)
            if not _is_secret(hints[field.name])
            for content in (getattr(value, field.name),)
        ]
    if isinstance(value, Mapping):
        return [(key, _shared(one)) for key, one in sorted(value.items())]
    if isinstance(value, tuple):
        return [_shared(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    if isinstance(value, Enum):
        return value.name
    return value


def _is_secret(hint: Any) -> bool:
    return hint is Secret or any(_is_secret(one) for one in get_args(hint))


def _names_files(hint: Any) -> bool:
    """Whether a setting contains paths of files."""
    metadata = getattr(hint, "__metadata__", ())
    if any(one is Unit.FILE or (isinstance(one, Kind) and one.told.startswith(_FILES)) for one in metadata):
        return True
    return any(_names_files(one) for one in get_args(hint))


def _named_files(value: Any) -> object:
    return sorted(value) if isinstance(value, Mapping) else value is not None and value != ()


def _differences(old: BrokerConfig, new: BrokerConfig) -> Iterator[KeyPath]:
    for field in fields(BrokerConfig):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name in ("queues", "forwarders"):
            yield from _of_named((field.name,), before, after)
            if field.name == "queues" and before[0].name != after[0].name:
                yield (field.name,)
        else:
            yield from _of(before, after, (field.name,))


def _has_same_file(old: BrokerConfig, new: BrokerConfig) -> bool:
    before, after = old.store_password_file, new.store_password_file
    return before is not None and after is not None and before.origin == after.origin


def _of_named(path: KeyPath, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[KeyPath]:
    old, new = ({one.name: one for one in several} for several in (before, after))
    for name in {**old, **new}:
        if name in old and name in new:
            yield from _of(old[name], new[name], (*path, name))
        else:
            yield (*path, name)


def _of(before: Any, after: Any, path: KeyPath) -> Iterator[KeyPath]:
    if before == after:
        return
    if type(before) is not type(after) or type(before).__module__ not in _TABLES:
        yield path
        return
    for field in fields(before):
        yield from _of(getattr(before, field.name), getattr(after, field.name), (*path, field.name))
