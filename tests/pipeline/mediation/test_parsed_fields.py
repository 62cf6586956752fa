"""Fields and columns that a pipeline names and that its rows lack are reported, and no others.

Covers pipeline/mediation/definition/parsed_fields.py, pipeline/mediation/definition/sql_syntax.py and
pipeline/mediation/definition/columns.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from quick_spark import quick_spark

from holdfast.exceptions import ConfigurationMistakes
from holdfast.pipeline.mediation.definition import columns, sql_syntax
from holdfast.pipeline.mediation.definition.file import read_pipeline
from holdfast.pipeline.mediation.kafka.records import as_rows

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation"


@pytest.fixture(scope="module")
def parser() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_spark().items():
            patch.setenv(name, value)
        with sql_syntax._parsing() as parser:
            yield parser


@pytest.fixture
def example(parser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, whose Java is started once for all tests."""

    @contextmanager
    def parsing() -> Iterator[Any]:
        yield parser

    monkeypatch.setattr(sql_syntax, "_parsing", parsing)
    for name in ("customers.csv", "order.xsd", "orders.toml"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    return tmp_path / "orders.toml"


def mistakes(file: Path, *changed: tuple[str, str]) -> list[tuple[str, str, str]]:
    text = file.read_text()
    for before, after in changed:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    file.write_text(text)
    try:
        read_pipeline(file, {}, sql_syntax.syntax_mistakes)
    except ConfigurationMistakes as error:
        return [(one.key, one.what, one.remedy) for one in error.mistakes]
    return []


SQL = """\
SELECT m.*, c.name, c.tier, aggregate(m.o.line.pieces, 0, (all, n) -> all + n) AS pieces
FROM checked m LEFT JOIN customers c ON c.id = m.o.customer
"""
COLUMNS = 'columns = ["o.id AS order", "name AS customer", "o.amount.value AS amount", "pieces"]'


def known(sql: str) -> tuple[str, str]:
    """The step "known" with other SQL."""
    return SQL, sql + "\n"


DDL = "id STRING, name STRING, tier STRING"
SYNTAX = [
    (('key = "o.customer"          ', 'key = "a b c"  '), "sinks.first.key", "text needs single quotes"),
    ((DDL, "id STRNIG"), "tables.customers.schema", "id INT"),
    ((DDL, "id STRING name STRING"), "tables.customers.schema", "id INT"),
]


@pytest.mark.parametrize(("changed", "key", "remedy"), SYNTAX)
def test_each_key_with_sql_is_parsed(example: Path, changed: tuple[str, str], key: str, remedy: str) -> None:
    (one,) = mistakes(example, changed)
    assert (one[0], "Spark cannot parse it" in one[1], remedy in one[2]) == (key, True, True), one


@pytest.mark.parametrize("ddl", ["id STRING", "id: string, n: int", "struct<id: string>", "`a b` ARRAY<INT> NOT NULL"])
def test_columns_are_accepted_in_each_form_that_spark_reads(example: Path, ddl: str) -> None:
    assert mistakes(example, (DDL, ddl)) == []


LACKS = [
    (
        ("o.amount.value > 0", "o.amuont.value > 0"),
        'steps.checked.validate.rules."the amount is not above 0"',
        "'o' has no field 'amuont' in the XSD",
        "Did you mean 'amount'?",
    ),
    (
        ("o.amount.currency =", "O.Amount.unit ="),
        'steps.checked.validate.rules."only EUR is taken"',
        "'O.Amount' has no field 'unit' in the XSD",
        "It has value, currency.",
    ),
    (
        ("o.amount.value > 0", "o.id.value > 0"),
        'steps.checked.validate.rules."the amount is not above 0"',
        "'o.id' is a single value in the XSD, and has no field 'value'",
        "Leave out '.value'.",
    ),
    (
        ("o.amount.value > 0", "o.line[0].artcle != ''"),
        'steps.checked.validate.rules."the amount is not above 0"',
        "'o.line[0]' has no field 'artcle' in the XSD",
        "Did you mean 'article'?",
    ),
    (
        ("m.o.customer", "m.o.custmer"),
        "steps.known.sql",
        "'m.o' has no field 'custmer' in the XSD",
        "Did you mean 'customer'?",
    ),
    (
        ("m.o.line.pieces, 0", "o.lines.pieces, 0"),
        "steps.known.sql",
        "'o' has no field 'lines' in the XSD",
        "Did you mean 'line'?",
    ),
    (
        ("o.amount.value > ${large}", "o.amount.valu > 1"),
        "routes[1].when",
        "'o.amount' has no field 'valu' in the XSD",
        "Did you mean 'value'?",
    ),
    (
        (COLUMNS, COLUMNS.replace("o.id", "o.idd")),
        "steps.confirmed.xml.columns",
        "'o' has no field 'idd' in the XSD",
        "Did you mean 'id'?",
    ),
    (
        known("SELECT *, o.amount AS paid, 'x' AS name, 'y' AS tier, 1 AS pieces, o.amount.vlue FROM checked"),
        "steps.known.sql",
        "'o.amount' has no field 'vlue' in the XSD",
        "Did you mean 'value'?",
    ),
    (
        known(
            "SELECT k.*, 'x' AS name, 'y' AS tier, 1 AS pieces FROM checked k "
            "WHERE k.o.id IN (SELECT id FROM customers WHERE id = k.o.custmer)"
        ),
        "steps.known.sql",
        "'k.o' has no field 'custmer' in the XSD",
        "Did you mean 'customer'?",
    ),
]
"""A change of the example, and the mistake that it is."""


@pytest.mark.parametrize(
    ("changed", "key", "what", "remedy"),
    [pytest.param(*one, marks=pytest.mark.nightly if number % 2 else []) for number, one in enumerate(LACKS)],
)
def test_a_field_that_the_xsd_lacks_is_reported_where_sql_names_it(
    example: Path, changed: tuple[str, str], key: str, what: str, remedy: str
) -> None:
    assert mistakes(example, changed) == [(key, what, remedy)]


def test_a_struct_that_sql_renames_is_followed_into_the_steps_below(example: Path) -> None:
    sql = known("SELECT o.amount AS paid, o, 'x' AS name, 'y' AS tier, 1 AS pieces FROM checked ORDER BY o.id LIMIT 5")
    found = mistakes(example, sql, (COLUMNS, COLUMNS.replace("o.amount.value", "paid.valeu")))
    assert found == [("steps.confirmed.xml.columns", "'paid' has no field 'valeu' in the XSD", "Did you mean 'value'?")]


OTHERS = "'x' AS name, 'y' AS tier, 1 AS pieces"
REMEDY = "It has customer, amount, line, id."
MADE = "named_struct('id', 1, 'customer', 'a', 'amount', named_struct('value', 1))"


@pytest.mark.parametrize(
    ("sql", "is_followed"),
    [
        (f"SELECT checked.*, exists(o.line, o -> o.whatever > 1) AS any, {OTHERS} FROM checked", True),
        (f"SELECT {MADE} AS o, {OTHERS}, body FROM checked ORDER BY o.more", False),
        (f"SELECT o.more AS more, k.o.more AS other, {OTHERS} FROM (SELECT {MADE} AS o FROM checked) k", False),
        (
            f"WITH c AS (SELECT {MADE} AS o FROM checked) SELECT c.o.more AS more, o.more AS other, {OTHERS} FROM c",
            False,
        ),
        (f"WITH read AS (SELECT {MADE} AS o FROM checked) SELECT k.o.more, {OTHERS} FROM read AS k", False),
        (f"SELECT a.*, (SELECT max(o.more) FROM customers) AS most, {OTHERS} FROM checked AS a", False),
        (f"SELECT a.*, o.more AS more, {OTHERS} FROM checked AS a LATERAL VIEW explode(o.line) o AS line", True),
        (f"SELECT a.*, l.article, {OTHERS} FROM checked AS a LATERAL VIEW explode(o.line) t AS l", True),
        (f"SELECT o, {OTHERS}, body FROM checked UNION ALL SELECT {MADE}, {OTHERS}, o.more FROM customers", False),
        (f"SELECT checked.* EXCEPT (o), {MADE} AS o, {OTHERS} FROM checked", False),
    ],
)
def test_names_that_may_mean_anything_else_are_not_reported(example: Path, sql: str, is_followed: bool) -> None:
    found = mistakes(example, known(sql), ("o.amount.value > ${large}", "o.more > 1"))
    assert found == [("routes[1].when", "'o' has no field 'more' in the XSD", REMEDY)] * is_followed


def test_what_a_python_step_makes_is_not_known(example: Path) -> None:
    (example.parent / "own_rows.py").write_text("def rows(some):\n    return some\n")
    python = '[steps.own]\ninput = "checked"\npython = "own_rows:rows"\n\n[steps.known]'
    other = SQL.replace("FROM checked m", "FROM own m").replace("m.o.customer", "m.o.cstomer")
    assert mistakes(example, ("[steps.known]", python), (SQL, other)) == []


def test_the_example_has_no_mistake(example: Path) -> None:
    assert mistakes(example) == []


def test_one_column_that_is_no_struct_must_be_a_field_of_the_element(example: Path) -> None:
    found = mistakes(example, (COLUMNS, 'columns = "o.id AS ordr"'))
    assert [(key, what) for key, what, _ in found] == [
        ("steps.confirmed.xml.columns", "the field of confirmation in the XSD 'ordr' does not exist"),
        ("steps.confirmed.xml.columns", "the XSD requires 'amount' in confirmation, but no column has this name"),
        ("steps.confirmed.xml.columns", "the XSD requires 'customer' in confirmation, but no column has this name"),
        ("steps.confirmed.xml.columns", "the XSD requires 'pieces' in confirmation, but no column has this name"),
    ]


def test_one_column_that_is_a_struct_has_the_fields_of_the_element_whatever_its_name(example: Path) -> None:
    written = ('element = "confirmation"', 'element = "order"')
    assert mistakes(example, written, (COLUMNS, 'columns = "o AS whole"')) == []
    found = mistakes(example, ("o AS whole", "o.amount AS whole"))
    assert ("steps.confirmed.xml.columns", "the field of order in the XSD 'value' does not exist") in [
        (key, what) for key, what, _ in found
    ]
    assert mistakes(example, ("o.amount AS whole", "named_struct('value', 1) AS whole")) == []


# --- columns ----------------------------------------------------------------------------------------------------------

OF_COLUMNS = """\
name = "p"
checkpoint = "checkpoint"
[sources.incoming]
broker = "http://127.0.0.1:8081"
options = { columns = "queue,partition,offset,delivered_at,body,action" }
[steps.read]
input = "incoming"
parse = { schema = "placed TIMESTAMP, id INT", column = "body", into = "o" }
[steps.placed]
sql = "SELECT m.*, m.o.placed AS placed, o.id FROM read m -- SELECT STATED FROM"
[steps.minutes]
sql = "SELECT window(placed, '1 minute').start, count(*) AS many FROM placed GROUP BY window(placed, '1 minute')"
state = { time = "PLACED", late = "2m" }
[steps.written]
input = "placed"
xml = { element = "x", columns = ["id", "o.placed AS at"], into = "written" }
[steps.checked]
input = "written"
validate.rules = { small = "id < 5 OR current_date > placed" }
validate.xsd = "order.xsd"
validate.column = "written"
[[routes]]
input = "checked"
to = "out"
when = "exists(array(id), x -> x > 5) AND id IN (SELECT any FROM read) OR read.id > 1"
[[routes]]
input = "checked"
to = "records"
[[routes]]
input = "minutes"
to = "table"
[sinks.out]
queue = "out"
body = "written"
key = "id"
order = ["placed", "offset"]
[sinks.records]
kafka = "k:9092"
topic = "t"
body = "written"
[sinks.table]
table = "minutes"
[dead_letters]
table = "dead"
"""
KNOWN = "queue, partition, offset, action, delivered_at, body, o, placed, id"
OF_CHECKED = (
    f"no column of the rows of 'checked' has the name 'idd'. Did you mean 'id'? The columns are {KNOWN}, written."
)
NAMED = [
    ("PLACED", "placd", "steps.minutes.state.time",
     f"no column of the rows of 'placed' has the name 'placd'. Did you mean 'placed'? The columns are {KNOWN}."),
    ("PLACED", "o.placed", "steps.minutes.state.time",
     "'o.placed' is a field, not a column of the rows of 'placed'. A field of a struct is no column. Select it in a "
     "step above: 'o.placed AS placed'."),
    ('column = "body"', 'column = "bdy"', "steps.read.parse.column",
     "no column of the rows of 'incoming' has the name 'bdy'. Did you mean 'body'? The columns are queue, partition, "
     "offset, action, delivered_at, body."),
    ('validate.column = "written"', 'validate.column = "writen"', "steps.checked.validate.column",
     "no column of the rows of 'written' has the name 'writen'. Did you mean 'written'? "
     f"The columns are {KNOWN}, written."),
    ("id < 5", "idd < 5", "steps.checked.validate.rules.small",
     OF_CHECKED.replace("'checked'", "'written'")),
    ('columns = ["id"', 'columns = ["idd"', "steps.written.xml.columns",
     f"no column of the rows of 'placed' has the name 'idd'. Did you mean 'id'? The columns are {KNOWN}."),
    ("exists(array(id)", "idd > 5 OR exists(array(id)", "routes[1].when", ""),
    ("exists(array(id), x -> x > 5) AND id IN (SELECT any FROM read) OR read.id > 1", "exists(array(idd), x -> x > 5)",
     "routes[1].when", OF_CHECKED),
    ('key = "id"', 'key = "idd"', "sinks.out.key", OF_CHECKED),
    ('["placed"', '["upper(idd)"', "sinks.out.order", OF_CHECKED),
    ('topic = "t"', "topic = \"t\"\nmessage_id = \"concat('a', idd)\"", "sinks.records.message_id", OF_CHECKED),
    ('topic = "t"', 'topic = "t"\naction = "idd"', "sinks.records.action", OF_CHECKED),
    ("offset,delivered_at,body,action", "offset,delivered_at,body", "sinks.out.action",
     f"no column of the rows of 'checked' has the name 'action'. Did you mean 'partition'? "
     f"The columns are {KNOWN.replace(' action,', '')}, written."),
]  # fmt: skip
"""A change of the pipeline, the key that is then wrong, and what is told; "": nothing, because of the subquery."""


@pytest.mark.parametrize(("before", "after", "key", "told"), NAMED)
def test_a_key_that_names_a_missing_column_is_reported_with_the_known_columns(
    example: Path, before: str, after: str, key: str, told: str
) -> None:
    assert OF_COLUMNS.count(before) >= 1
    example.write_text(OF_COLUMNS.replace(before, after, 1))
    assert [f"{one[0]}: {one[1]}. {one[2]}" for one in mistakes(example)] == ([f"{key}: {told}"] if told else [])


UNKNOWN = "SELECT m.*, m.o.placed AS placed, o.id FROM read m -- SELECT STATED FROM"
TIME = "steps.minutes.state.time"


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT placed, o FROM read", [TIME]),
        ("SELECT read.* FROM read JOIN incoming", [TIME]),
        ("SELECT placed, o.id, explode(o.line) FROM read", []),
        ("SELECT *, 1 AS id FROM read LATERAL VIEW explode(o.line) o AS line", []),
        ("SELECT * EXCEPT (o) FROM read", []),
        ("SELECT * FROM (SELECT o.* FROM read)", []),
        ("SELECT o.placed FROM read UNION SELECT 1", []),
        ("WITH c AS (SELECT o FROM read) SELECT * FROM c", []),
        ("SELECT * FROM unknown", []),
        ("SELECT o.* FROM read", []),
    ],
)
def test_rows_of_which_only_spark_knows_the_columns_are_not_checked(example: Path, sql: str, found: list[str]) -> None:
    text = OF_COLUMNS.replace(UNKNOWN, sql).replace("PLACED", "placd")
    example.write_text(text[: text.index("[steps.written]")] + SHORT)
    assert [key for key, *_ in mistakes(example) if key != "steps.placed.sql"] == found


SHORT = """[[routes]]
input = "minutes"
to = "table"
[sinks.table]
table = "minutes"
[dead_letters]
table = "dead"
"""


@pytest.mark.parametrize(
    ("state", "is_wrong"),
    [("{}", True), ('{ output = "complete" }', False), ('{ output = "complete", time = "placd" }', True)],
)
def test_only_a_state_that_keeps_all_results_needs_no_time(example: Path, state: str, is_wrong: bool) -> None:
    text = OF_COLUMNS.replace(UNKNOWN, "SELECT o FROM read").replace('{ time = "PLACED", late = "2m" }', state)
    example.write_text(text[: text.index("[steps.written]")] + SHORT)
    assert [key for key, *_ in mistakes(example)] == [TIME] * is_wrong


RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""What Spark's Kafka source returns."""


def test_the_columns_of_a_kafka_source_are_those_of_its_rows(spark: SparkSession) -> None:
    rows = as_rows(spark.createDataFrame([], RECORDS))
    assert list(columns.KAFKA_COLUMNS) == rows.columns
    kinds = {one.name: one.dataType.typeName() for one in rows.schema}
    assert {name: kind for name, kind, _ in columns.KAFKA_TABLE} == {
        name: kinds[name] for name, *_ in columns.KAFKA_TABLE
    }
