"""A pipeline's steps over a sample of its sources, for ``check --dry-run`` and ``infer``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.graph import Graph
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SourcePlan, StepPlan
from holdfast.pipeline.mediation.execution.frames import Frames, own_session
from holdfast.pipeline.mediation.execution.outputs import DEAD, SINK, as_told, check_tables, output_of, outputs
from holdfast.pipeline.mediation.execution.source_ranges import no_rows, read_sample
from holdfast.pipeline.mediation.kafka.cluster import check_kafka
from holdfast.pipeline.mediation.transformations.inference import infer_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Read = Callable[["SparkSession", SourcePlan], "DataFrame"]
"""Return the rows that a source stands for."""


_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Forms of times with all digits; Spark's default shows milliseconds."""


def of_queues(rows: int) -> Read:
    """Return a reader of this many current messages of each source; no cursor moves."""
    return lambda spark, source: read_sample(spark, source, rows)


def infer(
    spark: SparkSession,
    plan: PipelinePlan,
    step: StepPlan,
    found: Mapping[str, T.StructType],
    read: Read | None = None,
) -> T.StructType:
    """Infer the fields of a step's XML from a sample of its source's current messages, or of ``read``'s rows."""
    assert step.parse is not None
    assert step.parse.infer is not None
    frames = sample(spark, plan, step.name, read or of_queues(step.parse.infer), found)
    bodies = frames.rows[step.input[0]].select(step.parse.column).limit(step.parse.infer).collect()
    frames.release()
    try:
        return infer_schema(body for (body,) in bodies if body is not None)
    except ConfigurationError as error:
        raise ConfigurationError(f"step {step.name}: {error.message}", remedy=error.remedy) from error


def infer_all(spark: SparkSession, plan: PipelinePlan, read: Read | None = None) -> dict[str, T.StructType]:
    """Return step -> its fields, for the steps that infer them."""
    inferred: dict[str, T.StructType] = {}
    for step in plan.steps:
        if step.parse is not None and step.parse.infer:
            inferred[step.name] = infer(spark, plan, step, inferred, read)
    return inferred


def sample(
    spark: SparkSession, plan: PipelinePlan, below: str | None, read: Read, inferred: Mapping[str, T.StructType]
) -> Frames:
    """Compute the steps over a sample of each source."""
    frames = Frames(plan, own_session(spark), inferred)
    for source in plan.sources:
        frames.add(source.name, frames.keep(read(frames.spark, source)))
    above = []
    for step in plan.steps:
        if step.name == below:
            break
        above.append(step)
    frames.make(above)
    return frames


def made_of(spark: SparkSession, plan: PipelinePlan, read: Read) -> dict[str, list[Any]]:
    """Compute all rows of a pipeline without writing them: sink -> its rows, and under ``""`` the dead letters.

    A row has the values that ``json`` reads, with Decimal for numbers with a point. A step with state processes all
    rows at once, as one batch.

    Raises:
        ConfigurationError: A step or a route cannot be computed; names it.
    """
    from pyspark.sql import functions as F

    frames = sample(spark, plan, None, read, infer_all(spark, plan, read))
    made: dict[str, list[Any]] = {**{sink.name: [] for sink in plan.sinks}, "": []}
    for query in Graph(plan).queries():
        places = {DEAD: "", **{output_of(plan, sink): sink.name for sink in query.sinks}}
        for output, rows in outputs(frames, query).items():
            told = as_told(rows).select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
            made[places[output]] += [json.loads(text, parse_float=Decimal) for (text,) in told.collect()]
    frames.release()
    return made


def analyse(spark: SparkSession, plan: PipelinePlan, inferred: Mapping[str, T.StructType]) -> None:
    """Compute all outputs of a pipeline without a row, to find errors in steps, routes, sinks and existing tables.

    A function of the file may not expect that it gets no row, so other errors count only without functions.

    Raises:
        ConfigurationError: A step, a route or a sink cannot be computed; names it.
    """
    try:
        frames = sample(spark, plan, None, no_rows, inferred)
        for query in Graph(plan).queries():
            check_tables(plan, query, outputs(frames, query))
        frames.release()
    except ConfigurationError:
        raise
    except Exception:
        if not any(step.python for step in plan.steps):
            raise


def try_out(spark: SparkSession, plan: PipelinePlan, rows: int) -> dict[str, dict[str, Any]]:
    """Return each step's columns, first rows and failures over a sample of the queues; nothing is sent, stored or
    marked.

    Raises:
        ConfigurationError: A step or a route cannot be computed; names it.
    """
    from pyspark.sql import functions as F

    check_kafka(spark, plan)
    frames = sample(spark, plan, None, of_queues(rows), infer_all(spark, plan))
    told: dict[str, dict[str, Any]] = {}
    wrong: dict[str, list[Any]] = {}
    for step, failed in frames.failed:  # a step with state has an entry for each input
        wrong.setdefault(step, []).extend(failed.select("problems").collect())
    for name, made in frames.rows.items():
        kept = frames.keep(made)  # later steps must use the same rows
        texts = kept.select(F.to_json(F.struct("*"), _EXACT)).collect()
        reasons = wrong.get(name, [])
        told[name] = {
            "columns": made.schema.simpleString(),
            "rows": len(texts),
            "first": [json.loads(text, parse_float=Decimal) for (text,) in texts[:3]],
            "failed": len(reasons),
            "reasons": list(dict.fromkeys("; ".join(row[0]) for row in reasons))[:5],
        }
    for query in Graph(plan).queries():
        given = outputs(frames, query)
        check_tables(plan, query, given)
        for name, output in given.items():
            told[name.replace(f"{SINK}{plan.name}.", "sink ")] = {
                "columns": output.schema.simpleString(),
                "rows": output.count(),
                "first": [],
                "failed": 0,
                "reasons": [],
            }
    frames.release()
    return told
