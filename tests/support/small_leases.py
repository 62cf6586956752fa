"""Two nodes, the leases of one partition and its table, in every order of what happens: each request runs when it
likes, each answer comes when it likes, a node is paused and continues, one is killed, an answer to a commit is lost.

A world is data: pickled, it is a state of the search, and choices lead from one state to the next. Time passes in
steps of a second; while an answer is on its way, each step is a fault with a budget.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fake_leases import Database, Session
from lease_world import Broken

from holdfast.cluster.lease_policy import LeasePolicy
from holdfast.cluster.membership import Membership
from holdfast.cluster.rows import Answer, Request

POLICY = LeasePolicy(2.0)
STEP = 1.0


def _half() -> float:
    return 0.5


def _nobody(_by: Session | None) -> None:
    """Notify no node: each finds changes at its next poll, as after a lost notification."""


@dataclass
class Table:
    """What is stored: how often it was opened, how many batches it has, and the messages."""

    epoch: int = 0
    serial: int = 0
    messages: list[str] = field(default_factory=list)

    def commit(self, epoch: int, serial: int, message: str) -> bool:
        if (epoch, serial) != (self.epoch, self.serial):
            return False
        self.serial += 1
        self.messages.append(message)
        return True


@dataclass
class Worker:
    """The process that serves the partition, and what it knows of the table."""

    epoch: int
    serial: int
    messages: list[str]
    writing: str = ""
    is_stored: bool | None = None
    """What the table answered; None: the commit has not arrived."""


@dataclass(eq=False)
class Node:
    membership: Membership
    session: Session
    worker: Worker | None = None
    request: Request | None = None
    sent: float = 0.0
    answer: tuple[Answer | None] | None = None
    is_paused: bool = False
    is_dead: bool = False

    def may_act(self, now: float) -> bool:
        is_running = not (self.is_paused or self.is_dead)
        return is_running and self.worker is not None and now < self.membership.trusted_until(0)


class World:
    """The two nodes, one of which serves the partition.

    Args:
        budget: How often each fault may happen: "pause", "crash", "slow" (a second), "lost" (an answer).
        seconds: When the search ends.
        messages: What a client sends, one after the other, to any node that serves.
        membership, database, table: Classes of the parts, which may have a mistake.
    """

    def __init__(
        self,
        budget: dict[str, int],
        *,
        seconds: float = 4.0,
        messages: tuple[str, ...] = ("a", "b"),
        membership: type[Membership] = Membership,
        database: type[Database] = Database,
        table: type[Table] = Table,
    ) -> None:
        self.budget = {"pause": 0, "crash": 0, "slow": 0, "lost": 0} | budget
        self.messages, self.acknowledged = messages, list[str]()
        self.database, self.table = database(1, POLICY.lease), table()
        self.database.notify = _nobody
        self.nodes = [Node(membership(name, 1, POLICY, 0.0, _half), Session(name)) for name in ("a", "b")]
        for node in self.nodes:
            self.follow(node)
        self.end = 0.0
        for _ in range(12):
            self.settle()
            self.pass_time()
        self.settle()
        assert any(node.worker is not None for node in self.nodes)
        self.end = self.now + seconds

    @property
    def now(self) -> float:
        return self.database.now

    def settle(self) -> None:
        """Let everything that is on its way arrive."""
        while True:
            steps = [(at, what) for at, what in self.steps() if what in ("run", "answer", "open", "commit", "heard")]
            if not steps:
                return
            self.step(*next((one for one in steps if one[1] == "answer"), steps[0]))

    # --- what may happen ---------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[int, str]]:
        for at, node in enumerate(self.nodes):
            worker = node.worker
            if node.request is not None and node.answer is None:
                yield at, "run"
            if worker is not None and worker.writing and worker.is_stored is None:
                yield at, "commit"
            if node.is_dead:
                if node.request is not None or (worker is not None and worker.writing):
                    yield at, "vanish"
                continue
            if node.is_paused:
                yield at, "continue"
                continue
            if node.answer is not None:
                yield at, "answer"
            if worker is None and 0 in node.membership.view.mine and self.now < node.membership.trusted_until(0):
                yield at, "open"
            if worker is not None and worker.is_stored is not None:
                yield at, "heard"
            if worker is not None and worker.writing and self.budget["lost"]:
                yield at, "lost"
            if worker is not None and not worker.writing and self.left and node.may_act(self.now):
                yield at, "send"
            if self.budget["pause"]:
                yield at, "pause"
            if self.budget["crash"]:
                yield at, "crash"
        if self.now < self.end and (self.budget["slow"] or not self.is_waiting):
            yield -1, "time"

    @property
    def left(self) -> tuple[str, ...]:
        return self.messages[len(self.acknowledged) :]

    @property
    def is_waiting(self) -> bool:
        """Whether something is on its way to or from a node that runs."""
        return any(
            node.request is not None or (node.worker is not None and bool(node.worker.writing))
            for node in self.nodes
            if not (node.is_paused or node.is_dead)
        )

    def step(self, at: int, what: str) -> None:
        """Take a step.

        Raises:
            Broken: A promise is broken after it.
        """
        if what == "time":
            self.budget["slow"] -= self.is_waiting
            self.pass_time()
        else:
            self.act(self.nodes[at], what)
        self.judge()

    def act(self, node: Node, what: str) -> None:
        worker = node.worker
        match what:
            case "run":
                assert node.request is not None
                try:
                    node.answer = (self.database.run(node.session, node.request),)
                except ConnectionError:
                    self.disconnect(node)
                if node.is_dead:
                    node.request = node.answer = None
            case "answer":
                assert node.request is not None and node.answer is not None
                request, answer = node.request, node.answer[0]
                node.request = node.answer = None
                node.membership.answered(request, answer, node.sent, self.now)  # type: ignore[arg-type]
            case "open":
                self.table.epoch += 1
                node.worker = Worker(self.table.epoch, self.table.serial, list(self.table.messages))
            case "send":
                assert worker is not None
                if (message := self.left[0]) in worker.messages:
                    self.acknowledge(message)
                else:
                    worker.writing = message
            case "commit":
                assert worker is not None
                worker.is_stored = self.table.commit(worker.epoch, worker.serial, worker.writing)
                if node.is_dead:
                    node.worker = None
            case "heard":
                assert worker is not None
                self.heard(node, worker, is_stored=bool(worker.is_stored))
            case "lost":
                assert worker is not None
                self.budget["lost"] -= 1
                self.ask(node, worker)
            case "pause" | "continue":
                self.budget["pause"] -= what == "pause"
                node.is_paused = what == "pause"
            case "crash":
                self.budget["crash"] -= 1
                node.is_dead = True
                self.database.close(node.session)
            case "vanish":
                node.request = node.worker = None
        if not (node.is_paused or node.is_dead):
            self.follow(node)

    def ask(self, node: Node, worker: Worker) -> None:
        """Resolve the doubt on a new connection, which ends the old one with what that still carried."""
        if self.table.epoch != worker.epoch:
            node.worker = None
        elif self.table.serial == worker.serial:
            worker.is_stored = None
        else:
            self.heard(node, worker, is_stored=True)

    def heard(self, node: Node, worker: Worker, *, is_stored: bool) -> None:
        if not is_stored:
            node.worker = None  # fenced: the supervisor starts another one, if the partition is still here
            return
        worker.serial += 1
        worker.messages.append(worker.writing)
        if worker.writing in self.left:
            self.acknowledge(worker.writing)
        worker.writing, worker.is_stored = "", None

    def acknowledge(self, message: str) -> None:
        self.acknowledged.append(message)

    def disconnect(self, node: Node) -> None:
        self.database.close(node.session)
        node.session = Session(node.session.name)
        node.request = node.answer = None
        node.membership.unanswered(self.now)

    def follow(self, node: Node) -> None:
        """What an agent and a supervisor do after every event."""
        if node.worker is not None and 0 not in node.membership.view.mine:
            node.worker = None
        if node.worker is None and 0 in node.membership.ending:
            node.membership.stopped([0])
        if node.request is None and (request := node.membership.next(self.now)) is not None:
            node.request, node.sent, node.answer = request, self.now, None

    def pass_time(self) -> None:
        self.database.now += STEP
        for node in self.nodes:
            if node.is_paused or node.is_dead:
                continue
            if node.request is not None and self.now - node.sent >= POLICY.silence:
                self.disconnect(node)
            self.follow(node)

    # --- the promises ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        stored = self.table.messages
        if tuple(stored) != self.messages[: len(stored)]:
            raise Broken(f"stored are {stored}")
        if self.acknowledged != stored[: len(self.acknowledged)]:
            raise Broken(f"acknowledged are {self.acknowledged}, and stored {stored}")
        if sum(node.may_act(self.now) for node in self.nodes) > 1:
            raise Broken(f"{self.now}: two nodes act")

    def finish(self) -> None:
        """Without further faults, a node serves, and every message is acknowledged.

        Raises:
            Broken: That does not come.
        """
        self.budget = dict.fromkeys(self.budget, 0)
        for node in self.nodes:
            node.is_paused = False
        self.end = self.now + 30.0
        while self.now < self.end and self.left:
            self.settle()
            if (able := next((at for at, what in self.steps() if what == "send"), None)) is not None:
                self.step(able, "send")
            else:
                self.pass_time()
        if self.left:
            raise Broken(f"{self.left} is never acknowledged")


def explore(world: World, most: int) -> int:
    """Take every course of a world. Let one of 500 states come to a good end, and each last one.

    Returns:
        How many different states there are.

    Raises:
        Broken: A promise is broken in one of them.
        AssertionError: There are more than ``most``.
    """
    begin = pickle.dumps(world)
    seen, waiting = {begin}, [begin]
    while waiting:
        state = waiting.pop()
        steps = list(pickle.loads(state).steps())
        if not steps or len(seen) % 500 == 0:
            last: Any = pickle.loads(state)
            last.finish()
        for at, what in steps:
            one: World = pickle.loads(state)
            one.step(at, what)
            reached = pickle.dumps(one)
            if reached not in seen:
                seen.add(reached)
                waiting.append(reached)
        if len(seen) > most:
            raise AssertionError(f"more than {most} states")
    return len(seen)
