"""Dividing the process's file descriptors: first what the store needs, then what is sent, and peers get what is left.

Every connection is a descriptor. A server that takes connections until there are none left takes the store's next log
from it, and ends.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Final

from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError
from holdfast.http.exchange import HTTPLimits
from holdfast.http.server.descriptors import connections_in, descriptors_of
from holdfast.store.descriptors import soft_limit, store_needs

MOST_OUTGOING: Final = 1024
SPARE_FILES: Final = 48
"""Descriptors for what a program has open besides: its handlers' files, its log, its interpreter's own."""
LEAST: Final = 8
"""Connections that a server must be able to take to be one."""
ADMIN_PART: Final = 6
"""The admin listener gets one of so many parts of what is left for peers."""


def outgoing(limit: int) -> int:
    """Connections that are opened to peers at a time where a process may have ``limit`` descriptors."""
    return min(MOST_OUTGOING, limit // 8)


@dataclass(frozen=True, slots=True)
class Shares:
    """What each listener may take.

    Args:
        limit: Descriptors of this process.
        messages, admin: Limits with the connections that there is room for.
    """

    limit: int
    messages: HTTPLimits
    admin: HTTPLimits


def divide(messages: HTTPLimits, admin: HTTPLimits | None, spare: int) -> Shares:
    """Take what is needed out of the process's limit, which is raised as far as needed and allowed; say so in the log.

    Args:
        messages: What the listener for messages was given.
        admin: What the admin listener was given; None: there is none.
        spare: Descriptors for what else the program has open.

    Raises:
        ConfigurationError: nothing to speak of is left for peers.
    """
    wanted = descriptors_of(messages.max_connections) + (descriptors_of(admin.max_connections) if admin else 0)
    limit = raise_limit(wanted + store_needs(1 << 20) + outgoing(1 << 20) + spare)
    left = limit - store_needs(limit) - outgoing(limit) - spare
    for_admin = min(descriptors_of(admin.max_connections), max(32, left // ADMIN_PART)) if admin else 0
    for_messages = min(messages.max_connections, connections_in(left - for_admin))
    if for_messages < LEAST:
        raise ConfigurationError(
            f"this process may have {limit} files open, of which {max(0, left)} are left for connections",
            remedy="Allow it more: ulimit -n 4096 before it is started; LimitNOFILE=65536 in a unit of systemd.",
        )
    if for_messages < messages.max_connections:
        log.warning(
            "listener.file_limit",
            connections=for_messages,
            max_connections=messages.max_connections,
            files=limit,
            for_store=store_needs(limit),
            remedy="ulimit -n, or LimitNOFILE= in a unit of systemd",
        )
    admin_connections = min(admin.max_connections, max(LEAST, connections_in(for_admin))) if admin else 1
    return Shares(
        limit,
        replace(messages, max_connections=for_messages),
        replace(admin or messages, max_connections=admin_connections),
    )


def raise_limit(wanted: int) -> int:
    """Raise the soft limit of descriptors up to ``wanted``, as far as the hard one lets it.

    Returns:
        The limit there is then.
    """
    limit = soft_limit()
    if limit < wanted:
        with contextlib.suppress(ImportError, OSError, ValueError):  # as where somebody forbids it: then it stays
            import resource

            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if most > limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft_limit()
