"""Divide the process's file descriptors: first for the store, then for outbound connections; peers get the rest.

Every connection uses a descriptor. If a server accepted connections until none were left, its store could not open its
next log, and the server would end.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Final

from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.http.server.descriptors import connections_in, descriptors_of
from holdfast.store.rocksdb.descriptors import soft_limit, store_needs

MOST_OUTGOING: Final = 1024
SPARE_FILES: Final = 48
"""Descriptors for what a program has open besides: its handlers' files, its log, its interpreter's own."""
LEAST: Final = 8
"""Connections that a server must be able to take to be one."""
ADMIN_PART: Final = 6
"""The admin listener may use one of this many parts of the connections that remain for peers."""


def outgoing(limit: int) -> int:
    """Connections that are opened to peers at a time where a process may have ``limit`` descriptors."""
    return min(MOST_OUTGOING, limit // 8)


@dataclass(frozen=True, slots=True)
class Shares:
    """Descriptors for each listener.

    Args:
        limit: Descriptors of this process.
        messages, admin: Limits with as many connections as the descriptors permit.
    """

    limit: int
    messages: HTTPLimits
    admin: HTTPLimits


def divide(messages: HTTPLimits, admin: HTTPLimits | None, spare: int) -> Shares:
    """Reserve the needed descriptors from the process's limit, which is raised as needed and allowed; log the result.

    Args:
        messages: Limits of the listener for messages.
        admin: Limits of the admin listener; None without one.
        spare: Descriptors for other files of the program.

    Raises:
        ConfigurationError: Too few are left for peers.
    """
    wanted = descriptors_of(messages.max_connections) + (descriptors_of(admin.max_connections) if admin else 0)
    # As under a limit of a million: what each of them would use at most.
    limit = raise_limit(wanted + store_needs(1 << 20) + outgoing(1 << 20) + spare)
    left = limit - store_needs(limit) - outgoing(limit) - spare
    for_admin = min(descriptors_of(admin.max_connections), max(32, left // ADMIN_PART)) if admin else 0
    for_messages = min(messages.max_connections, connections_in(left - for_admin))
    if for_messages < LEAST:
        raise ConfigurationError(
            f"this process may open {limit} files, which leaves {max(0, left)} connections",
            remedy="Raise the limit: ulimit -n 4096 before starting it; LimitNOFILE=65536 in a systemd unit.",
        )
    if for_messages < messages.max_connections:
        log.warning(
            "listener.file_limit",
            connections=for_messages,
            max_connections=messages.max_connections,
            files=limit,
            for_store=store_needs(limit),
            remedy="ulimit -n, or LimitNOFILE= in a systemd unit",
        )
    admin_connections = min(admin.max_connections, max(LEAST, connections_in(for_admin))) if admin else 1
    return Shares(
        limit,
        replace(messages, max_connections=for_messages),
        replace(admin or messages, max_connections=admin_connections),
    )


def raise_limit(wanted: int) -> int:
    """Raise the soft limit of descriptors up to ``wanted``, as far as the hard limit permits.

    Returns:
        The resulting limit.
    """
    limit = soft_limit()
    if limit < wanted:
        with contextlib.suppress(ImportError, OSError, ValueError):  # if the system forbids it, the limit stays
            import resource

            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if most > limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft_limit()
