"""The files of an event journal: how events become bytes and rows again, and which files a directory has.

Knows no process that writes them, and not how they become Parquet.

A directory holds segments. A segment that is still written, or is not Parquet yet, is a ``_NAME.journal``: a header
line that identifies the format, then frames of a length, a checksum and MessagePack. A reader stops at the first
incomplete frame. Where pyarrow is installed, a complete segment becomes ``NAME.parquet`` with the same events; readers
of Parquet skip the others, since their names begin with ``_``.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import msgspec

from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.endpoint.journal.columns import NAMES
from holdfast.endpoint.journal.events import ACKNOWLEDGED, APPENDED, ROWS

HEADER = b"HOLDFAST JOURNAL 1\n"
LARGEST_FRAME = 64 << 20
"""Bytes; one that claims to be larger is no frame."""
ROWS_A_FRAME = 4_000
"""Approximate number of events in one frame: a reader holds no larger number in memory."""

STAMP = "%Y%m%dT%H%M%S.%fZ"
"""Prefix of a segment's name: its start in UTC, so that names sort by time."""
STAGED = "staged"
LIVE, OPEN, PARQUET, DRAFT = "_live-", ".journal", ".parquet", ".draft"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{0,199}")
"""Valid names of segments: no path to another directory, and no other file of the directory."""

_FRAME = struct.Struct(">II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int | None, int, list[Any]]).decode

Entries = Sequence[tuple[Any, ...]]


def frames_of(run: str, worker: int | None, ordinal: int, entries: Entries) -> tuple[bytes, int]:
    """Entries as bytes to be appended to a segment, and how many events they are."""
    frames: list[bytes] = []
    together: list[tuple[Any, ...]] = []
    first, count = ordinal, 0
    for entry in entries:
        together.append(entry)
        count += len(entry[-1])
        if count >= ROWS_A_FRAME:
            frames.append(_frame((run, worker, first, together)))
            first, count, together = first + count, 0, []
    if together:
        frames.append(_frame((run, worker, first, together)))
    return b"".join(frames), first + count - ordinal


def _frame(payload: tuple[Any, ...]) -> bytes:
    data = _encode(payload)
    return _FRAME.pack(len(data), crc32(data)) + data


def ignore_damage(_why: str) -> None:
    """Ignore damage: the default callback."""


def whole_frames(file: IO[bytes], on_damage: Callable[[str], None] = ignore_damage) -> Iterator[bytes]:
    """Yield the content of a segment's frames, from the first to the last complete frame.

    Args:
        file: Positioned at its beginning.
        on_damage: Called with the reason why the rest is damaged; not for a truncated end, as a crash leaves it.
    """
    if (header := file.read(len(HEADER))) != HEADER:
        if not HEADER.startswith(header):
            on_damage("it does not begin like a journal file")
        return
    read = len(HEADER)
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        length, checksum = _FRAME.unpack(head)
        if length > LARGEST_FRAME:
            on_damage(f"no events can be read from byte {read:,} on")
            return
        data = file.read(length)
        if len(data) < length or not any(head):  # cut off, or zeros that a power cut left
            return
        if crc32(data) != checksum:
            on_damage(f"the events at byte {read:,} have a wrong checksum")
            return
        read += _FRAME.size + length
        yield data


def whole_length(path: Path) -> int:
    """Return the offset up to which a segment is complete."""
    length = 0
    with path.open("rb") as file:
        for _ in whole_frames(file):
            length = file.tell()
        if not length:
            file.seek(0)
            length = len(HEADER) if file.read(len(HEADER)) == HEADER else 0
    return length


@dataclass(slots=True)
class Part:
    """Events of one frame that have the same columns: column -> a value for each; the others are null.

    Times are seconds since 1970. Within a frame, events are ordered by ``ordinal``, not by where they stand.
    """

    run: str
    worker: int | None
    columns: dict[str, Sequence[Any]]


def read_segment(file: IO[bytes], on_damage: Callable[[str], None] = ignore_damage) -> Iterator[list[Part]]:
    """Yield the events of a segment, one frame at a time.

    A segment that is torn, or was not written by Holdfast, ends at its first incomplete frame; gaps in the ordinals
    show the missing events. ``on_damage`` as in :func:`whole_frames`.
    """
    for data in whole_frames(file, on_damage):
        try:
            parts = parts_of(*_decode(data))
        except (msgspec.DecodeError, ValueError, TypeError, IndexError, RecursionError):
            on_damage("it contains an entry that no journal writes")
            return
        yield parts


def parts_of(run: str, worker: int | None, ordinal: int, entries: Entries) -> list[Part]:
    """Convert entries to rows, grouped by kind.

    Raises:
        ValueError, TypeError, IndexError: They are no entries.
    """
    placed, said, rows = _Gathered(4), _Gathered(1), _Gathered(1)
    for entry in entries:
        kind, at, values = entry[0], entry[1], entry[-1]
        count = len(values)
        ordinals = range(ordinal, ordinal + count)
        if kind == APPENDED:
            placed.add(ordinals, [at] * count, entry[2:])
        elif kind == ACKNOWLEDGED:
            said.add(ordinals, [at] * count, entry[2:])
        elif kind == ROWS:
            rows.add(ordinals, (), entry[1:])
        else:
            raise ValueError(f"no such entry: {kind!r}")
        ordinal += count
    made = []
    if placed:
        made.append((placed.ordinals, _appended(placed.times, *placed.lists)))
    if said:
        made.append((said.ordinals, _acknowledged(said.times, *said.lists)))
    if rows:
        made.append((rows.ordinals, _rows(*rows.lists)))
    parts = [Part(run, worker, {"ordinal": ordinals, **columns}) for ordinals, columns in made]
    if any(len(values) != len(part.columns["ordinal"]) for part in parts for values in part.columns.values()):
        raise ValueError("the columns have different lengths")
    return parts


class _Gathered:
    """Entries of one kind, put together: what each says of its events, one behind the other."""

    __slots__ = ("lists", "ordinals", "times")

    def __init__(self, count: int) -> None:
        self.ordinals: list[int] = []
        self.times: list[float] = []
        self.lists: list[list[Any]] = [[] for _ in range(count)]

    def __bool__(self) -> bool:
        return bool(self.ordinals)

    def add(self, ordinals: Sequence[int], times: Sequence[float], lists: Sequence[Sequence[Any]]) -> None:
        self.ordinals += ordinals
        self.times += times
        for mine, theirs in zip(self.lists, lists, strict=True):
            mine += theirs


def _acknowledged(times: list[float], rows: list[Any]) -> dict[str, Sequence[Any]]:
    sequences, numbers, counts = zip(*rows, strict=True)
    events = ["acknowledged"] * len(rows)
    return {"at": times, "event": events, "sequence": sequences, "number": numbers, "count": counts}


def _rows(rows: list[Any]) -> dict[str, Sequence[Any]]:
    return dict(zip(_ROW, zip(*rows, strict=True), strict=True))


_ROW = tuple(name for name in NAMES if name not in ("run", "ordinal", "worker"))


def _appended(
    times: list[float], queues: list[str], partitions: list[int], offsets: list[int], stamps: list[Any]
) -> dict[str, Sequence[Any]]:
    sequences, numbers, since = zip(*stamps, strict=True)
    known = {queue: _event_of(queue) for queue in set(queues)}
    counts = [1] * len(queues)
    if any(event == STAGED for event, _ in known.values()):  # a block has for a number how many rows are in it
        is_block = [known[queue][0] == STAGED for queue in queues]
        counts = [number if block else 1 for number, block in zip(numbers, is_block, strict=True)]
        numbers = tuple(None if block else number for number, block in zip(numbers, is_block, strict=True))
    columns: dict[str, Sequence[Any]] = {
        "at": times,
        "event": [known[queue][0] for queue in queues],
        "sequence": sequences,
        "number": numbers,
        "count": counts,
        "queue": queues,
        "partition": partitions,
        "offset": offsets,
        "since": since,
    }
    if "" in sequences or any(key is not None for _, key in known.values()):
        # What is in an outbox has the sequence key where others have their Sequence, and no number.
        keys = [known[queue][1] for queue in queues]
        columns["key"] = keys
        columns["sequence"] = [one or None if key is None else None for one, key in zip(sequences, keys, strict=True)]
        columns["number"] = [one or None if key is None else None for one, key in zip(numbers, keys, strict=True)]
    return columns


def _event_of(queue: str) -> tuple[str, str | None]:
    """Return the event's name for a record appended to a queue, and the key of the outbox with that queue."""
    for prefix in ("outbox/", "replies/"):
        if queue.startswith(prefix):
            return "submitted", queue.removeprefix(prefix)
    if queue.startswith("staging/"):
        return STAGED, None
    return ("given up" if queue == DEAD_LETTERS else "delivered"), None


def rows_of(file: IO[bytes]) -> list[dict[str, Any]]:
    """Return the events of a segment as rows, in order and all in memory."""
    rows = []
    for parts in read_segment(file):
        for part in parts:
            usual = dict.fromkeys(NAMES) | {"run": part.run, "worker": part.worker}
            for values in zip(*part.columns.values(), strict=True):
                rows.append(usual | dict(zip(part.columns, values, strict=True)))  # noqa: PERF401
    return sorted(rows, key=lambda row: row["ordinal"])


# --- a directory ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a journal.

    Args:
        size: Bytes.
        written: When it was written last, seconds since 1970.
        is_parquet: Whether it is Parquet.
    """

    path: Path
    size: int
    written: float
    is_parquet: bool

    @property
    def name(self) -> str:
        """Name of the segment, which its Parquet file keeps, and which determines its order."""
        return self.path.name.removeprefix(LIVE).removeprefix("_").removesuffix(OPEN).removesuffix(PARQUET)

    @property
    def file(self) -> str:
        """External name of the file. It stays the same when the file is complete, and changes with the conversion to
        Parquet."""
        return self.name + self.path.suffix

    @property
    def begun(self) -> float | None:
        """When it was begun, seconds since 1970; None: its name does not say."""
        try:
            return datetime.strptime(self.name.partition("-")[0], STAMP).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None

    @property
    def is_live(self) -> bool:
        """Whether a process writes it, or died while writing it."""
        return self.path.name.startswith(LIVE)


def segments(directory: Path) -> list[Segment]:
    """Return the segments of a directory, the oldest first, each once."""
    found: dict[str, Segment] = {}
    for path in _listed(directory):
        is_parquet = path.suffix == PARQUET and not path.name.startswith(("_", "."))
        if not is_parquet and not (path.suffix == OPEN and path.name.startswith("_")):
            continue
        try:
            there = path.stat()
        except OSError:
            continue  # it is gone, or has become Parquet
        one = Segment(path, there.st_size, there.st_mtime, is_parquet)
        # After a kill both may exist: the Parquet file is whole, or it would still be a draft.
        if _NAME.fullmatch(one.name) and (is_parquet or one.name not in found):
            found[one.name] = one
    return [found[name] for name in sorted(found)]


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def open_segment(directory: Path, file: str) -> IO[bytes] | None:
    """Open the unchanged bytes of a segment, which stay readable if it is renamed or deleted; None without one."""
    name, suffix = os.path.splitext(file)
    if suffix not in (OPEN, PARQUET) or not _NAME.fullmatch(name):
        return None
    for path in (file,) if suffix == PARQUET else (LIVE + file, "_" + file):  # in the order in which it is renamed
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return (directory / path).open("rb")
    return None


def made_parquet(directory: Path, file: str) -> Segment | None:
    """Return the Parquet segment that a file was converted to; None without one."""
    made = directory / (file.removesuffix(OPEN) + PARQUET)
    return next((one for one in segments(directory) if one.path == made), None) if file.endswith(OPEN) else None


def prune(directory: Path, age: float | None, size: int | None, now: float, keep: Path | None) -> int:
    """Delete the oldest segments beyond the retention limits.

    Returns:
        The bytes of the remaining segments.
    """
    there = segments(directory)
    total = sum(one.size for one in there)
    for one in there:
        if one.path == keep:
            continue
        is_old = age is not None and now - one.written > age
        if is_old or (size is not None and total > size):
            one.path.unlink(missing_ok=True)
            total -= one.size
    return total
