"""The admin listener: the data plane's every status, Sequences, health and metrics.

Covers endpoint/admin/data_plane/readers.py, endpoint/admin/inspected.py, endpoint/admin/paging.py and
endpoint/admin/responses.py.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from admin_client import Client

from holdfast import Destination
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Record
from holdfast.endpoint.admin import application as admin_module
from holdfast.endpoint.admin.data_plane import record_stream
from holdfast.outages import Trouble
from holdfast.store.records import decode_record

ACTION = "urn:test:submit"


@pytest.fixture
async def admin(serve: Any, tmp_path: Any) -> AsyncIterator[Client]:
    """A destination without handlers, so that its queue keeps everything, and a client of its admin listener."""
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    async with aiohttp.ClientSession() as session:
        yield Client(session, service.admin_url, service)


def unframe(data: bytes) -> tuple[list[tuple[int, Record]], int | None]:
    """The records of a stream of blocks, and what its trailer counts; by what docs/reference/data-plane.md says."""
    stream, records = io.BytesIO(data), []
    while head := stream.read(16):
        first, count, size = struct.unpack(">QII", head)
        if first == 2**64 - 1:
            assert (count, size) == (0, 8)
            (trailer,) = struct.unpack(">Q", stream.read(8))
            assert not stream.read()
            return records, trailer
        lengths = struct.unpack(f">{count}I", stream.read(4 * count))
        assert sum(lengths) == size
        records += [(first + one, decode_record(stream.read(length))) for one, length in enumerate(lengths)]
    return records, None


async def test_queues_are_described_with_their_epoch_and_bounds(admin: Client) -> None:
    await admin.send(3)
    status, answer = await admin.ask("/queues")
    assert (status, answer["v"]) == (200, 1)
    assert answer["queues"]["inbox"]["partitions"] == {"0": {"first": 0, "end": 3}}
    assert int(answer["queues"]["inbox"]["epoch"], 16)


async def test_ends_are_told(admin: Client) -> None:
    await admin.send(2)
    status, answer = await admin.ask("/queues/inbox/ends")
    assert (status, answer["partitions"]) == (200, {"0": {"first": 0, "end": 2}})


async def test_records_come_in_blocks_with_a_trailer_that_counts_them(admin: Client) -> None:
    await admin.send(5)
    status, data = await admin.ask(f"/queues/inbox/0/records?from=1&to=4&epoch={await admin.epoch()}")
    assert status == 200
    records, trailer = unframe(data)
    assert [(offset, record.body) for offset, record in records] == [(n, b"<n>%d</n>" % n) for n in (1, 2, 3)]
    assert [record.message_number for _, record in records] == [2, 3, 4]
    assert trailer == 3
    assert unframe((await admin.ask("/queues/inbox/0/records?from=2&to=2"))[1]) == ([], 0)


async def test_records_come_without_what_is_not_wanted_in_as_many_blocks_as_it_takes(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_stream, "BLOCK_BYTES", 2000)
    await admin.send(30)
    path = "/queues/inbox/0/records?from=3&to=30"
    whole, count = unframe((await admin.ask(path))[1])
    assert count == 27
    assert [offset for offset, _ in whole] == list(range(3, 30))
    spared, count = unframe((await admin.ask(path + "&without=body,transport"))[1])
    assert count == 27
    assert spared == [(offset, replace(record, body=b"", transport=b"")) for offset, record in whole]
    assert all(record.body for _, record in whole)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/queues/inbox/0/records?from=0&to=2&epoch=0123", 409),
        ("/queues/inbox/0/records?from=0&to=3", 416),
        ("/queues/inbox/0/records?from=2&to=1", 416),
        ("/queues/inbox/1/records?from=0&to=0", 404),
        ("/queues/inbox/x/records?from=0&to=0", 404),
        ("/queues/inbox/0/records?from=0", 400),
        ("/queues/inbox/0/records?from=0&to=1&without=body,action", 400),
        ("/queues/other/0/records?from=0&to=0", 404),
        ("/queues/other/ends", 404),
        ("/queues/inbox/ends?wait=1", 400),
        ("/queues/inbox/ends?known=0", 400),
        ("/queues/inbox/ends?epoch=0123", 409),
        ("/queues/inbox/cursors/nobody", 404),
        ("/queues/other/cursors/nobody", 404),
        ("/sequences/urn:nowhere", 404),
        ("/nothing", 404),
    ],
)
async def test_what_cannot_be_answered_says_why_and_what_to_do(admin: Client, path: str, status: int) -> None:
    await admin.send(2)
    found, answer = await admin.ask(path)
    assert found == status
    assert answer["error"]
    assert answer["remedy"]


async def test_a_cursor_is_made_advanced_never_moved_back_and_dropped(admin: Client) -> None:
    await admin.send(5)
    assert await admin.put("spark", {"0": 2}) == (200, {"offsets": {"0": 2}})
    assert await admin.put("spark", {"0": 1}) == (200, {"offsets": {"0": 2}})
    assert await admin.put("spark", {"0": 99}) == (200, {"offsets": {"0": 5}})
    status, answer = await admin.ask("/queues/inbox/cursors/spark")
    assert (status, answer) == (200, {"epoch": await admin.epoch(), "offsets": {"0": 5}})
    assert (await admin.ask("/queues/inbox/cursors/spark", "DELETE"))[0] == 204
    assert (await admin.ask("/queues/inbox/cursors/spark"))[0] == 404
    assert (await admin.ask("/queues/inbox/cursors/spark", "DELETE"))[0] == 204


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"epoch": "0123", "offsets": {"0": 0}}, 409),
        ({"epoch": "", "offsets": {"7": 0}}, 400),
        ({"epoch": "", "offsets": {"-1": 0}}, 400),
        ({"epoch": "", "offsets": {"0": "x"}}, 400),
        ({"epoch": "", "offsets": [1]}, 400),
        ({"offsets": {}}, 400),
        ([], 400),
    ],
)
async def test_a_cursor_that_cannot_be_is_refused(admin: Client, body: Any, status: int) -> None:
    if isinstance(body, dict) and body.get("epoch") == "":
        body = body | {"epoch": await admin.epoch()}
    assert (await admin.ask("/queues/inbox/cursors/spark", "PUT", json=body))[0] == status
    assert (await admin.ask("/queues/inbox/cursors/spark"))[0] == 404


async def test_a_cursor_knows_no_other_method(admin: Client) -> None:
    assert (await admin.ask("/queues/inbox/cursors/spark", "POST"))[0] == 405


async def test_nothing_that_a_reader_asks_for_deletes_a_record(admin: Client) -> None:
    await admin.send(300)
    await admin.put("first", {"0": 300})
    await admin.put("second", {"0": 0})
    await admin.put("second", {"0": 300})
    for name in ("first", "second"):
        assert (await admin.ask(f"/queues/inbox/cursors/{name}", "DELETE"))[0] == 204
    _, answer = await admin.ask("/queues")
    assert answer["queues"]["inbox"]["partitions"] == {"0": {"first": 0, "end": 300}}
    assert (await admin.put("late", {"0": 3}))[0] == 200


async def test_records_that_are_kept_no_longer_are_gone_and_said_to_be(serve: Any) -> None:
    service = await serve(Destination(":memory:", partitions=1, queues={"inbox": "1s readers 1s"}))
    async with aiohttp.ClientSession() as session:
        admin = Client(session, service.admin_url, service)
        await admin.send(5)

        async def is_empty() -> bool:
            _, answer = await admin.ask("/queues")
            return bool(answer["queues"]["inbox"]["partitions"] == {"0": {"first": 5, "end": 5}})

        async with asyncio.timeout(60):
            while not await is_empty():
                await asyncio.sleep(0.05)
        status, answer = await admin.ask("/queues/inbox/0/records?from=4&to=5")
        assert status == 410
        assert "below 5" in answer["error"]
        assert "1s" in answer["remedy"]
        assert (await admin.put("late", {"0": 3}))[0] == 410
        assert (await admin.put("late", {"0": 5}))[0] == 200
        assert admin.app.incidents["queue.unread_records_deleted"] >= 1


@pytest.mark.parametrize(("name", "status"), [("handler", 403), ("own%2Fsizes", 400), ("a%20b", 400), ("x" * 101, 400)])
async def test_a_readers_cursor_may_not_be_called_what_is_ours_or_unfit(admin: Client, name: str, status: int) -> None:
    answered, answer = await admin.put(name, {})
    assert answered == status
    assert answer["remedy"]
    if name == "handler":
        assert (await admin.ask(f"/queues/inbox/cursors/{name}", "DELETE"))[0] == 403


async def test_a_destination_with_handlers_restarts_whatever_names_readers_tried(serve: Any, tmp_path: Any) -> None:
    def make() -> Destination:
        app = Destination(tmp_path / "inbox", partitions=1)
        app.on(ACTION)(lambda message: None)
        return app

    service = await serve(make())
    async with aiohttp.ClientSession() as session:
        admin = Client(session, service.admin_url, service)
        await admin.send(1)
        assert (await admin.put("handler", {"0": 1}))[0] == 403
        await service.close()
        service = await serve(make())
        again = Client(session, service.admin_url, service)
        assert (await again.ask("/healthz"))[0] == 200


async def test_readers_are_bounded_in_number(serve: Any) -> None:
    service = await serve(Destination(":memory:", queues={"inbox": RetentionPolicy(max_readers=2)}))
    async with aiohttp.ClientSession() as session:
        admin = Client(session, service.admin_url, service)
        assert [(await admin.put(f"r{number}", {}))[0] for number in range(3)] == [200, 200, 403]


async def test_cursors_are_listed_with_how_far_behind_they_are(admin: Client) -> None:
    await admin.send(5)
    await admin.put("spark", {"0": 2})
    status, answer = await admin.ask("/queues/inbox/cursors")
    assert status == 200
    queue, dead_letters = answer["queues"]
    assert (dead_letters["name"], dead_letters["records"]) == ("dead-letters", 0)
    assert (queue["name"], queue["retention"], queue["records"]) == ("inbox", "7d readers 30d", 5)
    (cursor,) = queue["cursors"]
    assert (cursor["name"], cursor["kind"], cursor["offsets"], cursor["lag"]) == ("spark", "reader", {"0": 2}, 3)
    assert cursor["age"] >= 0
    _, metrics = await admin.ask("/metrics")
    assert b'holdfast_cursor_lag_records{cursor="spark",kind="reader",queue="inbox"} 3.0' in metrics
    assert b'holdfast_cursor_age_seconds{cursor="spark",kind="reader",queue="inbox"}' in metrics


async def test_the_first_record_from_a_time_on_is_found_as_readers_see_its_time(
    admin: Client,
) -> None:
    await admin.send(40)
    _, data = await admin.ask("/queues/inbox/0/records?from=0&to=40")
    micros = [round(record.delivered_at * 1e6) for _, record in unframe(data)[0]]
    epoch = await admin.epoch()
    for at in [0, *micros, micros[-1] + 1]:
        status, answer = await admin.ask(f"/queues/inbox/offsets?at=0:{at}&epoch={epoch}")
        expected = next((offset for offset, one in enumerate(micros) if one >= at), 40)
        assert (status, answer) == (200, {"epoch": epoch, "offsets": {"0": expected}})
    assert (await admin.ask("/queues/inbox/offsets?at=0:1&epoch=0123"))[0] == 409
    assert (await admin.ask("/queues/inbox/offsets?at=7:1"))[0] == 400
    assert (await admin.ask("/queues/inbox/offsets?at=0"))[0] == 400
    assert (await admin.ask("/queues/inbox/offsets"))[0] == 400
    assert (await admin.ask("/queues/other/offsets?at=0:1"))[0] == 404


# --- fingerprints -------------------------------------------------------------------------------------------------


async def test_a_position_that_is_known_by_its_fingerprint_is_compared_in_every_request(admin: Client) -> None:
    await admin.send(5)
    status, answer = await admin.ask("/queues/inbox/fingerprints?at=0:0,0:3")
    assert status == 200
    known = answer["fingerprints"]["0"]
    assert int(known, 16)
    epoch = await admin.epoch()
    body = {"epoch": epoch, "offsets": {"0": 3}}
    asks = [
        ("GET", "/queues/inbox/ends?known=0:3:{}", None),
        ("GET", "/queues/inbox/fingerprints?at=0:5&known=0:3:{}", None),
        ("GET", "/queues/inbox/0/records?from=0&to=2&known=0:3:{}", None),
        ("PUT", "/queues/inbox/cursors/spark", body),
    ]
    for theirs, expected in ((known, 200), ("0123456789abcdef", 409)):
        for method, path, content in asks:
            options = {} if content is None else {"json": {**content, "fingerprints": {"0": theirs}}}
            found, answer = await admin.ask(path.format(theirs), method, **options)
            assert found == expected, path
            assert found == 200 or "older copy" in answer["error"]
    assert (await admin.ask("/queues/inbox/fingerprints?at=0:6"))[0] == 416
    assert (await admin.ask("/queues/inbox/fingerprints?at=7:0"))[0] == 400
    assert (await admin.ask("/queues/inbox/fingerprints"))[0] == 400
    assert (await admin.ask("/queues/inbox/ends?known=0:3"))[0] == 400
    assert (await admin.ask("/queues/inbox/ends?known=9:3:ab"))[0] == 400


async def test_a_store_that_is_told_to_be_restored_begins_a_new_epoch(admin: Client, serve: Any, tmp_path: Any) -> None:
    await admin.send(5)
    epoch = await admin.epoch()
    await admin.service.close()
    service = await serve(Destination(tmp_path / "inbox", partitions=1).keep(restored=True))
    again = Client(admin.session, service.admin_url, service)
    new = await again.epoch()
    assert new != epoch
    assert (await again.ask(f"/queues/inbox/ends?epoch={epoch}"))[0] == 409
    await service.close()
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    assert await Client(admin.session, service.admin_url, service).epoch() == new


async def test_cursors_and_bounds_survive_a_restart(admin: Client, serve: Any, tmp_path: Any) -> None:
    await admin.send(5)
    await admin.put("spark", {"0": 3})
    epoch = await admin.epoch()
    await admin.service.close()
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    again = Client(admin.session, service.admin_url, service)
    assert await again.epoch() == epoch
    assert (await again.ask("/queues/inbox/cursors/spark"))[1]["offsets"] == {"0": 3}
    _, data = await again.ask("/queues/inbox/0/records?from=3&to=5")
    assert unframe(data)[1] == 2


async def test_a_reader_holds_back_what_the_handlers_are_done_with(serve: Any) -> None:
    app = Destination(":memory:", partitions=1)
    app.on(ACTION)(lambda message: None)
    service = await serve(app)
    async with aiohttp.ClientSession() as session:
        admin = Client(session, service.admin_url, service)
        await admin.put("spark", {"0": 0})
        await admin.send(300)
        async with asyncio.timeout(60):
            while app.running.dispatcher is None or app.running.dispatcher.handling.succeeded < 300:
                await asyncio.sleep(0.01)
        _, data = await admin.ask("/queues/inbox/0/records?from=0&to=300")
        assert unframe(data)[1] == 300


async def test_sequences_are_listed_and_shown_whole(admin: Client) -> None:
    await admin.send(3, key="one")
    await admin.send(2, key="two")
    status, answer = await admin.ask("/sequences")
    assert status == 200
    inbound = [one for one in answer["sequences"] if one["role"] == "destination"]
    assert sorted((one["count"], one["ranges"], one["gaps"]) for one in inbound) == [
        (2, "1-2", "none"),
        (3, "1-3", "none"),
    ]
    status, one = await admin.ask(f"/sequences/{inbound[0]['identifier']}")
    assert (status, one["identifier"], one["state"]) == (200, inbound[0]["identifier"], "terminated")


@pytest.mark.parametrize(("how", "state"), [("close", "closed"), ("terminate", "terminating")])
async def test_an_operator_can_end_a_sequence(admin: Client, peer: Any, how: str, state: str) -> None:
    source = peer(admin.service.url)
    await source.create()
    await source.message(1)
    status, shown = await admin.ask(f"/sequences/{source.identifier}/{how}", "POST")
    assert (status, shown["state"]) == (200, state)
    assert (await source.message(2)).status == 500
    assert (await admin.ask(f"/sequences/urn:unknown/{how}", "POST"))[0] == 404


async def test_health_follows_the_store(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await admin.ask("/healthz") == (200, {"status": "ok"})
    monkeypatch.setattr(admin.app.running.engine, "failure", OSError("no space left"))
    status, answer = await admin.ask("/healthz")
    assert status == 503
    assert "no space left" in answer["error"]
    monkeypatch.undo()


async def test_a_store_that_a_restart_would_not_help_is_alive_and_not_ready(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.app.running.engine.store, "trouble", Trouble("the database is away", "Check it."))
    status, answer = await admin.ask("/healthz")
    assert (status, answer["status"], "the database is away" in answer["trouble"]) == (200, "ok", True)
    status, answer = await admin.ask("/readyz")
    assert (status, "the database is away" in answer["error"]) == (503, True)
    trouble = Trouble("The disk of the store at inbox is nearly full.", "Free space there.")
    monkeypatch.setattr(admin.app.running.engine.store, "trouble", trouble)
    told = "The disk of the store at inbox is nearly full. Free space there. The server then resumes automatically."
    assert (await admin.ask("/healthz"))[1]["trouble"] == told
    assert (await admin.ask("/readyz"))[1]["remedy"].startswith("Free space there.")
    monkeypatch.undo()
    assert await admin.ask("/readyz") == (200, {"status": "ready"})


async def test_metrics_do_not_wait_for_a_store_that_hangs_and_read_it_once(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = asyncio.Event(), 0

    async def hang(*_: object) -> dict[str, float]:
        nonlocal asked
        asked += 1
        await answers.wait()
        return {}

    monkeypatch.setattr(admin_module, "ages", hang)
    monkeypatch.setattr(admin_module, "LONGEST_READ", 0.01)
    for _ in range(3):
        status, text = await admin.ask("/metrics")
        assert (status, b"holdfast_commit_pending_seconds" in text) == (200, True)
    assert asked == 1
    answers.set()


async def test_a_bug_answers_500_and_is_logged(admin: Client, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(admin.app.running.queue, "partitions", None)
    status, answer = await admin.ask("/queues")
    assert status == 500
    assert "bug" in answer["remedy"]
    assert "admin.request_failed" in caplog.text
