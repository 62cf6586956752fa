"""Durable messages: what they cost here and elsewhere, in one run, from one load generator.

    python bench/broker.py                                       # a body of 1.1 KB's message, 64, 8 and 1 connections
    python bench/broker.py --bodies 100 1000 10000 --rounds 5 --json
    python bench/broker.py --systems destination cxf-derby --connections 8

What is measured, in alternation, each in processes of its own and warm:

- ``bare``: a listener on uvloop and httptools with a fixed answer of 600 bytes. A request of it is a **unit**.
- ``destination``: ``holdfast.Destination`` on the embedded store: a message is decoded, stored, synced, acknowledged.
- ``broker``: ``holdfast broker``, whose messages wait in its queue.
- ``forwarded``: the same with a forwarder to an RM Destination that keeps nothing: accepted, sent on,
  acknowledged there, and deleted. Its messages and its processor time are counted until the last one has arrived.
- ``broker, postgresql`` and so on: the same on a private database server, whose processor time is counted with it.
- ``gsoap``: gSOAP's RM server, in memory.
- ``cxf``, ``cxf-derby``: Apache CXF's server, in memory, and with its Derby store.

Beside them a file on the same disk is appended to and synced, message by message. Nothing is bound to a processor: what
has threads may use all there are, beside the load generator. Processor time is that of a server's processes and all
they started, from /proc. Rates and quantiles are of the round with the best rate, processor time that of the round with
the least. With ``--moderate``, each is then asked at that share of its best rate, at times that it has no say in:
latencies of a server that is not at its limit. Nothing here passes or fails.
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
"""All but what only a backlog is measured with."""
BESIDE = "cxf-derby"
"""The one that ratios are given of, if it is there."""
FLOOR = "append+sync"
PATIENCE = 120.0
"""Seconds for all that was accepted to be where it goes."""


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
    """Under which conditions is measured."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processors": os.cpu_count(),
        "python": python,
        "load_before": round(os.getloadavg()[0], 1),
    }


def ended(conditions: dict[str, Any]) -> dict[str, Any]:
    """The same, and what wanted a processor at the end: all that is measured, and whatever else there is."""
    return {**conditions, "load_after": round(os.getloadavg()[0], 1)}


def tell(text: str) -> None:
    """Say how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(running: list[Running], directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows: one for each body, number of connections and system."""
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
    """One round.

    Raises:
        SystemExit: a request was not answered as it should be.
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
        count, took = arrived(one, result.answered - connections)  # a Sequence was created by the first of each
        result.rate = count / took
        result.server_cpu_us = 1e6 * (load.cpu_seconds(one.pids) - cpu) / count
    return result


def arrived(one: Running, least: int) -> tuple[int, float]:
    """How many messages came to the sink, and in how many seconds, when all are there.

    Raises:
        SystemExit: they do not come.
    """
    until, before = time.monotonic() + PATIENCE, -1
    while time.monotonic() < until:
        count, took = one.forwarded()
        if count >= least and count == before:  # what was under way when the load ended may have come, too
            return count, took
        before = count
        time.sleep(0.3)
    raise SystemExit(f"{one.system.name}: of {least} messages {before} arrived within {PATIENCE:.0f} s")


def summed_up(results: dict[str, list[load.Result]], body: int, connections: int) -> list[dict[str, Any]]:
    """The rows of the rounds that were made with the same body and connections."""
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
    """Add to the rows with the most connections what latencies are like at a share of their rate."""
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
    """Append to a file and sync it, one after the other: the rate and latencies, in milliseconds."""
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
    """Print the rows, a table for each body and number of connections, then what was seen at a moderate load."""
    head = f"{'':22}{'units':>7}{'CPU us':>9}{'rate/s':>10}" + "".join(
        f"{name:>9}" for name in ("p50", "p90", "p99", "p99.9")
    )
    beside = f"{'CPU':>8}{'rate':>8}  beside {BESIDE}: times less, times more"
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
