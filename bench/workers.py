"""The use of several cores by several workers: rate, and CPU per message, compared with one process.

    python bench/workers.py
    python bench/workers.py --workers 1 2 --connections 8 64 --rounds 5

The servers run in alternation, a round each, loaded by ``load.py`` in a separate process, with one Sequence for each
connection. ``given`` is the usual case: a connection belongs to the worker that has its Sequence. For ``passed``, each
connection uses a Sequence of every worker in turn, so all but one of them must pass the request on, over a Unix socket.
CPU is that of all the server's processes; figures are medians. The benchmark has no pass or fail.

The load generator needs a core as well: on two cores, two workers have at most the rest of the second one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

from holdfast.endpoint.worker import worker_of

MODULE = "import holdfast\napp = holdfast.Destination(store='inbox', queues={'inbox': 'none'})\n"


class Everywhere:
    """Sequences of all workers on one connection, a message of each in turn."""

    def __init__(self, url: str, number: int, workers: int) -> None:
        self._make = lambda: load.reliable()(url, number)
        self._workers = workers
        self._found: dict[int, load.Script] = {}
        self._turn = 0
        self._asked = self._make()

    def next_request(self) -> bytes:
        if len(self._found) < self._workers:
            self._asked = self._make()
        else:
            self._turn += 1
            self._asked = self._found[self._turn % self._workers]
        return self._asked.next_request()

    def check(self, status: int, body: bytes) -> str:
        problem = self._asked.check(status, body)
        if not problem and len(self._found) < self._workers:
            identifier = load.IDENTIFIER.search(body)
            assert identifier is not None
            self._found[worker_of(identifier[1].decode()) or 0] = self._asked
        return problem


class Server:
    """``holdfast serve`` with this many workers."""

    def __init__(self, directory: str, workers: int) -> None:
        self.workers = workers
        (Path(directory) / "served.py").write_text(MODULE)
        command = [sys.executable, "-m", "holdfast", "serve", "served:app", "--port", "0", "--log-level", "error"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent / "src")}
        self.process = subprocess.Popen(
            [*command, "--workers", str(workers)], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().rpartition(" ")[2].strip()

    def measure(self, way: str, connections: int, seconds: float) -> load.Result:
        """Run one round, loaded by a separate process."""
        told = [self.url, str(self.process.pid), way, str(self.workers), str(connections), str(seconds)]
        done = subprocess.run([sys.executable, __file__, "--drive", *told], stdout=subprocess.PIPE, check=True)
        return load.Result(**json.loads(done.stdout))

    def memory(self) -> tuple[int, int]:
        """Return the MiB of all its processes, with shared memory counted once; and those of the workers alone."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        workers = sum(_proportional(int(child)) for child in children)
        return (workers + _proportional(self.process.pid)) >> 10, workers >> 10

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def _proportional(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def drive(url: str, pid: str, way: str, workers: str, connections: str, seconds: str) -> None:
    """Run the load generator."""
    count = int(workers)
    script = load.reliable() if way == "given" else lambda url, number: Everywhere(url, number, count)
    result = load.measure(
        url, script, connections=int(connections), seconds=float(seconds), warmup=1.0, pids=[int(pid)]
    )
    print(json.dumps(asdict(result)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--connections", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drive", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    rows = [(count, way) for count in options.workers for way in ("given", "passed") if count > 1 or way == "given"]
    for connections in options.connections:
        found: dict[tuple[int, str], list[load.Result]] = {row: [] for row in rows}
        memory = {}
        for _ in range(options.rounds):
            for count, way in rows:
                with tempfile.TemporaryDirectory() as directory:
                    server = Server(directory, count)
                    found[count, way].append(server.measure(way, connections, options.seconds))
                    memory[count, way] = server.memory()
                    server.end()
        unit = statistics.median(one.rate for one in found[rows[0]])
        print(f"{connections} connections, load {os.getloadavg()[0]:.1f}")
        print("workers  connections    rate/s  beside  CPU us  p50 ms  p99 ms  MiB  errors")
        for (count, way), results in found.items():
            rate, cpu, p50, p99 = (
                statistics.median(getattr(one, name) for one in results)
                for name in ("rate", "server_cpu_us", "p50", "p99")
            )
            errors = sum(sum(one.errors.values()) for one in results)
            print(
                f"{count:7}  {way:11}  {rate:8,.0f}  {rate / unit:6.2f}  {cpu:6.1f}  {p50:6.2f}  {p99:6.2f}  "
                f"{memory[count, way][0]:3}  {errors}"
            )


if __name__ == "__main__":
    main()
