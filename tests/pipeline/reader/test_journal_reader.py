"""The event journal of a real destination as a table, read as Spark's tasks do: over HTTP, file by file.

Covers client/journal.py and pipeline/reader/journal.py.
"""

from __future__ import annotations

import asyncio
import io
import logging
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from waiting import until

from holdfast import Destination, Source
from holdfast.client.data_plane import Patience
from holdfast.client.errors import PipelineError, RecordsTrimmed
from holdfast.client.journal import JournalClient, JournalFile, RemoteFile
from holdfast.endpoint.journal import parquet as journal_parquet
from holdfast.endpoint.journal import writer as room
from holdfast.endpoint.journal.files import HEADER, frames_of, rows_of, segments
from holdfast.endpoint.journal.parquet import to_parquet_all
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reader import journal as journal_reader
from holdfast.pipeline.reader.journal import shared_out
from holdfast.pipeline.source import WsrmDataSource

T = 1_700_000_000
"""A second: events of the files that are made here are from then on."""


def segment(directory: Path, name: str, *entries: tuple[Any, ...]) -> Path:
    """A complete file whose events have these entries."""
    path = directory / f"_{name}.journal"
    frames = b"".join(frames_of(name, None, ordinal, [one])[0] for ordinal, one in enumerate(entries))
    path.write_bytes(HEADER + frames)
    return path


def event(at: float, name: str = "incident", sequence: str | None = None, queue: str | None = None) -> tuple[Any, ...]:
    return ("r", [(at, name, sequence, None, None, queue, None, None, None, None, None, None, None)])


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A destination with a journal that it writes: a file that is not sealed, and what the test puts beside it."""
    monkeypatch.setattr(room, "WRITE_EVERY", 0.02)
    service = Service(Destination(tmp_path / "inbox", partitions=1), Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    async with Source(service.url, ":memory:") as source:
        await source.send("<n/>", action="urn:test:submit")
        await source.flush(60)
    journal = service.app.running.journal
    assert journal is not None
    await until(lambda: journal.written == journal.collector.count)
    yield service
    await service.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "inbox" / "journal"


def reader(admin: str, **options: str) -> Any:
    given = CaseInsensitiveDict({"broker": admin, "read": "journal", "awaySeconds": "0", **options})
    made = WsrmDataSource(options=given)
    return pickle.loads(pickle.dumps(made.reader(made.schema())))


def rows_in(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


async def read(service: Service, **options: str) -> list[dict[str, Any]]:
    def run() -> list[dict[str, Any]]:
        task = reader(service.admin_url, **options)
        return rows_in(task, task.partitions())

    return await asyncio.to_thread(run)


def micros(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file that is not Parquet, as others have it."""
    return row | {name: row[name] and round(row[name] * 1e6) for name in ("at", "since")}


def on_disk(directory: Path) -> list[dict[str, Any]]:
    found = []
    for one in segments(directory):
        if one.is_parquet:
            found += pq.read_table(one.path).to_pylist()
        else:
            with one.path.open("rb") as file:
                found += rows_of(file)
    return [one if not isinstance(one["at"], float) else micros(one) for one in found]


def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        return round(value.timestamp() * 1e6) if hasattr(value, "timestamp") else value

    return sorted((tuple((name, plain(value)) for name, value in sorted(row.items())) for row in rows), key=repr)


async def test_every_event_is_a_row_whether_its_file_is_parquet_complete_or_being_written(
    service: Service, directory: Path
) -> None:
    segment(directory, "1", *(event(T + number, sequence="urn:a", queue="q") for number in range(50)))
    to_parquet_all(directory)
    segment(directory, "2", event(T + 60.5, "delivered", "urn:b", "p"))
    kinds = [(one.is_parquet, one.is_live) for one in segments(directory)]
    assert sorted(set(kinds)) == [(False, False), (False, True), (True, False)]
    rows = await read(service)
    assert comparable(rows) == comparable(on_disk(directory))
    assert len(rows) > 60
    assert {"delivered", "acknowledged"} <= {row["event"] for row in rows}


@pytest.mark.parametrize("is_parquet", [False, True])
async def test_a_file_that_is_damaged_is_named_and_the_others_are_read(
    service: Service, directory: Path, is_parquet: bool
) -> None:
    for name in ("1-one-1", "2-two-1"):
        segment(directory, name, *(event(T + number, sequence="urn:a", queue="q") for number in range(5)))
    if is_parquet:
        to_parquet_all(directory)
    (damaged,) = (one for one in segments(directory) if one.name == "1-one-1")
    data = bytearray(damaged.path.read_bytes())
    data[len(data) // (5 if is_parquet else 2)] ^= 1
    damaged.path.write_bytes(bytes(data))
    rows = await read(service)
    (told,) = (row for row in rows if row["event"] == "damaged")
    assert told["detail"].startswith(damaged.file + ": ")
    assert told["run"] == "one"
    runs = Counter(row["run"] for row in rows if row["event"] == "incident")
    assert runs["2-two-1"] == 5
    assert runs["1-one-1"] == (0 if is_parquet else 2)


@pytest.mark.parametrize("is_parquet", [False, True])
@pytest.mark.parametrize(
    ("options", "ordinals"),
    [
        ({"sequence": "urn:a"}, [1, 2]),
        ({"queue": "p"}, [2, 3]),
        ({"queue": "p,q"}, [1, 2, 3]),
        ({"queuePattern": "[pq]"}, [1, 2, 3]),
        ({"sequence": "urn:a", "queue": "p"}, [2]),
        ({"sequence": "urn:nobody"}, []),
        ({"endingTimestamp": "2023-11-14T22:13:22Z"}, [0, 1]),
        ({"startingTimestamp": str((T + 1) * 1000), "endingTimestamp": str((T + 3) * 1000)}, [1, 2]),
        ({"startingTimestamp": "2023-11-14T22:13:23Z", "endingTimestamp": "2023-11-14T22:13:23.000001Z"}, [3]),
        ({"endingTimestamp": "2023-11-14T22:13:20Z"}, []),
    ],
)
async def test_it_is_narrowed_by_options(
    service: Service, directory: Path, options: dict[str, str], ordinals: list[int], *, is_parquet: bool
) -> None:
    segment(
        directory,
        "1",
        event(T),
        event(T + 1, sequence="urn:a", queue="q"),
        event(T + 2, sequence="urn:a", queue="p"),
        event(T + 3, sequence="urn:b", queue="p"),
    )
    if is_parquet:
        to_parquet_all(directory)
    assert [row["ordinal"] for row in await read(service, **options)] == ordinals
    rows = await read(service, columns="ordinal,event", **options)
    assert [set(row) for row in rows] == [{"ordinal", "event"}] * len(ordinals)


async def test_of_parquet_only_what_is_wanted_is_fetched(
    service: Service, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_parquet, "ROWS_A_GROUP", 1000)
    names = Random(1)
    segment(directory, "1", *(event(T + number, names.randbytes(100).hex()) for number in range(5000)))
    to_parquet_all(directory)
    size = (directory / "1.parquet").stat().st_size
    fetched: list[int] = []
    octets = JournalClient.octets

    def counted(client: JournalClient, name: str, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return octets(client, name, start, end)

    monkeypatch.setattr(JournalClient, "octets", counted)
    until_then = {"endingTimestamp": str((T + 5000) * 1000)}
    assert len(await read(service, **until_then)) == 5000
    whole = sum(fetched)
    assert whole > size * 0.9
    fetched.clear()
    assert len(await read(service, columns="ordinal", **until_then)) == 5000
    assert sum(fetched) < whole / 4
    fetched.clear()
    part = {"startingTimestamp": str((T + 2500) * 1000), "endingTimestamp": str((T + 2600) * 1000)}
    assert [row["ordinal"] for row in await read(service, **part)] == list(range(2500, 2600))
    assert sum(fetched) < whole / 2


@pytest.mark.parametrize("buffer", [1 << 20, 256])
async def test_a_file_that_becomes_parquet_while_it_is_read_gives_each_event_once(
    service: Service, directory: Path, monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(journal_reader, "PIECE", buffer)
    monkeypatch.setattr(journal_reader, "ROWS", 7)
    segment(directory, "1", *(event(T + number) for number in range(40)))

    def run() -> list[int]:
        task = reader(service.admin_url, columns="ordinal,at", endingTimestamp=str((T + 99) * 1000))
        planned = task.partitions()
        (partition,) = [one for one in planned if any(file.name == "1.journal" for file in one.files)]
        found: list[int] = []
        for batch in task.read(partition):
            found += batch.column("ordinal").to_pylist()
            to_parquet_all(directory)
        return found

    assert await asyncio.to_thread(run) == list(range(40))


async def test_a_file_that_is_parquet_when_a_task_begins_is_read_so(service: Service, directory: Path) -> None:
    segment(directory, "1", *(event(T + number) for number in range(40)))
    task = await asyncio.to_thread(reader, service.admin_url, endingTimestamp=str((T + 99) * 1000))
    planned = await asyncio.to_thread(task.partitions)
    to_parquet_all(directory)
    rows = await asyncio.to_thread(rows_in, task, planned)
    assert [row["ordinal"] for row in rows] == list(range(40))


async def test_a_file_that_is_kept_no_longer_ends_the_read_or_is_skipped_and_told(
    service: Service, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [segment(directory, name, event(T)) for name in ("1", "2")]
    until_then = {"endingTimestamp": str((T + 99) * 1000), "tasks": "1"}
    strict = await asyncio.to_thread(reader, service.admin_url, **until_then)
    lenient = await asyncio.to_thread(reader, service.admin_url, failOnDataLoss="false", **until_then)
    planned = await asyncio.to_thread(strict.partitions)
    assert len(planned) == 1
    paths[0].unlink()
    with pytest.raises(RecordsTrimmed, match=r"1\.journal .* no longer kept") as caught:
        await asyncio.to_thread(rows_in, strict, planned)
    assert "failOnDataLoss" in caught.value.remedy
    with caplog.at_level(logging.WARNING, "holdfast.pipeline"):
        rows = await asyncio.to_thread(rows_in, lenient, planned)
    assert [row["run"] for row in rows] == ["2"]
    assert "1.journal" in caplog.text


async def test_a_file_that_was_cut_off_since_it_was_listed_ends_where_it_is_whole(
    service: Service, directory: Path
) -> None:
    path = segment(directory, "1", *(event(T + number) for number in range(4)))
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00\x40torn")
    task = await asyncio.to_thread(reader, service.admin_url, endingTimestamp=str((T + 99) * 1000))
    planned = await asyncio.to_thread(task.partitions)
    path.write_bytes(path.read_bytes()[:-8])
    assert len(await asyncio.to_thread(rows_in, task, planned)) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("endingOffsets", '{"0": 1}'),
        ("timestampType", "received"),
        ("partitions", "0"),
        ("action", "urn:a"),
        ("body", "false"),
        ("headers", "true"),
        ("reader", "r"),
        ("maxRowsPerBatch", "5"),
    ],
)
def test_what_only_messages_have_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {name} is for messages, but the journal is read") as caught:
        reader("http://127.0.0.1:1", **{name: value, "queue": "orders"})
    assert "startingTimestamp" in caught.value.remedy


def test_a_column_that_it_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="'sequnce', but read=journal has no such column"):
        reader("http://127.0.0.1:1", columns="sequnce")


def test_it_is_no_stream() -> None:
    options = CaseInsensitiveDict({"broker": "http://127.0.0.1:1", "read": "journal", "reader": "a"})
    made = WsrmDataSource(options=options)
    with pytest.raises(ConfigurationError, match="option read is for batch reads"):
        made.streamReader(made.schema()).initialOffset()


async def test_a_server_without_a_journal_is_reported() -> None:
    service = Service(Destination(":memory:"), Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    try:
        with pytest.raises(PipelineError, match="this server has no event journal") as caught:
            await read(service)
        assert "--journal" in caught.value.remedy
    finally:
        await service.close()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    content, asked = bytes(range(100)), []

    class Breaks(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            start, end = (int(one.partition("=")[2]) for one in self.path.partition("?")[2].split("&"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content[start:end] if len(asked) % 2 == 0 else content[start : end - 1])

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Breaks)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        client = JournalClient(f"http://127.0.0.1:{server.server_port}")
        patience = Patience(60.0, sleep=lambda _: None)
        with io.BufferedReader(RemoteFile(client, JournalFile("1:x.journal", 100), patience), 30) as file:
            assert file.read(10) == content[:10]
            assert file.read() == content[10:]
            assert file.seek(-5, io.SEEK_END) == 95
            assert file.read(50) == content[95:]
            assert file.seek(200) == 200
            assert file.read(1) == b""
        client.close()
        assert asked[0] == asked[1] == "/journal/1%3Ax.journal?from=0&to=30"
    finally:
        server.shutdown()
        server.server_close()


@given(
    sizes=st.lists(st.integers(0, 1 << 30), max_size=60),
    most=st.none() | st.integers(1, 20),
    least=st.integers(1, 10),
)
def test_each_file_is_in_one_task_and_tasks_are_as_many_as_asked_for(
    sizes: list[int], most: int | None, least: int
) -> None:
    files = [JournalFile(str(number), size) for number, size in enumerate(sizes)]
    shares = shared_out(files, most, least)
    assert sorted((one for share in shares for one in share), key=lambda one: int(one.name)) == files
    assert all(shares)
    assert len(shares) == min(len(files), most) if most is not None else len(shares) >= min(len(files), least)
    if shares and most is None:
        loads = [sum(one.size for one in share) for share in shares]
        assert max(loads) <= max(2 * journal_reader.TASK_BYTES, *sizes, 1)


def test_spark_placeholder_of_a_read_without_files_gives_nothing() -> None:
    assert list(reader("http://127.0.0.1:1").read(InputPartition(None))) == []
