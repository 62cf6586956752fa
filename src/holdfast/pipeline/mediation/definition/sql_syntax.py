"""Mistakes in a pipeline's SQL, found by Spark's own parser, without a Spark session.

The parser needs Java, and takes about two seconds. It does not look up tables and columns, except for fields that an
XSD describes (``parsed_fields``), and for columns of rows with known columns (``columns``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from holdfast.config.lines import KeyPath
from holdfast.config.tables import Wrong
from holdfast.config.unreadable import readable
from holdfast.pipeline.mediation.definition.checks import FIELDS, IRI, Said
from holdfast.pipeline.mediation.definition.columns import missing_columns
from holdfast.pipeline.mediation.definition.parsed_fields import Node, missing_fields, tree_of
from holdfast.pipeline.mediation.definition.plan import RoutePlan, SinkPlan, StepPlan, TablePlan
from holdfast.pipeline.session import check_spark
from holdfast.pipeline.spark.java import java_home

_Text = tuple[KeyPath, str, str]
_QUERY, _EXPRESSION, _COLUMNS = "parsePlan", "parseExpression", "parseTableSchema"
"""Kinds of SQL: the methods of Spark's parser."""
_REMEDY = "Write it in Spark's SQL; `check --dry-run` also checks its tables and columns."
_DDL = 'Write columns with their types, such as "id INT, name STRING".'
_FIELD = f"Write the name of a column, or another expression; text needs single quotes: \"'text'\". {_REMEDY}"


def syntax_mistakes(said: Said) -> Iterator[Wrong]:
    """Yield SQL of steps, routes and sinks that Spark cannot parse; its fields that an XSD lacks; and missing columns.

    Args:
        said: Field of PipelinePlan -> the value read.

    Raises:
        ConfigurationError: pyspark or Java is not installed.
    """
    parsed: dict[KeyPath, list[Node]] = {}
    texts = list(_texts(said))
    parsing: AbstractContextManager[Any] = _parsing() if texts else nullcontext()
    with parsing as parser:
        for path, text, kind in texts:
            what, tree = _parsed(getattr(parser, kind), text)
            if what and kind == _COLUMNS:  # Spark also accepts a type: struct<id: int>, or id: int
                types = (_parsed(parser.parseDataType, one)[0] for one in (text, f"struct<{text}>"))
                what = what if all(types) else ""
            if what:
                remedy = _FIELD if path[0] == "sinks" else _DDL if kind == _COLUMNS else _REMEDY
                yield path, what, remedy
            if tree is not None:
                parsed.setdefault(path, []).append(tree)
    yield from missing_fields(said, parsed)
    yield from readable(missing_columns(said, parsed))


def _texts(said: Said) -> Iterator[_Text]:
    """Yield the path of each SQL text, the text, and its kind."""
    tables, steps, routes, sinks = (said.get(kind, ()) for kind in ("tables", "steps", "routes", "sinks"))
    yield from readable(
        *(of_kind(step) for step in steps for of_kind in (_of_sql, _of_rules, _of_columns, _of_a_schema)),
        *(_of_a_table(table) for table in tables),
        *(_of_a_route(number, route) for number, route in enumerate(routes)),
        *(_of_a_sink(sink, key) for sink in sinks for key in (*FIELDS, "order")),
    )


def _of_sql(step: StepPlan) -> Iterator[_Text]:
    if step.sql:
        yield ("steps", step.name, "sql"), step.sql, _QUERY


def _of_rules(step: StepPlan) -> Iterator[_Text]:
    for reason, rule in (step.validate.rules or {}).items() if step.validate is not None else ():
        yield ("steps", step.name, "validate", "rules", reason), rule, _EXPRESSION


def _of_columns(step: StepPlan) -> Iterator[_Text]:
    for column in step.xml.columns if step.xml is not None else ():
        yield ("steps", step.name, "xml", "columns"), column, _EXPRESSION


def _of_a_schema(step: StepPlan) -> Iterator[_Text]:
    if step.parse is not None and step.parse.schema:
        yield ("steps", step.name, "parse", "schema"), step.parse.schema, _COLUMNS


def _of_a_table(table: TablePlan) -> Iterator[_Text]:
    if table.schema:
        yield ("tables", table.name, "schema"), table.schema, _COLUMNS


def _of_a_route(number: int, route: RoutePlan) -> Iterator[_Text]:
    if route.when:
        yield ("routes", number, "when"), route.when, _EXPRESSION


def _of_a_sink(sink: SinkPlan, key: str) -> Iterator[_Text]:
    if sink.has_fields and (texts := getattr(sink, key)):
        for text in (texts,) if isinstance(texts, str) else texts:
            if not IRI.fullmatch(text):  # reported elsewhere
                yield ("sinks", sink.name, key), text, _EXPRESSION


def _parsed(parse: Callable[[str], Any], text: str) -> tuple[str, Node | None]:
    """Return the parser's error, "" without one, and the parsed tree, None if it is unreadable here."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        tree = parse(text)
    except Py4JJavaError as error:
        told = str(error.java_exception.getMessage() or error.java_exception.toString()).strip()
        return f"Spark cannot parse it: {told.splitlines()[0]}", None
    try:
        return "", tree_of(tree.toJSON())
    except (Py4JError, ValueError, LookupError, RecursionError):  # of a type, which is no tree
        return "", None


@contextmanager
def _parsing() -> Iterator[Any]:
    """Spark's parser in a separate Java process, so that a later session has its own settings."""
    check_spark()
    from pyspark.java_gateway import launch_gateway

    os.environ["JAVA_HOME"] = str(java_home())
    gateway: Any = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        yield gateway.jvm.org.apache.spark.sql.execution.SparkSqlParser()
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends it
        gateway.proc.wait()
