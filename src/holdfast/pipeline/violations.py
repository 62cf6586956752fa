"""What an event journal says that must not be: each rule as a query, with the events that broke it.

A rule compares what was said with what was durable, and decides nothing itself. Where the journal has a hole, no rule
makes a violation of it: each file begins with what stands, and what stands counts as told (docs/internals/journal.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.pipeline.intervals import covering, uncovered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RULES = {
    "acknowledged, not delivered": "It was acknowledged, and is in no queue, neither held nor discarded.",
    "acknowledged, never released": "It was acknowledged and held, its Sequence is over, and it went nowhere.",
    "acknowledged too early": "It was acknowledged before it was durable.",
    "acknowledged, then gone": "It was acknowledged, and a later run does not know that it was accepted.",
    "delivered twice": "The same message of a Sequence came into a queue twice.",
    "delivered out of order": "Its Sequence promises order, and it came into its queue behind a later one.",
    "offset used twice": "Two records came to one offset of a queue.",
    "delivered, then gone": "It was durable in a queue, and the queue of a later run is shorter.",
    "handled again": "It was handed over after its handler was durably done with it; or, at most once, a second time.",
    "handled out of order": "Its Sequence promises order, and it was handed over after a later one.",
}
"""Rule -> when it is broken."""

WHERE = ("sequence", "number", "count", "queue", "partition", "offset", "run", "ordinal", "at")
"""Columns of a violation beside ``rule``: what it is about, and the event that tells it; null for nothing."""

_PLACE = ("worker", "queue", "partition", "epoch")


def violations(journal: DataFrame) -> DataFrame:
    """All that must not be: ``rule`` and :data:`WHERE`; nothing if all is well."""
    told = _Told(journal)
    found = [
        _not_delivered(told),
        _never_released(told),
        _too_early(told),
        _acknowledged_then_gone(told),
        _twice(told),
        _out_of_order(told),
        _offset_twice(told),
        _then_gone(told),
        _handled_again(told),
        _handled_out_of_order(told),
    ]
    first, *others = found
    for other in others:
        first = first.unionByName(other)
    return first


class _Told:
    """The journal by what it is about.

    Attributes:
        rows: All of it, with ``began``, which orders runs, and ``epoch`` of its queue in that run.
        inbound: Of Sequences that come in.
        placed: ``sequence``, ``first``, ``end`` of what is known to be accepted.
        promised: ``sequence``, and whether it is ``in_order`` and ``at_most_once``.
    """

    def __init__(self, journal: DataFrame) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        numbered = F.when(F.col("event").isin("started", "queue stands"), F.col("attempt"))
        runs = Window.partitionBy("run")
        began = F.struct(F.max(numbered).over(runs).alias("run"), F.min("at").over(runs).alias("at"))
        epochs = journal.where("event = 'queue stands'").groupBy("run", "queue").agg(F.first("detail").alias("epoch"))
        # Every rule begins with it: it is made once.
        self.rows = journal.withColumn("began", began).join(F.broadcast(epochs), ["run", "queue"], "left").cache()
        self.inbound = self.rows.where("sequence IS NOT NULL AND key IS NULL")
        self.delivered = self.rows.where("event = 'delivered'")
        self.acknowledged = self._numbers("event = 'acknowledged'")
        self.stands = self.inbound.where("event = 'stands' AND count > 0")
        is_placed = "event IN ('delivered', 'held', 'discarded', 'not queued', 'stands')"
        self.placed = self._numbers(is_placed)
        detail = F.col("detail")
        self.promised = (
            self.inbound.where("event = 'created' OR (event = 'stands' AND detail <> 'held')")
            .groupBy("sequence")
            .agg(
                F.max(detail.contains("in-order")).alias("in_order"),
                F.max(detail.contains("at-most-once")).alias("at_most_once"),
            )
        )

    def _numbers(self, which: str) -> DataFrame:
        rows = self.inbound.where(which).where("number IS NOT NULL")
        return rows.selectExpr("*", "number AS first", "number + count AS end")


def _as_violation(rows: DataFrame, rule: str) -> DataFrame:
    from pyspark.sql import functions as F

    types = {"sequence": "string", "queue": "string", "run": "string", "partition": "int", "at": "timestamp"}
    columns: list[Column] = [F.lit(rule).alias("rule")]
    for name in WHERE:
        value = F.col(name) if name in rows.columns else F.lit(None)
        columns.append(value.cast(types.get(name, "bigint")).alias(name))
    return rows.select(*columns)


def _ranges(rows: DataFrame, rule: str) -> DataFrame:
    return _as_violation(rows.selectExpr("sequence", "first AS number", "end - first AS count"), rule)


# --- acknowledgements -------------------------------------------------------------------------------------------------


def _not_delivered(told: _Told) -> DataFrame:
    missing = uncovered(told.acknowledged, told.placed, ["sequence"])
    return _ranges(missing, "acknowledged, not delivered")


def _never_released(told: _Told) -> DataFrame:
    """What stands and is not held counts as released: the event may be lost, its file deleted."""
    from pyspark.sql import functions as F

    over = told.inbound.where("event IN ('terminated', 'expired')").select("sequence").distinct()
    waits = told.placed.where("event = 'held' OR (event = 'stands' AND detail = 'held')").join(over, "sequence")
    held_there = told.stands.where("detail = 'held'").select("sequence", "run", F.col("number").alias("held"))
    # A range that stands has held numbers in it, each said by itself: those are no more than held.
    stands = told.placed.where("event = 'stands' AND detail <> 'held'").select("sequence", "run", "first", "end")
    free = uncovered(
        stands,
        held_there.selectExpr("sequence", "run", "held AS first", "held + 1 AS end"),
        [
            "sequence",
            "run",
        ],
    ).select("sequence", "first", "end")
    gone = told.placed.where("event IN ('delivered', 'discarded', 'not queued')").select("sequence", "first", "end")
    said = told.acknowledged.select("sequence", "first", "end")
    stuck = uncovered(waits.select("sequence", "first", "end"), free.unionByName(gone), ["sequence"])
    # Of those, what was acknowledged: what is left of them without what was not.
    unsaid = uncovered(stuck, said, ["sequence"])
    return _ranges(uncovered(stuck, unsaid, ["sequence"]), "acknowledged, never released")


def _too_early(told: _Told) -> DataFrame:
    """Within a run ordinals tell what was first; what a run took over, its first file's ``stands`` have."""
    from pyspark.sql import functions as F

    points = told.inbound.where("event IN ('delivered', 'held', 'not queued') AND number IS NOT NULL")
    first = points.groupBy("run", "sequence", "number").agg(F.min("ordinal").alias("placed_at"))
    said = told.acknowledged.select("run", "sequence", "first", "end", F.col("ordinal").alias("ordinal"), "at")
    pairs = covering(first, "number", said, ["run", "sequence"], ["ordinal", "at"]).where("ordinal < placed_at")
    stands = told.stands.selectExpr("run AS r", "sequence AS q", "number AS s", "number + count AS e", "ordinal AS o")
    known = F.expr("run = r AND sequence = q AND o < ordinal AND s <= number AND e > number")
    early = pairs.join(stands, known, "left_anti")
    return _as_violation(early.withColumn("count", F.lit(1)), "acknowledged too early")


def _acknowledged_then_gone(told: _Told) -> DataFrame:
    """Of each Sequence the run that knows it last has to know all that runs before it acknowledged."""
    from pyspark.sql import functions as F

    latest = told.stands.groupBy("sequence").agg(F.max(F.struct("began", "run")).alias("latest"))
    before = told.acknowledged.join(latest, "sequence").where("began < latest.began")
    known = told.placed.where("event = 'stands'").join(latest, "sequence").where("run = latest.run")
    restored = _restored(told)
    gone = uncovered(before, known, ["sequence"]).join(restored, "sequence", "left_anti")
    return _ranges(gone, "acknowledged, then gone")


def _restored(told: _Told) -> DataFrame:
    """Sequences of stores that were put back to a copy, as their operator said: there their queues have a new epoch."""
    from pyspark.sql import functions as F

    epochs = told.rows.where("event = 'queue stands'").groupBy("worker", "queue")
    several = epochs.agg(F.count_distinct("detail").alias("n")).where("n > 1").selectExpr("worker AS w").distinct()
    return told.inbound.join(several, F.expr("worker <=> w"), "left_semi").select("sequence").distinct()


# --- queues -----------------------------------------------------------------------------------------------------------


def _twice(told: _Told) -> DataFrame:
    from pyspark.sql import functions as F

    mine = told.delivered.where("sequence IS NOT NULL")
    same = mine.groupBy("sequence", "number", "queue").agg(
        F.count("*").alias("times"),
        F.max(F.struct("began", "ordinal", "run", "at", "partition", "offset")).alias("last"),
    )
    twice = same.where("times > 1").select("sequence", "number", "queue", "last.*").withColumn("count", F.lit(1))
    return _as_violation(twice.unionByName(_known_before(told, mine)), "delivered twice")


def _known_before(told: _Told, delivered: DataFrame) -> DataFrame:
    """What a run delivers though it took it over as accepted, and not held."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.partitionBy("run", "sequence").orderBy("ordinal")
    highest = F.max(F.when(F.col("event") == "stands", F.col("number") + F.col("count"))).over(
        window.rowsBetween(Window.unboundedPreceding, -1)
    )
    both = delivered.unionByName(told.stands)
    suspects = both.withColumn("below", highest).where("event = 'delivered' AND number < below")
    stands = told.stands.selectExpr(
        "run AS r", "sequence AS q", "number AS s", "number + count AS e", "ordinal AS o", "detail = 'held' AS held"
    )
    on = F.expr("run = r AND sequence = q AND o < ordinal AND s <= number AND e > number")
    columns = ["sequence", "number", "queue", "began", "ordinal", "run", "at", "partition", "offset"]
    seen = suspects.join(stands, on).groupBy(*columns).agg(F.max("held").alias("held"))
    return seen.where("NOT held").select(*columns).withColumn("count", F.lit(1))


def _out_of_order(told: _Told) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    ordered = told.delivered.join(told.promised.where("in_order"), "sequence")
    window = Window.partitionBy("sequence", *_PLACE).orderBy("offset")
    before = F.lag("number").over(window)
    return _as_violation(ordered.withColumn("before", before).where("number < before"), "delivered out of order")


def _offset_twice(told: _Told) -> DataFrame:
    from pyspark.sql import functions as F

    same = told.delivered.groupBy(*_PLACE, "offset").agg(
        F.count("*").alias("times"),
        F.max(F.struct("began", "ordinal", "run", "at", "sequence", "number")).alias("last"),
    )
    twice = same.where("times > 1").select("queue", "partition", "offset", "last.*").withColumn("count", F.lit(1))
    return _as_violation(twice, "offset used twice")


def _then_gone(told: _Told) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    both = told.rows.where("event IN ('delivered', 'queue stands')")
    window = Window.partitionBy(*_PLACE).orderBy("began", "ordinal")
    end = F.max(F.when(F.col("event") == "delivered", F.col("offset") + 1)).over(
        window.rowsBetween(Window.unboundedPreceding, -1)
    )
    shorter = both.withColumn("end", end).where("event = 'queue stands' AND offset < end")
    return _as_violation(shorter.withColumn("count", F.expr("end - offset")), "delivered, then gone")


# --- handlers ---------------------------------------------------------------------------------------------------------


def _handled_again(told: _Told) -> DataFrame:

    by = ["run", "queue", "partition"]
    begun = told.rows.where("event = 'rewound'").select(*by).distinct()
    given = told.rows.where("event = 'handed over'").join(begun, by, "left_anti")
    given = given.join(told.promised, "sequence", "left").fillna(False, ["in_order", "at_most_once"])
    done = told.rows.where("event = 'handled'").join(begun, by, "left_anti")
    ranges = done.selectExpr(*by, "offset AS first", "offset + count AS end", "ordinal AS done_at")
    again = covering(given.where("NOT at_most_once"), "offset", ranges, by, ["done_at"]).where("done_at < ordinal")
    return _as_violation(
        again.drop("done_at").unionByName(_done_before(told, given)).unionByName(_twice_at_most(given)), "handled again"
    )


def _done_before(told: _Told, given: DataFrame) -> DataFrame:
    """What was done with before the run began."""
    from pyspark.sql import functions as F

    by = ["run", "queue", "partition"]
    # The first file's own: what later ones begin with repeats what this run has told.
    work = told.rows.where("event IN ('delivered', 'handed over', 'handled')").groupBy("run")
    mine = told.rows.where("event = 'handled stands'").join(work.agg(F.min("ordinal").alias("work")), "run")
    mine = mine.where("ordinal < work")
    ranges = mine.selectExpr(*by, "offset AS first", "offset + count AS end", "ordinal AS done_at")
    return covering(given, "offset", ranges, by, ["done_at"]).where("done_at IS NOT NULL").drop("done_at")


def _twice_at_most(given: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    once = given.where("at_most_once")
    window = Window.partitionBy("queue", "partition", "offset", "worker", "epoch").orderBy("began", "ordinal")
    return once.withColumn("time", F.row_number().over(window)).where("time > 1").drop("time")


def _handled_out_of_order(told: _Told) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by = ["run", "queue", "partition"]
    begun = told.rows.where("event = 'rewound'").select(*by).distinct()
    given = told.rows.where("event = 'handed over' AND attempt = 1 AND queue <> 'dead-letters'")
    given = given.join(begun, by, "left_anti").join(told.promised.where("in_order"), "sequence")
    window = Window.partitionBy("run", "sequence", "queue").orderBy("ordinal")
    before = F.lag("number").over(window)
    return _as_violation(given.withColumn("before", before).where("number < before"), "handled out of order")
