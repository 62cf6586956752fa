"""The cost of sending: processor time of a Source for each message, from its submission to its acknowledgement.

    python bench/sending.py                          # windows of 32 and 64, and the bare listener of the same run
    python bench/sending.py --windows 64 --rounds 5 --json
    python bench/sending.py --sequences 100 10000    # Sequences in use, and open ones

The Source is a separate process on processor 1, with a durable store. Its Destination, a durable one too, has processor
0. The number of callers equals the window. Each caller sends a message of 1 KB and waits for its acknowledgement before
it sends the next one. A unit is the CPU of one request to ``bare.py``; the two are measured in alternation, and the
best round of each counts. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import load

HERE = Path(__file__).resolve().parent
BODY = b"<order xmlns='urn:holdfast:bench'>" + b"x" * 958 + b"</order>"
ACTION = "urn:holdfast:bench/Submit"


async def send(url: str, store: str, window: int, messages: int, active: int, opened: int) -> dict[str, float]:
    """Send messages and return the figures.

    Args:
        url: The Destination.
        store: The directory of the Source's store.
        window: Number of concurrent callers; also the window of each Sequence.
        messages: Number of messages in the measured part.
        active: Sequences in use.
        opened: Open Sequences.
    """
    from holdfast import Source, SourcePolicy

    async with Source(url, store, policy=SourcePolicy(window=window, initial_window=window)) as source:

        async def call(begin: int, count: int, step: int) -> None:
            for number in range(begin, count, step):
                sent = await source.send(BODY, action=ACTION, sequence_key=str(number % active))
                await sent.acknowledged()

        async def open_one(key: int) -> None:
            await (await source.send(BODY, action=ACTION, sequence_key=str(key))).acknowledged()

        for begin in range(0, opened, 64):
            await asyncio.gather(*(open_one(key) for key in range(begin, min(opened, begin + 64))))

        async def run(count: int) -> None:
            await asyncio.gather(*(call(caller, count, window) for caller in range(window)))

        await run(messages // 4)  # warm-up
        commits = source._running.engine.commits.batches
        cpu, began = time.process_time(), time.perf_counter()
        await run(messages)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        commits = source._running.engine.commits.batches - commits
        figures = {"cpu_us": 1e6 * cpu / messages, "rate": messages / seconds, "resent": source.progress.resent}
        figures["messages_per_commit"] = messages / max(1, commits)
        if opened > active:
            os._exit(print(json.dumps(figures), flush=True) or 0)  # skips the end of ten thousand Sequences one by one
        return figures


def _send(options: argparse.Namespace) -> None:
    from holdfast.http.server.server import event_loop_factory

    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    url, store, window, active, opened = options.send
    arguments = (url, store, int(window), options.messages, int(active), int(opened))
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        if os.environ.get("HOLDFAST_PROFILE"):
            import cProfile

            profile = cProfile.Profile()
            figures = profile.runcall(runner.run, send(*arguments))
            profile.dump_stats(os.environ["HOLDFAST_PROFILE"])
        else:
            figures = runner.run(send(*arguments))
    print(json.dumps(figures))


def start(*command: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server on processor 0; return it and its first line of output."""
    child = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        for task in os.listdir(f"/proc/{child.pid}/task"):
            os.sched_setaffinity(int(task), {0})
    return child, line


def stop(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    child.wait()


def unit(seconds: float) -> float:
    """Return the CPU microseconds of one request to the bare listener."""
    bare, line = start(str(HERE / "bare.py"))
    arguments = ["--url", f"http://127.0.0.1:{int(line)}/", "--plain", "--pid", str(bare.pid), "--connections", "64"]
    found = load.in_process([*arguments, "--seconds", str(seconds)])
    stop(bare)
    assert found.server_cpu_us is not None and not found.errors, found
    return found.server_cpu_us


def _round(window: int, active: int, opened: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        durable, described = start(str(HERE / "endpoints.py"), "--serve", f"{directory}/destination")
        url = json.loads(described)["url"]
        command = [sys.executable, __file__, "--messages", str(options.messages), "--send", url, f"{directory}/source"]
        command += [str(window), str(active), str(opened)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        stop(durable)
        figures: dict[str, Any] = json.loads(output)
        return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--sequences", type=int, nargs=2, metavar=("ACTIVE", "OPEN"), default=[1, 1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        _send(options)
        return
    units: list[float] = []
    rounds: dict[int, list[dict[str, Any]]] = {window: [] for window in options.windows}
    for _ in range(options.rounds):
        units.append(unit(1.0))
        for window, figures in rounds.items():
            figures.append(_round(window, *options.sequences, options))
    rows = []
    for window, figures in rounds.items():
        best = min(figures, key=lambda one: float(one["cpu_us"]))
        rows.append({"window": window, "unit_us": min(units), "units": best["cpu_us"] / min(units), **best})
        rows[-1]["all_us"] = [round(one["cpu_us"], 1) for one in figures]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"window {row['window']:>4}  {row['units']:5.1f} units  {row['cpu_us']:6.1f} us CPU  "
            f"{row['rate']:>7,.0f}/s  {row['messages_per_commit']:5.1f} a commit  (a unit: {row['unit_us']:.1f} us; "
            f"all rounds: {row['all_us']}; resent {row['resent']})"
        )


if __name__ == "__main__":
    main()
