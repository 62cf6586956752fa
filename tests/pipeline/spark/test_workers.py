"""What is left to PySpark to collect after each task in a worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER = """
import gc, sys
{daemon}
from holdfast.pipeline.spark.workers import spare_collections

def left():
    return len(gc.get_objects())

before = left()
spare_collections()
spared = left()
kept = [[one] for one in range(5_000)]
spare_collections()
again = left()
import wave
spare_collections()
print(before > 1_000, spared < 100, again >= 5_000, left() < 100)
"""
DAEMON = "import importlib.machinery as m; sys.modules['__main__'].__spec__ = m.ModuleSpec('pyspark.daemon', None)"


@pytest.mark.parametrize(
    ("daemon", "told"),
    [(DAEMON, "True True True True"), ("", "True False True False")],
    ids=["in a worker", "elsewhere nothing"],
)
def test_what_is_loaded_is_spared_once_and_again_when_more_is_loaded(daemon: str, told: str):
    source = str(Path(__file__).parents[3] / "src")
    command = [sys.executable, "-c", WORKER.format(daemon=daemon)]
    done = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told


def _left(batches: Iterator[Any]) -> Iterator[Any]:
    import gc

    import pyarrow as pa

    from holdfast.pipeline.spark.workers import spare_collections

    spare_collections()
    yield from (pa.RecordBatch.from_pydict({"left": [len(gc.get_objects())]}) for _ in batches)


@pytest.mark.spark
def test_a_worker_of_spark_is_known_as_one(spark: SparkSession):
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(_left, "left BIGINT").collect()
    assert row.left < 5_000, "all that PySpark has loaded is some 60,000 objects"
