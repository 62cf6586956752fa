"""Ports for processes that are killed and come back at the same address.

Owns the choice of a port that stays free while nobody listens on it. The ports that the system itself gives out, to
whoever binds port 0 or connects, do not: between two lives of a server another program may get its port, and even a
client that calls in vain can be given it, and be connected to itself. Nor do those that another process chose here: a
lock on a byte of a file, which ends with the process, says that a port is one's own.
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
"""Ports apart that processes with neighbouring ids begin to look."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_looks = itertools.count()


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on and that the system gives to nobody.

    Args:
        count: How many.

    Returns:
        The ports. Another call gives others, and so does one by another process of this user's, until this one ends.

    Raises:
        OSError: so many are not free.
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
        first = 32_768  # Linux's own choice, and below that of other systems
    return first if first > _FIRST + _EACH else 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_ours(port: int) -> bool:
    """Whether no other process chose it, which none will from now on."""
    chosen = _chosen(os.getpid())
    try:
        if chosen is not None:
            fcntl.lockf(chosen, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _chosen(_process: int) -> int | None:
    """The file whose bytes are locked, never closed: that would end all of this process's locks. None: there can be
    none, and ports are chosen without."""
    path = Path(tempfile.gettempdir()) / f"holdfast-ports-{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
