"""The cost of a cluster: CPU of a message beside a single broker, and the time without an owner when a partition moves.

    python bench/cluster.py
    python bench/cluster.py --rounds 5 --seconds 3
    python bench/cluster.py --database postgresql://user@host/database --only cost
    python bench/cluster.py --engine kafka --only gap --leases 6 2
    python bench/cluster.py --engine kafka --only rebuild

``cost`` loads four systems in alternation, a round each, with one Sequence for each connection: a broker with its own
store, a broker with its store in PostgreSQL or Kafka, a node of a cluster that owns all partitions, and two nodes, of
which the one without partitions gets all requests and passes them on. CPU is that of all processes of Holdfast, without
the engine's server; ratios are to the first system, of the medians.

``gap`` sends one message after the other to one node of three, in a Sequence of another node, and reports the longest
time between two acknowledgements: while that node is killed, paused, drained, or the partition is moved.

``rebuild`` opens a store in Kafka without its cache, and reports the megabytes of the log that it reads in a second.

The benchmark has no pass or fail. Without ``--database``, it starts a private PostgreSQL server, or a broker of Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

from demo.database import private_database
from demo.kafka import private_kafka
from holdfast.cluster.operating.engines import engine_of
from holdfast.core.records import Batch, Record
from holdfast.endpoint.worker import worker_of
from holdfast.store import is_kafka, open_store

SOURCE = str(Path(__file__).resolve().parent.parent / "src")
BROKER = 'store = "{store}"\nlisten.port = 0\nadmin.port = 0\n[queues.inbox]\nretention = "none"\n'
NODE = '[cluster]\nsecret_env = "CLUSTER_SECRET"\npartitions = {partitions}\nlease = {lease}\nport = 0\n'
PARTITIONS = 6
TROUBLES = ("killed", "paused", "moved", "ended", "drained")
SYSTEMS = ("embedded", "alone", "cluster", "passed on")


class Broker:
    """A broker in a process group of its own."""

    def __init__(self, directory: str, name: str, config: str) -> None:
        self.name = name
        path = Path(directory, f"{name}.toml")
        path.write_text(config)
        environment = os.environ | {
            "PYTHONPATH": SOURCE,
            "HOLDFAST_NODE": name,
            "CLUSTER_SECRET": "of this benchmark",
        }
        command = [sys.executable, "-m", "holdfast", "broker", "--config", str(path), "--log-level", "error"]
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().rpartition(" ")[2].strip()
        assert self.url, f"{name} did not start"

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    """Wait, five minutes at most, for the cluster to reach a state."""
    until = time.monotonic() + 300
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the cluster does not reach the expected state")
        time.sleep(0.05)


def owners(store: str) -> dict[int, str | None]:
    return {one.partition: one.owner for one in engine_of(store).read_status(store).partitions}


def serving(store: str, partition: int) -> set[str]:
    """The nodes that report that they serve a partition."""
    return {one.name for one in engine_of(store).read_status(store).nodes if partition in one.serving}


def location(database: str, name: str) -> str:
    """A new place in the database, or a new topic."""
    if is_kafka(database):
        return database.replace("/orders?", f"/orders-{name}?").replace("cache-{node}", f"cache-{name}-{{node}}")
    return f"{database}{'&' if '?' in database else '?'}space={name}"


# --- the cost of a message --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def system(name: str, directory: str, database: str, space: str) -> Iterator[tuple[str, list[int]]]:
    """Run a system, and yield its URL for messages and its processes."""
    store = f"{directory}/store" if name == "embedded" else location(database, space)
    if name == "alone":
        store = store.replace("{node}", "a")
    config = BROKER.format(store=store)
    if name in ("embedded", "alone"):
        brokers = [Broker(directory, "a", config)]
    else:
        config += NODE.format(partitions=PARTITIONS, lease=6)
        brokers = [Broker(directory, "a", config)]
        wait_for(lambda: set(owners(store).values()) == {"a"})
        if name == "passed on":
            brokers.append(Broker(directory, "b", config))
            engine_of(store).drain_node(store, "b")
            wait_for(lambda: set(owners(store).values()) == {"a"})
    try:
        yield brokers[-1].url, [one.process.pid for one in brokers]
    finally:
        for one in brokers:
            one.kill()


def drive(url: str, connections: str, seconds: str, *pids: str) -> None:
    """Run the load generator, in a process of its own."""
    result = load.measure(
        url,
        load.reliable(),
        connections=int(connections),
        seconds=float(seconds),
        warmup=2.0,
        pids=[int(pid) for pid in pids],
    )
    print(json.dumps([result.rate, result.server_cpu_us, result.p50, sum(result.errors.values())]))


def costs(database: str, connections: int, rounds: int, seconds: float) -> list[dict[str, object]]:
    """Measure every system, and return a row for each."""
    found: dict[str, list[list[float]]] = {name: [] for name in SYSTEMS}
    for number in range(rounds):
        for name in SYSTEMS:
            space = f"cost{os.getpid()}n{number}{name[:2]}"
            with tempfile.TemporaryDirectory() as directory, system(name, directory, database, space) as (url, pids):
                told = [url, str(connections), str(seconds), *map(str, pids)]
                done = subprocess.run(
                    [sys.executable, __file__, "--drive", *told], stdout=subprocess.PIPE, check=True, text=True
                )
                found[name].append(json.loads(done.stdout))
    rows: list[dict[str, object]] = []
    unit = statistics.median(one[1] for one in found[SYSTEMS[0]])
    for name, results in found.items():
        rate, cpu, p50 = (statistics.median(one[column] for one in results) for column in range(3))
        errors = int(sum(one[3] for one in results))
        rows.append({"system": name, "rate": rate, "cpu_us": cpu, "ratio": cpu / unit, "p50_ms": p50, "errors": errors})
    return rows


# --- the time without an owner ----------------------------------------------------------------------------------------


class Prober:
    """Sends one message after the other in one Sequence, each again until it is acknowledged.

    Args:
        url: Of a node.
        accepts: Whether the Sequence may belong to a partition.
    """

    def __init__(self, url: str, accepts: Callable[[int], bool]) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._socket: socket.socket | None = None
        self.partition = -1
        self.times: list[float] = []
        while self.partition < 0 or not accepts(self.partition):
            self._script = load.reliable()(url, 0)
            status, body = self._ask(self._script.next_request())
            self._script.check(status, body)
            identifier = load.IDENTIFIER.search(body)
            self.partition = (worker_of(identifier[1].decode()) or 0) if identifier is not None else -1
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            request = self._script.next_request()
            number = len(self.times) + 1
            while not self._is_over:
                status, body = self._ask(request)
                if status == 200 and number in map(int, load.UPPER.findall(body)):
                    self.times.append(time.perf_counter())
                    break
                time.sleep(0.002)
            time.sleep(0.002)

    def _ask(self, request: bytes) -> tuple[int, bytes]:
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, 30)
            self._socket.sendall(request)
            response = http.client.HTTPResponse(self._socket)
            response.begin()
            body = response.read()
            if response.will_close:
                self._close()
            return response.status, body
        except (OSError, http.client.HTTPException):
            self._close()
            return 0, b""

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait(self, count: int) -> None:
        """Wait for so many further acknowledgements."""
        seen = len(self.times)
        wait_for(lambda: len(self.times) >= seen + count)

    def end(self) -> float:
        """Stop, and return the longest time between two acknowledgements."""
        self._is_over = True
        self._thread.join()
        self._close()
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


class Nodes:
    """Three nodes of a cluster."""

    def __init__(self, directory: str, store: str, lease: float) -> None:
        self._directory, self.store = directory, store
        self._config = BROKER.format(store=store) + NODE.format(partitions=PARTITIONS, lease=lease)
        self.nodes = {name: Broker(directory, name, self._config) for name in "abc"}
        self.settle()

    def settle(self) -> None:
        """Wait until every node has its share, and start those that are missing."""
        for name, node in self.nodes.items():
            if node.process.poll() is not None:
                self.nodes[name] = Broker(self._directory, name, self._config)
        wait_for(lambda: sorted(list(owners(self.store).values()).count(name) for name in "abc") == [2, 2, 2])

    def gap(self, trouble: str) -> float:
        """Return the longest time between two acknowledgements of a partition of node a, which has some trouble."""
        mine = {partition for partition, owner in owners(self.store).items() if owner == "a"}
        prober, node = Prober(self.nodes["c"].url, mine.__contains__), self.nodes["a"]
        prober.wait(50)
        if trouble == "killed":
            node.kill()
        elif trouble == "paused":
            node.signal(signal.SIGSTOP)
        elif trouble == "drained":
            engine_of(self.store).drain_node(self.store, "a")
        elif trouble == "ended":
            node.end()
        elif trouble == "moved":
            engine_of(self.store).move_partitions(self.store, [prober.partition], "b")
        wait_for(lambda: owners(self.store)[prober.partition] not in ("a", None))
        wait_for(lambda: serving(self.store, prober.partition) - {"a"})
        prober.wait(20)
        found = prober.end()
        if trouble == "moved":  # else the shares stay uneven on Kafka
            engine_of(self.store).release_partitions(self.store, [prober.partition])
        node.kill()
        wait_for(lambda: "a" not in owners(self.store).values())
        self.settle()
        return found

    def clean(self) -> None:
        for node in self.nodes.values():
            node.kill()


def gaps(database: str, rounds: int, leases: Sequence[float], troubles: Sequence[str]) -> list[dict[str, object]]:
    """Measure the time without an owner after each trouble."""
    rows: list[dict[str, object]] = []
    for lease in leases:
        with tempfile.TemporaryDirectory() as directory:
            nodes = Nodes(directory, location(database, f"gap{os.getpid()}l{lease:g}"), lease)
            try:
                for trouble in troubles:
                    found = sorted(nodes.gap(trouble) for _ in range(rounds))
                    rows.append(
                        {
                            "lease": lease,
                            "trouble": trouble,
                            "median_s": statistics.median(found),
                            "longest_s": found[-1],
                            "rounds": rounds,
                        }
                    )
            finally:
                nodes.clean()
    return rows


# --- the time without a cache -----------------------------------------------------------------------------------------


def rebuild(database: str, megabytes: int) -> dict[str, object]:
    """Fill a log, and measure how fast a start without a cache reads it."""
    url = location(database, f"rebuild{os.getpid()}").replace("{node}", "a") + "&partitions=1"
    store, end, body = open_store(url), 0, os.urandom(8192)
    while end * len(body) < megabytes * 1e6:
        appends = [
            ("bench", 0, offset, Record("urn:uuid:b", offset + 1, "urn:b", body, 0.0, "urn:b:1", "http://b/"))
            for offset in range(end, end + 100)
        ]
        store.commit(Batch(appends=appends))
        end += 100
    store.close()
    shutil.rmtree(urlsplit(url).query.partition("cache=")[2].partition("&")[0])
    begun, used = time.perf_counter(), time.process_time()
    open_store(url).close()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - used
    size = end * len(body) / 1e6
    return {"megabytes": size, "seconds": seconds, "mb_per_s": size / seconds, "mb_per_cpu_s": size / cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="URL of a database; default: a private server.")
    parser.add_argument("--engine", choices=("postgresql", "kafka"), default="postgresql")
    parser.add_argument("--only", choices=("cost", "gap", "rebuild"))
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--troubles", nargs="+", default=TROUBLES, choices=TROUBLES)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leases", type=float, nargs="+", default=[6.0, 2.0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--drive", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    with contextlib.ExitStack() as stack:
        if options.engine == "kafka":
            caches = stack.enter_context(tempfile.TemporaryDirectory())
            database = stack.enter_context(private_kafka(Path(caches)))
        else:
            database = options.database or stack.enter_context(private_database())
        found: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
        if options.only in (None, "cost"):
            found["cost"] = costs(database, options.connections, options.rounds, options.seconds)
        if options.only in (None, "gap"):
            found["gap"] = gaps(database, options.rounds, options.leases, options.troubles)
        if options.engine == "kafka" and options.only in (None, "rebuild"):
            found["rebuild"] = [rebuild(database, options.megabytes)]
    if options.json:
        print(json.dumps(found))
        return
    print(f"load {found['load']:.1f} at the start, {found['cores']} cores")
    for part in ("cost", "gap", "rebuild"):
        for row in found.get(part, ()):  # type: ignore[attr-defined]
            print(
                "  ".join(
                    f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in row.items()
                )
            )


if __name__ == "__main__":
    main()
