"""Validation of settings at construction, before first use. Each error carries a remedy.

The annotation of a settings field defines its check, its unit and its bounds, once for constructors, configuration
files and the reference. So new fields are checked automatically. This module also parses the words for times and sizes:
"500ms", "7d", "10GB".
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.exceptions import ConfigurationError, counted

MAX_WORKERS = 64
"""Maximum number of processes that share the Sequences of a server."""


class Unit(Enum):
    """What a setting means besides its type."""

    SECONDS = "seconds"
    BYTES = "bytes"
    SHARE = "share"
    DIRECTORY = "directory"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of a number, both included; or of the length of a text or a collection.

    Args:
        least: The minimum; None: 1 for whole numbers, above 0 for other numbers, 0 for a length.
        most: The maximum; None: no limit.
    """

    least: float | None = None
    most: float | None = None


MOST_SECONDS: Final = 1_000_000_000
"""The longest time of a setting or option, three decades: threads cannot wait for three centuries."""
Seconds = Annotated[float, Unit.SECONDS, Within(None, MOST_SECONDS)]
SecondsOrZero = Annotated[float, Unit.SECONDS, Within(0, MOST_SECONDS)]
Bytes = Annotated[int, Unit.BYTES]
Share = Annotated[float, Unit.SHARE, Within(0, 1)]
Directory = Annotated[str, Unit.DIRECTORY]
File = Annotated[str, Unit.FILE]
Port = Annotated[int, Within(0, 65_535)]
NonEmpty = Annotated[str, Within(1)]

_LARGEST: Final = (math.inf, 2**63 - 1)
"""The largest number, and the largest whole number, without a limit of its own: the latter fits into Java's long."""
UNITS_OF_TIME = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
"""Unit -> seconds."""
UNITS_OF_SIZE = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
"""Unit, in lower case -> bytes."""
_LONGEST_VALUE: Final = 80
"""Characters of a value in an error text."""
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([A-Za-z]+)", re.ASCII)


def seconds_of(text: str) -> float | None:
    """Return the seconds in a word such as "500ms", "1.5h" or "7d"; None if it is not such a word."""
    found = _QUANTITY.fullmatch(text)
    unit = UNITS_OF_TIME.get(found[2].lower()) if found is not None else None
    return float(found[1]) * unit if found is not None and unit is not None else None


def bytes_of(text: str) -> int | None:
    """Return the bytes in a word such as "64kB" or "10GB"; None if it is not such a word."""
    found = _QUANTITY.fullmatch(text)
    unit = UNITS_OF_SIZE.get(found[2].lower()) if found is not None else None
    return round(float(found[1]) * unit) if found is not None and unit is not None else None


def check_settings(settings: object) -> None:
    """Check every field of a dataclass against its annotation. Call this from ``__post_init__``.

    Args:
        settings: The instance. Error texts omit the values that its ``repr`` hides.

    Raises:
        ConfigurationError: a value is not valid; the error names the class, the field and the valid values.
    """
    cls: type[Any] = type(settings)
    shown = {field.name: field.repr for field in fields(cls)}
    for name, (kinds, bounds) in _annotated(cls).items():  # type: ignore[arg-type] # a class can be hashed
        value, is_secret = getattr(settings, name), not shown[name]
        _check(f"{cls.__name__}.{name}", value, kinds, bounds.least, bounds.most, is_secret=is_secret)


def check_arguments(called: Callable[..., Any], values: Mapping[str, object]) -> None:
    """Check every argument of a constructor or a function against its annotation. Call this first in it, with
    ``locals()``.

    A class that a module imports only for type checkers is recognized by its name.

    Args:
        called: The class or the function. Every argument needs an annotation, ``*args`` and ``**kwargs`` excepted.
        values: The name of each argument -> its value. Error texts omit what may be a secret.

    Raises:
        ConfigurationError: A value is not valid; the error names the class, the argument and the valid values.
    """
    hints = _arguments(called)
    prefix = f"{called.__name__}." if isinstance(called, type) else ""
    for name, (kinds, _) in hints.items():
        for kind in kinds:
            if get_origin(kind) is not collections.abc.Callable:
                continue
            if callable(values[name]) or set(kinds) <= {kind, NoneType}:
                optional = NoneType in kinds
                check_callable(f"{prefix}{name}", values[name], len(get_args(kind)[0]), optional=optional)
    for name, (kinds, bounds) in hints.items():
        value = values[name]
        if not _fits(value, kinds, bounds.least, bounds.most):
            told = _told(kinds, bounds.least, _most(value, bounds.most))
            raise ConfigurationError(f"{prefix}{name} cannot be {_shown(value, kinds)}", remedy=f"It may be {told}.")


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """Return the texts in a collection. A single text would count as a collection of its characters.

    Raises:
        ConfigurationError: It is not a collection of texts.
    """
    if isinstance(value, collections.abc.Iterable) and not isinstance(value, str | bytes | Mapping):
        value = tuple(value)
    _check(name, value, (tuple[str, ...],), None, None)
    assert isinstance(value, tuple)
    return value


def checked_token(text: str, place: str) -> str:
    """Return a token without surrounding blanks.

    Raises:
        ConfigurationError: it is empty, or is nothing that a header could carry.
    """
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"{place} contains no token: a token is one word of printable ASCII characters",
            remedy="Create one, for example with: openssl rand -hex 32",
        )
    return token


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for an unknown name: the nearest known one, or ``otherwise`` if none is near."""
    near = nearest(name, known)
    return f"Did you mean {near!r}?" if near else otherwise


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to another in any case of letters, "" if none is near."""
    by_case = {one.lower(): one for one in known}
    return next((by_case[one] for one in get_close_matches(name.lower(), by_case, 1)), "")


def brief_value(value: object) -> str:
    """Return a value for an error text: as code, or only its class if that is long."""
    text = repr(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    if isinstance(value, str | bytes):
        return f"{text[:_LONGEST_VALUE]}…"
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


def _shown(value: object, kinds: tuple[Any, ...]) -> str:
    """Describe a wrong value without its text, unless that is one of a few words or a number."""
    is_word = any(kind in (int, float) or get_origin(kind) is Literal for kind in kinds)
    is_empty = isinstance(value, Sized) and not len(value)
    is_number = isinstance(value, int | float) and (int in kinds or float in kinds)
    if value is None or isinstance(value, bool) or is_empty or is_number or (is_word and isinstance(value, str)):
        return f"{value!r:.100}"
    return f"of the type {type(value).__name__}"


def hints_of(cls: type[Any]) -> Mapping[str, Any]:
    """Return field -> annotation of a settings class."""
    return _evaluated(cls)  # type: ignore[arg-type] # a class can be hashed


@cache  # to evaluate the annotations of a class takes longer than to read all its fields
def _evaluated(cls: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(cls, include_extras=True)


def unit_of(hint: Any) -> Unit | None:
    """Return the unit in an annotation, None without one."""
    return next((one for one in _metadata(hint) if isinstance(one, Unit)), None)


def values_of(cls: type[Any], name: str) -> str:
    """Describe the valid values of a field in words, with their unit and bounds."""
    kinds, bounds = _annotated(cls)[name]  # type: ignore[arg-type] # a class can be hashed
    unit = unit_of(hints_of(cls)[name])
    # Every time has that limit, and no setting comes near it.
    told = _told(kinds, bounds.least, None if bounds.most == MOST_SECONDS else bounds.most)
    return f"{told} ({unit.value})" if unit in (Unit.SECONDS, Unit.BYTES) else told


def bounds_of(cls: type[Any], name: str) -> Within:
    """Return the bounds of a number, as far as its annotation states them."""
    return _annotated(cls)[name][1]  # type: ignore[arg-type] # a class can be hashed


def meaning_of(cls: type[Any], name: str) -> str:
    """Return what the docstring of a class says of a field; "" if Python strips docstrings.

    Raises:
        LookupError: No class explains the field.
    """
    for one in cls.__mro__:
        entry = re.search(rf"^    +{name}: (.*(?:\n {{12}}.*)*)", one.__doc__ or "", re.MULTILINE)
        if entry is not None:
            return " ".join(entry[1].split())
    if cls.__doc__ is None or not cls.__doc__:
        return ""
    raise LookupError(f"the docstring of {cls.__name__} does not explain {name}")


def misfit(cls: type[Any], name: str, value: object) -> str:
    """Return the valid values of a field in words if a value, other than None, is not one of them; "" if it is."""
    kinds, bounds = _annotated(cls)[name]  # type: ignore[arg-type] # a class can be hashed
    some = tuple(kind for kind in kinds if kind is not NoneType)
    return "" if _fits(value, some, bounds.least, bounds.most) else _told(some, bounds.least, bounds.most)


@cache
def _annotated(cls: type[Any]) -> dict[str, tuple[tuple[Any, ...], Within]]:
    return _hints(cls, [one.name for one in fields(cls)])


@cache
def _arguments(called: Callable[..., Any]) -> dict[str, tuple[tuple[Any, ...], Within]]:
    function = vars(called)["__init__"] if isinstance(called, type) else getattr(called, "__func__", called)
    return _hints(
        function,
        [
            name
            for name, one in inspect.signature(function).parameters.items()
            if name not in ("self", "cls") and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        ],
    )


def _hints(annotated: Any, names: list[str]) -> dict[str, tuple[tuple[Any, ...], Within]]:
    known = _Known(annotated.__globals__) if inspect.isfunction(annotated) else None
    hints = get_type_hints(annotated, localns=known, include_extras=True)
    plain = get_type_hints(annotated, localns=known)
    return {
        name: (
            _members(plain[name]),
            next((bounds for bounds in _metadata(hints[name]) if isinstance(bounds, Within)), Within()),
        )
        for name in names
    }


class _Known(dict[str, Any]):
    """The names in the annotations of a function, also those that its module imports only for type checkers."""

    def __missing__(self, name: str) -> Any:
        for place in (collections.abc, typing, builtins):
            if name in getattr(place, "__all__", dir(builtins)):
                return getattr(place, name)
        return _ByName(name, (), {})


class _ByName(type):
    """A class that stands for each class of its name: importing that one here would load its packages."""

    def __instancecheck__(cls, instance: object) -> bool:
        return any(one.__name__ == cls.__name__ for one in type(instance).__mro__)

    def __getattr__(cls, name: str) -> Any:  # of a module
        if name.startswith("__"):
            raise AttributeError(name)
        return _ByName(name, (), {})


def _metadata(hint: Any) -> list[Any]:
    """Return the metadata of an annotation and of the members of its union."""
    return [one for member in _members(hint) for one in getattr(member, "__metadata__", ())]


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Check that an argument is a whole number within its bounds.

    Raises:
        ConfigurationError: the argument is not such a number.
    """
    _check(name, value, (int,), least, most)


def check_share(name: str, value: object) -> None:
    """Check that an argument is a number from 0 to 1.

    Raises:
        ConfigurationError: the argument is not such a number.
    """
    _check(name, value, (float,), 0, 1)


def check_seconds(name: str, value: object, *, zero: bool = True, endless: bool = True) -> None:
    """Check that an argument is a number of seconds and not negative.

    Args:
        name: The name of the argument.
        value: The value of the argument.
        zero: Whether 0 is valid.
        endless: Whether None, for no limit, is valid.

    Raises:
        ConfigurationError: the argument is not valid.
    """
    _check(name, value, (float, NoneType) if endless else (float,), 0.0 if zero else None, MOST_SECONDS)


def check_callable(name: str, value: object, arguments: int, *, optional: bool = False) -> None:
    """Check that an argument is a plain function, or another callable, of that many arguments.

    Args:
        name: The name of the argument.
        value: Its value. Error texts omit it, because it may be a secret that is in the wrong place.
        arguments: With how many it is called.
        optional: Whether None is valid too.

    Raises:
        ConfigurationError: The argument is no function, or cannot be called so. Or it is asynchronous or a generator:
            its result would count as true, whatever it is to return.
    """
    if value is None and optional:
        return
    takes = counted(arguments, "argument") if arguments else "no arguments"
    remedy = f"It may be a function that takes {takes} and returns its result{' or None' if optional else ''}."
    if not callable(value):
        raise ConfigurationError(f"{name} cannot be of the type {type(value).__name__}", remedy=remedy)
    called: Any = value
    while isinstance(called, functools.partial):
        called = called.func
    for one in (called, getattr(called, "__call__", None)):  # noqa: B004 # the second is the method of an object
        if inspect.iscoroutinefunction(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigurationError(f"{name} cannot be asynchronous or a generator", remedy=remedy)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return
    try:
        signature.bind(*(None,) * arguments)
    except TypeError:
        shown = str(signature) if len(str(signature)) <= _LONGEST_VALUE else f"{str(signature)[:_LONGEST_VALUE]}…"
        raise ConfigurationError(f"{name} cannot be called with {takes}: {shown}", remedy=remedy) from None


def _check(
    where: str,
    value: object,
    kinds: tuple[Any, ...],
    least: float | None,
    most: float | None,
    *,
    is_secret: bool = False,
) -> None:
    if not _fits(value, kinds, least, most):
        shown = "what was given" if is_secret else brief_value(value)
        raise ConfigurationError(
            f"{where} cannot be {shown}", remedy=f"It may be {_told(kinds, least, _most(value, most))}."
        )


def _most(value: object, most: float | None) -> float | None:
    """Return the maximum to name: a whole number that no counter holds is refused without one, too."""
    return _LARGEST[1] if most is None and isinstance(value, int) and value > _LARGEST[1] else most


def _fits(value: object, kinds: tuple[Any, ...], least: float | None, most: float | None) -> bool:
    if isinstance(value, bool):
        return bool in kinds or Any in kinds
    if isinstance(value, int | float) and (int in kinds or float in kinds):
        try:
            is_number = math.isfinite(value) and (float in kinds or isinstance(value, int))
        except OverflowError:  # more than any float
            is_number = float not in kinds
        lowest = least if least is not None else 1 if int in kinds else 0
        is_low = value <= 0 if least is None and int not in kinds else value < lowest
        return is_number and not is_low and value <= (most if most is not None else _LARGEST[type(value) is int])
    return any(_is_of(value, kind, least) for kind in kinds)


def _is_of(value: object, kind: Any, least: float | None) -> bool:
    """Return whether a value, other than a number, is of a type, and so is its content."""
    if kind in (int, float, bool):
        return False
    if kind is Any or isinstance(kind, TypeVar):
        return True
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if not isinstance(value, origin) or (least is not None and isinstance(value, Sized) and len(value) < least):
        return False
    if not parts or origin is type or origin is collections.abc.Callable:
        return True
    if isinstance(value, str | bytes):  # not a collection of its characters
        return False
    if isinstance(value, dict):
        return all(_are_of(pair, parts) for pair in value.items())
    if isinstance(value, tuple) and origin is tuple and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and _are_of(value, parts)
    if isinstance(value, collections.abc.Sequence | set | frozenset):
        return all(_are_of((one,), parts) for one in value)
    return True  # to look into what else there is could consume it, or take long


def _are_of(values: tuple[object, ...], kinds: tuple[Any, ...]) -> bool:
    return all(_fits(value, _members(kind), None, None) for value, kind in zip(values, kinds, strict=False))


def _told(kinds: tuple[Any, ...], least: float | None, most: float | None) -> str:
    """Describe the valid values in words."""
    return " or ".join(_kind_told(kind, least, most) for kind in kinds)


def _kind_told(kind: Any, least: float | None, most: float | None) -> str:
    if kind is NoneType:
        return "None"
    if kind is bool:
        return "True or False"
    upper = f" and at most {most:,}" if most is not None else ""
    if kind is int:
        return f"a whole number of at least {least if least is not None else 1:,}{upper}"
    if kind is float:
        return f"a number of at least {least:,}{upper}" if least is not None else f"a number above 0{upper}"
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f'"{part}"' for part in parts)
    if origin is collections.abc.Callable:
        return "a function"
    some = " that is not empty" if least is not None else ""
    if origin is not None and issubclass(origin, Mapping):
        return f"a dictionary{some} of {_parts_told(parts[0])} to {_parts_told(parts[1])}"
    if origin is tuple and Ellipsis not in parts:
        return f"a tuple of {len(parts)}: {', '.join(map(_parts_told, parts))}"
    if origin is not None and issubclass(origin, collections.abc.Iterable):
        kind_of = "tuple" if origin is tuple else "set" if issubclass(origin, collections.abc.Set) else "list"
        return f"a {kind_of}{some} of {_parts_told(parts[0])}"
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return (f"an {name}" if name[0] in "AEIO" else f"a {name}") + (some if kind is str else "")


def _parts_told(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return _kind_told(kind, None, None)
    return " or ".join(getattr(one, "__name__", str(one)) for one in _members(kind))
