"""Tables of a TOML file as frozen classes: reports every mistake at once, with its line, key and fix.

Owns the conversion of tables to classes, for any file and any keys. Knows no key by name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.unreadable import partial_table, unread_table
from holdfast.config.values import (
    ASSURANCE,
    DIRECTORY,
    DURATION,
    FLAG,
    NONE,
    SHARE,
    SIZE,
    Kind,
    Unfit,
    one_of,
    told_type,
    whole,
)
from holdfast.core.policy import Assurance
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes, Mistake
from holdfast.settings import Unit, unit_of

MAX_FILE = 4 * 1024 * 1024
"""Maximum number of bytes of a configuration file."""
MAX_DEPTH = 32
"""Maximum depth of nested brackets: more than any key needs."""

_SECRETS = ("password", "passphrase", "token", "secret", "authorization")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

Table = dict[str, Any]


def read_file(path: Path, what: str, remedy: str) -> bytes:
    """Read a file, up to one byte more than allowed.

    Args:
        path: Its path.
        what: Its name in errors.
        remedy: What to do if it cannot be read.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        with path.open("rb") as opened:
            return opened.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}", remedy=remedy) from error


def load_toml(content: bytes, name: str) -> tuple[str, Table]:
    """Return the text of a file, and its TOML content.

    Raises:
        ConfigurationMistakes: It is not valid TOML.
    """
    if len(content) > MAX_FILE:
        raise ConfigurationMistakes(
            [Mistake(name, 1, "", f"the file is longer than {MAX_FILE:,} bytes", "Write less.")]
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        told = Mistake(name, line, "", f"the file is not UTF-8 at byte {error.start}", "Save it as UTF-8.")
        raise ConfigurationMistakes([told]) from None
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):  # brackets in strings count too, but no real file has that many
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        told = Mistake(name, 1, "", f"brackets are nested more than {MAX_DEPTH} deep", "Close some.")
        raise ConfigurationMistakes([told])
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        place = _PLACE.search(said)
        last = text.count("\n") + (not text.endswith("\n"))
        line = int(place[1]) if place is not None and place[1] else max(1, last)
        column = f" at column {place[2]}" if place is not None and place[2] else ""
        what = f"the file is not valid TOML: {_PLACE.sub('', said)}{column}"
        raise ConfigurationMistakes(
            [Mistake(name, line, "", what, "Write text in quotes and table names in [ ].")]
        ) from None


class TableReading:
    """Reads one file.

    Args:
        file: Its name in mistakes.
        lines: The lines of its keys.
        base: The directory that relative paths start at.
    """

    def __init__(self, file: str, lines: KeyLines, base: Path) -> None:
        self._file = file
        self._lines = lines
        self._base = base
        self.mistakes: list[Mistake] = []

    def wrong(self, path: KeyPath, what: str, remedy: str) -> None:
        """Report a mistake."""
        mend = remedy[:1].upper() + remedy[1:] + ("" if remedy.endswith((".", "?")) else ".")
        self.mistakes.append(Mistake(self._file, self._lines[path], told_key(path), what, mend))

    def special(self, cls: type[Any]) -> Mapping[str, Callable[[Any, KeyPath], Any]]:
        """Field -> its reader, for a class with fields that no annotation describes; the reader keeps the values."""
        return {}

    def read_table(
        self,
        cls: type[Any],
        table: Table,
        path: KeyPath,
        special: Mapping[str, Callable[[Any, KeyPath], Any]] | None = None,
        *,
        partly: bool = False,
        called: bool = False,
    ) -> tuple[Table, set[str]]:
        """Return field -> value for a table, and the fields with unreadable values. Each of these has a mistake. A
        table that is readable in part counts as read.

        Args:
            cls: The class whose fields are its keys.
            table: The table.
            path: Its path.
            special: Field -> its reader, where no annotation describes it.
            partly: Whether nested tables stay as plain values, to be combined with others.
            called: Whether the class' ``name`` is the name of the table.
        """
        said: Table = {}
        unread: set[str] = set()
        known = {one.name: one for one in fields(cls) if not (called and one.name == "name")}
        hints = get_type_hints(cls, include_extras=True)
        for name, value in table.items():
            here = (*path, name)
            if name not in known:
                if meant := self._unknown(name, list(known), here):
                    unread.add(meant)
                continue
            before = len(self.mistakes)
            read = (special or {}).get(name)
            found = read(value, here) if read is not None else self._value(cls, name, hints[name], value, here, partly)
            if len(self.mistakes) == before or found is not None:
                said[name] = found
            else:
                unread.add(name)
        for name, one in known.items():
            is_told = name in table or name in unread
            if not is_told and one.default is MISSING and one.default_factory is MISSING:
                self.wrong(path, f"'{name}' is missing", f"Write {name} = … there.")
        return said, unread - said.keys()

    def _unknown(self, name: str, known: list[str], path: KeyPath) -> str:
        """Report an unknown key; return the nearest known key, "" if none is near."""
        near = get_close_matches(name, known, 1, 0.6)
        places = [key for key in known if key.endswith(("_file", "_env"))]
        if places and name.lower() in _SECRETS:
            remedy = f"This file must not contain secrets: name the place of the secret with {' or '.join(places)}."
        elif near:
            remedy = f"Did you mean '{near[0]}'?"
        else:
            remedy = f"There are {', '.join(known)}."
        self.wrong(path, f"the key '{name}' does not exist here", remedy)
        return near[0] if near else ""

    def _value(self, cls: type[Any], name: str, hint: Any, value: Any, path: KeyPath, partly: bool) -> Any:
        members = [one for one in _members(hint) if one is not NoneType]
        is_optional = len(members) < len(_members(hint))
        (member,) = members
        element = _element_class(member)
        if element is not None:
            return self._tables(element, value, path)
        kind = kind_of(cls, name)  # type: ignore[arg-type] # a class can be hashed
        if kind is None:
            return self._table(member, value, path, partly)
        if is_optional and value == NONE:
            return None
        try:
            return kind.read(value, self._base)
        except Unfit as unfit:
            self.wrong(path, unfit.what, unfit.remedy)
            return None

    def _table(self, cls: type[Any], value: Any, path: KeyPath, partly: bool = False) -> Any:
        if not isinstance(value, dict):
            self.wrong(path, f"{told_type(value)} is not a table", f"Write [{told_key(path)}] with its keys below.")
            return None
        said, unread = self.read_table(cls, value, path, partly=partly)
        said = self._checked(cls, said, path)
        return said if partly else self.made(cls, said, unread, path)

    def _checked(self, cls: type[Any], said: Table, path: KeyPath) -> Table:
        """Return the values without those that the class itself rejects, each checked alone."""
        if _is_of_a_file(cls):
            return said  # all of that is in the kinds
        fit: Table = {}
        for name, value in said.items():
            try:
                if not isinstance(value, dict):
                    cls(**{name: value})
            except ConfigurationError as error:
                what = error.message.removeprefix(f"{cls.__name__}.{name} ")
                if what.startswith("cannot be"):  # else it contradicts a default, which may be said otherwise, too
                    self.wrong((*path, name), f"it {what}", error.remedy)
                    continue
            fit[name] = value
        return fit

    def made(self, cls: type[Any], said: Table, unread: Collection[str], path: KeyPath) -> Any:
        """Return a table as its class: complete, or partial if some of it is unreadable; None if the class rejects it.

        Args:
            cls: The class.
            said, unread: From :meth:`read_table`.
            path: Path of the table.
        """
        needed = (one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING)
        if _is_of_a_file(cls) and (unread or not said.keys() >= set(needed)):
            return partial_table(cls, said, unread)
        try:
            return cls(**said)
        except ConfigurationError as error:  # two that do not go together
            self.wrong(path, error.message, error.remedy)
        except TypeError:  # something is missing, which is said already
            assert self.mistakes, said
        return None

    def _tables(self, cls: type[Any], value: Any, path: KeyPath) -> tuple[Any, ...] | None:
        """Several tables: by name, or in order if they have no names. Each keeps its place."""
        if "name" in {one.name for one in fields(cls)}:
            return self._named(cls, value, path)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            self.wrong(
                path, f"{told_type(value)} is not a list of tables", f"Write [[{told_key(path)}]] before each table."
            )
            return None
        return tuple(self._table(cls, one, (*path, index)) for index, one in enumerate(value))

    def _named(self, cls: type[Any], value: Any, path: KeyPath) -> tuple[Any, ...] | None:
        if not isinstance(value, dict):
            self.wrong(
                path, f"{told_type(value)} is not a table", f"Write [{told_key(path)}.NAME] with its keys below."
            )
            return None
        special = self.special(cls)
        made = []
        for name, table in value.items():
            here = (*path, name)
            self._check_name(cls, name, here)
            if not isinstance(table, dict):
                self.wrong(here, f"{told_type(table)} is not a table", f"Write [{told_key(here)}] with its keys below.")
                made.append(unread_table(cls, name))
                continue
            said, unread = self.read_table(cls, table, here, special, called=True)
            said = {key: one for key, one in said.items() if key not in special}
            made.append(self.made(cls, {"name": name, **said}, unread, here))
        return tuple(made)

    def _check_name(self, cls: type[Any], name: str, path: KeyPath) -> None:
        kind = kind_of(cls, "name")  # type: ignore[arg-type] # a class can be hashed
        assert kind is not None
        try:
            kind.read(name, self._base)
        except Unfit as unfit:
            self.wrong(path, unfit.what, unfit.remedy)


def _is_of_a_file(cls: type[Any]) -> bool:
    """Return whether a class only describes a file, and checks nothing itself."""
    return cls.__module__.startswith(("holdfast.broker", "holdfast.pipeline")) and not hasattr(cls, "__post_init__")


def told_key(path: KeyPath) -> str:
    """Return a key as it is written from the top of a file; for an array of tables with the index, from 1."""
    told = ""
    for name in path:
        if isinstance(name, int):
            told += f"[{name + 1}]"
        else:
            written = name if _BARE.fullmatch(name) else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
            told += f".{written}" if told else written
    return told


# --- kinds ------------------------------------------------------------------------------------------------------------

_OF_UNIT = {Unit.SECONDS: DURATION, Unit.BYTES: SIZE, Unit.SHARE: SHARE, Unit.DIRECTORY: DIRECTORY}
"""The kind of the values of a setting with a unit; its class checks the bounds."""


@cache
def kind_of(cls: type[Any], name: str) -> Kind | None:
    """Return the kind of a field's values; None if it is a table, or several."""
    hint = get_type_hints(cls, include_extras=True)[name]
    members = [one for one in _members(hint) if one is not NoneType]
    (member,) = members
    if get_origin(member) is Annotated:
        kind = next((one for one in get_args(member) if isinstance(one, Kind)), None)
        unit = unit_of(hint)
        if kind is not None or unit is not None:
            return kind or _OF_UNIT[unit]  # type: ignore[index] # one of both is there
        member = get_args(member)[0]
    if member is Assurance:
        return ASSURANCE
    if isinstance(member, type) and issubclass(member, Enum):
        return one_of(member)
    if member is bool:
        return FLAG
    if member is int:
        return whole(-(1 << 63))  # the class checks its bounds
    assert member is not float, f"{cls.__name__}.{name} needs a unit"
    return None


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _element_class(hint: Any) -> type[Any] | None:
    """Return the class of a field's elements."""
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
        element: type[Any] = get_args(hint)[0]
        return element
    return None
