"""Sinks over HTTP: rows are staged, published once, refused with the row named; and what an operator may do."""

from __future__ import annotations

import asyncio
import shutil
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from admin_client import Client

import holdfast
from holdfast import Destination, DestinationHTTP
from holdfast.core.policy import StagingPolicy
from holdfast.core.records import Batch
from holdfast.endpoint.admin.data_plane.rows import COLUMNS, MEDIA_TYPE
from holdfast.outages import Trouble
from holdfast.store import MemoryStore

ACTION = "urn:test:submit"
HEADERS = {"Content-Type": MEDIA_TYPE}


def row(body: bytes | str | None = b"<a/>", key: str | None = None, **other: Any) -> list[Any]:
    return [({"key": key, "action": ACTION, "body": body, "queue": "inbox"} | other).get(name) for name in COLUMNS]


def framed(rows: list[Any]) -> bytes:
    encoded = [one if isinstance(one, bytes) else msgspec.msgpack.encode(one) for one in rows]
    return b"".join(struct.pack(">I", len(one)) + one for one in encoded) + struct.pack(">IQ", 2**32 - 1, len(rows))


class Writer:
    """One query of a sink."""

    def __init__(self, admin: Client, sink: str = "alerts", query: str = "q1") -> None:
        self.admin, self.sink, self.query = admin, sink, query

    async def stage(self, batch: int, token: str, rows: Any, more: str = "") -> tuple[int, Any]:
        path = f"/sinks/{self.sink}/parts?query={self.query}&batch={batch}&token={token}{more}"
        data = rows if isinstance(rows, bytes) else framed(rows)
        return await self.admin.ask(path, "POST", data=data, headers=HEADERS)

    async def publish(self, batch: int, *tokens: str, rows: int = 0, **more: Any) -> tuple[int, Any]:
        asked = {"query": self.query, "tokens": tokens, "rows": rows} | more
        return await self.admin.ask(f"/sinks/{self.sink}/batches/{batch}", "POST", json=asked)

    async def staged(self, batch: int, token: str, rows: Any, more: str = "") -> None:
        assert (answer := await self.stage(batch, token, rows, more))[0] == 200, answer

    async def published(self, batch: int, *tokens: str, rows: int = 0, **more: Any) -> None:
        assert (answer := await self.publish(batch, *tokens, rows=rows, **more))[0] == 200, answer

    async def shown(self) -> Any:
        return (await self.admin.ask(f"/sinks/{self.sink}"))[1]

    async def moved(self) -> Any:
        """What is shown once all that was published is in its queues."""
        async with asyncio.timeout(60):
            while (shown := await self.shown())["moving"]:
                await asyncio.sleep(0.01)
        return shown


async def bodies(admin: Client, queue: str = "inbox") -> list[str]:
    found: list[str] = []
    for partition in range(len(admin.app.running.queue.partitions)):
        _, answer = await admin.ask(f"/queues/{queue}/{partition}/messages?limit=1000")
        found += [one["body"] for one in answer["messages"]]
    return found


@pytest.fixture
async def admin(serve: Any, tmp_path: Any) -> AsyncIterator[Client]:
    service = await serve(Destination(tmp_path / "inbox", partitions=1, queues={"inbox": None, "other": None}))
    async with aiohttp.ClientSession() as session:
        yield Client(session, service.admin_url, service)


@pytest.fixture
def writer(admin: Client) -> Writer:
    return Writer(admin)


async def test_what_is_staged_is_in_no_queue_until_it_is_published_and_then_it_is_once(writer: Writer) -> None:
    assert await writer.stage(0, "t1", [row(b"<a>1</a>"), row(b"<a>2</a>")]) == (200, taken(2))
    assert await writer.stage(0, "t2", [row("<a>4</a>")]) == (200, taken(1))
    assert await bodies(writer.admin) == []
    assert (await writer.shown())["staged"] == 3
    assert await writer.publish(0, "t2", "t1", rows=3) == (200, {"published": True, "rows": 3, "attempt": ""})
    shown = await writer.moved()
    assert await bodies(writer.admin) == ["<a>4</a>", "<a>1</a>", "<a>2</a>"]
    assert await writer.publish(0, "t2", "t1", rows=3) == (200, {"published": False, "rows": 3, "attempt": ""})
    assert await writer.stage(0, "t3", [row()]) == (200, {"rows": 0, "already": True, "attempt": ""})
    assert len(await bodies(writer.admin)) == 3
    assert (shown["batch"], shown["published"], shown["staged"], shown["bytes"]) == (0, 3, 0, 0)


def taken(rows: int) -> dict[str, Any]:
    return {"rows": rows, "already": False, "refused": []}


async def test_records_of_a_sink_name_it_as_their_sequence_and_are_numbered(writer: Writer) -> None:
    await writer.staged(0, "t1", [row(message_id="urn:mine", headers=b"<h xmlns='urn:h'/>", relates_to="urn:r")] * 2)
    await writer.published(0, "t1", rows=2)
    await writer.staged(1, "t2", [row(key="k")])
    await writer.published(1, "t2", rows=1)
    shown = await writer.moved()
    _, answer = await writer.admin.ask("/queues/inbox/0/messages")
    found = answer["messages"]
    assert [one["message_number"] for one in found] == [1, 2, 3]
    assert {one["sequence"] for one in found} == {shown["sequence"] + "#0"}
    assert [one["message_id"] for one in found[:2]] == ["urn:mine"] * 2
    assert found[2]["message_id"].startswith("urn:uuid:")
    assert [one["headers"] for one in found] == ["<h xmlns='urn:h'/>"] * 2 + [""]
    assert (found[0]["relates_to"], found[0]["wants_reply"], found[0]["action"]) == ("urn:r", False, ACTION)


async def test_a_token_names_one_part_only(writer: Writer) -> None:
    assert (await writer.stage(0, "t", [row(), row()]))[0] == 200
    status, answer = await writer.stage(0, "t", [row(), row()])
    assert (status, answer["why"]) == (409, "token")
    assert (await writer.shown())["staged"] == 2


async def test_a_row_that_cannot_be_sent_is_named_and_nothing_of_its_part_is_kept(writer: Writer) -> None:
    status, answer = await writer.stage(0, "t", [row(), row(b"<a>"), row(), row(queue="nowhere")])
    assert (status, answer["row"], answer["column"]) == (422, 1, "body")
    assert "2 rows of this part cannot be sent" in answer["error"]
    assert (await writer.admin.ask("/sinks"))[1]["sinks"] == []


async def test_a_row_that_cannot_be_sent_is_told_and_the_others_are_kept_if_that_is_asked(writer: Writer) -> None:
    status, answer = await writer.stage(0, "t", [row(), row(None), row(), b"\xc1"], "&refused=tell")
    assert (status, answer["rows"], answer["already"]) == (200, 2, False)
    assert [(one["row"], one["column"]) for one in answer["refused"]] == [(1, "body"), (3, "")]
    assert (await writer.stage(0, "u", [row(None)], "&refused=tell"))[1]["rows"] == 0
    assert (await writer.publish(0, "t", "u", rows=2))[1] == {"published": True, "rows": 2, "attempt": ""}
    await writer.moved()
    assert await bodies(writer.admin) == ["<a/>", "<a/>"]


async def test_a_part_that_is_cut_off_is_refused_whole(writer: Writer) -> None:
    whole = framed([row(), row()])
    for data in (b"", b"<rows/>", *(whole[:end] for end in range(1, len(whole))), whole + b"\0", whole + whole):
        status, answer = await writer.stage(0, "t", data)
        assert (status, "incomplete" in answer["error"]) == (400, True), answer
    assert (await writer.admin.ask("/sinks"))[1]["sinks"] == []


async def test_a_part_larger_than_a_commit_and_a_large_row_are_taken(writer: Writer) -> None:
    large = b"<a>" + b"x" * (9 << 20) + b"</a>"
    assert (await writer.stage(0, "t", [row(large)]))[1]["rows"] == 1
    assert (await writer.stage(0, "u", [row(b"<a>" + b"x" * 1000 + b"</a>")] * 5000))[1]["rows"] == 5000
    assert (await writer.publish(0, "t", "u", rows=5001))[1]["rows"] == 5001
    assert (await writer.moved())["bytes"] == 0
    assert [one.records.ends for one in writer.admin.app.running.queues.values()] == [[5001], [0]]


async def test_rows_without_a_queue_go_to_the_one_that_the_request_names(writer: Writer) -> None:
    await writer.staged(0, "t", [row(queue=None), row()], "&queue=other")
    await writer.published(0, "t", rows=2)
    await writer.moved()
    assert (len(await bodies(writer.admin)), len(await bodies(writer.admin, "other"))) == (1, 1)


async def test_a_batch_may_have_as_many_parts_as_a_large_write_has(writer: Writer) -> None:
    status, told = await writer.publish(0, *(f"{number}-{'0' * 32}-1" for number in range(40_000)), rows=1)
    assert (status, told["why"]) == (409, "unknown")
    assert (await writer.admin.ask("/sinks/s/discard", "POST", json={"tokens": ["0" * 40] * 40_000}))[0] == 204


async def test_a_sink_reports_its_published_attempt_and_when_it_was_final(
    writer: Writer,
) -> None:
    await writer.staged(0, "t", [row()])
    asked = {"attempt": "ours", "final": True}
    assert (await writer.publish(0, "t", rows=1, **asked))[1] == {"published": True, "rows": 1, "attempt": "ours"}
    asked["attempt"] = "another"
    assert (await writer.publish(0, "u", rows=1, **asked))[1] == {"published": False, "rows": 1, "attempt": "ours"}
    assert (await writer.stage(0, "v", [row()]))[1] == {"rows": 0, "already": True, "attempt": "ours"}
    shown = await writer.shown()
    assert (shown["attempt"], shown["final_at"] > 0) == ("ours", True)
    assert (await writer.publish(0, attempt="a" * 201))[0] == 400
    assert (await writer.publish(1, rows=0))[1]["published"] is True
    assert (await writer.shown())["final_at"] is None


async def test_a_batch_that_jumps_or_is_another_querys_is_refused_with_what_to_do(writer: Writer) -> None:
    for status, answer in (await writer.stage(5, "t", [row()]), await writer.publish(5)):
        assert (status, answer["why"], "the first one of the sink" in answer["error"]) == (409, "jump", True)
    await writer.staged(0, "t", [row()])
    assert (await writer.publish(0, "t", rows=1))[0] == 200
    for status, answer in (await writer.stage(7, "t", [row()]), await writer.publish(7)):
        assert (status, answer["why"], "does not follow 0" in answer["error"]) == (409, "jump", True)
        assert "holdfast sinks bind alerts q1 --after 6" in answer["remedy"]
    other = Writer(writer.admin, query="q2")
    for status, answer in (await other.stage(0, "t", [row()]), await other.publish(0)):
        assert (status, answer["why"], "holdfast sinks bind alerts q2" in answer["remedy"]) == (409, "bound", True)
    assert (await writer.stage(7, "t", [row()], "&jump=1"))[0] == 200
    assert (await writer.publish(7, "t", rows=1, jump=True))[1] == {"published": True, "rows": 1, "attempt": ""}
    assert (await writer.publish(0, jump=True))[1] == {"published": False, "rows": None, "attempt": None}


async def test_the_lower_of_two_concurrent_batches_hears_that_it_was_overtaken(writer: Writer) -> None:
    for batch in (5, 6):
        assert (await writer.stage(batch, f"t{batch}", [row(f"<b>{batch}</b>")], "&jump=1"))[0] == 200
    assert (await writer.publish(6, "t6", rows=1, jump=True))[1]["published"]
    for status, answer in (
        await writer.publish(5, "t5", rows=1, jump=True),
        await writer.stage(5, "u5", [row("<b>5</b>")], "&jump=1"),
    ):
        assert (status, answer["why"], "one after the other" in answer["remedy"]) == (409, "overtaken", True)
    assert (await writer.publish(6, "t6", rows=1, jump=True))[1] == {"published": False, "rows": 1, "attempt": ""}
    await writer.moved()
    assert await bodies(writer.admin) == ["<b>6</b>"]


async def test_a_query_goes_on_behind_batches_that_an_operator_says_need_not_come(writer: Writer) -> None:
    assert (await writer.stage(8, "t", [row()]))[1]["why"] == "jump"
    status, shown = await writer.admin.ask("/sinks/alerts/bind", "POST", json={"query": "q1", "after": 7})
    assert (status, shown["batch"]) == (200, 7)
    assert (await writer.publish(7))[1]["published"] is False
    await writer.staged(8, "t", [row()])
    assert (await writer.publish(8, "t", rows=1))[1] == {"published": True, "rows": 1, "attempt": ""}
    for wrong in (-1, "7", 10**15):
        asked = {"query": "q1", "after": wrong}
        assert (await writer.admin.ask("/sinks/alerts/bind", "POST", json=asked))[0] == 400
    assert (await writer.admin.ask("/sinks/a%2Fb/bind", "POST", json={"query": "q1", "after": 7}))[0] == 400


async def test_a_restored_store_reuses_no_row_name_and_asks_about_lost_batches(serve: Any, tmp_path: Path) -> None:
    found: list[dict[tuple[str, int], str]] = []
    message_ids: list[dict[str, str]] = []

    async def look(writer: Writer) -> None:
        await writer.moved()
        _, answer = await writer.admin.ask("/queues/inbox/0/messages?limit=1000")
        found.append({(one["sequence"], one["message_number"]): one["body"] for one in answer["messages"]})
        message_ids.append({one["message_id"]: one["body"] for one in answer["messages"]})

    async with aiohttp.ClientSession() as session:

        async def begin(*, restored: bool = False) -> tuple[Any, Writer]:
            service = await serve(Destination(tmp_path / "inbox", partitions=1).keep(restored=restored))
            return service, Writer(Client(session, service.admin_url, service))

        service, writer = await begin()
        await writer.staged(0, "a", [row("<a>0</a>")])
        await writer.published(0, "a", rows=1)
        await look(writer)
        await service.close(5.0)
        shutil.copytree(tmp_path / "inbox", tmp_path / "copy")
        service, writer = await begin()
        for batch in (1, 2):
            await writer.staged(batch, f"b{batch}", [row(f"<a>{batch}</a>")])  # a token names a part until it has moved
            assert (await writer.publish(batch, f"b{batch}", rows=1))[0] == 200
        await look(writer)
        await service.close(5.0)
        shutil.rmtree(tmp_path / "inbox")
        (tmp_path / "copy").rename(tmp_path / "inbox")
        service, writer = await begin(restored=True)
        status, answer = await writer.stage(3, "c", [row("<a>3</a>")])
        assert (status, answer["why"], "--after 2" in answer["remedy"]) == (409, "jump", True)
        await writer.staged(1, "d", [row("<a>new</a>"), row("<a>newer</a>")])
        assert (await writer.publish(1, "d", rows=2))[1]["published"]
        await look(writer)
    for names in (found, message_ids):
        before, after = names[1], names[2]
        assert len(before) == len(after) == 3
        assert [after[name] for name in after if name in before] == ["<a>0</a>"]


async def test_a_batch_of_which_something_is_missing_is_not_published(writer: Writer) -> None:
    await writer.staged(0, "t", [row(), row()])
    for tokens, rows, why in ((["t"], 1, "count"), (["t"], 3, "count"), ([], 1, "count"), (["t", "u"], 2, "unknown")):
        status, answer = await writer.publish(0, *tokens, rows=rows)
        assert (status, answer["why"]) == (409, why)
    assert (await writer.publish(0, "t", "t", rows=4))[1]["why"] == "unknown"
    assert (await writer.publish(0, "t", rows=2))[1] == {"published": True, "rows": 2, "attempt": ""}
    assert (await writer.publish(1))[1] == {"published": True, "rows": 0, "attempt": ""}
    assert (await writer.publish(2))[1] == {"published": True, "rows": 0, "attempt": ""}


async def test_what_is_discarded_is_gone_but_not_what_is_published(writer: Writer) -> None:
    await writer.staged(0, "t", [row()])
    await writer.staged(0, "u", [row()])
    asked = {"tokens": ["u", "nothing"]}
    assert (await writer.admin.ask("/sinks/alerts/discard", "POST", json=asked))[0] == 204
    assert (await writer.admin.ask("/sinks/nothing/discard", "POST", json=asked))[0] == 204
    assert (await writer.shown())["staged"] == 1
    assert (await writer.publish(0, "t", rows=1))[0] == 200
    assert (await writer.admin.ask("/sinks/alerts/discard", "POST", json={"tokens": ["t"]}))[0] == 204
    await writer.moved()
    assert len(await bodies(writer.admin)) == 1


async def test_what_no_publication_named_goes_with_it(writer: Writer) -> None:
    await writer.staged(0, "winner", [row()])
    await writer.staged(0, "loser", [row()])
    await writer.published(0, "winner", rows=1)
    shown = await writer.moved()
    assert (shown["staged"], shown["parts"], shown["bytes"]) == (0, 0, 0)
    assert (await writer.stage(0, "loser2", [row()]))[1]["already"]


async def test_a_sink_is_bound_to_another_query_and_back_where_that_ended(writer: Writer) -> None:
    await writer.staged(0, "t", [row()])
    await writer.published(0, "t", rows=1)
    await writer.staged(1, "t", [row()])
    status, shown = await writer.admin.ask("/sinks/alerts/bind", "POST", json={"query": "q2"})
    assert (status, shown["query"], shown["batch"], shown["staged"]) == (200, "q2", None, 0)
    other = Writer(writer.admin, query="q2")
    await other.staged(0, "t", [row()])
    assert (await other.publish(0, "t", rows=1))[1] == {"published": True, "rows": 1, "attempt": ""}
    await writer.admin.ask("/sinks/alerts/bind", "POST", json={"query": "q1"})
    assert (await writer.publish(0, "t", rows=1))[1] == {"published": False, "rows": 0, "attempt": None}
    assert (await writer.publish(1))[1]["published"]
    assert (await writer.admin.ask("/sinks/nothing/bind", "POST", json={"query": "q1"}))[0] == 404


async def test_a_sink_that_is_forgotten_begins_anew_and_what_it_published_is_there(writer: Writer) -> None:
    await writer.staged(0, "t", [row()])
    await writer.published(0, "t", rows=1)
    await writer.staged(1, "t", [row()])
    assert (await writer.admin.ask("/sinks/alerts", "DELETE"))[0] == 204
    assert (await writer.admin.ask("/sinks/alerts", "DELETE"))[0] == 404
    assert (await writer.admin.ask("/sinks/alerts"))[0] == 404
    await writer.staged(0, "t", [row()])
    assert (await writer.publish(0, "t", rows=1))[1] == {"published": True, "rows": 1, "attempt": ""}
    await writer.moved()
    assert len(await bodies(writer.admin)) == 2
    assert (await writer.admin.ask("/sinks"))[1]["count"] == 1


async def test_a_name_that_no_sink_or_part_may_have_is_refused(admin: Client) -> None:
    for name in ("a%2Fb", "%20", "-a", "a" * 201, "%C3%A4"):
        assert (await Writer(admin, name).stage(0, "t", [row()]))[0] == 400
        assert (await Writer(admin).stage(0, name, [row()]))[0] == 400
        assert (await Writer(admin, name).publish(0))[0] == 400
    assert (await admin.ask("/sinks"))[1]["sinks"] == []


async def test_more_than_may_be_staged_is_refused_and_what_is_published_makes_room(serve: Any) -> None:
    service = await serve(
        Destination(":memory:", partitions=1, http=DestinationHTTP(staging=StagingPolicy(max_bytes=1000)))
    )
    async with aiohttp.ClientSession() as session:
        writer = Writer(Client(session, service.admin_url, service))
        assert (await writer.stage(0, "t", [row()] * 7))[0] == 200
        status, answer = await writer.stage(0, "u", [row()])
        assert (status, "holdfast sinks" in answer["remedy"]) == (507, True)
        await writer.published(0, "t", rows=7)
        await writer.moved()
        assert (await writer.stage(1, "t", [row()] * 7))[0] == 200


async def test_of_a_part_that_finds_no_room_in_its_middle_nothing_holds_room(serve: Any) -> None:
    service = await serve(
        Destination(":memory:", partitions=1, http=DestinationHTTP(staging=StagingPolicy(max_bytes=4 << 20)))
    )
    large = row(b"<a>" + b"x" * (1 << 20) + b"</a>")
    async with aiohttp.ClientSession() as session:
        writer = Writer(Client(session, service.admin_url, service))
        for attempt in range(3):
            assert (await writer.stage(0, f"t{attempt}", [large] * 5))[0] == 507
        assert (await writer.stage(0, "u", [large] * 3)) == (200, taken(3))
        assert (await writer.shown())["parts"] == 1


class HangingStore(MemoryStore):
    """Its disk does not answer until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def commit(self, batch: Batch) -> None:
        assert self.answers.wait(60)
        super().commit(batch)


async def test_a_batch_is_said_to_be_published_when_that_is_durable_and_not_before(serve: Any) -> None:
    store = HangingStore()
    service = await serve(Destination(store, partitions=1))
    async with aiohttp.ClientSession() as session:
        writer = Writer(Client(session, service.admin_url, service))
        await writer.staged(0, "t", [row()])
        store.answers.clear()
        publishing = asyncio.ensure_future(writer.publish(0, "t", rows=1))
        async with asyncio.timeout(60):
            while (await writer.shown())["batch"] is None:
                await asyncio.sleep(0)
        staging = asyncio.ensure_future(writer.stage(0, "u", [row()]))
        again = asyncio.ensure_future(writer.publish(0, "t", rows=1))
        for _ in range(10):
            await writer.shown()
        assert not any(one.done() for one in (publishing, staging, again))
        store.answers.set()
        assert await staging == (200, {"rows": 0, "already": True, "attempt": ""})
        assert await publishing == (200, {"published": True, "rows": 1, "attempt": ""})
        assert await again == (200, {"published": False, "rows": 1, "attempt": ""})


async def test_handlers_get_each_row_once_and_those_of_a_key_in_order(serve: Any) -> None:
    app = Destination(":memory:", partitions=2)
    handled: list[tuple[str, int, str]] = []

    @app.on(ACTION)
    async def note(message: holdfast.Message) -> str:
        handled.append((message.sequence, message.message_number, message.body.text or ""))
        return "<reply/>"

    service = await serve(app)
    async with aiohttp.ClientSession() as session:
        writer = Writer(Client(session, service.admin_url, service))
        some = [row(f"<n>{key}{n}</n>", key, reply_to="urn:r") for n in range(20) for key in "abc"]
        await writer.staged(0, "t", some)
        await writer.published(0, "t", rows=60)
        shown = await writer.moved()
        await app.handled()
    names = [f"{shown['sequence']}#{partition}" for partition in range(2)]
    numbers = [[number for sequence, number, _ in handled if sequence == name] for name in names]
    assert all(some == list(range(1, 1 + len(some))) for some in numbers)
    assert sum(map(len, numbers)) == 60
    for key in "abc":
        assert [body for _, _, body in handled if body.startswith(key)] == [f"{key}{n}" for n in range(20)]


async def test_a_reader_that_waits_is_told_of_rows(writer: Writer) -> None:
    asked = {"queues": {"inbox": {"epoch": await writer.admin.epoch()}}, "wait": 60}
    waiting = asyncio.ensure_future(writer.admin.ask("/next-positions", "POST", json=asked))
    await writer.staged(0, "t", [row()])
    await writer.published(0, "t", rows=1)
    assert (await waiting)[1]["queues"]["inbox"]["offsets"] == {"0": 1}


async def test_nothing_is_staged_or_moved_while_the_disk_is_nearly_full(writer: Writer) -> None:
    await writer.staged(0, "t", [row()])
    writer.admin.app.running.store.trouble = Trouble("The disk is nearly full.", "Free space there.")
    assert (await writer.stage(0, "u", [row()]))[0] == 503
    assert (await writer.publish(0, "t", rows=1))[1]["published"] is True
    shown = await writer.shown()
    assert (shown["moving"], shown["waits_for"]) == (1, "The disk is nearly full. Free space there.")
    writer.admin.app.running.store.trouble = None
    assert (await writer.moved())["waits_for"] == ""
    assert (await writer.stage(1, "u", [row()]))[0] == 200
