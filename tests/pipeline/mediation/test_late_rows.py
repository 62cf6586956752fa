"""Windows of a stream that catches up: the same as those of one batch; and what comes too late for them is kept.

Covers pipeline/mediation/execution/late_rows.py and pipeline/mediation/execution/source_ranges.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record
from pyspark.errors import StreamingQueryException

from holdfast.pipeline.landing.tables import read_landed
from holdfast.pipeline.mediation.definition.file import Pipeline
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.run import run
from holdfast.pipeline.mediation.execution.settled import Settled
from holdfast.pipeline.mediation.execution.sinks import read_dead_letters

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


ROUNDS = (
    {0: ["no", "2020-01-01T00:00:00Z", "never", "2020-01-01T00:30:00Z", "not"], 1: ["none"]},
    {0: ["2020-01-01T00:10:00Z"], 1: ["nowhere", "2020-01-03T00:00:00Z"]},
    {0: ["2020-01-02T12:00:00Z", "nothing"], 1: ["2020-01-02T23:30:00Z"]},
)
"""Times and other texts for each partition of a queue. In the second round, one time is older than the watermark, but
its window of an hour is open. In the third, Spark drops one, and another one's window is open."""
STARTS: dict[str, tuple[dict[str, str], tuple[int, int]]] = {
    "earliest": ({}, (0, 0)),
    "offsets": ({"startingOffsets": '{"0": 2, "1": -1}'}, (2, 1)),
    "latest": ({"startingOffsets": "latest"}, (5, 1)),
}
"""Options of the source, and the first offset of each partition that it reads."""
NO_TIME = "at is null, so the row has no time, and no result includes it"


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("start", STARTS)
def test_each_message_without_a_time_is_a_dead_letter_after_any_start(
    spark: SparkSession,
    server: FakeServer,
    tmp_path: Path,
    patiently: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    start: str,
    times: int,
) -> None:
    """The first attempt of batch 0 ends before it is settled. SQL may name an input twice."""
    options, begins = STARTS[start]
    server.create("orders", partitions=2)
    made = Pipeline()
    made.settings(name="p", checkpoint=str(tmp_path / "work"))
    made.source("orders", broker=server.url, queue="orders", options=options)
    made.step("given", sql="SELECT *, try_cast(body AS TIMESTAMP) AS at FROM orders")
    rows = " UNION ALL ".join(["SELECT at FROM given"] * times)
    sql = f"SELECT window(at, '1 hour') AS w, count(*) AS many FROM ({rows}) GROUP BY 1"
    made.step("counted", sql=sql, state={"time": "At"})
    made.sink("out", table=str(tmp_path / "out"))
    made.route("counted", "out")
    made.dead_letters(table=str(tmp_path / "dead"))
    batches: dict[int, MediatedBatch] = {}
    settle, crashes = Settled.settle, ["the first attempt"]

    def crashing(self: Settled, known: Mapping[str, int], outputs: Mapping[str, DataFrame]) -> dict[str, int]:
        if crashes:
            raise OSError(crashes.pop())
        return settle(self, known, outputs)

    def once() -> None:
        started = run(spark, made.plan(), available_now=True, on_batch=lambda one: batches.update({one.batch: one}))
        while not started.wait(60):
            pass

    monkeypatch.setattr(Settled, "settle", crashing)
    messages, late = dict[tuple[int, int], str](), dict[tuple[int, int], str]()
    for number, bodies in enumerate(ROUNDS):
        for partition, texts in bodies.items():
            first = len(server.queues["orders"].partitions[partition])
            server.append("orders", partition, [record(first + n, text) for n, text in enumerate(texts)])
            messages |= {(partition, at): text for at, text in enumerate(texts, first) if at >= begins[partition]}
        if messages and crashes:
            with pytest.raises(StreamingQueryException, match="the first attempt"):
                patiently(once)
        patiently(once)
        if number == 2:
            late = {at: "the watermark of batch" for at, text in messages.items() if text.startswith("2020-01-02")}
        untimed = {at: NO_TIME for at, text in messages.items() if not text.startswith("2020")}
        letters = read_dead_letters(spark, str(tmp_path / "dead")).collect() if untimed else []
        assert {(row["partition"], row["offset"]) for row in letters} == {*untimed, *late}
        for row in letters:
            assert (untimed | late)[row["partition"], row["offset"]] in row["reasons"][0], row
        rows_read, dropped, dead = (
            sum(getattr(one, of) for one in batches.values()) for of in ("rows", "late", "dead")
        )
        assert (rows_read, dead) == (len(messages), len(letters))
        assert dropped - len(untimed) in (range(1, times + 1) if late else [0])
    assert not crashes
    ended = sum(text.startswith("2020-01-01") for text in messages.values())
    assert sum(row.many for row in read_landed(spark, str(tmp_path / "out")).collect()) == times * ended
