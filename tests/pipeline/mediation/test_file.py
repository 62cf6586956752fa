"""Pipelines in files: whatever is wrong in them is said at once, with line, key and mend.

Covers pipeline/mediation/definition/checks.py, pipeline/mediation/definition/file.py,
pipeline/mediation/definition/graph.py and pipeline/mediation/definition/plan.py.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import certifi
import pytest
from pyspark import SparkContext

from holdfast.config.lines import KeyLines, KeyPath
from holdfast.config.tables import kind_of
from holdfast.exceptions import ConfigurationError, ConfigurationMistakes, Mistake
from holdfast.pipeline.mediation.definition import plan
from holdfast.pipeline.mediation.definition.checks import FIELDS, source_options
from holdfast.pipeline.mediation.definition.file import Pipeline, plan_of, read_pipeline
from holdfast.pipeline.mediation.definition.graph import Graph
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, StepPlan
from holdfast.pipeline.mediation.definition.sql_syntax import _texts
from holdfast.pipeline.mediation.execution.sinks import absolute, sink_options
from holdfast.pipeline.reader.options import ReadOptions

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation"

TOP = """\
name = "orders"
checkpoint = "checkpoint"
[dead_letters]
table = "dead"
[sources.orders]
broker = "http://127.0.0.1:8081"
[sinks.out]
queue = "out"
[[routes]]
input = "orders"
to = "out"
"""
"""Eleven lines that are right; mistakes stand below."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "o.xsd").write_bytes((EXAMPLE / "order.xsd").read_bytes())
    (tmp_path / "t.csv").write_text("id\n1\n")
    (tmp_path / "own.py").write_text("def same(rows):\n    return rows\nvalue = 1\n")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty.token").write_text("\n")
    return tmp_path


def saved(here: Path, text: str) -> Path:
    file = here / "orders.toml"
    file.write_text(text)
    return file


def mistakes(here: Path, text: str) -> list[Mistake]:
    with pytest.raises(ConfigurationMistakes) as caught:
        read_pipeline(saved(here, text))
    for one in caught.value.mistakes:
        assert str(one) in str(caught.value)
        assert one.remedy[0].isupper() or one.remedy[0] in "\"'$"
    return list(caught.value.mistakes)


def step(keys: str) -> str:
    """A step below the top, that a route of its own leads on."""
    return TOP + f'[[routes]]\ninput = "one"\nto = "out"\n[steps.one]\n{keys}\n'


INPUT = 'input = "orders"\n'


@pytest.mark.parametrize(
    ("text", "line", "key", "what", "remedy"),
    [
        (TOP + "[sinsk.x]\n", 12, "sinsk", "the key 'sinsk' does not exist here", "Did you mean 'sinks'?"),
        (
            TOP.replace("[sources.orders]", "[sources.1st]"),
            5,
            "sources.1st",
            "is not a valid name for rows",
            "SQL uses this",
        ),
        (TOP.replace("8081", "8081/?token=x"), 6, "sources.orders.broker", "contains a password", "Remove it"),
        (TOP.replace("http:", "ftp:"), 6, "sources.orders.broker", "is not an http", "Example"),
        (TOP.replace("8081", "8081, b:8081"), 6, "sources.orders.broker", '"b:8081" is not an http', "Example"),
        (
            TOP + '[sources.orders.options]\nmaxRowsPerBach = "1"\n',
            13,
            "sources.orders.options.maxRowsPerBach",
            "the wsrm source has no option maxRowsPerBach",
            "Did you mean 'maxRowsPerBatch'?",
        ),
        (TOP.replace('queue = "out"\n', ""), 7, "sinks.out", "it has no destination for its rows", "Set one of queue"),
        (
            TOP.replace('queue = "out"', 'queue = "out"\nconsole = 5'),
            7,
            "sinks.out",
            "it has both queue and console",
            "Set one of",
        ),
        (
            TOP.replace('queue = "out"', 'table = "out"\nkey = "x"'),
            9,
            "sinks.out.key",
            "only messages",
            "Remove it.",
        ),
        (
            TOP.replace('to = "out"', 'to = "uot"'),
            11,
            "routes[1].to",
            "the sink 'uot' does not exist",
            "Did you mean 'out'?",
        ),
        (
            TOP.replace('input = "orders"', 'input = "odrers"'),
            10,
            "routes[1].input",
            "the source, table or step 'odrers' does not exist",
            "Did you mean 'orders'?",
        ),
        (
            TOP + ('[[routes]]\ninput = "orders"\nto = "out"\n'),
            12,
            "routes[2]",
            "no row reaches this route:",
            "Add a condition to that route,",
        ),
        (TOP + "[sinks.more]\nqueue = 'more'\n", 12, "sinks.more", "no route leads to it", "Add [[routes]]"),
        (
            TOP.replace('[dead_letters]\ntable = "dead"\n', "") + 'when = "true"\n',
            1,
            "",
            "rows of 'orders' that match no route have no destination",
            "Add a last route",
        ),
        (TOP + '[tables.t]\npath = "t.cvs"\n', 13, "tables.t.path", "the format of the table is", "Set format"),
        (
            TOP + '[tables.t]\npath = "u.csv"\n',
            13,
            "tables.t.path",
            "does not exist",
            "Relative paths start",
        ),
        (
            TOP + '[tables.t]\npath = "t.csv"\nformat = "delta"\nschema = "a INT"\n',
            12,
            "tables.t",
            "a Delta table has its own schema",
            "Remove both keys.",
        ),
        (
            TOP + '[tables.orders]\npath = "t.csv"\n',
            12,
            "tables.orders",
            "one of the sources has the same name",
            "Give each",
        ),
        (
            TOP + f"[steps.one]\n{INPUT}python = 'own:same'\n",
            12,
            "steps.one",
            "its rows are not used",
            "Add [[routes]]",
        ),
        (step(""), 15, "steps.one", "it has no transformation", "Set one of sql, python, parse"),
        (step('sql = "SELECT 1"\npython = "own:same"'), 15, "steps.one", "it has both sql and python", "Set one"),
        (step('python = "own:same"'), 15, "steps.one", "'input' is missing", 'Write input = "orders".'),
        (
            step('input = "two"\npython = "own:same"\n[steps.two]\nsql = "SELECT * FROM one"'),
            16,
            "steps.one.input",
            "'two' does not come before it",
            "A step uses only what comes before it",
        ),
        (
            step('input = "ordres"\npython = "own:same"'),
            16,
            "steps.one.input",
            "the source, table or step",
            "Did you mean 'orders'?",
        ),
        (step(INPUT + 'sql = "SELECT * FROM orders"'), 16, "steps.one.input", "SQL names its", "Remove input."),
        (
            step(INPUT + 'python = "own"'),
            17,
            "steps.one.python",
            "is not the name of a function",
            'Write "module:function".',
        ),
        (step(INPUT + 'python = "own:other"'), 17, "steps.one.python", "own has no function other", "Define it there"),
        (step(INPUT + 'python = "own:value"'), 17, "steps.one.python", "own has no function value", "Define it there"),
        (
            step(INPUT + 'python = "broken:f"'),
            17,
            "steps.one.python",
            "ModuleNotFoundError",
            "Modules are imported from",
        ),
        (step(INPUT + 'python = "own:same"\nstate = {}'), 18, "steps.one.state", "only SQL has state", "Remove it."),
        (
            step('sql = "SELECT 1 FROM orders"\nkeep = true'),
            17,
            "steps.one.keep",
            "SQL reports no problems",
            "Remove it:",
        ),
        (step(INPUT + "parse = {}"), 17, "steps.one.parse", "does not define its fields", "Set one of"),
        (step(INPUT + 'parse.into = "o"'), 17, "steps.one.parse", "does not define its fields", "Set one of xsd"),
        (
            step(INPUT + 'parse = {infer = 5, xsd = "o.xsd"}'),
            17,
            "steps.one.parse",
            "both xsd and infer",
            "Set one",
        ),
        (step(INPUT + 'parse.xsd = "p.xsd"'), 17, "steps.one.parse.xsd", "cannot be read", "Relative paths start"),
        (step(INPUT + 'parse.xsd = "t.csv"'), 17, "steps.one.parse.xsd", "is not XML", "Use an XSD."),
        (step(INPUT + 'parse.xsd = "o.xsd"'), 17, "steps.one.parse.element", "declares 2 elements", "Name one of them"),
        (
            step(INPUT + 'parse = {xsd = "o.xsd", element = "oder"}'),
            17,
            "steps.one.parse.element",
            "declares no element 'oder'",
            "Did you mean 'order'?",
        ),
        (
            step(INPUT + 'parse.schema_file = "bad.json"'),
            17,
            "steps.one.parse.schema_file",
            "contains no schema",
            "Write DDL",
        ),
        (
            step(INPUT + 'parse = {schema = "a INT", lenient = "emtpy"}'),
            17,
            "steps.one.parse.lenient",
            "is not a valid value",
            "Use one of",
        ),
        (
            step(INPUT + 'parse = {schema = "a INT", max_elements = 0}'),
            17,
            "steps.one.parse.max_elements",
            "it cannot be 0",
            "a whole number of at least 1",
        ),
        (
            step(INPUT + "validate = {column = 'body'}"),
            17,
            "steps.one.validate",
            "it has nothing to validate with",
            "Set rules",
        ),
        (
            step(INPUT + "validate = {rules = {a = 'true'}, element = 'x'}"),
            17,
            "steps.one.validate.element",
            "only an XSD defines elements",
            "Remove it, or",
        ),
        (
            step(INPUT + 'xml = {columns = "a"}'),
            17,
            "steps.one.xml",
            "'element' is missing",
            "Write element = … there.",
        ),
        (
            step(INPUT + 'xml = {element = "no", xsd = "o.xsd"}'),
            17,
            "steps.one.xml.element",
            "no element 'no'",
            "Name one",
        ),
        (
            step(INPUT + 'xml = {element = "order", xsd = "o.xsd", columns = ["a.id", "x AS amuont"]}'),
            17,
            "steps.one.xml.columns",
            "the field of order in the XSD 'amuont' does not exist",
            "Did you mean 'amount'?",
        ),
        (
            step(INPUT + 'xml = {element = "order", xsd = "o.xsd", columns = ["a.id", "b.customer", "l AS line"]}'),
            17,
            "steps.one.xml.columns",
            "the XSD requires 'amount' in order, but no column has this name",
            'Add such a column: "… AS amount".',
        ),
        (
            step(INPUT + 'xml = {element = "order", zone = "Berlin"}'),
            17,
            "steps.one.xml.zone",
            "the time zone 'Berlin' does not exist",
            "Give its name",
        ),
        (
            step('sql = "SELECT * FROM orders JOIN t"\nstate = {}\n[tables.t]\npath = "t.csv"\nrefresh = "10m"'),
            20,
            "tables.t.refresh",
            "the step 'one' has state, and reads its tables only once",
            "Remove refresh,",
        ),
        (
            step('sql = "SELECT * FROM orders JOIN t"\n[tables.t]\npath = "t.csv"\nrefresh = "often"'),
            19,
            "tables.t.refresh",
            '"often" is not a duration',
            "with its unit",
        ),
        (
            step('sql = "SELECT * FROM orders"\nstate = {late = "-1d"}'),
            17,
            "steps.one.state.late",
            '"-1d" is negative',
            "without a sign",
        ),
        (
            TOP.replace('8081"', '8081"\ntoken_file = "empty.token"\noptions = {maxRowsPerBatch = "7"}'),
            7,
            "sources.orders.token_file",
            "empty.token contains no token",
            "Create one",
        ),
        (
            TOP.replace('queue = "out"', 'queue = "out"\ntoken_file = "no.token"'),
            9,
            "sinks.out.token_file",
            "no.token",
            "",
        ),
        (
            step('input = ["orders", "t"]\nvalidate.rules.a = "true"\n[tables.t]\npath = "t.csv"'),
            16,
            "steps.one.input",
            "it needs exactly one",
            "Join the inputs first",
        ),
        (
            step('sql = "SELECT * FROM t"\n[tables.t]\npath = "t.csv"'),
            7,
            "sinks.out",
            "rows of two queries",
            "Give each",
        ),
        (
            TOP.replace('queue = "out"', 'table = "out"') + '[steps.one]\nsql = "SELECT 1 FROM orders"\n[[routes]]\n'
            'input = "one"\nto = "out"\n',
            7,
            "sinks.out",
            "two kinds of rows go there",
            "Give each",
        ),
        (
            step('sql = "SELECT * FROM orders JOIN more"\n[sources.more]\nbroker = "http://h:1"'),
            15,
            "steps.one",
            "it combines two queues",
            "Land one of them",
        ),
        (
            step(
                'sql = "SELECT * FROM orders"\nstate = {}\n[steps.two]\nsql = "SELECT * FROM one"\nstate = {}\n'
                '[[routes]]\ninput = "two"\nto = "other"\n[sinks.other]\nqueue = "other"'
            ),
            18,
            "steps.two",
            "it passes through two steps with state, one and two",
            "Only one is possible:",
        ),
        (
            step('sql = "SELECT * FROM orders WHERE a > ${lmit}"\n[parameters]\nlimit = "5"'),
            16,
            "steps.one.sql",
            "the parameter 'lmit' does not exist",
            "Did you mean ${limit}?",
        ),
        (TOP.replace('name = "orders"\n', ""), 1, "", "'name' is missing", "Write name = … there."),
        (
            TOP.replace('queue = "out"', 'queue = "out"\noptions.rebnd = true'),
            9,
            "sinks.out.options.rebnd",
            "the wsrm sink has no option rebnd",
            "Did you mean 'rebind'?",
        ),
        (
            TOP + '[sources.orders.options]\ntoken = "secret"\n',
            13,
            "sources.orders.options.token",
            "the file contains a token",
            "This file must not contain secrets: name a",
        ),
        (
            TOP.replace('queue = "out"', 'queue = "out"\nformat = "delta"'),
            9,
            "sinks.out.format",
            "only a table has a format",
            "Remove it.",
        ),
        (TOP + "[parameters]\na = [1]\n", 13, "parameters.a", "a list is not text", "Write text"),
    ],
)
def test_a_mistake_is_told_with_its_line_key_and_mend(
    here: Path, text: str, line: int, key: str, what: str, remedy: str
) -> None:
    found = mistakes(here, text)
    told = [one for one in found if one.key == key and what in one.what]
    assert told, found
    assert remedy in told[0].remedy, told
    assert told[0].line == line, told


RICH = """
name = "rich"
checkpoint = "checkpoint"
interval = "5s"
[sources.orders]
broker = "http://127.0.0.1:8081"
queue = ["orders", "more"]
options = { caFile = "ca.pem", startingOffsets = "latest" }
[sources.topic]
kafka = "127.0.0.1:9092"
topic = "t"
options = { minPartitions = "4" }
[tables.ways]
path = "t.csv"
schema = "id INT"
refresh = "5m"
[steps.read]
input = "orders"
parse = { schema = "id INT", column = "body", into = "o", lenient = ["empty", "zones"] }
[steps.checked]
input = "read"
validate.rules = { "no id" = "o.id IS NOT NULL" }
[steps.same]
input = ["checked"]
python = "own:same"
[steps.counted]
sql = "SELECT window(delivered_at, '1 minute') w, count(*) many FROM read GROUP BY 1"
state = { time = "delivered_at", late = "10m", output = "append" }
[steps.written]
input = "same"
xml = { element = "{urn:o}order", columns = ["o.id AS id"], into = "body", zone = "Europe/Berlin" }
[sinks.out]
queue = "out"
action = "'urn:x'"
key = "queue"
order = ["offset", "body"]
[sinks.records]
kafka = "127.0.0.1:9092"
topic = "out"
headers = "map('a', key)"
[sinks.results]
table = "results"
format = "delta"
[[routes]]
input = "written"
when = "partition = 1"
to = ["out"]
[[routes]]
input = "topic"
to = "records"
[[routes]]
input = "counted"
to = "results"
[dead_letters]
table = "dead"
"""


def texts_in(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts_in(one, (*path, key))


@pytest.mark.parametrize("text", [RICH, (EXAMPLE / "orders.toml").read_text()], ids=["rich", "example"])
def test_a_parameter_that_does_not_exist_is_one_mistake_wherever_it_is(here: Path, text: str) -> None:
    (here / "customers.csv").write_text("id\n")
    shutil.copy(here / "o.xsd", here / "order.xsd")
    (here / "ca.pem").write_text(Path(certifi.where()).read_text())
    data = tomllib.loads(text)
    plan_of(data, "p", KeyLines(text), here, {})
    for path in texts_in({name: value for name, value in data.items() if name != "parameters"}):
        changed = copy.deepcopy(data)
        place: Any = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] += "${nope}"
        parsed: list[str] = []
        with pytest.raises(ConfigurationMistakes) as caught:
            plan_of(
                changed, "p", KeyLines(text), here, {}, lambda said, to=parsed: to.extend(map(str, _texts(said))) or ()
            )
        (one,) = caught.value.mistakes
        assert one.what == "the parameter 'nope' does not exist", path
        assert not any("nope" in sql for sql in parsed), path


@pytest.mark.parametrize(
    "columns",
    [
        '["a.id", "x AS customer", "y AS amount", "z AS line"]',
        '["a.id", "m.*"]',  # which may have the others
        '["a.id", "upper(b)"]',
        '"o"',  # which may be a struct
        '"o.id AS o"',
    ],
)
def test_columns_that_may_be_all_that_an_element_needs_are_no_mistake(here: Path, columns: str) -> None:
    text = step(INPUT + f'xml = {{element = "order", xsd = "o.xsd", columns = {columns}}}')
    assert read_pipeline(saved(here, text)).steps


def test_a_required_field_with_a_misnamed_column_is_reported_once(here: Path) -> None:
    columns = '["a.id", "x AS customer", "y AS amuont", "z AS line"]'
    (one,) = mistakes(here, step(INPUT + f'xml = {{element = "order", xsd = "o.xsd", columns = {columns}}}'))
    assert one.remedy == "Did you mean 'amount'?"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (TOP.replace("http:", "ftp:") + "[sources.orders.options]\ntoken = 'x'\n",
         ["sources.orders.broker", "sources.orders.options.token"]),
        (TOP + 'when = 5\n[[routes]]\ninput = "odrers"\nto = 5\n',
         ["routes[1].when", "routes[2].input", "routes[2].to"]),
        (step('sql = 5\ninput = "orders"\nstate.late = "x"'),
         ["steps.one.sql", "steps.one.input", "steps.one.state.late"]),
        (step('input = "odrers"\nkeep = 5\n[steps.one.parse]\nxsd = "no.xsd"\nschema = "a INT"'),
         ["steps.one.input", "steps.one.keep", "steps.one.parse", "steps.one.parse.xsd"]),
        (step(INPUT + 'state = {}\n[steps.one.xml]\nelement = 5\nzone = "Mars"'),
         ["steps.one.state", "steps.one.xml.element", "steps.one.xml.zone"]),
        (TOP.replace('queue = "out"', 'queue = ""\nformat = "delta"\ntopic = "t"'),
         ["sinks.out.queue", "sinks.out.format", "sinks.out.topic"]),
        (TOP + "steps.one = 5\n", ["routes[1].steps"]),
    ],
)  # fmt: skip
def test_an_unreadable_value_hides_no_other_mistake(here: Path, text: str, keys: list[str]) -> None:
    assert sorted(one.key for one in mistakes(here, text)) == sorted(keys)


def test_every_mistake_is_told_at_once_in_the_order_of_lines(here: Path) -> None:
    text = step(INPUT + 'python = "own:other"').replace("8081", "8081/?token=x").replace('to = "out"', 'to = "uot"')
    assert [one.line for one in mistakes(here, text)] == [6, 11, 14, 17]


def test_the_example_has_no_mistake_and_is_read_once_for_all_sinks() -> None:
    told = read_pipeline(EXAMPLE / "orders.toml", {"work": "somewhere"})
    assert told.checkpoint == str(EXAMPLE / "somewhere/orders.checkpoint")
    (query,) = Graph(told).queries()
    assert [one.name for one in query.steps] == ["read", "checked", "known", "confirmed"]
    assert [one.name for one in query.sinks] == ["first", "others"]


@pytest.mark.parametrize("key", FIELDS)
@pytest.mark.parametrize("text", ["urn:x", "urn:orders/Submit", "http://a.example/b?c=d#e", "mailto:a@b.example"])
def test_an_iri_without_single_quotes_is_a_mistake_of_each_key_with_sql(here: Path, key: str, text: str) -> None:
    (one,) = mistakes(here, TOP.replace('queue = "out"', f'queue = "out"\n{key} = "{text}"'))
    assert (one.line, one.key) == (9, f"sinks.out.{key}")
    assert one.remedy == f"Add single quotes: {key} = \"'{text}'\"."
    read_pipeline(saved(here, TOP.replace('queue = "out"', f'queue = "out"\n{key} = "\'{text}\'"')))


_NAMES = re.compile(r'(?<=input = ")\w+|(?<=\nto = ")\w+|(?<=FROM )\w+|(?<=JOIN )\w+')
_ORDERS = (EXAMPLE / "orders.toml").read_text()


@pytest.mark.parametrize("found", list(_NAMES.finditer(_ORDERS)), ids=lambda found: f"{found[0]}-{found.start()}")
def test_a_misspelt_name_is_one_mistake_with_the_nearest_name(here: Path, found: re.Match[str]) -> None:
    (here / "customers.csv").write_text("id,name,tier\n")
    (here / "order.xsd").write_bytes((EXAMPLE / "order.xsd").read_bytes())
    wrong = found[0] + found[0][-1] + "x"
    (one,) = mistakes(here, _ORDERS[: found.start()] + wrong + _ORDERS[found.end() :])
    assert f"'{wrong}' does not exist" in one.what
    assert one.remedy == f"Did you mean '{found[0]}'?"


def test_each_wrong_option_is_a_mistake_of_its_own_with_its_key(here: Path) -> None:
    text = (
        TOP + '[sources.orders.options]\nmaxRowPerBatch = "7"\nwaitSeconds = "x"\n[sinks.out.options]\nrebnd = "true"\n'
    )
    found = mistakes(here, text + 'batchId = "x"\n')
    assert [one.key for one in found] == [
        "sources.orders.options.maxRowPerBatch",
        "sources.orders.options.waitSeconds",
        "sinks.out.options.rebnd",
        "sinks.out.options.batchId",
    ]
    assert not any(re.search(r"\. ?\.$|\. *$ ", str(one)) for one in found)


def test_a_misspelt_name_hides_no_independent_mistake(here: Path) -> None:
    text = TOP + '[steps.s]\nsql = "SELECT * FROM ordres"\n[sinks.unused]\nqueue = "q"\n'
    assert [one.key for one in mistakes(here, text)] == ["steps.s", "steps.s.sql", "sinks.unused"]


def test_a_parameter_that_there_is_not_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="has no parameter 'larg'") as caught:
        read_pipeline(EXAMPLE / "orders.toml", {"larg": "5"})
    assert caught.value.remedy == "Did you mean 'large'?"
    routes = read_pipeline(EXAMPLE / "orders.toml", {"large": "5"}).routes
    assert routes[0].when == "tier = 'gold' OR o.amount.value > 5"


@pytest.mark.parametrize("place", ["file:/data/dead", "file:///data/dead", "s3://bucket/dead", "dbfs:/dead", "dead"])
def test_a_path_that_names_its_file_system_is_not_relative_to_the_file(here: Path, place: str) -> None:
    plan = read_pipeline(saved(here, TOP.replace('table = "dead"', f'table = "{place}"')))
    whole = str(here / "dead") if place == "dead" else place
    assert plan.dead_letters.table == whole
    assert absolute(plan.dead_letters.table) == whole


def test_each_key_has_a_kind_or_is_a_table() -> None:
    tables = [getattr(plan, name) for name in vars(plan) if name.endswith("Plan")]
    assert PipelinePlan in tables
    for table in tables:
        for name in get_type_hints(table):
            kind = kind_of(table, name)
            assert kind is None or kind.told


IN_PYTHON = """\
from holdfast.pipeline.mediation import parse_xml

def read(orders):
    return parse_xml(orders, schema="id INT")

def pipeline(p):
    p.settings(name="orders", checkpoint="checkpoint")
    p.parameter("broker", "http://127.0.0.1:8081")
    orders = p.source("orders", broker="${broker}")
    read_ = p.step("read_", read, orders)
    large = p.step("large", sql="SELECT * FROM read_ WHERE parsed.id > 5")
    p.route(large, "out")
    p.sink("out", queue="out")
    p.dead_letters(table="dead")
"""


def test_a_pipeline_in_python_is_the_same_plan(here: Path) -> None:
    file = here / "orders.py"
    file.write_text(IN_PYTHON)
    told = read_pipeline(file, {"broker": "http://127.0.0.1:9"})
    assert told.sources[0].broker == "http://127.0.0.1:9"
    assert told.checkpoint == str(here / "checkpoint")
    assert [(one.name, callable(one.python), one.sql) for one in told.steps] == [
        ("read_", True, ""),
        ("large", False, "SELECT * FROM read_ WHERE parsed.id > 5"),
    ]
    assert told.routes[0].to == ("out",)


def test_a_mistake_in_python_is_told_with_the_line_of_its_call(here: Path) -> None:
    file = here / "orders.py"
    file.write_text(IN_PYTHON.replace('queue="out"', 'quue="out"').replace("read, orders", 'read, "odrers"'))
    with pytest.raises(ConfigurationMistakes) as caught:
        read_pipeline(file)
    assert [(one.line, one.key) for one in caught.value.mistakes][:2] == [
        (10, "steps.read_.input"),
        (13, "sinks.out.quue"),
    ]
    assert caught.value.mistakes[0].remedy == "Did you mean 'orders'?"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def pipelin(p): ...", "defines no pipeline"),
        ("raise ValueError('no')", "failed: ValueError: no"),
        ("def", "Syntax"),
    ],
)
def test_a_python_file_without_a_pipeline_is_refused(here: Path, text: str, what: str) -> None:
    (here / "orders.py").write_text(text)
    with pytest.raises(ConfigurationError, match=what):
        read_pipeline(here / "orders.py")


def test_a_program_can_make_a_plan_without_a_file() -> None:
    told = Pipeline()
    told.settings(name="x", checkpoint="c")
    told.source("orders", broker="http://127.0.0.1:8081")
    told.sink("show", console=5)
    told.route("orders", "show")
    assert told.plan().sinks[0].console == 5


def test_a_broker_may_be_several_nodes_of_a_cluster(here: Path) -> None:
    nodes = "http://a:8081/, https://b:8081,http://a:8081"
    text = TOP.replace("http://127.0.0.1:8081", nodes).replace('queue = "out"', f'queue = "out"\nbroker = "{nodes}"')
    plan = read_pipeline(saved(here, text))
    assert {plan.sources[0].broker, plan.sinks[0].broker} == {"http://a:8081,https://b:8081"}
    assert ReadOptions.parse(source_options(plan.sources[0])).broker == plan.sources[0].broker


# --- what is made of what ---------------------------------------------------------------------------------------------


def queries(here: Path, text: str) -> dict[str, tuple[list[str], list[str], list[str]]]:
    def names(steps: tuple[StepPlan, ...]) -> list[str]:
        return [one.name for one in steps]

    found = Graph(read_pipeline(saved(here, text))).queries()
    return {one.name: (names(one.stream), names(one.steps), [sink.name for sink in one.sinks]) for one in found}


STATEFUL = (
    TOP.replace('input = "orders"', 'input = "read"')
    + """\
[steps.read]
input = "orders"
parse.schema = "id INT"
[steps.hourly]
sql = "SELECT window(delivered_at, '1 hour') AS hour, count(*) AS many FROM read -- not orders"
state.late = "5m"
[steps.named]
sql = "SELECT hour.start, many, 'read' AS what FROM hourly"
[sinks.hours]
table = "hours"
[[routes]]
input = "named"
to = "hours"
"""
)


def test_a_stateful_step_is_its_own_query_and_dead_letters_stay_with_the_first(here: Path) -> None:
    assert queries(here, STATEFUL) == {
        "orders": ([], ["read"], ["out"]),
        "hourly": (["read", "hourly"], ["named"], ["hours"]),
    }
    alone = STATEFUL.replace('[[routes]]\ninput = "read"\nto = "out"\n', "").replace('[sinks.out]\nqueue = "out"\n', "")
    assert queries(here, alone) == {
        "orders": ([], ["read"], []),
        "hourly": (["read", "hourly"], ["named"], ["hours"]),
    }


def test_results_that_are_given_again_replace_a_delta_table_and_are_not_sent(here: Path) -> None:
    text = STATEFUL.replace('state.late = "5m"', 'state.output = "complete"')
    for table in ('table = "hours"', 'table = "hours"\nformat = "delta"'):
        assert queries(here, text.replace('table = "hours"', table)) == queries(here, STATEFUL)
    (one,) = mistakes(here, text.replace('table = "hours"', 'table = "hours"\nformat = "parquet"'))
    told = "each batch replaces all results, and Holdfast only appends to a Parquet table"
    assert (one.key, one.what) == ("sinks.hours.format", told)
    (one,) = mistakes(here, text.replace('table = "hours"', 'queue = "h"'))
    assert (one.key, one.what) == ("sinks.hours", "each batch would send all results again")


def test_the_pipeline_in_python_of_the_reference_has_no_mistake(tmp_path: Path) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "reference" / "pipeline-file.md").read_text()
    (text,) = re.findall(r"```python\n(.*?def pipeline\(p\).*?)```", page, re.DOTALL)
    (tmp_path / "orders.py").write_text(text)
    told = read_pipeline(tmp_path / "orders.py")
    assert [one.name for one in told.steps] == ["read_", "large"]


OTHER_PAGES = {
    f"{page.name}-{number}": block
    for page in sorted((EXAMPLE.parents[1] / "docs").rglob("*.md"))
    if page.name != "pipeline-file.md"  # it shows what needs files beside it
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    if "[sources." in block
}


@pytest.mark.parametrize("name", OTHER_PAGES)
def test_every_pipeline_that_a_guide_shows_has_no_mistake(name: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(OTHER_PAGES[name])
    assert read_pipeline(tmp_path / "pipeline.toml").sources


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = {
    "PipelinePlan.interval": "interval = {}\n" + TOP,
    "TablePlan.refresh": TOP + '[tables.t]\npath = "t.csv"\nrefresh = {}\n',
    "ParsePlan.infer": step(INPUT + "parse.infer = {}"),
    "ParsePlan.max_elements": step(INPUT + 'parse.xsd = "o.xsd"\nparse.element = "order"\nparse.max_elements = {}'),
    "StatePlan.late": step('sql = "SELECT * FROM orders"\nstate.late = {}'),
    "SinkPlan.console": TOP.replace('queue = "out"', "console = {}"),
}
HOSTILE = [
    "nan", "inf", "-inf", "-1", "-0.5", "1e400", "-1e400", "-" + "9" * 400, '""', '" "', '"x"', '"nan"', '"nans"',
    '"1e400s"', '"-1s"', f'"{"9" * 400}s"', '"999999999999999999w"', "[]", "{}", "true",
]  # fmt: skip


def test_every_number_of_a_pipeline_is_tried() -> None:
    found = {
        f"{cls.__name__}.{field.name}"
        for cls in vars(plan).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == plan.__name__
        for field in dataclasses.fields(cls)
        if re.search(r"\b(Seconds|int|float)\b", str(field.type))
    }
    assert found == NUMBERS.keys()


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: value[:20])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_is_a_mistake_in_its_line(here: Path, name: str, value: str) -> None:
    text = NUMBERS[name]
    line = text[: text.index("= {}\n")].count("\n") + 1
    assert line in [one.line for one in mistakes(here, text.replace("= {}\n", f"= {value}\n"))]


SHARED = """name = "n"
checkpoint = "c"

[sources.orders]
broker = "https://h:1"
options = {CaFile = "ca.pem", proxy = "http://p:1", startingOffsets = "latest"}

[[routes]]
input = "orders"
to = ["same", "own", "other"]

[sinks.same]
queue = "a"

[sinks.own]
queue = "a"
options = {cafile = "own.pem"}

[sinks.other]
queue = "a"
broker = "https://other:1"
"""


def test_a_sink_trusts_what_its_source_trusts_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SHARED)
    for name in ("ca.pem", "own.pem"):
        shutil.copy(certifi.where(), tmp_path / name)
    read = read_pipeline(tmp_path / "p.toml")
    (source,) = read.sources
    assert source.options == {"CaFile": str(tmp_path / "ca.pem"), "proxy": "http://p:1", "startingOffsets": "latest"}
    made = [{name.lower(): one for name, one in sink_options(sink, read, source).items()} for sink in read.sinks]
    assert [one.get("cafile") for one in made] == [str(tmp_path / "ca.pem"), str(tmp_path / "own.pem"), None]
    assert [one.get("proxy") for one in made] == ["http://p:1", "http://p:1", None]
    assert not any("startingoffsets" in one for one in made)


def test_a_module_that_needs_spark_is_refused_with_what_to_write_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # an earlier test may have started Spark
    (tmp_path / "needs_spark.py").write_text(
        'from pyspark.sql import functions as F\n\n@F.udf("string")\ndef f(one):\n    return one\n'
    )
    (tmp_path / "p.toml").write_text(
        SHARED.replace('input = "orders"', 'input = "s"') + '[steps.s]\ninput = "orders"\npython = "needs_spark:f"\n'
    )
    with pytest.raises(ConfigurationMistakes, match=r"SESSION_OR_CONTEXT_NOT_EXISTS[\s\S]*StringType\(\)"):
        read_pipeline(tmp_path / "p.toml")
