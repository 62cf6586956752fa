"""Jobs of one batch side by side.

Covers pipeline/mediation/execution/parallel_jobs.py.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline.mediation.execution.parallel_jobs import MOST, side_by_side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_jobs_run_at_once_with_the_callers_properties_and_ordered_results(
    spark: SparkSession,
) -> None:
    both = threading.Barrier(2, timeout=60)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "of the caller")

    def job(number: int) -> tuple[int, str | None, int]:
        both.wait()
        rows = spark.read.format("wsrm").options(broker="http://127.0.0.1:9", queue="orders", read="letters")
        told = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        return number, told, len(rows.load().columns)  # the format is found in each thread

    try:
        found = side_by_side(spark, [lambda n=n: job(n) for n in range(2)])  # type: ignore[misc]
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    assert found == [(0, "of the caller", 21), (1, "of the caller", 21)]


def test_the_first_jobs_error_is_raised_once_all_that_began_have_ended(spark: SparkSession) -> None:
    failed, ended = threading.Event(), []

    def fails() -> None:
        failed.set()
        raise ValueError("of the first")

    def ends() -> None:
        failed.wait(60)
        ended.append(1)
        raise ValueError("of the second")

    with pytest.raises(ValueError, match="of the first"):
        side_by_side(spark, [fails, ends])
    assert len(ended) <= 1
    assert side_by_side(spark, [lambda n=n: n for n in range(3 * MOST)]) == list(range(3 * MOST))  # type: ignore[misc]
