"""A real server whose store is put back to an older copy and grows past what a query has read."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast import Destination, Source
from holdfast.client.errors import OffsetRefused
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource
from holdfast.testing.ports import free_ports


class Server:
    """One destination over one directory, at ports that stay the same."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._ports = free_ports(2)

    async def start(self, *, restored: bool = False) -> None:
        app = Destination(self._store, partitions=1).keep(restored=restored)
        self._service = Service(app, Listeners(port=self._ports[0], admin=AdminListener(port=self._ports[1])))
        await self._service.start()

    async def stop(self) -> None:
        await self._service.close()

    async def send(self, count: int, what: str) -> None:
        async with Source(f"http://127.0.0.1:{self._ports[0]}/", ":memory:") as source:
            for number in range(count):
                await source.send(f"<{what}>{number}</{what}>", action="urn:a")
            await source.flush(60)

    def reader(self, **more: str) -> WsrmStreamReader:
        options = {"broker": f"http://127.0.0.1:{self._ports[1]}", "reader": "audit", "waitSeconds": "0"}
        source = WsrmDataSource(options=CaseInsensitiveDict({**options, **more}))
        return source.streamReader(source.schema())


def advance(reader: WsrmStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


async def test_whatever_the_store_is_restored_to_a_query_skips_no_unread_record(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "inbox")
    await server.start()
    await server.send(5, "before")
    await server.stop()
    shutil.copytree(tmp_path / "inbox", tmp_path / "copy")

    await server.start()
    await server.send(5, "lost")
    first = await asyncio.to_thread(server.reader().initialOffset)
    end = await asyncio.to_thread(advance, server.reader(), first)
    assert end["inbox/0"] == 10
    await server.stop()

    shutil.rmtree(tmp_path / "inbox")
    shutil.copytree(tmp_path / "copy", tmp_path / "inbox")
    await server.start()
    await server.send(8, "after")
    assert first["inbox/0"] == 0, "where nothing was read, nothing can differ"
    assert (await asyncio.to_thread(advance, server.reader(), first))["inbox/0"] == 13
    reader = server.reader()

    def read_again(**more: str) -> None:
        for partition in reader.partitions(first, end):
            list(server.reader(**more).read(partition))

    for call in (
        lambda: advance(reader, end),
        lambda: reader.commit(end),
        read_again,
        lambda: read_again(columns="offset"),
    ):
        with pytest.raises(OffsetRefused, match="older copy") as caught:
            await asyncio.to_thread(call)
        assert "--restored" in caught.value.remedy
    await server.stop()

    await server.start(restored=True)
    with pytest.raises(OffsetRefused, match="epoch"):
        await asyncio.to_thread(advance, server.reader(), end)
    await server.stop()


async def test_a_store_that_was_only_moved_goes_on(tmp_path: Path) -> None:
    server = Server(tmp_path / "inbox")
    await server.start()
    await server.send(5, "before")
    reader = server.reader()
    first = await asyncio.to_thread(reader.initialOffset)
    end = await asyncio.to_thread(advance, reader, first)
    await server.stop()
    shutil.copytree(tmp_path / "inbox", tmp_path / "moved")
    shutil.rmtree(tmp_path / "inbox")
    shutil.move(tmp_path / "moved", tmp_path / "inbox")
    await server.start()
    await server.send(3, "after")
    again = server.reader()
    await asyncio.to_thread(again.commit, end)
    assert (await asyncio.to_thread(advance, again, end))["inbox/0"] == 8
    await server.stop()
