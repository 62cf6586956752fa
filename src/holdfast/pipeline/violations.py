"""What an event journal says that must not be, found by Spark: it brings the events of each Sequence, and of each
partition of a queue, together and in order; ``rules`` decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.rules import AT_MOST_ONCE, PLACE, SEQUENCE, WORK, OfPlace, OfSequence, Told, Violation, decide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WHERE = ("sequence", "number", "count", "queue", "partition", "offset", "run", "ordinal", "at")
"""Columns of a violation beside ``rule``: what it is about, and the event that tells it; null for nothing."""

_BEGAN = ("began_run", "began_at")
_ROWS = 1_000
"""Violations that are told together."""
_TYPES = {
    "rule": "string",
    "sequence": "string",
    "queue": "string",
    "run": "string",
    "partition": "int",
    "unless_at_most_once": "boolean",
}
_DDL = ", ".join(f"`{name}` {_TYPES.get(name, 'bigint').upper()}" for name in Violation._fields)


def violations(journal: DataFrame) -> DataFrame:
    """All that must not be: ``rule`` and :data:`WHERE`; nothing if all is well."""
    from pyspark.sql import functions as F

    known = _known(journal)
    is_inbound = F.col("sequence").isNotNull() & F.col("key").isNull()
    of_sequences = known.where(is_inbound & F.col("event").isin(*OfSequence.EVENTS))
    of_places = known.where(F.col("queue").isNotNull() & F.col("event").isin(*OfPlace.EVENTS))
    # A worker that is null is one of its own.
    place = F.concat_ws(" ", F.coalesce(F.col("worker").cast("string"), F.lit("-")), "partition", "queue")
    told = of_sequences.withColumn("about", F.concat(F.lit(SEQUENCE), "sequence")).unionByName(
        of_places.withColumn("about", F.concat(F.lit(PLACE), place))
    )
    ordered = told.repartition("about").sortWithinPartitions("about", *_BEGAN, "run", "ordinal")
    found = ordered.select(*Told._fields).mapInArrow(_decide, _DDL)
    promised = journal.where("key IS NULL AND event IN ('created', 'stands')")
    promised = promised.where(F.col("detail").contains(AT_MOST_ONCE)).select(F.col("sequence").alias("promised"))
    is_none = (F.col("sequence") == F.col("promised")) & F.col("unless_at_most_once")
    found = found.join(F.broadcast(promised.distinct()), is_none, "left_anti")
    return found.withColumn("at", F.expr("timestamp_micros(at)")).select("rule", *WHERE)


def _known(journal: DataFrame) -> DataFrame:
    """The events with what others of their run say of them, and what orders runs: there are few of both."""
    from pyspark.sql import functions as F

    def only(condition: Column, column: str) -> Column:
        return F.when(condition, F.col(column))

    event = F.col("event")
    runs = journal.groupBy("run", "worker").agg(
        F.coalesce(F.max(only(event.isin("started", "queue stands"), "attempt")), F.lit(0)).alias("began_run"),
        F.min("at").alias("began_at"),
        F.min("ordinal").alias("begins"),
        F.min(only(event.isin(*WORK), "ordinal")).alias("works"),
    )
    queues = journal.where("event IN ('queue stands', 'rewound')").groupBy("run", "worker", "queue", "partition")
    # A queue that is new has no epoch before its first record.
    epoch = F.nullif(only(event == "queue stands", "detail"), F.lit(""))
    queues = queues.agg(F.min(epoch).alias("epoch"), F.max(event == "rewound").alias("rewound"))
    several = queues.groupBy("worker", "queue").agg(F.count_distinct("epoch").alias("epochs")).where("epochs > 1")
    workers = several.select(F.coalesce("worker", F.lit(-1)).alias("of")).distinct().withColumn("restored", F.lit(True))
    runs = runs.join(F.broadcast(workers), F.coalesce("worker", F.lit(-1)) == F.col("of"), "left").drop("of", "worker")
    queues = queues.drop("worker")
    known = journal.join(F.broadcast(runs), "run").join(F.broadcast(queues), ["run", "queue", "partition"], "left")
    is_first = (F.col("begins") == 0) & (F.col("works").isNull() | (F.col("ordinal") < F.col("works")))
    return known.withColumns(
        {
            "at": F.unix_micros("at"),
            "restored": F.coalesce("restored", F.lit(False)),
            "rewound": F.coalesce("rewound", F.lit(False)),
            "is_first": is_first,
        }
    )


def _decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
    schema = pa.schema([(name, types[_TYPES.get(name, "bigint")]) for name in Violation._fields])
    found = decide(chain.from_iterable(map(_events, batches)))
    while some := list(islice(found, _ROWS)):
        yield _batch(some, schema)


def _events(batch: pa.RecordBatch) -> Iterator[Told]:
    return map(Told, *(column.to_pylist() for column in batch.columns))


def _batch(found: list[Violation], schema: Any) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array(values, one.type) for values, one in zip(zip(*found, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
