"""Tables of a file that could be read only in part, so that one mistake in a table hides no other one.

A check of several values uses such a table like a whole one. If it needs a value that could not be read, it ends, and
:func:`readable` continues with the next check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Unreadable(Exception):
    """A check needs an unreadable value, which has already been reported."""


class PartialTable:
    """Mixin of a table's class for a table that is readable only in part.

    The attributes of unreadable values raise :class:`Unreadable`, and so does a comparison of whole tables.
    """

    _given: ClassVar[frozenset[str]] = frozenset()

    def __eq__(self, other: object) -> bool:
        raise Unreadable

    __hash__ = None  # type: ignore[assignment]
    __repr__ = object.__repr__


def unread_table(cls: type[T], name: str) -> T:
    """Return an instance of a table's class with nothing but its name."""
    others = {one.name for one in fields(cls)} - {"name"}  # type: ignore[arg-type] # a dataclass
    return _made(cls, {"name": name}, dict.fromkeys(others, _raising))


def partial_table(cls: type[T], said: Mapping[str, Any], given: Collection[str]) -> T:
    """Return an instance of a table's class with the readable values, without the checks of the class itself."""
    known = [one for one in fields(cls) if one.name not in given]  # type: ignore[arg-type] # a dataclass
    defaults = {one.name: one.default for one in known if one.default is not MISSING}
    defaults |= {one.name: one.default_factory() for one in known if one.default_factory is not MISSING}
    values = {name: value for name, value in {**defaults, **said}.items() if name not in given}
    missing = {one.name for one in known} - values.keys()
    return _made(cls, values, {"_given": frozenset(given), **dict.fromkeys((*given, *missing), _raising)})


def _made(cls: type[T], values: Mapping[str, Any], members: Mapping[str, Any]) -> T:
    made: T = object.__new__(type(cls.__name__, (PartialTable, cls), dict(members)))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _raise_unreadable(_table: object) -> Any:
    raise Unreadable


_raising = property(_raise_unreadable)


def is_partial(table: object) -> bool:
    """Return whether a table is readable only in part."""
    return isinstance(table, PartialTable)


def is_given(table: Any, name: str) -> bool:
    """Return whether the file gives a value for an optional field, readable or not."""
    return (is_partial(table) and name in table._given) or bool(getattr(table, name))


def readable(*checks: Iterable[T]) -> Iterator[T]:
    """Yield what each of several checks finds before it needs an unreadable value."""
    for check in checks:
        with suppress(Unreadable):
            yield from check
