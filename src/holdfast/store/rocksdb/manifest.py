"""The tables that RocksDB's MANIFEST names, to detect missing ones.

RocksDB's repair rebuilds a MANIFEST from the tables it finds, and so cannot detect that one is missing. A MANIFEST has
the format of a log. Its records are edits, each a series of tagged fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.store.rocksdb import log_format

_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT_CURSOR, _DELETED = 1, 2, 3, 4, 5, 6
_NEW_FILE, _PREVIOUS_LOG, _OLDEST_LOG = 7, 9, 10
_NEW_FILES = (100, 102, 103)
_WITH_FIELDS = 103
_END_OF_FIELDS = 1
_FAMILY, _FAMILY_ADDED, _FAMILY_DROPPED, _MOST_FAMILIES, _IN_GROUP = 200, 201, 202, 203, 300
_NUMBERS = (_LOG, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _OLDEST_LOG, _FAMILY, _MOST_FAMILIES, _IN_GROUP)
_TEXTS = (_COMPARATOR, _FAMILY_ADDED)
_SKIPPABLE = 1 << 13  # a field of a newer RocksDB, with its length


@dataclass(slots=True)
class Manifest:
    """The content of a MANIFEST.

    Attributes:
        tables: The names of the tables.
        is_whole: Whether the whole file was readable. If not, it may name tables that were deleted since, and lack
            others.
    """

    tables: set[str] = field(default_factory=set)
    is_whole: bool = False


class _Unreadable(Exception):
    """An unknown or truncated field."""


def read_manifest(engine: Path) -> Manifest:
    """Return the MANIFEST of the engine in a directory; an empty, incomplete one if the file is missing.

    Raises:
        OSError: A file cannot be read.
    """
    try:
        path = engine / (engine / "CURRENT").read_text(encoding="ascii").strip()
        is_whole = path.name.startswith("MANIFEST-") and path.is_file()
    except (FileNotFoundError, UnicodeDecodeError, ValueError):
        is_whole = False
    if not is_whole:
        written = sorted(engine.glob("MANIFEST-*"))
        if not written:
            return Manifest()
        path = written[-1]
    # CURRENT may be damaged while the newest MANIFEST is whole, so read the newest one.
    with log_format.mapped(path) as data:
        found = Manifest(is_whole=bool(data) and log_format.is_whole(data))
        numbers: set[int] = set()
        try:
            for edit in log_format.records(data):
                _Edit(edit).apply(numbers)
        except _Unreadable:
            found.is_whole = False
    found.tables = {f"{number:06d}.sst" for number in numbers}
    return found


class _Edit:
    """One edit, read field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def apply(self, tables: set[int]) -> None:
        while self._at < len(self._data):
            tag = self._number()
            if tag == _DELETED:
                self._number()
                tables.discard(self._number())
            elif tag == _NEW_FILE or tag in _NEW_FILES:
                tables.add(self._new_file(tag))
            elif tag in _NUMBERS:
                self._number()
            # RocksDB marks the fields that an older version may skip.
            elif tag in _TEXTS or tag & _SKIPPABLE:
                self._text()
            elif tag == _COMPACT_CURSOR:
                self._number()
                self._text()
            elif tag != _FAMILY_DROPPED:
                raise _Unreadable

    def _new_file(self, tag: int) -> int:
        self._number()  # its level
        number = self._number()
        if tag == _NEW_FILES[1]:
            self._number()  # its path
        self._number()  # its size
        self._text()  # its smallest key
        self._text()  # its largest key
        if tag in _NEW_FILES:
            self._number()
            self._number()
        if tag == _WITH_FIELDS:
            while self._number() != _END_OF_FIELDS:
                self._text()
        return number

    def _number(self) -> int:
        value = shift = 0
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise _Unreadable

    def _text(self) -> None:
        length = self._number()
        self._at += length
        if self._at > len(self._data):
            raise _Unreadable
