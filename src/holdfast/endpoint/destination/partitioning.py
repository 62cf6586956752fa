"""Partitioning: how many partitions the queues of one store have, shared ones and such for sessions.

A store keeps the numbers that it was made with: a reader's offsets, and the order of a Sequence, depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.queues.description import divided
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Snapshot
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError
from holdfast.settings import check_whole


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
            queues: Queues by name.
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
