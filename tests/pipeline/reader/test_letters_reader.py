"""Dead letters as a table: a real destination's, read as a task does.

Covers pipeline/reader/letter_columns.py and pipeline/reader/letters.py.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import holdfast
from holdfast import Destination, HandlingPolicy
from holdfast.core.queues.dead_letters import Letter, Origin
from holdfast.core.records import Record
from holdfast.endpoint.handling import dead_letters as endpoint_letters
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.source import WsrmDataSource

ACTION = "urn:test:submit"
FORWARDED = Record(
    "urn:other", 7, "urn:test:other", "<ü/>".encode(), 50.0, message_id="urn:m7", to="http://a/", soap="1.1"
)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[str]:
    """The admin listener of a destination with three letters of a handler, and one of a forwarder."""
    app = Destination(tmp_path / "inbox", handling=HandlingPolicy(attempts=1))

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        raise ConnectionError("the database is away")

    service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    async with holdfast.Source(service.url, ":memory:") as source:
        for number in (1, 2, 3):
            await source.send(f"<n>{number}</n>", action=ACTION, headers=b"<t:t xmlns:t='urn:t'>7</t:t>")
        await source.flush(60)
    await asyncio.wait_for(app.handled(), 60)
    origin = Origin("orders", 2, 77, "forwarder/next/2", "Sender")
    app.running.dead_letters.add(Letter(FORWARDED, "it cannot be read\nlast line", 9, 1_700_000_000.5, origin))
    await app.running.engine.durable()
    yield service.admin_url
    await service.close()


async def read(admin: str, **options: str) -> list[dict[str, Any]]:
    given = CaseInsensitiveDict({"broker": admin, "read": "letters", "awaySeconds": "0", **options})

    def run() -> list[dict[str, Any]]:
        made = WsrmDataSource(options=given)
        reader = made.reader(made.schema())
        (partition,) = reader.partitions()
        task = pickle.loads(pickle.dumps(reader))
        return [row for batch in task.read(partition) for row in batch.to_pylist()]

    return await asyncio.to_thread(run)


async def test_letters_are_rows_with_the_reason_and_the_message_as_it_came(admin: str):
    rows = await read(admin, headers="true")
    assert [row["letter"] for row in rows] == [0, 1, 2, 3]
    first, last = rows[0], rows[3]
    assert (first["action"], first["message_number"], first["attempts"]) == (ACTION, 1, 1)
    assert first["error"] == "ConnectionError: the database is away"
    assert first["reason"].startswith("Traceback")
    assert (first["body"], first["queue"], first["code"], first["retry"]) == ("<n>1</n>", None, None, False)
    assert "7" in first["headers"]
    assert first["failed_at"] >= first["received_at"]
    where = {name: last[name] for name in ("queue", "partition", "offset", "forwarder", "code", "error", "attempts")}
    assert where == {
        "queue": "orders",
        "partition": 2,
        "offset": 77,
        "forwarder": "forwarder/next/2",
        "code": "Sender",
        "error": "it cannot be read",
        "attempts": 9,
    }
    assert (last["body"], last["soap_version"], last["to"]) == ("<ü/>", "1.1", "http://a/")
    assert last["failed_at"] == datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)


@pytest.mark.parametrize(
    ("options", "letters"),
    [
        ({"queue": "orders"}, [3]),
        ({"queuePattern": "o.*"}, [3]),
        ({"queue": "inbox"}, []),
        ({"action": ACTION}, [0, 1, 2]),
        ({"sequence": "urn:other"}, [3]),
        ({"startingTimestamp": "2023-11-14T22:13:20.5Z", "endingTimestamp": "2023-11-15"}, [3]),
        ({"startingTimestamp": "2023-11-14T22:13:20.500001Z"}, [0, 1, 2]),
        ({"endingTimestamp": "2023-11-14T22:13:20.5Z"}, []),
        ({"body": "false"}, [0, 1, 2, 3]),
        ({"columns": "letter", "sequence": "urn:other"}, [3]),
    ],
)
async def test_letters_are_narrowed_by_options(admin: str, options: dict[str, str], letters: list[int]):
    rows = await read(admin, **options)
    assert [row["letter"] for row in rows] == letters
    assert all(("body" in row) == (not options.keys() & {"body", "columns"}) for row in rows)


async def test_letters_have_the_columns_that_are_named(admin: str):
    assert (await read(admin, columns="error,body,queue"))[3] == {
        "queue": "orders",
        "error": "it cannot be read",
        "body": "<ü/>",
    }


async def test_large_letters_come_a_few_at_a_time_and_each_once(admin: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint_letters, "PAGE_BYTES", 10)
    assert [row["letter"] for row in await read(admin)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingOffsets", "latest"), ("partitions", "0"), ("timestampType", "received"), ("endingOffsets", '{"0": 1}')],
)
async def test_what_only_messages_have_is_refused(admin: str, name: str, value: str):
    with pytest.raises(ConfigurationError, match=f"option {name} is for messages") as caught:
        await read(admin, **{name: value, "queue": "orders"})
    assert "startingTimestamp" in caught.value.remedy


async def test_letters_are_no_stream(admin: str):
    made = WsrmDataSource(options=CaseInsensitiveDict({"broker": admin, "read": "letters", "reader": "a"}))
    with pytest.raises(ConfigurationError, match="option read is for batch reads"):
        made.streamReader(made.schema()).initialOffset()
