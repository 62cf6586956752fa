"""Mistakes in a pipeline's SQL, found by Spark's own parser, without a Spark session.

The parser needs Java: some two seconds. Tables and columns are not looked up, except fields of what an XSD describes
(``parsed_fields``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.config.lines import KeyPath
from holdfast.pipeline.mediation.definition.checks import Said, Wrong
from holdfast.pipeline.mediation.definition.parsed_fields import Node, missing_fields, tree_of
from holdfast.pipeline.mediation.definition.plan import RoutePlan
from holdfast.pipeline.session import check_spark
from holdfast.pipeline.spark.java import java_home

_OF_A_SINK = ("body", "action", "key", "headers", "message_id", "relates_to", "reply_to")
_REMEDY = "Write it as Spark's SQL has it; `check --dry-run` looks up its tables and columns, too."


def syntax_mistakes(said: Said) -> Iterator[Wrong]:
    """The SQL of a plan's steps, routes and sinks that Spark cannot parse, and the fields in it that an XSD lacks.

    Args:
        said: Field of PipelinePlan -> what was read of it.

    Raises:
        ConfigurationError: pyspark is not installed, or there is no Java for it.
    """
    if not (texts := list(_texts(said))):
        return
    parsed: dict[KeyPath, list[Node]] = {}
    with _parsing() as parser:
        for path, text, is_query in texts:
            what, tree = _parsed(parser.parsePlan if is_query else parser.parseExpression, text)
            if what:
                yield path, what, _REMEDY
            if tree is not None:
                parsed.setdefault(path, []).append(tree)
    yield from missing_fields(said, parsed)


def _texts(said: Said) -> Iterator[tuple[tuple[str | int, ...], str, bool]]:
    """Where SQL stands, the text, and whether it is a query or an expression."""
    for step in said.get("steps", ()):
        path = ("steps", step.name)
        if step.sql:
            yield (*path, "sql"), step.sql, True
        for reason, rule in (step.validate.rules or {}).items() if step.validate is not None else ():
            yield (*path, "validate", "rules", reason), rule, False
        for column in step.xml.columns if step.xml is not None else ():
            yield (*path, "xml", "columns"), column, False
    for number, route in enumerate(said.get("routes", ())):
        if isinstance(route, RoutePlan) and route.when:
            yield ("routes", number, "when"), route.when, False
    for sink in said.get("sinks", ()):
        for key in _OF_A_SINK if sink.has_fields else ():
            if text := getattr(sink, key):
                yield ("sinks", sink.name, key), text, False
        for text in sink.order if sink.has_fields else ():
            yield ("sinks", sink.name, "order"), text, False


def _parsed(parse: Callable[[str], Any], text: str) -> tuple[str, Node | None]:
    """Why Spark cannot parse a text, "" if it can; and what it makes of it, None if that cannot be read here."""
    from py4j.protocol import Py4JJavaError

    try:
        tree = parse(text)
    except Py4JJavaError as error:
        told = str(error.java_exception.getMessage() or error.java_exception.toString()).strip()
        return f"Spark cannot parse it: {told.splitlines()[0]}", None
    try:
        return "", tree_of(tree.toJSON())
    except (Py4JJavaError, ValueError, LookupError, RecursionError):
        return "", None


@contextmanager
def _parsing() -> Iterator[Any]:
    """Spark's parser in a Java of its own: a session that is started later has its own settings."""
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
