"""GroupMembership: the partitions that a Kafka consumer group assigns to this node, and until when it may act on them.

The group decides who owns a partition. It tells that only when asked, and a paused node asks nothing. So a node acts on
a partition for a time, the *hold*, after it last asked and was a member. A worker starts as soon as its node gets the
partition, reads the log and follows it. It claims the log in one of two cases:

- The last owner has *resigned* in the log, after its worker had ended: no node acts on the partition. Of several nodes
  that claim the log then, one has it, because a claim counts only directly after the claim that its author has read.
- The author of the last claim acts no longer: this node has waited for the author's hold since it found the author gone
  from the group, or for the longer time to *keep* a partition (:mod:`holdfast.cluster.group.sights`). And no node of
  the group reports that its worker still runs, because a handler may take longer than that.

An operator's move adds a member to the group, a *pin*, which the node keeps only for one partition. The partition is
then that node's, whatever the group assigns. All nodes see pins in the same description of the group as its members, so
a partition changes between a pin and the group at one moment, which each node learns by looking. Without a resignation,
a node acts on its pin only if its looks, less than a lease apart, have shown it for more than a lease.

A node that loses a partition keeps it as long as no other node can act without its resignation. It ends its worker when
the next node reports that its own one is prepared, or when that time is nearly over.

Only handlers and forwards need this. Stored messages are protected by the claims in the log
(:mod:`holdfast.store.kafka.owner`). No clock and no connection is in here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, Pin, ReportedClaim
from holdfast.cluster.group.refusals import refusal
from holdfast.cluster.group.sights import Presence, Sight, Waits
from holdfast.cluster.group.states import ASSIGNED, ENDING, GROUP_TABLE, GroupEvent, GroupState
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Report, different_tables
from holdfast.cluster.trust import ClockCheck
from holdfast.cluster.view import KAFKA, View
from holdfast.core.states.table import absent
from holdfast.exceptions import ConfigurationError

LONGEST_END: Final = 30.0
"""Seconds that a node waits at most for the end of another node's worker. A node that ends kills its own ones earlier.
"""


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
        self._sights: dict[int, Sight] = {}
        self._waits = Waits(policy)
        self._keep_until: dict[int, float] = {}
        """Partition that this node has lost, or that a pin has come for -> until when no other node acts on it unless
        this one resigns."""
        self._notes: dict[int, LogNote] = {}
        """Partition -> what its worker has noted since this node got it."""
        self._own: dict[int, int] = {}
        self._own_before: dict[int, int] = {}
        """Partition -> the last claim of a worker of this node; the same when this node got the partition."""
        self._vouched: dict[int, int] = {}
        """Partition -> no other process acts by this claim or an earlier one."""
        self._read_at: dict[int, float] = {}
        """Partition -> when this node got it, or its worker read a later claim: only later looks count."""
        self._rests: dict[int, float] = {}
        """Partition with a worker that could not be started -> until when no other one is started."""
        self._resigning: frozenset[tuple[str, float]] = frozenset()
        self._prepared: frozenset[tuple[str, int]] = frozenset()
        self._serving_nodes: frozenset[tuple[str, int]] = frozenset()
        """The nodes that report that they serve a partition, with that partition."""
        self._with_worker: frozenset[tuple[str, int]] = frozenset()
        """The nodes that report a worker which may act or have a handler that still runs, with its partition."""
        self._alike_since = math.inf
        """Since when all looks have shown only nodes that resign, and claim the log as this one does."""
        self._moved: frozenset[int] = frozenset()
        self._declined: set[int] = set()
        self._got: dict[int, float] = {}
        """Partition that waits -> when this node got it."""
        self._epochs = dict.fromkeys(range(partitions), 0)
        self._owners: dict[int, GroupMember] = {}
        self._members: dict[str, GroupMember] = {}
        self._seen: dict[str, float] = {}
        """Own member -> when it was last asked for and found."""
        self._presence = Presence(policy)
        self._first_seen: float | None = None
        self._described: float | None = None
        """When the last description of the group was asked for."""
        self._is_removed = self._is_stable = False
        self._is_leaving = self._is_drained = self._is_cut_off = self._makes_way = False
        self._short = ""
        self._cut_off_since: float | None = None
        self._cut_off_by: tuple[str, ...] = ()
        self._failed: dict[int, str] = {}
        """Partition of this node with a worker that could not be started -> why."""
        self._serving: tuple[int, ...] = ()
        self._unreachable: Mapping[str, str] = {}
        self._tables: Mapping[str, str] = {}
        self._differing: Mapping[str, tuple[str, ...]] = {}

    @property
    def view(self) -> View:
        """Return what the node knows of the cluster."""
        mine = {p: self._epochs[p] for p, state in self._states.items() if state is GroupState.SERVED}
        nodes = {one.node: one.url for one in sorted(self._members.values(), key=lambda one: one.since)}
        owners = {p: one.node for p, one in self._owners.items()}
        owners |= {p: "" if pin is None else pin.node for p, pin in self._pinned.items()}
        owners |= {p: self.node for p, state in self._states.items() if state in ASSIGNED and p not in self._pinned}
        # A partition that the group assigns again has no owner meanwhile, but a node that serves it.
        owners = {p: self._serving_now(p, owners.get(p, ""), nodes) for p in self._states}
        owners |= dict.fromkeys(mine, self.node)
        owners = {p: name for p, name in owners.items() if name in nodes or name == self.node}
        nodes[self.node], wants = self._url, self.wants_partitions
        failed, differing, preparing = dict(self._failed), self._differing, self._preparing
        return View(
            self.node, mine, owners, nodes, not wants, "", self._cut_off_by, failed, KAFKA, differing, preparing
        )

    @property
    def _preparing(self) -> dict[int, int]:
        """Return the partitions that this node is to serve when no other one acts."""
        waiting = (p for p, state in self._states.items() if state is GroupState.WAITING)
        return {p: self._epochs[p] for p in waiting if p not in self._rests}

    def _serving_now(self, partition: int, owner: str, nodes: Mapping[str, str]) -> str:
        """Return the node that reports that it serves a partition, as long as its next owner does not; "": none."""
        found = {node for node in nodes.keys() - {self.node} if (node, partition) in self._serving_nodes}
        return owner if owner in found or not found else min(found)

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
        return Report(
            serving,
            dict(self._failed),
            dict(self._unreachable),
            self._tables,
            self._short,
            self.clock.ahead,
            tuple(p for p in self._preparing if p in self._notes and self.follows_until(p)),
            tuple(sorted(self.ending)),
            self._policy.lease,
            self._policy.hold,
            {p: own for p, own in self._own.items() if own},
        )

    @property
    def ending(self) -> set[int]:
        """Return the partitions with a worker that must end."""
        return {p for p, state in self._states.items() if state in ENDING}

    @property
    def own_workers(self) -> set[int]:
        """Return the partitions that this node serves, or for which it starts workers."""
        return self._preparing.keys() | {p for p, state in self._states.items() if state is GroupState.SERVED}

    @property
    def has_workers(self) -> bool:
        """Whether a worker of this node may still act."""
        return not {GroupState.ELSEWHERE, GroupState.WAITING}.issuperset(self._states.values())

    @property
    def is_handing_over(self) -> bool:
        """Whether a partition changes its node now, and may have none until this node's next step."""
        return bool(self._keep_until or self.ending or self._preparing)

    @property
    def is_alone(self) -> bool:
        """Whether no other node is in the group, as far as is known."""
        return {one.node for one in self._members.values()} <= {self.node}

    def has_joined(self, member: str | None) -> bool:
        """Whether a member is in the group, and the assignment is complete."""
        return self._is_stable and member in self._members

    @property
    def pins(self) -> set[int]:
        """Return the partitions for which this node is to have a pin."""
        return set(self._wanted)

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
        """Return until when the worker of a partition may act, if it has claimed the log; 0.0: it may not."""
        state, until = self._states[partition], self._keep_until.get(partition)
        if state not in (GroupState.SERVED, GroupState.GIVING):
            return 0.0
        if until is None:
            is_owner = state is GroupState.SERVED and self._is_clear(partition)
            return self._seen_until(partition) if is_owner else 0.0
        member = self._member_of[partition]
        if not member:
            return min(self._presence.until, until)
        seen = self._seen.get(member)
        return 0.0 if seen is None else min(seen + self._policy.hold, until)

    def follows_until(self, partition: int) -> float:
        """Return until when the worker of a partition may claim the log if its last owner has resigned; else 0.0."""
        is_waiting = self._states[partition] is GroupState.WAITING
        return self._seen_until(partition) if is_waiting and self._are_alike else 0.0

    @property
    def _are_alike(self) -> bool:
        # A node that knows of no resignations may have been in the group until then, and act for as long.
        return (self._described or 0.0) > self._alike_since + self._waits.longest.keep

    def vouched(self, partition: int) -> int:
        """Return the last claim that the worker of a partition may replace while it is trusted."""
        return self._vouched.get(partition, 0)

    def _seen_until(self, partition: int) -> float:
        """Return a hold after this node last asked and was the owner."""
        sight, member = self._sights.get(partition), self._member_of[partition]
        if sight is None:
            return 0.0
        seen = self._seen.get(member) if sight.pin == "" else sight.sent if sight.pin == member else None
        return 0.0 if seen is None else min(seen, sight.sent) + self._policy.hold

    def _is_clear(self, partition: int) -> bool:
        """Whether no node acts any longer by an earlier claim, or on what it saw of the partition's pins before."""
        sight = self._sights.get(partition)
        return sight is not None and (sight.is_clear or sight.sent > self._over_after(partition, sight))

    def _over_after(self, partition: int, sight: Sight) -> float:
        note = self._notes.get(partition) if self._are_alike else None
        return self._waits.over_after(partition, None if note is None else note.epoch, sight)

    def is_look_due(self, now: float) -> bool:
        """Whether another look, sent now, may show that a partition is this node's: it has no owner until then."""
        if self._wanted - self._pinned.keys() or not all(self._seen_until(p) for p in self._preparing):
            return True
        sights = [(p, self._sights[p]) for p in self._preparing if not self._is_clear(p)]
        return any(sight.since == math.inf or now > self._over_after(p, sight) for p, sight in sights)

    def trouble(self, now: float) -> str:
        """Return why this node can neither act nor tell who else does; "": it can."""
        if self._described is not None and now > self._described + self._policy.hold:
            return "its group coordinator does not answer"
        return "the group has removed this node, which joins it again" if self._is_removed else ""

    # --- the group --------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Iterable[int], member: str, now: float) -> None:
        """The group assigned partitions to this node, which is that member."""
        for partition in partitions if not self._is_leaving else ():
            self._held[partition] = member
            self._settle(partition, now)

    def lost(self, partitions: Iterable[int], now: float, *, is_removed: bool = False) -> None:
        """The group wants partitions back, which this node may confirm at once; or it has removed this node."""
        self._is_removed = self._is_removed or is_removed
        for partition in partitions:
            self._held.pop(partition, None)
            self._settle(partition, now)

    def looked(self, picture: GroupPicture, sent: float, now: float) -> None:
        """The coordinator described the group.

        Args:
            picture: The group.
            sent: When it was asked for.
            now: The time.
        """
        self._members, self._is_stable = {one.id: one for one in picture.members}, picture.is_stable
        mine = (one.id for one in picture.members if (one.node, one.since) == (self.node, self._since))
        until = self._presence.until
        if not self._presence.looked(frozenset(mine), sent):
            lost = {p for p in self._keep_until if not self._member_of[p]}
            self._keep_until |= {p: min(until, self._keep_until[p]) for p in lost}
        found = {(one.node, one.since) for one in picture.members} | {(one.node, one.since) for one in picture.pins}
        is_gap = self._described is None or now >= self._described + self._policy.lease
        if not found <= self._resigning:
            self._alike_since = math.inf
        elif is_gap or self._alike_since == math.inf:
            self._alike_since = now
        self._described = sent
        self._waits.looked(found, now)
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
            if (sight := self._sights.get(partition)) is not None:
                self._sights[partition] = replace(sight, is_clear=self._is_clear(partition))
        # A node that was killed stays in the group for a lease, and may have started again meanwhile.
        is_old = self._first_seen is not None and now > self._first_seen + 2 * self._policy.lease
        self.refusal = refusal(picture.members, self.node, self._since, self._mark, is_old=is_old) or self.refusal
        self.pass_time(now)

    def _look_anew(self, partition: int, now: float) -> None:
        """Count only looks from now on."""
        self._read_at[partition] = now
        if (sight := self._sights.get(partition)) is not None:
            self._sights[partition] = sight.begun_again()

    def _see(self, partition: int, pin: str | None, sent: float, now: float) -> None:
        if sent <= self._read_at.get(partition, sent - 1.0):
            return
        before = self._sights.get(partition)
        # Looks that are further apart may have missed a pin that lasted for a lease: its node acts.
        if before is None or now >= before.sent + self._policy.lease:
            self._sights[partition] = Sight(pin, now, sent)
        elif before.pin == pin:
            self._sights[partition] = before.continued(sent, now)
        else:
            if before.pin == "" and self._is_clear(partition) and self._states[partition] is GroupState.SERVED:
                self._keep_until.setdefault(partition, before.sent + self._policy.lease)
            self._sights[partition] = Sight(pin, now, sent)
        until = self._keep_until.get(partition)
        is_over = until is not None and (now >= until or (pin == "" and self._is_clear(partition)))
        if is_over and self._member_of.get(partition):
            del self._keep_until[partition]

    def log_claimed(self, partition: int, own: int) -> None:
        """A worker of this node has claimed the log of a partition, at any time until now. Report all such claims of a
        worker before its end."""
        self._own[partition] = max(own, self._own.get(partition, 0))

    def log_noted(self, partition: int, note: LogNote, now: float) -> None:
        """The worker of a partition has read its log to the end, or claimed it.

        Args:
            partition: The partition, which this node serves or is to serve.
            note: What the worker has noted.
            now: The time.
        """
        state = self._states[partition]
        self.log_claimed(partition, note.own)
        if state not in (GroupState.WAITING, GroupState.SERVED) or partition in self._rests:
            return
        if state is GroupState.WAITING and note.own > self._own_before.get(partition, 0):
            if (sight := self._sights.get(partition)) is not None:
                self._sights[partition] = replace(sight, is_clear=True)
            self._on(partition, GroupEvent.CLEAR)
            return
        before, self._notes[partition] = self._notes.get(partition), note
        is_foreign = not note.is_free and note.epoch > max(note.own, self.vouched(partition))
        # Of a claim that was reported before, the author had the partition before this node got it.
        is_earlier = state is GroupState.WAITING and note.epoch <= self._waits.known_before(partition)
        is_new = before is None or before.epoch < note.epoch or state is GroupState.SERVED
        if is_foreign and is_new and not is_earlier:
            # Its process may act, and this node may have been no owner when it claimed the log.
            self._got[partition] = now
            self._look_anew(partition, now)
            self._on(partition, GroupEvent.REVOKED if self._is_lost(partition) else GroupEvent.CLAIMED)

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
        resigning: frozenset[tuple[str, float]] = frozenset(),
        prepared: frozenset[tuple[str, int]] = frozenset(),
        serving: frozenset[tuple[str, int]] = frozenset(),
        ending: frozenset[tuple[str, int]] = frozenset(),
        claims: Mapping[int, ReportedClaim] | None = None,
        longest_lease: float = 0.0,
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
            resigning: The nodes, and when each started, that resign when they have ended a worker.
            prepared, serving, ending: The nodes that report, and the partitions that they could serve at once, do
                serve, and have lost although the worker still runs.
            claims: Partition -> the last claim of its log that a node has reported.
            longest_lease: The longest lease that a node has reported, in seconds; 0.0: none has.
        """
        self._waits.noted(claims or {}, longest_lease)
        # A node that leaves takes its report back, and a look that still shows it may be on its way.
        known = {(one.node, one.since) for one in self._members.values()}
        self._resigning, self._prepared = (self._resigning & known) | resigning, prepared
        self._serving_nodes, self._with_worker = serving, serving | ending
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
        self._rests = {p: until for p, until in self._rests.items() if now <= until}
        for partition, got in list(self._got.items()):
            is_over = partition in self._notes and self._is_clear(partition)
            if is_over and not self._awaits_worker(partition, now - got):
                self._sights[partition] = replace(self._sights[partition], is_clear=True)
                self._vouched[partition] = self._notes[partition].epoch
                self._on(partition, GroupEvent.CLEAR)

    def _awaits_worker(self, partition: int, waited: float) -> bool:
        """Whether another node of the group reports that its worker has not ended. That one may act no longer, but what
        its handlers do counts when it is stored: this node would call them for the same messages again."""
        others = {one.node for one in self._members.values()} - {self.node}
        return waited < LONGEST_END and any((node, partition) in self._with_worker for node in others)

    def _settle(self, partition: int, now: float) -> None:
        """Follow the partition's pin, or else the group."""
        pin = self._pinned.get(partition)
        if partition not in self._pinned or self._keeps(partition, now):
            member = self._held.get(partition)
        else:
            is_own = pin is not None and (pin.node, pin.since) == (self.node, self._since)
            member = pin.id if pin is not None and is_own and partition in self._wanted else None
        state = self._states[partition]
        if state in ASSIGNED and self._member_of[partition] != member:
            if state is GroupState.SERVED:
                until = self.trusted_until(partition)
                if self._held.get(partition) == self._member_of[partition]:
                    self._keep_until.setdefault(partition, until)
                elif self._member_of[partition]:
                    self._keep_until[partition], self._member_of[partition] = self._kept_until(partition), ""
            if not self._keeps(partition, now):
                self._on(partition, GroupEvent.REVOKED)
        if member is not None and self._states[partition] in (GroupState.ELSEWHERE, GroupState.GIVING):
            self._member_of[partition] = member
            self._got[partition] = now
            self._waits.begin(partition)
            if partition not in self._pinned:
                self._look_anew(partition, now)
            self._epochs[partition] += 1
            self._on(partition, GroupEvent.ASSIGNED)

    def _kept_until(self, partition: int) -> float:
        """Return until when no other node acts on a partition that this one has just lost, if it stays in the group."""
        until = self.trusted_until(partition)
        if until >= self._presence.since + self._policy.hold and not self._is_removed:
            until += self._policy.keep - self._policy.hold
        return min(until, self._keep_until.get(partition, until))

    def _is_lost(self, partition: int) -> bool:
        """Whether this node still serves a partition that it is no longer the owner of."""
        return self._states[partition] is GroupState.SERVED and not self._member_of[partition]

    def _keeps(self, partition: int, now: float) -> bool:
        """Whether this node keeps a partition that it has lost, or that a pin has come for: with time left for its
        worker to end, and while the next node is not prepared."""
        until = self._keep_until.get(partition)
        if until is None or self._states[partition] is not GroupState.SERVED or now >= until - self._policy.keep / 8:
            return False
        others = {one.node for one in self._members.values()} - {self.node}
        return not self.is_alone and not any((node, partition) in self._prepared for node in others)

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def stopped(self, partitions: Iterable[int]) -> set[int]:
        """The workers of these partitions have ended, or none was there.

        Returns:
            Those of which no worker runs until the next view, so that this node may resign.
        """
        if self._is_leaving:  # the supervisor did not wait for that
            for partition in partitions:
                if self._states[partition] is GroupState.SERVED:
                    self._on(partition, GroupEvent.REVOKED)
        found = self.ending & set(partitions)
        for partition in partitions:
            self._on(partition, GroupEvent.STOPPED)
        return found

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
            if self._is_lost(partition):
                self._on(partition, GroupEvent.REVOKED)
            if self._states[partition] is not GroupState.SERVED and partition not in self._preparing:
                self._on(partition, GroupEvent.STOPPED)
                continue
            if self._has_pin(partition):
                self._declined.add(partition)
            self._failed[partition] = why
            self._got[partition] = now
            self._rests[partition] = now + self._policy.lease
            self._notes.pop(partition, None)
            self._epochs[partition] += 1
            self._on(partition, GroupEvent.FAILED)

    def end(self) -> None:
        """Get no further partitions."""
        self._is_leaving = True

    def give_all(self, now: float) -> None:
        """Give everything away: this node leaves the group, or becomes a member that gets no partitions."""
        self.lost(range(len(self._states)), now)

    def _on(self, partition: int, event: GroupEvent) -> None:
        state = self._states[partition]
        after = GROUP_TABLE.get((state, event))
        if after is None:
            absent(f"Partition {partition}", state, event)
            return
        self._states[partition] = after
        if after not in (GroupState.WAITING, GroupState.RETURNED):
            self._got.pop(partition, None)
        if after not in (GroupState.SERVED, GroupState.GIVING):
            self._keep_until.pop(partition, None)
        if after is not state and after is not GroupState.SERVED:
            self._vouched.pop(partition, None)
            self._notes.pop(partition, None)
            self._own_before[partition] = self._own.get(partition, 0)
        if after not in ASSIGNED:
            self._failed.pop(partition, None)
            self._rests.pop(partition, None)
