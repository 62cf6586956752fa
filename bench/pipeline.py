"""From a broker to a DataFrame: rows per second, the floor of a micro-batch, and memory, compared with Spark's Parquet.

    python bench/pipeline.py                                    # 400,000 rows with bodies of 1 KB, three rounds
    python bench/pipeline.py --rows 1000000 --rounds 5 --json

The benchmark fills a store and starts ``holdfast broker`` on it. It also writes the rows that Spark reads from the
broker to Parquet (by Spark, with its default compression). Then it runs the same queries on both, in alternation:

- ``rows``: all columns, to a sink that drops them; ``rows, no body``: all except ``body`` (option ``body`` false;
  Parquet reads only the requested columns).
- ``count``, ``sum(length(body))``, ``group by``: by Sequence, the number of messages and the highest number. If a query
  needs no body, an option of the source omits it. Parquet counts by its footers. ``count, columns`` and ``group by,
  columns`` are the same with the option ``columns``, which gives the source the information that Parquet gets from
  Spark.
- ``stream``: ``Trigger.AvailableNow`` in four micro-batches, to the dropping sink. The rate excludes the first one, but
  the processor time includes it, because every query starts processes.
- ``sink``: the same stream of the queue into the ``wsrm`` sink, compared with the dropping sink; ``write``: the rows in
  Parquet written to the ``wsrm`` sink, compared with reading and dropping them.
- ``nothing``: a count of no rows: the time of a query before its first row.

A ratio is the source's rate over Parquet's (for ``sink`` and ``write`` over that of dropping), best and median of the
rounds. CPU is that of all processes together (the server, the Python workers, Spark's Java), and the server's share of
it. ``floor`` is a Python source without a server: it returns the same record batches from a file that is mapped into
memory, in as many tasks. The difference to it is Holdfast's cost; the difference between it and Parquet is Spark's. For
``sink`` and ``write``, it is a Python sink that drops all rows.
The floor of a micro-batch is that of batches of 20 rows, compared with ``rate-micro-batch`` and with Python sources
that return constant rows, in tasks and by Spark's simple reader. The part above the first and below the second is
Spark's. For memory, messages arrive while a deliberately slow stream reads. The figures are the resident memory of the
server, the Python workers and Java, before and at most. The benchmark has no pass or fail.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import constant
import load
import pyarrow as pa
from backlog import QUEUE, child
from broker import begin, ended, tell

from holdfast.pipeline import session
from holdfast.pipeline.reader.batches import WsrmReader
from holdfast.pipeline.reader.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SENT = "sent"
"""The queue that rows are written to."""
WRITTEN = ("body", "action", "sequence")
"""The columns that are written."""
Way = Callable[[], float | None]
"""Runs a query, and may return the seconds that count."""

FILES = 8
"""Number of Parquet files, divisible by the four micro-batches of a stream."""
FLOOR = ("floor_ratio_best", "floor_ratio_median", "floor_cpu_us")
BATCHES, WARM, FEW = 40, 10, 20
"""Micro-batches for a floor, the number of them that do not count, and rows of each."""


@dataclass
class Server:
    """``holdfast broker`` in a separate process."""

    process: subprocess.Popen[str]
    url: str
    admin: str


@dataclass
class Taken:
    """The costs of one query on one source: seconds, processor seconds, and the server's part of these."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=1024, help="of each body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=None, help="of the questions; 'floor' and 'memory' are two of them"
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--directory", help="where the store is made; that of temporary files if not said")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    conditions = begin()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipeline-", dir=options.directory)))
        tell(f"filling {options.rows:,} messages")
        child("--fill", str(place / "store"), str(options.rows), "--bytes", str(options.bytes))
        server = stack.enter_context(serving(place))
        spark = stack.enter_context(started(options.cores, place))
        figures = Measured(spark, server, place, options).all()
    if options.json:
        print(json.dumps({**ended(conditions), "rows": options.rows, "bytes": options.bytes, **figures}, indent=1))
    else:
        show(figures, options.rows)
        print(f"\nload average before {conditions['load_before']}, after {ended(conditions)['load_after']}")


@contextmanager
def serving(place: Path) -> Iterator[Server]:
    """Run a broker on the store in this directory."""
    lines = [f"store = {json.dumps(str(place / 'store'))}", "listen.port = 0", "admin.port = 0"]
    lines += [f"[queues.{QUEUE}]", f"[queues.{SENT}]"]
    (place / "broker.toml").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "broker",
        "--config",
        str(place / "broker.toml"),
        "--log-level",
        "error",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url, admin = (process.stdout.readline().split()[-1].rstrip("/") for _ in range(2))
        yield Server(process, url, admin)
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def started(cores: int, place: Path) -> Iterator[SparkSession]:
    """Start a Spark session."""
    settings = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": str(place / "warehouse")}
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"  # constant.py, for workers
    spark = session("holdfast bench", f"local[{cores}]", **settings)
    yield spark
    spark.stop()


class Measured:
    """All measurements of one server.

    Args:
        spark: The session.
        server: The server.
        place: Directory for Parquet and checkpoints.
        options: The options of the command line.
    """

    def __init__(self, spark: SparkSession, server: Server, place: Path, options: argparse.Namespace) -> None:
        self.spark, self.server, self.place, self.options = spark, server, place, options
        self._checkpoints = 0
        self._sent = 0

    def all(self) -> dict[str, Any]:
        """Run all requested measurements."""
        tell("writing them to Parquet")
        rows = self.wsrm().repartition(FILES)
        rows.write.mode("overwrite").parquet(str(self.place / "parquet"))
        rows.limit(0).write.mode("overwrite").parquet(str(self.place / "nothing"))
        self.hold()
        questions = {name: one for name, one in self.questions().items() if self.is_asked(name)}
        figures: dict[str, Any] = {"questions": {}}
        taken = {name: tuple(Taken() for _ in ways) for name, ways in questions.items()}
        for number in range(-1, self.options.rounds):  # the first round is the warm-up
            for name, ways in questions.items():
                order = list(zip(ways, taken[name], strict=True))
                for way, one in order if number % 2 == 0 else reversed(order):
                    self.time(way, one if number >= 0 else Taken())
        for name, all_taken in taken.items():
            figures["questions"][name] = compared(*all_taken, rows=self.options.rows)
        if self.is_asked("floor"):
            figures["floor"] = self.floors()
        if self.is_asked("memory"):
            figures["memory"] = self.memory()
        return figures

    def is_asked(self, name: str) -> bool:
        """Whether the command line requests it."""
        return self.options.only is None or name in self.options.only

    def time(self, way: Way, taken: Taken) -> None:
        """Run a query once, and add its costs."""
        self.settle()
        server, cpu = load.cpu_seconds([self.server.process.pid]), load.cpu_seconds([os.getpid()])
        begun = time.perf_counter()
        told = way()
        taken.seconds.append(time.perf_counter() - begun if told is None else told)
        self.settle()  # a part of a publication's cost comes after its answer
        taken.cpu.append(load.cpu_seconds([os.getpid()]) - cpu)
        taken.server.append(load.cpu_seconds([self.server.process.pid]) - server)

    # --- batch and stream -----------------------------------------------------------------------------------------

    def wsrm(self, **options: str) -> DataFrame:
        """Return the queue."""
        read = self.spark.read.format("wsrm").option("broker", self.server.admin).option("queue", QUEUE)
        return read.options(**options).load()

    def hold(self) -> None:
        """Write the record batches of the queue's tasks into a file."""
        reader = WsrmReader(ReadOptions.parse({"broker": self.server.admin, "queue": QUEUE}))
        writer = None
        for part in reader.partitions():
            for batch in reader.read(part):
                writer = writer or pa.ipc.new_file(str(self.place / "batches.arrow"), batch.schema)
                writer.write_batch(batch)
        assert writer is not None
        writer.close()
        for source in (constant.Constant, constant.Simple, constant.Mapped, constant.Dropping):
            self.spark.dataSource.register(source)

    def mapped(self, **options: str) -> DataFrame:
        """Return the same rows from Python, without a server."""
        read = self.spark.read.format("mapped").option("path", str(self.place / "batches.arrow")).option("tasks", 4)
        return read.options(**options).load()

    def parquet(self, body: bool = True) -> DataFrame:
        """Return the same rows from Parquet."""
        frame = self.spark.read.parquet(str(self.place / "parquet"))
        return frame if body else frame.drop("body")

    def questions(self) -> dict[str, tuple[Way, ...]]:
        """Return the queries: for each, the functions for the queue, for Parquet, and for Python without a server."""
        all_columns = constant.opened(str(self.place / "batches.arrow")).schema.names

        def ways(ask: Callable[[DataFrame], object], body: bool, columns: str = "") -> tuple[Way, ...]:
            told = {"columns": columns} if columns else {"body": str(body).lower()}
            given = columns or ",".join(name for name in all_columns if body or name != "body")
            return (
                lambda: void(ask(self.wsrm(**told))),
                lambda: void(ask(self.parquet(body))),
                lambda: void(ask(self.mapped(columns=given))),
            )

        def count(frame: DataFrame) -> None:
            self.right(frame.count())

        nothing = (
            lambda: void(self.wsrm(startingTimestamp="2100-01-01").count()),
            lambda: void(self.spark.read.parquet(str(self.place / "nothing")).count()),
            lambda: void(self.mapped(batches="0").count()),
        )

        def group(frame: DataFrame) -> None:
            frame.groupBy("sequence").agg({"*": "count", "message_number": "max"}).collect()

        return {
            "nothing": nothing,
            "rows": ways(drop, True),
            "rows, no body": ways(drop, False),
            "count": ways(count, False),
            "count, columns": ways(count, False, "offset"),
            "sum(length(body))": ways(lambda frame: frame.selectExpr("sum(length(body))").collect(), True),
            "group by": ways(group, False),
            "group by, columns": ways(group, False, "sequence,message_number"),
            "stream": (self.stream, self.parquet_stream, self.mapped_stream),
            "sink": (self.stream_to_sink, self.stream, self.stream_to_python),
            "write": (
                self.write_to_sink,
                lambda: drop(self.parquet().select(*WRITTEN)),
                lambda: self.parquet().select(*WRITTEN).write.format("dropping").mode("append").save(),
            ),
        }

    def right(self, count: int) -> None:
        """Check that no row is missing."""
        if count != self.options.rows:
            raise SystemExit(f"{count} rows, not {self.options.rows}")

    def stream(self) -> float:
        """Stream the whole queue in four micro-batches."""
        return self.run(self.wsrm_stream(str(self.options.rows // 4)))

    def parquet_stream(self) -> float:
        """Stream Parquet in the same way."""
        schema = self.parquet().schema
        read = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES // 4)
        return self.run(read.parquet(str(self.place / "parquet")))

    def mapped_stream(self) -> float:
        """Stream from Python in the same way, without a server."""
        count = constant.opened(str(self.place / "batches.arrow")).num_record_batches
        read = self.spark.readStream.format("mapped").option("path", str(self.place / "batches.arrow"))
        return self.run(read.options(tasks="4", batches=str(-(-count // 4))).load())

    def wsrm_stream(self, rows: str) -> DataFrame:
        """Return the queue as a stream with this many rows in a micro-batch, with a separate cursor."""
        self._checkpoints += 1
        read = self.spark.readStream.format("wsrm").option("broker", self.server.admin).option("queue", QUEUE)
        return read.option("reader", f"bench-{self._checkpoints}").option("maxRowsPerBatch", rows).load()

    def stream_to_sink(self) -> float:
        """Stream the queue in four micro-batches; each row becomes a message of another queue."""
        self._sent += self.options.rows
        return self.run(self.wsrm_stream(str(self.options.rows // 4)), self.write_on)

    def stream_to_python(self) -> float:
        """Stream the queue in four micro-batches into a dropping Python sink."""
        return self.run(
            self.wsrm_stream(str(self.options.rows // 4)),
            lambda frame: self.write(frame.select(*WRITTEN)).format("dropping"),
        )

    def write_to_sink(self) -> None:
        """Write the rows in Parquet; each becomes a message of another queue."""
        self._sent += self.options.rows
        write = self.parquet().select(*WRITTEN).write.format("wsrm").mode("append")
        write.options(broker=self.server.admin, queue=SENT, sequenceKey="sequence").save()

    def settle(self) -> None:
        """Wait until published rows are in their queue, also from forgotten sinks."""
        while self.end(SENT) < self._sent:
            time.sleep(0.1)

    def run(self, frame: DataFrame, write: Callable[[DataFrame], Any] | None = None) -> float:
        """Run a stream to its end, into a dropping sink by default."""
        return self.ended((write or self.write)(frame).trigger(availableNow=True).start())

    def ended(self, query: StreamingQuery) -> float:
        """Return the seconds of all batches at the rate of those after the first, which starts processes."""
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        self.right(sum(one["numInputRows"] for one in batches))
        rows = sum(one["numInputRows"] for one in batches[1:])
        return sum(one["durationMs"]["triggerExecution"] for one in batches[1:]) / 1000 * self.options.rows / rows

    def write(self, frame: DataFrame) -> Any:
        """Return a stream into a dropping sink."""
        self._checkpoints += 1
        where = str(self.place / f"checkpoint-{self._checkpoints}")
        return frame.writeStream.format("noop").option("checkpointLocation", where)

    def write_on(self, frame: DataFrame) -> Any:
        """Return a stream of the queue into the ``wsrm`` sink."""
        self._checkpoints += 1
        rows = frame.select(*WRITTEN).writeStream.format("wsrm")
        rows = rows.options(broker=self.server.admin, queue=SENT, sequenceKey="sequence")
        return rows.option("checkpointLocation", str(self.place / f"checkpoint-{self._checkpoints}"))

    # --- the floor ------------------------------------------------------------------------------------------------

    def floors(self) -> dict[str, dict[str, float]]:
        """Return the milliseconds of a micro-batch of a few rows, by parts; each the median of the batches."""
        tell("the floor of a micro-batch")
        names = ("wsrm", "constant", "simple", "rate-micro-batch", "to sink")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(self.options.rounds):
            found["rate-micro-batch"] += self.batches(self.rate())
            found["constant"] += self.batches(self.constant("constant"))
            found["simple"] += self.batches(self.constant("simple"))
            found["wsrm"] += self.batches(self.wsrm_stream(str(FEW)))
            found["to sink"] += self.batches(self.wsrm_stream(str(FEW)), self.write_on)
        parts = sorted({part for some in found.values() for one in some for part in one})
        return {
            name: {part: round(statistics.median(one.get(part, 0) for one in some), 1) for part in parts}
            for name, some in found.items()
        }

    def rate(self) -> DataFrame:
        """Return Spark's own source with this many rows in each micro-batch."""
        read = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", FEW)
        return read.option("numPartitions", self.options.cores).load()

    def constant(self, kind: str) -> DataFrame:
        """Return a Python source without a server."""
        return self.spark.readStream.format(kind).option("tasks", self.options.cores).load()

    def batches(self, frame: DataFrame, write: Callable[[DataFrame], Any] | None = None) -> list[dict[str, float]]:
        """Return the times of each micro-batch after the warm-up."""
        query = (write or self.write)(frame).start()
        try:
            while len(query.recentProgress) < WARM + BATCHES:
                if query.exception() is not None:
                    raise SystemExit(str(query.exception()))
                time.sleep(0.1)
        finally:
            query.stop()
        return [dict(one["durationMs"]) for one in query.recentProgress[WARM : WARM + BATCHES]]

    # --- memory ---------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """Measure the resident memory while messages arrive faster than a stream reads them."""
        tell("memory while the backlog grows")
        query = self.write(self.wsrm_stream("2000")).trigger(processingTime="1 second").start()
        try:
            while len(query.recentProgress) < 5:
                time.sleep(0.1)
            before, most = resident(self.server), Counted()
            ends = self.end(QUEUE)
            watching = threading.Thread(target=most.watch, args=(self.server,))
            watching.start()
            load.in_process(
                [
                    "--url",
                    self.server.url,
                    "--soap",
                    "1.1",
                    "--body-bytes",
                    "1024",
                    "--connections",
                    "8",
                    "--seconds",
                    "15",
                ]
            )
            most.done.set()
            watching.join()
            grown = self.end(QUEUE) - ends
        finally:
            query.stop()
        return {"came": grown, "waiting": self.end(QUEUE), "before": before, "most": most.most}

    def end(self, queue: str) -> int:
        """Return how many messages a queue ever had."""
        with urllib.request.urlopen(f"{self.server.admin}/queues/{queue}/ends") as answer:
            partitions: dict[str, dict[str, int]] = json.load(answer)["partitions"]
        return sum(one["end"] for one in partitions.values())


def void(result: object) -> None:
    """Discard a result."""


def drop(frame: DataFrame) -> None:
    """Drop all rows."""
    frame.write.format("noop").mode("overwrite").save()


class Counted:
    """The maximum of each kind of process during the measurement."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.done = threading.Event()

    def watch(self, server: Server) -> None:
        """Sample five times a second."""
        while not self.done.wait(0.2):
            for name, size in resident(server).items():
                self.most[name] = max(size, self.most.get(name, 0.0))


def resident(server: Server) -> dict[str, float]:
    """Return the resident MiB of the server, of Java, and of all Python processes that Java started."""
    sizes = {"server": 0.0, "java": 0.0, "python workers": 0.0}
    parents: dict[int, tuple[int, str, float]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        size = float(lines["VmRSS"].split()[0]) / 1024 if "VmRSS" in lines else 0.0
        parents[int(status.parent.name)] = (int(lines["PPid"]), lines["Name"].strip(), size)

    def is_below(pid: int, top: int) -> bool:
        while pid in parents and pid != top:
            pid = parents[pid][0]
        return pid == top

    for pid, (_, name, size) in parents.items():
        if pid != os.getpid() and is_below(pid, os.getpid()):
            kind = "server" if is_below(pid, server.process.pid) else "java" if name == "java" else "python workers"
            sizes[kind] += size if name != "bash" else 0.0
    return {kind: round(size) * 1.0 for kind, size in sizes.items()}


def compared(ours: Taken, parquet: Taken, floor: Taken | None = None, *, rows: int) -> dict[str, float]:
    """Return the comparison for one query."""
    ratios = [theirs / one for one, theirs in zip(ours.seconds, parquet.seconds, strict=True)]
    below = {}
    if floor is not None:
        against = [theirs / one for one, theirs in zip(floor.seconds, parquet.seconds, strict=True)]
        below["floor_ratio_best"] = min(parquet.seconds) / min(floor.seconds)
        below["floor_ratio_median"] = statistics.median(against)
        below["floor_cpu_us"] = 1e6 * min(floor.cpu) / rows
    return below | {
        "seconds": min(ours.seconds),
        "parquet_seconds": min(parquet.seconds),
        "rate": rows / min(ours.seconds),
        "parquet_rate": rows / min(parquet.seconds),
        "ratio_best": min(parquet.seconds) / min(ours.seconds),
        "ratio_median": statistics.median(ratios),
        "cpu_us": 1e6 * min(ours.cpu) / rows,
        "server_cpu_us": 1e6 * min(ours.server) / rows,
        "parquet_server_cpu_us": 1e6 * min(parquet.server) / rows,
        "parquet_cpu_us": 1e6 * min(parquet.cpu) / rows,
    }


def show(figures: dict[str, Any], rows: int) -> None:
    """Print tables."""
    head = f"{'':<20}{'rows/s':>11}{'Parquet':>11}{'ratio':>7}{'median':>8}{'floor':>7}{'median':>8}"
    print(f"{head}{'CPU us':>8}{'server':>8}{'Parquet':>9}{'floor':>7}")
    for name, one in figures["questions"].items():
        rates = f"{one['rate']:11,.0f}{one['parquet_rate']:11,.0f}{one['ratio_best']:7.2f}{one['ratio_median']:8.2f}"
        floor = [f"{one[part]:.2f}" if part in one else "" for part in FLOOR]
        cpu = f"{one['cpu_us']:8.2f}{one['server_cpu_us']:8.2f}{one['parquet_cpu_us']:9.2f}"
        print(f"{name:<20}{rates}{floor[0]:>7}{floor[1]:>8}{cpu}{floor[2]:>7}")
    if "floor" in figures:
        names = ("wsrm", "constant", "simple", "rate-micro-batch", "to sink")
        ours, constant_, simple, rate, sink = (figures["floor"][name] for name in names)
        head = f"{'wsrm':>9}{'constant':>10}{'simple':>8}{'rate':>9}{'to rate':>9}{'to constant':>13}{'to sink':>9}"
        print(f"\n{'a micro-batch, ms':<20}{head}{'sink to noop':>14}")
        for part in sorted(ours, key=lambda one: -ours[one]):
            times = f"{ours[part]:9.1f}{constant_[part]:10.1f}{simple[part]:8.1f}{rate[part]:9.1f}"
            ratios = [f"{ours[part] / one[part]:.2f}" if one[part] else "" for one in (rate, constant_)]
            more = f"{sink[part] / ours[part]:.2f}" if ours[part] else ""
            print(f"{part:<20}{times}{ratios[0]:>9}{ratios[1]:>13}{sink[part]:9.1f}{more:>14}")
    if "memory" in figures:
        memory = figures["memory"]
        print(
            f"\nMiB resident while {memory['came']:,} messages came in, {memory['waiting']:,} in all: before, at most"
        )
        for kind, size in memory["before"].items():
            print(f"{kind:<20}{size:9,.0f}{memory['most'].get(kind, 0):9,.0f}")


if __name__ == "__main__":
    main()
