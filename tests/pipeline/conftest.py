"""A fake server for each test, and one Spark session for all tests of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from quick_spark import quick_spark

if TYPE_CHECKING:
    from fake_server import FakeServer
    from pyspark.sql import SparkSession

T = TypeVar("T")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A running server without a queue."""
    from fake_server import FakeServer

    fake = FakeServer().start()
    yield fake
    fake.stop()


@pytest.fixture(scope="session")
def patiently() -> Callable[[Callable[[], T]], T]:
    """Calls something that starts a query; again if Spark, which gives a source's Python process ten seconds to start,
    did not wait for it."""
    from pyspark.errors import StreamingQueryException

    def call(start: Callable[[], T]) -> T:
        until = time.monotonic() + 300
        while True:
            try:
                return start()
            except StreamingQueryException as error:
                if "Python worker failed to connect back" not in str(error) or time.monotonic() > until:
                    raise

    return call


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from holdfast.pipeline import session

    with pytest.MonkeyPatch.context() as patch:
        # Workers are processes of their own: they find the package where this one does.
        source = str(Path(__file__).parents[2] / "src")
        patch.setenv("PYTHONPATH", source, prepend=":")
        for name, value in quick_spark().items():
            patch.setenv(name, value)
        spark = session(
            "holdfast tests",
            "local[2]",
            **{"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")), "spark.driver.memory": "1g"},
        )
        yield spark
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its standard input
        gateway.proc.wait(120)
