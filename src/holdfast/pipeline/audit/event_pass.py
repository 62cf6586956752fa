"""The single pass of an audit over the events, by Spark.

It adds facts of the same run to each event, groups the events by subject, in order, and passes them to ``counters``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.audit.counters import decide
from holdfast.pipeline.audit.events import (
    COMING,
    IN,
    INBOUND,
    OUT,
    OUTBOUND,
    PLACE,
    PLACED,
    SENDING,
    TAKEN,
    WAY,
    Found,
    Gap,
    Latency,
    SequenceRow,
    Told,
    Violation,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

KINDS: dict[str, type[tuple[Any, ...]]] = {
    "violation": Violation,
    "sequence": SequenceRow,
    "gap": Gap,
    "latency": Latency,
}
"""Column of a finding -> its content; the other columns of the row are null."""

_ROWS = 1_000
"""Findings in one record batch."""
_TEXTS = frozenset({"rule", "sequence", "queue", "run", "role", "peer", "key", "assurance", "state", "stage", "name"})
_TYPES = dict.fromkeys(_TEXTS, "string") | {"partition": "int", "unless_at_most_once": "boolean"}
_FIELDS: dict[str, tuple[str, ...]] = {column: kind._fields for column, kind in KINDS.items()}  # type: ignore[attr-defined]


def _type(name: str) -> str:
    return _TYPES.get(name, "bigint")


_DDL = ", ".join(
    f"`{column}` STRUCT<{', '.join(f'`{name}`: {_type(name)}' for name in names)}>" for column, names in _FIELDS.items()
)


def summary(journal: DataFrame) -> DataFrame:
    """Count the events by kind, in a few rows that summarize each run.

    Returns:
        ``run``, ``worker`` and ``event``. For standing queues, handling and outboxes also ``queue`` and ``partition``;
        for outboxes ``key``. Then ``events``, the ``first`` and ``last`` ordinal, ``began``, ``ended``, ``attempt`` and
        ``epoch``.
    """
    from pyspark.sql import functions as F

    event = F.col("event")
    is_home = event.isin("created", "stands") & F.col("key").isNotNull()
    is_placed = event.isin("queue stands", "rewound", "handled") | is_home
    return journal.groupBy(
        "run",
        "worker",
        "event",
        F.when(is_placed, F.col("queue")).alias("queue"),
        F.when(is_placed, F.col("partition")).alias("partition"),
        F.when(is_home, F.col("key")).alias("key"),
    ).agg(
        F.count("*").alias("events"),
        F.min("ordinal").alias("first"),
        F.max("ordinal").alias("last"),
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.max("attempt").alias("attempt"),
        # A new queue has no epoch before its first record.
        F.max(F.when((event == "queue stands") & (F.col("detail") != ""), F.col("detail"))).alias("epoch"),
    )


def is_of_several(summed: DataFrame) -> bool:
    """Return whether this is the journal of several servers: each counts its own runs."""
    from pyspark.sql import functions as F

    started = summed.where("event IN ('started', 'queue stands')").select("run", "worker", "attempt")
    runs = started.groupBy("worker", "attempt").agg(F.count_distinct("run").alias("runs"))
    return not runs.where("runs > 1").isEmpty()


def holes(journal: DataFrame, summed: DataFrame) -> DataFrame:
    """Return the missing ordinals of each run, each hole with the event after it.

    Returns:
        ``run``, ``worker``, ``ordinal``, ``at``, ``event`` and ``detail`` of that event; ``after``: the ordinal before
        the hole, or -1 at the start of the run.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    runs = summed.groupBy("run").agg(
        F.min("first").alias("begins"), F.max("last").alias("ends"), F.sum("events").alias("events")
    )
    # Usually no run has a hole, and Spark need not read the events.
    broken = runs.where("begins > 0 OR ends - begins + 1 <> events").select("run")
    window = Window.partitionBy("run").orderBy("ordinal")
    each = journal.select("run", "worker", "ordinal", "at", "event", "detail").join(F.broadcast(broken), "run")
    each = each.withColumn("after", F.coalesce(F.lag("ordinal").over(window), F.lit(-1)))
    return each.where("ordinal > after + 1")


def found(journal: DataFrame, summed: DataFrame) -> DataFrame:
    """Return everything found in a journal: one row each, with one column of :data:`KINDS` that is not null."""
    from pyspark.sql import functions as F

    known = _known(journal, summed)
    event, key, worker = F.col("event"), F.col("key"), F.coalesce(F.col("worker").cast("string"), F.lit("-"))
    is_told = F.col("sequence").isNotNull()
    is_out = event.isin(*SENDING) | (key.isNotNull() & event.isin(*OUTBOUND))
    looked_at = {
        IN: (is_told & key.isNull() & event.isin(*INBOUND), F.col("sequence")),
        OUT: (is_told & is_out, F.col("sequence")),
        PLACE: (F.col("queue").isNotNull() & event.isin(*PLACED), F.concat_ws(" ", worker, "partition", "queue")),
        WAY: (
            F.col("is_followed") & event.isin(*COMING, *TAKEN),
            F.concat_ws(" ", worker, "way_partition", "way_queue"),
        ),
    }
    abouts = [
        F.when(is_one, F.struct(F.concat(F.lit(f"{kind} "), name).alias("about"), *_order(kind)))
        for kind, (is_one, name) in looked_at.items()
    ]
    each = known.withColumn("_about", F.explode(F.array_compact(F.array(*abouts)))).select("*", "_about.*")
    ordered = each.repartition("about").sortWithinPartitions("about", "first_order", "then_order")
    return ordered.select(*Told._fields).mapInArrow(_decide, _DDL)


def _order(kind: str) -> tuple[Column, Column]:
    """Return the order of a subject's events: by run and ordinal; for :data:`WAY` by offset, ranges first."""
    from pyspark.sql import functions as F

    if kind == WAY:
        first, then = F.col("offset"), F.col("event").isin(*COMING).cast("bigint")
    else:
        first, then = F.col("rank").cast("bigint"), F.col("ordinal")
    return first.alias("first_order"), then.alias("then_order")


def _known(journal: DataFrame, summed: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event = F.col("event")
    runs = summed.groupBy("run", "worker").agg(
        F.coalesce(F.max(F.when(event.isin("started", "queue stands"), F.col("attempt"))), F.lit(0)).alias("number"),
        F.min("began").alias("began"),
        F.max("last").alias("ends"),
    )
    runs = runs.withColumn("rank", F.row_number().over(Window.orderBy("number", "began", "run")))
    queues = summed.where("event IN ('queue stands', 'rewound')").groupBy("run", "worker", "queue", "partition")
    queues = queues.agg(F.max("epoch").alias("epoch"), F.max(event == "rewound").alias("rewound"))
    several = queues.groupBy("worker", "queue").agg(F.count_distinct("epoch").alias("epochs")).where("epochs > 1")
    workers = several.select(_of("worker").alias("of")).distinct().withColumn("restored", F.lit(True))
    runs = runs.join(F.broadcast(workers), _of("worker") == F.col("of"), "left")
    breaks = holes(journal, summed).groupBy("run").agg(F.collect_list("after").alias("breaks"))
    runs = runs.select("run", "rank", "restored", "ends").join(breaks, "run", "left")
    homes = summed.where("key IS NOT NULL AND queue IS NOT NULL").groupBy(_of("worker").alias("home_of"), "key")
    homes = homes.agg(F.first("queue").alias("home_queue"), F.first("partition").alias("home_partition"))
    homes = homes.withColumnRenamed("key", "home_key")
    handled = summed.where("event = 'handled'").select(_of("worker").alias("w"), "queue", "partition")
    ways = homes.select(F.col("home_of").alias("w"), "home_queue", "home_partition").unionAll(handled).distinct()
    ways = ways.toDF("way_of", "way_queue", "way_partition").withColumn("is_followed", F.lit(True))
    known = journal.join(F.broadcast(runs), "run")
    known = known.join(F.broadcast(queues.drop("worker")), ["run", "queue", "partition"], "left")
    is_home = (event == "arrived") & (_of("worker") == F.col("home_of")) & (F.col("key") == F.col("home_key"))
    known = known.join(F.broadcast(homes), is_home, "left")
    there = F.coalesce("home_queue", "queue"), F.coalesce("home_partition", "partition")
    is_way = (
        (_of("worker") == F.col("way_of")) & (F.col("way_queue") == there[0]) & (F.col("way_partition") == there[1])
    )
    known = known.join(F.broadcast(ways), is_way, "left")
    return known.withColumns(
        {
            "at": F.unix_micros("at"),
            "since": F.unix_micros("since"),
            "restored": F.coalesce("restored", F.lit(False)),
            "rewound": F.coalesce("rewound", F.lit(False)),
            "is_followed": F.coalesce("is_followed", F.lit(False)),
            "last": F.coalesce(F.expr("array_min(filter(breaks, one -> one >= ordinal))"), "ends"),
        }
    )


def _of(worker: str) -> Column:
    """Return the worker; null becomes a worker number that no other has."""
    from pyspark.sql import functions as F

    return F.coalesce(worker, F.lit(-1))


def _decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    things = decide(chain.from_iterable(map(_events, batches)))
    schema = _schema()
    while some := list(islice(things, _ROWS)):
        yield _batch(some, schema)


def _events(batch: pa.RecordBatch) -> Iterator[Told]:
    return map(Told._make, zip(*map(_values, batch.columns), strict=True))


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; repeated texts share one object."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = [*encoded.dictionary.to_pylist(), None]
        return [texts[index] for index in encoded.indices.fill_null(-1).to_numpy().tolist()]
    if column.null_count == len(column):
        return [None] * len(column)
    if column.null_count or pa.types.is_boolean(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return column.to_numpy().tolist()  # type: ignore[no-any-return]


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()}
    structs = {column: pa.struct([(name, types[_type(name)]) for name in names]) for column, names in _FIELDS.items()}
    return pa.schema(list(structs.items()))


def _batch(some: list[Found], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        pa.array([one._asdict() if type(one) is kind else None for one in some], schema.field(column).type)
        for column, kind in KINDS.items()
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
