"""Columns that keys of a pipeline name, and that the rows there do not have.

This module works on the output of Spark's parser (``sql_syntax``), without a Spark session, so it knows the columns of
some rows only: not those of a function or of a table, nor those of SQL with subqueries. It reports nothing about other
rows. ``check --dry-run`` and the start of a run look everything up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.config.unreadable import is_partial
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.checks import FIELDS, Said, source_options
from holdfast.pipeline.mediation.definition.graph import Graph, can_fail
from holdfast.pipeline.mediation.definition.parsed_fields import Node, Query, trees_in
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan, StepPlan
from holdfast.pipeline.reader.columns import Typed, chosen
from holdfast.pipeline.reader.options import TABLES, ReadOptions
from holdfast.settings import suggestion

Columns = tuple[str, ...] | None
"""The columns of rows; None: unknown."""

KAFKA_TABLE: list[Typed] = [
    ("queue", "string", False),
    ("partition", "integer", False),
    ("offset", "long", False),
    ("key", "string", True),
    ("message_id", "string", True),
    ("action", "string", True),
    ("relates_to", "string", True),
    ("reply_to", "string", True),
    ("sequence", "string", True),
    ("message_number", "long", True),
    ("delivered_at", "timestamp", False),
    ("body", "string", True),
]
"""The columns of a Kafka source that a file can contain."""
RAW = ("raw_key", "raw_body")
KAFKA_COLUMNS = (*(name for name, *_ in KAFKA_TABLE), "headers", *RAW)
"""All of its columns."""
_FUNCTIONS = (
    *("current_catalog", "current_database", "current_date", "current_schema", "current_time", "current_timestamp"),
    *("current_user", "localtime", "localtimestamp", "now", "session_user", "user", "grouping__id"),
)
"""Functions that SQL calls without parentheses."""
_PARTS = ("sources", "tables", "steps", "routes", "sinks")


def no_column(name: str, known: Sequence[str], rows: str) -> tuple[str, str]:
    """Return the error and the remedy for a key that names a column which the rows do not have.

    Args:
        rows: What they are, such as ``"the rows of 'orders'"``.
    """
    first, dot, field = name.partition(".")
    if dot and first.lower() in map(str.lower, known):
        remedy = f"A field of a struct is no column. Select it in a step above: '{name} AS {field.rpartition('.')[2]}'."
        return f"'{name}' is a field, not a column of {rows}", remedy
    columns = f"The columns are {', '.join(known)}."
    return f"no column of {rows} has the name '{name}'", " ".join(filter(None, (suggestion(name, known), columns)))


def no_time(step: StepPlan, given: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Return the error and the remedy if no input of a step with state has the column of ``state.time``.

    Without the column, Spark would have no watermark, and keep the state for ever. Only with ``output = "complete"`` it
    needs none, so that the default need not exist.

    Args:
        given: The inputs that come from a source -> their columns.
    """
    state = step.state
    assert state is not None
    if state.output == "complete" and state.time == "delivered_at":
        return None
    if any(state.time.lower() in map(str.lower, columns) for columns in given.values()):
        return None
    known = tuple(dict.fromkeys(name for columns in given.values() for name in columns))
    return no_column(state.time, known, f"the rows of {' and '.join(map(repr, given))}")


def missing_columns(said: Said, parsed: Mapping[KeyPath, Sequence[Node]]) -> Iterator[Wrong]:
    """Yield the keys of steps, routes and sinks that name a column which their rows do not have.

    Args:
        said: Field of PipelinePlan -> the value read.
        parsed: Path of SQL -> the output of Spark's parser.
    """
    if any(
        is_partial(one) or any(map(is_partial, vars(one).values())) for kind in _PARTS for one in said.get(kind, ())
    ):
        return  # these mistakes come first
    plan = PipelinePlan("", "", **{kind: said[kind] for kind in _PARTS if kind in said})
    graph = Graph(plan)
    known: dict[str, Columns] = {one.name: _of_a_source(one) for one in plan.sources}
    for step in plan.steps:
        yield from _of_a_step(step, graph, known, parsed)
        known[step.name] = _after(step, known, parsed)
    for place, route in enumerate(plan.routes):
        yield from _of_sql(("routes", place, "when"), route.input, known, parsed)
    for sink in plan.sinks:
        yield from _of_a_sink(sink, plan, known, parsed)


def _of_a_source(source: SourcePlan) -> Columns:
    if source.kafka is not None:
        return KAFKA_COLUMNS
    try:
        options = ReadOptions.parse(source_options(source))
    except ConfigurationError:  # reported elsewhere
        return None
    return tuple(name for name, *_ in chosen(TABLES[options.read], options.names))


def _of_a_step(
    step: StepPlan, graph: Graph, known: Mapping[str, Columns], parsed: Mapping[KeyPath, Sequence[Node]]
) -> Iterator[Wrong]:
    path: KeyPath = ("steps", step.name)
    if step.state is not None:
        given = {name: known.get(name) for name in graph.inputs[step.name] if graph.sources(name)}
        found = {name: columns for name, columns in given.items() if columns is not None}
        if found and len(found) == len(given) and (wrong := no_time(step, found)):
            yield (*path, "state", "time"), *wrong
    if len(step.input) != 1:
        return
    columns = known.get(step.input[0])
    named = {"parse": step.parse, "validate": step.validate if step.validate and step.validate.xsd else None}
    for kind, one in named.items():
        if one is not None and columns is not None and one.column.lower() not in map(str.lower, columns):
            yield (*path, kind, "column"), *no_column(one.column, columns, f"the rows of '{step.input[0]}'")
    for kind in ("validate", "xml"):
        for where in parsed:
            if where[:3] == (*path, kind):
                yield from _of_sql(where, step.input[0], known, parsed)


def _of_a_sink(
    sink: SinkPlan, plan: PipelinePlan, known: Mapping[str, Columns], parsed: Mapping[KeyPath, Sequence[Node]]
) -> Iterator[Wrong]:
    for name in dict.fromkeys(route.input for route in plan.routes if sink.name in route.to):
        for key in (*FIELDS, "order"):
            is_default = key == "action" and sink.action == "action" and sink.kafka is not None
            if not is_default:
                yield from _of_sql(("sinks", sink.name, key), name, known, parsed)


def _of_sql(
    where: KeyPath, rows: str, known: Mapping[str, Columns], parsed: Mapping[KeyPath, Sequence[Node]]
) -> Iterator[Wrong]:
    """Yield the columns that expressions over rows name, and that the rows do not have."""
    columns = known.get(rows)
    if columns is None:
        return
    there = {name.lower() for name in columns}
    for tree in parsed.get(where, ()):
        nodes = list(tree.all())
        if any(one.is_plan for one in nodes):  # a subquery has other rows
            continue
        named = [one.names("nameParts") for one in nodes if one.kind == "UnresolvedAttribute"]
        for parts in named:
            # The second part is the column if the first is the name of the rows in an earlier SELECT.
            if there.isdisjoint(map(str.lower, parts[:2])) and parts[0].lower() not in _FUNCTIONS:
                yield where, *no_column(parts[0], columns, f"the rows of '{rows}'")


def _after(step: StepPlan, known: Mapping[str, Columns], parsed: Mapping[KeyPath, Sequence[Node]]) -> Columns:
    """Return the columns of a step's rows."""
    if step.sql:
        trees = parsed.get(("steps", step.name, "sql"), ())
        return _selected(trees[0], known) if trees else None
    before = known.get(step.input[0]) if step.python is None and len(step.input) == 1 else None
    if before is None:
        return None
    made = [one.into for one in (step.parse, step.xml) if one is not None]
    gone = {"problems", *map(str.lower, made)}
    problems = [] if can_fail(step) else ["problems"]
    return (*(name for name in before if name.lower() not in gone), *made, *problems)


def _selected(tree: Node, known: Mapping[str, Columns]) -> Columns:
    """Return the columns of a SELECT, None if it has parts of which only Spark knows the columns."""
    query = Query(tree, {})
    node = query.selection()
    if node is None:
        return None
    by_name = {name.lower(): columns for name, columns in known.items()}
    made: list[str] = []
    for one in trees_in(node.said.get("projectList") or node.said.get("aggregateExpressions")):
        if one.kind == "Alias":
            made.append(str(one.said["name"]))
        elif one.kind == "UnresolvedAttribute":
            made.append(one.names("nameParts")[-1])
        elif one.kind == "UnresolvedStar":
            targets: Collection[str] = one.names("target") if one.said.get("target") else query.rows
            for target in targets:
                columns = by_name.get(query.rows.get(target.lower()) or "")
                if columns is None or query.generates:
                    return None
                made += columns
        else:
            return None
    return tuple(dict.fromkeys(made))
