"""Idle partitions of forwarders, in which nothing waits. The lists show them in one row: a queue has 64 shared
partitions by default, and as many for sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import click

T = TypeVar("T")
_PARTITION_OF = re.compile(r"outbound/(?:\d+:)?(forwarder/.+)/\d+", re.DOTALL)
"""The cursor of a forwarder, in a worker."""


def all_option(command: Any) -> Any:
    return click.option("--all", "every", is_flag=True, help="Also list idle and empty partitions.")(command)


def folded(things: Iterable[T], group: Callable[[T], Hashable], fold: Callable[[list[T]], T]) -> list[T]:
    """Things with the idle ones of a group put together, where the first of them stands.

    Args:
        things: All of them.
        group: What idle things have in common that belong together; None for a thing that is not idle.
        fold: Makes one of several.
    """
    groups: dict[Hashable, list[T]] = {}
    for place, thing in enumerate(things):
        key = group(thing)
        groups.setdefault(("", place) if key is None else key, []).append(thing)
    return [fold(found) if len(found) > 1 else found[0] for found in groups.values()]


def fold_cursors(cursors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Combine a forwarder's idle cursors into one, after those with records to send."""
    first: dict[Hashable, int] = {}
    for place, cursor in enumerate(cursors):
        first.setdefault(_owner(cursor), place)
    ordered = sorted(cursors, key=lambda one: (first[_owner(one)], not one["lag"]))
    return folded(ordered, lambda one: None if one["lag"] else _owner(one), _one_cursor)


def _owner(cursor: dict[str, Any]) -> tuple[str, str]:
    """Return the queue, and the forwarder of the cursor or the cursor itself."""
    match = _PARTITION_OF.fullmatch(cursor["name"])
    return cursor.get("queue", ""), f"outbound/{match[1]}" if match is not None else cursor["name"]


def _one_cursor(idle: list[dict[str, Any]]) -> dict[str, Any]:
    first = idle[0]
    name = f"{_owner(first)[1]}: {len(idle):,} idle"
    moved = [one["idle"] for one in idle if one["idle"] is not None]
    rates = [one["rate"] for one in idle if one.get("rate") is not None]
    return {
        **first,
        "name": name,
        "idle": min(moved, default=None),
        "rate": sum(rates) if rates else None,
        "offsets": {},
    }
