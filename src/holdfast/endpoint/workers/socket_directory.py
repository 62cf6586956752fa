"""SocketDirectory: the directory of the workers' Unix sockets. The next start deletes what a killed server left behind.

A directory belongs to the processes that hold its lock, which they inherit from the process that created it. If another
process can acquire the lock, the directory belongs to no running process. So no process deletes the directory of a
running one, whatever its process id. Also the sockets in it, and what waits in them for a worker that has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from holdfast.http.retry_after import spread

PREFIX = "holdfast-sockets-"
_NEW = "holdfast-new-"
_LOCK = "lock"
_AGAIN = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class SocketDirectory:
    """A directory for sockets, made and locked."""

    def __init__(self) -> None:
        delete_abandoned(Path(tempfile.gettempdir()))
        made = tempfile.mkdtemp(prefix=_NEW)
        self._lock = os.open(os.path.join(made, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        _is_locked(self._lock)
        # It gets its name only now that it is locked, so that no other start finds it without its owner.
        self.path = os.path.join(os.path.dirname(made), PREFIX + os.path.basename(made).removeprefix(_NEW))
        os.rename(made, self.path)

    def delete(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def delete_abandoned(parent: Path) -> None:
    """Delete the directories of our user's servers that ended without doing so."""
    with contextlib.suppress(OSError):
        for one in parent.glob(PREFIX + "*"):
            with contextlib.suppress(OSError):
                found = one.lstat()
                # The parent is open to every user, who may put a link or a directory there.
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                    _delete_if_abandoned(one)


def _delete_if_abandoned(directory: Path) -> None:
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _is_locked(lock):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _is_locked(lock: int) -> bool:
    import fcntl  # where there are workers, there is this

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_inbox(path: str) -> socket.socket:
    """Return a listening Unix socket, in which requests wait for a worker."""
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    inbox.bind(path)
    inbox.listen(1024)
    return inbox


def refuse_connections(taking: socket.socket) -> None:
    """Answer the requests that came with their connections to a worker that has ended: they may be sent again."""
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(taking, 1, 1)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            with socket.socket(fileno=descriptor) as connection, contextlib.suppress(OSError):
                connection.setblocking(False)
                connection.send(_AGAIN % spread(1))
