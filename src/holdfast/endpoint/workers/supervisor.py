"""Several workers behind one address: starts them, watches them, starts a dead one again, ends them all.

Forks, so that they share the memory of what is loaded; the supervisor therefore runs no event loop, no thread and no
store. It holds every socket that must outlive a worker: what peers send to one that is being started again waits there.
It also holds the memory that the workers share. Knows nothing of what a worker does.
"""

from __future__ import annotations

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
from typing import Any, Final

from holdfast.endpoint.logs import log
from holdfast.endpoint.worker import MOST, Worker
from holdfast.endpoint.workers.identifier_table import IdentifierTable
from holdfast.endpoint.workers.loads import AWAY, Loads
from holdfast.endpoint.workers.routing import Place
from holdfast.endpoint.workers.socket_directory import SocketDirectory
from holdfast.exceptions import ConfigurationError

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds until a worker that died is started again: doubled each time, up to the longest."""
STEADY: Final = 60.0
"""Seconds of running after which earlier deaths of a worker no longer count."""
ORPHAN_GRACE: Final = 15.0
"""Seconds that a worker has to stop on its own after its supervisor has died."""


@dataclass
class _Process:
    """The supervisor's state of one worker."""

    number: int
    inbox: socket.socket
    taking: socket.socket
    pid: int = 0
    control: socket.socket | None = None
    told: bytes = b""
    is_ready: bool = False
    starts: int = 0
    deaths: int = 0
    started_at: float = 0.0
    start_at: float | None = None


@dataclass
class Post:
    """A worker's side of its link to the supervisor.

    Args:
        place: Its number and links among the workers.
        control: Its socket to the supervisor.
        directory: The directory of all workers' Unix sockets.
        messages, admin: The shared listening sockets, for messages and for the admin listener.
        hang_ups: How many SIGHUPs have arrived so far, until this process handles the signal itself.
    """

    place: Place
    control: socket.socket
    directory: str
    messages: Sequence[socket.socket]
    admin: Sequence[socket.socket]
    hang_ups: Callable[[], int]

    def tell_ready(self, facts: Mapping[str, Any]) -> None:
        """Report that the worker serves, with facts for the user and for the other workers."""
        self.control.sendall(json.dumps(dict(facts)).encode() + b"\n")

    def end_with_supervisor(self) -> None:
        """End this process when the supervisor ends for any reason.

        The process ends as after SIGTERM; if that takes longer than ``ORPHAN_GRACE``, it exits immediately.
        """

        def watch() -> None:
            with contextlib.suppress(ConnectionError):
                while self.control.recv(64):
                    pass
            shutil.rmtree(self.directory, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(ORPHAN_GRACE)
            os._exit(1)

        threading.Thread(target=watch, name="holdfast-orphan", daemon=True).start()


class Supervisor:
    """Starts and watches workers.

    Args:
        count: The number of workers.
        messages, admin: The shared listening sockets, which the supervisor closes when it tells the workers to stop.
        ready: Called once, in the supervisor, when all workers serve, with what worker 0 reported about itself.
        passes_hang_up: Whether the supervisor passes SIGHUP to the workers; otherwise it ends them all, the default.

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
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("workers need fork, which this system does not have", remedy="Omit --workers.")
        if count > MOST:
            raise ConfigurationError(f"{count} workers are too many", remedy=f"Use at most {MOST}: one for each core.")
        self._count = count
        self._messages = messages
        self._admin = admin
        self._ready = ready
        self._passes_hang_up = passes_hang_up
        self._hang_ups = self._passed = 0
        self._directory = SocketDirectory()
        self._paths = tuple(os.path.join(self._directory.path, str(number)) for number in range(count))
        self._giving: list[socket.socket] = []
        self._loads = Loads(count)
        self._identifiers = IdentifierTable(count)
        self._processes: list[_Process] = []
        for number, path in enumerate(self._paths):
            inbox = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            inbox.bind(path)
            inbox.listen(1024)
            taking, giving = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            giving.setblocking(False)
            self._giving.append(giving)
            self._processes.append(_Process(number, inbox, taking))
        self._facts: Mapping[str, Any] = {}
        self._are_ready = False
        self._signals = 0  # that told us to end
        self._is_ending = False
        self._code = 0

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
        self._processes[0].start_at = 0.0
        while any(process.pid or process.start_at is not None for process in self._processes):
            for process in self._processes:
                if process.start_at is not None and process.start_at <= time.monotonic():
                    post = self._start(process)
                    if post is not None:
                        woken.close()
                        wake.close()
                        return post
            self._wait(woken)
            for process in self._processes:
                self._look_after(process)
            if self._passed < self._hang_ups:
                self._passed = self._hang_ups
                for process in self._processes:
                    if process.pid:
                        os.kill(process.pid, signal.SIGHUP)
            if self._signals:
                self._end(signal.SIGKILL if self._signals > 1 else signal.SIGTERM)
        self._directory.delete()
        raise SystemExit(self._code)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _on_hang_up(self, number: int, frame: object) -> None:
        self._hang_ups += 1

    def _start(self, process: _Process) -> Post | None:
        """Start a worker; in it, its side of everything."""
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
            process.pid, process.control, process.told = pid, ours, b""
            process.starts += 1
            process.is_ready = False
            process.started_at = time.monotonic()
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor tells us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        ours.close()
        for other in self._processes:
            if other.control is not None:
                other.control.close()  # else it would not see that the supervisor is gone
            if other is not process:
                other.inbox.close()
                other.taking.close()
        epochs, partitions = self._facts.get("epochs", {}), self._facts.get("partitions")
        first = tuple(partitions) if partitions is not None and process.number else None
        claims = self._identifiers.of(process.number) if self._count > 1 else None
        worker = Worker(
            process.number, self._count, epochs, is_restart=process.starts > 0, partitions=first, claims=claims
        )
        place = Place(worker, self._paths, process.inbox, process.taking, tuple(self._giving), self._loads)
        return Post(place, theirs, self._directory.path, self._messages, self._admin, lambda: self._hang_ups)

    # --- watching -------------------------------------------------------------------------------------------------

    def _wait(self, woken: socket.socket) -> None:
        """Wait for an event of a worker, a signal, or the next scheduled start."""
        now = time.monotonic()
        starts = [process.start_at for process in self._processes if process.start_at is not None]
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            for process in self._processes:
                if process.control is not None:
                    selector.register(process.control, selectors.EVENT_READ)
            selector.select(max(0.0, min(starts) - now) if starts else None)
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)

    def _look_after(self, process: _Process) -> None:
        self._hear(process)
        if not process.pid:
            return
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid:
            process.pid = 0
            if process.control is not None:
                process.control.close()
                process.control = None
            self._died(process, os.waitstatus_to_exitcode(status))

    def _hear(self, process: _Process) -> None:
        """Process a worker's report that it serves."""
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
        process.told += told
        if process.is_ready or not process.told.endswith(b"\n"):
            return
        process.is_ready = True
        if process.number == 0 and not self._facts:
            self._facts = json.loads(process.told)
            for other in self._processes[1:]:
                other.start_at = 0.0
        if not self._are_ready and all(one.is_ready for one in self._processes):
            self._are_ready = True
            self._ready(self._facts)

    def _died(self, process: _Process, code: int) -> None:
        process.is_ready = False
        self._loads.set(process.number, AWAY)
        if self._is_ending:
            if code not in (0, -signal.SIGTERM, -signal.SIGKILL):
                self._code = self._code or 1
            return
        how = signal.Signals(-code).name if code < 0 else code
        if not self._are_ready:
            # What keeps it from starting will not pass: a mistake in the options, another that has its store.
            log.error("worker.start_failed", number=process.number, code=how)
            self._code = code if code > 0 else 1
            self._end(signal.SIGTERM)
            return
        if time.monotonic() - process.started_at >= STEADY:
            process.deaths = 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**process.deaths)
        process.deaths += 1
        process.start_at = time.monotonic() + pause
        log.error("worker.died", number=process.number, code=how, again_in=pause)

    def _end(self, number: signal.Signals) -> None:
        """Send a signal to all workers. Once they are ending, only SIGKILL has an effect."""
        if self._is_ending and number != signal.SIGKILL:
            return
        self._is_ending = True
        for shared in (*self._messages, *self._admin):
            shared.close()
        for process in self._processes:
            process.start_at = None
            if process.pid:
                os.kill(process.pid, number)
        if number == signal.SIGKILL:
            self._code = 130
