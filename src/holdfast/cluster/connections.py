"""How many connections a cluster needs in PostgreSQL, and whether the server has them."""

from __future__ import annotations

from typing import Final

FOR_EACH_PARTITION: Final = 3
"""Of its process: for commits, for reads, and for what the nodes share, such as the nonces of users and the Sequences
that peers created."""
OTHERS: Final = 6
"""One for each of a few nodes, and some for commands such as ``holdfast cluster status``."""

AVAILABLE: Final = """
SELECT least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(nullif(current_setting('reserved_connections', true), '')::int, 0),
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()))
"""
"""The connections that the user of this one may have, with all other users of the server."""


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
