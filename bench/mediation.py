"""A pipeline with several sinks: rows per second by the size of its micro-batches.

    python bench/mediation.py                                   # 100,000 messages of 1 KB, batches of 3,000 and 50,000
    python bench/mediation.py --batch 10000 100000 --sinks 1 6 --json

The benchmark fills a store and starts ``holdfast broker`` on it. Then a pipeline reads the queue, parses each body, and
sends each message to one of its sinks, alternately a queue of the same broker and a Delta table. Each size is a
separate run with a new checkpoint. The rate is that of the batches after the first one. The benchmark has no pass or
fail.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from backlog import BATCH, PARTITIONS, QUEUE, record
from broker import begin, ended, tell
from pipeline import Server, serving, started

from holdfast.core.records import Batch
from holdfast.pipeline.mediation import MediatedBatch, run
from holdfast.pipeline.mediation.definition.file import Pipeline
from holdfast.pipeline.mediation.definition.plan import PipelinePlan
from holdfast.store.rocksdb.store import RocksDBStore


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[3_000, 50_000], help="rows of a micro-batch")
    parser.add_argument("--sinks", type=int, nargs="+", default=[6])
    parser.add_argument("--most", type=int, default=8, help="batches of one run")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fill", nargs=2, metavar=("STORE", "END"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill(Path(options.fill[0]), int(options.fill[1]))
        return
    conditions = begin()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mediation-")))
        tell(f"filling {options.messages:,} messages")
        subprocess.run([sys.executable, __file__, "--fill", str(place / "store"), str(options.messages)], check=True)
        server = stack.enter_context(serving(place))
        spark = stack.enter_context(started(options.cores, place))
        figures = []
        for sinks in options.sinks:
            for size in options.batch:
                tell(f"{sinks} sinks, batches of {size:,}")
                made = plan(place / f"{sinks}-{size}", server, sinks, size)
                figures.append({"sinks": sinks, "batch": size, **measure(spark, made, options.most)})
    if options.json:
        print(json.dumps({**ended(conditions), "runs": figures}, indent=1))
        return
    print(f"{'sinks':>6}{'batch':>9}{'batches':>9}{'s a batch':>11}{'rows/s':>9}")
    for one in figures:
        print(f"{one['sinks']:6}{one['batch']:9,}{one['batches']:9}{one['seconds']:11.2f}{one['rate']:9,.0f}")
    print(f"\nload average before {conditions['load_before']}, after {ended(conditions)['load_after']}")


def fill(place: Path, end: int) -> None:
    """Put messages into the queue, over all of its partitions."""
    store, ends = RocksDBStore(place), [0] * PARTITIONS
    body = "<order id='{}'><customer>c{}</customer><amount>{}.50</amount><note>{}</note></order>"
    note = "as agreed by telephone, delivery to the rear entrance; " * 17
    for number in range(0, end, BATCH):
        partition = number // BATCH % PARTITIONS
        first, appends = ends[partition], []
        for offset in range(first, first + min(BATCH, end - number)):
            text = body.format(offset, offset % 500, offset % 3000, note).encode()
            appends.append((QUEUE, partition, offset, record(partition, offset, text, time.time())))
        store.commit(Batch(appends=appends))
        ends[partition] = first + len(appends)
    store.close()


def plan(place: Path, server: Server, sinks: int, size: int) -> PipelinePlan:
    """Return a pipeline with a separate checkpoint."""
    made = Pipeline()
    made.settings(name=place.name, checkpoint=str(place / "checkpoint"))
    made.source("orders", broker=server.admin, queue=QUEUE, options={"maxRowsPerBatch": size})
    made.step("read", input="orders", parse={"schema": "id BIGINT, customer STRING, amount DECIMAL(12,2)", "into": "o"})
    for number in range(sinks):
        if number % 2:
            made.sink(f"sink{number}", table=str(place / f"sink{number}"))
        else:
            made.sink(f"sink{number}", queue="sent", action="'urn:order'", key="o.customer")
        last = number == sinks - 1
        made.route("read", f"sink{number}", **({} if last else {"when": f"o.id % {sinks} = {number}"}))
    made.dead_letters(table=str(place / "dead"))
    return made.plan()


def measure(spark: Any, made: PipelinePlan, most: int) -> dict[str, float]:
    """Return the rows per second of all batches except the first."""
    done: list[tuple[float, MediatedBatch]] = []
    mediation = run(spark, made, available_now=True, on_batch=lambda one: done.append((time.perf_counter(), one)))
    while len(done) < most and not mediation.wait(0.1):
        pass
    mediation.stop()
    given = [sum(one.sinks.values()) + one.dead for _, one in done]
    if given != [one.rows for _, one in done]:
        raise SystemExit(f"{given} rows of {[one.rows for _, one in done]} came to a sink")
    took, rows = done[-1][0] - done[0][0], sum(one.rows for _, one in done[1:])
    return {"batches": len(done), "seconds": took / max(1, len(done) - 1), "rate": rows / took if took else 0.0}


if __name__ == "__main__":
    main()
