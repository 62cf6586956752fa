"""Contradictions in a pipeline between values that are valid on their own, as far as they show without Spark.

Each check yields the key's path, what is wrong, and how to fix it. A value of the wrong kind has already been reported,
and is missing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong, did_you_mean, raised
from holdfast.config.unreadable import is_given, is_partial, readable
from holdfast.endpoint.admin.token import read_token
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition import kafka_checks
from holdfast.pipeline.mediation.definition.graph import Graph, can_fail
from holdfast.pipeline.mediation.definition.plan import (
    TABLE_FORMATS,
    PipelinePlan,
    RoutePlan,
    SinkPlan,
    SourcePlan,
    StepPlan,
    TablePlan,
    XmlPlan,
)
from holdfast.pipeline.mediation.definition.sql_names import relations, replaced
from holdfast.pipeline.mediation.transformations.writing import zone_of
from holdfast.pipeline.mediation.transformations.xsd import XSD
from holdfast.pipeline.options.values import WrongOptions
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.writer.options import WriteOptions
from holdfast.settings import nearest

_ALIAS = re.compile(r".*\bAS\s+`?(\w+)`?\s*", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(r"\s*(?:\w+\.)*(\w+)\s*")
Said = Mapping[str, Any]
_NAMED = ("sources", "tables", "steps", "sinks")


def contradictions(said: Said, data: Said) -> Iterator[Wrong]:
    """Yield all contradictions.

    Args:
        said: Field of PipelinePlan -> the value read.
        data: The content of the file, for the names of values that could not be read.
    """
    names = {kind: list(data[kind]) if isinstance(data.get(kind), dict) else [] for kind in _NAMED}
    yield from _of_names(names)
    if not names["sources"]:
        yield (), "no source is configured", "Add [sources.NAME] with broker = … or kafka = … below."
    rows = [*names["sources"], *names["tables"]]
    known = [*rows, *names["steps"]]
    yield from readable(
        *(_of_a_source(source) for source in said.get("sources", ())),
        *(_of_a_table(table) for table in said.get("tables", ())),
    )
    for place, step in enumerate(said.get("steps", ())):
        above = [*rows, *names["steps"][:place]]
        yield from readable(_of_a_step(step, above, names["steps"]), _of_parse(step), _of_validate(step), _of_xml(step))
    yield from readable(
        *(check(sink) for sink in said.get("sinks", ()) for check in (_of_a_sink, _of_a_sinks_options, _of_its_fields)),
        _of_routes(said.get("routes", ()), known, names),
    )
    kinds = [kind for kind in (*_NAMED, "routes") if kind in data]
    if all(kind in said and all(_is_whole(one) for one in said[kind]) for kind in kinds):
        right = _corrected(said, rows, names)
        if right is not None:
            yield from readable(_of_the_whole(right, is_kept="dead_letters" in data))


def _is_whole(table: Any) -> bool:
    return not any(is_partial(one) for one in (table, *vars(table).values()))


def _of_names(names: Mapping[str, list[str]]) -> Iterator[Wrong]:
    seen: dict[str, str] = {}
    for kind in ("sources", "tables", "steps"):
        for name in names[kind]:
            if name.lower() in seen:
                yield (kind, name), f"{seen[name.lower()]} has the same name", "Give each a different name."
            seen.setdefault(name.lower(), f"one of the {kind}")


def _nearest(name: str, known: list[str], what: str) -> tuple[str, str]:
    return f"the {what} '{name}' does not exist", did_you_mean(name, known)


# --- sources, tables, sinks -------------------------------------------------------------------------------------------


def _of_a_source(source: SourcePlan) -> Iterator[Wrong]:
    path: KeyPath = ("sources", source.name)
    if is_given(source, "broker") == is_given(source, "kafka"):
        what = "it has both broker and kafka" if is_given(source, "broker") else "'broker' is missing"
        yield path, what, "Set broker to the URL of a server, or kafka to the servers of a Kafka cluster."
        return
    yield from readable(_of_options(source, path), _of_a_queue_or_topic(source, path))


def _of_a_queue_or_topic(source: SourcePlan, path: KeyPath) -> Iterator[Wrong]:
    if is_given(source, "kafka"):
        yield from kafka_checks.of_a_source(source, path)
        return
    yield from kafka_checks.only_of_kafka(source, ("topic", "once", "properties_file"), path)
    wrong = list(_of_a_token(source, path))
    yield from wrong
    if wrong:
        return
    try:
        ReadOptions.parse(source_options(source))
    except ConfigurationError as error:
        yield from _of_wrong_options(error, path, source.options)


def _of_a_token(one: SourcePlan | SinkPlan, path: KeyPath) -> Iterator[Wrong]:
    file = str(one.token_file) if one.token_file else None
    yield from raised((*path, "token_file") if file else path, lambda: read_token(file))


def _of_options(one: SourcePlan | SinkPlan, path: KeyPath) -> Iterator[Wrong]:
    if any(name.lower() == "token" for name in one.options or ()):
        told = "This file must not contain secrets: name a file with token_file."
        yield (*path, "options", "token"), "the file contains a token", told


def _of_wrong_options(error: ConfigurationError, path: KeyPath, given: Mapping[str, str] | None) -> Iterator[Wrong]:
    """Yield a mistake for each wrong option; an option that the file does not name comes from another key."""
    errors = error.errors if isinstance(error, WrongOptions) else {"": error}
    for name, one in errors.items():
        key = ("options", name) if name in (given or {}) else ("options",) if given else ()
        yield (*path, *key), one.message, one.remedy


def source_options(source: SourcePlan) -> dict[str, str]:
    """Return the options of Spark's reader, except the reader's name."""
    queue = {"queue": ",".join(source.queue)} if source.queue else {}
    given = {"broker": str(source.broker), **queue, **(source.options or {})}
    return {**given, "tokenFile": str(source.token_file)} if source.token_file else given


def _of_a_table(table: TablePlan) -> Iterator[Wrong]:
    if format_of(table) is None:
        told = ", ".join(f'"{one}"' for one in TABLE_FORMATS)
        yield ("tables", table.name, "path"), "the format of the table is unknown", f"Set format to one of {told}."
    if table.format == "delta" and (table.schema or table.options):
        yield ("tables", table.name), "a Delta table has its own schema and no options", "Remove both keys."
    if "://" not in table.path and not any(letter in table.path for letter in "*?[{") and not Path(table.path).exists():
        yield (
            ("tables", table.name, "path"),
            f"{table.path} does not exist",
            ("Relative paths start at the directory of this file."),
        )


def format_of(table: TablePlan) -> str | None:
    """Return the format of a table; None if neither the table nor its name determines it."""
    if table.format is not None:
        return table.format
    path = table.path.rstrip("/").removesuffix(".gz")
    return next((one for one in TABLE_FORMATS if path.endswith(f".{one}")), None)


def _of_a_sink(sink: SinkPlan) -> Iterator[Wrong]:
    places = [key for key in ("queue", "to", "kafka", "table", "console") if is_given(sink, key)]
    if len(places) != 1:
        what = f"it has both {places[0]} and {places[1]}" if places else "it has no destination for its rows"
        yield ("sinks", sink.name), what, "Set one of queue, to, kafka, table and console."
    if sink.key and not sink.has_fields:
        yield ("sinks", sink.name, "key"), "only messages have a key", "Remove it."
    if sink.kafka is not None:
        yield from kafka_checks.of_a_sink(sink, ("sinks", sink.name))
    else:
        yield from kafka_checks.only_of_kafka(sink, ("topic", "properties_file"), ("sinks", sink.name))
    if sink.token_file:
        yield from _of_a_token(sink, ("sinks", sink.name))
    if sink.format and sink.table is None:
        yield ("sinks", sink.name, "format"), "only a table has a format", "Remove it."


def _of_a_sinks_options(sink: SinkPlan) -> Iterator[Wrong]:
    yield from _of_options(sink, ("sinks", sink.name))
    if sink.sends and sink.options:
        given = {"broker": "http://any", "sinkId": "any", "batchId": "0", "queue": "any"}
        try:
            WriteOptions.parse({**given, **sink.options}, stream=False)
        except ConfigurationError as error:
            yield from _of_wrong_options(error, ("sinks", sink.name), sink.options)


IRI = re.compile(r"(?:urn|uuid|https?|mailto|tag|soap[a-z.]*|net\.[a-z]+):[^\s']+", re.IGNORECASE)
"""Text that is meant literally. Spark's parser accepts ``urn:a``, as the path ``a`` in a column ``urn``."""
FIELDS = ("body", "action", "key", "headers", "message_id", "relates_to", "reply_to")
"""Keys of a sink that are SQL expressions."""


def _of_its_fields(sink: SinkPlan) -> Iterator[Wrong]:
    for key in FIELDS if sink.has_fields else ():
        if IRI.fullmatch(text := getattr(sink, key)):
            what = f"'{text}' is a text, but {key} is an SQL expression"
            yield ("sinks", sink.name, key), what, f"Add single quotes: {key} = \"'{text}'\""


# --- steps ------------------------------------------------------------------------------------------------------------


def _kinds(step: StepPlan) -> list[str]:
    """Return the kinds of a step, valid or not; a valid step has exactly one."""
    return [kind for kind in ("sql", "python", "parse", "validate", "xml") if is_given(step, kind)]


def _of_a_step(step: StepPlan, above: list[str], steps: list[str]) -> Iterator[Wrong]:
    path: KeyPath = ("steps", step.name)
    kinds = _kinds(step)
    if len(kinds) != 1:
        what = f"it has both {kinds[0]} and {kinds[1]}" if kinds else "it has no transformation"
        yield path, what, "Set one of sql, python, parse, validate and xml."
        return
    is_sql = kinds == ["sql"]
    yield from readable(_of_inputs(step, kinds[0], above, steps), _of_state(step, is_sql), _of_keep(step, is_sql))


def _of_inputs(step: StepPlan, kind: str, above: list[str], steps: list[str]) -> Iterator[Wrong]:
    path: KeyPath = ("steps", step.name, "input")
    if kind == "sql" and is_given(step, "input"):
        yield path, "SQL names its own inputs", "Remove input."
    for name in _unknown(step, above):
        if name.lower() in map(str.lower, steps):
            told = f"'{name}' does not come before it", "A step uses only what comes before it: move it."
        else:
            told = _nearest(name, above, "source, table or step")
        yield path if name in step.input else (*path[:-1], "sql"), *told
    if kind != "sql" and not step.input:
        yield path[:-1], "'input' is missing", f'Write input = "{above[-1] if above else "NAME"}".'
    if kind in ("parse", "validate", "xml") and len(step.input) > 1:
        yield path, "it needs exactly one input", "Join the inputs first, in a step with sql."


def _unknown(step: StepPlan, above: Collection[str]) -> list[str]:
    """Return the inputs of a step that do not exist above it; in SQL, names are case-insensitive."""
    known = {name.lower() for name in above}
    named = dict.fromkeys(relations(step.sql)) if step.sql else {}
    return [*(name for name in step.input if name not in above), *(name for name in named if name.lower() not in known)]


def _of_state(step: StepPlan, is_sql: bool) -> Iterator[Wrong]:
    if is_given(step, "state") and not is_sql:
        yield ("steps", step.name, "state"), "only SQL has state", "Remove it."


def _of_keep(step: StepPlan, is_sql: bool) -> Iterator[Wrong]:
    if step.keep and is_sql:
        what = "SQL reports no problems"
        yield ("steps", step.name, "keep"), what, "Remove it: a column problems is an ordinary column here."


def _of_parse(step: StepPlan) -> Iterator[Wrong]:
    parse, path = step.parse, ("steps", step.name, "parse")
    if parse is None or len(_kinds(step)) != 1:
        return
    given = [key for key in ("xsd", "schema", "schema_file", "infer") if is_given(parse, key)]
    if len(given) != 1:
        what = f"it has both {given[0]} and {given[1]}" if given else "it does not define its fields"
        yield path, what, "Set one of xsd, schema, schema_file and infer."
    for key in ("xsd", "element", "infer", "lenient") if parse.json else ():
        if is_given(parse, key):
            yield (*path, key), f"'{key}' is for XML, but this is JSON", "Set schema or schema_file."
    if parse.schema_file and (wrong := _of_a_schema_file(parse.schema_file)):
        yield (*path, "schema_file"), wrong, 'Write DDL, "id INT, …", or the output of StructType.json().'
    if parse.xsd:
        yield from _of_an_xsd(parse.xsd, parse.element, path, columns=True)


def _of_validate(step: StepPlan) -> Iterator[Wrong]:
    validate, path = step.validate, ("steps", step.name, "validate")
    if validate is None or len(_kinds(step)) != 1:
        return
    if not is_given(validate, "rules") and not is_given(validate, "xsd"):
        yield path, "it has nothing to validate with", "Set rules, or an xsd."
    if validate.element and not is_given(validate, "xsd"):
        yield (*path, "element"), "only an XSD defines elements", "Remove it, or set xsd."
    if validate.xsd:
        yield from _of_an_xsd(validate.xsd, validate.element, path, columns=False)


def _of_xml(step: StepPlan) -> Iterator[Wrong]:
    if step.xml is not None and len(_kinds(step)) == 1:
        yield from readable(*(check(step.xml, ("steps", step.name, "xml")) for check in (_of_a_zone, _of_written)))


def _of_a_zone(xml: XmlPlan, path: KeyPath) -> Iterator[Wrong]:
    yield from raised((*path, "zone"), lambda: zone_of(xml.zone))


def _of_written(xml: XmlPlan, path: KeyPath) -> Iterator[Wrong]:
    if not xml.xsd:
        return
    wrong = list(_of_an_xsd(xml.xsd, xml.element, path, columns=True))
    yield from wrong
    if not wrong and len(xml.columns) > 1:  # a single column may be a struct that provides the fields
        yield from of_written_columns(xml, list(map(_name_of, xml.columns)), path)


def of_written_columns(xml: XmlPlan, names: Collection[str], path: KeyPath) -> Iterator[Wrong]:
    """Yield what is missing for columns to form the element in the XSD."""
    assert xml.xsd is not None
    xsd = XSD.read(xml.xsd)
    known = xsd.columns(xml.element).fieldNames()
    given = {name.lower() for name in names}
    suggested = set()
    for name in names:
        if name and name.lower() not in map(str.lower, known):
            suggested.add(nearest(name, known))
            yield (*path, "columns"), *_nearest(name, known, f"field of {xml.element} in the XSD")
    for name in sorted(xsd.required(xml.element) - suggested) if "" not in given else ():
        if name.lower() not in given:
            what = f"the XSD requires '{name}' in {xml.element}, but no column has this name"
            yield (*path, "columns"), what, f'Add such a column: "… AS {name}".'


def _name_of(column: str) -> str:
    """Return the name of a column written in SQL; "" if only Spark knows it."""
    match = _ALIAS.fullmatch(column) or _COLUMN.fullmatch(column)
    return match[1] if match else ""


def _of_a_schema_file(file: str) -> str:
    """Return the problem of a schema file, "" if none is visible."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
        if text.startswith("{"):
            json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"{file} contains no schema: {error}"
    return "" if text else f"{file} is empty"


def _of_an_xsd(file: str, element: str, path: KeyPath, *, columns: bool) -> Iterator[Wrong]:
    try:
        xsd = XSD.read(file)
    except ConfigurationError as error:
        yield (*path, "xsd"), error.message, error.remedy
        return
    try:
        if columns:
            xsd.columns(element)
        elif element:
            xsd.element(element)
    except ConfigurationError as error:
        yield (*path, "element"), error.message, error.remedy


# --- routes, and the whole --------------------------------------------------------------------------------------------


def _of_routes(routes: tuple[RoutePlan, ...], rows: list[str], names: Mapping[str, list[str]]) -> Iterator[Wrong]:
    done: set[str] = set()
    for place, route in enumerate(routes):
        path: KeyPath = ("routes", place)
        yield from readable(
            _of_its_input(route, path, rows),
            _of_its_sinks(route, path, names["sinks"]),
            _of_its_turn(route, path, done),
        )


def _of_its_input(route: RoutePlan, path: KeyPath, rows: list[str]) -> Iterator[Wrong]:
    if route.input not in rows:
        yield (*path, "input"), *_nearest(route.input, rows, "source, table or step")


def _of_its_sinks(route: RoutePlan, path: KeyPath, sinks: list[str]) -> Iterator[Wrong]:
    for sink in route.to:
        if sink not in sinks:
            yield (*path, "to"), *_nearest(sink, sinks, "sink")


def _of_its_turn(route: RoutePlan, path: KeyPath, done: set[str]) -> Iterator[Wrong]:
    """``done`` contains the inputs with rows that all go to routes above."""
    if route.input in done:
        yield (
            path,
            "no row reaches this route: a route above matches all rows",
            "Add a condition to that route, or onwards.",
        )
    if not route.when and not route.onwards:
        done.add(route.input)


def _corrected(said: Said, rows: list[str], names: Mapping[str, list[str]]) -> Said | None:
    """Return the plan with the nearest name instead of each unknown one, which was reported and causes nothing else.

    None: an unknown name resembles none.
    """
    above, steps, routes = list(rows), [], []
    for step in said.get("steps", ()):
        for name in _unknown(step, above):
            if not (near := nearest(name, above)):
                return None
            inputs = tuple(near if one == name else one for one in step.input)
            step = replace(step, input=inputs, sql=replaced(step.sql, name, near))
        steps.append(step)
        above.append(step.name)
    for route in said.get("routes", ()):
        given = route.input if route.input in above else nearest(route.input, above)
        to = tuple(one if one in names["sinks"] else nearest(one, names["sinks"]) for one in route.to)
        if not given or "" in to:
            return None
        routes.append(replace(route, input=given, to=to))
    return {**said, "steps": tuple(steps), "routes": tuple(routes)}


def _of_the_whole(said: Said, *, is_kept: bool) -> Iterator[Wrong]:
    plan = PipelinePlan("", "", **{key: said[key] for key in (*_NAMED, "routes") if key in said})
    graph = Graph(plan)
    used = {name for one in plan.routes for name in graph.ancestors(one.input)}
    for step in plan.steps:
        yield from _of_one_query(step, graph)
        if step.name not in used:
            yield ("steps", step.name), "its rows are not used", "Add [[routes]] with input and to, or remove it."
    yield from _of_what_is_kept(plan, graph)
    fed: dict[str, set[str]] = {}
    for one in plan.routes:
        for name in one.to:
            fed.setdefault(name, set()).add(one.input)
    for sink in plan.sinks:
        yield from _of_what_feeds(sink, sorted(fed.get(sink.name, ())), plan, graph)
    if not is_kept:
        fails = next((step.name for step in plan.steps if can_fail(step)), None)
        if fails is not None:
            told = f"rows of the step '{fails}' may fail, but have no destination"
            yield (), told, 'Add [dead_letters] with table = "…" below.'
        for name in dict.fromkeys(one.input for one in plan.routes):
            own = [one for one in plan.routes if one.input == name]
            if all(one.when for one in own):
                told = f"rows of '{name}' that match no route have no destination"
                yield (), told, "Add a last route without a condition, or [dead_letters]."


def _of_what_is_kept(plan: PipelinePlan, graph: Graph) -> Iterator[Wrong]:
    """Yield tables with a refresh in a stream, which reads them only at its start."""
    for table in plan.tables:
        fed = [one.name for one in plan.steps if one.state is not None and table.name in graph.ancestors(one.name)]
        if fed and table.refresh is not None:
            told = f"the step '{fed[0]}' has state, and reads its tables only once, at the start of the run"
            remedy = "Remove refresh, or join the table in a step below that one."
            yield ("tables", table.name, "refresh"), told, remedy


def _of_one_query(step: StepPlan, graph: Graph) -> Iterator[Wrong]:
    path: KeyPath = ("steps", step.name)
    sources, states = graph.sources(step.name), graph.states(step.name)
    if len(sources) > 1:
        told = f"it combines two queues, {sources[0]} and {sources[1]}"
        yield path, told, "Land one of them as a table, and join with the table."
    elif not sources and step.state is not None:
        yield (*path, "state"), "it uses no queue", "Only rows that arrive over time have state."
    elif states and states != [step.name]:
        early = [one for one in graph.inputs[step.name] if graph.sources(one) and not graph.states(one)]
        if early:
            told = f"'{early[0]}' ends before '{states[0]}' has a result"
            yield path, told, "Join them in the step with state, or land one of them as a table."
    source = next((one for one in graph.plan.sources if one.name in sources), None)
    if states and source is not None and source.once:
        told = f"it has state, but 'once' of the source {source.name} works only for batches"
        yield path, told, "Route the topic to a queue in another pipeline, and read that queue."
    if len(states) > 1:
        told = f"it passes through two steps with state, {states[0]} and {states[1]}"
        yield path, told, "Only one is possible: route the result of the first to a queue or a table, and read that."


def _of_what_feeds(sink: SinkPlan, inputs: list[str], plan: PipelinePlan, graph: Graph) -> Iterator[Wrong]:
    path: KeyPath = ("sinks", sink.name)
    if not inputs:
        yield path, "no route leads to it", f'Add [[routes]] with input and to = "{sink.name}".'
        return
    queries = {graph.query(one) for one in inputs}
    if len(queries) > 1:
        yield path, f"rows of two queries go there, of {' and '.join(inputs)}", "Give each its own sink."
    elif "" in queries:
        yield path, f"'{inputs[0]}' contains no messages, only tables", "Route rows of a source."
    elif sink.table is not None and len(inputs) > 1:
        yield path, f"two kinds of rows go there, {' and '.join(inputs)}", "Give each its own table."
    states = [one for one in plan.steps if one.name in queries and one.state is not None]
    if any(one.state.output == "complete" for one in states if one.state is not None):
        if sink.has_fields:
            told = "each batch would send all results again"
            yield path, told, 'Set state.output = "append" in that step.'
        if sink.format == "parquet":
            told = "each batch replaces all results, and Holdfast only appends to a Parquet table"
            yield (*path, "format"), told, 'Set format = "delta".'
    feeding = {name for one in inputs for name in graph.sources(one)}
    has_broker = sink.broker is not None or any(one.broker for one in plan.sources if one.name in feeding)
    if sink.sends and not has_broker:
        yield path, "'broker' is missing", "Set broker there: its source has none."
