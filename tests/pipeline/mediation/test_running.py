"""Pipelines on a real Spark, against a small server: each row in exactly the right places, whatever happens.

Covers pipeline/mediation/execution/frames.py, pipeline/mediation/execution/outputs.py,
pipeline/mediation/execution/run.py, pipeline/mediation/execution/samples.py and pipeline/mediation/execution/sinks.py.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from fake_server import FakeServer, record

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.conversion import convert
from holdfast.pipeline.landing.tables import read_landed, table_of
from holdfast.pipeline.mediation.definition.file import Pipeline, read_pipeline
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.run import Mediation, run
from holdfast.pipeline.mediation.execution.samples import try_out
from holdfast.pipeline.mediation.execution.settled import Settled
from holdfast.pipeline.mediation.execution.sinks import as_messages, read_dead_letters, write_table
from holdfast.pipeline.mediation.expectation import exact_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation" / "orders.toml"
BODY = (
    "<order xmlns='urn:example:orders' id='{}'><customer>{}</customer><amount currency='{}'>{}</amount>"
    "<line><article>a</article><pieces>{}</pieces></line></order>"
)


def order(number: int, customer: str = "c1", amount: str = "10.00", currency: str = "EUR", pieces: int = 1) -> str:
    return BODY.format(number, customer, currency, amount, pieces)


@pytest.fixture
def orders(server: FakeServer) -> FakeServer:
    server.create("orders", partitions=2)
    return server


def put(server: FakeServer, *bodies: str, partition: int = 0, queue: str = "orders") -> None:
    first = len(server.queues[queue].partitions[partition])
    server.append(queue, partition, [record(first + place, body) for place, body in enumerate(bodies)])


class Here:
    """A pipeline in a directory of its own, run by one session after another."""

    def __init__(self, spark: SparkSession, patiently: Callable[..., Any], plan: Any) -> None:
        self.spark, self.patiently, self.plan = spark, patiently, plan
        self.batches: list[MediatedBatch] = []

    def run(self) -> Mediation:
        def once() -> Mediation:
            self.batches.clear()
            started = run(self.spark, self.plan, available_now=True, on_batch=self.batches.append)
            while not started.wait(60):
                pass
            return started

        made: Mediation = self.patiently(once)
        return made

    def letters(self, place: Path) -> list[tuple[str, int | None, str]]:
        rows = read_dead_letters(self.spark, str(place)).orderBy("partition", "offset").collect()
        return [(row["step"], row["offset"], "; ".join(row["reasons"])) for row in rows]


def bodies(server: FakeServer, sink: str) -> list[str]:
    return server.sinks[sink].bodies if sink in server.sinks.sinks else []


def test_the_example_sends_each_order_one_way_and_keeps_what_fails_with_the_reason(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    put(orders, order(1), order(2, "c2"), order(3, "c2", "2000.00"), "<order", order(5, "c2", "-1.00"))
    put(orders, order(6, "c9"), order(7, "c2", currency="USD"), order(8, "c3", "1.234"), partition=1)
    orders.nodes = {"v": 1, "url": orders.url, "partitions": 2, "workers": [orders.url], "sink": 0}
    nodes = f"http://127.0.0.1:1, {orders.url}"  # the first node is down
    here = Here(spark, patiently, read_pipeline(EXAMPLE, {"broker": nodes, "work": str(tmp_path)}))
    stood = here.run().settle()
    (batch,) = here.batches
    assert (batch.rows, batch.sinks, batch.dead, batch.repeated) == (8, {"first": 2, "others": 1}, 5, False)
    assert batch.seconds > 0
    confirmation = '<confirmation xmlns="urn:example:orders" order="{}"><customer>{}</customer><amount>{}</amount>'
    first = [confirmation.format(1, "Ada", "10.00"), confirmation.format(3, "Bob", "2000.00")]
    assert sorted(body.partition("<pieces>")[0] for body in bodies(orders, "orders.first")) == first
    assert [body.partition("<pieces>")[0] for body in bodies(orders, "orders.others")] == [
        confirmation.format(2, "Bob", "10.00")
    ]
    row = orders.sinks["orders.first"].rows[0]
    assert (row["queue"], row["action"], row["key"]) in [
        ("first", "urn:example:orders/Confirm", "c1"),
        ("first", "urn:example:orders/Confirm", "c2"),
    ]
    letters = here.letters(tmp_path / "dead")
    assert [(step, offset) for step, offset, _ in letters] == [
        ("read", 3),
        ("checked", 4),
        ("confirmed", 0),
        ("checked", 1),
        ("read", 2),
    ]
    reasons = [reason for _, _, reason in letters]
    assert reasons[0].startswith("not well-formed")
    assert reasons[1] == "the amount is not above 0"
    assert "Element '{urn:example:orders}amount': This element is not expected" in reasons[2]
    assert reasons[3] == "only EUR is taken"
    assert "amount.value: '1.234' is not a decimal(12,2)" in reasons[4]
    assert stood == {"incoming": {"orders": {0: 5, 1: 3}}}

    put(orders, order(9))
    here.run()
    (batch,) = here.batches
    assert (batch.batch, batch.rows, batch.sinks, batch.dead) == (1, 1, {"first": 1, "others": 0}, 0)
    assert len(bodies(orders, "orders.first")) == 3


def told(tmp_path: Path, server: FakeServer) -> Pipeline:
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path / "checkpoint"))
    made.source("orders", broker=server.url, queue="orders")
    made.dead_letters(table=str(tmp_path / "dead"))
    return made


@pytest.mark.nightly
def test_a_batch_that_is_repeated_goes_where_it_went_whatever_has_changed_meanwhile(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    put(orders, *(order(number) for number in range(6)))
    ways = tmp_path / "ways.csv"
    ways.write_text("id,way\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(6)))
    made = told(tmp_path, orders)
    made.table("ways", path=str(ways), schema="id INT, way STRING", options={"header": True})
    made.step("read", input="orders", parse={"schema": "id INT"})
    made.step("sent", sql="SELECT r.*, w.way FROM read r JOIN ways w ON w.id = r.parsed.id")
    for name in "ab":
        made.sink(name, queue=name, action="'urn:x'")
        made.route("sent", name, f"way = '{name}'")
    here = Here(spark, patiently, made.plan())
    real = orders.sinks.answer

    def away(method: str, steps: list[str], *rest: Any) -> Any:
        if steps[1] == "p.b" and steps[2] == "parts":
            ways.write_text("id,way\n" + "".join(f"{number},{'ba'[number % 2]}\n" for number in range(6)))
            from fake_sinks import SinkRefusal

            raise SinkRefusal(400, "not now")
        return real(method, steps, *rest)

    orders.sinks.answer = away  # type: ignore[method-assign]
    with pytest.raises(Exception, match="not now"):
        here.run()
    orders.sinks.answer = real  # type: ignore[method-assign]
    here.run()
    (batch,) = here.batches
    assert (batch.repeated, batch.sinks) == (True, {"a": 3, "b": 3})
    assert bodies(orders, "p.a") == [order(number) for number in (0, 2, 4)]
    assert bodies(orders, "p.b") == [order(number) for number in (1, 3, 5)]


def test_rows_that_the_server_refuses_are_dead_letters_and_the_others_are_sent(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    put(orders, "<a/>", "<b/>", "<c/>")
    orders.sinks.fault = lambda row: "it is b" if row["body"] == b"<b/>" else ""
    made = told(tmp_path, orders)
    made.sink("out", queue="out")
    made.route("orders", "out")
    here = Here(spark, patiently, made.plan())
    here.run()
    (batch,) = here.batches
    assert (batch.rows, batch.sinks, batch.dead) == (3, {"out": 2}, 1)
    assert (batch.refused, batch.reasons) == ({"out": 1}, {"out": "it is b"})
    assert bodies(orders, "p.out") == ["<a/>", "<c/>"]
    assert here.letters(tmp_path / "dead") == [("sink out", 1, "it is b")]


def test_each_dead_letter_has_its_message_whichever_part_of_the_pipeline_failed(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    """A grid: rows fail before and after a step that replaces the body, at a route, and at sinks."""
    sent = [record(number, f"<n>{number}</n>", message_id=f"urn:n:{number}") for number in range(6)]
    orders.append("orders", 1, sent)
    orders.sinks.fault = lambda row: "refused" if row["body"] in (b"<m>4</m>", b"<n>5</n>") else ""
    made = told(tmp_path, orders)
    made.step("early", input="orders", validate={"rules": {"it is 0": "body <> '<n>0</n>'"}})
    made.step("numbered", sql="SELECT *, int(xpath_string(body, '/n')) AS number FROM early")
    made.step("written", input="numbered", validate={"rules": {"it is 1": "number <> 1"}})
    made.step("replaced", sql="SELECT * EXCEPT (body), concat('<m>', number, '</m>') AS body FROM written")
    made.step("late", input="replaced", validate={"rules": {"it is 2": "number <> 2"}})
    made.sink("out", queue="out", action="'urn:m'", message_id="concat('urn:m:', number)", key="number", order="number")
    made.sink("plain", queue="plain")
    made.route("late", "out", "number = 4")
    made.route("orders", "plain", "body = '<n>5</n>'")
    here = Here(spark, patiently, made.plan())
    here.run()
    (batch,) = here.batches
    assert (batch.sinks, batch.refused) == ({"out": 0, "plain": 0}, {"out": 1, "plain": 1})
    rows = read_dead_letters(spark, str(tmp_path / "dead")).collect()
    found = {(row["step"], row["offset"]) for row in rows}
    assert found == {
        *[("early", 0), ("written", 1), ("late", 2), ("late", 3), ("late", 5), ("sink out", 4), ("sink plain", 5)],
        *[("orders", number) for number in range(5)],
    }
    for row in rows:
        one = sent[row["offset"]]
        assert (row["queue"], row["partition"]) == ("orders", 1)
        assert (row["message_id"], row["sequence"], row["action"]) == (one.message_id, one.sequence, one.action)
        assert (row["message_number"], row["body"]) == (one.message_number, one.body.decode())
    (letter,) = [row for row in rows if row["step"] == "sink out"]
    assert json.loads(letter["row"]).items() >= {"body": "<m>4</m>", "action": "urn:m", "message_id": "urn:m:4"}.items()
    (letter,) = [row for row in rows if row["step"] == "late" and row["offset"] == 2]
    assert json.loads(letter["row"]).items() >= {"number": 2, "body": "<m>2</m>"}.items()
    (letter,) = [row for row in rows if row["step"] == "written"]
    assert "body" not in json.loads(letter["row"])


_WRONG = {
    "step": lambda made: made.step("wrong", sql="SELECT nothing FROM orders"),
    "function": lambda made: made.step("wrong", sql="SELECT none_such(body) AS body FROM orders"),
    "parse": lambda made: made.step("wrong", input="orders", parse={"schema": "id INT", "column": "bodi"}),
    "sink": lambda made: made.sink("other", queue="other", action="Submit"),
    "route": lambda made: made.route("orders", "out", "colour = 'red'"),
}


@pytest.mark.parametrize("wrong", _WRONG)
def test_a_pipeline_that_cannot_be_computed_fails_before_it_has_a_cursor(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, wrong: str
) -> None:
    made = told(tmp_path, orders)
    _WRONG[wrong](made)
    made.sink("out", queue="out")
    made.route("wrong" if "wrong" in made.tables.get("steps", {}) else "orders", "out")
    if wrong == "sink":
        made.tables["routes"][0]["to"] = ["other", "out"]
    named = {"sink": "sink other: ", "route": "routes of orders: "}.get(wrong, "step wrong: ")
    with pytest.raises(ConfigurationError, match=named) as caught:
        run(spark, made.plan(), available_now=True)
    assert caught.value.remedy
    assert orders.queues["orders"].cursors == {}


def test_rows_that_do_not_fit_their_table_are_refused_before_a_batch_is_settled(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    """By a dry run, by a run before it has a cursor, and by a batch if the columns of a joined table have changed."""
    put(orders, "<a/>")
    table, joined = str(tmp_path / "kept"), tmp_path / "joined"
    write_table(spark.range(3).selectExpr("id AS n"), table, 0, "the origin")
    made = told(tmp_path, orders)
    made.step("read_", sql="SELECT 'one' AS n FROM orders")
    made.sink("kept", table=table)
    made.route("read_", "kept")
    for start in (partial(run, available_now=True), partial(try_out, rows=1)):
        with pytest.raises(ConfigurationError, match="sink kept: n would become string, but") as caught:
            start(spark, made.plan())
        assert "with a cast, or name another table" in caught.value.remedy
    assert orders.queues["orders"].cursors == {}
    assert not (tmp_path / "checkpoint").exists()

    joined.mkdir()
    made = told(tmp_path, orders)
    made.table("joined", path=str(joined), format="json")
    made.step("read_", sql="SELECT j.n FROM orders CROSS JOIN joined j")
    made.sink("kept", table=str(tmp_path / "new"))
    made.route("read_", "kept")
    here = Here(spark, patiently, made.plan())
    for batch, row in enumerate(('{"n": 1}', '{"n": "one"}', '{"n": 2}')):
        (joined / "one.json").write_text(row)
        put(orders, "<a/>")
        if batch == 1:
            with patched(here), pytest.raises(Exception, match="sink kept: n would become string, but is bigint"):
                here.run()
        else:
            here.run()
    assert sorted(row.n for row in read_landed(spark, str(tmp_path / "new")).collect()) == [1, 1, 2, 2]


@contextmanager
def patched(here: Here) -> Iterator[None]:
    """A run that does not look at the tables before its first batch, as if the joined table changed after that."""
    from holdfast.pipeline.mediation.execution import run as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "analyse", lambda *_: None)
        yield


@pytest.mark.nightly
def test_a_batch_that_was_settled_for_another_table_has_a_way_out(
    spark: SparkSession,
    orders: FakeServer,
    tmp_path: Path,
    patiently: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As earlier versions settled it: the remedy of the error is followed. A struct's new fields need no remedy."""
    from holdfast.pipeline.mediation.execution import run as module

    def of(value: str, table: str) -> Here:
        made = told(tmp_path, orders)
        made.step("read_", sql=f"SELECT offset, {value} AS o FROM orders")
        made.sink("kept", table=str(tmp_path / table))
        made.sink("sent", queue="out", action="'urn:x'", body="concat('<a>', offset, '</a>')")
        made.route("read_", ["kept", "sent"])
        return Here(spark, patiently, made.plan())

    def kept(table: str) -> list[tuple[int, str]]:
        rows = read_landed(spark, str(tmp_path / table)).selectExpr("offset", "CAST(o.a AS STRING) AS a").collect()
        return sorted((row.offset, row.a) for row in rows if row.offset > 2)

    put(orders, "0")
    of("named_struct('a', 1)", "first").run()
    put(orders, "1")
    of("named_struct('b', array(named_struct('c', 1)), 'a', 2)", "first").run()
    put(orders, "2")
    of("named_struct('b', array(named_struct('d', 1, 'c', 1)))", "first").run()
    read = read_landed(spark, str(tmp_path / "first")).orderBy("offset")
    assert [row.o.asDict(True) for row in read.collect()] == [
        {"a": 1, "b": None},
        {"a": 2, "b": [{"c": 1, "d": None}]},
        {"a": None, "b": [{"c": 1, "d": 1}]},
    ]
    put(orders, "3")
    monkeypatch.setattr(module, "check_tables", lambda *_: None)
    monkeypatch.setattr(module, "analyse", lambda *_: None)
    with pytest.raises(Exception, match="o would become struct<a:string>, but is"):
        of("named_struct('a', '3')", "first").run()
    monkeypatch.undo()
    put(orders, "4")
    with pytest.raises(Exception, match="a new directory as the sink's table"):  # a cast is too late
        of("named_struct('a', 3)", "first").run()
    of("named_struct('a', '3')", "other").run()
    put(orders, "5")
    of("named_struct('a', 5)", "first").run()
    assert (kept("other"), kept("first")) == ([(3, "3"), (4, "3")], [(5, "5")])
    assert bodies(orders, "p.sent") == [f"<a>{offset}</a>" for offset in range(6)]


@pytest.mark.nightly  # three seconds for one rule of a dry run
def test_a_function_that_needs_rows_is_not_called_wrong_because_it_has_none(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    put(orders, "<a/>")
    made = told(tmp_path, orders)
    made.step("same", lambda rows: rows.where(f"queue = '{rows.first()['queue']}'"), "orders")
    made.sink("out", queue="out")
    made.route("same", "out")
    Here(spark, patiently, made.plan()).run()
    assert bodies(orders, "p.out") == ["<a/>"]


@pytest.mark.nightly
def test_a_function_may_make_rows_and_tell_their_problems(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    from pyspark.sql import functions as F

    from holdfast.pipeline.mediation import validate

    put(orders, "<a/>", "<b/>")
    made = told(tmp_path, orders)
    made.step("upper", lambda rows: rows.withColumn("body", F.upper("body")), "orders")
    made.step("none_is_b", lambda rows: validate(rows, {"it is b": "body <> '<B/>'"}), "upper")
    made.sink("out", table=str(tmp_path / "out"), format="parquet")
    made.sink("more", table=str(tmp_path / "more"))
    made.route("none_is_b", ["out", "more"], "offset < 100")
    here = Here(spark, patiently, made.plan())
    here.run()
    for table, kind in (("out", "parquet"), ("more", "delta")):
        assert table_of(spark, str(tmp_path / table)).kind == kind
        assert [row.body for row in read_landed(spark, str(tmp_path / table)).collect()] == ["<A/>"]
    assert here.letters(tmp_path / "dead") == [("none_is_b", 1, "it is b")]
    (tmp_path / "other").mkdir()
    again = told(tmp_path / "other", orders)
    again.tables["sinks"], again.tables["routes"] = made.tables["sinks"], made.tables["routes"]
    again.tables["steps"] = made.tables["steps"]
    with pytest.raises(ConfigurationError, match="contains batches, but the checkpoint"):
        run(spark, again.plan(), available_now=True)


@pytest.mark.nightly
def test_of_two_drivers_that_settle_and_keep_a_batch_both_go_by_the_first_ones_word(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As when a job is started again while it still lives; one session starts no query twice."""
    one, other = (Settled(spark, str(tmp_path / "settled"), 3) for _ in range(2))
    ones = spark.range(0, 3, 1, 1).selectExpr("id AS n")  # one task: the other has a core of its own

    def slow(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        Path(str(tmp_path), "asked").touch()
        while not Path(str(tmp_path), "go").exists():
            time.sleep(0.02)

    told: list[dict[str, int]] = []
    thread = threading.Thread(
        target=lambda: told.append(one.settle({"": 9}, {"out": ones.mapInArrow(slow, "n BIGINT")}))
    )
    thread.start()
    while not (tmp_path / "asked").exists():
        time.sleep(0.02)
    assert one.counts() is None
    assert other.settle({"": 7}, {"out": ones.where("n > 0")}) == {"": 7, "out": 2}
    (tmp_path / "go").touch()
    thread.join()
    assert told == [{"": 7, "out": 2}]
    assert sorted(row.n for row in one.read("out").collect()) == [1, 2]

    table = str(tmp_path / "table")
    write_table(ones, table, 3, "the origin")
    write_table(ones, table, 3, "the origin")
    assert read_landed(spark, table).count() == 3
    with pytest.raises(PipelineError, match="has other messages than this query's batch 3"):
        write_table(ones, table, 3, "another")
    with pytest.raises(ConfigurationError, match="n would become tinyint, but is bigint") as caught:
        write_table(ones.selectExpr("tinyint(n) AS n"), table, 4, "the origin")
    assert "name " + table + " again" in caught.value.remedy
    # of a table that each batch replaces whole, the older one comes too late
    write_table(ones, table, 4, "the origin", only=True)
    write_table(ones.limit(1), table, 3, "the origin", only=True)
    assert [row.batch for row in read_landed(spark, table).select("batch").collect()] == [4, 4, 4]


@pytest.mark.nightly
def test_what_is_inferred_stays_for_every_later_run(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    made = told(tmp_path, orders)
    made.step("read", input="orders", parse={"infer": 100})
    made.sink("out", table=str(tmp_path / "out"))
    made.route("read", "out")
    here = Here(spark, patiently, made.plan())
    with pytest.raises(ConfigurationError, match="step read: the sample has no readable body"):
        here.run()
    put(orders, "<o><n>1</n></o>", "<o><n>2</n></o>")
    here.run()
    assert (tmp_path / "checkpoint" / "inferred" / "read.json").exists()
    put(orders, "<o><n>x</n><m/></o>", "<o><n>3</n></o>")
    here.run()
    rows = read_landed(spark, str(tmp_path / "out"))
    assert rows.schema["parsed"].dataType.simpleString() == "struct<n:bigint>"
    assert sorted(row.parsed.n for row in rows.collect()) == [1, 2, 3]
    assert here.letters(tmp_path / "dead") == [("read", 2, "n: 'x' is not an integer")]


@pytest.mark.nightly
def test_windows_go_over_all_batches_and_each_is_sent_once_when_it_is_final(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    def arrive(*minutes: int) -> None:
        first = len(orders.queues["orders"].partitions[0])
        body = "<o><n>1</n></o>"
        orders.append(
            "orders", 0, [record(first + i, body, received_at=1_700_000_000.0 + 60 * m) for i, m in enumerate(minutes)]
        )

    made = told(tmp_path, orders)
    made.step("read", input="orders", parse={"schema": "n INT"})
    hourly = "SELECT window(received_at, '10 minutes') AS w, sum(parsed.n) AS many FROM read GROUP BY 1"
    made.step("hourly", sql=hourly, state={"time": "received_at", "late": "5m"})
    made.step("told", input="hourly", xml={"element": "{urn:x}many", "columns": ["many"]})
    made.sink("out", queue="out", action="'urn:x'")
    made.route("told", "out")
    made.step("all_", sql="SELECT count(*) AS many FROM read", state={"output": "complete"})
    made.sink("totals", table=str(tmp_path / "totals"))
    made.route("all_", "totals")
    made.step("few", sql="SELECT count(*) AS many FROM read HAVING count(*) < 5", state={"output": "complete"})
    made.sink("few", table=str(tmp_path / "few"))
    made.route("few", "few")
    here = Here(spark, patiently, made.plan())
    arrive(0, 1, 12, 2)
    put(orders, "<o", partition=1)
    here.run()
    assert [row.many for row in read_landed(spark, str(tmp_path / "few")).collect()] == [4]
    arrive(13, 40)
    here.run()
    many = [body for body in bodies(orders, "p.out") if body]
    assert sorted(many) == ['<many xmlns="urn:x"><many>2</many></many>', '<many xmlns="urn:x"><many>3</many></many>']
    for table, left in (("totals", [6]), ("few", [])):  # where there is no result any more, none is left of before
        assert [row.many for row in read_landed(spark, str(tmp_path / table)).collect()] == left
    assert [step for step, _, _ in here.letters(tmp_path / "dead")] == ["read"]


WINDOWS = "SELECT window({0}, '1 minute').start, count(*) AS many FROM read GROUP BY window({0}, '1 minute')"


@pytest.mark.parametrize(
    ("group", "time", "told_of"),
    [
        ("placed", "placd", "step counted: state.time: no column of the rows of 'read' has the name 'placd'"),
        ("o.placed", "o.placed", "step counted: state.time: 'o.placed' is a field, not a column of the rows of 'read'"),
        pytest.param(
            "placed",
            "body",
            "step counted: state.time: the column 'body' of 'read' is string",
            marks=pytest.mark.nightly,
        ),
        ("body", "PLACED", r"step counted: \[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"),
    ],
)
def test_a_state_without_a_time_is_refused_at_the_start_with_its_step(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, group: str, time: str, told_of: str
) -> None:
    made = told(tmp_path, orders)
    made.step("parsed", input="orders", parse={"schema": "placed TIMESTAMP", "into": "o"})
    made.step("read", sql="SELECT m.*, m.o.placed AS placed FROM parsed m")
    made.step("counted", sql=WINDOWS.format(group), state={"time": time})
    made.sink("totals", table=str(tmp_path / "totals"))
    made.route("counted", "totals")
    with pytest.raises(ConfigurationError, match=told_of) as caught:
        run(spark, made.plan(), available_now=True)
    remedies = ("Did you mean 'placed'? The columns are", "'o.placed AS placed'", "CAST(body AS TIMESTAMP)", "complete")
    assert any(one in caught.value.remedy for one in remedies), caught.value.remedy
    assert spark.streams.active == []
    if time != "PLACED":
        assert orders.queues["orders"].cursors == {}


@pytest.mark.nightly
def test_a_dry_run_tells_every_step_and_moves_nothing(spark: SparkSession, orders: FakeServer, tmp_path: Path) -> None:
    put(orders, order(1), order(2, currency="USD"), "<order")
    plan = read_pipeline(EXAMPLE, {"broker": orders.url, "work": str(tmp_path)})
    found = try_out(spark, plan, 20)
    assert {name: (one["rows"], one["failed"]) for name, one in found.items()} == {
        "incoming": (3, 0),
        "read": (2, 1),
        "customers": (3, 0),
        "checked": (1, 1),
        "known": (1, 0),
        "confirmed": (1, 0),
        "sink first": (1, 0),
        "sink others": (0, 0),
        "dead-letters": (2, 0),
    }
    assert found["checked"]["reasons"] == ["only EUR is taken"]
    assert "amount:struct<value:decimal(12,2),currency:string>" in found["read"]["columns"]
    assert json.loads(exact_text(found))["read"]["first"][0]["o"]["amount"]["value"] == 10
    assert '"value": 10.00' in exact_text(found["read"]["first"][0])
    at = found["incoming"]["first"][0]["delivered_at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at)
    assert orders.queues["orders"].cursors == {}
    assert orders.sinks.sinks == {}
    assert list(tmp_path.iterdir()) == []

    put(orders, *(order(number) for number in range(9)), partition=1)
    found = try_out(spark, plan, 2)
    assert found["incoming"]["rows"] == 2
    assert sorted(row["partition"] for row in found["incoming"]["first"]) == [0, 1]  # a sample is of all partitions


def records_read(server: FakeServer) -> list[str]:
    return [request for request in server.requests if "/records?" in request]


def counting(spark: SparkSession, made: Pipeline, *names: str) -> dict[str, Any]:
    """Steps one below the other that count the rows which pass through their Python."""
    counts = {name: spark.sparkContext.accumulator(0) for name in names}

    def counted(name: str) -> Callable[[DataFrame], DataFrame]:
        count = counts[name]

        def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                count.add(batch.num_rows)
                yield batch

        return lambda rows: rows.mapInArrow(pass_on, rows.schema)

    for above, name in pairwise(("orders", *names)):
        made.step(name, counted(name), above)
    return counts


@pytest.mark.nightly
def test_a_batch_with_three_sinks_is_read_once_and_made_once(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    made = told(tmp_path, orders)
    counts = counting(spark, made, "first", "second")
    made.step("large", sql="SELECT * FROM first WHERE offset > 1")
    for sink in ("all", "large", "rest"):
        made.sink(sink, queue=sink, action="'urn:x'")
    made.route("second", "all", onwards=True)
    made.route("second", "rest", when="offset < 2")
    made.route("large", "large")
    put(orders, *(order(number) for number in range(5)))
    put(orders, *(order(number) for number in range(5, 8)), partition=1)
    here = Here(spark, patiently, made.plan())
    here.run()
    assert [batch.sinks for batch in here.batches] == [{"all": 8, "large": 4, "rest": 4}]
    assert {name: count.value for name, count in counts.items()} == {"first": 8, "second": 8}
    assert len(records_read(orders)) == 2  # one for each partition


def test_a_dry_run_reads_its_sample_once_and_makes_each_step_once(
    spark: SparkSession, orders: FakeServer, tmp_path: Path
) -> None:
    made = told(tmp_path, orders)
    names = ("first", "second", "third", "fourth")
    counts = counting(spark, made, *names)
    made.sink("out", queue="out", action="'urn:x'")
    made.route("fourth", "out")
    put(orders, *(order(number) for number in range(5)))
    found = try_out(spark, made.plan(), 5)
    assert {name: found[name]["rows"] for name in names} == dict.fromkeys(names, 5)
    assert {name: count.value for name, count in counts.items()} == dict.fromkeys(names, 5)
    assert len(records_read(orders)) == 1


@pytest.mark.nightly
def test_a_batch_is_sent_to_its_sinks_side_by_side(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    made = told(tmp_path, orders)
    asked = {"p.first": threading.Event(), "p.second": threading.Event()}
    alone = []

    def meet(request: str) -> None:
        """Answer a sink once the other has asked, too."""
        sink = urlsplit(request.partition(" ")[2]).path.split("/")[2]
        asked[sink].set()
        alone.extend(name for name, one in asked.items() if not one.wait(60))

    for sink in ("first", "second"):
        made.sink(sink, queue=sink, action="'urn:x'")
    made.route("orders", ["first", "second"])
    orders.on_sink = meet
    put(orders, order(1), order(2))
    Here(spark, patiently, made.plan()).run()
    assert alone == []
    assert bodies(orders, "p.first") == bodies(orders, "p.second") == [order(1), order(2)]


@pytest.mark.nightly
def test_rows_of_a_settled_batch_are_not_lost_when_their_sink_is_called_otherwise(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    """As when a sink fails, and the file is changed before the next start."""
    put(orders, order(1), order(2))

    def called(pipeline: str, sink: str) -> Here:
        made = told(tmp_path, orders)
        made.settings(name=pipeline, checkpoint=str(tmp_path / "checkpoint"))
        made.sink("first", queue="first", action="'urn:x'")
        made.sink(sink, queue="out", action="'urn:x'")
        made.route("orders", ["first", sink])
        return Here(spark, patiently, made.plan())

    real = orders.sinks.answer

    def full(method: str, steps: list[str], *rest: Any) -> Any:
        if steps[1] == "p.out":
            from fake_sinks import SinkRefusal

            raise SinkRefusal(400, "not now")
        return real(method, steps, *rest)

    orders.sinks.answer = full  # type: ignore[method-assign]
    with pytest.raises(Exception, match="not now"):
        called("p", "out").run()
    orders.sinks.answer = real  # type: ignore[method-assign]
    for pipeline, sink in (("p", "away"), ("q", "out")):
        with pytest.raises(Exception, match="2 rows of batch 0 are for the sink"):
            called(pipeline, sink).run()
    called("p", "out").run()
    assert bodies(orders, "p.first") == bodies(orders, "p.out") == [order(1), order(2)]
    assert bodies(orders, "q.first") == bodies(orders, "p.away") == []


def test_rows_that_were_made_of_one_message_have_an_order_too(spark: SparkSession, tmp_path: Path) -> None:
    """Spark promises nothing of rows that are alike in all that they are sorted by."""
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path))
    made.source("orders", broker="http://localhost:1", queue="orders")
    made.sink("out", queue="out", action="'urn:x'", key="1")
    made.route("orders", "out")
    place = "'orders' AS queue, 0 AS partition, 7L AS offset"
    pieces = spark.sql(f"SELECT {place}, string(n) AS body FROM (SELECT explode(sequence(1, 9)) AS n)")
    messages = as_messages(pieces, made.plan().sinks[0])
    order = [name for name in messages.columns if name.startswith("holdfast_order")]
    assert messages.select(order).distinct().count() == 9
    assert [row.body for row in messages.orderBy(*order).collect()] == [str(number) for number in range(1, 10)]


@pytest.mark.nightly
def test_an_older_parquet_table_is_appended_to_but_replaced_only_if_converted(
    spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    put(orders, "<o/>", "<o/>")
    made = told(tmp_path, orders)
    made.step("few", sql="SELECT body FROM orders")
    made.sink("out", table=str(tmp_path / "out"), format="parquet")
    made.route("few", "out")
    here = Here(spark, patiently, made.plan())
    here.run()
    put(orders, "<o/>")
    del made.tables["sinks"]["out"]["format"]  # as an older pipeline file, which named no format
    here.plan = made.plan()
    here.run()
    assert table_of(spark, str(tmp_path / "out")).kind == "parquet"
    assert read_landed(spark, str(tmp_path / "out")).count() == 3

    again = told(tmp_path, orders)
    again.step("all_", sql="SELECT count(*) AS many FROM orders", state={"output": "complete"})
    again.sink("out", table=str(tmp_path / "out"))
    again.route("all_", "out")
    with pytest.raises(ConfigurationError, match="Holdfast only appends to it") as caught:
        run(spark, again.plan(), available_now=True)
    assert f"holdfast convert {tmp_path}/out" in caught.value.remedy
    convert(spark, str(tmp_path / "out"))
    made.table("before", path=str(tmp_path / "out"), format="delta")  # and another step may join with it
    made.step("counted", sql="SELECT count(*) AS many FROM before, orders")
    made.sink("counts", table=str(tmp_path / "counts"))
    made.route("counted", "counts")
    put(orders, "<o/>")
    here.plan = made.plan()
    here.run()
    assert read_landed(spark, str(tmp_path / "out")).count() == 4
    assert [row.many for row in read_landed(spark, str(tmp_path / "counts")).collect()] == [3]
