"""A cluster in virtual time: a fake database with the rows of the leases, processes of nodes with their workers, and
faults: crashes, pauses, lost connections, a restarted database, processes of one name, slow answers."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fake_leases import Database, Session

from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.membership import Membership
from holdfast.cluster.rows import Answer, Release, Request


@dataclass(eq=False)
class Process:
    """A node's process with its agent and its workers."""

    name: str
    membership: Membership
    offset: float
    """Its clock minus that of the world."""
    session: Session
    workers: dict[int, bool] = field(default_factory=dict)
    """Partition -> whether the worker is ending."""
    is_frozen: bool = False
    is_dead: bool = False
    is_cut: bool = False
    is_broken: bool = False
    """Whether its workers cannot be started."""
    unreachable: dict[str, str] = field(default_factory=dict)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    asked: int = 0

    def may_act(self, partition: int, now: float) -> bool:
        if self.is_frozen or self.is_dead or partition not in self.workers:
            return False
        return now + self.offset < self.membership.trusted_until(partition)


class Broken(AssertionError):
    """A promise of the cluster was broken."""


class World:
    """One run of a cluster.

    Args:
        seed: Decides all that happens.
        nodes, partitions: How many.
        lease: Seconds.
        is_troubled: Whether nodes also cannot start workers for a while, cannot reach each other, or are told to take
            partitions again.
        membership, database: What the nodes decide with, and what they share.
        moves: How often an operator moves a partition when there is a fault.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        partitions: int = 6,
        lease: float = 2.0,
        is_troubled: bool = False,
        membership: type[Membership] = Membership,
        database: type[Database] = Database,
        moves: float = 0.5,
    ) -> None:
        self.random, self.operator, self.wires = (random.Random(one) for one in (seed, -seed, f"wires {seed}"))
        self.moves = moves
        self.troubles = random.Random(seed) if is_troubled else None
        self.policy = LeasePolicy(lease)
        self.partitions = partitions
        self.names = [f"node-{number}" for number in range(nodes)]
        self.membership = membership
        self.database = database(partitions, lease)
        self.database.notify = self.notify
        self.processes: list[Process] = []
        self.events: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self.numbers = iter(range(1 << 60))
        self.epochs = [0] * partitions
        self.incarnations: Counter[str] = Counter()
        self.stalled_until = 0.0
        self.losses = 0.002
        """The share of requests whose answer is lost."""
        self.broken_partition: int | None = None
        """A partition whose worker no node can start."""
        self.faults: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self.database.now

    # --- the course of events ---------------------------------------------------------------------------------------

    def at(self, delay: float, what: Callable[[], None], process: Process | None = None) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.numbers), process, what))

    def run_until(self, time: float, is_done: Callable[[], bool] = lambda: False) -> None:
        while self.events and self.events[0][0] <= time and not is_done():
            when, _, process, what = heapq.heappop(self.events)
            self.database.now = when
            if process is not None and process.is_dead:
                continue
            if process is not None and process.is_frozen:
                process.waiting.append(what)
                continue
            what()
            if process is not None and not process.is_frozen:
                self.tick(process)
            self.check()
        if not is_done():
            self.database.now = time

    def check(self) -> None:
        """What must hold at every moment."""
        for partition in range(self.partitions):
            acting = [one for one in self.processes if one.may_act(partition, self.now)]
            if len(acting) > 1:
                raise Broken(f"{self.now:.3f}: {[one.name for one in acting]} act on partition {partition}")
            epoch = self.database.ownership[partition].epoch
            if epoch < self.epochs[partition]:
                raise Broken(f"{self.now:.3f}: the epoch of partition {partition} fell to {epoch}")
            self.epochs[partition] = epoch
        for name, row in self.database.nodes.items():
            if row.incarnation < self.incarnations[name]:
                raise Broken(f"{self.now:.3f}: the incarnation of {name} fell to {row.incarnation}")
            self.incarnations[name] = row.incarnation

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self, name: str) -> Process:
        offset = self.random.uniform(0, 1e6)
        membership = self.membership(name, self.partitions, self.policy, self.now + offset, self.random.random)
        process = Process(name, membership, offset, Session(name))
        self.processes.append(process)
        self.at(0.0, lambda: None, process)
        return process

    def tick(self, process: Process) -> None:
        """What an agent does after every event: follow the view, send what is due, plan to wake."""
        membership = process.membership
        mine = membership.view.mine
        for partition in mine:
            if partition in process.workers:
                if process.workers[partition]:
                    raise Broken(f"{process.name} serves partition {partition} while an earlier worker ends")
            else:
                process.workers[partition] = False
                if self.troubles is not None:
                    self.at(self.troubles.uniform(0.1, 1.0), self.started(process, partition), process)
        for partition, is_ending in list(process.workers.items()):
            if partition not in mine and not is_ending:
                process.workers[partition] = True
                self.at(self.delay(0.01, 0.5), self.ended(process, partition), process)
        if membership.is_over:
            self.database.close(process.session)
            process.is_dead = not process.workers
            return
        local = self.now + process.offset
        request = membership.next(local)
        if request is not None:
            self.send(process, request)
        wake = membership.wake_at()
        if wake is not None:
            # Rounding must not wake it a moment too early for ever.
            self.at(max(0.0, wake - local) + 1e-6, lambda: None, process)

    def ended(self, process: Process, partition: int) -> Callable[[], None]:
        def end() -> None:
            del process.workers[partition]
            process.membership.stopped([partition])

        return end

    def started(self, process: Process, partition: int) -> Callable[[], None]:
        def start() -> None:
            if process.workers.get(partition) is not False:
                return
            if process.is_broken or partition == self.broken_partition:
                del process.workers[partition]
                process.membership.failed({partition: "no"}, self.now + process.offset)
            else:
                self.tell(process)

        return start

    def tell(self, process: Process) -> None:
        """The supervisor reports the workers that run, and the nodes that the gateway cannot reach."""
        process.membership.serves(
            (one for one, is_ending in process.workers.items() if not is_ending), process.unreachable
        )

    def delay(self, usual: float, worst: float) -> float:
        return self.random.uniform(0, usual if self.random.random() < 0.9 else worst)

    def send(self, process: Process, request: Request) -> None:
        process.asked += 1
        number, sent, session = process.asked, self.now + process.offset, process.session

        def fail() -> None:
            if process.asked == number:
                self.disconnect(process)

        if isinstance(request, Release) and process.workers.keys() & request.claims.keys():
            raise Broken(f"{self.now:.3f}: {process.name} releases a partition before its worker has ended")

        def execute() -> None:
            if self.stalled_until > self.now:
                self.at(self.stalled_until - self.now + self.random.uniform(0, 0.01), execute)
                return
            is_lost = process.is_cut or self.random.random() < self.losses
            if process.is_cut and self.random.random() < 0.5:
                return
            try:
                answer = self.database.run(session, request)
            except ConnectionError:
                self.at(self.delay(0.001, 0.1), fail, process)
                return
            if not is_lost:
                self.at(self.delay(0.005, 0.6), lambda: done(answer), process)

        def done(answer: Answer) -> None:
            if process.asked == number:
                process.asked += 1
                process.membership.answered(request, answer, sent, self.now + process.offset)

        self.at(self.delay(0.005, 0.6), execute)
        self.at(self.policy.silence, fail, process)

    def notify(self, by: Session | None) -> None:
        """Notify the sessions of all nodes but the one that changed the rows."""
        for process in self.processes:
            if process.session.is_open and process.session is not by and not process.is_dead:
                wait = self.wires.uniform(0, 0.005 if self.wires.random() < 0.9 else 0.2)
                self.at(wait, self.notified(process), process)

    def notified(self, process: Process) -> Callable[[], None]:
        session = process.session

        def hear() -> None:
            if process.session is session and session.is_open and not process.is_cut:
                process.membership.notified(self.now + process.offset)

        return hear

    def disconnect(self, process: Process) -> None:
        """The agent notices that its session is lost, and gets a new one."""
        process.asked += 1
        self.database.close(process.session)
        process.session = Session(process.name)
        process.membership.unanswered(self.now + process.offset)

    # --- faults -----------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        """One fault, to one process or to the database."""
        running = [one for one in self.processes if not one.is_dead]
        process = self.random.choice(running) if running else None
        kinds = [
            "crash",
            "freeze",
            "terminate",
            "cut",
            "leave",
            "drain",
            "twin",
            "restart",
            "worker",
            "repeat",
            "stall",
        ]
        kind = self.random.choice(kinds)
        if process is None or process.is_frozen or process.is_cut:
            return
        self.faults[kind] += 1
        if kind == "crash":
            self.crash(process)
        elif kind == "freeze":
            process.is_frozen = True
            self.at(self.random.uniform(0, 3 * self.policy.lease), lambda: self.thaw(process))
        elif kind == "terminate":
            self.database.close(process.session)
            self.at(self.random.uniform(0, 0.02), lambda: self.disconnect(process), process)
        elif kind == "cut":
            process.is_cut = True
            session = process.session
            self.at(self.random.uniform(0, 2 * self.policy.lease), lambda: setattr(process, "is_cut", False))
            self.at(self.policy.silence, lambda: self.notice(session))
        elif kind == "leave":
            process.membership.end(self.now + process.offset)
            self.at(0.0, lambda: None, process)
        elif kind == "drain":
            row = self.database.nodes.get(process.name)
            if row is not None and self.random.random() < 0.5:
                row.is_draining = True  # an operator asked for it, at another node
            else:
                process.membership.drain()
            self.at(self.random.uniform(0, 3), lambda: process.membership.end(self.now + process.offset), process)
        elif kind == "twin":
            twin = self.start(process.name)
            if self.faults["twin"] == 2:
                twin.membership.drain()
                twin.membership.drain()
        elif kind == "restart":
            self.restart()
        elif kind == "worker":
            self.give_up_worker(process)
        elif kind == "repeat":
            self.repeat(process)
        elif kind == "stall":
            self.stall()

    def move(self, partition: int, name: str) -> None:
        """An operator moves a partition to a node, which may fail before it has it."""
        if (row := self.database.nodes.get(name)) is not None:
            rows = self.database.ownership
            rows[partition] = replace(rows[partition], wanted=row.incarnation)
            self.database.notify(None)

    def release(self) -> None:
        """An operator lets the nodes share all partitions again."""
        self.database.ownership = [replace(row, wanted=0) for row in self.database.ownership]
        self.database.notify(None)

    def stall(self) -> None:
        """The server answers nothing for a while, and then everything."""
        self.stalled_until = self.now + self.random.uniform(0, 2 * self.policy.lease)

    def give_up_worker(self, process: Process) -> None:
        """A worker ends that the supervisor does not start again."""
        running = [partition for partition, is_ending in process.workers.items() if not is_ending]
        if running:
            partition = self.random.choice(running)
            del process.workers[partition]
            process.membership.stopped([partition])
            self.at(0.0, lambda: None, process)

    def repeat(self, process: Process) -> None:
        """The supervisor says what it has said, and goes on when all is over."""
        idle = [partition for partition in range(self.partitions) if partition not in process.workers]
        process.membership.stopped(idle)
        draining = [one for one in self.processes if one.membership.view.is_draining]
        for one in draining:
            one.membership.drain()
        for one in self.processes:
            if one.membership.is_over:
                one.membership.drain()
                one.membership.end(self.now + one.offset)

    def notice(self, session: Session) -> None:
        """The server ends a session whose client does not acknowledge."""
        silent = self.now - session.last_exchange
        if session.is_open and silent >= self.policy.silence - 1e-6:
            self.database.close(session)
        elif session.is_open:
            self.at(self.policy.silence - silent, lambda: self.notice(session))

    def crash(self, process: Process) -> None:
        process.is_dead = True
        self.at(self.random.uniform(0, 0.1), lambda: self.database.close(process.session))

    def thaw(self, process: Process) -> None:
        process.is_frozen = False
        for what in process.waiting:
            self.at(0.0, what, process)
        process.waiting = []
        self.at(0.0, lambda: None, process)

    def restart(self) -> None:
        self.database.is_up = False
        for process in self.processes:
            self.database.close(process.session)
            if not process.is_dead:
                self.at(self.random.uniform(0, 0.02), self.reconnecting(process), process)

        def up() -> None:
            self.database.is_up = True
            self.database.started_at = self.now

        self.at(self.random.uniform(0, 2 * self.policy.lease), up)

    def reconnecting(self, process: Process) -> Callable[[], None]:
        session = process.session

        def reconnect() -> None:
            if process.session is session:
                self.disconnect(process)

        return reconnect

    def trouble(self) -> None:
        """One more fault, of the kinds that no process dies of."""
        assert self.troubles is not None
        running = [one for one in self.processes if not (one.is_dead or one.is_frozen)]
        if not running:
            return
        process, kind = self.troubles.choice(running), self.troubles.choice(("broken", "unreachable", "resumed"))
        self.faults[kind] += 1
        until = self.troubles.uniform(0, 3 * self.policy.lease)
        row = self.database.nodes.get(process.name)
        if kind == "broken":
            process.is_broken = True
            self.at(until, lambda: setattr(process, "is_broken", False))
        elif kind == "unreachable":
            for one in self.processes:
                one.unreachable = {process.name: "no"} if one.name != process.name else {}
                self.at(0.0, lambda one=one: self.tell(one), one)
                self.at(until, lambda one=one: (one.unreachable.clear(), self.tell(one)), one)
        elif row is not None:
            row.is_draining = not row.is_draining

    # --- whole runs -------------------------------------------------------------------------------------------------

    def keep_started(self) -> None:
        """Start each node again that has no process."""
        for name in self.names:
            if not any(one.name == name and not one.is_dead for one in self.processes):
                self.start(name)

    def run(self, faults: int = 8) -> None:
        """Let faults happen, then wait until all is well again."""
        self.keep_started()
        for _ in range(faults):
            self.run_until(self.now + self.random.uniform(0, 2 * self.policy.lease))
            self.fault()
            if self.troubles is not None:
                self.trouble()
            if self.operator.random() < self.moves:
                self.move(self.operator.randrange(self.partitions), self.operator.choice(self.names))
            self.check()
            if self.random.random() < 0.7:
                self.keep_started()
        self.calm()

    def calm(self) -> None:
        """Without faults, every partition is served soon, and each node has its share. No move counts any longer.

        Raises:
            Broken: It does not come to that.
        """
        self.database.ownership = [replace(row, wanted=0) for row in self.database.ownership]
        for _ in range(12 if self.troubles is None else 60):
            self.run_until(self.now + self.policy.lease)
            self.keep_started()
            for process in self.processes:
                if process.membership.view.is_draining and not process.is_dead:  # as an operator ends it then
                    process.membership.end(self.now + process.offset)
            if self.is_well():
                return
        raise Broken(f"{self.now:.1f}: {self.served()} of {self.partitions} partitions are served")

    def served(self) -> dict[str, int]:
        counts = dict.fromkeys(self.names, 0)
        for process in self.processes:
            for partition in process.workers:
                counts[process.name] += process.may_act(partition, self.now)
        return counts

    def is_well(self) -> bool:
        served = self.served()
        takers = [name for name in self.names if name in self.database.nodes]
        is_even = max(served.values()) - min(served.values()) <= 1
        return sum(served.values()) == self.partitions and is_even and len(takers) == len(self.names)
