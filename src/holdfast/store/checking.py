"""Walking a whole store to see whether it is what was written, and repairing one that is not.

A check reads everything and changes nothing. A repair copies what can be read into new files and puts them in the place
of the old ones, which stay beside them. Knows what the store promises by itself; the protocol's states are bytes to it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocksdict import AccessType, Rdict, WriteBatch

from holdfast.core.queues import OUTBOUND
from holdfast.core.records import Snapshot, State
from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed, StoreFormatError, StoreMissing
from holdfast.store import directory, evidence, opening
from holdfast.store import records as layout
from holdfast.store.records import decode_record
from holdfast.store.rocksdb import RocksDBStore

COPY_BYTES = 1 << 20
AT_A_TIME = 1000
NEW = "db.new"
DAMAGED = "db.damaged"
SAVED = "saved.jsonl"

Where = tuple[str, int]


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        problems: What is wrong, a sentence each; empty if nothing is.
        serial: The last batch that can be read.
        durable: The last batch that is known to have been durable.
        records: How many records can be read.
        unreadable: Partition -> offsets of records that cannot.
        is_open: Whether somebody has the store open: then its newest batches are not looked for.
    """

    problems: list[str] = field(default_factory=list)
    serial: int = 0
    durable: int = 0
    records: int = 0
    unreadable: dict[Where, list[int]] = field(default_factory=dict)
    is_open: bool = False


class _Rebuilt(RocksDBStore):
    """A store of which all tables are looked at, whatever names them."""

    view_tries = 1

    def _make_view(self) -> opening.View:
        return opening.RebuiltView(self.path)


def check_store(path: Path) -> Report:
    """Read all of a store and verify each checksum and whatever it promises. Changes nothing.

    Raises:
        StoreFormatError: There is no store, or one of another format.
    """
    _require_store(path)
    with directory.kept_shut(path) as is_shut:
        report = Report(is_open=not is_shut)
        if is_shut:
            try:
                opening.require_whole(path)
            except StoreError as error:
                report.problems.append(error.message)
        report.durable = _durable(path, report)  # before the look, since somebody may go on writing
        try:
            store = RocksDBStore(path, read_only=True)
        except StoreError as error:
            report.problems.append(error.message)
            return report
        with contextlib.closing(store):
            _walk(store, report)
        if report.serial < report.durable:
            report.problems.append(f"it can be read up to batch {report.serial}, and {report.durable} was durable")
    return report


def _require_store(path: Path) -> None:
    if directory.read_format(path) is None:
        raise StoreMissing(f"There is no store at {path}.", remedy="Check the path.")


def _durable(path: Path, report: Report) -> int:
    try:
        noted = evidence.noted_serial(path)
    except StoreDamaged as error:
        if error.message not in report.problems:
            report.problems.append(error.message)
        noted = 0
    return max(noted, evidence.proven_durable(path / directory.ENGINE))


def _walk(store: RocksDBStore, report: Report) -> None:
    report.serial = store.serial
    try:
        snapshot = store.load()
    except StoreError as error:
        report.problems.append(error.message)
        return
    _check_snapshot(snapshot, report)
    for where, (first, end) in snapshot.bounds.items():
        for offset, data in _readable(store, where, first, end, report):
            try:
                decode_record(data)
                report.records += 1
            except StoreFormatError as error:
                _add_unreadable(report, where, offset, error)
    for sequence, numbers in snapshot.held.items():
        try:
            store.held(sequence, numbers)
        except StoreError as error:
            report.problems.append(f"what is held for the Sequence {sequence}: {error.message}")


def _check_snapshot(snapshot: Snapshot, report: Report) -> None:
    for (queue, partition, name), state in snapshot.cursors.items():
        end = snapshot.bounds.get((queue, partition), (0, 0))[1]
        offset = state.get("offset")
        if isinstance(offset, int) and offset > end:
            place = f"the cursor {name!r} of {queue!r}, {partition}"
            report.problems.append(f"{place} is at {offset}, and the end at {end}")
    report.problems += [
        f"messages are held for the Sequence {sequence}, which is not known"
        for sequence in snapshot.held
        if sequence not in snapshot.sequences
    ]


def _readable(store: RocksDBStore, where: Where, first: int, end: int, report: Report) -> Iterator[tuple[int, bytes]]:
    """The records that can be read; the others are put into the report."""
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
    """Records from ``first`` on, one by one, up to one that cannot be read."""
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
        report.problems.append(
            f"records of {where[0]!r}, partition {where[1]}, from offset {offset} on: {error.message}"
        )
    offsets.append(offset)


# --- repairing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Repair:
    """What a repair gives up, a sentence each; nothing if the store needs none."""

    gives_up: list[str] = field(default_factory=list)
    is_needed: bool = False


def repair_store(path: Path, *, do: bool = False) -> Repair:
    """See what can be saved of a damaged store; do it only if told.

    Args:
        path: The store's directory; nobody may have it open.
        do: Whether to put what can be saved in the place of what is there, which stays beside it as ``db.damaged``.

    Raises:
        StoreFailed: It cannot be repaired, or a disk says no; what is there stays as it is.
        StoreLocked: Somebody has it open.
        StoreFormatError: There is no store, or one of another format.
    """
    _require_store(path)
    lock = directory.DirectoryLock(path)
    try:
        _finish_exchange(path)
        store = _open_what_can_be_read(path)
        with contextlib.closing(store):
            report = Report()
            _walk(store, report)
            durable = _durable(path, report)
            repair = _plan(store, report, durable)
            repair.is_needed = bool(report.problems) or isinstance(store, _Rebuilt) or report.serial < durable
            if do and repair.is_needed:
                try:
                    _copy(store, path, report)
                except StoreDamaged as error:
                    raise _beyond_repair(path, error.message) from error
        if do and repair.is_needed:
            _exchange(path)
    finally:
        lock.release()
    return repair


def _open_what_can_be_read(path: Path) -> RocksDBStore:
    """The files that are named, if these are all; else whatever files there are."""
    try:
        opening.require_whole(path, by_note=False)
        return RocksDBStore(path, read_only=True)
    except StoreDamaged as first:
        try:
            return _Rebuilt(path, read_only=True)
        except StoreError as error:
            raise _beyond_repair(path, first.message) from error


def _plan(store: RocksDBStore, report: Report, durable: int) -> Repair:
    try:
        snapshot = store.load()
    except StoreError as error:
        raise _beyond_repair(store.path, error.message) from error
    repair = Repair()
    if report.serial < durable:
        _see_that_no_number_is_used_again(store, snapshot)
        repair.gives_up.append(
            f"what came after batch {report.serial}: {durable - report.serial} batches that were durable. "
            "Messages in them were acknowledged, and their senders do not know."
        )
    if isinstance(store, _Rebuilt):
        repair.gives_up.append("the certainty that what was deleted stays so: a little of it may come back.")
    for where, offsets in report.unreadable.items():
        queue, partition = where
        kind = snapshot.queues.get(queue, {}).get("kind")
        if kind not in ("inbox", None) or queue.startswith(("outbox/", "replies")):
            raise _beyond_repair(
                store.path, f"of {queue!r}, which goes out in order, the record at offset {offsets[0]} cannot be read."
            )
        first = snapshot.bounds[where][0]
        for (name, number, cursor), state in snapshot.cursors.items():
            if (name, number) == where and cursor.startswith(OUTBOUND) and _stands(state, first) <= offsets[-1]:
                raise _beyond_repair(
                    store.path,
                    f"{cursor.removeprefix(OUTBOUND)!r} sends on what is in partition {partition} of {queue!r}, in its "
                    f"order and under numbers that go by it, and has not passed the record at offset {offsets[-1]}, "
                    "which cannot be read.",
                )
        repair.gives_up.append(
            f"records {first} to {offsets[-1]} of the queue {queue!r}, partition {partition}: {len(offsets)} cannot be "
            f"read; the other {offsets[-1] + 1 - first - len(offsets)} are saved in {SAVED}, a line of JSON each."
        )
    return repair


def _see_that_no_number_is_used_again(store: RocksDBStore, snapshot: Snapshot) -> None:
    """Without its last batches a queue may end before what was sent of it. What came next would have its numbers, and
    the destination would drop it as what it has.

    Raises:
        StoreFailed: That may be.
    """
    for name, state in snapshot.sequences.items():
        home = snapshot.homes.get(name)
        if state.get("role") != "source" or state.get("identifier") is None or home not in snapshot.bounds:
            continue
        end = snapshot.bounds[home][1]
        marked = state.get("mark", end - state["start"] + 1)
        if state["start"] + marked > end:
            raise _beyond_repair(
                store.path,
                f"the Sequence {state['identifier']} may have sent messages of {home[0]!r}, partition {home[1]}, that "
                "were in the batches that are lost; others would go out under their numbers, and be dropped.",
            )


def _stands(state: State, first: int) -> int:
    offset = state.get("offset")
    return max(offset if type(offset) is int else 0, first)


def _beyond_repair(path: Path, why: str) -> StoreFailed:
    return StoreFailed(
        f"The store at {path} cannot be repaired: {why}",
        remedy="Restore it from a copy; or begin with a new store, and send again what may be missing.",
    )


def _copy(store: RocksDBStore, path: Path, report: Report) -> None:
    """Write all that is kept into new files, and what is readable but not kept into lines."""
    shutil.rmtree(path / NEW, ignore_errors=True)
    options = opening.make_options(keep_prefix=False)
    options.create_if_missing(True)
    engine = opening.open_engine(path / NEW, path, options, AccessType.read_write())
    try:
        for tag in (
            evidence.STAMP[:1],
            layout.QUEUE,
            layout.PARTITION,
            layout.HELD,
            layout.SEQUENCE,
            layout.CURSOR,
            layout.HOME,
        ):
            _put(engine, store.scan(tag))
        with (path / SAVED).open("a", encoding="utf-8") if report.unreadable else contextlib.nullcontext() as saved:
            for where, (first, end) in store.load().bounds.items():
                kept = max(report.unreadable.get(where, [first - 1])) + 1
                prefix = layout.partition_key(layout.RECORD, *where)
                if saved is not None:
                    for offset, data in _readable(store, where, first, kept, Report()):
                        saved.write(_line(where, offset, data))
                records = _readable(store, where, kept, end, Report())
                _put(engine, ((prefix + layout.number(offset), data) for offset, data in records))
                entry = layout.encode_entry(kept, kept)
                _put(engine, [(layout.partition_key(layout.PARTITION, *where), entry)])
        engine.flush()
    finally:
        engine.close()


def _put(engine: Rdict, items: Iterator[tuple[bytes, bytes]] | list[tuple[bytes, bytes]]) -> None:
    batch, size = WriteBatch(raw_mode=True), 0
    for key, value in items:
        batch.put(key, value)
        size += len(key) + len(value)
        if size > COPY_BYTES:
            engine.write(batch)
            batch, size = WriteBatch(raw_mode=True), 0
    engine.write(batch)


def _line(where: Where, offset: int, data: bytes) -> str:
    record = decode_record(data)
    fields = {name: getattr(record, name) for name in ("sequence", "message_number", "action", "message_id")}
    body = record.body.decode("utf-8", "replace")
    return json.dumps({"queue": where[0], "partition": where[1], "offset": offset, **fields, "body": body}) + "\n"


def _exchange(path: Path) -> None:
    """Put the new files in the place of the old ones; a process killed in between is finished by the next repair."""
    old, number = path / DAMAGED, 1
    while old.exists():
        number += 1
        old = path / f"{DAMAGED}.{number}"
    evidence.forget_note(path)
    (path / directory.ENGINE).rename(old)
    (path / NEW).rename(path / directory.ENGINE)
    directory.sync_directory(path)


def _finish_exchange(path: Path) -> None:
    if not (path / directory.ENGINE).exists() and (path / NEW / "CURRENT").exists():
        (path / NEW).rename(path / directory.ENGINE)
        directory.sync_directory(path)
