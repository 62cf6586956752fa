"""The queues of a destination: made from its arguments, and compared with those in its store.

A store keeps the numbers of partitions that it was made with: the offsets of readers and the order of a Sequence depend
on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.queues.description import OUTBOX, divided
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Snapshot
from holdfast.endpoint.arguments import check_queue_name, to_retention
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError
from holdfast.settings import brief_value, check_whole

Queues = Mapping[str, str | RetentionPolicy | None]
"""Queue -> how long it keeps messages; None: the default."""
Retention = tuple[RetentionPolicy, bool]
"""How long a queue keeps messages, and whether it deletes those that every cursor has passed."""
Retentions = Mapping[str, Retention]
"""Queue -> its retention."""


def to_retentions(given: Queues | None) -> dict[str, Retention]:
    """Return the retention of each queue of the argument ``queues``, and whether the queue deletes the messages that
    every cursor has passed; one queue named "inbox" if the argument is None.

    Raises:
        ConfigurationError: The argument is not such a mapping, or a name or a retention is not valid.
    """
    given = {"inbox": None} if given is None else given
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            f"queues cannot be {brief_value(given)}", remedy='Map each queue to its retention: queues={"inbox": "7d"}.'
        )
    for name in given:
        check_queue_name(name)
    return {name: (to_retention(keeps), keeps is None) for name, keeps in given.items()}


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


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Configured partitions of every queue.

    Args:
        shared: Partitions that Sequences share; None: as many as the store has.
        sessions: Partitions for one session each, after the shared ones; None: as many as the store has.
        default_shared: Shared partitions of a new store, if not configured.
        default_sessions: Partitions for sessions of a new store, if not configured.
    """

    shared: int | None = 4
    sessions: int | None = 0
    default_shared: int = 4
    default_sessions: int = 0

    def __post_init__(self) -> None:
        if self.shared is not None:
            check_whole("partitions", self.shared)

    def divide(
        self,
        queues: Mapping[str, Queue],
        snapshot: Snapshot,
        first: tuple[int, int] | None = None,
        *,
        is_joined: bool = False,
    ) -> None:
        """Give the queues their partitions, before they recover.

        Args:
            snapshot: What their store holds.
            first: The numbers that the first of several workers has; None: this process is the only one, or the first.
            is_joined: Whether there are several workers: the number of a partition then depends on how many each has.

        Raises:
            ConfigurationError: The store has other numbers than are said.
        """
        described = {name: divided(snapshot.queues[name]) for name in queues if name in snapshot.queues}
        stored = {name: numbers for name, numbers in described.items() if numbers[0]}
        known = next(iter(stored.values()), first)
        default_shared, default_sessions = known or (self.default_shared, self.default_sessions)
        shared = default_shared if self.shared is None else self.shared
        sessions = default_sessions if self.sessions is None else self.sessions
        for name, (has_shared, has_sessions) in stored.items():
            if has_shared != shared:
                raise ConfigurationError(
                    f"in this store, the queue {name!r} has {has_shared} partitions, not {shared}",
                    remedy=f"Set partitions={has_shared}, or use another store: messages of a Sequence stay in one "
                    "partition.",
                )
            if has_sessions > sessions:
                raise ConfigurationError(
                    f"in this store, the queue {name!r} has {has_sessions} partitions for sessions, not {sessions}",
                    remedy=f"Set sessions={has_sessions} or more, or use another store.",
                )
            if has_sessions < sessions:
                if is_joined and snapshot.queues[name].get("read"):
                    raise ConfigurationError(
                        f"the queue {name!r} cannot get {sessions} partitions for sessions: the offsets of its "
                        "readers refer to partitions of several workers",
                        remedy=f"Set sessions={has_sessions}, or use another store.",
                    )
                log.warning("queue.partitions_added", queue=name, sessions=sessions, before=has_sessions)
        if self.sessions is None and stored and not sessions and self.default_sessions:
            log.info(
                "queue.no_session_partitions",
                partitions=shared,
                remedy=f"sessions = {self.default_sessions} gives each client with requests its own Sequence",
            )
        for queue in queues.values():
            queue.divide(shared, sessions)
