"""A check of a whole store: it reads everything and changes nothing.

It checks only the store's own guarantees, and treats protocol states as bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import SEEK_END
from pathlib import Path

from holdfast.core.records import Snapshot, content_name, content_size
from holdfast.exceptions import StoreDamaged, StoreError, StoreFormatError, StoreMissing
from holdfast.store import directory
from holdfast.store.records import decode_record
from holdfast.store.rocksdb import evidence, opening
from holdfast.store.rocksdb.manifest import read_manifest
from holdfast.store.rocksdb.store import RocksDBStore

COPY_BYTES = 1 << 20
AT_A_TIME = 1000

Where = tuple[str, int]


@dataclass(slots=True)
class Report:
    """The result of a check.

    Attributes:
        problems: The problems, a sentence each; empty for an intact store.
        serial: The last readable batch.
        durable: The last batch that is known to have been durable.
        records: How many records are readable.
        unreadable: Partition -> offsets of unreadable records.
        contents: The missing or cut attachments, a sentence each. A repair cannot bring them back.
        is_open: Whether a process has the store open: then the check skips its newest batches.
    """

    problems: list[str] = field(default_factory=list)
    serial: int = 0
    durable: int = 0
    records: int = 0
    unreadable: dict[Where, list[int]] = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)
    is_open: bool = False


def check_store(path: Path) -> Report:
    """Read the whole store and verify each checksum and each guarantee. Changes nothing.

    Raises:
        StoreFormatError: There is no store, or one of another format.
    """
    require_store(path)
    with directory.kept_shut(path) as is_shut:
        report = Report(is_open=not is_shut)
        if is_shut:
            try:
                opening.require_whole(path)
            except StoreError as error:
                report.problems.append(error.message)
        report.durable = durable_serial(path, report)  # before the view, since another process may continue to write
        report.problems += problems_of_tables(path)
        try:
            store = RocksDBStore(path, read_only=True)
        except StoreError as error:
            report.problems.append(error.message)
            return report
        with contextlib.closing(store):
            walk(store, report)
        report.problems += report.contents
        if report.serial < report.durable:
            report.problems.append(
                f"it is readable up to batch {report.serial}, but batch {report.durable} was durable"
            )
    return report


def problems_of_tables(path: Path) -> list[str]:
    """Return a sentence for each table in MANIFEST that is missing or has an unreadable block."""
    tables = read_manifest(path / directory.ENGINE).tables
    return [
        f"not every block of the table {name} is readable. If nothing else is reported, only deleted data is "
        "affected, but the store stops accepting messages when it compacts that table. A repair rewrites it"
        for name in opening.damaged_tables(path, tables)
    ]


def require_store(path: Path) -> None:
    if directory.read_format(path) is None:
        raise StoreMissing(f"There is no store at {path}.", remedy="Check the path.")


def durable_serial(path: Path, report: Report) -> int:
    try:
        noted = evidence.noted_serial(path)
    except StoreDamaged as error:
        if error.message not in report.problems:
            report.problems.append(error.message)
        noted = 0
    return max(noted, evidence.proven_durable(path / directory.ENGINE))


def walk(store: RocksDBStore, report: Report) -> None:
    report.serial = store.serial
    try:
        snapshot = store.load()
    except StoreError as error:
        report.problems.append(error.message)
        return
    _check_snapshot(snapshot, report)
    for where, (first, end) in snapshot.bounds.items():
        for offset, data in readable(store, where, first, end, report):
            try:
                record = decode_record(data)
                report.records += 1
                _check_content(store, where, offset, record.attachments, report)
            except StoreFormatError as error:
                _add_unreadable(report, where, offset, error)
    for sequence, numbers in snapshot.held.items():
        try:
            store.held(sequence, numbers)
        except StoreError as error:
            report.problems.append(f"held messages of the Sequence {sequence}: {error.message}")


def _check_content(store: RocksDBStore, where: Where, offset: int, attachments: bytes, report: Report) -> None:
    name, size = content_name(attachments), content_size(attachments)
    if not name:
        return
    try:
        with store.contents.open(name) as file:
            found = file.seek(0, SEEK_END)
    except (OSError, StoreError) as error:
        why = error.message if isinstance(error, StoreError) else str(error)
    else:
        if found == size:
            return
        why = f"the file {name.hex()} with its attachments has {found} bytes instead of {size}"
    report.contents.append(f"the record of {where[0]!r}, partition {where[1]}, at offset {offset}: {why}")


def _check_snapshot(snapshot: Snapshot, report: Report) -> None:
    for (queue, partition, name), state in snapshot.cursors.items():
        end = snapshot.bounds.get((queue, partition), (0, 0))[1]
        offset = state.get("offset")
        if isinstance(offset, int) and offset > end:
            place = f"the cursor {name!r} of {queue!r}, {partition}"
            report.problems.append(f"{place} is at {offset}, but the end is at {end}")
    report.problems += [
        f"messages are held for the unknown Sequence {sequence}"
        for sequence in snapshot.held
        if sequence not in snapshot.sequences
    ]


def readable(store: RocksDBStore, where: Where, first: int, end: int, report: Report) -> Iterator[tuple[int, bytes]]:
    """Yield the readable records, and add the others to the report."""
    while first < end:
        try:
            found = store.read_encoded(*where, first, end, COPY_BYTES)
        except StoreDamaged:
            found = _before_damage(store, where, first, end)
            yield from found
            first += len(found)
            if first < end:
                try:
                    store.read_encoded(*where, first, first + 1)
                except StoreDamaged as error:
                    _add_unreadable(report, where, first, error)
                    first += 1
            continue
        yield from found
        first = found[-1][0] + 1


def _before_damage(store: RocksDBStore, where: Where, first: int, end: int) -> list[tuple[int, bytes]]:
    """Return the records from ``first`` on, read one by one, up to the first unreadable one."""
    found: list[tuple[int, bytes]] = []
    with contextlib.suppress(StoreDamaged):
        for offset in range(first, end):
            found += store.read_encoded(*where, offset, offset + 1)
            if len(found) >= AT_A_TIME:
                break
    return found


def _add_unreadable(report: Report, where: Where, offset: int, error: StoreError) -> None:
    offsets = report.unreadable.setdefault(where, [])
    if not offsets:
        report.problems.append(f"records of {where[0]!r}, partition {where[1]}, from offset {offset}: {error.message}")
    offsets.append(offset)
