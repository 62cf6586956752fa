"""Calls through a broker and direct ones, in alternation: the median of each, and their ratio.

    python bench/calls.py                              # from a Holdfast source, and from WCF's client if available
    python bench/calls.py --clients source --rounds 9 --calls 500 --json

A client makes calls one after the other in one session, in turn to a service and to a broker that forwards to it. Both
are separate processes with stores on the disk. The service answers immediately. The source also keeps its messages on
the disk. The environment variable ``WCF_CLIENT`` names Microsoft's WCF client. Its clock has a resolution of one
millisecond. So the time of a call is a twentieth of the time that twenty calls in a row take, and the median is
interpolated. The first calls of each run are not counted. Processor time is that of the service and the broker together
for each call. No process is bound to a processor. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))

CONTRACT = "urn:holdfast:interop"
REQUEST = f'<echo xmlns="{CONTRACT}"><key>bench</key><number>1</number><body>{"x" * 300}</body></echo>'
WCF_CLIENT = os.environ.get("WCF_CLIENT", "")
WAYS = ("direct", "broker")
TOGETHER = 20
"""Calls of Microsoft's client in one timed group."""
RESOLUTION = 0.001 / TOGETHER
"""Seconds between two distinguishable times of its clock."""


async def serve(store: str, port: int) -> None:
    """Run the service: it returns each request."""
    import holdfast
    from holdfast.endpoint.listener_settings import Listeners
    from holdfast.endpoint.serve import Service

    app = holdfast.Destination(store)

    @app.on(f"{CONTRACT}/Echo")
    async def echo(message: holdfast.Message) -> bytes:
        return message.body_bytes.replace(b"<echo", b"<echoResponse").replace(b"</echo>", b"</echoResponse>")

    await Service(app, Listeners(port=port)).run()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Yield the addresses of the service and the broker, by way, and their processes."""
    from holdfast.testing.ports import free_ports

    service, broker = free_ports(2)
    urls = {"direct": f"http://127.0.0.1:{service}/", "broker": f"http://127.0.0.1:{broker}/"}
    (directory / "broker.toml").write_text(
        f'store = "broker"\nlisten.port = {broker}\nadmin.enabled = false\n'
        f'[forwarders.service]\nqueue = "inbox"\nto = "{urls["direct"]}"\n'
    )
    commands = (
        [str(Path(__file__).resolve()), "--serve", str(directory / "service"), str(service)],
        ["-m", "holdfast", "broker", "--config", "broker.toml"],
    )
    path = os.pathsep.join(filter(None, [str(SOURCE), os.getenv("PYTHONPATH")]))
    pids = []
    with contextlib.ExitStack() as stack:
        for port, command in zip((service, broker), commands, strict=True):
            child = subprocess.Popen(
                [sys.executable, *command],
                cwd=directory,
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(child.wait)
            stack.callback(child.terminate)
            wait_for(port, child)
            pids.append(child.pid)
        yield urls, pids


def wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens.

    Raises:
        ChildProcessError: it ended.
    """
    while True:
        if child.poll() is not None:
            raise ChildProcessError(f"{child.args} ended with {child.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)


def calls_of_wcf(url: str, warmup: int, count: int) -> float:
    """Return the median seconds of a call of Microsoft's client."""
    script = f"open; echo 1..{warmup + count} 300; close"
    command = [WCF_CLIENT, "--url", url, "--contract", "echo", "--do", script]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    said = [json.loads(line) for line in lines]
    at = [line["at"] for line in said if str(line.get("ok", "")).startswith("echo")][warmup:]
    seconds = [(ended - began) / TOGETHER for began, ended in zip(at, at[TOGETHER:], strict=False)]
    return statistics.median_grouped(seconds, RESOLUTION)


def calls_of_source(url: str, warmup: int, count: int) -> float:
    """Return the median seconds of a call of a Holdfast source."""
    from holdfast.http.server.server import event_loop_factory

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return statistics.median(runner.run(_calls(url, warmup + count))[warmup:])


async def _calls(url: str, count: int) -> list[float]:
    import holdfast

    seconds = []
    with tempfile.TemporaryDirectory() as directory:
        async with holdfast.Source(url, f"{directory}/outbox", profile="wcf", offer=True) as source:
            for _ in range(count):
                began = time.perf_counter()
                await source.request(REQUEST, action=f"{CONTRACT}/Echo")
                seconds.append(time.perf_counter() - began)
    return seconds


CLIENTS = {"source": calls_of_source, "wcf": calls_of_wcf}
"""The functions that make calls."""


def measure(client: str, urls: dict[str, str], pids: list[int], options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one client."""
    from load import cpu_seconds

    medians: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            before = cpu_seconds(pids)
            medians[way].append(1000 * CLIENTS[client](urls[way], options.warmup, options.calls))
            processor[way].append(1e6 * (cpu_seconds(pids) - before) / (options.warmup + options.calls))
    ratios = [broker / direct for direct, broker in zip(medians["direct"], medians["broker"], strict=True)]
    return {
        "client": client,
        **{f"{way}_ms": round(statistics.median(found), 2) for way, found in medians.items()},
        **{f"{way}_cpu_us": round(statistics.median(found)) for way, found in processor.items()},
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in CLIENTS if name != "wcf" or os.access(WCF_CLIENT, os.X_OK)]
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS), default=usual)
    parser.add_argument("--calls", type=int, default=300, help="counted, in each run")
    parser.add_argument("--warmup", type=int, default=200, help="calls before them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("STORE", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        from holdfast.http.server.server import event_loop_factory

        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(serve(options.serve[0], int(options.serve[1])))
        return
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="calls-") as directory, running(Path(directory)) as (urls, pids):
        rows = [measure(client, urls, pids, options) for client in options.clients]
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    if options.json:
        print(json.dumps({"date": time.strftime("%Y-%m-%d"), "load": load, "rows": rows}))
        return
    print(f"load {load[0]} to {load[1]}\n")
    print("| client | direct, ms | through the broker, ms | ratio | ratios of the rounds | CPU µs: direct | broker |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        ratios = " ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        times = f"{row['direct_ms']:.2f} | {row['broker_ms']:.2f} | {row['ratio']:.2f} | {ratios}"
        print(f"| {row['client']} | {times} | {row['direct_cpu_us']} | {row['broker_cpu_us']} |")


if __name__ == "__main__":
    main()
