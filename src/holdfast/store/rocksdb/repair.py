"""Repairing a damaged store: a repair copies the readable content into new files, and reports every loss.

The new files replace the old ones, which stay next to them. A repair never reports less than the actual loss. If it
cannot vouch for a store, it refuses to repair it; then it saves the readable records.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocksdict import AccessType, Rdict, WriteBatch

from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.records import Snapshot, State
from holdfast.core.rm_destination.saved_state import closed_state
from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed, clause
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.rocksdb import evidence, opening
from holdfast.store.rocksdb.checking import (
    COPY_BYTES,
    Report,
    Where,
    durable_serial,
    problems_of_tables,
    readable,
    require_store,
    walk,
)
from holdfast.store.rocksdb.manifest import Manifest, read_manifest
from holdfast.store.rocksdb.salvage import SAVED, Item, Lines, logged_items, readable_items
from holdfast.store.rocksdb.store import RocksDBStore

NEW = "db.new"
DAMAGED = "db.damaged"
_EARLIER = (
    f"what an earlier repair, which was killed before its last step, would have shown. The old files are in {DAMAGED}, "
    f"or in the last {DAMAGED}.NUMBER."
)


class _Readable(RocksDBStore):
    """A store according to its MANIFEST, up to the first damage in its logs."""

    view_tries = 1

    def _make_view(self) -> opening.View:
        return opening.PrefixView(self.path)


class _Rebuilt(RocksDBStore):
    """A store read from all its tables, named or not.

    Attributes:
        manifest: The list of named tables.
    """

    view_tries = 1
    manifest: Manifest

    def _make_view(self) -> opening.View:
        self.manifest = read_manifest(self.path / directory.ENGINE)
        view = opening.RebuiltView(self.path)
        is_whole = self.manifest.is_whole
        named = self.manifest.tables if is_whole else view.left_out
        if unreadable := sorted(set(view.left_out) & set(named)):
            view.close()
            why = "so some of its records are lost" if is_whole else "and neither is the list that names it"
            raise opening.damaged(self.path, f"not all of {', '.join(unreadable)} is readable, {clause(why)}.")
        return view


@dataclass(slots=True)
class Repair:
    """The losses of a repair, a sentence each; none for a store that needs no repair."""

    gives_up: list[str] = field(default_factory=list)
    is_needed: bool = False


def repair_store(path: Path, *, do: bool = False) -> Repair:
    """Find what can be saved of a damaged store; repair it only if ``do`` is set.

    Args:
        path: The store's directory; no process may have it open.
        do: Whether to replace the store with the readable content; the old files stay next to it as ``db.damaged``.

    Raises:
        StoreFailed: It cannot be repaired, or a disk reports an error; the store does not change.
        StoreLocked: A process has it open.
        StoreFormatError: There is no store, or one of another format.
    """
    require_store(path)
    with directory.DirectoryLock(path) if do else _kept_shut(path):
        if not (path / directory.ENGINE).exists() and (path / NEW / "CURRENT").exists():
            if do:
                _finish_exchange(path)
            return Repair([_EARLIER], is_needed=True)
        try:
            return _repair(path, do)
        except StoreDamaged as error:
            raise _beyond_repair(path, error.message, _save(path) if do else None) from error
        except _Refused as error:
            raise _beyond_repair(path, str(error), _save(path) if do else None) from error


@contextlib.contextmanager
def _kept_shut(path: Path) -> Iterator[None]:
    """Lock the store without writing: it may be on a disk that is read-only."""
    with directory.kept_shut(path) as is_shut:
        if not is_shut:
            raise directory.locked(path)
        yield


class _Refused(Exception):
    """Why no repair is possible."""


def _repair(path: Path, do: bool) -> Repair:
    store = _open_what_can_be_read(path)
    with contextlib.closing(store):
        report = Report(problems=problems_of_tables(path))
        walk(store, report)
        durable = durable_serial(path, report)
        repair = _plan(store, report, durable)
        repair.is_needed = bool(report.problems) or isinstance(store, _Rebuilt) or report.serial < durable
        if do and repair.is_needed:
            _copy(store, path, report, is_cut=report.serial < durable)
    if do and repair.is_needed:
        _exchange(path)
    return repair


def _open_what_can_be_read(path: Path) -> RocksDBStore:
    """Open the files that MANIFEST names, if it names all; otherwise all existing files.

    Raises:
        StoreDamaged: Neither can be read.
        _Refused: A named file is missing.
    """
    try:
        opening.require_whole(path, by_note=False)
        return _Readable(path, read_only=True)
    except StoreDamaged:
        engine = path / directory.ENGINE
        manifest = read_manifest(engine)
        missing = [name for name in sorted(manifest.tables) if not _has_bytes(engine / name)]
        if manifest.is_whole and missing:
            raise _Refused(
                f"MANIFEST names {', '.join(missing)}, which is missing or empty. Its records, Sequences and "
                "cursors are lost, and so are its deletions."
            ) from None
        if manifest.is_whole and not opening.newer_tables(path, manifest.tables):
            with contextlib.suppress(StoreDamaged):
                return _Readable(path, read_only=True)
        return _Rebuilt(path, read_only=True)


def _has_bytes(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _save(path: Path) -> int:
    lines = Lines(path)
    engine = path / directory.ENGINE
    serial = 0
    for make in (opening.PrefixView, opening.RebuiltView):
        try:
            view = make(path)
        except (StoreError, OSError):
            continue
        with contextlib.closing(view):
            with contextlib.suppress(Exception):  # rocksdict raises no other exception
                serial = evidence.stamped_serial(view.engine.get(evidence.STAMP))
            lines.write(readable_items(view.engine))
        break
    lines.write(logged_items(engine, serial))
    return lines.count


def _plan(store: RocksDBStore, report: Report, durable: int) -> Repair:
    snapshot = store.load()
    repair = Repair()
    if report.serial < durable:
        _see_that_no_number_is_used_again(store, snapshot)
        saved = sum(1 for _ in logged_items(store.path / directory.ENGINE, report.serial))
        repair.gives_up.append(
            f"everything after batch {report.serial}: {durable - report.serial} durable batches. Messages in them "
            f"were acknowledged, and their senders do not know. {saved} of their records after the damage are "
            f"intact, and are saved in {SAVED} as lines of JSON. Inbound Sequences are closed, so that their "
            "senders learn of it. Start the server once with --restored, so that readers do, too."
        )
    if isinstance(store, _Rebuilt):
        repair.gives_up.append("the certainty that deleted records stay deleted: a few may return.")
        if not store.manifest.is_whole:
            repair.gives_up.append(
                "the certainty that no table is missing: the list of tables (MANIFEST) is not fully readable. "
                + _seemingly_missing(store)
            )
    for where, offsets in report.unreadable.items():
        _plan_queue(store, snapshot, where, offsets, repair)
    return repair


def _seemingly_missing(store: _Rebuilt) -> str:
    engine = store.path / directory.ENGINE
    named = store.manifest.tables
    missing = sorted(name for name in named if not (engine / name).exists())
    empty = sorted(file.name for file in engine.glob("*.sst") if not _has_bytes(file))
    told = []
    if missing:
        told.append(f"It names {', '.join(missing)}, which is missing: it was replaced later, or its content is lost.")
    if empty:
        told.append(f"{', '.join(empty)} is empty: it was never finished, or its content is lost.")
    if not told:
        told.append("Every table in the list exists." if named else "It names no table.")
    return " ".join(told)


def _plan_queue(store: RocksDBStore, snapshot: Snapshot, where: Where, offsets: list[int], repair: Repair) -> None:
    """Report the loss of a partition with these unreadable records."""
    queue, partition = where
    kind = snapshot.queues.get(queue, {}).get("kind")
    if kind not in ("inbox", None) or queue.startswith(("outbox/", "replies")):
        raise _Refused(
            f"the record at offset {offsets[0]} of {queue!r} is unreadable, and that queue must be sent in order."
        )
    first = snapshot.bounds[where][0]
    for (name, number, cursor), state in snapshot.cursors.items():
        if (name, number) == where and cursor.startswith(OUTBOUND) and _stands(state, first) <= offsets[-1]:
            raise _Refused(
                f"{cursor.removeprefix(OUTBOUND)!r} forwards partition {partition} of {queue!r} in order, with "
                f"numbers that follow it, and has not passed the unreadable record at offset {offsets[-1]}."
            )
    repair.gives_up.append(
        f"records {first} to {offsets[-1]} of the queue {queue!r}, partition {partition}: {len(offsets)} are "
        f"unreadable; the other {offsets[-1] + 1 - first - len(offsets)} are saved in {SAVED} as lines of JSON."
    )


def _see_that_no_number_is_used_again(store: RocksDBStore, snapshot: Snapshot) -> None:
    """Check that no message number can be used again.

    Without its last batches a queue may end before its last transmitted message. New messages would then reuse those
    numbers, and the destination would drop them as duplicates.

    Raises:
        StoreFailed: Numbers may be used again.
    """
    for name, state in snapshot.sequences.items():
        home = snapshot.homes.get(name)
        if state.get("role") != "source" or state.get("identifier") is None or home not in snapshot.bounds:
            continue
        end = snapshot.bounds[home][1]
        marked = state.get("mark", end - state["start"] + 1)
        if state["start"] + marked > end:
            raise _Refused(
                f"the Sequence {state['identifier']} may have sent messages of {home[0]!r}, partition {home[1]}, "
                "from the lost batches; other messages would go out with their numbers, and be dropped."
            )


def _stands(state: State, first: int) -> int:
    offset = state.get("offset")
    return max(offset if type(offset) is int else 0, first)


def _beyond_repair(path: Path, why: str, saved: int | None) -> StoreFailed:
    told = "" if saved is None else f" {saved} readable records are saved in {path / SAVED}; the rest is unchanged."
    save = f" To save the readable records: holdfast store repair --yes {path}." if saved is None else ""
    return StoreFailed(
        f"The store at {path} cannot be repaired: {why}{told}",
        remedy=f"Restore it from a copy; or start with a new store, and send missing messages again.{save}",
    )


def _copy(store: RocksDBStore, path: Path, report: Report, *, is_cut: bool) -> None:
    """Write all retained content into new files, and readable content that is not retained into lines."""
    shutil.rmtree(path / NEW, ignore_errors=True)
    options = opening.make_options(keep_prefix=False)
    options.create_if_missing(True)
    engine = opening.open_engine(path / NEW, path, options, AccessType.read_write())
    lines = Lines(path)
    try:
        for tag in (
            evidence.STAMP[:1],
            layout.QUEUE,
            layout.PARTITION,
            layout.HELD,
            layout.SEQUENCE,
            layout.CURSOR,
            layout.HOME,
            layout.CONTENT,
        ):
            items = store.scan(tag)
            _put(engine, _closed(items) if is_cut and tag == layout.SEQUENCE else items)
        for where, (first, end) in store.load().bounds.items():
            # A queue has no gaps: what precedes its last unreadable record is saved as lines.
            kept = max(report.unreadable.get(where, [first - 1])) + 1
            lines.write(_records(store, where, first, kept))
            _put(engine, _records(store, where, kept, end))
            entry = layout.encode_entry(kept, kept)
            _put(engine, [(layout.partition_key(layout.PARTITION, *where), entry)])
        if is_cut:
            lines.write(logged_items(path / directory.ENGINE, report.serial))
        engine.flush()
    finally:
        engine.close()


def _closed(items: Iterator[Item]) -> Iterator[Item]:
    for key, data in items:
        yield key, layout.encode_state(closed_state(layout.decode_state(data)))


def _records(store: RocksDBStore, where: Where, first: int, end: int) -> Iterator[Item]:
    prefix = layout.partition_key(layout.RECORD, *where)
    for offset, data in readable(store, where, first, end, Report()):
        yield prefix + layout.number(offset), data


def _put(engine: Rdict, items: Iterator[Item] | list[Item]) -> None:
    batch, size = WriteBatch(raw_mode=True), 0
    for key, value in items:
        batch.put(key, value)
        size += len(key) + len(value)
        if size > COPY_BYTES:
            engine.write(batch)
            batch, size = WriteBatch(raw_mode=True), 0
    engine.write(batch)


def _exchange(path: Path) -> None:
    """Replace the old files with the new ones; the next repair completes an exchange that was killed."""
    old, number = path / DAMAGED, 1
    while old.exists():
        number += 1
        old = path / f"{DAMAGED}.{number}"
    (path / directory.ENGINE).rename(old)
    _finish_exchange(path)


def _finish_exchange(path: Path) -> None:
    evidence.forget_note(path)  # it is about the old files
    (path / NEW).rename(path / directory.ENGINE)
    directory.sync_directory(path)
