"""A journal as a DataFrame: the same, whether it is read from the disk or asked of the server that writes it.

Covers pipeline/journal.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

from holdfast import ConfigurationError, Destination, JournalPolicy, Source
from holdfast.endpoint.journal import writer as room
from holdfast.endpoint.journal.files import segments
from holdfast.endpoint.journal.parquet import to_parquet_all
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.journal import is_address, read_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "secret-of-the-test"


@contextmanager
def serving(store: Path, messages: int) -> Iterator[str]:
    """The admin listener of a destination that has got so many messages, and whose journal has every event of them in
    files, Parquet ones and one that is being written."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def run(what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, loop).result(60)

    async def start() -> Service:
        app = Destination(store, partitions=1, journal=JournalPolicy(file_size=2000))
        service = Service(app, Listeners(port=0, admin=AdminListener(port=0, token=TOKEN)))
        await service.start()
        async with Source(service.url, ":memory:") as source:
            for _ in range(messages):
                await source.send("<n/>", action="urn:test:submit")
            await source.flush(60)
        assert app.running.journal is not None
        journal = app.running.journal
        await until(lambda: journal.written == journal.collector.count)
        return service

    service = run(start())
    try:
        yield service.admin_url
    finally:
        run(service.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.spark
def test_a_journal_is_the_same_from_its_directory_and_from_the_server_that_writes_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patiently: Callable[..., Any]
) -> None:
    monkeypatch.setattr(room, "WRITE_EVERY", 0.02)
    (tmp_path / "token").write_text(TOKEN)
    with serving(tmp_path / "one", 3):
        pass
    to_parquet_all(tmp_path / "one" / "journal")
    with serving(tmp_path / "one", 5) as address:
        assert {(one.is_parquet, one.is_live) for one in segments(tmp_path / "one" / "journal")} >= {
            (True, False),
            (False, True),
        }
        near = read_journal(spark, tmp_path / "one")
        far = read_journal(spark, address, tokenFile=str(tmp_path / "token"))
        assert near.schema == far.schema
        rows = near.collect()
        assert len(rows) > 20
        both = read_journal(spark, tmp_path / "one", address, token=TOKEN).collect()
        assert Counter(both) == Counter(rows)  # not twice, which would be violations
        source = spark.read.format("wsrm").options(broker=address, read="journal", token=TOKEN, queue="inbox")
        delivered = source.option("columns", "event,number").load().where("event = 'delivered'")
        assert sorted(row.number for row in delivered.collect()) == [1, 1, 2, 2, 3, 3, 4, 5]


def test_a_place_is_an_address_or_a_directory(tmp_path: Path) -> None:
    assert is_address("http://127.0.0.1:8081")
    assert is_address("https://broker.example/below")
    assert not any(is_address(one) for one in ("broker", "/http://x", "httpd", tmp_path))
    with pytest.raises(ConfigurationError, match="contains no event journal"):
        read_journal(None, tmp_path)  # type: ignore[arg-type]
