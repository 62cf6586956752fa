"""The journal of a destination that is served: what is in its files, over restarts, and when it cannot be written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from holdfast import ConfigurationError, Destination, DestinationPolicy, JournalPolicy, Message, Source
from holdfast.core.records import Snapshot
from holdfast.endpoint.journal import writer as room
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.files import HEADER, rows_of, segments
from holdfast.endpoint.journal.writer import Journal, directory_of
from holdfast.endpoint.serve import Service
from holdfast.endpoint.source.replies import Replies
from holdfast.endpoint.worker import Worker
from holdfast.exceptions import StoreError
from holdfast.http.client.client import HTTPClient
from holdfast.testing import pair

ACTION = "urn:test:submit"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WRITE_EVERY", 0.02)


def made(store: Path, **options: Any) -> Destination:
    app = Destination(store, partitions=1, **options)

    async def take(message: Message) -> None:
        pass

    app.on(ACTION)(take)
    return app


async def send(url: str, *numbers: int) -> None:
    async with Source(url, ":memory:") as source:
        for number in numbers:
            await source.send(f"<n>{number}</n>", action=ACTION)
        await source.flush(60)


def rows(directory: Path) -> list[dict[str, Any]]:
    found = []
    for one in segments(directory):
        with one.path.open("rb") as file:
            found += rows_of(file)
    return found


def events(directory: Path) -> list[str]:
    return [row["event"] for row in rows(directory)]


async def get(service: Service, path: str) -> Any:
    client = HTTPClient()
    try:
        response = await client.fetch("GET", f"{service.admin_url}{path}", b"", {})
    finally:
        await client.close()
    return json.loads(response.body) if path != "/metrics" else response.body.decode()


async def test_a_run_is_told_from_its_start_to_its_end_without_a_hole(serve, tmp_path):
    service = await serve(made(tmp_path / "inbox"))
    await send(service.url, 1, 2, 3)
    await service.app.handled()
    await service.close()
    told = rows(tmp_path / "inbox" / "journal")
    assert [row["ordinal"] for row in told] == list(range(len(told)))
    assert len({row["run"] for row in told}) == 1
    names = [row["event"] for row in told]
    assert (names[0], names[1], names[-1]) == ("started", "recovered", "stopped")
    delivered = [row for row in told if row["event"] == "delivered"]
    assert [row["number"] for row in delivered] == [1, 2, 3]
    for event in ("acknowledged", "handled"):
        assert sum(row["count"] for row in told if row["event"] == event) == 3
    assert sum(row["event"] == "handed over" for row in told) == 3
    assert {"created", "terminated"} <= set(names)
    assert all(row["since"] <= row["at"] for row in delivered)


async def test_the_next_run_begins_with_what_is_durable(serve, tmp_path):
    service = await serve(made(tmp_path / "inbox"))
    async with Source(service.url, tmp_path / "outbox") as source:
        await source.send("<n/>", action=ACTION)
        await source.flush(60)
        await service.app.handled()
        await service.close()
        service = await serve(made(tmp_path / "inbox"))
        await service.close()
        await source.close(0.0)  # nobody answers it
    told = rows(tmp_path / "inbox" / "journal")
    _, second = dict.fromkeys(row["run"] for row in told)
    again = {row["event"]: row for row in told if row["run"] == second and row["key"] is None}
    assert (again["recovered"]["count"], again["stands"]["number"], again["stands"]["count"]) == (2, 1, 1)
    assert again["stands"]["detail"] == "created, exactly-once in-order, NoDiscard"
    assert (again["queue stands"]["offset"], again["handled stands"]["count"]) == (1, 1)
    epoch = {row["detail"] for row in told if row["event"] == "queue stands"}
    assert len(epoch) == 1


async def test_a_run_that_ends_in_order_lists_what_the_next_run_begins_with(serve, tmp_path):
    """So an audit knows whether anything else wrote to the store between the two."""
    inbox = tmp_path / "inbox"
    service = await serve(made(inbox, journal=JournalPolicy(file_age=0.001)))  # it is time for a file all the while
    async with Source(service.url, tmp_path / "outbox") as source:
        await source.send("<n/>", action=ACTION)
        await source.flush(60)
        await service.app.handled()
        await service.close()
        service = await serve(made(inbox))
        await service.close()
        await source.close(0.0)  # nobody answers it
    told = rows(inbox / "journal")
    first, second = ([row for row in told if row["run"] == run] for run in dict.fromkeys(row["run"] for row in told))
    names = ("event", "sequence", "number", "count", "queue", "partition", "offset", "key", "peer")
    listed = [tuple(row[name] for name in names) for row in second if row["event"].endswith("stands")]
    begun = listed[: len(listed) // 2]
    assert {one[0] for one in begun} == {"queue stands", "handled stands", "stands"}
    assert listed == begun * 2
    ended = [tuple(row[name] for name in names) for row in first][-1 - len(begun) : -1]
    assert sorted(ended, key=repr) == sorted(begun, key=repr), "Sequences are recovered in an order of their own"
    assert [run[-1]["event"] for run in (first, second)] == ["stopped"] * 2


async def test_it_is_where_it_was_told_or_nowhere(serve, tmp_path):
    service = await serve(made(tmp_path / "inbox", journal=JournalPolicy(str(tmp_path / "told"))))
    await send(service.url, 1)
    await service.close()
    assert "delivered" in events(tmp_path / "told")
    assert not (tmp_path / "inbox" / "journal").exists()
    off = made(tmp_path / "other", journal=False)
    service = await serve(off)
    await send(service.url, 1)
    await service.close()
    assert off.running.journal is None
    assert not (tmp_path / "other" / "journal").exists()
    with pytest.raises(ConfigurationError):
        Destination(":memory:", journal="here")  # type: ignore[arg-type]


def test_each_worker_has_a_directory_of_its_own_and_a_store_elsewhere_has_none(tmp_path):
    usual, told = JournalPolicy(), JournalPolicy(directory="/told")
    assert directory_of(usual, "inbox", None) == Path("inbox/journal")
    assert directory_of(usual, "inbox", Worker(0, 2)) == Path("inbox/journal")
    assert directory_of(usual, "inbox", Worker(1, 2)) == Path("inbox/worker-1/journal")
    assert directory_of(told, "inbox", Worker(0, 2)) == Path("/told")
    assert directory_of(told, ":memory:", Worker(1, 2)) == Path("/told/worker-1")
    assert directory_of(usual, ":memory:", None) is None
    assert directory_of(usual, "postgresql://db/x", None) is None


async def test_messages_go_on_while_it_cannot_be_written_and_it_says_what_it_missed(serve, tmp_path):
    place = tmp_path / "told"
    place.write_text("a file where a directory should be")
    app = made(tmp_path / "inbox", journal=JournalPolicy(str(place)))
    service = await serve(app)
    await send(service.url, 1, 2)
    assert app.running.journal is not None
    await until(lambda: app.running.journal.trouble)
    health = await get(service, "/healthz")
    assert (health["status"], health["journal"]) == ("ok", app.running.journal.trouble)
    assert "holdfast_journal_failing 1.0" in await get(service, "/metrics")
    place.unlink()
    await until(lambda: not app.running.journal.trouble)
    await send(service.url, 3)
    lost = app.running.journal.lost
    await service.close()
    assert "journal" not in await _health_of(serve, app, tmp_path)
    told = [row for row in rows(place) if row["run"] == rows(place)[0]["run"]]
    gap = next(row for row in told if row["event"] == "gap")
    assert told[0] is gap
    assert gap["count"] == gap["ordinal"] == lost
    assert gap["detail"] in ("File exists", "Not a directory")
    assert "stands" in [row["event"] for row in told]
    numbers = [row["ordinal"] for row in told]
    assert numbers == list(range(numbers[0], numbers[0] + len(told)))


async def _health_of(serve: Any, app: Destination, tmp_path: Path) -> Any:
    service = await serve(made(tmp_path / "inbox", journal=app.settings.journal))
    return await get(service, "/healthz")


async def test_nothing_is_written_where_the_store_needs_what_is_left(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "SPARE_BYTES", 1 << 62)
    app = made(tmp_path / "inbox")
    service = await serve(app)
    await send(service.url, 1)
    await until(lambda: app.running.journal is not None and app.running.journal.trouble)
    await service.close()
    assert segments(tmp_path / "inbox" / "journal") == []


async def test_who_comes_second_to_a_directory_writes_nothing_there(serve, tmp_path):
    policy = JournalPolicy(str(tmp_path / "told"))
    first = await serve(made(tmp_path / "one", journal=policy))
    await until(lambda: first.app.running.journal.written)
    second = await serve(made(tmp_path / "two", journal=policy))
    await until(lambda: "another process" in second.app.running.journal.trouble)
    await send(second.url, 1)
    await second.close()
    await first.close()
    assert "delivered" not in events(tmp_path / "told")


async def test_a_file_that_is_complete_is_followed_by_one_that_begins_with_how_all_stands(serve, tmp_path):
    app = made(tmp_path / "inbox", journal=JournalPolicy(file_size=1))
    service = await serve(app)
    for number in range(3):
        before = app.running.journal.written
        await send(service.url, number)
        await until(lambda before=before: app.running.journal.written > before)
    await service.close()
    there = segments(tmp_path / "inbox" / "journal")
    assert len(there) > 1
    for one in there[1:]:
        with one.path.open("rb") as file:
            assert rows_of(file)[0]["event"] == "queue stands"
    told = rows(tmp_path / "inbox" / "journal")
    assert [row["ordinal"] for row in told] == list(range(len(told)))
    assert sum(row["event"] == "delivered" for row in told) == 3


async def test_what_one_left_that_was_killed_is_cut_off_where_it_is_whole(serve, tmp_path):
    service = await serve(made(tmp_path / "inbox"))
    await send(service.url, 1)
    await service.close()
    (one,) = segments(tmp_path / "inbox" / "journal")
    live = one.path.with_name("_live-" + one.path.name.removeprefix("_"))
    live.write_bytes(one.path.read_bytes() + b"\x00\x00\x00\x40torn")
    one.path.unlink()
    (live.parent / "_live-0-foreign-1.journal").write_bytes(b"somebody else's")
    before = len(rows(live.parent))
    service = await serve(made(tmp_path / "inbox"))
    await until(lambda: service.app.running.journal.written)
    await service.close()
    assert one.path.read_bytes().startswith(HEADER)
    assert b"torn" not in one.path.read_bytes()
    assert len(rows(live.parent)) > before


async def test_a_disk_that_does_not_answer_costs_events_and_nothing_else(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "MOST_GATHERED", 5)
    app = made(tmp_path / "inbox")
    service = await serve(app)
    await until(lambda: app.running.journal.written and app.running.journal._writing is None)
    app.running.journal._writing = asyncio.get_running_loop().create_future()  # as while a write hangs
    await send(service.url, *range(10))
    await until(lambda: app.running.journal.lost)
    app.running.journal._writing = None
    await until(lambda: not app.running.journal.trouble)
    await send(service.url, 11)
    await service.close()
    told = events(tmp_path / "inbox" / "journal")
    assert told.count("gap") == 1
    assert "stands" in told[told.index("gap") :]


@pytest.mark.parametrize("method", ["_handed_over", "durable", "recover", "stand"])
async def test_a_bug_in_it_stops_no_message(serve, tmp_path, monkeypatch, method):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Collector, method, fail)
    app = made(tmp_path / "inbox")
    service = await serve(app)
    await send(service.url, 1, 2)
    await service.app.handled()
    await until(lambda: app.running.journal.trouble)
    assert "a bug" in (await get(service, "/healthz"))["journal"]
    await service.close()


def test_workers_whose_files_are_complete_together_convert_them_one_after_another(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now))
    journals = [Journal(tmp_path, JournalPolicy(), lambda: now, DestinationPolicy(), number) for number in range(24)]
    begun: dict[int, float] = {}
    for now in range(300):
        for number, journal in enumerate(journals):
            if journal._is_conversion_due:
                begun.setdefault(number, now)
    first = room.SETTLED_AFTER
    assert begun == {number: first + room.CONVERTED_APART * number for number in range(24)}


@pytest.fixture
def parquet_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SETTLED_AFTER", 0.0)


async def test_complete_files_become_parquet_beside_it_and_old_ones_go(serve, tmp_path, parquet_at_once):
    place = tmp_path / "inbox" / "journal"
    app = made(tmp_path / "inbox", journal=JournalPolicy(file_size=1))
    service = await serve(app)
    await send(service.url, 1)
    await until(lambda: any(one.is_parquet for one in segments(place)))
    journal = app.running.journal
    await service.close()
    await until(lambda: journal._making.poll() is not None)
    assert all(one.is_parquet for one in segments(place))
    import pyarrow.parquet as pq

    table = pq.ParquetDataset([one.path for one in segments(place)]).read()
    assert sorted(table["ordinal"].to_pylist()) == list(range(table.num_rows))
    assert "delivered" in table["event"].to_pylist()


async def test_a_journal_that_never_began_can_be_closed(tmp_path):
    one = Journal(tmp_path, JournalPolicy(), lambda: 0.0, DestinationPolicy())
    await one.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("openings", "numbers"),
    [((0, 0, 0), [1, 2, 3]), ((7, 9, 10), [7, 9, 10]), ((0, 5, 2, 0), [1, 5, 6, 7])],
)
async def test_runs_have_the_numbers_of_the_openings_and_never_go_back(
    tmp_path: Path, openings: tuple[int, ...], numbers: list[int]
) -> None:
    """Nodes that take a partition over in turn write to directories of their own, and only the openings order these."""
    for opening in openings:
        one = Journal(tmp_path, JournalPolicy(), lambda: 0.0, DestinationPolicy())
        one.start(Snapshot(), (), opening)
        await one.close()
    assert [row["attempt"] for row in rows(tmp_path) if row["event"] == "started"] == numbers


def test_a_destination_restarted_in_another_loop_and_store_ends_each_time(tmp_path: Path):
    app = made(tmp_path / "unused")

    async def run(store: Path | None) -> None:
        async with pair(app, store=store) as source:
            await source.send("<n>1</n>", action=ACTION)

    for store in (tmp_path / "one", None, None, tmp_path / "two", tmp_path / "one"):
        asyncio.run(run(store))
        assert app.running.journal is None
    assert events(tmp_path / "one" / "destination" / "journal").count("delivered") == 2
    assert events(tmp_path / "two" / "destination" / "journal").count("delivered") == 1


async def test_a_source_keeps_a_journal_if_it_is_told_to(serve, tmp_path):
    service = await serve(made(tmp_path / "inbox"))
    for store, journal in ((tmp_path / "outbox", True), (tmp_path / "other", JournalPolicy(str(tmp_path / "told")))):
        async with Source(service.url, store, journal=journal) as source:
            for number in range(3):
                await source.send(f"<n>{number}</n>", action=ACTION)
            await source.flush(60)
    async with Source(service.url, tmp_path / "without") as source:
        await source.send("<n/>", action=ACTION)
        await source.flush(60)
    async with Source(service.url, ":memory:", journal=True) as source:  # which has no directory
        await source.send("<n/>", action=ACTION)
    assert not (tmp_path / "without" / "journal").exists()
    assert not (tmp_path / "other" / "journal").exists()
    for directory in (tmp_path / "outbox" / "journal", tmp_path / "told"):
        told = rows(directory)
        assert [row["ordinal"] for row in told] == list(range(len(told)))
        names = [row["event"] for row in told]
        assert (names[0], names[1], names[-1]) == ("started", "recovered", "stopped")
        submitted = [row for row in told if row["event"] == "submitted"]
        assert [row["offset"] for row in submitted] == [0, 1, 2]
        (created,) = [row for row in told if row["event"] == "created" and row["key"] is not None]
        assert (created["queue"], created["offset"], created["peer"]) == (submitted[0]["queue"], 0, service.url)
        for event in ("transmitted", "arrived"):
            assert sum(row["count"] for row in told if row["event"] == event) == 3
        assert "terminated" in names


async def test_a_source_that_cannot_begin_ends_its_journal_for_the_next_run(serve, tmp_path, monkeypatch):
    service = await serve(made(tmp_path / "inbox"))
    async with Source(service.url, tmp_path / "outbox", journal=True) as source:
        await source.send("<n/>", action=ACTION)
        await source.flush(60)
    with monkeypatch.context() as patch:

        async def fail(*_: object) -> None:
            raise StoreError("the disk is gone", remedy="none")

        patch.setattr(Replies, "take_up", fail)
        with pytest.raises(StoreError):
            await Source(service.url, tmp_path / "outbox", journal=True).open()
    async with Source(service.url, tmp_path / "outbox", journal=True):
        pass
    directory = tmp_path / "outbox" / "journal"
    assert events(directory).count("started") == events(directory).count("stopped") == 3
    with pytest.raises(ConfigurationError):
        Source(service.url, ":memory:", journal="here")  # type: ignore[arg-type]
