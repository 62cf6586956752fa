"""The line of each key in a TOML file: tomllib reports values, but not lines.

Reads only text that tomllib has accepted, so it checks nothing. Does not know the meaning of any key.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""Names of tables and keys, and positions in arrays, from the top of a file."""

_BLANK = re.compile(r"(?:[ \t\n]++|#[^\n]*+)*+")
_SPACE = re.compile(r"[ \t]*+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^\n,\]}#]++")
_BASIC = r'"(?:[^"\\\n]++|\\.)*+"'
_LITERAL = r"'[^'\n]*+'"
_STRING = re.compile(
    # Not possessive: before Python 3.11.5, a possessive group with a lookahead ends too early (gh-106052). The
    # alternatives begin with different characters, so nothing is tried twice.
    r'"""(?:[^"\\]++|\\.|"(?!""))*"{3,5}' r"|'''(?:[^']++|'(?!''))*'{3,5}" rf"|{_BASIC}|{_LITERAL}",
    re.DOTALL,
)


class KeyLines:
    """The lines of one file's keys.

    Args:
        text: A file that tomllib can load.
    """

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._starts = [match.end() for match in re.finditer("\n", self._text)]
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._sizes: dict[KeyPath, int] = {}
        """Number of tables in each array of tables so far."""
        self._read()

    def __getitem__(self, path: KeyPath) -> int:
        """Return the line of a key, from 1; for a missing key, that of the nearest enclosing table, or 1."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def __contains__(self, path: object) -> bool:
        return path in self._lines

    def __iter__(self) -> Iterator[KeyPath]:
        return iter(self._lines)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text.startswith("[[", self._at):
                table = self._header(2)
            elif self._text[self._at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self, brackets: int) -> KeyPath:
        start = self._at
        self._at += brackets
        *above, last = self._key()
        self._at += brackets
        path: KeyPath = ()
        for name in above:
            path = self._inside((*path, name), start)
        path = (*path, last)
        if brackets == 2:
            self._set(path, start)
            self._sizes[path] = self._sizes.get(path, 0) + 1
            path = (*path, self._sizes[path] - 1)
        self._lines[path] = self._line(start)  # where it is opened counts, not where one below it was
        return path

    def _inside(self, path: KeyPath, start: int) -> KeyPath:
        """Return the table with the name; for an array of tables, the last one."""
        self._set(path, start)
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = table
        for name in self._key():
            path = (*path, name)
            self._set(path, start)
        self._at += 1  # the =
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        self._skip(_BLANK)
        index = 0
        while self._text[self._at] != "]":
            self._set((*path, index), self._at)
            self._value((*path, index))
            index += 1
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1
                self._skip(_BLANK)
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        self._skip(_BLANK)
        while self._text[self._at] != "}":
            self._pair(path)
            self._skip(_BLANK)
            if self._text[self._at] == ",":
                self._at += 1
                self._skip(_BLANK)
        self._at += 1

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_SPACE)
            match = _STRING.match(self._text, self._at) or _BARE.match(self._text, self._at)
            assert match is not None, self._at  # tomllib took it
            self._at = match.end()
            names.append(match[0] if match[0][0] not in "\"'" else tomllib.loads(f"key = {match[0]}")["key"])
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        assert match is not None, self._at  # tomllib took it
        self._at = match.end()

    def _set(self, path: KeyPath, start: int) -> None:
        self._lines.setdefault(path, self._line(start))

    def _line(self, at: int) -> int:
        return bisect_right(self._starts, at) + 1
