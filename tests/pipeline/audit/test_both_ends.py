"""A source's journal and a destination's: each message from one end to the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import Destination, Source
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.both_ends import both_ends
from holdfast.pipeline.journal import read_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def send(directory: Path) -> None:
    """Messages of two keys, in two runs of the source; and one that the source's journal knows nothing of."""
    service = Service(Destination(directory / "inbox", partitions=2), Listeners(port=0))
    await service.start()
    for run in range(2):
        async with Source(service.url, directory / "outbox", journal=True) as source:
            for number in range(4):
                await source.send(f"<n>{run}{number}</n>", action="urn:a", sequence_key=f"key-{number % 2}")
            await source.flush(60)
    async with Source(service.url, ":memory:") as source:
        await source.send("<n/>", action="urn:a")
        await source.flush(60)
    await service.close()


@pytest.mark.spark
def test_each_message_is_followed_from_the_source_to_the_queue(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(send(tmp_path))
    sent, arrived = read_journal(spark, tmp_path / "outbox"), read_journal(spark, tmp_path / "inbox")
    rows = both_ends(sent, arrived).collect()
    assert len(rows) == len({(row.sequence, row.number) for row in rows}) == 8
    assert len({row.key for row in rows}) == 2
    assert all(row.submitted_at <= row.delivered_at and 0 <= row.seconds < 60 for row in rows)
    first = min(rows, key=lambda row: (row.submitted_at, row.number))
    assert first.number == 1
