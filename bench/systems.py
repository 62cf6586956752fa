"""The systems that bench/broker.py measures, one adapter each: start, address, processes.

A system runs in separate processes from ``with`` to its end. An unavailable system reports the reason, and the others
are measured without it. The adapters do not depend on the load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "interop"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import databases
import gsoap_peer
import java_peer

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
"""Directory for built systems."""


class Unavailable(Exception):
    """A system is unavailable on this machine; the message gives the reason."""


@dataclass
class System:
    """A system to measure.

    Args:
        name: Its name in tables.
        keeps: Where a message is when it is acknowledged: "disk", "memory", or "" for a system without messages.
        warmup: Seconds of load before it is measured.
        store: Path of its embedded store, below its directory; "" for none.
    """

    name: str
    keeps: str
    warmup: float = 1.0
    store: str = ""

    @property
    def forwards(self) -> bool:
        """Whether a message is finished only when it has reached the next system."""
        return False

    @property
    def pids(self) -> Iterable[int]:
        """The processes that it needs in addition to its own."""
        return []

    def end(self) -> None:
        """End those processes."""

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """Build and prepare the system; return the command to run.

        Args:
            directory: A separate directory for its files.
            sink: Address to forward to, if it forwards.

        Raises:
            Unavailable: it is unavailable on this machine.
        """
        raise NotImplementedError

    @property
    def plain(self) -> bool:
        """Whether requests contain arbitrary bytes instead of messages."""
        return not self.keeps


@dataclass
class Python(System):
    """A script of this directory."""

    script: str = ""
    arguments: tuple[str, ...] = ()

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """See :meth:`System.start`."""
        return [sys.executable, str(HERE / self.script), *(word.format(directory) for word in self.arguments)]


@dataclass
class Broker(System):
    """``holdfast broker``.

    Args:
        to_sink: Whether it forwards to a sink, which is a separate process and does not count.
        to: Other address to forward to; "" for none.
        place: Its store, as in its configuration.
    """

    to_sink: bool = False
    to: str = ""
    place: str = "{}/store"

    @property
    def forwards(self) -> bool:
        """See :attr:`System.forwards`."""
        return self.to_sink

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """See :meth:`System.start`."""
        lines = [f"store = {json.dumps(self.place.format(directory))}", "listen.port = 0", "admin.port = 0"]
        if to := sink or self.to:
            lines += ["[queues.inbox]", "[forwarders.sink]", 'queue = "inbox"', f"to = {json.dumps(to)}"]
        (directory / "broker.toml").write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "holdfast", "broker", "--config", str(directory / "broker.toml")]
        return [*command, "--log-level", "error"]


@dataclass
class SqlBroker(Broker):
    """The same on a private database server, as in the tests, with its processes included.

    Args:
        kind: "postgresql" or "mariadb".
    """

    kind: str = ""
    server: databases.Server | None = None

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """See :meth:`System.start`."""
        missing = databases.KINDS[self.kind].missing()
        if missing:
            raise Unavailable(missing)
        self.server = databases.KINDS[self.kind]()
        self.server.begin()
        self.place = self.server.url()
        return super().start(directory, sink)

    @property
    def pids(self) -> Iterable[int]:
        """See :attr:`System.pids`."""
        return [self.server.process.pid] if self.server is not None and self.server.process is not None else []

    def end(self) -> None:
        """See :meth:`System.end`."""
        if self.server is not None:
            self.server.end()
            self.server = None


@dataclass
class Gsoap(System):
    """gSOAP's RM server of the interoperability tests, optimized, with a thread for each connection."""

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """See :meth:`System.start`."""
        why = gsoap_peer.available()
        if why is not None:
            raise Unavailable(why)
        os.environ["CFLAGS"] = "-O2"
        built = gsoap_peer.build(CACHE)
        return [str(built / "rm11" / "server"), "--port", "0", "--threads"]


@dataclass
class Cxf(System):
    """Apache CXF's server, from the project in ``cxf/``; its compiled code is warm after some thousand messages."""

    arguments: tuple[str, ...] = ()

    def start(self, directory: Path, sink: str = "") -> list[str]:
        """See :meth:`System.start`."""
        why = java_peer.available()
        if why is not None:
            raise Unavailable(why)
        try:
            class_path = java_peer.build(CACHE, HERE / "cxf")
        except java_peer.Unavailable as error:
            raise Unavailable(str(error)) from error
        (directory / "derby.properties").write_text("derby.stream.error.file=" + str(directory / "derby.log"))
        words = [word.format(directory) for word in self.arguments]
        options = ["-Xmx1g", f"-Dderby.system.home={directory}"]
        return ["java", *options, "-cp", class_path, "bench.Server", *words]


def systems() -> list[System]:
    """Return all systems, the unit first."""
    return [
        Python("bare", "", script="bare.py"),
        Python("destination", "disk", store="store", script="endpoints.py", arguments=("--serve", "{}/store")),
        Broker("broker", "disk", store="store"),
        Broker("forwarded", "disk", store="store", to_sink=True),
        SqlBroker("broker, postgresql", "disk", kind="postgresql"),
        SqlBroker("broker, mariadb", "disk", kind="mariadb"),
        SqlBroker("forwarded, postgresql", "disk", kind="postgresql", to_sink=True),
        SqlBroker("forwarded, mariadb", "disk", kind="mariadb", to_sink=True),
        Broker("broker, destination down", "disk", store="store", to="http://127.0.0.1:9/"),
        Gsoap("gsoap", "memory"),
        Cxf("cxf", "memory", warmup=10.0, arguments=("memory",)),
        Cxf("cxf-derby", "disk", warmup=20.0, arguments=("derby", "{}/derby")),
    ]


class Running:
    """A system in its processes, from ``with`` to its end.

    Args:
        system: The system.
        directory: Directory for its files; created if it does not exist.

    Raises:
        Unavailable: it is unavailable on this machine, or did not start.
    """

    def __init__(self, system: System, directory: Path) -> None:
        self.system = system
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._children: list[subprocess.Popen[str]] = []
        self.sink = ""

    def __enter__(self) -> Self:
        try:
            if self.system.forwards:
                self.sink = self._start([sys.executable, str(HERE / "sink.py")])
            self.url = self._start(self.system.start(self._directory, self.sink))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, command: list[str]) -> str:
        path = self._directory / "errors"
        with path.open("w") as log:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._children.append(child)
        assert child.stdout is not None
        url = _url(child.stdout.readline())
        if not url:
            raise Unavailable(f"it did not start: {path.read_text()[-1000:]}")
        return url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.terminate()
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:  # no system has anything left to save
                child.kill()
                child.wait()
        self.system.end()

    @property
    def pids(self) -> Iterable[int]:
        """Its processes, without the sink."""
        return [self._children[-1].pid, *self.system.pids]

    def forwarded(self, path: str = "") -> tuple[int, float]:
        """Return how many messages reached the sink, and in how many seconds; "new" resets the count."""
        with urllib.request.urlopen(self.sink + path) as answer:
            told = json.loads(answer.read())
        return told["messages"], told["seconds"]


def _url(line: str) -> str:
    """Parse a server's first line: its port, ``ready PORT``, ``listening on URL``, or a description."""
    words = line.split()
    if words[:2] == ["listening", "on"]:
        return words[2]
    if len(words) == 2 and words[0] == "ready":
        return f"http://127.0.0.1:{words[1]}/"
    if not words:
        return ""
    described = json.loads(line)
    return str(described["url"]) if isinstance(described, dict) else f"http://127.0.0.1:{described}/"
