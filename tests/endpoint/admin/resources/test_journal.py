"""The event journal over HTTP: its files as they lie, and nothing else of the disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from waiting import until

from holdfast import Destination, JournalPolicy, Source
from holdfast.endpoint.admin.resources import journal as journal_admin
from holdfast.endpoint.journal import writer as room
from holdfast.endpoint.journal.files import rows_of, segments
from holdfast.endpoint.journal.parquet import to_parquet_all
from holdfast.endpoint.serve import Service
from holdfast.http.client.client import HTTPClient

ACTION = "urn:test:submit"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WRITE_EVERY", 0.02)


async def get(service: Service, path: str, token: str = "") -> tuple[int, Any]:
    client = HTTPClient()
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        response = await client.fetch("GET", f"{service.admin_url}{path}", b"", headers)
    finally:
        await client.close()
    is_json = response.content_type.startswith("application/json")
    return response.status, json.loads(response.body) if is_json else response.body


async def served(serve: Any, tmp_path: Path, files: int = 1, **where: Any) -> Service:
    """A destination whose journal has so many files at least."""
    app = Destination(tmp_path / "inbox", partitions=1, journal=JournalPolicy(file_size=1 if files > 1 else 1 << 20))
    service: Service = await serve(app, **where)
    for _ in range(files):
        before = app.running.journal.written
        async with Source(service.url, ":memory:") as source:
            await source.send("<n/>", action=ACTION)
            await source.flush(60)
        await until(lambda before=before: before < app.running.journal.written == app.running.journal.collector.count)
    return service


async def test_every_file_is_listed_and_served_as_it_lies_even_the_open_one(serve, tmp_path):
    service = await served(serve, tmp_path, 3)
    directory = tmp_path / "inbox" / "journal"
    status, listed = await get(service, "/journal")
    assert (status, listed["next"]) == (200, None)
    assert listed["count"] == len(listed["files"]) >= 3
    assert listed["bytes"] == sum(one["bytes"] for one in listed["files"])
    assert [one["sealed"] for one in listed["files"]].count(False) <= 1
    told = []
    for one in listed["files"]:
        status, data = await get(service, f"/journal/{one['file']}?to={one['bytes']}")
        assert (status, len(data)) == (200, one["bytes"])
        assert one["begun"] <= one["written"] + 1.0  # clocks of files are coarse
        assert one["worker"] is None
        told += [row["event"] for row in rows_of(io.BytesIO(data))]
    assert told.count("delivered") == 3
    assert [one["file"] for one in listed["files"]] == [one.file for one in segments(directory)][: listed["count"]]


async def test_the_pages_of_the_list_continue_past_files_converted_or_deleted(serve, tmp_path):
    service = await served(serve, tmp_path, 3)
    await service.app.running.journal.close()  # nothing more is written
    directory = tmp_path / "inbox" / "journal"
    _, whole = await get(service, "/journal")
    _, first = await get(service, "/journal?limit=1")
    assert first["count"] == whole["count"]
    to_parquet_all(directory)
    _, second = await get(service, f"/journal?limit=1&after={first['next']}")
    names = [one["file"].partition(".journal")[0] for one in whole["files"]]
    assert [one["file"] for one in first["files"] + second["files"]] == [f"{names[0]}.journal", f"{names[1]}.parquet"]
    (directory / second["files"][0]["file"]).unlink()
    _, rest = await get(service, f"/journal?after={second['next']}")
    assert [one["file"].rpartition(".")[0] for one in rest["files"]] == names[2:]


async def test_a_part_of_a_file_is_exactly_that_part(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(journal_admin, "PIECE", 7)
    service = await served(serve, tmp_path)
    await service.app.running.journal.close()
    (one,) = (await get(service, "/journal"))[1]["files"]
    assert one["sealed"]
    path = f"/journal/{one['file']}"
    _, whole = await get(service, path)
    assert whole == segments(tmp_path / "inbox" / "journal")[0].path.read_bytes()
    size = one["bytes"]
    for start, end in ((0, 0), (0, 1), (3, 40), (40, size), (size, size)):
        assert await get(service, f"{path}?from={start}&to={end}") == (200, whole[start:end])
    assert (await get(service, f"{path}?from=5"))[1] == whole[5:]
    for wrong in (f"from=0&to={size + 1}", "from=2&to=1", f"from={size + 1}"):
        status, told = await get(service, f"{path}?{wrong}")
        assert (status, told["bytes"]) == (416, size)
    assert (await get(service, f"{path}?from=-1"))[0] == 400


async def test_what_is_not_there_any_more_is_told_with_what_it_became(serve, tmp_path):
    service = await served(serve, tmp_path)
    await service.app.running.journal.close()
    (one,) = (await get(service, "/journal"))[1]["files"]
    to_parquet_all(tmp_path / "inbox" / "journal")
    status, told = await get(service, f"/journal/{one['file']}")
    (made,) = (await get(service, "/journal"))[1]["files"]
    assert (status, told["file"], told["bytes"]) == (404, made["file"], made["bytes"])
    assert made["file"].endswith(".parquet")
    assert (await get(service, f"/journal/{made['file']}"))[1][:4] == b"PAR1"
    (tmp_path / "inbox" / "journal" / made["file"]).unlink()
    status, told = await get(service, f"/journal/{made['file']}")
    assert (status, "was deleted" in told["error"], "holdfast audit" in told["remedy"]) == (404, True, True)
    assert (await get(service, "/journal"))[1] == {"files": [], "count": 0, "bytes": 0, "next": None}


@pytest.mark.parametrize(
    "name",
    ["../CURRENT", "..", "_lock", "_runs", "../../inbox/CURRENT", "a/b.parquet", "x\0.parquet", "%2e%2e", "x" * 999],
)
async def test_no_other_file_of_the_disk_is_given_out(serve, tmp_path, name):
    service = await served(serve, tmp_path)
    for given in (quote(name, safe=""), quote(name, safe="/%")):
        status, told = await get(service, f"/journal/{given}")
        assert status == 404, told


async def test_it_stands_under_the_guard_of_the_listener(serve, tmp_path):
    service = await served(serve, tmp_path, admin_token="secret-of-the-test")
    assert (await get(service, "/journal"))[0] == 401
    (one,) = (await get(service, "/journal", "secret-of-the-test"))[1]["files"]
    assert (await get(service, f"/journal/{one['file']}"))[0] == 401
    assert (await get(service, f"/journal/{one['file']}", "secret-of-the-test"))[0] == 200


async def test_a_server_without_a_journal_says_so(serve):
    service = await serve(Destination(":memory:"))
    for path in ("/journal", "/journal/x.parquet"):
        status, told = await get(service, path)
        assert (status, told["error"]) == (404, "this server has no event journal")
        assert "--journal" in told["remedy"]
