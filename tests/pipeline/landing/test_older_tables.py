"""Tables that an older version landed are read by this one, and their landing continues from its checkpoint."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from older import ClockOfThen, unpack

from holdfast import Destination, Source, Versions
from holdfast.endpoint.engine.clock import Clock
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.landing.conversion import Conversion, convert
from holdfast.pipeline.landing.tables import land, read_landed, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ACTION = "urn:test:submit"


@asynccontextmanager
async def with_five_more(store: Path, clock: Clock) -> AsyncIterator[Service]:
    app = Destination(store, partitions=2)
    app.settings.clock = clock
    service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    async with Source(service.url, ":memory:", versions=Versions("1.1")) as source:
        for number in range(10, 15):
            await source.send(f"<order><id>{number}</id></order>", action=ACTION)
        await source.flush(60)
    try:
        yield service
    finally:
        await service.close(1)


@contextmanager
def served(store: Path, clock: Clock) -> Iterator[str]:
    """The URL of its admin listener, while a thread serves it."""
    started, stopping, found = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with with_five_more(store, clock) as service:
            found.append(service.admin_url)
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, stopping.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(120)
        yield str(found[0])
    finally:
        stopping.set()
        thread.join()


def test_a_landing_of_an_older_version_continues_once(spark: SparkSession, tmp_path: Path, patiently: Any) -> None:
    facts = unpack("tables", tmp_path)
    for name in ("", ".checkpoint"):
        shutil.copytree(tmp_path / f"parquet{name}", tmp_path / f"converted{name}")
    assert convert(spark, str(tmp_path / "converted")) == Conversion(10, 10, 2)
    with served(tmp_path / "queue", ClockOfThen(facts["written_at"] + 600)) as url:
        for name, kind in (("parquet", "parquet"), ("delta", "delta"), ("converted", "delta")):
            out = tmp_path / name
            assert sorted(row.id for row in read_landed(spark, str(out)).collect()) == list(range(10))

            def landing(out: Path = out) -> bool | None:
                query = land(
                    spark,
                    url,
                    "inbox",
                    str(out),
                    schema="id INT",
                    checkpoint=f"{out}.checkpoint",
                    trigger={"availableNow": True},
                )
                return query.awaitTermination(280)

            assert patiently(landing)
            assert sorted(row.id for row in read_landed(spark, str(out)).collect()) == list(range(15))
            assert table_of(spark, str(out)).kind == kind
