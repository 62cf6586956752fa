"""The table of a paper that measured a WS-ReliableMessaging implementation in 2005, and the same table of this machine.

The paper's implementation is in Java (XMLBeans and Axis, Java 1.4.2) on one 3.5 GHz Pentium 4. Each operation ran 100
times, outliers were removed, and memory was read before and after each run. Here each operation runs as often, once for
each measured time, in wall time as there, without warm-up. It then runs as often again with Python's allocations
traced; the memory is the maximum that a run held beyond the memory held before. A core of today is itself six to ten
times as fast as the paper's.
"""

from __future__ import annotations

import asyncio
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.paper import operations, whole
from bench.paper.summary import Summary, summarize
from holdfast.http.server.server import event_loop_factory

RUNS = 100
"""As many as the paper's."""
TARGET = 10.0
"""A row that is not this many times as fast as the paper's must give a reason."""
EVENTING = "Create a WS-Eventing SubscribeRequest"


@dataclass(frozen=True, slots=True)
class Printed:
    """A row as the paper prints it; times in microseconds, memory in bytes."""

    mean: float
    deviation: float
    error: float
    outliers: int
    smallest: float
    largest: float
    memory: int


PAPER = {
    "Create a schema-typed (XMLBeans) SOAP envelope document": Printed(121.29, 25.77, 2.65, 6, 110, 333, 2192),
    "Create an Axis SOAPMessage": Printed(85.76, 79.36, 8.22, 7, 34, 540, 1824),
    "Convert envelope document to SOAPMessage": Printed(3503.81, 758.48, 80.85, 12, 2632, 5406, 57152),
    "Convert SOAPMessage to envelope document": Printed(730.08, 392.35, 41.58, 11, 327, 1911, 34424),
    "Create a WS-Addressing EPR (URL only)": Printed(84.61, 25.61, 2.67, 8, 72, 301, 2072),
    "Create a WS-Addressing EPR (with ReferenceProperties)": Printed(133.13, 35.64, 3.71, 8, 114, 354, 2648),
    EVENTING: Printed(2716.98, 975.79, 101.73, 8, 1382, 5418, 76360),
    "Create an envelope targeted to an EPR": Printed(157.98, 12.19, 1.27, 8, 140, 219, 7184),
    "Same, with most WSA message information headers": Printed(263.20, 35.73, 3.74, 9, 240, 471, 13880),
    "Parse an envelope to its WSA message information headers": Printed(711.74, 231.61, 23.76, 5, 555, 1317, 61024),
    "Create a WSRM fault": Printed(413.80, 239.17, 25.07, 9, 271, 1212, 18096),
    "Create a CreateSequence request": Printed(268.95, 37.93, 3.97, 9, 212, 374, 16392),
    "Create a CreateSequenceResponse": Printed(234.97, 17.40, 1.81, 8, 212, 324, 18160),
    "Create a Sequence element": Printed(43.8125, 2.99, 0.30, 4, 42, 53, 2424),
    "Add a Sequence element to an existing envelope": Printed(13.01, 0.57, 0.05, 4, 11, 15, 464),
    "Create a SequenceAcknowledgement from a set of message numbers": Printed(
        461.17, 172.40, 18.27, 11, 301, 1043, 20624
    ),
    "Create a TerminateSequence": Printed(20.95, 1.30, 0.13, 4, 20, 25, 2072),
}
"""The paper's table, in its order."""

WHOLE_PRINTED = (4_000.0, 6_000.0)
"""Microseconds of a message's whole processing at a source, or at a sink, stored in MySQL, from 100 bytes to 10 KB. The
paper has a curve for it, and no row; all rows are compared with the minimum."""

LEFT_OUT = {EVENTING: "not measured: Holdfast has no WS-Eventing, and makes no SubscribeRequest"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        name: As in the paper, for the paper's rows.
        paper: The value to compare with: a mean in microseconds; None for nothing.
        printed: The paper's own row; None if the paper's table lacks it.
        remark: A note; the reason, if it is less than ten times as fast.
        times: Microseconds of each run, in order; empty if it is not measured.
        memory: Bytes of each run of another series.
    """

    name: str
    paper: float | None
    printed: Printed | None
    remark: str
    times: tuple[float, ...] = ()
    memory: tuple[int, ...] = ()

    @property
    def here(self) -> Summary | None:
        """The summary of the times."""
        return summarize(self.times) if self.times else None

    @property
    def held(self) -> float | None:
        """The mean of the memory, without outliers."""
        return summarize(self.memory).mean if self.memory else None

    @property
    def times_as_fast(self) -> float | None:
        """The paper's mean over Holdfast's."""
        here = self.here
        return self.paper / here.mean if self.paper is not None and here is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return the row without its single runs."""
        here, ratio, held = self.here, self.times_as_fast, self.held
        return {
            "operation": self.name,
            "paper_mean": self.paper,
            "paper": asdict(self.printed) if self.printed is not None else None,
            "here": {name: _figures(value) for name, value in asdict(here).items()} if here is not None else None,
            "memory": round(held) if held is not None else None,
            "times_as_fast": _figures(ratio) if ratio is not None else None,
            "remark": self.remark,
        }


def _figures(value: float) -> float:
    """Round to four figures at any size: a row may be a tenth as fast as the paper's, or a thousand times."""
    return float(f"{value:.4g}")


Say = Callable[[int, int, str], None]
"""Called with the number of finished rows, the total, and the name of the next row."""


def measure(runs: int, directory: Path | None, say: Say) -> list[Row]:
    """Run all operations.

    Args:
        runs: How often to run each operation; at least one.
        directory: Parent of a new directory for stores, which is removed at the end; None: the system's directory for
            temporary files. The syncs of its disk are measured.
        say: Called with the progress.

    Raises:
        OSError: a directory cannot be made there.
    """
    ours = operations.of_ours()
    total = len(PAPER) + len(ours) + len(_WHOLE)
    done = operations.of_paper()
    rows: list[Row] = []
    for name, printed in PAPER.items():
        say(len(rows), total, name)
        if name in LEFT_OUT:
            rows.append(Row(name, printed.mean, printed, LEFT_OUT[name]))
        else:
            times, memory = _run(done[name].run, runs)
            rows.append(Row(name, printed.mean, printed, done[name].remark, times, memory))
    for name, (beside, operation) in ours.items():
        say(len(rows), total, name)
        times, memory = _run(operation.run, runs)
        rows.append(Row(name, PAPER[beside].mean if beside else None, None, operation.remark, times, memory))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as place:
        for name, (kind, size, paper, remark) in _WHOLE.items():
            say(len(rows), total, name)
            with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                times, memory = runner.run(_run_whole(kind, Path(place) / str(len(rows)), size, runs))
            rows.append(Row(name, paper, None, remark, times, memory))
    say(total, total, "")
    return rows


_SYNCED = "one message at a time, so each waits for a separate sync: see that row"
_WHOLE = {
    "Append 1,000 bytes to a file and sync it": (whole.file, 1_000, None, "what the disk takes of the rows below"),
    **{
        f"Total processing at a {what}, {size:,} byte body": (kind, size, WHOLE_PRINTED[0], _SYNCED)
        for what, kind in (("source", whole.source), ("sink", whole.sink))
        for size in whole.SIZES
    },
}
"""Name -> kind, size of the bodies, the paper's value, and a remark."""


def _run(run: Callable[[], object], runs: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    times = []
    for _ in range(runs):
        began = perf_counter_ns()
        run()
        times.append((perf_counter_ns() - began) / 1000)
    memory = []
    tracemalloc.start()
    for _ in range(runs):
        tracemalloc.reset_peak()
        before, _peak = tracemalloc.get_traced_memory()
        run()
        memory.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return tuple(times), tuple(memory)


async def _run_whole(
    kind: Callable[[Path, int], Any], directory: Path, size: int, runs: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    times, memory = [], []
    async with kind(directory, size) as prepare:
        for _ in range(runs):
            once = prepare()
            began = perf_counter_ns()
            await once()
            times.append((perf_counter_ns() - began) / 1000)
        tracemalloc.start()
        for _ in range(runs):
            once = prepare()
            tracemalloc.reset_peak()
            before, _peak = tracemalloc.get_traced_memory()
            await once()
            memory.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
    return tuple(times), tuple(memory)
