"""Bounds of columns in the log of a Delta table, for every value that Spark can have."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from holdfast.pipeline.landing import statistics

pytestmark = pytest.mark.spark
EPOCH = datetime(1970, 1, 1)
LAST = (datetime.max - EPOCH) // timedelta(microseconds=1)
"""The last microsecond of year 9999, which .NET sends as ``DateTime.MaxValue``."""
FIRST = (datetime.min - EPOCH) // timedelta(microseconds=1)


def told(kind: T.DataType, value: Any) -> tuple[Any, Any]:
    row = {"rows": 1, "count_0": 1, "min_0": value, "max_0": value}
    made = statistics.told([T.StructField("a", kind)], row)
    return made["minValues"].get("a"), made["maxValues"].get("a")


@given(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(LAST - 2000, LAST + 2000), st.integers(FIRST, FIRST + 2000))
)
def test_a_time_is_within_its_bounds_or_has_none(micros: int) -> None:
    least, greatest = told(T.TimestampType(), micros)
    for bound, is_greatest in ((least, False), (greatest, True)):
        if bound is not None:
            # A whole millisecond, on the right side, and no further off than one.
            ahead = (datetime.fromisoformat(bound.removesuffix("Z")) - EPOCH) // timedelta(microseconds=1) - micros
            assert 0 <= (ahead if is_greatest else -ahead) < 1000
    assert (least is not None) is (FIRST <= micros <= LAST)
    assert (greatest is not None) is (FIRST - 999 <= micros <= LAST - 999)


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_day_is_its_own_bound_or_has_none(days: int) -> None:
    known = FIRST <= days * 86_400_000_000 <= LAST
    bounds = told(T.DateType(), days)
    assert bounds == (((EPOCH + timedelta(days=days)).date().isoformat(),) * 2 if known else (None, None))


def test_spark_counts_days_and_times_beyond_the_years_of_python(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT timestamp_micros(9223372036854775807) AS t, date_from_unix_date(2147483647) AS d, 7 AS n "
        f"UNION ALL SELECT timestamp_micros({LAST}), date_from_unix_date(0), 9"
    )
    columns = statistics.described(rows.schema)
    (row,) = rows.agg(*statistics.asked(columns)).collect()
    made = statistics.told(columns, row.asDict())
    assert made["minValues"] == {"t": "9999-12-31T23:59:59.999Z", "d": "1970-01-01", "n": 7}
    assert made["maxValues"] == {"n": 9}
