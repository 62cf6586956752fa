"""A coordinator of a consumer group and the nodes in it, in virtual time: see ``tests/cluster/group``."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.cluster.group.membership import GroupMember, GroupMembership, GroupPicture, Pin
from holdfast.cluster.lease_policy import LeasePolicy

POLICY = LeasePolicy(6.0)
PARTITIONS = 5
STEP = 0.1


@dataclass(eq=False)
class Process:
    """A node: its agent, and the workers that it has."""

    membership: GroupMembership
    member: str
    node: str
    since: float
    owned: set[int] = field(default_factory=set)
    """What its consumer has."""
    workers: set[int] = field(default_factory=set)
    revoking: set[int] = field(default_factory=set)
    heard: float = 0.0
    paused_until: float = 0.0
    cut_until: float = 0.0
    mute_until: float = 0.0
    """Until when it can ask, but the coordinator hears no heartbeat."""
    is_dead: bool = False
    pins: dict[int, str] = field(default_factory=dict)
    """Partition -> the group's name of the member that the node keeps for it."""
    asked: tuple[float, GroupPicture] | None = None
    """When it asked for the group, and how that was then."""
    slow_until: float = 0.0
    """Until when answers take long."""


class Group:
    """A coordinator and nodes, in virtual time. Every step, each living node exchanges a heartbeat and looks.

    An operator moves partitions and releases them. Nodes learn that late, and those that are cut off later still.
    """

    def __init__(self, seed: int, membership: type[GroupMembership] = GroupMembership) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.kind = membership
        self.joined = 0
        self.members: dict[str, Process] = {}
        self.owners: dict[int, str] = {}
        self.pins: dict[str, tuple[Process, int]] = {}
        self.wishes: dict[int, Process] = {}
        self.processes = [self.start(name) for name in ("a", "b", "c")]

    def start(self, node: str) -> Process:
        membership = self.kind(node, f"http://{node}", PARTITIONS, POLICY, self.now)
        process = Process(membership, "", node, self.now)
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
            self.coordinate()
            self.judge()

    def fault(self) -> None:
        process = self.random.choice(self.processes)
        match self.random.choice(["pause", "cut", "kill", "mute", "slow", "restart"]):
            case "restart":  # a coordinator that takes over may not know who joined last
                self.pins = {name: one for name, one in self.pins.items() if self.random.random() < 0.5}
            case "slow":
                process.slow_until = self.now + 10
            case "pause":
                process.paused_until = self.now + self.random.choice([0.5, 3, 10])
            case "cut":
                process.cut_until = self.now + self.random.choice([0.5, 3, 10])
            case "mute":
                process.mute_until = self.now + 10
            case "kill":
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
            if process.member not in self.members:
                lost, process.owned, process.revoking = process.owned, set(), set()
                membership.lost(lost)
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
        process.membership.noted(is_drained=False, is_cut_off=False, now=self.now, moved=moved)

    def work(self, process: Process) -> None:
        """Look, and start and end workers."""
        membership = process.membership
        self.look(process)
        membership.pass_time(self.now)
        mine = membership.view.mine.keys() | membership.view.preparing.keys()
        for partition in process.workers - mine:  # a worker needs some time to end
            if self.random.random() < 0.3:
                process.workers.remove(partition)
        membership.stopped(membership.ending - process.workers)
        process.workers |= mine
        if process.revoking and not process.revoking & membership.ending:
            process.owned -= process.revoking
            for partition in process.revoking:
                del self.owners[partition]
            process.revoking = set()

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
            if one.heard + POLICY.lease > self.now and one.member == member
        }
        self.pins = {name: one for name, one in self.pins.items() if one[0].heard + POLICY.lease > self.now}
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
            giver.membership.revoked(giver.revoking)

    def acting(self, partition: int) -> list[Process]:
        return [
            one
            for one in self.processes
            if partition in one.workers
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
            self.run(POLICY.lease, faults=False)
            if all(self.is_placed(partition) for partition in range(PARTITIONS)):
                return
        raise AssertionError("not every partition is served where it belongs")

    def is_placed(self, partition: int) -> bool:
        """Whether a partition is served; by the node that it was moved to, if that has not ended."""
        wanted, acting = self.wishes.get(partition), self.acting(partition)
        return bool(acting) and (wanted is None or wanted.is_dead or acting == [wanted])
