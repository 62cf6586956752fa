"""The cost of durable messages in Holdfast and in other systems, in one run, from one load generator.

    python bench/broker.py                                       # a body of 1.1 KB's message, 64, 8 and 1 connections
    python bench/broker.py --bodies 100 1000 10000 --rounds 5 --json
    python bench/broker.py --systems destination cxf-derby --connections 8

The systems run in alternation, each in separate, warm processes:

- ``bare``: a listener on uvloop and httptools with a fixed answer of 600 bytes. A request of it is a **unit**.
- ``destination``: ``holdfast.Destination`` on the embedded store: it decodes, stores, syncs and acknowledges a message.
- ``broker``: ``holdfast broker``, with messages that wait in its queue.
- ``forwarded``: the same with a forwarder to an RM Destination that stores nothing: each message is accepted,
  forwarded, acknowledged there, and deleted. The count of messages and processor time continues until the last one has
  arrived.
- ``broker, postgresql`` and so on: the same on a private database server, with its processor time included.
- ``gsoap``: gSOAP's RM server, in memory.
- ``cxf``, ``cxf-derby``: Apache CXF's server, in memory, and with its Derby store.

For comparison, the benchmark also appends to a file on the same disk and syncs it, message by message. No process is
bound to a processor: threads may use all processors, together with the load generator. Processor time is that of a
server's processes and all their children, from /proc. Rates and quantiles are of the round with the best rate,
processor time of the round with the least. ``--moderate`` then requests each system at that share of its best rate, at
fixed times: latencies of a server below its limit. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import load
from paper.summary import quantile
from systems import Running, Unavailable, systems

USUAL = (
    *("destination", "broker", "forwarded", "broker, postgresql", "broker, mariadb"),
    *("forwarded, postgresql", "forwarded, mariadb", "gsoap", "cxf", "cxf-derby"),
)
"""All systems except the one that only the backlog benchmark uses."""
BESIDE = "cxf-derby"
"""The system that ratios compare with, if it is available."""
FLOOR = "append+sync"
PATIENCE = 120.0
"""Seconds for all accepted messages to reach their destination."""


def main() -> None:
    """Measure and print."""
    known = systems()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=[one.name for one in known], default=None)
    parser.add_argument(
        "--bodies", type=int, nargs="+", default=[370], help="bytes; the rest of a message is about 730"
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 8, 1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each system in each round")
    parser.add_argument("--warmup", type=float, default=1.0, help="share of the usual warm-up of each system")
    parser.add_argument("--moderate", type=float, default=0.25, help="share of the best rate for latencies; 0: none")
    parser.add_argument(
        "--directory", help="where stores are made and removed; the system's temporary files' if not said"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = ["bare", *(options.systems or USUAL)]
    conditions = begin()
    wanted = [one for one in known if one.name in names]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-", dir=options.directory)))
        running = []
        for system in wanted:
            try:
                running.append(stack.enter_context(Running(system, directory / system.name)))
            except Unavailable as error:
                tell(f"{system.name} is left out: {error}")
        rows = measure(running, directory, options)
    if options.json:
        print(json.dumps({**ended(conditions), "rows": rows}, indent=1))
    else:
        show(rows)


def begin() -> dict[str, Any]:
    """Return the conditions of the measurement."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processors": os.cpu_count(),
        "python": python,
        "load_before": round(os.getloadavg()[0], 1),
    }


def ended(conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the same, and the load at the end, including the measured processes."""
    return {**conditions, "load_after": round(os.getloadavg()[0], 1)}


def tell(text: str) -> None:
    """Print progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(running: list[Running], directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all rows: one for each body, number of connections and system."""
    for one in running:
        seconds = one.system.warmup * options.warmup
        if seconds:
            tell(f"{one.system.name}: warming up")
            ask(one, 8, options.bodies[0], seconds)
    rows = []
    for body in options.bodies:
        floor = append(directory / f"file-{body}", body + 730, options.seconds)
        rows.append({"system": FLOOR, "body": body, "connections": None, **floor})
        for connections in options.connections:
            tell(f"bodies of {body:,} bytes, {connections} connections")
            results: dict[str, list[load.Result]] = {one.system.name: [] for one in running}
            for number in range(options.rounds):
                for one in running if number % 2 == 0 else reversed(running):
                    results[one.system.name].append(ask(one, connections, body, options.seconds))
            rows += summed_up(results, body, connections)
        if options.moderate:
            add_moderate(running, [row for row in rows if row["body"] == body], options)
    return rows


def ask(one: Running, connections: int, body: int, seconds: float, rate: float = 0.0) -> load.Result:
    """Run one round.

    Raises:
        SystemExit: an answer was wrong.
    """
    if one.system.forwards:
        one.forwarded("new")
    cpu = load.cpu_seconds(one.pids)
    where = ["--url", one.url, "--pid", *map(str, one.pids), "--soap", "1.1", "--body-bytes", str(body)]
    how = ["--connections", str(connections), "--seconds", str(seconds), "--rate", str(rate)]
    result = load.in_process([*where, *how, *(["--plain"] if one.system.plain else [])])
    if result.errors:
        raise SystemExit(f"{one.system.name}: {result.errors}")
    if one.system.forwards:
        count, took = arrived(one, result.answered - connections)  # the first requests created Sequences
        result.rate = count / took
        result.server_cpu_us = 1e6 * (load.cpu_seconds(one.pids) - cpu) / count
    return result


def arrived(one: Running, least: int) -> tuple[int, float]:
    """Wait until all messages are at the sink; return their number and the seconds it took.

    Raises:
        SystemExit: they do not arrive.
    """
    until, before = time.monotonic() + PATIENCE, -1
    while time.monotonic() < until:
        count, took = one.forwarded()
        if count >= least and count == before:  # messages in flight at the end of the load may have arrived, too
            return count, took
        before = count
        time.sleep(0.3)
    raise SystemExit(f"{one.system.name}: of {least} messages {before} arrived within {PATIENCE:.0f} s")


def summed_up(results: dict[str, list[load.Result]], body: int, connections: int) -> list[dict[str, Any]]:
    """Return the rows of the rounds with the same body and connections."""
    least = {name: min(one.server_cpu_us or 0.0 for one in rounds) for name, rounds in results.items()}
    best = {name: max(rounds, key=lambda one: one.rate) for name, rounds in results.items()}
    rows = []
    for name, result in best.items():
        row: dict[str, Any] = {"system": name, "body": body, "connections": connections}
        row |= {key: value for key, value in asdict(result).items() if key not in ("errors", "server_cpu_us")}
        row["cpu_us"] = least[name]
        row["cpu_us_of_rounds"] = [one.server_cpu_us for one in results[name]]
        if "bare" in least:
            row["units"] = least[name] / least["bare"]
        if BESIDE in least:
            row["times_less_cpu"] = least[BESIDE] / least[name]
            row["times_the_rate"] = result.rate / best[BESIDE].rate
        rows.append(row)
    return rows


def add_moderate(running: list[Running], rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Add the latencies at a share of the rate to the rows with the most connections."""
    most = max(options.connections)
    floor = next(row["p50"] for row in rows if row["system"] == FLOOR)
    for one in running:
        row = next(row for row in rows if row["system"] == one.system.name and row["connections"] == most)
        rate = options.moderate * row["rate"]
        tell(f"{one.system.name}: {rate:,.0f} a second")
        found = ask(one, most, row["body"], 2 * options.seconds, rate)
        row["moderate"] = {"share": options.moderate}
        row["moderate"]["p50_in_syncs"] = found.p50 / floor
        row["moderate"] |= {key: getattr(found, key) for key in ("rate", "p50", "p90", "p99", "p999", "server_cpu_us")}


def append(path: Path, size: int, seconds: float) -> dict[str, Any]:
    """Append to a file and sync it, one message after the other; return the rate and latencies, in milliseconds."""
    data, took = b"x" * size, []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    cpu, begun = time.process_time(), time.perf_counter()
    while time.perf_counter() < begun + seconds:
        began = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        took.append(time.perf_counter() - began)
    elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    os.close(descriptor)
    took.sort()
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "longest": 1.0}
    figures: dict[str, Any] = {name: 1000 * quantile(took, share) for name, share in shares.items()}
    return {"rate": len(took) / elapsed, "cpu_us": 1e6 * cpu / len(took), **figures}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows, a table for each body and number of connections, then the figures at a moderate load."""
    head = f"{'':22}{'units':>7}{'CPU us':>9}{'rate/s':>10}" + "".join(
        f"{name:>9}" for name in ("p50", "p90", "p99", "p99.9")
    )
    beside = f"{'CPU':>8}{'rate':>8}  compared with {BESIDE}: times less, times more"
    shown = None
    for row in rows:
        if (row["body"], row["connections"]) != shown and row["connections"] is not None:
            shown = (row["body"], row["connections"])
            print(f"\nbodies of {row['body']:,} bytes, {row['connections']} connections\n{head}{beside}")
        elif row["connections"] is None:
            print(f"\nbodies of {row['body']:,} bytes, a file\n{head}")
        units = f"{row['units']:.1f}" if "units" in row else ""
        ratios = f"{row['times_less_cpu']:8.1f}{row['times_the_rate']:8.1f}" if "times_less_cpu" in row else ""
        print(f"{row['system']:22}{units:>7}{row['cpu_us']:9.1f}{row['rate']:10,.0f}{_quantiles(row)}{ratios}")
    moderate = [row for row in rows if "moderate" in row]
    if moderate:
        share = moderate[0]["moderate"]["share"]
        print(f"\nat {share:.0%} of that rate, with the most connections\n{head.replace('  units', '  bytes')}")
    for row in moderate:
        found = row["moderate"]
        what = f"{row['system']:22}{row['body']:>7,}{found['server_cpu_us']:9.1f}"
        print(f"{what}{found['rate']:10,.0f}{_quantiles(found)}  p50 is {found['p50_in_syncs']:.1f} syncs")


def _quantiles(row: dict[str, Any]) -> str:
    return "".join(f"{row[name]:9.2f}" for name in ("p50", "p90", "p99", "p999"))


if __name__ == "__main__":
    main()
