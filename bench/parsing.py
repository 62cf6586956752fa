"""The speed of parsing bodies into columns: rows per second and CPU microseconds per row of each way, by turns.

Spark caches bodies of departures (some 500 bytes, up to 19 fields, in a few shapes). Each way parses them, and passes
seven fields, the body and its problem to a sink that discards them. The ways are that of a landing (``body_columns``),
Spark's own ``from_xml``, and the minimum of both: reading alone, and the way into Python and back (``mapInArrow`` with
nothing in between). The rate of lxml's parsing alone, without Spark, is printed for comparison.

    python bench/parsing.py [--rows 100000] [--rounds 5]

The relevant ratios are those to ``from_xml`` in the same round: of rates, and of processor time, which a busy machine
disturbs less. Both are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import load
import pyarrow as pa
import pyarrow.parquet as pq
from lxml import etree

from holdfast.pipeline import session
from holdfast.pipeline.bodies.columns import ENVELOPE, BodyColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "year INT, month INT, day INT, carrier STRING, flight INT, dep_delay INT, time_hour TIMESTAMP"


def body(number: int, escaped: bool) -> str:
    """Return a departure as a peer may write it; some have not departed, and have no delay."""
    fields = {
        "year": 2013,
        "month": 1 + number % 12,
        "day": 1 + number % 28,
        "dep_time": number % 2400 if number % 40 else None,
        "sched_dep_time": number % 2350,
        "dep_delay": number % 90 - 10 if number % 40 else None,
        "arr_time": number % 2300 if number % 30 else None,
        "sched_arr_time": number % 2310,
        "arr_delay": number % 80 - 20 if number % 30 else None,
        "carrier": ("UA", "B6", "Q&A" if escaped else "AA")[number % 3],
        "flight": number % 8500,
        "tailnum": f"N{number % 99999:05}",
        "origin": ("EWR", "JFK", "LGA")[number % 3],
        "dest": ("IAH", "MIA", "BQN", "ATL")[number % 4],
        "air_time": number % 500,
        "distance": number % 4900,
        "hour": number % 24,
        "minute": number % 60,
        "time_hour": f"2013-{1 + number % 12:02}-{1 + number % 28:02}T{number % 24:02}:00:00Z",
    }
    inner = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in fields.items() if value is not None)
    return f'<departure xmlns="urn:holdfast:flights">{inner}</departure>'


def write(place: Path, rows: int, escaped: bool) -> None:
    """Write the rows as the source returns them, with only the used columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(ENVELOPE, timezone="UTC")
    with pq.ParquetWriter(place, schema) as writer:
        for start in range(0, rows, 20_000):
            count = min(20_000, rows - start)
            arrays = [pa.nulls(count, field.type) for field in schema]
            arrays[-1] = pa.array([body(start + i, escaped) for i in range(count)])
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches through Python unchanged."""
    yield from batches


def ways(bodies: DataFrame) -> dict[str, Callable[[], DataFrame]]:
    """Return the ways by name."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(SCHEMA)
    landed = BodyColumns(fields)
    strict = StructType([*fields.fields, *StructType.fromDDL("_corrupt_record STRING").fields])
    options = {"columnNameOfCorruptRecord": "_corrupt_record", "ignoreNamespace": "true"}
    return {
        "reading alone": lambda: bodies,
        "mapInArrow alone": lambda: bodies.mapInArrow(same, ENVELOPE),
        "from_xml": lambda: bodies.select("*", F.from_xml("body", strict, options).alias("v")).select("*", "v.*"),
        "landing": lambda: bodies.mapInArrow(landed, landed.schema),
    }


def lxml_alone(rows: int, escaped: bool) -> float:
    """Return the rows per second of one core that only parses."""
    bodies = [body(i, escaped).encode() for i in range(min(rows, 20_000))]
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    started = time.process_time()
    for each in bodies:
        etree.fromstring(each, parser)
    return len(bodies) / (time.process_time() - started)


def main() -> None:
    """Print one table for bodies without references, and one for bodies of which a third has one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spark = session("bench parsing", "local[2]", **{"spark.driver.memory": "1g"})
    with tempfile.TemporaryDirectory() as directory:
        for title, escaped in (("plain texts", False), ("a third with a reference (&amp;)", True)):
            place = Path(directory, title[:1])
            write(place, options.rows, escaped)
            made = ways(spark.read.parquet(str(place)).repartition(4).cache())
            made["reading alone"]().count()  # fills the cache
            took: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
            for number in range(options.rounds + 1):
                for name, way in made.items():
                    started, spent = time.perf_counter(), load.cpu_seconds([os.getpid()])
                    way().write.format("noop").mode("overwrite").save()
                    if number:  # the first round is the warm-up
                        took[name].append((time.perf_counter() - started, load.cpu_seconds([os.getpid()]) - spent))
            print(f"{options.rows} bodies, {title}; lxml alone: {lxml_alone(options.rows, escaped):,.0f} rows/s a core")
            for name, rounds in took.items():
                rate, cpu = (
                    statistics.median(x[of] / each[of] for x, each in zip(took["from_xml"], rounds, strict=True))
                    for of in (0, 1)
                )
                seconds, spent = (statistics.median(each[of] for each in rounds) for of in (0, 1))
                print(
                    f"  {name:<18}{options.rows / seconds:>12,.0f} rows/s{rate:>8.2f}"
                    f"{spent / options.rows * 1e6:>12.1f} us of CPU{cpu:>8.2f}"
                )
            spark.catalog.clearCache()
    spark.stop()


if __name__ == "__main__":
    main()
