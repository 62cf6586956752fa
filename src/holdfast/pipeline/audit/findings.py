"""The results of an audit as tables: Sequences, peers, gaps, latencies and violations.

Spark computes everything, because a journal may have more events than a machine has memory. One pass over the events
(``event_pass``) makes the findings that depend on their order; the tables are sums of those, or of the events
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from holdfast.endpoint.journal.columns import DAMAGED
from holdfast.pipeline.audit.event_pass import found, holes, summary
from holdfast.pipeline.audit.events import AT_MOST_ONCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""The reported quantiles of latencies."""
WHERE = ("sequence", "number", "count", "queue", "partition", "offset", "run", "ordinal", "at")
"""Columns of a violation in addition to ``rule``: its subject, and the event that shows it; null for none."""
HOLES = {
    DAMAGED: "A file is damaged. The audit skipped it, or read it up to the damage.",
    "missing": "Events are missing within a run: a file was damaged or deleted.",
    "not written": "The journal could not be written, because the disk was full or failed.",
    "killed": "A process was killed: events of up to one second were in memory only.",
    "not kept": "The events are older than the retention of the journal, or in a journal that was not audited, such as "
    "that of another node; or a process was killed before it wrote its first events.",
}
"""Kind of a hole in the journal -> what it means."""
_ADDED = (
    "messages",
    "missing",
    "delivered",
    "held",
    "discarded",
    "not_queued",
    "acknowledged",
    "duplicates",
    "transmitted",
    "retransmitted",
)


@dataclass(frozen=True, slots=True)
class Audit:
    """The results of an audit; each is a DataFrame, computed on request.

    Attributes:
        sequences: A row for each Sequence: ``role`` ("in": received here; "out": sent from here), ``sequence``,
            ``peer``, ``key`` (of an outbox), ``assurance``, ``state`` (the last known one), ``begun`` (null: before the
            journal), ``ended``, ``messages`` (accepted; for a sent Sequence, those that the next hop has), ``highest``
            number, ``missing`` (the numbers below it without a message; 0 for a sink), ``completeness`` (``messages``
            of these and the missing ones), ``delivered``, ``held`` (now), ``discarded``, ``not_queued``,
            ``acknowledged``, ``duplicates`` (dropped), ``transmitted``, ``retransmitted`` (number of retransmissions).
            Events are counted as far as the journal goes back, present and missing numbers from number 1. The rows of a
            sink have a Sequence in each partition, with the sink as ``peer``: ``sink/NAME``.
        peers: The same, summed for each ``role`` and known ``peer``, with the number of ``sequences``, the number of
            ``complete`` ones, which miss nothing, and ``retransmission_rate``, retransmissions for each transmitted
            message.
        gaps: A row for each gap in the numbers of a Sequence: ``role``, ``sequence``, ``number`` (the first missing),
            ``count``, ``since`` (when a later one arrived), ``until`` (when the last of the gap arrived), ``seconds``;
            null: it is still open.
        over_time: A row for each minute and event: ``minute``, ``event``, ``messages``.
        latencies: A row for each way: ``stage``, ``name`` (of the queue, or the key of the outbox), ``messages``, and
            the seconds of some quantiles, to one part in 500: ``p50`` and so on.
        faults: ``event``, ``sequence``, ``detail``, ``times``, ``first``, ``last``, of faults sent and received.
        violations: Violations: ``rule`` of :data:`rules.RULES`, and :data:`WHERE`. Empty without violations.
        cannot_say: Holes in the journal: ``kind`` (of :data:`HOLES`), ``run`` and ``worker``, ``after`` (the ordinal
            before), ``events`` (the number of missing events; null: unknown), ``at``, ``why``. A missing event can have
            been anything.
        summed: The number of events of each kind (:func:`holdfast.pipeline.audit.event_pass.summary`).
        found: Findings of the pass over the events. The tables are computed from these two, which are cached.
    """

    sequences: DataFrame
    peers: DataFrame
    gaps: DataFrame
    over_time: DataFrame
    latencies: DataFrame
    faults: DataFrame
    violations: DataFrame
    cannot_say: DataFrame
    summed: DataFrame
    found: DataFrame

    def tables(self) -> Iterator[tuple[str, DataFrame]]:
        for field in fields(self):
            if field.name not in ("summed", "found"):
                yield field.name, getattr(self, field.name)

    def release(self) -> None:
        """Free the cached memory and disk; the tables can still be computed."""
        self.found.unpersist()
        self.summed.unpersist()


def audit(journal: DataFrame) -> Audit:
    """Audit a journal.

    Args:
        journal: The result of :func:`~holdfast.pipeline.journal.read_journal`, for one server with all its workers,
            or for all nodes of a cluster. The
            audit reads it four times, so cache a large or remote one.
    """
    from pyspark.sql import functions as F

    damaged = journal.where(F.col("event") == DAMAGED)
    journal = journal.where(F.col("event") != DAMAGED)
    summed = summary(journal).cache()
    things = found(journal, summed).cache()
    sequences = _sequences(things)
    return Audit(
        sequences,
        _peers(sequences),
        _gaps(things),
        _over_time(journal),
        _latencies(things),
        _faults(journal),
        _violations(things),
        _cannot_say(journal, summed, damaged),
        summed,
        things,
    )


def _only(things: DataFrame, kind: str) -> DataFrame:
    return things.where(f"{kind} IS NOT NULL").select(f"{kind}.*")


def _time(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.timestamp_micros(column).alias(column)


# --- what the pass found ----------------------------------------------------------------------------------------------


def _sequences(things: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    told = _only(things, "sequence").withColumns({"begun": _time("begun"), "ended": _time("ended")})
    everything = F.col("messages") + F.col("missing")
    completeness = F.when(everything > 0, F.col("messages") / everything)
    before = told.columns.index("missing") + 1
    columns = [*told.columns[:before], "completeness", *told.columns[before:]]
    return told.withColumn("completeness", completeness).select(*columns)


def _peers(sequences: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    # What is left of a Sequence whose peer no remaining event names says nothing about a peer.
    totals = (
        sequences.where("peer IS NOT NULL")
        .groupBy("role", "peer")
        .agg(
            F.count("*").alias("sequences"),
            F.sum(F.when(F.col("missing") == 0, 1).otherwise(0)).alias("complete"),
            *(F.sum(name).alias(name) for name in _ADDED),
        )
    )
    everything = F.col("messages") + F.col("missing")
    completeness = F.when(everything > 0, F.col("messages") / everything)
    rate = F.when(F.col("transmitted") > 0, F.col("retransmitted") / F.col("transmitted"))
    return totals.withColumns({"completeness": completeness, "retransmission_rate": rate})


def _gaps(things: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    gaps = _only(things, "gap").withColumn("seconds", (F.col("until") - F.col("since")) / 1e6)
    return gaps.withColumns({"since": _time("since"), "until": _time("until")})


def _latencies(things: DataFrame) -> DataFrame:
    """Latencies from the receipt of a message, or its submission here, until it was in its queue, until its handler was
    done, and until the next hop had it; for a held message, also from then until it was in its queue."""
    from pyspark.sql import functions as F

    names = [f"p{100 * one:g}".replace(".", "_") for one in QUANTILES]
    shares = F.array(*(F.lit(one) for one in QUANTILES))
    rows = _only(things, "latency").groupBy("stage", "name")
    told = rows.agg(F.sum("messages").alias("m"), F.percentile("took", shares, F.col("messages")).alias("quantiles"))
    named = [(F.col("quantiles")[index] / 1e6).alias(name) for index, name in enumerate(names)]
    return told.select("stage", "name", F.col("m").alias("messages"), *named)


def _violations(things: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    told = _only(things, "violation")
    promised = _only(things, "sequence").where(F.col("assurance").contains(AT_MOST_ONCE))
    promised = promised.select(F.col("sequence").alias("promised"))
    is_none = (F.col("sequence") == F.col("promised")) & F.col("unless_at_most_once")
    return told.join(promised, is_none, "left_anti").withColumn("at", _time("at")).select("rule", *WHERE)


# --- what needs no order ----------------------------------------------------------------------------------------------


def _over_time(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    what = "event NOT IN ('stands', 'queue stands', 'handled stands', 'deleted', 'read', 'recovered')"
    minute = F.date_trunc("minute", "at").alias("minute")
    return journal.where(what).groupBy(minute, "event").agg(F.sum(F.coalesce("count", F.lit(1))).alias("messages"))


def _faults(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    faults = journal.where("event IN ('fault sent', 'fault received', 'sending.stopped')")
    return faults.groupBy("event", "sequence", "detail").agg(
        F.count("*").alias("times"), F.min("at").alias("first"), F.max("at").alias("last")
    )


# --- holes ------------------------------------------------------------------------------------------------------------


def _cannot_say(journal: DataFrame, summed: DataFrame, damaged: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    event = F.col("event")
    runs = summed.groupBy("run", "worker").agg(
        F.max(F.when(event.isin("started", "queue stands"), F.col("attempt"))).alias("number"),
        F.max("last").alias("after"),
        F.min("began").alias("began"),
        F.max("ended").alias("at"),
        F.max(event == "stopped").alias("is_over"),
    )
    runs = runs.withColumn("followed", F.lead("run").over(Window.partitionBy("worker").orderBy("number", "at")))
    runs = runs.withColumn("before", F.lag("number").over(Window.partitionBy("worker").orderBy("number", "at")))
    unknown = F.lit(None).cast("bigint")
    killed = runs.where("NOT is_over AND followed IS NOT NULL").select(
        F.lit("killed").alias("kind"),
        "run",
        "worker",
        "after",
        unknown.alias("events"),
        "at",
        F.lit("it ended without a closing event: events of its last second may be missing").alias("why"),
    )
    not_kept = runs.where("number > coalesce(before, 0) + 1").select(
        F.lit("not kept").alias("kind"),
        F.lit(None).cast("string").alias("run"),
        "worker",
        unknown.alias("after"),
        unknown.alias("events"),
        F.col("began").alias("at"),
        F.format_string(
            "no events of runs %d to %d are here", F.coalesce("before", F.lit(0)) + 1, F.col("number") - 1
        ).alias("why"),
    )
    kind = F.when(event == "gap", "not written").when(F.col("after") < 0, "not kept").otherwise("missing")
    why = (
        F.when(event == "gap", F.concat(F.lit("not written: "), "detail"))
        .when(F.col("after") < 0, "earlier events are no longer kept")
        .otherwise("a file is damaged or missing")
    )
    lacking = holes(journal, summed).select(
        kind.alias("kind"),
        "run",
        "worker",
        "after",
        (F.col("ordinal") - F.col("after") - 1).alias("events"),
        "at",
        why.alias("why"),
    )
    left_out = damaged.select(
        F.lit(DAMAGED).alias("kind"),
        "run",
        "worker",
        unknown.alias("after"),
        unknown.alias("events"),
        "at",
        F.concat(F.lit("damaged and skipped: "), "detail").alias("why"),
    )
    return lacking.unionByName(killed).unionByName(not_kept).unionByName(left_out)
