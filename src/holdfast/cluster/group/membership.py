"""GroupMembership: the partitions that a Kafka consumer group assigns to this node, and until when it may act on them.

The group decides who owns a partition. It tells that only when asked, and a paused node asks nothing. So a node acts on
a partition for a time, the *hold*, after it last asked and was a member. A node that gets a partition waits for a hold
before its worker acts: then no earlier owner acts any longer, however many there were meanwhile. The worker starts
before that, and is prepared when the time comes.

An operator's move adds a member to the group, a *pin*, which the node keeps only for one partition. The partition is
then that node's, whatever the group assigns. All nodes see pins in the same description of the group as its members, so
a partition changes between a pin and the group at one moment, which each node learns by looking. A node acts only if
its looks, less than a lease apart, have shown the same pin for more than a lease, or none for more than a hold. So slow
looks delay nothing where no partition is moved. And the node that has a partition keeps it for most of a lease after
its last look without a pin: a pin that came later does not count before.

Only handlers and forwards need this. Stored messages are protected by the claims in the log
(:mod:`holdfast.store.kafka.owner`). No clock and no connection is in here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast.cluster.group.states import ASSIGNED, ENDING, GROUP_TABLE, GroupEvent, GroupState
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Report, different_tables
from holdfast.cluster.trust import ClockCheck
from holdfast.cluster.view import KAFKA, View
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
class Pin:
    """A member of the group that a node keeps for a partition which an operator has moved to it.

    Args:
        id: The group's name of it.
        node, since: The node, and when it started.
        partition: The partition, which no other node may act on.
    """

    id: str
    node: str
    since: float
    partition: int


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """The group, as its coordinator describes it.

    Args:
        members: Its members that are nodes.
        is_stable: Whether the assignment is complete.
        pins: Its other members.
    """

    members: tuple[GroupMember, ...]
    is_stable: bool
    pins: tuple[Pin, ...] = ()

    @property
    def pinned(self) -> dict[int, Pin | None]:
        """Return the pin of each partition that has one; None for several, of which none counts."""
        found: dict[int, Pin | None] = {}
        for pin in self.pins:
            found[pin.partition] = None if pin.partition in found else pin
        return found


@dataclass(frozen=True, slots=True)
class _Sight:
    """What an unbroken row of looks has shown of a partition.

    Args:
        pin: Its only pin; "": none; None: several.
        since: When the answer to the first of them came.
        sent: When the last one was sent.
        has_come: Whether the look before them showed none.
    """

    pin: str | None
    since: float
    sent: float
    has_come: bool = False


def name_taken(node: str) -> ConfigurationError:
    """Return the error for a second node of a name."""
    return ConfigurationError(
        f"Another node of the cluster is named {node!r}",
        remedy="Give each node another name: HOLDFAST_NODE, or node in [cluster].",
    )


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
        clock: How far the clock of this machine is from Kafka's, for the report.
    """

    def __init__(self, node: str, url: str, partitions: int, policy: LeasePolicy, since: float, mark: str = "") -> None:
        self.node = node
        self.refusal: ConfigurationError | None = None
        self.clock = ClockCheck()
        self._url, self._since, self._mark = url, since, mark
        self._policy = policy
        self._states = dict.fromkeys(range(partitions), GroupState.ELSEWHERE)
        self._member_of: dict[int, str] = {}
        """Partition -> as which member, or with which pin, this node got it."""
        self._held: dict[int, str] = {}
        """Partition that the group assigns to this node -> as which member it is."""
        self._pinned: dict[int, Pin | None] = {}
        self._sights: dict[int, _Sight] = {}
        self._no_pin_acts_until: dict[int, float] = {}
        """Partition on which this node could act when it saw pins come -> until when none of them counts."""
        self._moved: frozenset[int] = frozenset()
        self._declined: set[int] = set()
        self._got: dict[int, float] = {}
        """Partition that waits -> when this node got it."""
        self._epochs = dict.fromkeys(range(partitions), 0)
        self._owners: dict[int, GroupMember] = {}
        self._members: dict[str, GroupMember] = {}
        self._seen: dict[str, float] = {}
        """Own member -> when it was last asked for and found."""
        self._first_seen: float | None = None
        self._described: float | None = None
        """When the last description of the group was asked for."""
        self._is_removed = False
        self._is_leaving = self._is_drained = self._is_cut_off = self._makes_way = False
        self._short = ""
        self._cut_off_since: float | None = None
        self._cut_off_by: tuple[str, ...] = ()
        self._failed: dict[int, str] = {}
        """Partition of this node whose worker could not be started -> why."""
        self._serving: tuple[int, ...] = ()
        self._unreachable: Mapping[str, str] = {}
        self._tables: Mapping[str, str] = {}
        self._differing: Mapping[str, tuple[str, ...]] = {}

    @property
    def view(self) -> View:
        """Return what the node knows of the cluster."""
        mine = {p: self._epochs[p] for p, state in self._states.items() if state is GroupState.SERVED}
        nodes = {one.node: one.url for one in sorted(self._members.values(), key=lambda one: one.since)}
        early = {p for p in self._pinned if self._is_early(p)}
        owners = {
            p: one.node for p, one in self._owners.items() if self._states[p] is GroupState.ELSEWHERE or p in early
        }
        owners |= {p: "" if pin is None else pin.node for p, pin in self._pinned.items() if p not in early}
        own = {p for p, state in self._states.items() if state in ASSIGNED and p not in early}
        owners |= {p: self.node for p in own | mine.keys() if not self._is_leaving}
        owners = {p: name for p, name in owners.items() if name in nodes or name == self.node}
        nodes[self.node] = self._url
        wants = self.wants_partitions
        failed, differing, preparing = dict(self._failed), self._differing, self._preparing
        return View(
            self.node, mine, owners, nodes, not wants, "", self._cut_off_by, failed, KAFKA, differing, preparing
        )

    @property
    def _preparing(self) -> dict[int, int]:
        """Return the partitions that this node is to serve when no other one acts."""
        waiting = (p for p, state in self._states.items() if state is GroupState.WAITING)
        return {p: self._epochs[p] for p in waiting if p not in self._failed}

    @property
    def members(self) -> Collection[GroupMember]:
        """Return the members of the group, as far as they are known."""
        return self._members.values()

    @property
    def wants_partitions(self) -> bool:
        """Whether the group may assign partitions to this node."""
        return not (self._is_leaving or self._is_drained or self._is_cut_off or self._makes_way)

    @property
    def report(self) -> Report:
        """Return what the node reports about itself."""
        serving = tuple(p for p in self._serving if self._states[p] is not GroupState.ELSEWHERE)
        return Report(serving, dict(self._failed), dict(self._unreachable), self._tables, self._short, self.clock.ahead)

    @property
    def ending(self) -> set[int]:
        """Return the partitions with a worker that must end."""
        return {p for p, state in self._states.items() if state in ENDING}

    @property
    def pins(self) -> set[int]:
        """Return the partitions for which this node is to have a pin."""
        kept = {p for p in self.ending if self._has_pin(p)}  # until its worker has ended
        return kept | self._wanted

    @property
    def declined(self) -> frozenset[int]:
        """Return the partitions that were moved here, but that this node could not start."""
        return self._moved & self._declined

    @property
    def has_failed(self) -> bool:
        """Whether a worker could not be started here."""
        return bool(self._failed)

    @property
    def _wanted(self) -> frozenset[int]:
        return self._moved - self._declined if self.wants_partitions else frozenset()

    def _has_pin(self, partition: int) -> bool:
        """Whether this node got a partition by a pin that it still has."""
        pin = self._pinned.get(partition)
        return pin is not None and pin.id == self._member_of.get(partition)

    def trusted_until(self, partition: int) -> float:
        """Return until when the worker of a partition may act; 0.0: it may not."""
        if self._states[partition] not in (GroupState.SERVED, GroupState.GIVING):
            return 0.0
        member = self._member_of[partition]
        if partition in self._no_pin_acts_until:
            seen = self._seen.get(member)
            return 0.0 if seen is None else min(seen + self._policy.hold, self._no_pin_acts_until[partition])
        if not self._is_clear(partition):
            return 0.0
        sight = self._sights[partition]
        seen = self._seen.get(member) if sight.pin == "" else sight.sent if sight.pin == member else None
        return 0.0 if seen is None else min(seen, sight.sent) + self._policy.hold

    def _is_clear(self, partition: int) -> bool:
        """Whether no node acts any longer on what it saw of the partition's pins before."""
        sight = self._sights.get(partition)
        if sight is None:
            return False
        return sight.sent > self._clear_after(sight)

    def _clear_after(self, sight: _Sight) -> float:
        return sight.since + (self._policy.lease if sight.pin else self._policy.hold)

    def is_look_due(self, now: float) -> bool:
        """Whether another look, sent now, may show that a partition is this node's: it has no owner until then."""
        if self._wanted - self._pinned.keys():
            return True
        sights = [self._sights[p] for p in self._preparing if p in self._sights and not self._is_clear(p)]
        return any(now > self._clear_after(sight) for sight in sights)

    def _is_early(self, partition: int) -> bool:
        """Whether the partition's pin came so late that another node, which had the partition, may still keep it."""
        sight, owner = self._sights.get(partition), self._owners.get(partition)
        is_own = owner is not None and owner.node == self.node
        return sight is not None and sight.has_come and not is_own and not self._is_clear(partition)

    def trouble(self, now: float) -> str:
        """Return why this node can neither act nor tell who else does; "": it can."""
        if self._described is not None and now > self._described + self._policy.hold:
            return "its group coordinator does not answer"
        return "the group has removed this node, which joins it again" if self._is_removed else ""

    # --- the group --------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[int], member: str, now: float) -> None:
        """The group assigned partitions to this node, which is that member."""
        for partition in partitions:
            self._held[partition] = member
            self._settle(partition, now)

    def revoked(self, partitions: Iterable[int]) -> None:
        """The group wants partitions back: confirm that when none of them is :attr:`ending`."""
        for partition in partitions:
            self._held.pop(partition, None)
            if not self._has_pin(partition):
                self._on(partition, GroupEvent.REVOKED)

    def lost(self, partitions: Iterable[int]) -> None:
        """This node is no longer the member that had these partitions."""
        self._is_removed = True
        for partition in partitions:
            self._held.pop(partition, None)
            if not self._has_pin(partition):
                self._on(partition, GroupEvent.TAKEN)

    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        """The coordinator described the group.

        Args:
            picture: The group.
            sent: When it was asked for.
            now: The time.
        """
        self._members = {one.id: one for one in picture.members}
        self._described = sent
        if any(one.node == self.node and one.since == self._since for one in picture.members):
            self._is_removed = False
        if picture.is_stable:
            self._owners = {partition: one for one in picture.members for partition in one.partitions}
        else:
            self._owners = {partition: one for partition, one in self._owners.items() if one.id in self._members}
        own = set(self._member_of.values())
        # Each time it joins the group again, this node is another member.
        self._seen = {member: seen for member, seen in self._seen.items() if member in own}
        for member in own & self._members.keys():
            self._seen[member] = sent
            if self._first_seen is None:
                self._first_seen = now
        self._pinned = picture.pinned
        for partition in self._states:
            pin = self._pinned.get(partition, "")
            self._see(partition, pin.id if isinstance(pin, Pin) else pin, sent, now)
        self._compare(now)
        self.pass_time(now)

    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        before = self._sights.get(partition)
        # Looks that are further apart may have missed a pin that lasted for a lease, whose node acts.
        if before is None or now >= before.sent + self._policy.lease:
            self._sights[partition] = _Sight(pin, now, sent)
        elif before.pin == pin:
            self._sights[partition] = replace(before, sent=sent)
        else:
            if before.pin == "" and self._is_clear(partition) and self._states[partition] is GroupState.SERVED:
                self._no_pin_acts_until[partition] = before.sent + self._policy.lease
            self._sights[partition] = _Sight(pin, now, sent, has_come=before.pin == "")
        until = self._no_pin_acts_until.get(partition)
        if until is not None and (now >= until or (pin == "" and self._is_clear(partition))):
            del self._no_pin_acts_until[partition]

    def noted(
        self,
        *,
        is_drained: bool,
        is_cut_off: bool,
        now: float,
        cut_off_by: tuple[str, ...] = (),
        moved: frozenset[int] = frozenset(),
        tables: Mapping[str, Mapping[str, str]] | None = None,
        short: str = "",
        makes_way: bool = False,
    ) -> None:
        """Follow what operators and other nodes say of this node.

        Args:
            is_drained: Whether an operator drains it.
            is_cut_off: Whether most other nodes cannot reach it, but not all nodes are cut off. That counts after a
                lease.
            now: The time.
            cut_off_by: The nodes that cannot reach it, if they are most of the others.
            moved: The partitions that an operator has moved to this node.
            tables: Other node -> the digests of its configuration.
            short: Why the disk of this node has no room for partitions; "": it has room.
            makes_way: Whether another node may have room, so that this one takes no partitions meanwhile.
        """
        others = {node: different_tables(self._tables, theirs) for node, theirs in (tables or {}).items()}
        self._differing = {node: names for node, names in others.items() if names}
        self._is_drained, self._cut_off_by, self._moved = is_drained, cut_off_by, moved
        self._short, self._makes_way = short, makes_way
        self._declined &= moved
        if not is_cut_off:
            self._cut_off_since = None
            self._is_cut_off = False
        elif self._cut_off_since is None:
            self._cut_off_since = now
        elif now > self._cut_off_since + self._policy.lease:
            self._is_cut_off = True

    def pass_time(self, now: float) -> None:
        """Serve the partitions on which no earlier owner acts any longer."""
        for partition in self._states:
            self._settle(partition, now)
        for partition, got in list(self._got.items()):
            if now > got + self._policy.hold and self._is_clear(partition):
                self._on(partition, GroupEvent.CLEAR)

    def _settle(self, partition: int, now: float) -> None:
        """Follow the partition's pin, or else the group."""
        pin = self._pinned.get(partition)
        if partition not in self._pinned or self._keeps(partition, now):
            member = self._held.get(partition)
        else:
            is_own = pin is not None and (pin.node, pin.since) == (self.node, self._since)
            member = pin.id if pin is not None and is_own and partition in self._wanted else None
        if self._states[partition] in ASSIGNED and self._member_of[partition] != member:
            is_given = partition in self._held or self._has_pin(partition)
            self._on(partition, GroupEvent.REVOKED if is_given else GroupEvent.TAKEN)
        if member is not None and self._states[partition] in (GroupState.ELSEWHERE, GroupState.LOST):
            self._member_of[partition] = member
            self._got[partition] = now
            self._epochs[partition] += 1
            self._on(partition, GroupEvent.ASSIGNED)

    def _keeps(self, partition: int, now: float) -> bool:
        """Whether this node keeps a partition although a pin has come, with time left for its worker to end."""
        until = self._no_pin_acts_until.get(partition)
        is_served = self._states[partition] is GroupState.SERVED
        return is_served and until is not None and now < until - self._policy.hold / 8

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
                self.refusal = name_taken(self.node)

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def stopped(self, partitions: Iterable[int]) -> None:
        """The workers of these partitions have ended, or none was there."""
        for partition in partitions:
            self._on(partition, GroupEvent.STOPPED)

    def serves(
        self, partitions: Iterable[int], unreachable: Mapping[str, str], tables: Mapping[str, str] | None = None
    ) -> None:
        """The workers of these partitions accept requests, these nodes cannot be reached (node -> why), and the tables
        of the configuration have these digests."""
        self._serving, self._unreachable = tuple(partitions), dict(unreachable)
        self._tables = dict(tables or {})
        for partition in self._serving:
            self._failed.pop(partition, None)

    def failed(self, failures: Mapping[int, str], now: float) -> None:
        """The workers of these partitions cannot be started here now, and why: try again after a lease."""
        for partition, why in failures.items():
            if self._states[partition] is not GroupState.SERVED and partition not in self._preparing:
                self._on(partition, GroupEvent.STOPPED)
                continue
            if self._has_pin(partition):
                self._declined.add(partition)
            self._failed[partition] = why
            self._got[partition] = now + self._policy.lease
            self._epochs[partition] += 1
            self._on(partition, GroupEvent.FAILED)

    def end(self) -> None:
        """Get no further partitions, and give everything away."""
        self._is_leaving = True
        self.give_all()

    def give_all(self) -> None:
        """Give everything away. Leave the group when no partition is :attr:`ending`."""
        self._held.clear()
        for partition in self._states:
            self._on(partition, GroupEvent.REVOKED)

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
