"""Durable messages over HTTP: CPU, rate and latency of a Destination and of simpler servers, in one run.

    python bench/endpoints.py                                 # 64 connections
    python bench/endpoints.py --connections 1 8 64 --rounds 5 --json

The servers run in alternation:

- ``bare``: ``bare.py``, a listener on uvloop and httptools with a fixed answer of 600 bytes. A request of it is a unit.
- ``fixed``: ``fixed.py``, Holdfast's HTTP server with the same answer.
- ``durable``: a Destination behind that server. Every message is one-way, about 1.1 KB, decoded, stored in the embedded
  store and acknowledged after its sync.
- ``silent``: the same without its event journal.
- ``text``, ``digest``: with ``--user-names``, the same with a Timestamp and a user name in each message, with its
  password or a digest, and the nonces in a file. The difference from ``durable`` is the cost of a user name.
- ``uvicorn``: the same Destination as an ASGI application, served by uvicorn. Omitted if that is not installed.

All servers run on processor 0, the load generator on processor 1. Units are the best round's CPU divided by the best
one's of ``bare``; the other rounds show the influence of other load. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

HERE = Path(__file__).resolve().parent


def serve(store: str, *, journal: bool = True, users: bool = False) -> None:
    """Serve the measured Destination: no handlers, so that messages wait in its queue."""
    from holdfast import UsernameTokenValidator
    from holdfast.endpoint.destination.destination import Destination
    from holdfast.endpoint.listener_settings import AdminListener, Listeners
    from holdfast.endpoint.serve import Service
    from holdfast.http.server.server import event_loop_factory

    async def run() -> None:
        passwords, nonces = {load.USER: load.PASSWORD}, f"{store}-nonces.db"
        processors = [UsernameTokenValidator(passwords, nonces=nonces, require_timestamp=True)] if users else []
        app = Destination(store=store, journal=journal, processors=processors)
        service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
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


def serve_mounted(store: str) -> None:
    """Serve the same Destination as an ASGI application in uvicorn."""
    import uvicorn

    from holdfast.endpoint.destination.destination import Destination

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(
        Destination(store=store), loop="uvloop", http="httptools", ws="none", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"}), flush=True)
    server.run([listener])


class Server:
    """One server in a separate process on processor 0.

    Args:
        name: Its name in the table.
        command: The command to start; prints its port, or a description with its URL.
        plain: Whether requests contain arbitrary bytes instead of messages.
        load: Further arguments of the load generator.
    """

    def __init__(self, name: str, command: list[str], *, plain: bool = False, load: tuple[str, ...] = ()) -> None:
        self.name = name
        self._plain = plain
        self._load = load
        self.child = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        described = json.loads(self.child.stdout.readline())
        if not isinstance(described, dict):
            described = {"url": f"http://127.0.0.1:{described}/"}
        self._url: str = described["url"]
        self._admin: str = described.get("admin", "")
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
            for task in os.listdir(f"/proc/{self.child.pid}/task"):
                os.sched_setaffinity(int(task), {0})
        self.results: list[load.Result] = []

    def measure(self, arguments: list[str], reliable: list[str]) -> None:
        """Run one round."""
        where = ["--url", self._url, "--pid", str(self.child.pid)]
        result = load.in_process([*where, *arguments, *self._load, *(["--plain"] if self._plain else reliable)])
        if result.errors:
            raise SystemExit(f"{self.name}: {result.errors}")
        self.results.append(result)

    def counter(self, name: str) -> float:
        """Return one of its metrics, 0.0 if it has none."""
        if self._admin:
            with urllib.request.urlopen(f"{self._admin}/metrics") as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith(f"{name} "):
                        return float(line.split()[1])
        return 0.0

    def stop(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--serve-silent", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--serve-users", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--serve-mounted", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each server in each round")
    parser.add_argument("--rm", default="1.1", choices=("1.0", "1.1"))
    parser.add_argument("--soap", default="1.2", choices=("1.1", "1.2"))
    parser.add_argument("--user-names", action="store_true", help="measure user names, and no further servers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve or options.serve_silent:
        serve(options.serve or options.serve_silent, journal=bool(options.serve))
        return
    if options.serve_users:
        serve(options.serve_users, users=True)
        return
    if options.serve_mounted:
        serve_mounted(options.serve_mounted)
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
        _print(row)


def _measure(options: argparse.Namespace, connections: int, directory: str) -> dict[str, Any]:
    servers = [
        Server("bare", [str(HERE / "bare.py")], plain=True),
        Server("fixed", [str(HERE / "fixed.py"), "--serve"], plain=True),
        Server("durable", [__file__, "--serve", f"{directory}/store"]),
    ]
    if options.user_names:
        for kind in ("text", "digest"):
            command = [__file__, "--serve-users", f"{directory}/{kind}"]
            servers.append(Server(kind, command, load=("--user-name", kind)))
    else:
        servers.append(Server("silent", [__file__, "--serve-silent", f"{directory}/silent"]))
    if not options.user_names and importlib.util.find_spec("uvicorn") is not None:
        servers.append(Server("uvicorn", [__file__, "--serve-mounted", f"{directory}/mounted"]))
    arguments = ["--connections", str(connections), "--seconds", str(options.seconds)]
    for number in range(options.rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            server.measure(arguments, ["--rm", options.rm, "--soap", options.soap])
    durable = servers[2]
    commits = max(1.0, durable.counter("holdfast_commits_total"))
    row: dict[str, Any] = {
        "connections": connections,
        "messages_per_commit": durable.counter("holdfast_messages_accepted_total") / commits,
        "waited": durable.counter("holdfast_commits_waited_total") / commits,
        "servers": {},
    }
    unit = min(_cpu(servers[0]))
    for server in servers:
        server.stop()
        cpu = _cpu(server)
        row["servers"][server.name] = {
            **asdict(max(server.results, key=lambda one: one.rate)),
            "units": min(cpu) / unit,
            "median_units": statistics.median(cpu) / statistics.median(_cpu(servers[0])),
            "cpu_us": [round(one, 1) for one in cpu],
        }
    return row


def _cpu(server: Server) -> list[float]:
    return [one.server_cpu_us for one in server.results if one.server_cpu_us is not None]


def _print(row: dict[str, Any]) -> None:
    print(f"{row['connections']} connections")
    for name, figures in row["servers"].items():
        print(
            f"  {name:8} {figures['units']:5.1f} units (medians: {figures['median_units']:.1f})  "
            f"{figures['rate']:>9,.0f}/s  p50 {figures['p50']:.2f}  p99 {figures['p99']:.2f} ms  "
            f"CPU us {figures['cpu_us']}"
        )
    if "text" in row["servers"]:
        return
    if "uvicorn" not in row["servers"]:
        print("  uvicorn  left out: it is not installed (pip install 'holdfast[bench]')")
    print(f"  durable: {row['messages_per_commit']:.1f} messages a commit, {row['waited']:.0%} of them waited for")


if __name__ == "__main__":
    main()
