"""The queues of a destination: made from its arguments, and compared with those in its store."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Snapshot
from holdfast.endpoint.arguments import check_queue_name, to_retention
from holdfast.exceptions import ConfigurationError

Queues = Mapping[str, str | RetentionPolicy | None]
"""Queue -> how long it keeps messages; None: the default."""


def new_queues(given: Queues | None, partitions: int) -> dict[str, Queue]:
    """Return the queues for the argument ``queues``; one named "inbox" if it is None.

    Raises:
        ConfigurationError: The argument is not such a mapping, or a name or a retention is not valid.
    """
    given = {"inbox": None} if given is None else given
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            f"queues cannot be {given!r}", remedy='Map each queue to its retention: queues={"inbox": "7d"}.'
        )
    for name in given:
        check_queue_name(name)
    return {
        name: Queue(name, partitions, to_retention(keeps), drops_passed=keeps is None) for name, keeps in given.items()
    }


def check_queues(queues: Mapping[str, Queue], snapshot: Snapshot) -> None:
    """Check that a store fits the queues that are configured.

    Raises:
        ConfigurationError: A queue has another number of partitions, or one with messages is not configured.
    """
    for queue in queues.values():
        stored = queue.description.stored_partitions
        if stored not in (None, len(queue.partitions)):
            raise ConfigurationError(
                f"in this store, the queue {queue.name!r} has {stored} partitions, not {len(queue.partitions)}",
                remedy=f"Set partitions={stored}, or use another store: messages of a Sequence must stay in "
                "one partition.",
            )
    for (name, partition), (first, end) in snapshot.bounds.items():
        kind = snapshot.queues.get(name, {}).get("kind", OUTBOX)
        if kind == "inbox" and end > first and name not in queues:
            raise ConfigurationError(
                f"the store holds messages in the queue {name!r}, such as {end - first} in partition "
                f"{partition}, but the queue is not configured",
                remedy="Add the queue again, or use another store. holdfast queues shows its messages.",
            )
