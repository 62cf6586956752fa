"""Audit: what an event journal comes to, as tables: Sequences, peers, gaps, latencies, and what must not be.

All of it is Spark: a journal may have more events than a machine has memory. What a violation is, ``violations`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from holdfast.pipeline.intervals import covering, joined
from holdfast.pipeline.violations import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""Which quantiles of latencies are told."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a journal comes to; each is a DataFrame, computed when it is asked for.

    Attributes:
        sequences: A row for each Sequence: ``role`` ("in": it came here; "out": it was sent from here), ``sequence``,
            ``peer``, ``key`` (of an outbox), ``state`` (the last that is known), ``begun``, ``ended``, ``messages``
            (accepted, or known to have arrived), ``highest`` number, ``missing`` (numbers up to that which are not),
            ``delivered``, ``held`` (now), ``discarded``, ``acknowledged``, ``duplicates``, ``transmitted`` (first
            times), ``retransmitted``.
        peers: The same, added up for each ``role`` and ``peer``, with ``sequences``, how many, ``complete``, how many
            of them miss nothing, and ``retransmission_rate``, retransmissions for each message transmitted.
        gaps: A row for each message that waited behind a gap: ``sequence``, ``number``, ``since``, ``until``,
            ``seconds``; null: it waits still.
        over_time: A row for each minute and event: ``minute``, ``event``, ``messages``.
        latencies: A row for each way: ``stage``, ``name`` (of the queue, or the key of the outbox), ``messages``, and
            the seconds of some quantiles: ``p50`` and so on.
        faults: ``event``, ``sequence``, ``detail``, ``times``, ``first``, ``last``, of faults sent and received.
        violations: What must not be: :func:`holdfast.pipeline.violations.violations`. Empty if all is well.
        cannot_say: Where the journal has holes: ``run``, ``worker``, ``after`` (the ordinal before), ``events`` (how
            many are missing; null: nobody knows), ``at``, ``why``. What is missing there can have been anything.
    """

    sequences: DataFrame
    peers: DataFrame
    gaps: DataFrame
    over_time: DataFrame
    latencies: DataFrame
    faults: DataFrame
    violations: DataFrame
    cannot_say: DataFrame

    def tables(self) -> Iterator[tuple[str, DataFrame]]:
        """All of them, by their names."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)


def audit(spark: SparkSession, journal: DataFrame) -> Audit:
    """What a journal comes to.

    Args:
        spark: The session.
        journal: As :func:`~holdfast.pipeline.journal.read_journal` gives it: of one server, with all its workers.
            Cache it if several of the tables are asked for.
    """
    sequences = _sequences(journal)
    return Audit(
        sequences,
        _peers(sequences),
        _gaps(journal),
        _over_time(journal),
        _latencies(journal),
        _faults(journal),
        violations(journal),
        _cannot_say(journal),
    )


# --- Sequences and peers ----------------------------------------------------------------------------------------------

_LIFE = ("created", "closed", "terminated", "expired")


def _sequences(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    told = journal.where("sequence IS NOT NULL").withColumn("count", F.coalesce("count", F.lit(1)))
    of_peers = told.where(
        "event = 'created' OR (event = 'stands' AND detail IS NULL) OR (event = 'stands' AND detail <> 'held')"
    )
    known = of_peers.groupBy("sequence").agg(
        F.min("at").alias("begun"),
        F.max(F.col("key").isNotNull()).alias("is_out"),
        F.max("peer").alias("peer"),
        F.max("key").alias("key"),
    )
    life = (
        told.where(F.col("event").isin(*_LIFE))
        .groupBy("sequence")
        .agg(
            F.max_by("event", F.struct("at", "ordinal")).alias("state"),
            F.max(F.when(F.col("event").isin("terminated", "expired"), F.col("at"))).alias("ended"),
        )
    )
    counts = told.groupBy("sequence").agg(
        *(
            F.coalesce(F.sum(F.when(F.col("event") == event, F.col("count"))), F.lit(0)).alias(name)
            for event, name in (
                ("delivered", "delivered"),
                ("discarded", "discarded"),
                ("duplicate", "duplicates"),
                ("transmitted", "transmitted"),
                ("retransmitted", "retransmitted"),
            )
        )
    )
    return (
        known.join(life, "sequence", "left")
        .join(counts, "sequence")
        .join(_numbers(told), "sequence", "left")
        .select(
            F.when(F.col("is_out"), "out").otherwise("in").alias("role"),
            "sequence",
            "peer",
            "key",
            F.coalesce("state", F.lit("created")).alias("state"),
            "begun",
            "ended",
            *(F.coalesce(name, F.lit(0)).alias(name) for name in ("messages", "highest", "missing")),
            "delivered",
            F.coalesce("held", F.lit(0)).alias("held"),
            "discarded",
            F.coalesce("acknowledged", F.lit(0)).alias("acknowledged"),
            "duplicates",
            "transmitted",
            "retransmitted",
        )
    )


def _numbers(told: DataFrame) -> DataFrame:
    """Of each Sequence how many numbers are accepted or have arrived, and up to which; acknowledged and held ones."""
    from pyspark.sql import functions as F

    numbered = told.where("number IS NOT NULL").selectExpr("*", "number AS first", "number + count AS end")
    there = numbered.where("event IN ('delivered', 'held', 'discarded', 'not queued', 'stands', 'arrived')")
    accepted = joined(there.select("sequence", "first", "end"), ["sequence"])
    said = joined(numbered.where("event = 'acknowledged'").select("sequence", "first", "end"), ["sequence"])
    totals = accepted.groupBy("sequence").agg(
        F.sum(F.col("end") - F.col("first")).alias("messages"), (F.max("end") - 1).alias("highest")
    )
    waiting = _waiting(told).where("until IS NULL").groupBy("sequence").agg(F.count("*").alias("held"))
    return (
        totals.withColumn("missing", F.col("highest") - F.col("messages"))
        .join(
            said.groupBy("sequence").agg(F.sum(F.col("end") - F.col("first")).alias("acknowledged")), "sequence", "full"
        )
        .join(waiting, "sequence", "left")
    )


def _peers(sequences: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    added = (
        "messages",
        "missing",
        "delivered",
        "held",
        "discarded",
        "acknowledged",
        "duplicates",
        "transmitted",
        "retransmitted",
    )
    totals = sequences.groupBy("role", "peer").agg(
        F.count("*").alias("sequences"),
        F.sum(F.when(F.col("missing") == 0, 1).otherwise(0)).alias("complete"),
        *(F.sum(name).alias(name) for name in added),
    )
    rate = F.when(F.col("transmitted") > 0, F.col("retransmitted") / F.col("transmitted"))
    return totals.withColumn("retransmission_rate", rate)


# --- gaps, time, latencies --------------------------------------------------------------------------------------------


def _waiting(journal: DataFrame) -> DataFrame:
    """Messages that were held: since when, until when."""
    from pyspark.sql import functions as F

    held = journal.where("event = 'held'").groupBy("sequence", "number").agg(F.min("at").alias("since"))
    over = journal.where("event IN ('delivered', 'discarded') AND sequence IS NOT NULL")
    until = over.groupBy("sequence", "number").agg(F.min("at").alias("until"))
    return held.join(until, ["sequence", "number"], "left")


def _gaps(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    seconds = F.col("until").cast("double") - F.col("since").cast("double")
    return _waiting(journal).withColumn("seconds", seconds)


def _over_time(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    what = "event NOT IN ('stands', 'queue stands', 'handled stands', 'deleted', 'read', 'recovered')"
    minute = F.date_trunc("minute", "at").alias("minute")
    return journal.where(what).groupBy(minute, "event").agg(F.sum(F.coalesce("count", F.lit(1))).alias("messages"))


def _latencies(journal: DataFrame) -> DataFrame:
    """From when a message came, or was submitted here, until it was in its queue, until its handler was done with it,
    and until the next hop had it."""
    from pyspark.sql import functions as F

    place = ["worker", "queue", "partition"]
    columns = [*place, "offset", "at", "since", "event", "key", "sequence", "number"]
    held = (
        journal.where("event = 'held'")
        .selectExpr("sequence", "number", "since AS came")
        .dropDuplicates(["sequence", "number"])
    )
    delivered = journal.where("event = 'delivered'").select(*columns).join(held, ["sequence", "number"], "left")
    delivered = delivered.withColumn("since", F.coalesce("since", "came")).drop("came")
    into = delivered.selectExpr("'received to delivered' AS stage", "queue AS name", "since", "at")
    done = journal.where("event = 'handled'")
    handled = covering(delivered.drop("at"), "offset", _span(done, place), place, ["at"])
    handled = handled.selectExpr("'received to handled' AS stage", "queue AS name", "since", "at")
    keys = journal.where("key IS NOT NULL AND queue IS NOT NULL AND event IN ('created', 'stands')")
    keys = keys.selectExpr("worker AS w", "key AS k", "queue AS q", "partition AS p").distinct()
    next_hop = journal.where("event = 'arrived'").select("worker", "key", "offset", "count", "at")
    next_hop = next_hop.join(keys, F.expr("key = k AND worker <=> w")).withColumnsRenamed(
        {"q": "queue", "p": "partition"}
    )
    ours = journal.where("event = 'submitted'").select(*columns)
    sent = delivered.unionByName(ours).drop("key", "at")
    sent = sent.join(keys, F.expr("queue = q AND partition = p AND worker <=> w"))
    sent = sent.drop("w", "q", "p").withColumnRenamed("k", "key")
    by = [*place, "key"]
    first = _span(next_hop, by).groupBy(*by, "first", "end").agg(F.min("at").alias("at"))
    arrived = covering(sent, "offset", first, by, ["at"])
    arrived = arrived.selectExpr("'received to arrived' AS stage", "key AS name", "since", "at")
    seconds = (F.col("at").cast("double") - F.col("since").cast("double")).alias("seconds")
    ways = into.unionByName(handled).unionByName(arrived).where("at IS NOT NULL AND since IS NOT NULL")
    quantiles = F.percentile_approx("seconds", list(QUANTILES), 10_000)
    rows = ways.select("stage", "name", seconds).groupBy("stage", "name")
    found = rows.agg(F.count("*").alias("messages"), quantiles.alias("quantiles"))
    names = [f"p{100 * one:g}".replace(".", "_") for one in QUANTILES]
    named = [F.col("quantiles")[index].alias(name) for index, name in enumerate(names)]
    return found.select("stage", "name", "messages", *named)


def _span(rows: DataFrame, by: list[str]) -> DataFrame:
    return rows.selectExpr(*(f"`{one}`" for one in by), "offset AS first", "offset + count AS end", "at")


def _faults(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    faults = journal.where("event IN ('fault sent', 'fault received', 'sending stopped')")
    return faults.groupBy("event", "sequence", "detail").agg(
        F.count("*").alias("times"), F.min("at").alias("first"), F.max("at").alias("last")
    )


# --- holes ------------------------------------------------------------------------------------------------------------


def _cannot_say(journal: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy("run").orderBy("ordinal")
    before = F.coalesce(F.lag("ordinal").over(window), F.lit(-1))
    holes = journal.select("run", "worker", "ordinal", "at", "event", "detail").withColumn("after", before)
    holes = holes.where("ordinal > after + 1")
    why = (
        F.when(F.col("event") == "gap", F.concat(F.lit("not written: "), "detail"))
        .when(F.col("after") < 0, "what was before is not kept any more")
        .otherwise("a file is damaged, or missing")
    )
    inside = holes.select(
        "run", "worker", "after", (F.col("ordinal") - F.col("after") - 1).alias("events"), "at", why.alias("why")
    )
    ends = journal.groupBy("run", "worker").agg(
        F.max("ordinal").alias("after"), F.max("at").alias("at"), F.max(F.col("event") == "stopped").alias("is_over")
    )
    followed = F.lead("run").over(Window.partitionBy("worker").orderBy("at")).isNotNull()
    killed = ends.withColumn("followed", followed).where("NOT is_over AND followed")
    said = F.lit("it ended without a word: what it gathered in its last second may be missing")
    tails = killed.select("run", "worker", "after", F.lit(None).cast("bigint").alias("events"), "at", said.alias("why"))
    return inside.unionByName(tails)
