"""Records of a damaged store that cannot stay in it: found where they are whole, and written as lines of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from rocksdict import Rdict

from holdfast.exceptions import StoreFormatError
from holdfast.store import records as layout
from holdfast.store.records import decode_record
from holdfast.store.rocksdb import evidence, log_format

Item = tuple[bytes, bytes]
"""A key and its value."""

SAVED = "saved.jsonl"

_TAGS = (layout.RECORD, layout.HELD)
_STEPS = 4096
"""Numbers tried after a record to find the next readable block; a block of 32 KB has fewer records."""

_PUT, _DELETE, _DELETE_RANGE, _NOTE = 1, 0, 15, 3
_KEYS_OF = {_PUT: 2, _DELETE: 1, _DELETE_RANGE: 2, _NOTE: 1}
_BINARY = ("headers", "body", "transport", "attachments")


class Lines:
    """``saved.jsonl`` in a store's directory; records that an earlier repair did not save there are appended to it.

    Args:
        store: The store's directory. The file is created with the first record.

    Attributes:
        count: How many records were given, including those that the file already had.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / SAVED
        self._there: set[bytes] | None = None
        self.count = 0

    def write(self, items: Iterable[Item]) -> None:
        """Append records of queues and held records; each item once, even if a repair is repeated.

        Raises:
            OSError: They cannot be written.
        """
        file = None
        try:
            for key, value in items:
                if self._there is None:
                    self._there = self._digests()
                line = json.dumps(_line(key, value), ensure_ascii=False).encode() + b"\n"
                self.count += 1
                if _digest(line) in self._there:
                    continue
                if file is None:
                    file = self._path.open("ab")
                file.write(line)
        finally:
            if file is not None:
                file.close()

    def _digests(self) -> set[bytes]:
        """Return the digests of the existing lines; remove an incomplete last line, from a repair that was killed."""
        if not self._path.exists():
            return set()
        found, whole = set(), 0
        with self._path.open("r+b") as file:
            for line in file:
                if line.endswith(b"\n"):
                    found.add(_digest(line))
                    whole += len(line)
            file.truncate(whole)
        return found


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _line(key: bytes, value: bytes) -> dict[str, Any]:
    """Return a record as a JSON line. Bytes that are not UTF-8 are in base64, under a name that shows it."""
    place: dict[str, Any]
    if key.startswith(layout.RECORD):
        queue, partition, _ = layout.split_partition_key(key)
        place = {"queue": queue, "partition": partition, "offset": layout.last_number(key)}
    else:
        place = {"held_for": layout.key_name(key), "number": layout.last_number(key)}
    try:
        record = decode_record(value)
    except StoreFormatError:
        return place | {"record_base64": base64.b64encode(value).decode()}
    for name in type(record).__dataclass_fields__:
        found = getattr(record, name)
        if name not in _BINARY:
            place[name] = found
            continue
        if name == "attachments" and not found:
            continue
        try:
            place[name] = found.decode()
        except UnicodeDecodeError:
            place[f"{name}_base64"] = base64.b64encode(found).decode()
    return place


def logged_items(engine: Path, serial: int) -> Iterator[Item]:
    """Yield records in whole batches of the logs after batch ``serial``, even after damage.

    Args:
        serial: The last batch that stays in the store.
    """
    for log in evidence.logs(engine):
        with log_format.mapped(log) as data:
            for batch in evidence.batches(data):
                stamp = evidence.stamp_of(batch)
                if stamp is not None and stamp[0] > serial:
                    yield from (item for item in _puts(batch) if item[0][:1] in _TAGS)


def _puts(batch: bytes) -> Iterator[Item]:
    """Yield the puts of a batch. Its checksum was right, so its format is RocksDB's."""
    at = evidence.BATCH_HEADER
    while at < len(batch):
        kind = batch[at]
        at += 1
        if kind not in _KEYS_OF:
            return  # of another column family; the store has only one
        texts = []
        for _ in range(_KEYS_OF[kind]):
            length, at = _number(batch, at)
            texts.append(batch[at : at + length])
            at += length
        if kind == _PUT:
            yield texts[0], texts[1]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def readable_items(engine: Rdict) -> Iterator[Item]:
    """Yield every readable record of an engine's tables and logs, whatever damage surrounds it.

    Omits trimmed records where the entry that marks them is readable.
    """
    for tag in _TAGS:
        for key, value in _readable(engine, tag, _beginnings(engine, tag)):
            if tag != layout.RECORD or layout.last_number(key) >= _first(engine, key):
                yield key, value


def _readable(engine: Rdict, tag: bytes, beginnings: list[bytes]) -> Iterator[Item]:
    """Yield the readable items with a tag.

    An unreadable block ends an iteration. To find the items after it, try the next numbers, or the start of a table or
    a partition.
    """
    at, tries = tag, 0
    while True:
        cursor = engine.iter()
        last = b""
        try:
            cursor.seek(at)
            while cursor.valid() and (last := cast(bytes, cursor.key())).startswith(tag):
                yield last, cast(bytes, cursor.value())
                cursor.next()
                tries, at = 0, last
            if last and not last.startswith(tag):
                return
            cursor.status()
            return
        except GeneratorExit:
            raise
        except Exception:  # rocksdict raises no other exception
            tries += 1
        finally:
            del cursor  # a remaining cursor would keep the engine open
        if tries < _STEPS and len(at) > 8 and at != tag:
            at = at[:-8] + layout.number(layout.last_number(at) + 1)
            continue
        later = [key for key in beginnings if key > at]
        if not later:
            return
        at, tries = later[0], 0


def _beginnings(engine: Rdict, tag: bytes) -> list[bytes]:
    found = {cast(bytes, table[name]) for table in engine.live_files() for name in ("start_key", "end_key")}
    if tag == layout.RECORD:
        found |= {layout.retag(key, tag) + layout.number(0) for key, _ in _readable(engine, layout.PARTITION, [])}
    return sorted(key for key in found if key.startswith(tag))


def _first(engine: Rdict, key: bytes) -> int:
    try:
        entry = cast("bytes | None", engine.get(layout.retag(key[:-8], layout.PARTITION)))
    except Exception:
        return 0
    return layout.decode_entry(entry)[0] if entry else 0
