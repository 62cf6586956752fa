"""Several workers behind one address: starts them, watches them, starts a dead one again, ends them all.

Forks, so that they share the memory of what is loaded; the supervisor therefore runs no event loop, no thread and no
store. It holds every socket that must outlive a worker: what peers send to one that is being started again waits there.
It also holds the memory that the workers share. Knows nothing of what a worker does.

A server on one host has the same workers from its start to its end. A node of a cluster has those that its agent
claims now, and always one more process without Sequences, the gateway, which answers while the node has no worker.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from holdfast.cluster.view import KAFKA, View
from holdfast.core.sending.identifier_claims import IdentifierClaims
from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import MOST, Worker
from holdfast.endpoint.workers.agent_link import AgentEnded, AgentLink, reason_of, urls_of_others
from holdfast.endpoint.workers.identifier_table import IdentifierTable, OfferedIdentifiers
from holdfast.endpoint.workers.placement import AWAY, Loads, Placement, Placements
from holdfast.endpoint.workers.routing import Place
from holdfast.endpoint.workers.socket_directory import SocketDirectory, open_inbox, refuse_connections
from holdfast.exceptions import ConfigurationError, StoreDamaged, StoreTakenOver

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_KILLED: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that an operator or the kernel, out of memory, has ended."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds until a worker that died is started again: doubled each time, up to the longest."""
STEADY: Final = 60.0
"""Seconds of running after which earlier deaths of a worker no longer count."""
STOP_SECONDS: Final = 5.0
"""Seconds that a worker has to stop when its node gives it away. Then it is killed: what it acknowledged is stored."""
LONGEST_END: Final = 29.0
AGENT_SECONDS: Final = 2.0
"""Seconds from the signal until a node has ended. Kubernetes kills it after 30. The last two are for its agent."""
TAKEN_OVER: Final = "another node has taken over its cluster partition"
STARTS: Final = 3
"""Starts of a worker that may fail in a row before a node of a cluster leaves its work to another node."""
ORPHAN_GRACE: Final = 15.0
"""Seconds that a worker has to stop on its own after its supervisor has died."""


@dataclass
class _Process:
    """The supervisor's state of one worker."""

    number: int
    path: str
    taking: socket.socket
    inbox: socket.socket
    epoch: int = 0
    pid: int = 0
    control: socket.socket | None = None
    told: bytes = b""
    is_ready: bool = False
    starts: int = 0
    failed_starts: int = 0
    why: str = ""
    deaths: int = 0
    started_at: float = 0.0
    start_at: float | None = None
    kill_at: float | None = None
    name: int | str = ""  # in the log


@dataclass
class Post:
    """A worker's side of its link to the supervisor.

    Args:
        place: Its number and links among the workers.
        directory: The directory of all workers' Unix sockets.
        messages, admin: The shared listening sockets, for messages and for the admin listener.
        hang_ups: How many SIGHUPs have arrived so far, until this process handles the signal itself.
        nodes: The shared listening sockets for the other nodes of a cluster.
        revoke: Called when the supervisor has ended, before anything else: this process may act no longer.
        is_orphan: Whether the supervisor has ended. Another one may start at once, at the same addresses.
    """

    place: Place
    control: socket.socket
    directory: str
    messages: Sequence[socket.socket]
    admin: Sequence[socket.socket]
    hang_ups: Callable[[], int]
    nodes: Sequence[socket.socket] = ()
    revoke: Callable[[], None] = lambda: None
    is_orphan: bool = False

    def tell_ready(self, facts: Mapping[str, Any]) -> None:
        """Report that the worker serves, with facts for the user and for the other workers."""
        self.control.sendall(json.dumps(dict(facts)).encode() + b"\n")

    def tell_failed(self, error: Exception) -> None:
        """Report why this worker ends, and whether another start would end in the same way."""
        is_taken_over = bool(self.nodes) and isinstance(error, StoreTakenOver)
        told = {"failed": TAKEN_OVER if is_taken_over else reason_of(error)}
        is_final = isinstance(error, ConfigurationError | StoreDamaged)
        with contextlib.suppress(OSError):  # the supervisor has ended
            self.control.sendall(json.dumps(told | {"is_final": is_final}).encode() + b"\n")

    def tell_unreachable(self, nodes: Mapping[str, str]) -> None:
        """Report all nodes of the cluster that cannot be reached from here: node -> why."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps({"unreachable": dict(nodes)}).encode() + b"\n")

    def tell_tables(self, tables: Mapping[str, str]) -> None:
        """Report what nodes compare of their configurations: table -> digest."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps({"tables": dict(tables)}).encode() + b"\n")

    @staticmethod
    def leave() -> NoReturn:
        """End this process, after everything is closed. The interpreter would free all objects first, while another
        node waits for the partition."""
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def end_with_supervisor(self) -> None:
        """End this process when the supervisor ends for any reason.

        The process ends as after SIGTERM; if that takes longer than ``ORPHAN_GRACE``, it exits immediately.
        """

        def watch() -> None:
            with contextlib.suppress(ConnectionError):
                while self.control.recv(64):
                    pass
            self.is_orphan = True
            self.revoke()
            shutil.rmtree(self.directory, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(ORPHAN_GRACE)
            os._exit(1)

        threading.Thread(target=watch, name="holdfast-orphan", daemon=True).start()


class Supervisor:
    """Starts and watches workers.

    Args:
        messages, admin: The shared listening sockets, which the supervisor closes when it tells the workers to stop.
        ready: Called once, in the supervisor, when all workers serve, with what worker 0 reported about itself.
        passes_hang_up: Whether the supervisor passes SIGHUP to the workers; otherwise it ends them all, the default.
        agent: Decides which workers run here, as a node of a cluster; None: all of them.
        claims: Makes the table of granted Identifiers as one worker sees it, of its number and the epoch of its store;
            None: a table in memory that the workers of this host share.

    Raises:
        ConfigurationError: There are too many workers, or the system does not support fork.
    """

    def __init__(
        self,
        count: int,
        messages: Sequence[socket.socket],
        admin: Sequence[socket.socket],
        ready: Callable[[Mapping[str, Any]], None],
        *,
        passes_hang_up: bool = False,
        agent: AgentLink | None = None,
        nodes: Sequence[socket.socket] = (),
        claims: Callable[[int, int], IdentifierClaims] | None = None,
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("workers need fork, which this system does not have", remedy="Omit --workers.")
        if count > MOST:
            raise ConfigurationError(f"{count} workers are too many", remedy=f"Use at most {MOST}: one for each core.")
        self._count = count
        self._messages = messages
        self._admin = admin
        self._nodes = nodes
        self._ready = ready
        self._passes_hang_up = passes_hang_up
        self._agent = agent
        self._hang_ups = self._passed = 0
        self._directory = SocketDirectory()
        self._giving: list[socket.socket] = []
        self._loads = Loads(count)
        self._claims = claims or IdentifierTable(count).claims
        self._offers = IdentifierTable(count) if agent is None else None
        self._placements = Placements()
        self._view = View("", {}, {}, {})
        self._unreachable: Mapping[str, str] = {}
        self._tables: Mapping[str, str] = {}
        self._reported: tuple[tuple[int, ...], Mapping[str, str], Mapping[str, str]] = ((), {}, {})
        self._processes: list[_Process] = []
        for number in range(count if agent is None else count + 1):
            taking, giving = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            giving.setblocking(False)
            taking.setblocking(False)  # recv_fds takes no account of flags
            self._giving.append(giving)
            path = os.path.join(self._directory.path, str(number))
            name = number if number < count else "gateway"
            self._processes.append(_Process(number, path, taking, open_inbox(path), name=name))
        self._paths = tuple(process.path for process in self._processes)
        self._facts: Mapping[str, Any] = {}
        self._wanted: dict[int, int] = {}
        """Number of a worker that is to run -> number of the claim."""
        self._is_complete = self._are_ready = False
        self._signals = 0  # that told us to end
        self._is_ending = False
        self._end_at: float | None = None
        """When the workers of a node that leaves must end, although the agent still wants them."""
        self._kill_by: float | None = None  # a node that leaves kills its workers
        self._code = 0
        if agent is None:
            self._placements.set(Placement(frozenset(range(count))))
            self._want({0: 0})
        else:
            self._want({count: 0})

    def run(self) -> Post:
        """Start the workers and watch over them. Returns in each worker; in the supervisor it ends the process: with 0
        when all ended as they were told, else with the code of the first that could not start.

        Raises:
            SystemExit: In the supervisor, at the end.
        """
        for number in _ENDING:
            signal.signal(number, self._on_signal)
        if self._passes_hang_up:
            signal.signal(signal.SIGHUP, self._on_hang_up)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # it wakes the wait below
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        gc.freeze()  # no collection in a worker is to touch, and so to copy, what they share
        while any(process.pid or process.start_at is not None for process in self._processes):
            for process in self._processes:
                if not self._signals and process.start_at is not None and process.start_at <= time.monotonic():
                    post = self._start(process)
                    if post is not None:
                        woken.close()
                        wake.close()
                        return post
            self._wait(woken)
            self._look_around()
        self._leave()
        self._directory.delete()
        raise SystemExit(self._code)

    def _look_around(self) -> None:
        """Process everything that has happened since the last time."""
        for process in self._processes:
            self._look_after(process)
        self._follow()
        if self._passed < self._hang_ups:
            # Signals that came together are passed on as one.
            self._passed = self._hang_ups
            for process in self._processes:
                if process.pid:
                    os.kill(process.pid, signal.SIGHUP)
        if self._signals:
            self._obey()
        for process in self._processes:
            if process.pid and process.kill_at is not None and process.kill_at <= time.monotonic():
                process.kill_at = None
                log.warning("worker.killed", number=process.name, why="it did not stop in time")
                os.kill(process.pid, signal.SIGKILL)

    def _obey(self) -> None:
        """End what an operator wants to end. Other nodes prepare first what this one serves, if that is possible."""
        for process in self._processes:
            process.start_at = None
        prepares_others = self._view.engine == KAFKA and any(process.pid for process in self._processes)
        if self._agent is not None and self._kill_by is None:
            self._kill_by = time.monotonic() + LONGEST_END - AGENT_SECONDS
        if self._signals > 1:
            self._end(signal.SIGKILL)
        elif self._end_at is None and self._agent is not None and prepares_others and not self._is_ending:
            self._end_at = time.monotonic() + STOP_SECONDS
            self._agent.end()
        elif self._end_at is None or self._end_at <= time.monotonic():
            self._end(signal.SIGTERM)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _on_hang_up(self, number: int, frame: object) -> None:
        self._hang_ups += 1

    def _start(self, process: _Process) -> Post | None:
        process.start_at = None
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        # Until the new process has its own ways with signals, none may come.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            theirs.close()
            process.pid, process.control, process.told, process.why = pid, ours, b"", ""
            process.starts += 1
            process.is_ready = False
            process.kill_at = None
            process.started_at = time.monotonic()
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor tells us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        ours.close()
        if self._agent is not None:
            self._agent.close()
        for other in self._processes:
            if other.control is not None:
                other.control.close()  # else it would not see that the supervisor is gone
            if other is not process:
                other.inbox.close()
                other.taking.close()
        number = process.number
        place = Place(
            self._worker(process),
            self._paths,
            process.inbox,
            process.taking,
            tuple(self._giving),
            self._loads,
            self._placements,
            OfferedIdentifiers(self._offers.of(number), number) if self._offers is not None else None,
        )
        post = Post(place, theirs, self._directory.path, self._messages, self._admin, lambda: self._hang_ups)
        if self._agent is not None:
            post.nodes, post.revoke = self._nodes, self._agent.trust.revoke
        return post

    def _worker(self, process: _Process) -> Worker:
        number, is_restart, agent = process.number, process.starts > 0, self._agent
        if number == self._count:
            return Worker(number, self._count, is_restart=is_restart)
        claims = partial(self._claims, number) if self._count > 1 else None
        if agent is not None:
            # Any node may be the first to open the store of any worker, so the stores have nothing in common: readers
            # that read the queues of all workers as one find an epoch for all of them together.
            return Worker(number, self._count, {}, is_restart, claims=claims, trust=agent.trust.of(number))
        epochs, partitions = self._facts.get("epochs", {}), self._facts.get("partitions")
        first = tuple(partitions) if partitions is not None and number else None
        return Worker(number, self._count, epochs, is_restart=is_restart, partitions=first, claims=claims)

    # --- which workers run ----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Start and stop workers as the agent says."""
        if self._agent is None:
            return
        try:
            views = self._agent.read()
        except AgentEnded as ended:
            # First: the lease may be another node's by now.
            self._agent.trust.revoke()
            if not self._is_ending and self._end_at is None:
                log.error("cluster.node_ended", reason=ended.problem, remedy=ended.remedy)
                self._code = 1
            self._end(signal.SIGTERM)
            return
        for view in views if not self._is_ending else ():
            self._view = view
            self._want({**view.preparing, **view.mine, self._count: 0})
            # Before that, no node serves anything: the cluster is new, or all of its nodes start.
            self._is_complete = self._is_complete or bool(view.owners)
            self._tell_ready()

    def _want(self, wanted: dict[int, int]) -> None:
        """Start the workers that are missing, and stop those that are not to run, or no longer in the same epoch."""
        before, self._wanted = self._wanted, wanted
        self._place()  # before a worker stops, so that none gets what it cannot answer
        for process in self._processes:
            number = process.number
            epoch = wanted.get(number)
            if epoch == process.epoch and number in before:
                continue
            if process.pid:
                self._stop(process)
            elif epoch is not None:
                self._schedule(process, epoch)
            elif number in before:
                process.start_at = None
                self._give_up(process)

    def _schedule(self, process: _Process, epoch: int) -> None:
        process.epoch, process.start_at, process.deaths, process.failed_starts = epoch, 0.0, 0, 0

    def _stop(self, process: _Process) -> None:
        if process.kill_at is None:
            process.kill_at = self._kill_by or time.monotonic() + STOP_SECONDS
            os.kill(process.pid, signal.SIGTERM)

    def _give_up(self, process: _Process) -> None:
        """Let another node have a worker that no longer runs here, and refuse what still waits for it."""
        assert self._agent is not None
        refuse_connections(process.taking)
        process.inbox.close()  # which cuts the requests that wait in it: the others ask again, elsewhere
        os.unlink(process.path)
        process.inbox = open_inbox(process.path)
        self._agent.stopped(process.number)

    def _place(self) -> None:
        """Publish where the workers are, and report those that serve here."""
        if self._agent is None:
            return
        view, mine = self._view, frozenset(self._wanted.keys() - self._view.preparing.keys() - {self._count})
        local = mine & {process.number for process in self._processes if process.is_ready}
        remote = {number: url for number, url in urls_of_others(view).items() if number not in mine}
        others = {name: url for name, url in view.nodes.items() if name != view.node}
        cut_off = f"{view.nodes.get(view.node)}: {', '.join(view.cut_off_by)}" if view.cut_off_by else ""
        self._placements.set(
            Placement(local, remote, mine - local, others, view.trouble, cut_off, view.failed, view.engine)
        )
        report = tuple(sorted(local)), self._unreachable, self._tables
        if report != self._reported:
            self._reported = report
            self._agent.report(*report)

    def _leave(self) -> None:
        """Wait until the agent has left the cluster, when all workers have ended."""
        if self._agent is None:
            return
        deadline = time.monotonic() + STOP_SECONDS
        deadline = min(deadline, (self._kill_by or deadline) + AGENT_SECONDS)
        while os.waitpid(self._agent.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._agent.pid, signal.SIGKILL)
            time.sleep(0.01)

    # --- watching -------------------------------------------------------------------------------------------------

    def _wait(self, woken: socket.socket) -> None:
        """Wait for an event of a worker, a signal, or the next scheduled start."""
        due = self._next_time()
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            for process in self._processes:
                if process.control is not None:
                    selector.register(process.control, selectors.EVENT_READ)
            # An agent that has ended would be readable for ever.
            if self._agent is not None and not self._is_ending:
                selector.register(self._agent, selectors.EVENT_READ)
            selector.select(None if due is None else max(0.0, due - time.monotonic()))
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)

    def _next_time(self) -> float | None:
        """Return when the next worker must be started or killed; None: no worker."""
        times = [one for process in self._processes for one in (process.start_at, process.kill_at)]
        times += [None if self._is_ending else self._end_at]
        return min((one for one in times if one is not None), default=None)

    def _look_after(self, process: _Process) -> None:
        self._hear(process)
        if not process.pid:
            return
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:
            process.pid, process.kill_at = 0, None
            self._hear(process)  # what it said last
            if process.control is not None:
                process.control.close()
                process.control = None
            self._died(process, os.waitstatus_to_exitcode(status))

    def _hear(self, process: _Process) -> None:
        if process.control is None:
            return
        try:
            told = process.control.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            told = b""
        if not told:  # it is ending
            process.control.close()
            process.control = None
            return
        *lines, process.told = (process.told + told).split(b"\n")
        for line in lines:
            self._take(process, json.loads(line))

    def _take(self, process: _Process, told: Mapping[str, Any]) -> None:
        if "failed" in told:
            process.why = told["failed"]
            process.failed_starts += STARTS if told["is_final"] else 0
            return
        if "unreachable" in told or "tables" in told:
            self._unreachable = told.get("unreachable", self._unreachable)
            self._tables = told.get("tables", self._tables)
            self._place()
            return
        process.is_ready = True
        if not self._facts:
            self._facts = told
            if self._agent is None:
                self._want(dict.fromkeys(range(self._count), 0))
                self._is_complete = True
        self._place()
        self._tell_ready()

    def _tell_ready(self) -> None:
        """Report once that all workers serve that were to run first."""
        wanted = [one for one in self._processes if one.number in self._wanted.keys() - self._view.preparing.keys()]
        if self._is_complete and not self._are_ready and all(one.is_ready for one in wanted):
            self._are_ready = True
            self._ready({**self._facts, "created": self._view.created})

    def _died(self, process: _Process, code: int) -> None:
        process.failed_starts = 0 if process.is_ready else process.failed_starts + 1
        process.is_ready = False
        if process.number < self._count:
            self._loads.set(process.number, AWAY)
        epoch, was_ending = self._wanted.get(process.number), self._is_ending
        if self._signals and epoch == process.epoch:
            # A service manager may signal every process. Then no worker runs until another node is prepared for it.
            self._end(signal.SIGTERM)
        if self._is_ending:
            # A worker whose partition the node has lost may end with an error: another node has its store.
            if epoch == process.epoch and code not in (0, -signal.SIGTERM, -signal.SIGKILL):
                self._code = self._code or 1
            # The beginning of the end has given up what was wanted and does not run.
            if self._agent is not None and process.number < self._count and (was_ending or epoch is None):
                self._give_up(process)
        elif epoch is None:
            self._give_up(process)
        elif epoch != process.epoch:
            self._schedule(process, epoch)
        else:
            self._has_failed(process, code)

    def _has_failed(self, process: _Process, code: int) -> None:
        self._place()
        how = signal.Signals(-code).name if code < 0 else code
        if code not in _KILLED and not self._are_ready and (self._agent is None or process.number == self._count):
            # What keeps it from starting will not pass: a mistake in the options, another that has its store.
            log.error("worker.start_failed", number=process.name, code=how)
            self._code = code if code > 0 else 1
            self._end(signal.SIGTERM)
            return
        why = process.why or f"its process ended with {how}"
        is_given_up = process.failed_starts >= STARTS and not self._view.trouble  # else the database may be the reason
        if self._agent is not None and process.number < self._count and is_given_up:
            log.error("worker.given_up", number=process.number, why=why)
            self._agent.failed(process.number, why)
            return
        if time.monotonic() - process.started_at >= STEADY:
            process.deaths = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**process.deaths)
        process.deaths += 1
        if pause == LONGEST_PAUSE:
            refuse_connections(process.taking)  # it may not start at all
        process.start_at = time.monotonic() + pause
        if why == TAKEN_OVER:
            log.warning("worker.taken_over", number=process.name, why=why)
        else:
            log.error("worker.died", number=process.name, code=how, why=why, again_in=pause)

    def _end(self, number: signal.Signals) -> None:
        """Send a signal to all workers. Once they are ending, only SIGKILL has an effect."""
        if self._is_ending and number != signal.SIGKILL:
            return
        if self._agent is not None and not self._is_ending:
            self._agent.end()  # first, so that it claims nothing that a worker gives up
        self._is_ending = True
        for shared in (*self._messages, *self._admin, *self._nodes):
            shared.close()
        for process in self._processes:
            process.start_at = None
            if process.pid and (process.kill_at is None or number == signal.SIGKILL):
                os.kill(process.pid, number)
                process.kill_at = self._kill_by
            elif not process.pid and self._agent is not None and process.number in self._wanted.keys() - {self._count}:
                self._give_up(process)  # it waited for its next start
        if number == signal.SIGKILL:
            self._code = 130
