"""Every row is in exactly one place, whatever is null: a sink, or the dead letters of the step that separates rows.

The conditions of SQL have three results, so a row whose condition is null is neither in ``WHERE a`` nor in ``WHERE NOT
a``. Each place that separates rows is here, with nulls in all that it looks at.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.mediation.definition.file import Pipeline
from holdfast.pipeline.mediation.execution.outputs import union
from holdfast.pipeline.mediation.execution.samples import made_of, try_out
from holdfast.pipeline.mediation.fixtures import rows_of
from holdfast.pipeline.mediation.transformations.problems import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS: list[dict[str, Any]] = [
    {"action": "a", "relates_to": "2020-01-01T00:00:00Z", "body": '<o id="1"/>'},
    {"action": "b", "relates_to": "2020-01-01T00:00:00Z", "body": '{"id": 1}'},
    {"action": "", "relates_to": "no time", "body": ""},
    {"action": "a", "relates_to": None, "body": "<o"},
    {"relates_to": None, "body": '<o id="x"/>'},
    {"relates_to": "2020-01-01T00:00:00Z", "body": "null"},
]
"""Messages: a flag of three values by their Action, and a time by RelatesTo."""
VALUES = "SELECT *, nullif(action, '') = 'a' AS flag, nullif(body, '') AS text, try_cast(relates_to AS TIMESTAMP) AS at"
LISTS = {
    "no otherwise": "CASE WHEN flag THEN array('it is a') END",
    "elements": "array(CASE WHEN flag THEN 'it is a' END)",
    "some elements": "array(CASE WHEN flag THEN 'it is a' END, CASE WHEN NOT flag THEN 'it is b' END)",
    "either": "CASE WHEN flag THEN array('it is a') WHEN NOT flag THEN array() END",
    "nothing": "CAST(NULL AS ARRAY<STRING>)",
    "void": "NULL",
    "list of void": "array(NULL)",
    "always": "array('always', NULL)",
}
"""Ways to make ``problems`` of the flag."""
FAILS: dict[str, set[int]] = {
    "no otherwise": {0},
    "elements": {0},
    "some elements": {0, 1},
    "either": {0},
    "nothing": set(),
    "void": set(),
    "list of void": set(),
    "always": {0, 1, 2},
}
"""Which of true (0), false (1) and null (2) is a problem."""
CONDITIONS = ("flag", "NOT flag", "flag AND at IS NOT NULL", "NULL", "at < TIMESTAMP '2021-01-01'", "text != '<o'")


def problems(told: str, name: str = "problems") -> Any:
    from pyspark.sql import functions as F

    def function(rows: DataFrame) -> DataFrame:
        return rows.withColumn(name, F.expr(told))

    return function


class Places:
    """A pipeline in which many places separate the rows of one source."""

    def __init__(self, tmp_path: Path) -> None:
        self.made = Pipeline()
        self.made.settings(name="p", checkpoint=str(tmp_path / "work"))
        self.made.source("orders", broker="http://127.0.0.1:1", queue="orders")
        self.made.dead_letters(table=str(tmp_path / "dead"))
        self.made.step("given", sql=f"{VALUES} FROM orders")
        self.steps: dict[str, set[str]] = {}
        """Place -> its steps."""
        self.ends: dict[str, str] = {}
        """Sink -> its place."""

    def add(self, place: str, *steps: dict[str, Any], routes: tuple[str, ...] = ("",), **sink: Any) -> None:
        """Add steps one after another, and a sink for each of their routes."""
        rows, prefix = "given", f"p{len(self.steps)}"
        self.steps[place] = set()
        for number, keys in enumerate(steps or ({"sql": "SELECT * FROM given"},)):
            name = f"{prefix}_{number}"
            self.made.step(name, **({} if "sql" in keys else {"input": rows}), **keys)
            self.steps[place].add(name)
            rows = name
        for number, when in enumerate(routes):
            end = f"{prefix}_{number}_end"
            self.made.sink(end, **(sink or {"table": end}))
            self.made.route(rows, end, when)
            self.ends[end] = place

    def found(self, spark: SparkSession) -> dict[str, tuple[Counter[int], Counter[int]]]:
        """Return place -> the offsets of the rows in its sinks, and in its dead letters."""
        rows = made_of(spark, self.made.plan(), lambda session, source: rows_of(session, source, ROWS))
        found = {place: (Counter[int](), Counter[int]()) for place in self.steps}
        for end, place in self.ends.items():
            found[place][0].update(int(row["offset"] if "offset" in row else row["headers"]["at"]) for row in rows[end])
        for letter in rows[""]:
            assert letter["reasons"] and all(letter["reasons"]), letter
            place = next(place for place, steps in self.steps.items() if letter["step"] in steps)
            found[place][1][letter["offset"]] += 1
        return found


KEPT = {"python": problems(LISTS["no otherwise"]), "keep": True}
CHECKS: dict[str, dict[str, Any]] = {
    "rules": {"validate": {"rules": {f"rule {number}": one for number, one in enumerate(CONDITIONS)}}},
    **{f"rule {one}": {"validate": {"rules": {"it": one}}} for one in CONDITIONS},
    "xml": {"parse": {"schema": "id INT NOT NULL", "column": "text"}},
    "json": {"parse": {"schema": "id INT", "column": "text", "json": True}},
    "to xml": {"xml": {"element": "o", "columns": ["IF(flag, struct(action), NULL) AS one"]}},
}
TIMED = "SELECT offset, at FROM given GROUP BY offset, at"
WINDOWS = "SELECT offset, count(*) AS many FROM given GROUP BY offset, window(at, '1 minute')"
RECORDS = {"kafka": "127.0.0.1:1", "topic": "t", "key": "text", "body": "text", "headers": "map('at', '' || offset)"}


def test_each_row_is_good_or_bad_whatever_is_null_in_its_problems(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    rows = spark.createDataFrame([(0, True), (1, False), (2, None)], "id INT, flag BOOLEAN")
    lists = {name: told for name, told in LISTS.items() if "void" not in name}
    each = [
        rows.select(F.lit(name).alias("name"), "id", F.expr(told).alias("Problems")) for name, told in lists.items()
    ]
    good, bad = split(union(each))
    assert good.columns == ["name", "id"]
    told = {(row["name"], row["id"]): row["problems"] for row in bad.collect()}
    assert all(reasons and all(reasons) for reasons in told.values()), told
    fine = {(row["name"], row["id"]) for row in good.collect()}
    assert not fine & told.keys()
    assert fine | told.keys() == {(name, number) for name in lists for number in range(3)}
    assert told.keys() == {(name, number) for name in lists for number in range(3) if number in FAILS[name]}
    for kind in ("string", "array<int>", "map<string, string>"):
        with pytest.raises(ConfigurationError, match="not array<string>"):
            split(rows.withColumn("problems", F.lit(None).cast(kind)))


@pytest.mark.nightly
def test_every_row_is_in_exactly_one_place_whatever_is_null(spark: SparkSession, tmp_path: Path) -> None:
    places = Places(tmp_path)
    for name, told in LISTS.items():
        places.add(name, {"python": problems(told)})
    places.add("Problems", {"python": problems(LISTS["no otherwise"], "Problems")})
    places.add("kept", KEPT, routes=("size(problems) > 0", "size(problems) = 0"))
    for name, keys in CHECKS.items():
        places.add(name, keys)
        places.add(f"{name}, kept", KEPT, keys)
    places.add("routes", routes=CONDITIONS)
    for one in CONDITIONS:
        places.add(f"route {one}", routes=(one,))
    places.add("routes and the rest", routes=("flag", "NOT flag", ""))
    places.add("records", routes=("flag",), **RECORDS)
    places.add("time", {"sql": TIMED, "state": {"time": "AT"}})
    places.add("all times", {"sql": TIMED, "state": {"time": "at", "output": "complete"}})
    few = "SELECT offset, IF(flag, NULL, delivered_at) AS delivered_at FROM given"
    many = f"SELECT offset, count(*) AS many FROM p{len(places.steps)}_0 GROUP BY offset"
    places.add("default time", {"sql": few}, {"sql": many, "state": {"output": "complete"}})
    places.add("window", {"sql": WINDOWS, "state": {"time": "at"}})
    found = places.found(spark)
    every = Counter(range(len(ROWS)))
    assert {place: sent + dead for place, (sent, dead) in found.items()} == dict.fromkeys(places.steps, every)
    of_flag = {0: {0, 3}, 1: {1}, 2: {2, 4, 5}}  # true, false and null
    for name in LISTS:
        assert set(found[name][1]) == set().union(*(of_flag[number] for number in FAILS[name])), name
    for name in ("time", "window"):
        assert set(found[name][1]) == {2, 3, 4}, name
    for name in ("all times", "default time"):  # the SQL decides
        assert not found[name][1], name


@pytest.mark.nightly
def test_a_dry_run_counts_the_failed_rows_of_each_input(
    spark: SparkSession, server: FakeServer, tmp_path: Path
) -> None:
    server.create("orders", partitions=1)
    bodies = ["2020-01-01T00:00:00Z", "no", "never"]
    server.append("orders", 0, [record(place, body) for place, body in enumerate(bodies)])
    rows = [{"body": body} for body in bodies]
    for is_kept in (False, True):
        made = Pipeline()
        made.settings(name="p", checkpoint=str(tmp_path / "work"))
        made.source("orders", broker=server.url, queue="orders")
        if is_kept:
            made.dead_letters(table=str(tmp_path / "dead"))
        made.step("given", sql="SELECT *, try_cast(body AS TIMESTAMP) AS at FROM orders")
        made.step("other", sql="SELECT at, offset AS place FROM given WHERE offset < 2")
        sql = "SELECT g.at, place FROM given AS g JOIN other AS o ON g.at = o.at AND g.offset = o.place"
        made.step("both", sql=sql, state={"time": "at"})
        made.sink("out", table=str(tmp_path / "out"))
        made.route("both", "out")
        found = try_out(spark, made.plan(), 100)
        assert (found["both"]["rows"], found["both"]["failed"]) == (1, 3)
        assert found["both"]["reasons"] == ["at is null, so the row has no time, and no result includes it"]
        letters = made_of(spark, made.plan(), lambda session, source: rows_of(session, source, rows))[""]
        assert len(letters) == (3 if is_kept else 0)
        assert ("dead-letters" in found) == is_kept


def test_a_window_is_no_time_of_a_state(spark: SparkSession, tmp_path: Path) -> None:
    """Of a window, Spark makes a watermark near 1970: no window would ever end, and no row would reach a sink."""
    places = Places(tmp_path)
    places.add(
        "window",
        {"sql": "SELECT *, window(at, '1 minute') AS w FROM given"},
        {"sql": "SELECT w, count(*) AS many FROM p0_0 GROUP BY w", "state": {"time": "w"}},
    )
    with pytest.raises(ConfigurationError, match="the column 'w' of 'p0_0' is struct<") as caught:
        places.found(spark)
    assert "make the window in this step" in caught.value.remedy
