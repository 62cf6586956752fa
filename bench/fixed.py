"""The reference: Holdfast's HTTP server with a fixed 600-byte answer, loaded from another process.

    python bench/fixed.py                     # both, on this machine
    python bench/fixed.py --serve             # only the server; prints its port

Everything beyond this is an endpoint's own cost. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

from holdfast.http.server.server import Exchange, HTTPServer, event_loop_factory

ANSWER = b"<a>" + b"x" * 593 + b"</a>"
CONTENT_TYPE = b"application/soap+xml; charset=utf-8"


def answer(exchange: Exchange) -> None:
    exchange.respond(200, ANSWER, CONTENT_TYPE)


async def serve(port: int) -> None:
    server = HTTPServer()
    await server.start(answer, "127.0.0.1", port)
    print(server.port, flush=True)
    # The parent ends this process by closing its end of our standard input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of the HTTP server alone.")
    parser.add_argument("--serve", action="store_true", help="serve until the end of standard input")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stdlib", action="store_true", help="asyncio's own event loop rather than uvloop")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=None if options.stdlib else event_loop_factory()) as runner:
            runner.run(serve(options.port))
        return
    command = [sys.executable, __file__, "--serve", *(["--stdlib"] if options.stdlib else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(child.pid, {0})
            os.sched_setaffinity(0, {1})
        result = load.measure(
            f"http://127.0.0.1:{port}/rm",
            load.plain(b"x" * 1100),
            connections=options.connections,
            seconds=options.seconds,
            pids=[child.pid],
        )
        child.stdin.close()
    print(result)


if __name__ == "__main__":
    main()
