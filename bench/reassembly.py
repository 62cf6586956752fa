"""Reassembly of a capture: envelopes per second and memory of the batch, and of the stream compared with Spark.

    python bench/reassembly.py                                     # 500,000 envelopes, one round of each
    python bench/reassembly.py --messages 5000000 --stream 0       # the batch alone, of five million

The capture is Parquet: envelopes of 1.1 KB that hardly compress, in Sequences of 2,000 and one with a fifth of all; a
tenth of them are repeated, each is up to a few thousand rows from its place, and a thousandth is lost. The batch is
timed by its steps; memory is the maximum resident memory of Java and all Python workers. The stream reads the same
files, 100,000 rows per micro-batch, into a dropping sink. These run in alternation with it, into the same sink:

- ``dropDuplicates, decoded``: the same envelopes decoded by the same code, then ``dropDuplicates`` on their numbers;
- ``dropDuplicates, raw``: nothing decoded, on columns of the capture with the Sequence and number.

A ratio is the stream's rate over that of the other. CPU is that of all processes together. The benchmark has no pass or
fail.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import load

from holdfast.pipeline import session
from holdfast.pipeline.reassembly.report import figures
from holdfast.pipeline.reassembly.rows import CAPTURE, DECODED, decode_batches
from holdfast.pipeline.reassembly.stream import reassembled
from holdfast.pipeline.reassembly.tables import KEY, reassemble
from holdfast.pipeline.spark.ddl import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SEQUENCE = 2_000
ROWS_A_FILE = 100_000
FEED = f"{CAPTURE}, sequence BIGINT, message_number BIGINT"

ENVELOPE = (
    '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://www.w3.org/2005/08/addressing" '
    'xmlns:r="http://docs.oasis-open.org/ws-rx/wsrm/200702"><s:Header><r:Sequence s:mustUnderstand="1"><r:Identifier>'
    "urn:uuid:6f1c0000-0000-4000-8000-%012d</r:Identifier><r:MessageNumber>%d</r:MessageNumber></r:Sequence>"
    '<a:Action s:mustUnderstand="1">urn:holdfast:bench/put</a:Action><a:MessageID>urn:uuid:%032x</a:MessageID>'
    '<a:To s:mustUnderstand="1">http://localhost:8080/orders</a:To></s:Header><s:Body><put xmlns="urn:holdfast:bench">'
    "%s</put></s:Body></s:Envelope>"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000, help="envelopes of the batch")
    parser.add_argument("--stream", type=int, default=800_000, help="envelopes of the stream; 0: no stream")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--driver-memory", default="1g")
    arguments = parser.parse_args()
    if 0 < arguments.stream < 200_000:
        parser.error("--stream: 200,000 at least, as the first 100,000 start the workers and are not counted; or 0")
    directory = tempfile.mkdtemp(prefix="reassembly-")
    spark = session("bench", arguments.master, **{"spark.driver.memory": arguments.driver_memory})
    try:
        if arguments.messages:
            feed = make(spark, arguments.messages, f"{directory}/batch")
            for _ in range(arguments.rounds):
                tell(batch(spark, feed, f"{directory}/out"))
        if arguments.stream:
            make(spark, arguments.stream, f"{directory}/stream")
            for _ in range(arguments.rounds):
                tell(stream(spark, f"{directory}/stream", directory))
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)


def tell(line: dict[str, Any]) -> None:
    """Print a line of JSON, with the machine's load."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}), flush=True)


def make(spark: SparkSession, messages: int, to: str) -> DataFrame:
    """Write the capture; files have :data:`ROWS_A_FILE` rows."""
    spans = messages // ROWS_A_FILE or 1

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for span in batch.column(0).to_pylist():
                table = pa.Table.from_pylist(captured(span, messages // spans), arrow_schema(FEED))
                yield from table.to_batches(max_chunksize=5_000)

    table = spark.range(0, spans, 1, spans).mapInArrow(rows, FEED)
    table.write.mode("overwrite").parquet(to)
    return spark.read.parquet(to)


def captured(span: int, size: int) -> list[dict[str, Any]]:
    """Return the rows of one file: a span of numbers in each of its Sequences."""
    chance = random.Random(span)
    large = size // 5
    numbers = [(0, span * large + number + 1) for number in range(large)]
    numbers += [(1 + span * size // SEQUENCE + n // SEQUENCE, n % SEQUENCE + 1) for n in range(size - large)]
    came = [(at + chance.random() * 3_000, one) for at, one in enumerate(numbers) if chance.random() > 0.001]
    came += [(at + 500, one) for at, one in chance.sample(came, len(came) // 10)]
    return [
        {
            "source": f"file {span}",
            "position": at,
            "captured_at": None,
            "content": envelope(*one),
            "sequence": one[0],
            "message_number": one[1],
        }
        for at, (_, one) in enumerate(sorted(came))
    ]


def envelope(sequence: int, number: int) -> bytes:
    """Return a message, the same each time."""
    chance = random.Random(sequence << 32 | number)
    return (ENVELOPE % (sequence, number, chance.getrandbits(128), chance.randbytes(250).hex())).encode()


class Usage:
    """Usage by this process's children from its creation to :meth:`taken`: processor seconds, and maximum memory."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.peak = 0
        self._cpu = _cpu()
        self._began = time.monotonic()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            self.peak = max(self.peak, _resident())

    def taken(self, envelopes: int) -> dict[str, Any]:
        """Return the figures for this many envelopes."""
        seconds, cpu = time.monotonic() - self._began, _cpu() - self._cpu
        self._ended.set()
        self._watch.join()
        return {
            "seconds": round(seconds, 1),
            "rate": round(envelopes / seconds),
            "cpu_us": round(cpu / envelopes * 1e6, 1),
            "peak_mb": self.peak >> 20,
        }


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident() -> int:
    """Return the bytes of this process and all below it."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.parent.name)] = int(fields[1]), int(fields[21]) * _PAGE
    total = 0
    for process in found:
        above = process
        while above not in (0, os.getpid()) and above in found:
            above = found[above][0]
        total += found[process][1] * (above == os.getpid())
    return total


def _cpu() -> float:
    return load.cpu_seconds([os.getpid()])


def batch(spark: SparkSession, feed: DataFrame, out: str) -> dict[str, Any]:
    """Reassemble the capture once."""
    envelopes = feed.count()
    steps: dict[str, float] = {}
    usage, began = Usage(), time.monotonic()
    done = reassemble(
        feed.select("source", "position", "captured_at", "content"),
        out,
        on_step=lambda step, _count: steps.update({step: round(time.monotonic() - began, 1)}),
    )
    line = {"batch": envelopes, **usage.taken(envelopes), "steps": steps}
    counted = figures(done)
    return {**line, "messages": counted.messages, "missing": counted.missing, "duplicates": counted.duplicates}


def stream(spark: SparkSession, feed: str, directory: str) -> dict[str, Any]:
    """Run the stream and the compared queries, once each."""
    ways: dict[str, Callable[[DataFrame], DataFrame]] = {
        "reassembled": lambda rows: reassembled(rows, timeout=3_600),
        "dropDuplicates, decoded": lambda rows: (
            rows.select("source", "position", "captured_at", "content")
            .mapInArrow(decode_batches, DECODED)
            .where("kind = 'message'")
            .dropDuplicates([*KEY])
        ),
        "dropDuplicates, raw": lambda rows: rows.dropDuplicates(["sequence", "message_number"]),
    }
    line: dict[str, Any] = {"stream": spark.read.parquet(feed).count()}
    for way, made in ways.items():
        rows = spark.readStream.schema(FEED).option("maxFilesPerTrigger", 1).parquet(feed)
        usage = Usage()
        writer = made(rows).writeStream.format("noop").trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=directory)).start()
        taken = 0
        while taken < line["stream"] and not query.awaitTermination(0.1):
            taken = sum(one["numInputRows"] for one in list(query.recentProgress))
        query.stop()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        steady = batches[1:]  # the first starts workers
        seconds = sum(one["durationMs"]["triggerExecution"] for one in steady) / 1_000
        line[way] = {**usage.taken(line["stream"]), "steady": round(sum(b["numInputRows"] for b in steady) / seconds)}
    for other in [*ways][1:]:
        line[f"of {other}"] = round(line["reassembled"]["steady"] / line[other]["steady"], 2)
    return line


if __name__ == "__main__":
    main()
