"""GroupMembership: the partitions that a Kafka consumer group assigns to this node, and until when it may act on them.

The group decides who owns a partition. It tells that only when asked, and a paused node asks nothing. So a node acts on
a partition for a time, the *hold*, after it last asked and was a member. A node that gets a partition waits for a hold
before it starts the worker: then no earlier owner acts any longer, however many there were meanwhile.

Only handlers and forwards need this. Stored messages are protected by the claims in the log
(:mod:`holdfast.store.kafka.owner`). No clock and no connection is in here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.cluster.group.states import ASSIGNED, ENDING, GROUP_TABLE, GroupEvent, GroupState
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Report
from holdfast.cluster.view import View
from holdfast.core.states.table import absent
from holdfast.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of the group.

    Args:
        id: The group's name of it; another one each time it joins.
        node, url: The name of the node, and the URL of its cluster listener.
        since: Seconds since 1970-01-01 UTC, when it started.
        mark: Part of a digest of the secret that the nodes share.
        partitions: What it owns; empty while the group assigns partitions again.
    """

    id: str
    node: str
    url: str
    since: float
    mark: str = ""
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """The group, as its coordinator describes it.

    Args:
        members: Its members.
        is_stable: Whether the assignment is complete.
    """

    members: tuple[GroupMember, ...]
    is_stable: bool


class GroupMembership:
    """This node in the group.

    Args:
        node, url: Its name, and the URL of its cluster listener.
        partitions: How many partitions the cluster has.
        policy: How long a silent node stays a member.
        since: Seconds since 1970-01-01 UTC, when it started.
        mark: Part of a digest of the secret.

    Attributes:
        refusal: Why the node cannot be in the cluster; None if it can.
    """

    def __init__(self, node: str, url: str, partitions: int, policy: LeasePolicy, since: float, mark: str = "") -> None:
        self.node = node
        self.refusal: ConfigurationError | None = None
        self._url, self._since, self._mark = url, since, mark
        self._policy = policy
        self._states = dict.fromkeys(range(partitions), GroupState.ELSEWHERE)
        self._member_of: dict[int, str] = {}
        """Partition -> as which member this node got it."""
        self._got: dict[int, float] = {}
        """Partition that waits -> when this node got it."""
        self._epochs = dict.fromkeys(range(partitions), 0)
        self._owners: dict[int, GroupMember] = {}
        self._members: dict[str, GroupMember] = {}
        self._seen: dict[str, float] = {}
        """Own member -> when it was last asked for and found."""
        self._first_seen: float | None = None
        self._is_leaving = self._is_drained = self._is_cut_off = False
        self._cut_off_since: float | None = None
        self._cut_off_by: tuple[str, ...] = ()
        self._failed: dict[int, str] = {}
        """Partition of this node whose worker could not be started -> why."""
        self._serving: tuple[int, ...] = ()
        self._unreachable: Mapping[str, str] = {}

    @property
    def view(self) -> View:
        """Return what the node knows of the cluster."""
        mine = {p: self._epochs[p] for p, state in self._states.items() if state is GroupState.SERVED}
        nodes = {one.node: one.url for one in sorted(self._members.values(), key=lambda one: one.since)}
        owners = {p: one.node for p, one in self._owners.items() if self._states[p] is GroupState.ELSEWHERE}
        owners |= {p: self.node for p, state in self._states.items() if state in ASSIGNED and not self._is_leaving}
        owners = {p: name for p, name in owners.items() if name in nodes or name == self.node}
        nodes[self.node] = self._url
        return View(self.node, mine, owners, nodes, not self.wants_partitions, "", self._cut_off_by, dict(self._failed))

    @property
    def members(self) -> Collection[GroupMember]:
        """Return the members of the group, as far as they are known."""
        return self._members.values()

    @property
    def wants_partitions(self) -> bool:
        """Whether the group may assign partitions to this node."""
        return not (self._is_leaving or self._is_drained or self._is_cut_off)

    @property
    def report(self) -> Report:
        """Return what the node reports about itself."""
        return Report(self._serving, dict(self._failed), dict(self._unreachable))

    @property
    def ending(self) -> set[int]:
        """Return the partitions with a worker that must end."""
        return {p for p, state in self._states.items() if state in ENDING}

    def trusted_until(self, partition: int) -> float:
        """Return until when the worker of a partition may act; 0.0: it may not."""
        if self._states[partition] not in (GroupState.SERVED, GroupState.GIVING):
            return 0.0
        seen = self._seen.get(self._member_of[partition])
        return 0.0 if seen is None else seen + self._policy.hold

    # --- the group --------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[int], member: str, now: float) -> None:
        """The group assigned partitions to this node, which is that member."""
        for partition in partitions:
            self._member_of[partition] = member
            self._got[partition] = now
            self._epochs[partition] += 1
            self._on(partition, GroupEvent.ASSIGNED)

    def revoked(self, partitions: Iterable[int]) -> None:
        """The group wants partitions back: confirm that when none of them is :attr:`ending`."""
        for partition in partitions:
            self._on(partition, GroupEvent.REVOKED)

    def lost(self, partitions: Iterable[int]) -> None:
        """This node is no longer the member that had these partitions."""
        for partition in partitions:
            self._on(partition, GroupEvent.TAKEN)

    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        """The coordinator described the group.

        Args:
            picture: The group.
            sent: When it was asked for.
            now: The time.
        """
        self._members = {one.id: one for one in picture.members}
        if picture.is_stable:
            self._owners = {partition: one for one in picture.members for partition in one.partitions}
        else:
            self._owners = {partition: one for partition, one in self._owners.items() if one.id in self._members}
        for member in set(self._member_of.values()) & self._members.keys():
            self._seen[member] = sent
            if self._first_seen is None:
                self._first_seen = now
        self._compare(now)
        self.pass_time(now)

    def noted(self, *, is_drained: bool, is_cut_off: bool, now: float, cut_off_by: tuple[str, ...] = ()) -> None:
        """Follow what operators and other nodes say of this node.

        Args:
            is_drained: Whether an operator drains it.
            is_cut_off: Whether most other nodes cannot reach it, but not all nodes are cut off. That counts after a
                lease.
            now: The time.
            cut_off_by: The nodes that cannot reach it, if they are most of the others.
        """
        self._is_drained, self._cut_off_by = is_drained, cut_off_by
        if not is_cut_off:
            self._cut_off_since = None
            self._is_cut_off = False
        elif self._cut_off_since is None:
            self._cut_off_since = now
        elif now > self._cut_off_since + self._policy.lease:
            self._is_cut_off = True

    def pass_time(self, now: float) -> None:
        """Serve the partitions on which no earlier owner acts any longer."""
        for partition, got in list(self._got.items()):
            if now > got + self._policy.hold:
                self._on(partition, GroupEvent.CLEAR)

    def _compare(self, now: float) -> None:
        """Refuse to be a node that cannot work with the others: the one that started last."""
        for one in self._members.values():
            if one.since >= self._since:  # a later node, or this one, also as an earlier member
                continue
            if one.mark != self._mark:
                self.refusal = ConfigurationError(
                    f"Node {one.node!r} of the cluster has another secret than this node",
                    remedy="Give all nodes the same secret_file or secret_env.",
                )
            # A node that was killed stays in the group for a lease, and may have started again meanwhile.
            is_old = self._first_seen is not None and now > self._first_seen + 2 * self._policy.lease
            if one.node == self.node and is_old:
                self.refusal = ConfigurationError(
                    f"Another node of the cluster is named {self.node!r}",
                    remedy="Give each node another name: HOLDFAST_NODE, or node in [cluster].",
                )

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def stopped(self, partitions: Iterable[int]) -> None:
        """The workers of these partitions have ended, or none was there."""
        for partition in partitions:
            self._on(partition, GroupEvent.STOPPED)

    def serves(self, partitions: Iterable[int], unreachable: Mapping[str, str]) -> None:
        """The workers of these partitions accept requests, and these nodes cannot be reached: node -> why."""
        self._serving, self._unreachable = tuple(partitions), dict(unreachable)
        for partition in self._serving:
            self._failed.pop(partition, None)

    def failed(self, failures: Mapping[int, str], now: float) -> None:
        """The workers of these partitions cannot be started here now, and why: try again after a lease."""
        for partition, why in failures.items():
            if self._states[partition] is GroupState.SERVED:
                self._failed[partition] = why
                self._got[partition] = now + self._policy.lease
                self._epochs[partition] += 1
                self._on(partition, GroupEvent.FAILED)
            else:
                self._on(partition, GroupEvent.STOPPED)

    def end(self) -> None:
        """Get no further partitions; call :meth:`give_all` then."""
        self._is_leaving = True

    def give_all(self) -> None:
        """Give everything away. Leave the group when no partition is :attr:`ending`."""
        self.revoked(list(self._states))

    def _on(self, partition: int, event: GroupEvent) -> None:
        state = self._states[partition]
        after = GROUP_TABLE.get((state, event))
        if after is None:
            absent(f"Partition {partition}", state, event)
            return
        self._states[partition] = after
        if after not in (GroupState.WAITING, GroupState.RETURNED):
            self._got.pop(partition, None)
        if after not in ASSIGNED:
            self._failed.pop(partition, None)
