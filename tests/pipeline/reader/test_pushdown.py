"""Why the source pushes no filter down: what Spark does with filters that a Python source takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, Filter, InputPartition

pytestmark = pytest.mark.spark


def ten_rows() -> type[DataSource]:
    """A source of the numbers 0 to 9 that applies every ``n = value`` itself. Made in a function, so that its class
    goes to Spark's workers by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self._equal: list[object] = []

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for one in filters:
                if isinstance(one, EqualTo):
                    self._equal.append(one.value)
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((n,) for n in range(10) if all(n == value for value in self._equal))

    class TenRows(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ten_rows"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: object) -> Reader:
            return Reader()

    return TenRows


def test_spark_applies_a_pushed_filter_to_the_other_plans_of_a_dataframe(spark: SparkSession):
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(ten_rows())
    frame = session.read.format("ten_rows").load()
    assert frame.where("n = 3").count() == 1
    assert frame.count() == 1, "Spark is fixed: push filters now"  # there are ten rows
