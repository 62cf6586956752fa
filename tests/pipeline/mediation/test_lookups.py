"""Tables that are kept between batches, on a real Spark.

Covers pipeline/mediation/execution/lookups.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record

from holdfast.pipeline.mediation.definition.file import Pipeline
from holdfast.pipeline.mediation.definition.plan import TablePlan
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.lookups import Lookups
from holdfast.pipeline.mediation.execution.run import Mediation, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_table_with_refresh_is_read_again_when_it_is_older_than_that(spark: SparkSession, tmp_path: Path) -> None:
    ways = tmp_path / "ways.csv"
    table = TablePlan("ways", str(ways), schema="id INT, way STRING", refresh=600.0)
    now = 0.0
    kept, other = Lookups(lambda: now), Lookups(lambda: now)

    def read(one: Lookups, told: TablePlan = table) -> list[str]:
        return [row.way for row in one.read(spark, told).collect()]

    ways.write_text("1,a\n")
    assert read(kept) == ["a"]
    ways.write_text("1,b\n")
    now = 599.0
    assert read(kept) == ["a"]
    assert read(other) == ["b"]  # Spark has the rows of the same path in its cache
    assert read(kept, TablePlan("ways", str(ways), schema="id INT, way STRING")) == ["b"]
    now = 600.0
    assert read(kept) == ["b"]
    last = kept.read(spark, table)
    assert last.is_cached
    kept.release()
    other.release()
    assert not last.storageLevel.useMemory


@pytest.mark.nightly
def test_the_batches_of_a_run_join_with_the_rows_that_were_kept(
    spark: SparkSession,
    server: FakeServer,
    tmp_path: Path,
    patiently: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.create("orders", partitions=1)
    server.append("orders", 0, [record(number, "<a/>") for number in range(4)])
    ways, now = tmp_path / "ways.csv", [0.0]
    monkeypatch.setattr(Lookups.__init__, "__defaults__", (lambda: now[0],))
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path / "checkpoint"))
    made.source("orders", broker=server.url, queue="orders", options={"maxRowsPerBatch": 1})
    made.table("ways", path=str(ways), schema="way STRING", refresh="10m")
    made.step("sent", sql="SELECT way AS body, o.action FROM orders o JOIN ways w")
    made.sink("out", queue="out")
    made.route("sent", "out")
    ways.write_text("<w0/>\n")

    def on_batch(batch: MediatedBatch) -> None:
        ways.write_text(f"<w{batch.batch + 1}/>\n")
        now[0] += 400

    def once() -> Mediation:
        started = run(spark, made.plan(), available_now=True, on_batch=on_batch)
        while not started.wait(60):
            pass
        return started

    ended = patiently(once)
    assert server.sinks.sinks["p.out"].bodies == ["<w0/>", "<w0/>", "<w2/>", "<w2/>"]
    assert ended._lookups == []  # released
