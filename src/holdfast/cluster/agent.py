"""The agent: the process of a node that keeps its membership, and nothing else.

The supervisor forks it before any worker. Both exchange JSON lines over a socket pair:

- agent to supervisor: ``{"view": {…}}`` at each change; ``{"refused": {"problem": …, "remedy": …}}``, then it ends.
- supervisor to agent: ``{"stopped": [k, …]}``, the workers of these partitions have ended, or none was there, for each
  partition that is no longer in the view's ``mine``; ``{"failed": {k: why}}``, the workers of these cannot be started
  here; ``{"serving": [k, …], "unreachable": {node: why}, "tables": {table: digest}}``, all workers that accept
  requests, all nodes that cannot be reached, and what the nodes compare of their configurations; ``{"drain": true}``;
  ``{"end": true}``, after which the agent releases what has stopped, leaves the cluster and ends.

If the supervisor's end of the socket closes, the agent revokes all trust and ends without leaving: workers may still
run, and other nodes declare this one dead. When the agent has ended for any reason, the supervisor revokes the trust.
"""

from __future__ import annotations

import json
import math
import queue
import random
import selectors
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.cluster.lease_policy import LONGEST_NAME, MOST_PARTITIONS, PARTITIONS, LeasePolicy
from holdfast.cluster.membership import Membership
from holdfast.cluster.memory import NodeMemory
from holdfast.cluster.rows import (
    Answer,
    Claim,
    ClusterRefused,
    Declare,
    Join,
    Look,
    NoAnswer,
    Picture,
    Release,
    Request,
)
from holdfast.cluster.trust import Trust, trust_clock
from holdfast.cluster.view import CUT_OFF_REMEDY, View
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.outages import Outage
from holdfast.settings import check_whole

if TYPE_CHECKING:
    from holdfast.cluster.lease_database import LeaseDatabase

Report = Callable[..., None]
"""Logs an event: its level, its name, then its fields."""

SAME_FILE: Final = "Give all nodes the same configuration file, and restart those with another one."
MEMORY_REMEDY: Final = (
    "Let the broker's user write to the directory memory of [cluster], or free space there. Until then, this node does "
    "not recognize a restored database after a restart."
)
CREATED_REMEDY: Final = "If the other nodes are in a cluster already, this one has another store: check its URL."
_CONTACT: Final = "Check the database of the cluster. The node continues on its own when it answers."
LONGEST_LINE: Final = 1 << 16
"""Bytes that the supervisor may send without ending a line."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent needs to know.

    Args:
        location: The URL of the cluster's database; its space names the cluster.
        node: The name of the node; unique in the cluster.
        url: The URL of the node's cluster listener, for the other nodes.
        partitions: How many partitions the cluster has; fixed when it is created.
        policy: How long a lease lasts.
        secret: A digest of the secret that the nodes share.
        memory: The directory in which the node remembers its cluster; None: it does not.
        is_restored: Whether the operator restored the database from a copy.

    Raises:
        ConfigurationError: A setting is invalid.
    """

    location: str = field(repr=False)
    node: str
    url: str
    partitions: int = PARTITIONS
    policy: LeasePolicy = field(default_factory=LeasePolicy)
    secret: str = field(default="", repr=False)
    memory: str | None = None
    is_restored: bool = False

    def __post_init__(self) -> None:
        check_whole("partitions", self.partitions, most=MOST_PARTITIONS)
        if not self.node or len(self.node) > LONGEST_NAME or not self.node.isprintable():
            raise ConfigurationError(
                f"{self.node[:LONGEST_NAME]!r} is not a valid name of a node",
                remedy=f"Use 1 to {LONGEST_NAME} visible characters.",
            )


def run_agent(settings: AgentSettings, link: socket.socket, trust: Trust, report: Report) -> int:
    """Keep the membership of a node until the supervisor ends it. Call this in the agent's own process.

    Args:
        settings: What to join, and how.
        link: This end of the socket pair to the supervisor.
        trust: The times that the workers read.
        report: Logs an event.

    Returns:
        The exit code: 0; 1 if the cluster refused the node or the supervisor is gone.
    """
    # A service manager may signal every process of the broker; the supervisor tells this one when it may end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    from holdfast.cluster.lease_database import LeaseDatabase  # the agent of a cluster on Kafka needs no PostgreSQL

    memory = NodeMemory(settings.memory, settings.node, trust.batches)
    database = LeaseDatabase(
        settings.location,
        settings.node,
        settings.url,
        settings.partitions,
        settings.policy,
        settings.secret,
        memory,
        is_restored=settings.is_restored,
    )
    agent = _Agent(settings, database, link, trust, report, memory)
    try:
        return agent.run()
    finally:
        trust.revoke()


@dataclass(slots=True)
class _Outcome:
    """How a request ended.

    Args:
        request: The request.
        sent: When it was sent.
        answer: Its answer, or the error.
    """

    request: Request
    sent: float
    answer: Answer | Exception


def report_created(report: Report, node: str, place: str) -> None:
    """Log that a node has created the cluster at a place."""
    report("warning", "cluster.created", node=node, cluster=place, remedy=CREATED_REMEDY)


class SupervisorLink:
    """The agent's end of the link to its supervisor: an object of JSON in each line, both ways.

    Args:
        link: The socket.
        settings: Those of the agent.
        report: Logs an event.

    Attributes:
        is_gone: Whether the supervisor is gone, or wrote what is no line.
        view: The last view that it was shown; None: none yet.
    """

    def __init__(self, link: socket.socket, settings: AgentSettings, report: Report) -> None:
        self._link = link
        self._settings = settings
        self._report = report
        self._in, self._out = b"", b""
        self.is_gone = False
        self.view: View | None = None
        link.setblocking(False)

    @property
    def has_unsent(self) -> bool:
        """Whether the supervisor has not taken everything yet."""
        return bool(self._out)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._link.fileno()

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message, now or at the next :meth:`flush`."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self, wait: float = 0.0) -> None:
        """Send the rest; wait so many seconds at most."""
        if not self._out or self.is_gone:
            return
        self._link.settimeout(wait)
        try:
            if wait:
                self._link.sendall(self._out)
                self._out = b""
            else:
                self._out = self._out[self._link.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        finally:
            self._link.settimeout(0.0)

    def heard(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived. Never waits."""
        try:
            told = self._link.recv(LONGEST_LINE)
        except BlockingIOError:
            return []
        except OSError:
            told = b""
        *lines, self._in = (self._in + told).split(b"\n")
        if not told or len(self._in) > LONGEST_LINE:
            self.is_gone = True
            return []
        return [json.loads(line) for line in lines]

    def show(self, view: View) -> bool:
        """Send a view, and log what has changed for this node. Return False if it is the last one again."""
        if view == self.view:
            return False
        self._report_cut_off(self.view, view)
        self._report_differing(self.view, view)
        self.view = view
        self.tell({"view": view.to_json()})
        return True

    def _report_cut_off(self, before: View | None, now: View) -> None:
        """Log whether most of the other nodes cannot reach this one, if that has changed."""
        url = now.nodes.get(now.node, "")
        was_cut_off = before is not None and bool(before.cut_off_by)
        if now.cut_off_by and not was_cut_off:
            by = list(now.cut_off_by)
            self._report("warning", "cluster.cut_off", node=now.node, url=url, by=by, remedy=CUT_OFF_REMEDY)
        elif was_cut_off and not now.cut_off_by:
            self._report("info", "cluster.reachable", node=now.node, url=url)

    def _report_differing(self, before: View | None, now: View) -> None:
        """Log each node with a configuration that began to differ from this one's, and when it is the same again."""
        known = before.differing if before is not None else {}
        for node, tables in now.differing.items():
            if known.get(node) != tables:
                of = list(tables)
                self._report("warning", "cluster.configuration_differs", node=node, tables=of, remedy=SAME_FILE)
        for node in known.keys() - now.differing.keys():
            if node in now.nodes:
                self._report("info", "cluster.configuration_same", node=node)

    def leave(self, refusal: HoldfastError | None) -> int:
        """Log and send why the agent ends: because the cluster refused the node, or the supervisor ended it.

        Returns:
            The exit code of the agent.
        """
        if refusal is not None:
            self._report("error", "cluster.refused", reason=refusal.message, remedy=refusal.remedy)
            self.tell({"refused": {"problem": refusal.message, "remedy": refusal.remedy}})
        elif not self.is_gone:
            self._report("info", "cluster.left", node=self._settings.node)
        self.flush(wait=self._settings.policy.lease)
        return 1 if refusal is not None or self.is_gone else 0


class _Agent:
    def __init__(
        self,
        settings: AgentSettings,
        database: LeaseDatabase,
        link: socket.socket,
        trust: Trust,
        report: Report,
        memory: NodeMemory,
    ) -> None:
        self._settings = settings
        self._memory, self._memory_trouble = memory, ""
        self._database = database
        self._supervisor = SupervisorLink(link, settings, report)
        self._trust = trust
        self._report = report
        self._membership = Membership(
            settings.node, settings.partitions, settings.policy, trust_clock(), random.SystemRandom().random
        )
        self._requests: queue.SimpleQueue[tuple[Request, float]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._done, self._wake = socket.socketpair()
        self._abort_at: float | None = None
        """When the running request takes too long; None if none runs."""
        self._known: set[int] = set()
        """Partitions that a sent view had in ``mine``, and whose workers the supervisor has not reported as ended."""
        self._outage = Outage(trust_clock)
        self._created = ""
        """Where this node created the cluster; "": it was there."""
        self._done.setblocking(False)

    def run(self) -> int:
        self._report_memory()  # the first answer replaces a file that cannot be read
        threading.Thread(target=self._serve, name="holdfast-leases", daemon=True).start()
        while not self._membership.is_over and not self._supervisor.is_gone:
            self._send()
            self._publish()
            self._wait()
        self._publish()
        return self._supervisor.leave(self._membership.refusal)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Run requests, in a thread: a database that does not answer must not keep the agent from its supervisor."""
        while True:
            request, sent = self._requests.get()
            answer: Answer | Exception
            try:
                answer = self._database.run(request)
            except Exception as error:
                answer = error
            self._outcomes.put(_Outcome(request, sent, answer))
            self._wake.send(b"!")

    def _send(self) -> None:
        now = trust_clock()
        request = self._membership.next(now)
        if request is not None:
            self._abort_at = now + self._settings.policy.silence
            self._requests.put((request, now))

    def _finish(self) -> None:
        """Process the outcome of the request that ran."""
        outcome = self._outcomes.get()
        self._abort_at = None
        self._report_memory()
        now = trust_clock()
        if isinstance(outcome.answer, ClusterRefused):
            self._membership.refused(outcome.answer)
        elif isinstance(outcome.answer, NoAnswer):
            self._lost(outcome.answer)
        elif isinstance(outcome.answer, Exception):
            raise outcome.answer  # a bug ends the agent, and the broker with it; without requests, it would stand still
        else:
            before, ahead = self._membership.view, self._membership.clock.ahead
            self._membership.answered(outcome.request, outcome.answer, outcome.sent, now)
            self._tell(outcome.request, outcome.answer, before)
            self._membership.clock.report_change(ahead, self._report, self._settings.node)
            self._hear()  # what arrived with the answer leaves nothing to read in the connection

    def _report_memory(self) -> None:
        if self._memory.trouble != self._memory_trouble:
            self._memory_trouble = self._memory.trouble
            if self._memory_trouble:
                self._report("warning", "cluster.memory_failed", error=self._memory_trouble, remedy=MEMORY_REMEDY)

    def _lost(self, why: NoAnswer) -> None:
        self._membership.unanswered(trust_clock())
        is_first, trouble = self._outage.trouble is None, why.trouble
        if self._outage.go_on(trouble):
            self._report("warning", "cluster.database_away", reason=trouble.what, remedy=trouble.remedy or _CONTACT)
        if is_first:
            self._memory.save()

    def _tell(self, request: Request, answer: Answer, before: View) -> None:
        """Log what happened to the membership."""
        node = self._settings.node
        if (seconds := self._outage.end()) is not None:
            self._report("info", "cluster.database_back", seconds=seconds)
        match request, answer:
            case Join(), _:
                if self._database.has_created and not self._created:
                    self._created = self._database.place
                    report_created(self._report, node, self._created)
                self._report("info", "cluster.joined", node=node, incarnation=answer)
                for warning in self._database.warnings:
                    self._report("warning", "cluster.database_at_risk", node=node, reason=warning)
            case Claim(), dict() if answer:
                self._report("info", "cluster.claimed", node=node, partitions=sorted(answer))
            case Release(), None:
                self._report("info", "cluster.released", node=node, partitions=sorted(request.claims))
            case Declare(), True:
                cause = "its lease ended" if request.unrenewed is None else "its connection ended"
                self._report("warning", "cluster.node_declared_dead", node=request.name, reason=cause)
            case Look(), Picture() if not answer.is_member:
                self._report("error", "cluster.lease_lost", node=node, partitions=sorted(before.mine))

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Write the trust, then the view: a worker must not act on a claim that the view no longer has."""
        self._trust.clock_offset = self._membership.clock.offset
        for partition in range(self._settings.partitions):
            self._trust.set(partition, self._membership.trusted_until(partition))
        if self._supervisor.has_unsent:
            return
        view = replace(self._membership.view, trouble=self._outage.trouble, created=self._created)
        if self._supervisor.show(view):
            self._known |= view.mine.keys()
        # While the supervisor read nothing, a partition may have come and gone without a view.
        self._membership.stopped(set(self._membership.ending) - self._known)

    def _follow(self, told: dict[str, Any]) -> None:
        if "stopped" in told:
            self._known.difference_update(told["stopped"])
            self._membership.stopped(told["stopped"])
        if "failed" in told:
            failed = {int(partition): why for partition, why in told["failed"].items()}
            self._known.difference_update(failed)
            self._membership.failed(failed, trust_clock())
        if "serving" in told:
            self._membership.serves(told["serving"], told["unreachable"], told.get("tables"))
        if told.get("drain"):
            self._membership.drain()
        if told.get("end"):
            self._membership.end(trust_clock())

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the supervisor, the database or the time, and process what comes."""
        idle = self._database.fileno() if self._abort_at is None else None
        times = [time for time in (self._membership.wake_at(), self._abort_at) if time not in (None, math.inf)]
        with selectors.DefaultSelector() as selector:
            writes = selectors.EVENT_WRITE if self._supervisor.has_unsent else 0
            selector.register(self._supervisor, selectors.EVENT_READ | writes)
            selector.register(self._done, selectors.EVENT_READ)
            if idle is not None:
                selector.register(idle, selectors.EVENT_READ)
            timeout = max(0.0, min(times) - trust_clock()) if times else None
            ready = {key.fd: events for key, events in selector.select(timeout)}
        events = ready.get(self._supervisor.fileno(), 0)
        if events & selectors.EVENT_WRITE:
            self._supervisor.flush()
        if events & selectors.EVENT_READ:
            for told in self._supervisor.heard():
                self._follow(told)
        if self._done.fileno() in ready:
            self._done.recv(1)
            self._finish()
        elif idle is not None and idle in ready:
            self._hear()
        if self._abort_at is not None and trust_clock() >= self._abort_at:
            self._abort_at = math.inf  # the thread reports the failure
            self._database.abort()

    def _hear(self) -> None:
        """Process a notification, or the end of the idle connection."""
        try:
            if self._database.notified():
                self._membership.notified(trust_clock())
        except (NoAnswer, ClusterRefused) as error:
            self._lost(error if isinstance(error, NoAnswer) else NoAnswer(error.message, error.remedy))
