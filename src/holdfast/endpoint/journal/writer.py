"""The event journal of one endpoint: writes the gathered events once a second, in the background.

Owns when files begin, end and are deleted, and what happens if they cannot be written: messages are not affected.
``journal_events`` and ``journal_files`` own the content; docs/internals/journal.md describes what a crash leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from errno import ENOSPC
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Snapshot
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.files import HEADER, LIVE, OPEN, STAMP, frames_of, prune, segments, whole_length
from holdfast.endpoint.journal.policy import JournalPolicy
from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import Worker
from holdfast.store import IN_MEMORY, Store, is_remote
from holdfast.store.directory import make_private

WRITE_EVERY = 1.0
"""Seconds. A process that is killed loses what it gathered since: its messages are safe, and the next run says where
they stand."""
MOST_GATHERED = 500_000
"""Events that wait for a disk that does not answer; then they are lost, and a gap says how many."""
SPARE_BYTES = 128 << 20
"""Free bytes below which the journal writes nothing: the rest of the disk is reserved for the store."""
SETTLED_AFTER = 60.0
"""Seconds after the start before a process converts files to Parquet, so that frequent restarts do no such work."""
CONVERTED_APART = 5.0
"""Seconds between the conversions of two workers, whose files become complete at the same time."""


def directory_of(policy: JournalPolicy, location: str | Path | Store, worker: Worker | None) -> Path | None:
    """Return the journal's directory for an endpoint with a store at ``location``; None: it has no directory."""
    if policy.directory is not None:
        place = Path(policy.directory)
        return place if worker is None or not worker.number else place / f"worker-{worker.number}"
    own = location if worker is None else worker.store_of(location)
    if not isinstance(own, str | Path) or own == IN_MEMORY or is_remote(own):
        return None
    return Path(own) / "journal"


def begin_journal(
    policy: JournalPolicy | None,
    location: str | Path | Store,
    worker: Worker | None,
    clock: Callable[[], float],
    granted: DestinationPolicy,
    snapshot: Snapshot,
    queues: Iterable[Queue],
    opening: int = 0,
) -> tuple[Journal | None, Collector | None]:
    """Start a journal for an endpoint that has just started.

    Args:
        policy: Its settings; None: no journal.
        location: The location of its store, worker 0's of several.
        worker: Its number among several workers.
        clock: Returns the current time.
        granted: The policy of Sequences that are granted from now on.
        snapshot: The content of the store.
        queues: The queues that receive messages.
        opening: The number of this opening of the store, 0 if it has none.

    Returns:
        The journal, to be closed at the end; None: disabled, or without a directory. And the collector to notify of
        events, or None.
    """
    place = directory_of(policy, location, worker) if policy is not None else None
    if policy is None or place is None:
        return None, None
    journal = Journal(place, policy, clock, granted, worker.number if worker is not None else None)
    return journal, journal.start(snapshot, queues, opening)


class Journal:
    """The journal of one running endpoint.

    Args:
        directory: Its directory; created if it is missing.
        policy: How long it is kept.
        clock: Returns the current time.
        granted: The policy of Sequences that are granted from now on.
        worker: The number of this process among several; None if it is the only one.

    Attributes:
        collector: The collector to notify of events.
        trouble: Why nothing is written; "" if the journal works.
        written: Events of this run that are in files.
        lost: Events of this run that are lost.
        bytes: The size of all files of the directory, as far as it is known.
    """

    def __init__(
        self,
        directory: Path,
        policy: JournalPolicy,
        clock: Callable[[], float],
        granted: DestinationPolicy,
        worker: int | None = None,
    ) -> None:
        self.directory = directory
        self.collector = Collector(clock, granted)
        self.trouble = ""
        self.written = self.lost = self.bytes = 0
        self._policy = policy
        self._worker = worker
        self._run = secrets.token_hex(8)
        self._ordinal = 0
        self._missing = 0
        self._files = 0
        self._file: IO[bytes] | None = None
        self._path: Path | None = None
        self._good = 0
        self._opened_at = self._started_at = time.monotonic()
        self._lock: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._making: subprocess.Popen[bytes] | None = None
        self._complete_since: float | None = time.monotonic()

    def start(self, snapshot: Snapshot, queues: Iterable[Queue], opening: int = 0) -> Collector | None:
        """Begin to write, in the running loop.

        Returns:
            The collector to notify of events; None if the content of the store cannot be recorded.
        """
        self._loop = asyncio.get_running_loop()
        self._queues = tuple(queues)
        collector: Collector | None = self.collector
        self.collector.run = self._next_run(opening)
        try:
            self.collector.started(version("holdfast"))
            self.collector.recover(snapshot)
            self.collector.stand(self._queues)
        except Exception as error:  # it is no reason to take no messages
            log.error("journal.ended", what="messages continue without a journal; this is a bug", exc_info=error)
            self.collector.broken, collector = f"the state of the store could not be recorded: {error!r}", None
        self._tick()
        return collector

    def _next_run(self, opening: int) -> int:
        """Return the number of the run, which orders runs even if a clock is set back: its place in this directory, or
        the number of the store's opening, which also orders the runs of a partition at several nodes."""
        file = self.directory / "_runs"
        run = max(1, opening)
        with contextlib.suppress(OSError, ValueError):  # it is the first run, or the number is unknown
            run = max(run, int(file.read_text()) + 1)
        with contextlib.suppress(OSError):  # if the write fails, the first events report it
            make_private(self.directory)
            file.write_text(f"{run}\n")
        return run

    def _tick(self) -> None:
        self._timer = self._loop.call_later(WRITE_EVERY, self._tick)
        if self._making is not None and (status := self._making.poll()) is not None:
            self._making = None
            if status:
                log.warning("journal.not_converted", directory=str(self.directory), status=status)
        if self._making is None and self._is_conversion_due:
            self._complete_since = None
            self._loop.run_in_executor(None, self._tidy)
            self._making = self._make_parquet()
        if self._writing is not None:
            if self.collector.count - self._ordinal > MOST_GATHERED:
                self._lose(self.collector.take(), "the disk did not answer")
            return
        self._writing = asyncio.ensure_future(self._write())

    @property
    def _is_settled(self) -> bool:
        return time.monotonic() - self._started_at >= SETTLED_AFTER + CONVERTED_APART * (self._worker or 0)

    @property
    def _is_conversion_due(self) -> bool:
        """Whether files are complete, and it is this worker's turn."""
        since = self._complete_since
        is_due = since is not None and time.monotonic() >= since + CONVERTED_APART * (self._worker or 0)
        return is_due and self._is_settled

    async def _write(self) -> None:
        try:
            await self._write_taken()
        finally:
            self._writing = None

    async def _write_taken(self, *, is_last: bool = False) -> None:
        """Write what was gathered; into a new file, which begins with how all stands, if it is time for one and this is
        not the end, or if some was lost."""
        collector = self.collector
        if collector.broken and not self.trouble:
            self.trouble = collector.broken
        entries = collector.take()
        age = time.monotonic() - self._opened_at
        is_complete = self._good >= self._policy.file_size or (age >= self._policy.file_age and self._file is not None)
        opening: list[tuple[Any, ...]] = []
        if self._missing:
            # They follow a gap, so only a file that begins with the state may continue.
            self._lose(entries, self.trouble, told=False)
            collector.lost(self._missing, self.trouble or "the disk did not answer")
            entries = []
        if self._missing or (is_complete and entries and not is_last):
            # A new file begins with the state, so that a reader needs no file before it.
            collector.stand(self._queues)
            opening = collector.take()
        if not entries and not opening:
            return
        try:
            await self._loop.run_in_executor(None, self._append, entries, opening)
        except OSError as error:
            self._lose((*entries, *opening), error.strerror or str(error))
        else:
            if self.trouble:
                log.warning("journal.resumed", directory=str(self.directory), lost=self._missing)
            self.trouble, self._missing = collector.broken, 0

    def _lose(self, entries: Iterable[tuple[Any, ...]], why: str, *, told: bool = True) -> None:
        count = sum(len(entry[-1]) for entry in entries)
        self._ordinal += count
        self._missing += count
        self.lost += count
        if told and not self.trouble:
            log.error(
                "journal.write_failed",
                directory=str(self.directory),
                why=why,
                what="messages continue; events are lost until the journal can be written again",
            )
        self.trouble = self.trouble or why

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _append(self, entries: Iterable[tuple[Any, ...]], opening: Iterable[tuple[Any, ...]]) -> None:
        """Write entries, and into a new file what opens that.

        Raises:
            OSError: It cannot be written. Whatever was is taken back.
        """
        if self._lock is None:
            self._take_directory()
        space = os.statvfs(self.directory)
        if space.f_bavail * space.f_frsize < SPARE_BYTES:
            raise OSError(ENOSPC, f"less than {SPARE_BYTES >> 20} MB are free, and these are reserved for the store")
        data, count = frames_of(self._run, self._worker, self._ordinal, tuple(entries))
        more, further = frames_of(self._run, self._worker, self._ordinal + count, tuple(opening))
        if data:
            self._put(data)
        if more:
            self._complete()
            self._put(more)
        self._ordinal += count + further
        self.written += count + further

    def _put(self, data: bytes) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file.fileno(), view) :]
        except OSError:
            with contextlib.suppress(OSError):  # then a torn frame stays, at which readers stop
                os.ftruncate(self._file.fileno(), self._good)
            self._complete()  # wherever it ends: its readers stop at the last frame that is whole
            raise
        self._good += len(data)
        self.bytes += len(data)

    def _open(self) -> None:
        self._files += 1
        stamp = datetime.now(UTC).strftime(STAMP)
        self._path = self.directory / f"{LIVE}{stamp}-{self._run}-{self._files:06d}{OPEN}"
        self._file = self._path.open("ab", buffering=0)
        self._good, self._opened_at = 0, time.monotonic()
        self._put(HEADER)

    def _complete(self) -> None:
        """Complete the file: it receives no further events."""
        file, path, self._file, self._path, self._good = self._file, self._path, None, None, 0
        if file is None or path is None:
            return
        with contextlib.suppress(OSError):  # a journal loses events rather than hold up anything
            os.fsync(file.fileno())
        file.close()
        path.rename(path.with_name("_" + path.name.removeprefix(LIVE)))
        self._complete_since = time.monotonic()

    def _take_directory(self) -> None:
        """Lock the directory, and complete the files that a killed process left."""
        make_private(self.directory)
        lock = os.open(self.directory / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise OSError(error.errno, f"another process writes its journal in {self.directory}") from None
        self._lock = lock
        for one in segments(self.directory):
            if one.is_live:
                # Its torn end would look like damage once it counts as complete.
                os.truncate(one.path, whole_length(one.path))
                one.path.rename(one.path.with_name("_" + one.path.name.removeprefix(LIVE)))
        self.bytes = sum(one.size for one in segments(self.directory))

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):  # the next time it is tried again
            self.bytes = prune(self.directory, self._policy.age, self._policy.size, time.time(), self._path)

    # --- Parquet --------------------------------------------------------------------------------------------------

    def _make_parquet(self, *, alone: bool = False) -> subprocess.Popen[bytes] | None:
        """Start a process that converts complete segments to Parquet; with ``alone`` it outlives this process."""
        if find_spec("pyarrow") is None:
            return None
        command = [sys.executable, "-m", "holdfast.endpoint.journal.parquet", str(self.directory)]
        null = subprocess.DEVNULL
        try:
            return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=alone)
        except OSError as error:
            log.warning("journal.not_converted", directory=str(self.directory), error=str(error))
            return None

    # --- its end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Write the remaining events, and the event of the end."""
        if self._timer is None:
            return
        self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if not self.collector.broken:  # else events are missing that no other event reports
            self.collector.ended(self._queues)
        await self._write_taken(is_last=True)
        await self._loop.run_in_executor(None, self._end)
        if self._is_settled:
            self._making = self._make_parquet(alone=True)

    def _end(self) -> None:
        with contextlib.suppress(OSError):  # the next start completes it
            self._complete()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
