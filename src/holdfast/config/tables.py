"""Tables of a TOML file as frozen classes: reports every mistake at once, with its line, key and fix.

Owns the conversion of tables to classes, for any file and any keys. Knows no key by name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.unreadable import partial_table, unread_table
from holdfast.config.values import (
    ASSURANCE,
    DIRECTORY,
    DURATION,
    FILE,
    FLAG,
    NONE,
    SHARE,
    SIZE,
    TEXT,
    WHOLE,
    Kind,
    Unfit,
    one_of,
    told_type,
    told_value,
)
from holdfast.core.policy import Assurance
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes, Mistake
from holdfast.settings import Unit, hints_of, misfit, nearest, suggestion, unit_of, values_of

MAX_FILE = 4 * 1024 * 1024
"""Maximum number of bytes of a configuration file."""
_REPEATED = "This key or table is already in the file. Write each only once."
MAX_DEPTH = 32
"""Maximum depth of nested brackets: more than any key needs."""

_SECRETS = ("password", "passphrase", "token", "secret", "authorization")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

Table = dict[str, Any]
Wrong = tuple[KeyPath, str, str]
"""A contradiction: the key's path, what is wrong, and how to fix it."""


def read_file(path: Path, what: str, remedy: str) -> bytes:
    """Read a file, up to one byte more than allowed.

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
        text = content.decode("utf-8-sig")
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
        is_repeated = said.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate"))
        remedy = _REPEATED if is_repeated else "Write text in quotes and table names in [ ]."
        raise ConfigurationMistakes([Mistake(name, line, "", what, remedy)]) from None


class TableReading:
    """Reads one file."""

    def __init__(self, file: str, lines: KeyLines, base: Path) -> None:
        self._file = file
        self._lines = lines
        self._base = base
        self.mistakes: list[Mistake] = []

    def wrong(self, path: KeyPath, what: str, remedy: str) -> None:
        mend = remedy[:1].upper() + remedy[1:] + ("" if not remedy or remedy.endswith((".", "?")) else ".")
        self.mistakes.append(Mistake(self._file, self._lines[path], told_key(path), what, mend))

    def end(self, contradictions: Iterable[Wrong] = ()) -> None:
        """Report contradictions too.

        Raises:
            ConfigurationMistakes: The file has mistakes; lists all of them in the order of lines.
        """
        for path, what, remedy in contradictions:
            self.wrong(path, what, remedy)
        if self.mistakes:
            raise ConfigurationMistakes(sorted(self.mistakes, key=lambda mistake: (mistake.line, mistake.key)))

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
            cls: The class: its fields are the keys.
            special: Field -> its reader, where no annotation describes it.
            partly: Whether nested tables stay as plain values, to be combined with others.
            called: Whether the class' ``name`` is the name of the table.
        """
        said: Table = {}
        unread: set[str] = set()
        known = {one.name: one for one in fields(cls) if not (called and one.name == "name")}
        hints = hints_of(cls)
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
        near = nearest(name, known)
        places = [key for key in known if key.endswith(("_file", "_env"))]
        if places and name.lower() in _SECRETS:
            remedy = f"This file must not contain secrets: name the place of the secret with {' or '.join(places)}."
        else:
            remedy = did_you_mean(name, known)
        self.wrong(path, f"the key '{name}' does not exist here", remedy)
        return near

    def _value(self, cls: type[Any], name: str, hint: Any, value: Any, path: KeyPath, partly: bool) -> Any:
        members = _members(hint)
        (member,) = (one for one in members if one is not NoneType)
        element = _element_class(member)
        if element is not None:
            return self._tables(element, value, path)
        kind = kind_of(cls, name)  # type: ignore[arg-type] # a class can be hashed
        if kind is None:
            return self._table(member, value, path, partly)
        if value == NONE and NoneType in members and _is_number(hint):
            return None
        if get_origin(member) is tuple:
            return self._list(kind, value, path)
        if get_origin(member) is Mapping:
            return self.read_mapping(kind, value, path)
        found = self._read(kind, value, path)
        told = misfit(cls, name, found) if found is not None and _is_number(hint) else ""
        if told:
            self.wrong(path, f"it cannot be {told_value(value)}", f"It may be {told}.")
        return found if not told else None

    def _read(self, kind: Kind, value: Any, path: KeyPath) -> Any:
        try:
            return kind.read(value, self._base)
        except Unfit as unfit:
            self.wrong(path, unfit.what, unfit.remedy)
            return None

    def _list(self, kind: Kind, value: Any, path: KeyPath) -> tuple[Any, ...] | None:
        if not isinstance(value, list):
            found = self._read(kind, value, path)
            return (found,) if found is not None else None
        if not value:
            self.wrong(path, "the list is empty", "Remove the key, or add a value.")
            return None
        several = tuple(self._read(kind, one, (*path, index)) for index, one in enumerate(value))
        if None in several:
            return None
        seen = set()
        for index, one in enumerate(several):
            if one in seen:
                self.wrong((*path, index), f"{told_value(one)} is listed twice", "List it once.")
            seen.add(one)
        return several

    def read_mapping(self, kind: Kind, value: Any, path: KeyPath) -> Mapping[str, Any] | None:
        """Return a table with any keys, and values of one kind."""
        if not isinstance(value, dict):
            self.wrong(path, f"{told_type(value)} is not a table", f'Write [{told_key(path)}] with NAME = "…" below.')
            return None
        found = {key: self._read(kind, one, (*path, key)) for key, one in value.items()}
        return found if None not in found.values() else None

    def _table(self, cls: type[Any], value: Any, path: KeyPath, partly: bool = False) -> Any:
        if not isinstance(value, dict):
            self.wrong(path, f"{told_type(value)} is not a table", f"Write [{told_key(path)}] with its keys below.")
            return None
        said, unread = self.read_table(cls, value, path, partly=partly)
        return said if partly else self.made(cls, said, unread, path)

    def made(self, cls: type[Any], said: Table, unread: Collection[str], path: KeyPath) -> Any:
        """Return a table as its class: complete, or partial if some is unreadable; None if the class rejects it."""
        needed = (one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING)
        checks_itself = hasattr(cls, "__post_init__")
        if not checks_itself and (unread or not said.keys() >= set(needed)):
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
        self._read(kind, name, path)


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


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown name: the nearest known one, or all of them."""
    return suggestion(name, known, f"There are {', '.join(known) or 'none'}.")


def raised(path: KeyPath, check: Callable[[], object]) -> Iterator[Wrong]:
    """Yield the error that a check raises, as a contradiction at this path."""
    try:
        check()
    except ConfigurationError as error:
        yield path, error.message, error.remedy


# --- kinds ------------------------------------------------------------------------------------------------------------

_OF_UNIT = {Unit.SECONDS: DURATION, Unit.BYTES: SIZE, Unit.SHARE: SHARE, Unit.DIRECTORY: DIRECTORY, Unit.FILE: FILE}
_OF_TYPE = {bool: FLAG, str: TEXT, Assurance: ASSURANCE}


@cache
def kind_of(cls: type[Any], name: str) -> Kind | None:
    """Return the kind of a field's values, for a list or a mapping that of one; None if they are tables."""
    hint = hints_of(cls)[name]
    (member,) = (one for one in _members(hint) if one is not NoneType)
    if get_origin(member) is tuple:
        member = get_args(member)[0]
    elif get_origin(member) is Mapping:
        member = get_args(member)[1]
    kind, unit = next((one for one in get_args(member)[1:] if isinstance(one, Kind)), None), unit_of(member)
    plain = get_args(member)[0] if get_origin(member) is Annotated else member
    if kind is not None or unit is not None:
        return kind or _OF_UNIT[unit]  # type: ignore[index] # one of both is there
    if plain in _OF_TYPE:
        return _OF_TYPE[plain]
    if isinstance(plain, type) and issubclass(plain, Enum):
        return one_of(plain)
    if plain is int:
        return replace(WHOLE, told=values_of(cls, name).removesuffix(" or None"))
    assert plain is not float, f"{cls.__name__}.{name} needs a unit"
    return None


def told_values(cls: type[Any], name: str) -> str | None:
    """Describe the values of a field as the reference page does; None if they are tables."""
    kind = kind_of(cls, name)  # type: ignore[arg-type] # a class can be hashed
    origins = {get_origin(one) for one in _members(hints_of(cls)[name])}
    if kind is None:
        return None
    if Mapping in origins:
        return f"a table, with {kind.told} for each name"
    return f"{kind.told}, or a list of them" if tuple in origins else kind.told


def _is_number(hint: Any) -> bool:
    plain = (get_args(one)[0] if get_origin(one) is Annotated else one for one in _members(hint))
    return any(one in (int, float) for one in plain)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _element_class(hint: Any) -> type[Any] | None:
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
        element: type[Any] = get_args(hint)[0]
        return element
    return None
