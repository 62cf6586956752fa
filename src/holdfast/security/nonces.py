"""Nonces: the ones seen lately. A token cannot be used twice, not even after a restart or at another node.

In a directory, the nonces of tokens that were created in the same minute share a file, to which each process appends.
It then reads what others appended before it: of two that append the same nonce, exactly one is the first. So a nonce
costs one short write, and no lock. The bytes are in the file when the write returns, so a process that is killed loses
none; a power failure may lose those that the system had not yet written to the disk.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final, Protocol

from holdfast.exceptions import ConfigurationError
from holdfast.security.database import Work, open_database, watch_of_file
from holdfast.security.times import ordered
from holdfast.store.address import is_kafka, is_remote

MOST: Final = 1_500_000
"""Maximum number of nonces remembered: those of 3,000 messages a second until they are forgotten. Some 25 MB."""
MOST_SHARED: Final = 250_000
"""Maximum number of nonces that one process adds to a shared database before they expire."""
MOST_REFUSED: Final = 65_536
"""Maximum number of refused signatures remembered. Some 8 MB."""
_FORGET_EVERY: Final = 10.0
"""Seconds between two deletions of expired nonces."""
_MINUTE: Final = 60
_MOST_OPEN: Final = 32
"""Maximum number of open files. Tokens of nine minutes are fresh."""
_RECORD: Final = struct.Struct(">8sd")
"""The first bytes of a nonce's digest, and until when it counts. A record never spans two blocks of a file system."""
_SIZE: Final = _RECORD.size


class Nonces(Protocol):
    """Remembers nonces until they expire."""

    @property
    def is_full(self) -> bool: ...

    def is_new(self, at: float, digest: bytes, until: float, now: float) -> bool:
        """Remember a nonce; return False if it is known, or there is no room for it.

        Args:
            at: A time that the token contains, when it was created or when it ends. A nonce of another time is another.
            digest: A digest of the nonce, and of what else makes it different from others: as good as random bytes.
            until: Until when the token counts: the same number of seconds after ``at`` for all tokens.
            now: Seconds since 1970.

        Raises:
            MessageFlowError: It cannot be stored.
        """
        ...

    def knows(self, at: float, digest: bytes) -> bool:
        """Return whether a nonce is remembered.

        Raises:
            MessageFlowError: The database does not answer.
        """
        ...


def open_nonces(place: str | Path | None) -> Nonces:
    """Return the memory in files next to a path; at the URL of a PostgreSQL database, or of a cluster's topic in Kafka;
    or in memory (None), which a restart clears. Several processes may share it.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    return SharedNonces(str(place)) if is_remote(place) else FileNonces(place)


class _Minute:
    """The nonces of tokens that were created in one minute, in memory and in a file.

    Eight bytes identify a nonce. If two are alike by chance, the second token is refused, and its sender sends another.

    Args:
        path: The file; None: only in memory.
    """

    __slots__ = ("_end", "_groups", "_path", "count", "file", "until")

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.file = -1
        """Its descriptor; -1: it is not open."""
        self._end = 0
        self._groups: defaultdict[int, bytearray] = defaultdict(bytearray)
        """The nonces by their first bits: short enough to be searched. A set takes ten times as much memory."""
        self.count = 0
        self.until = 0.0

    def _group(self, mark: bytes) -> bytearray:
        return self._groups[mark[0] | (mark[1] & 15) << 8]

    def has(self, mark: bytes) -> bool:
        return self._group(mark).find(mark) >= 0  # "in" takes twice as long

    def add(self, mark: bytes, until: float) -> bool:
        """Remember a nonce. Return False if it is known."""
        group = self._group(mark)
        if group.find(mark) >= 0:
            return False
        if self._path is not None:
            file = self.file if self.file >= 0 else self._open()
            size = os.write(file, _RECORD.pack(mark, until))
            # With O_APPEND, the position is now behind this record, wherever other processes had moved the end.
            end = os.lseek(file, 0, os.SEEK_CUR)
            if size != _SIZE:
                self.close()  # opening it again removes the partial record
                raise OSError("the disk is full")
            if end != self._end + size:
                self._read(end - size)
            self._end = end
        return self._keep(group, mark, until)

    def _keep(self, group: bytearray, mark: bytes, until: float) -> bool:
        if group.find(mark) >= 0:
            return False
        group += mark
        self.count += 1
        if until > self.until:
            self.until = until
        return True

    @property
    def exists(self) -> bool:
        return self._path is not None and self._path.exists()

    def refresh(self) -> None:
        """Read what other processes appended."""
        self._read(os.fstat(self.file if self.file >= 0 else self._open()).st_size)

    def _read(self, end: int) -> None:
        # Whole records only: a power failure may leave a part of one at the end.
        size = (end - self._end) // _SIZE * _SIZE
        found = os.pread(self.file, size, self._end)
        for mark, until in _RECORD.iter_unpack(found[: len(found) // _SIZE * _SIZE]):
            self._keep(self._group(mark), mark, until)
        self._end += size

    def _open(self) -> int:
        assert self._path is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open(self._path, flags, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:  # after a power failure a file may end in a part of a record; a process removes it before it appends
            size = os.fstat(self.file).st_size
            if size % _SIZE:
                os.ftruncate(self.file, size - size % _SIZE)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)
        self._read(os.fstat(self.file).st_size)
        return self.file

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def delete(self) -> None:
        """Close its file, and delete it, unless another process has begun it just now."""
        self.close()
        if self._path is not None and self.count:
            self._path.unlink(missing_ok=True)


class FileNonces:
    """Nonces in a directory next to a file.

    Args:
        path: The file. The directory has its name with ``-nonces``. None: memory.
        most: Maximum number remembered. A full memory refuses every token, as it must not forget early.

    Raises:
        ConfigurationError: The directory cannot be opened.
    """

    def __init__(self, path: str | Path | None = None, most: int = MOST) -> None:
        self._most = most
        self._forget_at = 0.0
        self._lock = threading.Lock()
        self._watch = watch_of_file("nonces")
        self._minutes: dict[int, _Minute] = {}
        self._count = 0
        self._directory = None if path is None else Path(f"{path}-nonces")
        if self._directory is not None:
            try:
                self._directory.mkdir(mode=0o700, exist_ok=True)
                for name in sorted(int(one.name) for one in self._directory.iterdir() if one.name.isdecimal()):
                    minute = self._minute(name)
                    minute.refresh()
                    minute.close()  # this process may fork, and each needs its own place in a file
            except (OSError, ValueError) as error:  # ValueError: no path has a zero byte
                raise ConfigurationError(
                    f"nonces={str(path)!r} cannot be opened: {error}",
                    remedy="Give the path of a file in a directory that exists and that this process may write to.",
                ) from None
            self._count = sum(one.count for one in self._minutes.values())

    @property
    def is_full(self) -> bool:
        return self._count >= self._most

    def is_new(self, at: float, digest: bytes, until: float, now: float) -> bool:
        with self._lock, self._watch.asking(Work.ADDS):
            # Also after the clock was set back, which must not stop the deletion.
            if not 0.0 <= self._forget_at - now <= _FORGET_EVERY:
                self._forget_at = now + _FORGET_EVERY
                self._forget(now)
            if self._count >= self._most:
                return False
            minute = self._minute(int(at // _MINUTE))
            before = minute.count
            is_new = minute.add(digest[:8], until)
            self._count += minute.count - before
            return is_new

    def knows(self, at: float, digest: bytes) -> bool:
        with self._lock, self._watch.asking(Work.READS):
            minute = self._minute(int(at // _MINUTE))
            before = minute.count
            if minute.exists:  # a minute without nonces has no file
                minute.refresh()
            self._count += minute.count - before
            return minute.has(digest[:8])

    def _minute(self, number: int) -> _Minute:
        found = self._minutes.get(number)
        if found is None:
            path = self._directory / str(number) if self._directory is not None else None
            found = self._minutes[number] = _Minute(path)
        if found.file >= 0 or self._directory is None:
            return found
        if sum(one.file >= 0 for one in self._minutes.values()) >= _MOST_OPEN:
            for one in self._minutes.values():
                one.close()
        return found

    def _forget(self, now: float) -> None:
        """Forget minutes in which all tokens have expired, those of other processes, too."""
        for number, minute in list(self._minutes.items()):
            # Tokens of one minute expire within a minute: what others appended may count until then.
            if minute.until + _MINUTE < now and minute.exists:
                minute.refresh()
            if minute.until + _MINUTE < now:
                minute.delete()
                del self._minutes[number]
        self._count = sum(one.count for one in self._minutes.values())


class RefusedSignatures:
    """Signatures of messages that turned out to be wrong, in the memory of one process.

    Each message can be tried once, so that nobody learns from the answers to many changed copies of one that he has
    captured. Anyone who knows the certificate of a destination can write such messages. So they take no room from the
    nonces of those that count, and the oldest are forgotten for others: a captured message can be tried again after so
    many others, at another process, or after a restart, until its Timestamp expires.

    Args:
        most: Maximum number remembered.
    """

    def __init__(self, most: int = MOST_REFUSED) -> None:
        self._most = most
        self._digests: dict[bytes, None] = {}

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None
        if len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_nonces (
    space text, nonce bytea, until double precision NOT NULL, PRIMARY KEY (space, nonce));
CREATE INDEX IF NOT EXISTS holdfast_nonces_until ON holdfast_nonces (space, until);
"""
_KEPT: Final = "extract(epoch FROM now()) - 660"
_TAKEN: Final = "extract(epoch FROM now()) - 600"
"""A nonce is deleted eleven minutes after it expired, and one that expired ten minutes ago is never new. Both by the
clock of the database: so a node with a wrong clock accepts no token twice."""
_ADD: Final = f"""
WITH expired AS (
    SELECT nonce FROM holdfast_nonces WHERE space = :space AND until < {_KEPT}
    ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM holdfast_nonces n USING expired e WHERE n.space = :space AND n.nonce = e.nonce)
INSERT INTO holdfast_nonces
SELECT :space, :nonce, :until WHERE :until >= {_TAKEN} AND set_config('synchronous_commit', 'off', true) = 'off'
ON CONFLICT DO NOTHING RETURNING 1
"""
"""Each nonce deletes two that have expired, so no call takes long. The commit does not wait for the disk: if the server
crashes, it may lose the last second."""
_FORGET_IN_KAFKA: Final = """
DELETE FROM holdfast_nonces WHERE nonce IN (
    SELECT nonce FROM holdfast_nonces WHERE space = :space AND until < :clock - 660 ORDER BY until LIMIT 2)
"""
_ADD_IN_KAFKA: Final = """
INSERT INTO holdfast_nonces SELECT :space, :nonce, :until WHERE :until >= :clock - 600
ON CONFLICT DO NOTHING RETURNING 1
"""
"""As _ADD, by the clock of Kafka's brokers."""
_KNOWS: Final = "SELECT 1 FROM holdfast_nonces WHERE space = :space AND nonce = :nonce"


class SharedNonces:
    """Nonces in a database that several hosts share, or in Kafka.

    Args:
        location: The URL of the database, or of the cluster's topic.
        most: Maximum number that this process adds before they expire.

    Raises:
        ConfigurationError: The location is not such a URL.
    """

    def __init__(self, location: str, most: int = MOST_SHARED) -> None:
        self._most = most
        self._db = open_database(location)
        self._adding = (_FORGET_IN_KAFKA, _ADD_IN_KAFKA) if is_kafka(location) else (_ADD,)
        self._lock = threading.Lock()
        self._added: Counter[int] = Counter()
        """Number of the interval in which nonces expire -> how many of this process do."""

    @property
    def is_full(self) -> bool:
        return self._added.total() >= self._most

    def is_new(self, at: float, digest: bytes, until: float, now: float) -> bool:
        with self._lock:
            for expired in [one for one in self._added if (one + 1) * _FORGET_EVERY < now]:
                del self._added[expired]
            if self.is_full:
                return False
            added = bool(self._db.run(_SCHEMA, *self._adding, nonce=ordered(at, digest), until=until))
            self._added[int(until // _FORGET_EVERY)] += added
            return added

    def knows(self, at: float, digest: bytes) -> bool:
        return bool(self._db.run(_SCHEMA, _KNOWS, nonce=ordered(at, digest)))
