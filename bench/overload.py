"""A broker at twice its maximum rate for a while: its answers, its memory, and the time to recover.

    python bench/overload.py                       # a minute at twice the rate, over 512 connections
    python bench/overload.py --seconds 600 --connections 2000 --times 3

The load is first that of 64 connections, one message after the other; then a multiple of that rate, evenly spread over
more connections; then immediately a quarter of it. Forwarded messages arrive at a sink, which counts each number once.
The output contains the rates and latencies, the broker's maximum memory, and the numbers of acknowledged and arrived
messages. The script fails if fewer messages arrived than were acknowledged, or more than were acknowledged or in flight
at the end of a phase.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import load
from systems import Broker, Running

PATIENCE = 600.0


class Memory:
    """Samples a process's memory four times a second."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def now(self) -> int:
        """Return its bytes."""
        line = next(one for one in self._status.read_text().splitlines() if one.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            self.most = max(self.most, self.now())

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of too much")
    parser.add_argument("--times", type=float, default=2.0, help="of the rate it can take")
    parser.add_argument("--connections", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overload-") as directory:
        system = Broker("broker", "disk", store="store", to_sink=True)
        with Running(system, Path(directory) / "broker") as broker:
            measure(broker, options)


def measure(broker: Running, options: argparse.Namespace) -> None:
    """Run the three phases.

    Raises:
        SystemExit: an acknowledged message did not arrive, or one arrived twice.
    """
    (pid,) = broker.pids
    memory = Memory(pid)
    broker.forwarded("new")
    usual = ask(broker, 64, 5.0, 0.0)
    acknowledged = show("as it comes", usual, 64, memory)
    much = ask(broker, options.connections, options.seconds, options.times * usual.rate)
    acknowledged += show(f"{options.times:g} times as much", much, options.connections, memory)
    after = ask(broker, 64, 5.0, usual.rate / 4)
    acknowledged += show("a quarter, at once", after, 64, memory)
    arrived, before, until = 0, -1, time.monotonic() + PATIENCE
    while (arrived < acknowledged or arrived != before) and time.monotonic() < until:
        arrived, before = broker.forwarded()[0], arrived
        time.sleep(1.0)
    memory.stop()
    print(
        f"{acknowledged:,} acknowledged, {arrived:,} arrived; {memory.most >> 20} MiB at most, now {memory.now() >> 20}"
    )
    if not acknowledged <= arrived <= acknowledged + 2 * 64 + options.connections:
        raise SystemExit("the arrived messages differ from the acknowledged ones and those in flight")


def ask(broker: Running, connections: int, seconds: float, rate: float) -> load.Result:
    """Apply one kind of load."""
    where = ["--url", broker.url, "--soap", "1.1", "--body-bytes", "370", "--connections", str(connections)]
    return load.in_process([*where, "--seconds", str(seconds), "--rate", str(rate)])


def show(name: str, result: load.Result, connections: int, memory: Memory) -> int:
    """Print a phase; return the number of messages acknowledged in it."""
    errors = "".join(f"\n    {count} x {what}" for what, count in result.errors.items())
    print(
        f"{name:22} {result.rate:8,.0f}/s  p50 {result.p50:8.2f}  p99 {result.p99:8.2f}  "
        f"longest {result.longest:8.2f} ms  {memory.now() >> 20} MiB{errors}",
        flush=True,
    )
    return result.answered - connections  # the first of each connection created its Sequence


if __name__ == "__main__":
    main()
