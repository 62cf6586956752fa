"""A group that removes owners, which join it again as another member before their clients report the loss.

That is so if the node drains or ends meanwhile, or if its disk is full: its second member joins before the first one
leaves (see ``tests/cluster/group/test_sights.py``).
"""

from __future__ import annotations

from typing import Any

from group_world import Group, Process


class ExpelledOwners(Group):
    def __init__(self, *known: Any) -> None:
        self.joins_at: dict[Process, float] = {}
        """A process that the group has removed -> when its second member joins."""
        self.joined_again: set[Process] = set()
        super().__init__(*known)

    def fault(self) -> None:
        if self.random.random() < 0.3:
            super().fault()
            return
        process = self.random.choice(self.processes)
        is_able = max(process.paused_until, process.cut_until, process.mute_until) <= self.now
        if not process.is_dead and not process.is_leaving and is_able and process.owned and process in self.ready:
            del self.members[process.member]
            process.mute_until = self.now + 10
            self.joins_at[process] = self.now + self.random.choice([0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6])

    @property
    def ready(self) -> set[Process]:
        return set(self.members.values()) - self.joins_at.keys() - self.joined_again

    def turn(self, process: Process) -> None:
        if self.now >= self.joins_at.get(process, self.now + 1):
            del self.joins_at[process]
            self.join(process)
            self.joined_again.add(process)
        elif process in self.joined_again and process.membership.has_joined(process.member):
            self.joined_again.remove(process)
            process.membership.give_all(self.now)
            process.owned, process.revoking, process.mute_until = set(), set(), 0.0
        super().turn(process)
