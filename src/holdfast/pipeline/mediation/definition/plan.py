"""Definition of a pipeline as frozen values: each field is a key of the file, with its valid values as annotation.

``file`` parses a file into these values, and ``checks`` finds contradictions between them. This module does not import
Spark.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.values import Kind, Name, QueueName, Unfit, Url, one_of, read_url, told_type, told_value
from holdfast.pipeline.bodies.leniencies import LENIENCIES, MAX_ELEMENTS
from holdfast.pipeline.spark.files import names_system
from holdfast.settings import File, Seconds

_ROWS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _rows_name(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or _ROWS.fullmatch(value) is None:
        raise Unfit(
            f"{told_value(value)} is not a valid name for rows",
            "SQL uses this name: up to 64 letters, digits and underscores, not beginning with a digit.",
        )
    return value


def _place(value: Any, base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit(f"{told_value(value)} is not a path", "Write it in quotes.")
    return value if names_system(value) else str(base / value)


def _text_of(value: Any, _base: Path) -> str:
    if not isinstance(value, str | int | float):
        raise Unfit(f"{told_type(value)} is not text", "Write text, a number, or true or false.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bootstrap(value: Any, _base: Path) -> str:
    servers = [one.strip() for one in value.split(",")] if isinstance(value, str) else []
    if not servers or any(_SERVER.fullmatch(one) is None for one in servers):
        raise Unfit(f"{told_value(value)} does not name Kafka servers", 'Write "host:9092", or several with commas.')
    return ",".join(servers)


def _nodes(value: Any, base: Path) -> str:
    if isinstance(value, str) and "@" in value:  # before commas divide it: a password may have one, and is not shown
        return read_url(value, base)
    addresses = [one.strip().rstrip("/") for one in value.split(",")] if isinstance(value, str) else [value]
    return ",".join(dict.fromkeys(read_url(one, base) for one in addresses))


def _topic(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or _TOPIC.fullmatch(value) is None or value in (".", ".."):
        raise Unfit(
            f"{told_value(value)} is not a valid name of a topic",
            "Use up to 249 letters, digits, dots, underscores and hyphens. For a pattern, set the option "
            "subscribePattern.",
        )
    return value


def _function(value: Any, base: Path) -> Callable[..., Any]:
    """Import a function from a module next to the file, or from an installed one."""
    if callable(value):
        return value  # type: ignore[no-any-return] # a pipeline defined in Python
    if not isinstance(value, str) or _FUNCTION.fullmatch(value) is None:
        raise Unfit(f"{told_value(value)} is not the name of a function", 'Write "module:function".')
    module, _, name = value.partition(":")
    directory = str(base.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # importing a module can raise anything
        told = f"the module {module} cannot be imported: {type(error).__name__}: {error}"
        remedy = "Modules are imported from the directory of the file and from installed packages."
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):  # a type as text needs Spark, which has not started
            remedy = 'Give types as objects, StringType() instead of "string", or define such things in the function.'
        raise Unfit(told, remedy) from error
    if not callable(found):
        raise Unfit(f"{module} has no function {name}", "Define it there, or name another.")
    return found  # type: ignore[no-any-return]


TABLE_FORMATS = ("delta", "parquet", "csv", "json")

RowsName = Annotated[str, Kind("a name of letters, digits and underscores", _rows_name)]
Place = Annotated[str, Kind("a path, or a URL of a file system that Spark supports", _place)]
Bootstrap = Annotated[str, Kind("`host:port` of Kafka servers, separated by commas", _bootstrap)]
Nodes = Annotated[str, Kind("an http or https URL, or those of several nodes, separated by commas", _nodes)]
Topic = Annotated[str, Kind("the name of a Kafka topic", _topic)]
Texts = Mapping[str, Annotated[str, Kind("text", _text_of)]]
Function = Annotated[Any, Kind("a function, `module:function`", _function)]
Leniency = Annotated[str, one_of(LENIENCIES)]
TableFormat = Annotated[str, one_of(TABLE_FORMATS)]
SinkFormat = Annotated[str, one_of(("delta", "parquet"))]
Output = Annotated[str, one_of(("append", "complete"))]


@dataclass(frozen=True)
class SourcePlan:
    """A queue that provides the pipeline's rows, with the columns of ``format("wsrm")``, or a Kafka topic.

    Args:
        name: Name of its rows.
        broker: URL of the server's admin listener, reachable from the executors. For a cluster, the URLs of several
            nodes, separated by commas: if one does not answer, the next one is used.
        kafka: Bootstrap servers of a Kafka cluster, reachable from the executors, instead of ``broker``.
        topic: One topic, or several. If you omit it, set the option ``subscribePattern`` or ``assign``.
        once: Read each record from a pipeline's Kafka sink once, even if the sink sent it again after a crash. This
            relies on the records' headers: set it only if every producer of the topic is trusted.
        properties_file: File of Kafka client properties, such as ``sasl.jaas.config``. Put secrets in this file.
        queue: One queue, or several. The default is ``inbox``, or the queues of the option ``queuePattern``.
        token_file: File that contains only the listener's token. The default is the environment variable
            HOLDFAST_ADMIN_TOKEN, if it is set.
        options: Further options of the source, by their own names, such as ``caFile``, the authorities to trust for
            https; for Kafka, those of Spark's connector.
    """

    name: RowsName
    broker: Nodes | None = None
    queue: tuple[QueueName, ...] = ()
    token_file: File | None = None
    kafka: Bootstrap | None = None
    topic: tuple[Topic, ...] = ()
    once: bool = False
    properties_file: File | None = None
    options: Texts | None = None


@dataclass(frozen=True)
class TablePlan:
    """A table to join with.

    The pipeline reads the table again for each batch, so the table may change between batches, unless you set
    ``refresh``.

    Args:
        name: Name of its rows.
        path: Path of the table.
        format: Format of the table. The default follows from the end of the path. Write ``"delta"`` for a table that
            Holdfast wrote.
        schema: Columns of the table, as DDL. By default, each batch reads them from the table.
        options: Options of Spark's reader for this format.
        refresh: Keep the rows in Spark's cache, and read the table again when they are older than this.
    """

    name: RowsName
    path: Place
    format: TableFormat | None = None
    schema: str = ""
    options: Texts | None = None
    refresh: Seconds | None = None


@dataclass(frozen=True)
class ParsePlan:
    """Parsing of XML into a struct column, with the fields from ``xsd``, ``schema``, ``schema_file`` or ``infer``.

    Args:
        json: Parse JSON instead, with the fields of ``schema`` or ``schema_file``.
        xsd: An XML Schema. The pipeline also reads the files that it includes or imports, but none from a network.
        element: The expected element, ``{namespace}local`` or the local name. If the XSD declares only one element,
            that is the default.
        schema: The fields, as DDL.
        schema_file: File with the fields, as DDL or as Spark's JSON, with optional details in the metadata.
        infer: Number of messages to infer the fields from, once. The pipeline stores the result with the checkpoint.
        column: Column that contains the XML or JSON.
        into: Column for the struct.
        validate: Also validate the XML against the XSD.
        lenient: Deviations to ignore instead of reporting them as problems, as in ``holdfast land``.
        max_elements: Maximum number of elements. The pipeline does not parse XML with more.
    """

    json: bool = False
    xsd: File | None = None
    element: str = ""
    schema: str = ""
    schema_file: File | None = None
    infer: int | None = None
    column: str = "body"
    into: RowsName = "parsed"
    validate: bool = True
    lenient: tuple[Leniency, ...] = ()
    max_elements: int = MAX_ELEMENTS


@dataclass(frozen=True)
class ValidatePlan:
    """Conditions that rows must meet.

    Args:
        rules: Problem to report for a row that fails, and the SQL condition that must be true. Null counts as failed.
        xsd: An XML Schema to validate the XML against.
        element: The expected element. By default, any element that the XSD declares.
        column: Column that contains the XML.
    """

    rules: Texts | None = None
    xsd: File | None = None
    element: str = ""
    column: str = "body"


@dataclass(frozen=True)
class XmlPlan:
    """Conversion of rows to XML, one element for each row.

    Args:
        element: Name of the element, ``{namespace}local``; with an XSD, the local name is enough.
        columns: Contents of the element: columns, or SQL with an alias, such as ``"o.id AS id"``. A single struct
            contributes its fields. The default is all columns.
        xsd: An XML Schema that determines attributes, namespaces and order. The pipeline validates the XML against it.
        into: Column for the XML.
        qualified: Without an XSD, whether children are in the element's namespace or in none.
        prefix: Prefix of the element's namespace. By default, it is the default namespace.
        zone: Time zone for TIMESTAMP values, ``Europe/Berlin`` or ``+02:00``. The default is UTC.
    """

    element: str
    columns: tuple[str, ...] = ()
    xsd: File | None = None
    into: RowsName = "body"
    qualified: bool = True
    prefix: str = ""
    zone: str = ""


@dataclass(frozen=True)
class StatePlan:
    """State that lets the SQL of a step span all batches, as in a Spark stream, instead of one batch.

    Args:
        time: Column of the inputs that contains the event time, a TIMESTAMP. If it is a field of a struct, select it as
            a column in a step above. A row without a time fails; with ``output = "complete"``, the SQL decides.
        late: How late a row may arrive. Once newer rows are this far ahead, the pipeline closes the windows and
            discards their state.
        output: ``append`` returns each result once, when it is final. ``complete`` returns all results with each
            batch, for a table that each batch replaces.
    """

    time: str = "delivered_at"
    late: Seconds = 600.0
    output: Output = "append"


@dataclass(frozen=True)
class StepPlan:
    """A step that derives rows from rows above it, by ``sql``, ``python``, ``parse``, ``validate`` or ``xml``.

    Args:
        name: Name of its rows.
        sql: A SELECT over sources, tables and steps above, by name.
        python: A function that takes DataFrames and returns one: ``module:function``. The module is next to the file,
            or installed.
        parse: Parse XML into columns.
        validate: Check conditions that rows must meet.
        xml: Convert columns to XML.
        input: Rows that the step reads; for ``python``, one name per parameter of the function. SQL names its own.
        keep: Pass rows with problems to the next steps, with the column ``problems``, instead of to the dead letters.
        state: Let SQL with windows or aggregates span all batches.
    """

    name: RowsName
    sql: str = ""
    python: Function | None = None
    parse: ParsePlan | None = None
    validate: ValidatePlan | None = None
    xml: XmlPlan | None = None
    input: tuple[RowsName, ...] = ()
    keep: bool = False
    state: StatePlan | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of transformation in this step; a valid step has exactly one."""
        return [kind for kind in ("sql", "python", "parse", "validate", "xml") if getattr(self, kind)]


@dataclass(frozen=True)
class RoutePlan:
    """A route from rows to sinks. Each row follows the first route of its input with a true condition.

    Args:
        input: Name of the rows.
        to: Names of the sinks.
        when: An SQL condition. By default, the route matches every row.
        onwards: Also pass matching rows to the routes below.
    """

    input: RowsName
    to: tuple[str, ...]
    when: str = ""
    onwards: bool = False


@dataclass(frozen=True)
class SinkPlan:
    """A destination of rows: one of ``queue``, ``to``, ``kafka``, ``table`` and ``console``.

    SQL expressions over the row define the contents of a message: a column, or a text in single quotes.

    Args:
        name: Name of the sink; its name on the server is PIPELINE.NAME.
        queue: A queue of the broker.
        to: Address of one of the broker's forwarders. If several forwarders have it, the rows go through the first in
            the broker's file; to choose another, set ``queue`` to its queue instead.
        kafka: Bootstrap servers of a Kafka cluster.
        topic: The Kafka topic.
        properties_file: File of Kafka client properties, such as ``sasl.jaas.config``. Put secrets in this file.
        table: Directory of a table. Read it with ``read_landed``, and merge its files with ``holdfast compact``.
        format: Format of a new table. The default is Delta. A table that exists keeps its format.
        console: Number of rows to print from each batch, for trials.
        broker: URL of the server's admin listener, or those of several nodes of a cluster, separated by commas. The
            default is that of the source.
        token_file: File that contains the listener's token. The default is that of the source. Without ``broker``,
            so are its options ``caFile``, ``certificateFile``, ``keyFile`` and ``proxy``.
        body: The XML to send; for a Kafka sink, the record's value.
        action: The message's Action. A Kafka sink sends it as a header, if the rows have it.
        key: Rows with the same key share one Sequence and keep their order. By default, all rows share one. For a Kafka
            sink, it is the record's key, and rows with the same key keep their order. The default is a separate
            identity for each record.
        order: Columns that order the rows of a key. The default is the position at the source: ``queue``,
            ``partition`` and ``offset``, if the rows have these columns. That is the order of each Sequence; of the
            rows of two, such as those of a sender before and after it started again, it is not the order in which they
            were sent. ``delivered_at`` is, as long as the broker's clock is not set back. The order of rows that
            compare as equal, or of rows without these columns, is undefined.
        headers: SOAP headers to send, as XML; for a Kafka sink, a MAP of names to texts.
        message_id: The message's MessageID. By default, the server generates one.
        relates_to: The message's RelatesTo.
        reply_to: The message's ReplyTo.
        options: Further options of the sink, by their own names; for Kafka, ``kafka.`` followed by a producer property.
    """

    name: Name
    queue: QueueName | None = None
    to: Url | None = None
    kafka: Bootstrap | None = None
    topic: Topic | None = None
    properties_file: File | None = None
    table: Place | None = None
    format: SinkFormat | None = None
    console: int | None = None
    broker: Nodes | None = None
    token_file: File | None = None
    body: str = "body"
    action: str = "action"
    key: str = ""
    order: tuple[str, ...] = ()
    headers: str = ""
    message_id: str = ""
    relates_to: str = ""
    reply_to: str = ""
    options: Texts | None = None

    @property
    def sends(self) -> bool:
        return self.queue is not None or self.to is not None

    @property
    def has_fields(self) -> bool:
        """Whether SQL defines the contents: the sink sends its rows as messages or Kafka records."""
        return self.sends or self.kafka is not None


@dataclass(frozen=True)
class DeadLettersPlan:
    """Table of failed rows: each with the step, the reasons, its position in the queue, and the whole row as JSON.

    Args:
        table: Directory with a table for each query, ``query=NAME``. Read all with ``read_dead_letters``.
    """

    table: Place


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline.

    Args:
        name: Name of the pipeline, and the first part of its sinks' names on the server.
        checkpoint: Directory of the pipeline's progress. Keep, move and delete it together with the data in the sinks.
        interval: Time from the start of one batch to the start of the next.
        parameters: Values for ``${name}`` in any text below; ``--set`` overrides them.
        sources: Queues and Kafka topics to read.
        tables: Tables to join with.
        steps: Transformations, in order.
        routes: Routes from rows to sinks.
        sinks: Destinations of the rows.
        dead_letters: Destination of failed rows.
    """

    name: Name
    checkpoint: Place
    interval: Seconds = 10.0
    parameters: Texts | None = None
    sources: tuple[SourcePlan, ...] = ()
    tables: tuple[TablePlan, ...] = ()
    steps: tuple[StepPlan, ...] = ()
    routes: tuple[RoutePlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    dead_letters: DeadLettersPlan | None = None

    @property
    def of_kafka(self) -> list[SourcePlan | SinkPlan]:
        both: list[SourcePlan | SinkPlan] = [*self.sources, *self.sinks]
        return [one for one in both if one.kafka is not None]
