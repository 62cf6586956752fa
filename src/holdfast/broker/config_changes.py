"""What another configuration changes, and what of that cannot be changed while a broker runs. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from holdfast.broker.config import BrokerConfig
from holdfast.broker.config_checks import Wrong
from holdfast.config.lines import KeyPath

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
    "journal.enabled",
    "journal.directory",
    "journal.age",
    "journal.size",
    "journal.file_age",
    "journal.file_size",
)
"""Keys of what is opened once. There are others: whether there is TLS, which queues there are, forwarders' ends."""
_RESTART = "Put it back, or restart the broker."


def what_changes(old: BrokerConfig, new: BrokerConfig) -> list[str]:
    """The keys that say something else: those of tables with names one by one, others by their table."""
    return [".".join(map(str, path)) for path in _differences(old, new)]


def what_cannot_change(old: BrokerConfig, new: BrokerConfig) -> Iterator[Wrong]:
    """Where it says something else of what is opened once."""
    for path in _differences(old, new):
        key = ".".join(map(str, path))
        if key in _FIXED:
            yield path, "this cannot change while the broker runs", _RESTART
        elif key in ("listen.tls", "admin.tls"):
            yield path, "whether TLS is spoken cannot change while the broker runs", _RESTART
        elif path[0] == "queues" and len(path) == 2:
            is_new = all(one.name != path[1] for one in old.queues)
            what = "a queue cannot be added" if is_new else "a queue cannot be taken away"
            yield path, f"{what} while the broker runs", _RESTART
        elif path == ("queues",):
            yield path, "which queue is the first cannot change while the broker runs", _RESTART
        elif path[0] == "forwarders" and len(path) == 3 and path[2] in ("queue", "to"):
            what = "what a forwarder reads, and where it sends to, cannot change while the broker runs"
            yield path, what, "Give the new one a name of its own: what the old one has not sent is kept for it."


def _differences(old: BrokerConfig, new: BrokerConfig) -> Iterator[KeyPath]:
    for field in fields(BrokerConfig):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name in ("queues", "forwarders"):
            yield from _of_named((field.name,), before, after)
            if field.name == "queues" and before[0].name != after[0].name:
                yield (field.name,)
        else:
            yield from _of(before, after, (field.name,))


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
    is_ours = is_dataclass(before) and type(before) is type(after) and type(before).__module__.endswith("broker.config")
    if not is_ours:
        yield path
        return
    for field in fields(before):
        yield from _of(getattr(before, field.name), getattr(after, field.name), (*path, field.name))
