"""What an operator should change at the PostgreSQL server of a cluster: durability, connections and vacuum; and what
keeps the server from confirming commits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, Final

import psycopg

from holdfast.store.sql.dialects import READ_ONLY_REMEDY

OLD_TRANSACTIONS: Final = 500_000_000
"""Age of the oldest unfrozen transaction above which the database needs a vacuum soon."""

FOR_EACH_PARTITION: Final = 3
"""Of its process: for commits, for reads, and for what the nodes share, such as the nonces of users and the Sequences
that peers created."""
OTHERS: Final = 6
"""One for each of a few nodes, and some for commands such as ``holdfast cluster status``."""

_STANDBYS: Final = """
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming'),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL)"""
"""The standbys that commits should wait for, how many of them are connected, and how many this user may not see."""
_SERVER: Final = f"""
SELECT current_setting('fsync'), current_setting('full_page_writes'), {_STANDBYS},
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
    least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(nullif(current_setting('reserved_connections', true), '')::int, 0),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))
"""
"""The last value: the connections that the user of this one may have, with all other users of the server.
``reset_val`` is what the workers' sessions begin with, whatever this session has set."""


_WRITES: Final = f"""
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', {_STANDBYS},
    (SELECT extract(epoch FROM max(clock_timestamp() - query_start))::float8 FROM pg_stat_activity
     WHERE wait_event = 'SyncRep')
"""
LONG_COMMIT: Final = 1.0
"""Seconds after which a commit that waits for a standby is a problem."""
SECONDS: Final = 2.0
"""Seconds for which :func:`why_silent` waits for an answer."""


def read_problem(connection: psycopg.Connection[tuple[Any, ...]]) -> str:
    """Return why the server confirms no commit now, as a sentence with its remedy; "" if it does, or it is unknown."""
    row = connection.execute(_WRITES.encode()).fetchone()
    assert row is not None
    is_standby, is_read_only, names, standbys, hidden, waited = row
    if is_standby:
        return (
            "The database is a standby, which is read-only, so no node can renew its lease. Promote it, or name the "
            "primary in the URL."
        )
    if is_read_only:
        return f"The database is read-only, so no node can renew its lease. {READ_ONLY_REMEDY}"
    is_lost = names and not standbys and not hidden
    if is_lost or (waited is not None and waited >= LONG_COMMIT):
        which = "no synchronous standby is connected" if is_lost else "no synchronous standby confirms them"
        return (
            f"Commits wait, because {which}, so no node can renew its lease. Start the standby that "
            f"synchronous_standby_names = '{names}' names, or change that setting."
        )
    return ""


def why_silent(conninfo: str) -> str:
    """Return :func:`read_problem` of a server that did not answer, from a session of its own."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(conninfo, autocommit=True) as connection:
        timer = threading.Timer(SECONDS, shut, (connection,))
        timer.start()
        try:
            return read_problem(connection)
        finally:
            timer.cancel()
    return ""


def shut(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Let a running request fail, from any thread, without a request to cancel it."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


def read_warnings(connection: psycopg.Connection[tuple[Any, ...]], partitions: int) -> tuple[str, ...]:
    """Return what the server's settings and state put at risk, each as a sentence with its remedy."""
    row = connection.execute(_SERVER.encode()).fetchone()
    assert row is not None
    fsync, full_pages, names, standbys, hidden, commit, age, available = row
    found = [
        f"A crash of the server can lose acknowledged messages: its {name} is off."
        for name, value in (("fsync", fsync), ("full_page_writes", full_pages))
        if value != "on"
    ]
    found += _of_standbys(names, standbys, hidden)
    if names and commit in ("local", "remote_write"):
        found.append(
            "A failover can lose acknowledged messages: commits do not wait for the standby's disk. Set "
            f"synchronous_commit to on or remote_apply; it is {commit}."
        )
    if age > OLD_TRANSACTIONS:
        found.append(f"The oldest transaction is {age:,} transactions old. Check that autovacuum can finish.")
    lack = lack_of_connections(available, partitions)
    return (*found, *([lack] if lack else []))


def _of_standbys(names: str, standbys: int, hidden: int) -> list[str]:
    if not names:
        return [
            "One server has the data. If its disk is lost, acknowledged messages are lost: set "
            "synchronous_standby_names."
        ]
    if hidden and not standbys:
        return ["Whether a synchronous standby is connected is unknown: grant pg_monitor to the user."]
    return []  # without any, it is a problem: see read_problem


def needed_for(partitions: int) -> int:
    """Return how many connections the processes of a cluster may have at a time."""
    return FOR_EACH_PARTITION * partitions + OTHERS


def lack_of_connections(available: int, partitions: int) -> str:
    """Return a warning, as a sentence, if the server may run out of connections; otherwise ""."""
    needed = needed_for(partitions)
    if available >= needed:
        return ""
    return (
        f"A cluster of {partitions} partitions may need {needed} connections, but the database allows {available}: "
        f"raise its max_connections, or the limit of the user or of the database, by {needed - available} or more."
    )
