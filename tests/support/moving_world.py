"""Moves of partitions in virtual time, in a cluster where nothing fails and every timer is much longer than a move.

So a move that waits for a timer shows: an event was lost, or there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lease_world import Process, World

from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.membership import Membership


@dataclass(frozen=True, slots=True)
class RarePolls(LeasePolicy):
    """A node looks at the rows every 16 to 24 seconds, if no event makes it look."""

    lease: float = 120.0

    @property
    def poll(self) -> float:
        return 20.0


class MovingWorld(World):
    """Three nodes that share the partitions, at a random moment between two polls.

    Args:
        seed: Decides all times.
        partitions: How many.
        membership: What the nodes decide with.
    """

    def __init__(
        self,
        seed: int,
        *,
        partitions: int = 6,
        membership: type[Membership] = Membership,
    ) -> None:
        super().__init__(seed, partitions=partitions, lease=120.0, membership=membership)
        self.policy = RarePolls()
        self.losses = 0.0
        self.ends_at: dict[tuple[str, int], float] = {}
        """Name of a node and partition -> when the worker ends, if it ends late."""
        self.keep_started()
        self.calm()
        self.run_until(self.now + self.operator.uniform(100, 160))

    def choose_move(self) -> tuple[int, str]:
        """Return a partition, and a node that does not own it."""
        row = self.operator.choice(self.database.ownership)
        return row.partition, self.operator.choice([name for name in self.names if name != row.owner])

    def serves(self, partition: int, name: str) -> bool:
        """Whether a node serves a partition now."""
        return any(one.name == name and one.may_act(partition, self.now) for one in self.running())

    def is_even(self) -> bool:
        """Whether all nodes serve equally many partitions."""
        return len(set(self.served().values())) == 1 and sum(self.served().values()) == self.partitions

    def is_taken_from(self, process: Process, but: int | None = None) -> Callable[[], bool]:
        """Return whether other nodes serve what a node serves now, but perhaps one partition."""
        mine = [one for one in process.workers if one != but]
        others = [name for name in self.names if name != process.name]
        return lambda: all(any(self.serves(one, name) for name in others) for one in mine)

    def drain(self, process: Process, *, is_draining: bool = True) -> None:
        """An operator drains a node, or lets it take partitions again."""
        self.database.nodes[process.name].is_draining = is_draining
        self.database.notify(None)

    def end(self, process: Process) -> None:
        """A node gets SIGTERM."""
        process.membership.end(self.now + process.offset)
        self.at(0.0, lambda: None, process)

    def running(self) -> list[Process]:
        """The processes that have not ended."""
        return [one for one in self.processes if not one.is_dead]

    def ended(self, process: Process, partition: int) -> Callable[[], None]:
        """Let the worker of a partition take until the time in ``ends_at``, if there is one."""
        end, until = super().ended(process, partition), self.ends_at.get((process.name, partition), self.now)
        if until <= self.now:
            return end
        return lambda: self.at(until - self.now, end, process)

    def seconds_of(self, begin: Callable[[], None], is_done: Callable[[], bool]) -> float:
        """Return how long something takes; 100 s if it takes longer."""
        begun = self.now
        begin()
        self.run_until(begun + 100.0, is_done)
        return self.now - begun
