"""A pipeline as it is told: frozen values. A field is a key of the file; its annotation says what may be written there.

How a file becomes these values is ``file``'s, what contradicts what is ``checks``'s. Knows no Spark.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.values import (
    TEXT,
    Count,
    Duration,
    File,
    Flag,
    Kind,
    Name,
    Names,
    QueueName,
    QueueNames,
    Text,
    Unfit,
    Url,
    one_of,
    several,
    told_type,
    told_value,
)
from holdfast.pipeline.bodies.leniencies import LENIENCIES, MAX_ELEMENTS

_ROWS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _rows_name(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or _ROWS.fullmatch(value) is None:
        raise Unfit(
            f"no rows can be called {told_value(value)}",
            "SQL has to know them: up to 64 letters, digits and underscores, and no digit first.",
        )
    return value


def _place(value: Any, base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit(f"{told_value(value)} is not a path", "Write it in quotes.")
    return value if "://" in value else str(base / value)


def _texts(value: Any, _base: Path) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise Unfit(f"{told_type(value)} is not a table", 'Write { name = "value" }.')
    told = {name: str(one).lower() if isinstance(one, bool) else one for name, one in value.items()}
    for name, one in told.items():
        if not isinstance(one, str | int | float):
            raise Unfit(f"'{name}' is {told_type(one)}", "Write text, a number, or true or false.")
    return {name: str(one) for name, one in told.items()}


def _bootstrap(value: Any, _base: Path) -> str:
    servers = [one.strip() for one in value.split(",")] if isinstance(value, str) else []
    if not servers or any(_SERVER.fullmatch(one) is None for one in servers):
        raise Unfit(f"{told_value(value)} does not name Kafka servers", 'Write "host:9092", or several with commas.')
    return ",".join(servers)


def _topic(value: Any, _base: Path) -> str:
    if not isinstance(value, str) or _TOPIC.fullmatch(value) is None or value in (".", ".."):
        raise Unfit(
            f"{told_value(value)} cannot be a topic",
            "Use up to 249 letters, digits, dots, underscores and hyphens. For a pattern, set the option "
            "subscribePattern.",
        )
    return value


def _function(value: Any, base: Path) -> Callable[..., Any]:
    """A function, from a module beside the file or an installed one; which is imported."""
    if callable(value):
        return value  # type: ignore[no-any-return] # of a pipeline in Python
    if not isinstance(value, str) or _FUNCTION.fullmatch(value) is None:
        raise Unfit(f"{told_value(value)} names no function", 'Write "module:function".')
    module, _, name = value.partition(":")
    directory = str(base.resolve())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module does when it is imported
        told = f"the module {module} cannot be imported: {type(error).__name__}: {error}"
        raise Unfit(told, "Modules are looked for beside the file and among those installed.") from error
    if not callable(found):
        raise Unfit(f"{module} has no function {name}", "Write it there, or name another.")
    return found  # type: ignore[no-any-return]


_LENIENT = "one or several of " + ", ".join(f'`"{name}"`' for name in LENIENCIES)

ROWS = Kind("a name that SQL knows: letters, digits, underscores", _rows_name)
PLACE = Kind("a path, or the URL of a file system that Spark knows", _place)
TEXTS = Kind("a table of texts", _texts)
FUNCTION = Kind("a function, `module:function`", _function)
BOOTSTRAP = Kind("`host:port` of Kafka servers, with commas between them", _bootstrap)
TOPIC = Kind("the name of a Kafka topic", _topic)
TABLE_FORMATS = ("parquet", "csv", "json")

RowsName = Annotated[str, ROWS]
RowsNames = Annotated[tuple[str, ...], several(ROWS, "the name of a source, a table or a step, or a list of them")]
SinkNames = Annotated[tuple[str, ...], several(TEXT, "the name of a sink, or a list")]
Place = Annotated[str, PLACE]
Bootstrap = Annotated[str, BOOTSTRAP]
Topic = Annotated[str, TOPIC]
Topics = Annotated[tuple[str, ...], several(TOPIC, "the name of a Kafka topic, or a list of them")]
Texts = Annotated[Mapping[str, str], TEXTS]
Function = Annotated[Any, FUNCTION]
Lenient = Annotated[tuple[str, ...], several(one_of({name: name for name in LENIENCIES}), _LENIENT)]
TableFormat = Annotated[str, one_of({name: name for name in TABLE_FORMATS})]
SinkFormat = Annotated[str, one_of({"parquet": "parquet", "delta": "delta"})]
Output = Annotated[str, one_of({"append": "append", "complete": "complete"})]


@dataclass(frozen=True)
class SourcePlan:
    """A queue whose messages are the pipeline's rows: the columns of ``format("wsrm")``. Or a Kafka topic.

    Args:
        name: What its rows are called.
        broker: URL of the server's admin listener, as the executors see it.
        kafka: Instead of ``broker``: the bootstrap servers of a Kafka cluster, as the executors see them.
        topic: The topic to read, or several. Without it, the option ``subscribePattern`` or ``assign`` names them.
        once: Read each record once that a Kafka sink of a pipeline sent, even if that sink sent it again after a crash.
            This believes the records' headers: set it only if every producer of the topic is trusted.
        properties_file: A file of Kafka client properties, such as ``sasl.jaas.config``. Secrets belong there.
        queue: The queue, or several. Without one ``inbox``, or those of the option ``queuePattern``.
        token_file: The listener's token, nothing else. Without it that in the environment variable
            HOLDFAST_ADMIN_TOKEN counts, if it is set.
        options: Further options of the source, by its own names; of Kafka, those of Spark's connector.
    """

    name: RowsName
    broker: Url | None = None
    queue: QueueNames = ()
    token_file: File | None = None
    kafka: Bootstrap | None = None
    topic: Topics = ()
    once: Flag = False
    properties_file: File | None = None
    options: Texts | None = None


@dataclass(frozen=True)
class TablePlan:
    """A table to join with. It is read anew for each batch, so that it may change meanwhile, unless ``refresh`` is set.

    Args:
        name: What its rows are called.
        path: Where it is.
        format: What it is; without it, what its name ends with says so.
        schema: Its columns, as DDL; without it they are looked up in the table, for each batch.
        options: Options of Spark's reader of that format.
        refresh: Keep its rows in Spark's cache, and read it again when they are older than this.
    """

    name: RowsName
    path: Place
    format: TableFormat | None = None
    schema: Text = ""
    options: Texts | None = None
    refresh: Duration | None = None


@dataclass(frozen=True)
class ParsePlan:
    """XML read into columns: one struct. What says which is one of ``xsd``, ``schema``, ``schema_file`` and ``infer``.

    Args:
        json: Read JSON instead, with the fields of ``schema`` or ``schema_file``.
        xsd: An XML Schema. The files it takes in are read, too, and none from a network.
        element: The element that is expected, ``{namespace}local`` or the local name; with an XSD that declares one
            element only it is that.
        schema: The fields, as DDL.
        schema_file: The same in a file, or as Spark's JSON of it, in which metadata can say more.
        infer: Infer the fields from so many messages, once: what comes of it is kept with the checkpoint.
        column: Where the XML or JSON is.
        into: The column for the struct.
        validate: Hold the XML against the XSD, too.
        lenient: What is passed over instead of being a problem, as of ``holdfast land``.
        max_elements: XML with more elements is not read.
    """

    json: Flag = False
    xsd: File | None = None
    element: Text = ""
    schema: Text = ""
    schema_file: File | None = None
    infer: Count | None = None
    column: Text = "body"
    into: RowsName = "parsed"
    validate: Flag = True
    lenient: Lenient = ()
    max_elements: Count = MAX_ELEMENTS


@dataclass(frozen=True)
class ValidatePlan:
    """What rows must be like.

    Args:
        rules: What is told of a row that fails, and the SQL condition that must be true; where it is null, it fails.
        xsd: An XML Schema that the XML must be valid by.
        element: The element that is expected; without it any that the XSD declares.
        column: Where the XML is.
    """

    rules: Texts | None = None
    xsd: File | None = None
    element: Text = ""
    column: Text = "body"


@dataclass(frozen=True)
class XmlPlan:
    """Rows written as XML, one element each.

    Args:
        element: The element's name, ``{namespace}local``; with an XSD the local name is enough.
        columns: What it holds: columns, or SQL with an alias, such as ``"o.id AS id"``. One struct alone: its fields.
            Without it all columns.
        xsd: An XML Schema: says what is an attribute, of which namespace, in which order; and what comes of it is held
            against it.
        into: The column for the XML.
        qualified: Without an XSD: whether children are of the element's namespace, or of none.
        prefix: Of the element's namespace; without it, it is the default namespace.
        zone: The time zone in which a TIMESTAMP is written, ``Europe/Berlin`` or ``+02:00``; without it UTC.
    """

    element: Text
    columns: Names = ()
    xsd: File | None = None
    into: RowsName = "body"
    qualified: Flag = True
    prefix: Text = ""
    zone: Text = ""


@dataclass(frozen=True)
class StatePlan:
    """Makes the SQL of a step go over all batches, as Spark's stream does, and not over one batch.

    Args:
        time: The column of its inputs that says when it happened.
        late: How late a row may come. Windows are closed, and their state is let go of, when rows are so much newer.
        output: ``append``: each result once, when it is final. ``complete``: all results with each batch, for a table
            that is replaced.
    """

    time: Text = "delivered_at"
    late: Duration = 600.0
    output: Output = "append"


@dataclass(frozen=True)
class StepPlan:
    """A step: rows from rows above it. It has one of ``sql``, ``python``, ``parse``, ``validate`` and ``xml``.

    Args:
        name: What its rows are called.
        sql: A SELECT over sources, tables and steps above, by their names.
        python: A function of DataFrames that gives one: ``module:function``, the module beside the file or installed.
        parse: XML into columns.
        validate: What rows must be like.
        xml: Columns into XML.
        input: The rows it is made of; for ``python`` as many as the function takes. SQL says so itself.
        keep: Rows with problems go on, with the column ``problems``, instead of to the dead letters.
        state: Lets SQL with windows or aggregates go over all batches.
    """

    name: RowsName
    sql: Text = ""
    python: Function | None = None
    parse: ParsePlan | None = None
    validate: ValidatePlan | None = None
    xml: XmlPlan | None = None
    input: RowsNames = ()
    keep: Flag = False
    state: StatePlan | None = None

    @property
    def kinds(self) -> list[str]:
        """Which of the five it has: one, if it is right."""
        return [kind for kind in ("sql", "python", "parse", "validate", "xml") if getattr(self, kind)]


@dataclass(frozen=True)
class RoutePlan:
    """Which rows go where. Of the routes of one input, the first whose condition is true takes a row.

    Args:
        input: The rows.
        to: The sinks.
        when: An SQL condition; without one it takes every row.
        onwards: The rows it takes go on to the routes below as well.
    """

    input: RowsName
    to: SinkNames
    when: Text = ""
    onwards: Flag = False


@dataclass(frozen=True)
class SinkPlan:
    """Where rows go, by one of ``queue``, ``to``, ``kafka``, ``table`` and ``console``.

    What is sent is told by SQL expressions over the row: a column, or a text in single quotes.

    Args:
        name: What it is called; the server knows it as PIPELINE.NAME.
        queue: A queue of the broker.
        to: The address of one of the broker's forwarders.
        kafka: The bootstrap servers of a Kafka cluster.
        topic: The Kafka topic.
        properties_file: A file of Kafka client properties, such as ``sasl.jaas.config``. Secrets belong there.
        table: The directory of a table, which ``read_landed`` reads as one, and ``holdfast compact`` puts together.
        format: What it is, Parquet without it. Delta needs ``holdfast[delta]``.
        console: Print so many rows of each batch, to try things out.
        broker: URL of the server's admin listener; without it that of the source.
        token_file: The listener's token. Without it as of the source.
        body: The XML to send; of a Kafka sink, the record's value.
        action: Its Action. A Kafka sink sends it as a header, if the rows have it.
        key: Rows of the same key go out in one Sequence, in their order; without it all of them do. Of a Kafka sink,
            the record's key: rows of the same key stay in their order. Without it, each record's own identity.
        order: What the rows of a key are ordered by; without it ``queue``, ``partition`` and ``offset``, their place
            where they came from, if the rows have these. Those that are alike in that, or have none, as they come.
        headers: SOAP headers to send along, as XML. Of a Kafka sink, a MAP of names and texts.
        message_id: Its MessageID; without it the server makes one.
        relates_to: Its RelatesTo.
        reply_to: Its ReplyTo.
        options: Further options of the sink, by its own names; of Kafka, ``kafka.`` and a producer's property.
    """

    name: Name
    queue: QueueName | None = None
    to: Url | None = None
    kafka: Bootstrap | None = None
    topic: Topic | None = None
    properties_file: File | None = None
    table: Place | None = None
    format: SinkFormat | None = None
    console: Count | None = None
    broker: Url | None = None
    token_file: File | None = None
    body: Text = "body"
    action: Text = "action"
    key: Text = ""
    order: Names = ()
    headers: Text = ""
    message_id: Text = ""
    relates_to: Text = ""
    reply_to: Text = ""
    options: Texts | None = None

    @property
    def sends(self) -> bool:
        """Whether its rows become messages."""
        return self.queue is not None or self.to is not None

    @property
    def has_fields(self) -> bool:
        """Whether SQL says what is sent: its rows become messages, or Kafka records."""
        return self.sends or self.kafka is not None


@dataclass(frozen=True)
class DeadLettersPlan:
    """The table of rows that failed: each with the step, the reasons, its place in the queue, and all of it as JSON.

    Args:
        table: Its path, a directory of Parquet.
    """

    table: Place


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline.

    Args:
        name: What it is called; the server knows its sinks by that.
        checkpoint: Directory of its progress. It belongs to what the sinks hold: keep, move and delete them together.
        interval: From the start of a batch to the next.
        parameters: What is written as ``${name}`` in any text below, unless ``--set`` says otherwise.
        sources: Queues and Kafka topics to read.
        tables: Tables to join with.
        steps: What is made of them, one after the other.
        routes: Which rows go to which sink.
        sinks: Where rows go.
        dead_letters: Where rows go that fail.
    """

    name: Name
    checkpoint: Place
    interval: Duration = 10.0
    parameters: Texts | None = None
    sources: tuple[SourcePlan, ...] = ()
    tables: tuple[TablePlan, ...] = ()
    steps: tuple[StepPlan, ...] = ()
    routes: tuple[RoutePlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    dead_letters: DeadLettersPlan | None = None

    @property
    def of_kafka(self) -> list[SourcePlan | SinkPlan]:
        """The sources and sinks that are Kafka topics."""
        both: list[SourcePlan | SinkPlan] = [*self.sources, *self.sinks]
        return [one for one in both if one.kafka is not None]
