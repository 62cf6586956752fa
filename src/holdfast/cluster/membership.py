"""Membership: decides what a node asks of the cluster's database, and which partitions it may serve until when.

Sans-IO: it gets the rows and the time, and returns requests. It has no clock, no connection and no randomness. One
request runs at a time.

A node keeps a lease and a lock. The lease is a row that it renews; the lock belongs to its session, so it ends with its
process. When the lease has ended, or when the lock was absent at two looks, another node declares it dead: it deletes
the row. Only then are its partitions free. A renewal and a declaration change the same row, so one of them comes first:
a renewal that succeeds proves that no partition is lost, and a node that was declared dead learns it from its renewal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import (
    Answer,
    Claim,
    ClusterRefused,
    Declare,
    Drain,
    Enter,
    Entered,
    Join,
    Leave,
    Look,
    OwnershipRow,
    Picture,
    Release,
    Report,
    Request,
    Tell,
    different_tables,
)
from holdfast.cluster.shares import shares_of, surplus
from holdfast.cluster.states import (
    NODE_TABLE,
    PARTITION_TABLE,
    TRUSTED,
    NodeAction,
    NodeEvent,
    NodeState,
    PartitionEvent,
    PartitionState,
)
from holdfast.cluster.trust import ClockCheck
from holdfast.cluster.view import View
from holdfast.core.states.table import absent, step

LOOK_TWICE: Final = 0.3
"""Seconds between the two looks that must find a node's lock absent before the node is declared dead."""
GRACE: Final = 0.2
"""Seconds for which a node acts after its session, and so its lock, has ended. Less than ``LOOK_TWICE``."""
SETTLE: Final = 1.0
"""Seconds after a join in which a node claims only what an earlier incarnation of it owned, unless other nodes own
partitions: so nodes that start together share them before they start workers."""
LEAST_CONTACT: Final = 1.0
"""Seconds of contact with the database, at least, before a node judges others: after an outage, all leases have ended,
and the first node that is back must not take what the others own."""
RESERVED: Final = 2.0
"""Seconds for which a free partition waits for the node that an operator has moved it to."""
FIRST_REST: Final = 2.0
LONGEST_REST: Final = 20.0
"""Leases for which a node leaves a partition to others after it could not serve it: doubled each time until it serves
a partition again, up to the longest."""
FIRST_PAUSE: Final = 0.05
"""Seconds until the next request after one without an answer: doubled each time, up to the poll interval."""


class Membership:
    """The membership of one node.

    Args:
        node: Its name.
        partitions: How many partitions the cluster has.
        policy: How long its lease lasts.
        now: The time, in seconds of any clock that never goes back. All times of one membership are of this clock.
        random: Returns a random number from 0 to 1.

    Attributes:
        state: The state of the node.
        refusal: Why the node cannot be in the cluster; None while it can.
        clock: How far the clock of this machine is from the database's, for the report.
    """

    def __init__(
        self, node: str, partitions: int, policy: LeasePolicy, now: float, random: Callable[[], float]
    ) -> None:
        self.node = node
        self.state = NodeState.JOINING
        self.refusal: ClusterRefused | None = None
        self.clock = ClockCheck()
        self._policy = policy
        self._random = random
        self._partitions = [PartitionState.ELSEWHERE] * partitions
        self._epochs: dict[int, int] = {}
        self._owners: dict[int, str] = {}
        self._nodes: dict[str, str] = {}
        self._cut_off_by: tuple[str, ...] = ()
        self._incarnation = 0
        self._is_locked = False
        self._trusted = 0.0
        self._is_busy = False
        self._pause = FIRST_PAUSE
        self._not_before = now
        self._join_at = now
        self._taken_since: float | None = None
        self._settle_until = now
        self._look_at = now
        self._is_notified = False
        """Whether the rows have changed since the latest look was sent, which may not have found the change."""
        self._renew_at = now
        self._quiet_until = now
        self._judges_from: float | None = None
        """From when this node declares others dead; None: it has no contact with the database."""
        self._leave_by: float | None = None
        self._drain_is_recorded = False
        self._absent: dict[tuple[int, int], float] = {}
        """Incarnation and end of the lease of a node without a lock -> when the first look that found it so was
        answered. A renewal since then makes it the first look again: after it, the node is trusted."""
        self._reserved: dict[tuple[int, int], float] = {}
        """A free partition that another node is to claim, and its epoch -> until when."""
        self._dead: list[Declare] = []
        self._claim: Claim | None = None
        self._serving: tuple[int, ...] = ()
        self._unreachable: Mapping[str, str] = {}
        self._tables: Mapping[str, str] = {}
        self._differing: Mapping[str, tuple[str, ...]] = {}
        self._failed: dict[int, str] = {}
        """Partition that could not be served here -> why, until ``_rests_until``."""
        self._blamed: dict[int, str] = {}
        """The same, until this node serves a further partition after that time."""
        self._failures = 0
        self._rests_until = now
        self._told: Report | None = Report()
        """The report in the row of this node; None: unknown."""

    # --- what the node's processes may do ---------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the membership has ended, or was refused."""
        return self.state is NodeState.LEFT or self.refusal is not None

    @property
    def view(self) -> View:
        """What the node knows of the cluster now."""
        return View(
            self.node,
            {partition: self._epochs[partition] for partition in self._in(PartitionState.SERVED)},
            dict(self._owners),
            dict(self._nodes),
            self.state in (NodeState.DRAINING, NodeState.JOINING_TO_DRAIN, NodeState.LEAVING),
            cut_off_by=self._cut_off_by,
            failed=dict(self._blamed),
            differing=self._differing,
        )

    def trusted_until(self, partition: int) -> float:
        """Return until when the worker of a partition may act; 0: it may not."""
        return self._trusted if self._partitions[partition] in TRUSTED and not self.is_over else 0.0

    @property
    def report(self) -> Report:
        """What the row of this node should say about it."""
        served = self._in(*TRUSTED)
        serving = tuple(one for one in self._serving if one in served)
        return Report(serving, dict(self._failed), self._unreachable, self._tables, clock_ahead=self.clock.ahead)

    @property
    def ending(self) -> list[int]:
        """The partitions that wait for the end of their workers, which :meth:`stopped` reports."""
        return self._in(PartitionState.GIVING, PartitionState.LOST)

    # --- what the node asks -----------------------------------------------------------------------------------------

    def next(self, now: float) -> Request | None:
        """Return the next request that is due; None if none is, or if one runs. Run it and report how it ended, with
        :meth:`answered`, :meth:`unanswered` or :meth:`refused`."""
        if self._leave_by is not None and now >= self._leave_by and self.state is NodeState.LEAVING:
            self._event(NodeEvent.OVERDUE)
        if self._is_busy or self.is_over or now < self._not_before:
            return None
        request = self._due(now)
        self._is_busy = request is not None
        if isinstance(request, Tell):
            self._told = None
        elif isinstance(request, Look):
            self._is_notified = False
        return request

    def wake_at(self) -> float | None:
        """Return when :meth:`next` should be called again if nothing else happens; None: not before a report."""
        if self.is_over:
            return None
        if self._is_busy:
            return self._leave_by
        if self.state in (NodeState.JOINING, NodeState.JOINING_TO_DRAIN):
            due = self._join_at if self._is_locked else self._look_at
        elif self._urgent() is not None:
            due = 0.0
        else:
            due = self._look_at
        wake = max(due, self._not_before)
        return wake if self._leave_by is None else min(wake, self._leave_by)

    def _due(self, now: float) -> Request | None:
        if self.state in (NodeState.JOINING, NodeState.JOINING_TO_DRAIN):
            if not self._is_locked:
                return Enter() if now >= self._look_at else None
            return Join(self.state is NodeState.JOINING_TO_DRAIN) if now >= self._join_at else None
        urgent = self._urgent()
        if urgent is not None:
            return urgent
        return Look(self._incarnation, now >= self._renew_at) if now >= self._look_at else None

    def _urgent(self) -> Request | None:
        """Return a request that need not wait for the next look."""
        given = self._in(PartitionState.GIVEN)
        if given:
            return Release(self._incarnation, {partition: self._epochs[partition] for partition in given})
        if self._dead:
            return self._dead[0]
        if self._claim is not None and self.state is NodeState.MEMBER:
            return self._claim
        if self.state is NodeState.LEAVING and not self._in(PartitionState.SERVED, PartitionState.GIVING):
            return Leave(self._incarnation)
        if self.state in (NodeState.DRAINING, NodeState.LEAVING) and not self._drain_is_recorded:
            # The others share what this node releases before its last worker has ended.
            return Drain(self._incarnation)
        return Tell(self._incarnation, self.report) if self.report != self._told else None

    # --- how it ended -----------------------------------------------------------------------------------------------

    def answered(self, request: Request, answer: Answer, sent: float, now: float) -> None:
        """Process the answer to a request.

        Args:
            answer: As the class of the request says.
            sent: When the request was sent.
            now: The time.
        """
        self._is_busy = False
        self._pause = FIRST_PAUSE
        if self.is_over:
            return
        match request, answer:
            case Enter(), Entered():
                self._entered(answer, now)
            case Join(), int():
                self._joined(answer, sent, now)
            case Look(), Picture():
                self._looked(request, answer, sent, now)
            case Declare(), bool():
                self._dead.remove(request)
                if answer:
                    self._look_at = now
                    self._quiet_until = now + self._policy.lease
            case Claim(), Mapping():
                self._claim = None
                for partition, epoch in answer.items():
                    self._epochs[partition] = epoch
                    self._owners[partition] = self.node
                    self._partition_event(partition, PartitionEvent.CLAIMED)
            case Release(), None:
                for partition in request.claims:
                    self._owners.pop(partition, None)
                    self._partition_event(partition, PartitionEvent.RELEASED)
            case Drain(), None:
                self._drain_is_recorded = True
            case Tell(), None:
                self._told = request.report
            case Leave(), None:
                self._event(NodeEvent.GONE)
            case _:
                raise TypeError(f"{answer!r} does not answer {request!r}")

    def unanswered(self, now: float) -> None:
        """Process that the running request has no answer, or that the session ended: its lock is lost."""
        self._is_busy = self._is_locked = False
        self._trusted = min(self._trusted, now + GRACE)
        self._judges_from = None
        self._absent.clear()
        self._dead.clear()
        self._claim = None
        self._not_before = now + self._pause * (0.5 + self._random())
        self._look_at = self._renew_at = self._not_before
        self._pause = min(2 * self._pause, self._policy.poll)

    def refused(self, why: ClusterRefused) -> None:
        """Process that the database or the cluster refuses this node."""
        self._is_busy = False
        self.refusal = why

    def notified(self, now: float) -> None:
        """Process that the rows have changed: look at once, or again if a look runs."""
        self._look_at = min(self._look_at, now)
        self._is_notified = True

    # --- what the node's processes say ------------------------------------------------------------------------------

    def stopped(self, partitions: Iterable[int]) -> None:
        """Process that the workers of these partitions have ended, or never started."""
        for partition in partitions:
            self._partition_event(partition, PartitionEvent.STOPPED)

    def failed(self, partitions: Mapping[int, str], now: float) -> None:
        """Process that the workers of these partitions could not be started: partition -> why. Leave them to others for
        a while."""
        if now >= self._rests_until:
            rest = min(LONGEST_REST, FIRST_REST * 2.0 ** min(self._failures, 10))
            self._rests_until = now + rest * self._policy.lease
            self._failures += 1
        self._failed.update(partitions)
        self._blamed.update(partitions)
        self.stopped(partitions)

    def serves(
        self, partitions: Iterable[int], unreachable: Mapping[str, str], tables: Mapping[str, str] | None = None
    ) -> None:
        """Process which workers accept requests now, which nodes cannot be reached (node -> why), and the digests of
        the tables of the configuration."""
        before, self._serving = self._serving, tuple(sorted(partitions))
        if set(self._serving) - set(before):
            self._failures = 0
            if not self._failed:
                self._blamed.clear()
        self._unreachable = dict(unreachable)
        self._tables = dict(tables or {})

    def drain(self) -> None:
        """Give all partitions away, and take no others."""
        self._event(NodeEvent.DRAIN)

    def end(self, now: float) -> None:
        """Give all partitions away, then leave the cluster; within the length of a lease, whatever happens."""
        if self._leave_by is None:
            self._leave_by = now + self._policy.lease
        self._event(NodeEvent.END)

    # --- joining ----------------------------------------------------------------------------------------------------

    def _entered(self, answer: Entered, now: float) -> None:
        self._is_locked = answer.is_locked
        if answer.is_locked:
            self._taken_since = None
            # An earlier process of this name may have lost its session a moment ago, and act for its grace.
            self._join_at = now + (LOOK_TWICE if answer.has_row else 0.0)
            return
        if self._taken_since is None:
            self._taken_since = now
        # The server ends the session of a dead process earlier (LeasePolicy.silence): this one lives.
        if now - self._taken_since > self._policy.lease:
            self.refused(
                ClusterRefused(
                    f"Another process is in the cluster as node {self.node!r}.",
                    remedy="Give each node another name, or end the other process.",
                )
            )
        self._look_at = now + self._jittered(self._policy.poll)

    def _joined(self, incarnation: int, sent: float, now: float) -> None:
        self._incarnation = incarnation
        self._trusted = sent + self._policy.trust
        self._look_at = now
        self._renew_at = now + self._policy.renewal
        self._drain_is_recorded = self.state is NodeState.JOINING_TO_DRAIN
        self._told = Report()
        if self._event(NodeEvent.JOINED) is NodeAction.SETTLE:
            self._settle_until = now + SETTLE

    # --- looking ----------------------------------------------------------------------------------------------------

    def _looked(self, request: Look, picture: Picture, sent: float, now: float) -> None:
        self.clock.compare(*picture.clocks)
        self._nodes = {node.name: node.url for node in picture.nodes}
        self._owners = {
            row.partition: owner.name for row in picture.ownership if (owner := picture.live_owner(row)) is not None
        }
        self._cut_off_by = picture.cut_off_by(self.node) if picture.is_member else ()
        others = {node.name: different_tables(self._tables, node.tables) for node in picture.nodes}
        self._differing = {name: tables for name, tables in others.items() if tables and name != self.node}
        self._look_at = now if self._is_notified else now + self._jittered(self._policy.poll)
        if not picture.is_member:
            self._event(NodeEvent.DECLARED_DEAD)
            self._look_at = now
            return
        if request.renews:
            self._trusted = sent + self._policy.trust
            self._renew_at = now + self._policy.renewal
        self._compare(picture)
        if any(node.name == self.node and node.is_draining for node in picture.nodes):
            self._drain_is_recorded = True
            self._event(NodeEvent.DRAIN)
        elif self.state is NodeState.DRAINING and self._drain_is_recorded:
            self._drain_is_recorded = False
            self._event(NodeEvent.RESUME)
        self._find_dead(picture, sent, now)
        if self.state is NodeState.MEMBER:
            self._move(picture)
            self._balance(picture, now)

    def _compare(self, picture: Picture) -> None:
        """Compare the claims of this node with those in the database."""
        for row in picture.ownership:
            is_mine = row.owner == self.node and row.incarnation == self._incarnation
            if self._partitions[row.partition] is PartitionState.ELSEWHERE and is_mine:
                self._epochs[row.partition] = row.epoch
            is_same = is_mine and self._epochs.get(row.partition) == row.epoch
            self._partition_event(row.partition, PartitionEvent.FOUND if is_same else PartitionEvent.TAKEN)

    def _find_dead(self, picture: Picture, sent: float, now: float) -> None:
        """Plan to declare nodes dead: the lease has ended, or the lock was absent at two looks."""
        others = [node for node in picture.nodes if node.name != self.node]
        lockless = {(node.incarnation, node.lease_end) for node in others if not node.has_lock}
        self._absent = {key: self._absent.get(key, now) for key in lockless}
        if self._judges_from is None:
            self._judges_from = now + max(LEAST_CONTACT, self._policy.lease / 3)
        if not picture.may_declare or now < self._judges_from:
            self._absent.clear()
            self._dead = []
            return
        self._dead = [
            Declare(node.name, node.incarnation, None if node.is_expired else node.lease_end)
            for node in others
            if node.is_expired or sent - self._absent.get((node.incarnation, node.lease_end), sent) >= LOOK_TWICE
        ]
        if self._absent and not self._dead:
            self._look_at = min(self._look_at, now + LOOK_TWICE)

    def _move(self, picture: Picture) -> None:
        """Give away what an operator has moved to another node: a quarter at a time."""
        if self._in(PartitionState.GIVING, PartitionState.GIVEN):
            return
        moved = [
            row.partition
            for row in picture.ownership
            if self._partitions[row.partition] is PartitionState.SERVED
            and self._node_for(picture, row) not in (None, self.node)
        ]
        for partition in moved[: surplus(len(moved), 0)]:
            self._partition_event(partition, PartitionEvent.GIVE)

    def _node_for(self, picture: Picture, row: OwnershipRow) -> str | None:
        """Return the node that an operator has moved a partition to."""
        wanted = picture.wanted_owner(row)
        return wanted.name if wanted is not None else None

    def _waits(self, picture: Picture, row: OwnershipRow, now: float) -> bool:
        """Whether a free partition waits for another node, for a moment."""
        if self._node_for(picture, row) in (None, self.node):
            return False
        until = self._reserved.setdefault((row.partition, row.epoch), now + RESERVED)
        if now < until:
            self._look_at = min(self._look_at, until)
        return now < until

    def _balance(self, picture: Picture, now: float) -> None:
        """Plan to claim free partitions, or give some away, so that all nodes own equally many.

        A partition that an operator has moved here stays, and others are given away instead.
        """
        takers = {node.name: 0 for node in picture.nodes if node.may_own} | {self.node: 0}
        free = []
        for row in picture.ownership:
            owner = picture.live_owner(row)
            if owner is None:
                free.append(row)
            elif owner.name in takers:
                takers[owner.name] += 1
        if now >= self._rests_until:
            self._failed.clear()
        failed = {node.name: set(node.failed) for node in picture.nodes} | {self.node: self._failed.keys()}
        failing = {name for name, partitions in failed.items() if partitions}
        pinned = Counter(name for row in picture.ownership if (name := self._node_for(picture, row)) is not None)
        share = shares_of(takers, len(self._partitions), failing, picture.cut_off, pinned)[self.node]
        served = self._in(PartitionState.SERVED)
        is_settling = now < self._settle_until and not any(name != self.node for name in self._owners.values())
        moved_here = {row.partition for row in picture.ownership if self._node_for(picture, row) == self.node}
        reserved = {(row.partition, row.epoch) for row in free}
        self._reserved = {place: until for place, until in self._reserved.items() if place in reserved}
        wanted = [
            row
            for row in sorted(
                free, key=lambda row: (row.partition not in moved_here, row.owner != self.node, row.partition)
            )
            if self._partitions[row.partition] is PartitionState.ELSEWHERE
            and row.partition not in self._failed
            and (row.owner == self.node or not is_settling)
            and not self._waits(picture, row, now)
        ]
        self._claim = None
        room = share - len(served)
        # After a failure, one partition shows whether this node can serve again.
        most = max(min(room, 1) if self._failures else room, sum(row.partition in moved_here for row in wanted))
        if wanted and most > 0:
            wishes = tuple(row.wanted for row in wanted)
            self._claim = Claim(self._incarnation, tuple(row.partition for row in wanted), most, wishes)
        elif free and is_settling:
            self._look_at = min(self._look_at, self._settle_until)
        # Not while a free partition waits for an owner, unless a node could not serve it.
        elif not {row.partition for row in free}.difference(*failed.values()) and now >= self._quiet_until:
            if self._in(PartitionState.GIVING, PartitionState.GIVEN):
                return
            movable = [partition for partition in served if partition not in moved_here]
            for partition in movable[max(0, len(movable) - surplus(len(served), share)) :]:
                self._partition_event(partition, PartitionEvent.GIVE)

    # --- the tables -------------------------------------------------------------------------------------------------

    def _event(self, event: NodeEvent) -> NodeAction:
        action, self.state = step(NODE_TABLE, self.state, event, f"Node {self.node!r}")
        if action is NodeAction.GIVE_ALL:
            self._claim = None
            for partition in self._in(PartitionState.SERVED):
                self._partition_event(partition, PartitionEvent.GIVE)
        elif action in (NodeAction.LOSE_ALL, NodeAction.STOP):
            self._is_locked = False
            self._trusted = 0.0
            self._absent.clear()
            self._dead = []
            self._claim = None
            for partition in range(len(self._partitions)):
                self._partition_event(partition, PartitionEvent.TAKEN)
        return action or NodeAction.NOTHING

    def _partition_event(self, partition: int, event: PartitionEvent) -> None:
        state = self._partitions[partition]
        following = PARTITION_TABLE.get((state, event))
        if following is None:
            absent(f"Partition {partition}", state, event)
            return
        self._partitions[partition] = following
        if following is PartitionState.ELSEWHERE:
            self._epochs.pop(partition, None)

    def _in(self, *states: PartitionState) -> list[int]:
        return [partition for partition, state in enumerate(self._partitions) if state in states]

    def _jittered(self, seconds: float) -> float:
        return seconds * (0.8 + 0.4 * self._random())
