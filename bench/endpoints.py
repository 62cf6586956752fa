"""Durable messages over HTTP: rate, CPU and latency of a Destination, beside the same server giving a fixed answer.

    python bench/endpoints.py                       # one run, both servers in turn
    python bench/endpoints.py --connections 1 8 64 --json

Every message is one-way, about 1.1 KB, decoded, stored in the embedded store and acknowledged after its sync. Both
servers run on processor 0, the load generator on processor 1, in alternation; ratios are within one run. Nothing here
passes or fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

HERE = Path(__file__).resolve().parent


def serve(store: str) -> None:
    """The Destination under measurement: no handlers, so that messages wait in its queue."""
    from holdfast.endpoint.destination import Destination
    from holdfast.endpoint.serve import Listeners, Service
    from holdfast.http.server import event_loop_factory

    async def run() -> None:
        service = Service(Destination(store=store), Listeners(port=0, admin_port=0))
        await service.start()
        print(json.dumps({"url": service.url, "admin": service.admin_url}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await service.close()

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        if os.environ.get("HOLDFAST_PROFILE"):
            import cProfile

            profile = cProfile.Profile()
            profile.runcall(runner.run, run())
            profile.dump_stats(os.environ["HOLDFAST_PROFILE"])
        else:
            runner.run(run())


def _counter(admin: str, name: str) -> float:
    with urllib.request.urlopen(f"{admin}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return 0.0


def _start(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        for task in os.listdir(f"/proc/{child.pid}/task"):
            os.sched_setaffinity(int(task), {0})
    return child, line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, nargs="+", default=[64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rm", default="1.1", choices=("1.0", "1.1"))
    parser.add_argument("--soap", default="1.2", choices=("1.1", "1.2"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    rows = []
    for connections in options.connections:
        with tempfile.TemporaryDirectory() as directory:
            rows.append(_measure(options, connections, directory))
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['connections']} connections")
        for name in ("fixed", "durable"):
            figures = row[name]
            print(
                f"  {name:8} {figures['rate']:>9,.0f}/s  {figures['server_cpu_us']:6.1f} us CPU  "
                f"p50 {figures['p50']:.2f}  p90 {figures['p90']:.2f}  p99 {figures['p99']:.2f} ms"
            )
        print(f"  durable / fixed rate {row['rate_ratio']:.3f}; {row['messages_per_sync']:.1f} messages a sync")


def _measure(options: argparse.Namespace, connections: int, directory: str) -> dict[str, object]:
    fixed, line = _start([sys.executable, str(HERE / "fixed.py"), "--serve"])
    durable, described = _start([sys.executable, __file__, "--serve", f"{directory}/store"])
    ports = json.loads(described)
    arguments = ["--connections", str(connections), "--seconds", str(options.seconds / 2)]
    reliable = [*arguments, "--rm", options.rm, "--soap", options.soap]
    results: dict[str, list[load.Result]] = {"fixed": [], "durable": []}
    for _ in range(2):
        url = f"http://127.0.0.1:{int(line)}/"
        results["fixed"].append(load.in_process(["--url", url, "--plain", "--pid", str(fixed.pid), *arguments]))
        results["durable"].append(load.in_process(["--url", ports["url"], "--pid", str(durable.pid), *reliable]))
    messages = _counter(ports["admin"], "holdfast_messages_accepted_total")
    syncs = _counter(ports["admin"], "holdfast_commits_total")
    for child in (fixed, durable):
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    row: dict[str, object] = {"connections": connections, "messages_per_sync": messages / max(1.0, syncs)}
    for name, runs in results.items():
        best = max(runs, key=lambda run: run.rate)
        if best.errors:
            raise SystemExit(f"{name}: {best.errors}")
        row[name] = asdict(best)
    row["rate_ratio"] = max(r.rate for r in results["durable"]) / max(r.rate for r in results["fixed"])
    return row


if __name__ == "__main__":
    main()
