"""Windows of a stream that catches up: the same as those of one batch; and what comes too late for them is kept.

Covers pipeline/mediation/execution/late_rows.py and pipeline/mediation/execution/source_ranges.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record

from holdfast.pipeline.landing.tables import read_landed
from holdfast.pipeline.mediation.definition.file import Pipeline
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.run import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOON = 1_700_006_400.0
"""A full hour, in seconds since 1970."""


def put(server: FakeServer, partition: int, *minutes: float) -> None:
    """Records that were delivered so many minutes after noon."""
    first = len(server.queues["orders"].partitions[partition])
    times = [NOON + 60 * minute for minute in minutes]
    server.append("orders", partition, [record(first + n, received_at=at) for n, at in enumerate(times)])


def counted(rows: DataFrame) -> dict[int, int]:
    """Minute after noon at which a window begins -> its rows."""
    return {round((row.start.timestamp() - NOON) / 60): row.many for row in rows.collect()}


@pytest.mark.nightly
def test_a_catch_up_gives_the_windows_of_one_batch_and_counts_late_rows(
    spark: SparkSession, server: FakeServer, tmp_path: Path, patiently: Callable[..., Any]
) -> None:
    server.create("orders", partitions=3)
    put(server, 0, *(minute / 2 for minute in range(240)))  # a backlog of two hours
    put(server, 1, *(100 + minute / 6 for minute in range(120)))
    put(server, 2, 119, 120)
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path / "checkpoint"))
    made.source("orders", broker=server.url, queue="orders", options={"maxRowsPerBatch": 150})
    sql = "SELECT w.start, many FROM (SELECT window(delivered_at, '10 minutes') w, count(*) many FROM {} GROUP BY 1)"
    made.step("counted", sql=sql.format("orders"), state={"late": "1m"})
    made.sink("out", table=str(tmp_path / "out"))
    made.route("counted", "out")
    made.dead_letters(table=str(tmp_path / "dead"))
    batches: list[MediatedBatch] = []

    def catch_up() -> None:
        def once() -> None:
            batches.clear()
            started = run(spark, made.plan(), available_now=True, on_batch=batches.append)
            while not started.wait(60):
                pass

        patiently(once)

    catch_up()
    assert len([batch for batch in batches if batch.query == "counted"]) >= 3
    spark.read.format("wsrm").options(broker=server.url, queue="orders").load().createOrReplaceTempView("whole")
    whole = counted(spark.sql(sql.format("whole")))
    landed = counted(read_landed(spark, str(tmp_path / "out")))
    assert landed == {start: many for start, many in whole.items() if start < 110}  # later ones are not final
    assert sum(batch.late for batch in batches) == 0
    assert sum(batch.rows for batch in batches) == 362  # messages, not windows

    put(server, 1, 3, 4, 121)  # as from a server whose clock was set back; one window
    put(server, 2, 111)  # older than the watermark, 119, but its window is open: Spark counts it
    catch_up()
    assert sum(batch.late for batch in batches) == 1
    assert sum(batch.dead for batch in batches) == 3
    letters = read_landed(spark, str(tmp_path / "dead" / "query=counted")).collect()
    assert {(row.step, row.partition, row.offset) for row in letters} == {
        ("counted", 1, 120),
        ("counted", 1, 121),
        ("counted", 2, 2),
    }
    assert "the watermark of batch" in letters[0].reasons[0]
