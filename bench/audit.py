"""Audit of a journal with many events: seconds and CPU of each step.

    python bench/audit.py                       # 1,000,000 events: about 400,000 messages
    python bench/audit.py --events 5000000

The journal is that of a broker with handlers: Sequences of a thousand messages, some of them held behind a gap or
repeated, four partitions, a restart after each quarter. It breaks no rule, so an audit that reports a violation is
wrong. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.endpoint.journal.columns import NAMES
from holdfast.endpoint.journal.files import HEADER, frames_of
from holdfast.endpoint.journal.parquet import to_parquet_all

MESSAGES = 1_000
"""Messages of a Sequence."""
TOGETHER = 32
"""Messages of one acknowledgement, and of one handler call."""
PARTITIONS = 4
RUNS = 4
_OWN = tuple(name for name in NAMES if name not in ("run", "ordinal", "worker"))


def row(at: float, event: str, **more: Any) -> tuple[Any, ...]:
    """Return one event."""
    return tuple({**more, "at": at, "event": event}.get(name) for name in _OWN)


def run_of(number: int, first: int, sequences: int) -> Iterator[tuple[Any, ...]]:
    """Yield the events of one run, which begins with the state that earlier runs left."""
    at = 1_700_000_000.0 + first
    ends = [len(range(partition, first, PARTITIONS)) * MESSAGES for partition in range(PARTITIONS)]
    yield row(at, "started", attempt=number)
    for partition, end in enumerate(ends):
        yield row(at, "queue stands", queue="inbox", partition=partition, offset=end, attempt=number, detail="epoch")
        if end:
            yield row(at, "handled stands", queue="inbox", partition=partition, offset=0, count=end)
    promised = "exactly-once in-order, NoDiscard"
    for one in range(max(0, first - 50), first):
        name = f"urn:uuid:{one:032x}"
        yield row(at, "stands", sequence=name, number=1, count=MESSAGES, detail=f"created, {promised}")
    for one in range(first, first + sequences):
        at = 1_700_000_000.0 + one
        name, partition = f"urn:uuid:{one:032x}", one % PARTITIONS
        place: dict[str, Any] = {"queue": "inbox", "partition": partition, "count": 1}
        yield row(at, "created", sequence=name, peer=f"http://peer-{one % 7}/", detail=promised)
        for lower in range(1, MESSAGES + 1, TOGETHER):
            numbers = range(lower, min(lower + TOGETHER, MESSAGES + 1))
            count, base = len(numbers), ends[partition] - 1
            yield row(at, "held", sequence=name, number=numbers[-1], count=1, since=at)
            for many in numbers:
                since = None if many == numbers[-1] else at + many / 1e4
                where = {**place, "sequence": name, "number": many, "offset": base + many}
                yield row(at + 0.01 + many / 1e4, "delivered", **where, since=since)
            yield row(at + 0.02, "acknowledged", sequence=name, number=lower, count=count)
            yield row(at + 0.02, "duplicate", sequence=name, number=lower, count=1)
            for many in numbers:
                where = {**place, "sequence": name, "number": many, "offset": base + many}
                yield row(at + 0.03, "handed over", **where, attempt=1)
            yield row(at + 0.04, "handled", **place | {"count": count}, offset=base + lower)
        ends[partition] += MESSAGES
        yield row(at + 0.9, "terminated", sequence=name)
    yield row(at + 1, "stopped")


def make(directory: Path, events: int) -> int:
    """Write the journal; return the number of its events."""
    directory.mkdir(parents=True)
    sequences = max(1, events // (RUNS * (2 * MESSAGES + 4 * MESSAGES // TOGETHER + 2)))
    total = 0
    for number in range(1, RUNS + 1):
        rows = list(run_of(number, (number - 1) * sequences, sequences))
        with (directory / f"_{number}.journal").open("wb") as file:
            file.write(HEADER)
            for start in range(0, len(rows), 4_000):
                some = rows[start : start + 4_000]
                file.write(frames_of(f"run-{number}", None, start, [("r", some)])[0])
        total += len(rows)
    to_parquet_all(directory)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    arguments = parser.parse_args()
    from click.testing import CliRunner

    from holdfast.pipeline.jobs.audit import audit_command

    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        events = make(Path(scratch, "journal"), arguments.events)
        size = sum(one.stat().st_size for one in Path(scratch, "journal").iterdir())
        made = round(time.monotonic() - began, 1)
        print(json.dumps({"events": events, "bytes": size, "made_seconds": made, "load": os.getloadavg()}), flush=True)
        began = time.monotonic()
        told = [scratch, "--master", "local[2]", "--html", f"{scratch}/page.html"]
        result = CliRunner().invoke(audit_command, told, catch_exceptions=False)
        print(result.output, flush=True)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"exit_code": result.exit_code, "seconds": seconds, "load": os.getloadavg()}), flush=True)


if __name__ == "__main__":
    main()
