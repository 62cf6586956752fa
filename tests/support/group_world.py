"""A coordinator of a consumer group and the nodes in it, in virtual time: see ``tests/cluster/group``."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.cluster.group.members import GroupMember, GroupPicture, LogNote, Pin, ReportedClaim
from holdfast.cluster.group.membership import GroupMembership
from holdfast.cluster.group.states import GroupState
from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.rows import Report

POLICY = LeasePolicy(6.0)


class EarlierPolicy(LeasePolicy):
    """That of a version that held and kept partitions equally long, and did not report for how long."""

    __slots__ = ()

    @property
    def hold(self) -> float:
        return self.keep


PARTITIONS = 5
STEP = 0.1


@dataclass
class Log:
    """The claims in the log of a partition, of which only the last one matters.

    Args:
        owner: The worker that claimed it; None: its owner has resigned, or no worker has claimed it.
    """

    epoch: int = 0
    owner: Worker | None = None


@dataclass(eq=False)
class Worker:
    """A worker of a partition.

    Args:
        claim: The epoch that it claims: the claim is on its way.
        own: Its last claim that was valid; 0: none. Then it does not act.
    """

    claim: int = 0
    own: int = 0
    busy_until: float = 0.0
    """Until when its handler runs."""


@dataclass(eq=False)
class Process:
    """A node: its agent, and the workers that it has."""

    membership: GroupMembership
    member: str
    node: str
    since: float
    owned: set[int] = field(default_factory=set)
    """What its consumer has."""
    workers: dict[int, Worker] = field(default_factory=dict)
    notes: dict[int, LogNote] = field(default_factory=dict)
    """What its workers noted in the shared memory."""
    revoking: set[int] = field(default_factory=set)
    heard: float = 0.0
    paused_until: float = 0.0
    cut_until: float = 0.0
    mute_until: float = 0.0
    """Until when it can ask, but the coordinator hears no heartbeat."""
    is_dead: bool = False
    is_leaving: bool = False
    policy: LeasePolicy = POLICY
    is_older: bool = False
    """Whether it is of a version that knows no resignations: it claims a log when it is trusted."""
    told: Report = field(default_factory=Report)
    """What it reports, which others read late."""
    pins: dict[int, str] = field(default_factory=dict)
    """Partition -> the group's name of the member that the node keeps for it."""
    asked: tuple[float, GroupPicture] | None = None
    """When it asked for the group, and how that was then."""
    slow_until: float = 0.0
    """Until when answers take long."""


class ForgetsHandlers(GroupMembership):
    """The next node does not wait for the end of a worker that may act no longer, which hides other mistakes."""

    def _awaits_worker(self, partition: int, waited: float) -> bool:
        return False


class EarlierMembership(GroupMembership):
    """A node of a version that waits for as long as it acts itself, whoever had the partition."""

    @property
    def report(self) -> Report:
        return replace(super().report, lease=0.0, hold=0.0, claims={})

    def noted(self, **known: Any) -> None:
        super().noted(**{**known, "claims": {}, "longest_lease": 0.0})


class OlderMembership(EarlierMembership):
    """A node of a version that does not know what its logs say, and ends a worker before the group may have it."""

    def follows_until(self, partition: int) -> float:
        return 0.0

    def log_noted(self, partition: int, note: LogNote, now: float) -> None:
        pass

    def _awaits_worker(self, partition: int, waited: float) -> bool:
        return False

    def pass_time(self, now: float) -> None:
        for partition, state in self._states.items():
            if state is GroupState.WAITING:
                self._notes.setdefault(partition, LogNote(0, True))
        super().pass_time(now)

    def _keeps(self, partition: int, now: float) -> bool:
        return bool(self._member_of.get(partition)) and super()._keeps(partition, now)


class Group:
    """A coordinator and nodes, in virtual time. Every step, each living node exchanges a heartbeat and looks.

    An operator moves partitions and releases them. Nodes learn that late, and those that are cut off later still.

    Args:
        seed: Decides what happens.
        membership: How nodes decide.
        older: How nodes of an earlier version decide; None: there are none.
        policies: Those of the nodes.
    """

    def __init__(
        self,
        seed: int,
        membership: type[GroupMembership] = GroupMembership,
        older: type[GroupMembership] | None = None,
        policies: Sequence[LeasePolicy] = (POLICY,),
    ) -> None:
        self.random = random.Random(seed)
        self.policies = policies
        self.claims: dict[int, ReportedClaim] = {}
        """The last claims that nodes have reported."""
        self.now = 100.0
        self.kind, self.older = membership, older
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.resignations: list[tuple[int, int]] = []
        """Partition and epoch of those that are on their way."""
        self.on_the_word = 0
        """How often a worker claimed a log whose owner had resigned."""
        self.joined = 0
        self.members: dict[str, Process] = {}
        self.owners: dict[int, str] = {}
        self.pins: dict[str, tuple[Process, int]] = {}
        self.wishes: dict[int, Process] = {}
        self.processes = [self.start(name) for name in ("a", "b", "c")]

    def start(self, node: str) -> Process:
        is_older = self.older is not None and self.random.random() < 0.3
        kind = self.older if self.older is not None and is_older else self.kind
        policy = self.policies[0] if len(self.policies) == 1 else self.random.choice(self.policies)
        if issubclass(kind, EarlierMembership):
            policy = EarlierPolicy(policy.lease)
        process = Process(kind(node, f"http://{node}", PARTITIONS, policy, self.now), "", node, self.now)
        process.is_older, process.policy = issubclass(kind, OlderMembership), policy
        process.told = process.membership.report  # Kafka has it before the node joins the group
        self.join(process)
        return process

    def join(self, process: Process) -> None:
        self.joined += 1
        process.member, process.heard = f"{process.node}-{self.joined}", self.now
        self.members[process.member] = process

    def run(self, seconds: float, *, faults: bool) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            if faults and self.random.random() < 0.02:
                self.fault()
            if faults and self.random.random() < 0.04:
                self.wish()
            for process in self.processes:
                if not process.is_dead and process.paused_until <= self.now:
                    self.turn(process)
            self.append()
            self.coordinate()
            self.judge()

    def move_busy_workers(self, seconds: float) -> None:
        """Move partitions without faults, while handlers run that take longer than a hold. A worker ends only after its
        handler, and no other one may handle the same messages before."""
        until, handlers = self.now + seconds, random.Random(self.joined)
        while self.now < until:
            if self.random.random() < 0.04:
                self.wish()
            self.run(STEP, faults=False)
            for partition in range(PARTITIONS):
                for process in self.acting(partition):
                    worker = process.workers[partition]
                    if worker.busy_until <= self.now and handlers.random() < 0.2:
                        worker.busy_until = self.now + handlers.choice([0.2, POLICY.keep, 2 * POLICY.keep])
                found = [one.workers[partition] for one in self.processes if partition in one.workers]
                busy = [one for one in found if one.busy_until > self.now]
                assert len(busy) <= 1, f"{self.now:.1f}: {len(busy)} handle messages of {partition}"

    def fault(self) -> None:
        process = self.random.choice(self.processes)
        match self.random.choice(["pause", "cut", "kill", "mute", "slow", "restart", "crash", "leave"]):
            case "restart":  # a coordinator that takes over may not know who joined last
                self.pins = {name: one for name, one in self.pins.items() if self.random.random() < 0.5}
            case "crash":  # the supervisor starts the worker again
                for partition in process.workers:
                    process.workers[partition] = Worker()
            case "leave" if not process.is_older:
                process.is_leaving = True
                process.membership.end()
                process.membership.give_all(self.now)
                process.owned = set()
                for partition in [p for p, member in self.owners.items() if member == process.member]:
                    del self.owners[partition]
                self.members.pop(process.member, None)
            case "slow":
                process.slow_until = self.now + 10
            case "pause":
                process.paused_until = self.now + self.random.choice([0.5, 3, 10])
            case "cut":
                process.cut_until = self.now + self.random.choice([0.5, 3, 10])
            case "mute":
                process.mute_until = self.now + 10
            case "kill" | "leave":
                process.is_dead = True
                self.processes[self.processes.index(process)] = self.start(process.node)

    def wish(self) -> None:
        partition = self.random.choice([0, self.random.randrange(PARTITIONS)])
        if self.wishes.pop(partition, None) is None or self.random.random() < 0.5:
            self.wishes[partition] = self.random.choice(self.processes)

    def keep_pins(self, process: Process) -> None:
        wanted = process.membership.pins
        for partition in process.pins.keys() - wanted:
            self.pins.pop(process.pins.pop(partition), None)
        for partition in wanted:
            if process.pins.get(partition) not in self.pins:
                self.joined += 1
                process.pins[partition] = name = f"{process.node}-pin-{self.joined}"
                self.pins[name] = (process, partition)

    def turn(self, process: Process) -> None:
        membership = process.membership
        if max(process.cut_until, process.mute_until) <= self.now:
            if process.member not in self.members and not process.is_leaving:
                lost, process.owned, process.revoking = process.owned, set(), set()
                membership.lost(lost, self.now, is_removed=True)
                self.join(process)
            process.heard = self.now
            given = {p for p, member in self.owners.items() if member == process.member}
            if new := given - process.owned:
                process.owned |= new
                membership.assigned(new, process.member, self.now)
            self.keep_pins(process)
            if self.random.random() < 0.3:
                self.note(process, frozenset(p for p, one in self.wishes.items() if one is process))
        self.work(process)

    def note(self, process: Process, moved: frozenset[int]) -> None:
        process.membership.noted(
            is_drained=False,
            is_cut_off=False,
            now=self.now,
            moved=moved,
            resigning=frozenset((one.node, one.since) for one in self.processes if not one.is_older),
            prepared=frozenset((one.node, p) for one in self.processes for p in one.told.prepared),
            serving=frozenset((one.node, p) for one in self.processes for p in one.told.serving),
            ending=frozenset((one.node, p) for one in self.processes for p in one.told.ending),
            claims=dict(self.claims),
            longest_lease=max(one.told.lease for one in self.processes),
        )
        process.told = told = process.membership.report
        for p, epoch in told.claims.items():
            if p not in self.claims or epoch > self.claims[p].epoch:
                self.claims[p] = ReportedClaim(epoch, process.node, process.since, told.lease, told.hold)

    def work(self, process: Process) -> None:
        """Look, and start and end workers."""
        membership = process.membership
        self.look(process)
        membership.pass_time(self.now)
        mine = membership.own_workers
        served = membership.view.mine.keys() & process.workers.keys()
        membership.serves([p for p in served if process.workers[p].own], {})
        for partition in process.workers.keys() - mine:  # a worker needs some time to end
            if self.random.random() < 0.3 and process.workers[partition].busy_until <= self.now:
                del process.workers[partition]
        for partition, note in process.notes.items():
            membership.log_claimed(partition, note.own)
        for partition in membership.stopped(self.ended(process)):
            self.resign(process, partition)
        for partition in mine - process.workers.keys():
            process.notes[partition] = replace(process.notes.get(partition, LogNote(0, True)), epoch=0, is_free=True)
            process.workers[partition] = Worker()
        for partition, worker in list(process.workers.items()):
            self.follow(process, partition, worker)
            if partition in mine and process.notes[partition].epoch:
                membership.log_noted(partition, process.notes[partition], self.now)
        if process.revoking and (not process.revoking & process.workers.keys() or not process.is_older):
            process.owned -= process.revoking
            for partition in process.revoking:
                self.owners.pop(partition, None)
            process.revoking = set()
        if process.is_leaving and not process.workers:
            process.is_dead = True
            self.processes[self.processes.index(process)] = self.start(process.node)

    def ended(self, process: Process) -> set[int]:
        """Return the partitions whose workers had to end, and have ended."""
        return process.membership.ending - process.workers.keys()

    def resign(self, process: Process, partition: int) -> None:
        own = process.notes[partition].own if partition in process.notes else 0
        if own and not process.is_older and self.random.random() < 0.9:
            self.resignations.append((partition, own))

    def follow(self, process: Process, partition: int, worker: Worker) -> None:
        """Let a worker that does not have the log read it to its end, and claim it if it may."""
        log, membership = self.logs[partition], process.membership
        if worker.own and log.owner is not worker and self.random.random() < 0.2:
            process.workers[partition] = Worker()  # its next write was void, and the supervisor starts it again
        if worker.own or worker.claim or self.random.random() < 0.6:
            return
        epoch, is_free = self.last_claim(partition)
        own = process.notes.get(partition, LogNote(0, True)).own
        process.notes[partition] = LogNote(epoch, is_free, own)  # 0 is for nothing noted
        known = epoch <= max(own, membership.vouched(partition)) or process.is_older
        is_trusted = self.now < membership.trusted_until(partition)
        if (is_trusted and (known or is_free)) or (
            (is_free or known) and self.now < membership.follows_until(partition)
        ):
            worker.claim = log.epoch + 1

    def append(self) -> None:
        """Let claims and resignations arrive in the logs, in any order and some steps later."""
        for process in self.processes:
            for partition, worker in process.workers.items():
                if worker.claim and not process.is_dead and self.random.random() < 0.5:
                    self.claim(process, partition, worker)
        for one in list(self.resignations):
            if self.random.random() < 0.5:
                self.resignations.remove(one)
                partition, epoch = one
                self.resigned(partition, epoch)

    def last_claim(self, partition: int) -> tuple[int, bool]:
        """Return the last claim of a log as a worker reads it, from 1, and whether no process owns the log by that."""
        return self.logs[partition].epoch + 1, self.logs[partition].owner is None

    def resigned(self, partition: int, epoch: int) -> None:
        if self.logs[partition].epoch + 1 == epoch:
            self.logs[partition] = Log(epoch)

    def claim(self, process: Process, partition: int, worker: Worker) -> None:
        log = self.logs[partition]
        if log.epoch + 1 == worker.claim:
            self.on_the_word += self.now >= process.membership.trusted_until(partition)
            log.epoch, log.owner = worker.claim, worker
            worker.own = log.epoch + 1
            process.notes[partition] = replace(process.notes[partition], own=worker.own)
        worker.claim = 0

    def look(self, process: Process) -> None:
        """Ask for the group. The coordinator describes it when it hears that, or when it answers."""
        if process.cut_until > self.now:
            return
        if process.asked is None:
            process.asked = (self.now, self.picture())
        if self.random.random() < (0.08 if process.slow_until > self.now else 0.5):
            sent, picture = process.asked
            picture = self.random.choice([picture, self.picture()])
            process.asked = None
            process.membership.looked(picture, sent, self.now)

    def picture(self) -> GroupPicture:
        members = [
            GroupMember(
                one.member,
                one.node,
                f"http://{one.node}",
                one.since,
                "",
                frozenset(p for p, member in self.owners.items() if member == one.member),
            )
            for one in self.members.values()
        ]
        pins = (Pin(name, one.node, one.since, partition) for name, (one, partition) in self.pins.items())
        return GroupPicture(tuple(members), self.random.random() < 0.8, tuple(pins))

    def coordinate(self) -> None:
        """Forget silent members; move a partition from the fullest to the emptiest node; assign those without owner."""
        self.members = {
            member: one
            for member, one in self.members.items()
            if one.heard + one.policy.lease > self.now and one.member == member
        }
        self.pins = {name: one for name, one in self.pins.items() if one[0].heard + one[0].policy.lease > self.now}
        self.owners = {p: member for p, member in self.owners.items() if member in self.members}
        if not self.members:
            return
        counts = {member: list(self.owners.values()).count(member) for member in self.members}
        fewest = min(counts, key=lambda member: counts[member])
        for partition in set(range(PARTITIONS)) - self.owners.keys():
            self.owners[partition] = fewest
            return
        most = max(counts, key=lambda member: counts[member])
        giver = self.members[most]
        is_able = max(giver.paused_until, giver.cut_until, giver.mute_until) <= self.now and not giver.is_dead
        if counts[most] > counts[fewest] + 1 and is_able and not giver.revoking and giver.owned:
            giver.revoking = {self.random.choice(sorted(giver.owned))}
            giver.membership.lost(giver.revoking, self.now)

    def acting(self, partition: int) -> list[Process]:
        return [
            one
            for one in self.processes
            if partition in one.workers
            and one.workers[partition].own
            and not one.is_dead
            and one.paused_until <= self.now
            and self.now < one.membership.trusted_until(partition)
        ]

    def judge(self) -> None:
        for partition in range(PARTITIONS):
            acting = [one.node for one in self.acting(partition)]
            assert len(acting) <= 1, f"{self.now:.1f}: {acting} act on {partition}"

    def calm(self) -> None:
        """Without faults, every partition is served at last, and stays where it is."""
        for _ in range(10):
            self.run(max(one.lease for one in self.policies), faults=False)
            if all(self.is_placed(partition) for partition in range(PARTITIONS)):
                return
        raise AssertionError("not every partition is served where it belongs")

    def is_placed(self, partition: int) -> bool:
        """Whether a partition is served; by the node that it was moved to, if that has not ended."""
        wanted, acting = self.wishes.get(partition), self.acting(partition)
        return bool(acting) and (wanted is None or wanted.is_dead or acting == [wanted])
