"""Opening the engine's files: options, views through links, and the check that the files are complete.

RocksDB may accept a truncated MANIFEST, which names an older version of the store. Opening that for writing would
delete every file it does not name. So this module inspects a store before it is opened for writing. It refuses the
store if there is any evidence of more durable batches than the opening would find.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict

from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed
from holdfast.store import directory
from holdfast.store.rocksdb import evidence, forking
from holdfast.store.rocksdb.descriptors import open_tables, soft_limit

MEMTABLE_BYTES = 32 << 20
MEMTABLES = 6
COMPACTION_BYTES = 256 << 20
"""The approximate limit for the inputs of a compaction below the base level. RocksDB's default is 1.6 GB, and all of it
would have to be free."""
BLOCK_BYTES = 32 << 10
"""Bytes read from a table at a time. Queues are read in order. With RocksDB's own 4 KB, every few records cost a look
into the index. The index is in memory, too: 90 MB for ten million records of 1 KB, and 13 MB with this size."""
CACHE_BYTES = 32 << 20
"""Bytes of blocks kept in memory; the system caches more of the files."""
SPARE_MEGABYTES = 16
"""Megabytes that a start needs in addition to the content of the logs, rounded up generously."""

_PREFIX = "holdfast-engine-"
_TEMPORARY = re.compile(rf"[^\s'\"]*/{_PREFIX}[^\s/'\"]+")
"""Temporary directory of a view, which is deleted before the operator reads the error."""
_DAMAGE = ("Corruption", "IO error: No such file", "Not implemented")
REMEDY = "Run: holdfast store check {0}; then restore it from a copy, or see: holdfast store repair {0}"


def make_options(*, keep_prefix: bool, compacts: bool = True) -> Options:
    """Return the options for opening the engine.

    Args:
        keep_prefix: Whether to continue with the batches before damage in a log.
        compacts: Whether the engine compacts automatically, which needs space before it frees some.
    """
    options = Options(raw_mode=True)
    options.set_disable_auto_compactions(not compacts)
    # An incomplete last write, which was never acknowledged, is dropped; damage is an error, not a silent loss.
    options.set_wal_recovery_mode(
        DBRecoveryMode.point_in_time() if keep_prefix else DBRecoveryMode.tolerate_corrupted_tail_records()
    )
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_write_buffer_number(MEMTABLES)
    options.set_max_background_jobs(2)  # one flush and one compaction at a time, as free_space assumes
    options.set_max_compaction_bytes(COMPACTION_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    tables = BlockBasedOptions()
    tables.set_block_size(BLOCK_BYTES)
    tables.set_block_cache(Cache(CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    # Tables reach the disk step by step, or one large sync would delay a commit.
    options.set_bytes_per_sync(1 << 20)
    options.set_max_open_files(open_tables(soft_limit()))
    # Beyond these limits RocksDB delays writes, and so commits (its defaults are 20 and 36 files, 64 and 256 GiB).
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    options.set_soft_pending_compaction_bytes_limit(1 << 40)
    options.set_hard_pending_compaction_bytes_limit(1 << 41)
    # RocksDB's own log: four files of a megabyte, no statistics.
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(4)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_manifest_file_size(16 << 20)
    return options


def damaged(store: Path, what: str) -> StoreDamaged:
    """Return the error for changed or missing data."""
    return StoreDamaged(f"The store at {store} is damaged: {what}", remedy=REMEDY.format(store))


def is_damage(error: Exception) -> bool:
    """Whether RocksDB reports data that it did not write."""
    return str(error).startswith(_DAMAGE)


def told(store: Path, error: Exception) -> str:
    """Return the text of an error about files, with the store's path instead of a view's temporary one."""
    return _TEMPORARY.sub(lambda _: str(store / directory.ENGINE), str(error))


def explain(store: Path, error: Exception, doing: str) -> StoreError:
    """Return a StoreError for what rocksdict raised, which is bare Exception whatever RocksDB reports.

    Args:
        store: The store's name in errors.
        doing: "opened", "read": the operation that failed.
    """
    if is_damage(error):
        return damaged(store, told(store, error))
    return StoreFailed(
        f"The store at {store} cannot be {doing}: {told(store, error)}",
        remedy="Free space, check permissions or repair the disk, then start again.",
    )


def not_inspected(store: Path, error: StoreError | OSError) -> StoreFailed:
    """Return the error for a store that cannot be read, also after several tries."""
    why = error.message if isinstance(error, StoreError) else told(store, error)
    if isinstance(error, StoreDamaged) and "Corruption" in why:
        return StoreDamaged(why, remedy=REMEDY.format(store))
    kind = StoreDamaged if isinstance(error, StoreDamaged) else StoreFailed
    return kind(
        f"The store at {store} cannot be inspected: {why}",
        remedy=f"Retry when the load is lower. If no process has it open, run: holdfast store check {store}",
    )


def open_engine(path: Path, store: Path, options: Options, access: AccessType) -> Rdict:
    """Open the engine's files at ``path``; errors name ``store``.

    Raises:
        StoreLocked: Another process has them open.
        StoreDamaged: They are changed or incomplete.
        StoreFailed: They cannot be opened.
        ConfigurationError: The parent process forked this one while its own stores were busy.
    """
    forking.check_can_open(store)
    try:
        # Named for the column family too: otherwise rocksdict uses most options of the store's creation.
        return Rdict(str(path), options, column_families={"default": options}, access_type=access)
    except Exception as error:
        if "/LOCK" in str(error):
            raise directory.locked(store) from error
        if directory.is_full(error):
            needed = (sum(log.stat().st_size for log in evidence.logs(path)) >> 20) + SPARE_MEGABYTES
            raise StoreFailed(
                f"The store at {store} cannot be opened: {told(store, error)}",
                remedy=f"Free about {needed} MB there, then start again: the store first writes out its logs.",
            ) from error
        raise explain(store, error, "opened") from error


def give_up(engine: Rdict) -> None:
    """Close an engine after a reported error."""
    with contextlib.suppress(Exception):  # closing writes the content of memory, and may raise the same error again
        engine.close()


class View:
    """A snapshot of the engine's files, through links in a temporary directory: even a read-only open writes there.

    Args:
        logs: Whether to include batches that are only in the logs. Without, no process may have the store open.

    Raises:
        StoreError, OSError: They cannot be opened, which may be temporary while another process writes them.
    """

    def __init__(self, store: Path, *, logs: bool = True) -> None:
        self._links = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}view-")
        try:
            self._link(store / directory.ENGINE, Path(self._links.name), logs)
            options = make_options(keep_prefix=True)
            if logs:  # another process may be writing: open all files at once, before they are deleted
                options.set_max_open_files(-1)
            options.create_if_missing(False)
            self.engine = open_engine(Path(self._links.name), store, options, AccessType.read_only(False))
        except BaseException:
            self._links.cleanup()
            raise

    def _link(self, engine: Path, links: Path, logs: bool) -> None:
        for file in engine.iterdir():
            is_shown = logs or file.suffix != ".log"
            if is_shown and file.suffix != ".json" and file.name not in ("LOCK", "LOG"):
                (links / file.name).symlink_to(file.resolve())

    def close(self) -> None:
        try:
            self.engine.close()
        finally:
            self._links.cleanup()


class PrefixView(View):
    """The same files, with the logs only up to the first gap or damage after the tables.

    No process may have the store open.
    """

    def _link(self, engine: Path, links: Path, logs: bool) -> None:
        super()._link(engine, links, False)
        with contextlib.closing(View(engine.parent, logs=False)) as tables:
            known = _serial_in(tables.engine, engine.parent)
        _copy_logs(engine, links, known)


class RebuiltView(View):
    """The same files, with the list of tables rebuilt from all tables and logs.

    The files themselves do not change. Records that were deleted, but are in a table that was not removed yet, may
    reappear.

    Attributes:
        left_out: Names of tables that cannot be read completely; the view has none of their records.
    """

    left_out: list[str]

    def _link(self, engine: Path, links: Path, logs: bool) -> None:
        known, self.left_out = 0, []
        for file in sorted(engine.glob("*.sst")):
            if (stamp := _stamp_of_table(file, engine.parent)) is not None:
                known = max(known, stamp[0])
                (links / file.name).symlink_to(file.resolve())
            elif file.stat().st_size:  # else a flush was killed
                self.left_out.append(file.name)
        _copy_logs(engine, links, known)
        Rdict.repair(str(links), make_options(keep_prefix=True))


def _copy_logs(engine: Path, links: Path, known: int) -> None:
    for log, length in evidence.usable_logs(engine, known):
        with log.open("rb") as file:
            (links / log.name).write_bytes(file.read(length))


def damaged_tables(store: Path, names: Iterable[str]) -> list[str]:
    """Return the tables with a block that cannot be read, even a block of deleted records. Changes nothing.

    Opening a store reads the ends of its tables, and serving it reads only the requested blocks. RocksDB's compaction
    reads the rest, and stops all writes at the first damage. RocksDB's repair of a single table reads all of it, too,
    and leaves it out if it cannot; rocksdict offers no other way.
    """
    tables = [store / directory.ENGINE / name for name in sorted(names)]
    # If a table is gone meanwhile, the process that has the store open has replaced it.
    return [table.name for table in tables if _stamp_of_table(table, store) is None and table.exists()]


def require_whole(store: Path, *, by_note: bool = True) -> None:
    """Reject a store if opening it would read only some of its durable batches. Changes nothing.

    Raises:
        StoreDamaged: Some are missing, or cannot be read.
        StoreFailed: The files cannot be read.
    """
    with _looking(store):
        with contextlib.closing(View(store, logs=False)) as tables:
            known = _serial_in(tables.engine, store)
            named = {file["name"].lstrip("/") for file in tables.engine.live_files()}
        engine = store / directory.ENGINE
        logged = [evidence.log_serials(log) for log in evidence.logs(engine)]
        for first, last in logged:
            if first > known + 1:
                raise damaged(
                    store,
                    f"its tables end at batch {known}, but its next log begins at batch {first}; the list of "
                    "tables (MANIFEST) was cut short, or a file is missing.",
                )
            known = max(known, last)
        for table in sorted(file for file in engine.glob("*.sst") if file.name not in named):
            serial, durable = _stamp_of_table(table, store) or (0, 0)
            # A killed flush leaves an unnamed table, too, but its batches are still in a log.
            if durable > known or (serial > known and not any(last for _, last in logged)):
                raise damaged(
                    store,
                    f"{table.name} contains batches up to {serial}, but no list names it; without it, batches up "
                    f"to {known} remain. The list of tables (MANIFEST) was cut short.",
                )
        if by_note:
            require_reached(store, known)


def newer_tables(store: Path, named: Collection[str]) -> list[str]:
    """Return unnamed tables with later batches than the named ones: MANIFEST was truncated."""
    stamps = {}
    for table in sorted((store / directory.ENGINE).glob("*.sst")):
        stamps[table.name] = (_stamp_of_table(table, store) or (0, 0))[0]
    known = max((serial for name, serial in stamps.items() if name in named), default=0)
    return [name for name, serial in stamps.items() if name not in named and serial > known]


def require_reached(store: Path, serial: int) -> None:
    """Refuse a store that ends before the serial in its note.

    Raises:
        StoreDamaged: The store ends too early.
    """
    if serial < (noted := evidence.noted_serial(store)):
        raise damaged(
            store,
            f"it ends at batch {serial}, but batch {noted} was durable; a log was cut short, or a file is missing.",
        )


def recoverable_serial(store: Path) -> int:
    """Return the last batch before the first damage in the logs.

    Raises:
        StoreError: The damage is elsewhere.
    """
    with _looking(store), contextlib.closing(View(store)) as view:
        return _serial_in(view.engine, store)


def only_the_end_is_torn(store: Path) -> bool:
    """Whether every batch that is known to have been durable precedes the damage in the logs."""
    try:
        found = recoverable_serial(store)
    except StoreError:
        return False
    return found >= max(evidence.proven_durable(store / directory.ENGINE), evidence.noted_serial(store))


def _serial_in(engine: Rdict, store: Path) -> int:
    try:
        return evidence.stamped_serial(engine.get(evidence.STAMP))
    except Exception as error:
        raise explain(store, error, "read") from error


def _stamp_of_table(table: Path, store: Path) -> tuple[int, int] | None:
    """Return the newest stamp in a single table, (0, 0) if it has none; None if a block of it cannot be read."""
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}table-") as links:
        (Path(links) / table.name).symlink_to(table.resolve())
        options = make_options(keep_prefix=True)
        try:
            Rdict.repair(links, options)
            if not (Path(links) / table.name).exists():
                return None  # RocksDB put the table aside
            engine = Rdict(links, options, access_type=AccessType.read_only(False))
        except Exception as error:
            raise explain(store, error, "read") from error
        try:
            return evidence.stamp(engine.get(evidence.STAMP))
        except Exception as error:
            raise explain(store, error, "read") from error
        finally:
            engine.close()


@contextlib.contextmanager
def _looking(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"The store at {store} cannot be inspected: {told(store, error)}",
            remedy="Free space, check permissions or repair the disk, then start again.",
        ) from error
