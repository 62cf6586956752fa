"""The outputs of a query's batch: the rows of each sink, and the dead letters, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.mediation.definition.graph import Query
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan
from holdfast.pipeline.mediation.execution.frames import Frames, part
from holdfast.pipeline.mediation.execution.sinks import as_letters, as_messages, check_table, sink_name
from holdfast.pipeline.mediation.kafka.records import as_records, identified
from holdfast.pipeline.mediation.transformations.routing import Route, taken, with_routes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD = "dead-letters"
"""The output of failed rows; a prefix keeps the sinks' directories from having this name."""
SINK = "sink-"
"""Prefix of a sink's name on its server. Each sink has its own settled output."""


def output_of(plan: PipelinePlan, sink: SinkPlan) -> str:
    return SINK + sink_name(plan, sink)


def outputs(frames: Frames, query: Query, late: Sequence[DataFrame] = ()) -> dict[str, DataFrame]:
    """Return the rows for each sink of a query, and the dead letters of its steps.

    Raises:
        ConfigurationError: The rows lack what a route or a sink needs; names it.
    """
    given: dict[str, list[DataFrame]] = {}
    own = {query.name, *(step.name for step in query.steps)}  # a sample computes the steps of all queries
    letters = [*late]
    if frames.plan.dead_letters is not None:
        letters += [as_letters(rows, step) for step, rows in frames.failed if step in own]
    sinks = {sink.name: sink for sink in query.sinks}
    for name in dict.fromkeys(route.input for route in query.routes):
        routes = [Route(one.to, one.when, one.onwards) for one in query.routes if one.input == name]
        with part(f"routes of {name}"):
            decided = frames.keep(with_routes(frames.rows[name], routes))
        for sink in dict.fromkeys(one for route in routes for one in route.to):
            rows = taken(decided, sink)
            with part(f"sink {sink}"):
                given.setdefault(sink, []).append(_as_sent(rows, sinks[sink]))
        if frames.plan.dead_letters is not None and all(one.when for one in routes):
            letters.append(as_letters(taken(decided, ""), name, _no_route()))
    whole = {sink: union(rows) for sink, rows in given.items()}
    made = {
        output_of(frames.plan, sinks[sink]): rows if sinks[sink].kafka is None else identified(rows)
        for sink, rows in whole.items()
    }
    return {**made, DEAD: union(letters)} if letters else made


def check_tables(plan: PipelinePlan, query: Query, made: Mapping[str, DataFrame]) -> None:
    """Compare the outputs for tables with the tables that exist; change nothing.

    Raises:
        ConfigurationError: A table cannot take the columns of its rows; names the sink.
    """
    for sink in query.sinks:
        rows = made.get(output_of(plan, sink))
        if sink.table is not None and rows is not None:
            with part(f"sink {sink.name}"):
                check_table(rows, sink.table, sink.format, only=query.replaces)


def _as_sent(rows: DataFrame, sink: SinkPlan) -> DataFrame:
    if sink.sends:
        return as_messages(rows, sink)
    return as_records(rows, sink) if sink.kafka is not None else rows


def _no_route() -> Any:
    from pyspark.sql import functions as F

    return F.array(F.lit("no route matches it"))


def union(rows: list[DataFrame]) -> DataFrame:
    whole = rows[0]
    for more in rows[1:]:
        whole = whole.unionByName(more, allowMissingColumns=True)
    return whole


_OWN = "holdfast_"
_SHOWN = {"holdfast_key": "key", "holdfast_value": "body", "holdfast_headers": "headers"}


def as_told(rows: DataFrame) -> DataFrame:
    """Rename an output's columns to the keys of a sink, and drop what only orders or identifies its rows."""
    from pyspark.sql import functions as F

    shown = {name: F.col(name) for name in rows.columns if name in _SHOWN or not name.startswith(_OWN)}
    if "holdfast_value" in shown:
        texts = F.transform("holdfast_headers", lambda one: F.struct(one["key"], one["value"].cast("string")))
        shown["holdfast_value"] = F.col("holdfast_value").cast("string")
        shown["holdfast_headers"] = F.map_from_entries(texts)
    return rows.select(*[column.alias(_SHOWN.get(name, name)) for name, column in shown.items()])
