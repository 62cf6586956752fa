"""Ports for processes that are killed and restarted at the same address.

A chosen port stays free while no process listens on it. The system's ephemeral ports do not. The system gives them to
any program that binds port 0 or connects. So another program may get a server's port between two runs of the server. A
client that tries to connect to the server may even be given that port, and connect to itself. To keep other processes
from choosing the same port, a process locks one byte of a shared file; the lock ends with the process.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

_FIRST = 10_000
_EACH = 100
"""Distance between the first ports that processes with neighboring ids try."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_looks = itertools.count()


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of 127.0.0.1 outside the system's ephemeral range.

    Args:
        count: How many.

    Returns:
        The ports. Until this process ends, no other call returns them, in this process or in another one of this user.

    Raises:
        OSError: there are not enough free ports.
    """
    end = _first_given_out()
    found: list[int] = []
    for _ in range(end - _FIRST):
        port = _FIRST + (os.getpid() * _EACH + next(_looks)) % (end - _FIRST)
        if _is_free(port) and _is_ours(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"only {len(found)} of the ports {_FIRST} to {end - 1} are free, not {count}")


def _first_given_out() -> int:
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768  # Linux's default, and below that of other systems
    return first if first > _FIRST + _EACH else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_ours(port: int) -> bool:
    """Lock the port against other processes of this user; return whether the lock was free."""
    chosen = _chosen(os.getpid())
    try:
        if chosen is not None:
            fcntl.lockf(chosen, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _chosen(_process: int) -> int | None:
    """Open the file of the locks, or return None if that is impossible; ports are then chosen without locks.

    The file is never closed, because closing any descriptor of it would release all of this process's locks.
    """
    path = Path(tempfile.gettempdir()) / f"holdfast-ports-{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
