"""Which engine has the shared tables of a cluster."""

from __future__ import annotations

from holdfast.cluster.shared.tables import Part, SharedTables
from holdfast.store.address import is_kafka


def shared_tables(location: str, part: Part) -> SharedTables:
    """Return this process's access to the tables of a cluster: one object for all users of a part.

    Args:
        location: The URL of the cluster's database or log.
        part: What the tables are for.

    Raises:
        ConfigurationError: The URL is invalid.
        ModuleNotFoundError: The extra of the engine is not installed.
    """
    if is_kafka(location):
        from holdfast.cluster.shared.topic_tables import topic_tables

        return topic_tables(location, part)
    from holdfast.cluster.shared.database import shared_database

    return shared_database(location)
