"""The sink's half in Spark and the server's half together, over a real socket and a real store, without Spark.

Covers pipeline/writer/client.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from crew import Crew
from hive_dataset import dataset_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meddler import Meddler
from sink_steps import SERVED, Died, Query, Sent, attempt, bodies, failures, schema

from examples import examples
from holdfast import Destination
from holdfast.client.data_plane import Patience
from holdfast.client.errors import BatchRefused, PipelineError, SinkBound, WriteRefused
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.pipeline.writer import rows as rows_room
from holdfast.pipeline.writer.client import Batch, SinkPlane
from holdfast.pipeline.writer.sink import Staged, TaskWriter, planned
from holdfast.testing.ports import free_ports


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a store, in a thread."""
    directory = tmp_path_factory.mktemp("real")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> Service:
        app = Destination(directory / "store", partitions=2, queues={"inbox": None, "out": None})
        service = Service(app, Listeners(port=0, admin=AdminListener(port=0)))
        await service.start()
        return service

    service = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    yield service
    asyncio.run_coroutine_threadsafe(service.close(1.0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def real(service: Service) -> Iterator[Meddler]:
    """The server, behind a meddler."""
    meddler = Meddler(str(service.admin_url))
    yield meddler
    meddler.stop()


@pytest.fixture
def server(real: Meddler) -> Meddler:
    real.on_sink = lambda request: None
    return real


@pytest.mark.parametrize("ask", [lambda plane: plane.bind("alerts", "q"), lambda plane: plane._json("GET", "/queues")])
def test_every_request_to_the_admin_listener_names_the_data_listener(
    service: Service, ask: Callable[[SinkPlane], object]
) -> None:
    plane = SinkPlane(service.url)
    with pytest.raises(PipelineError) as caught:
        ask(plane)
    plane.close()
    assert "broker names the admin listener" in caught.value.remedy


# By default each failure once in each attempt; the tests of the sink with a scripted server have all pairs.
@pytest.mark.parametrize(
    "attempts",
    [
        pytest.param(pair, id="-".join(pair), marks=[pytest.mark.nightly] if (number // 8 - number) % 8 != 3 else [])
        for number, pair in enumerate(failures())
    ],
)
def test_whatever_fails_in_a_batch_its_rows_come_into_the_queue_once_and_in_order(
    server: Meddler, monkeypatch: pytest.MonkeyPatch, attempts: tuple[str, ...]
) -> None:
    monkeypatch.setattr(rows_room, "PART_BYTES", 60)
    monkeypatch.setattr("holdfast.pipeline.writer.sink.Patience", partial(Patience, sleep=lambda seconds: None))
    name = "-".join(attempts).replace(" ", "_")
    query = Query(server, name, awaySeconds="60")
    for batch in range(3):
        for place in (*(attempts if batch != 1 else reversed(attempts)), "none"):
            try:
                attempt(server, query, batch, place)
                break
            except Died:
                continue
    expected = [f"<r{batch}-{task}-{row}/>" for batch in range(3) for task in range(2) for row in range(3)]
    assert Sent(server.target).bodies(name) == expected


def test_a_task_larger_than_a_request_may_be_goes_out_in_parts_and_comes_in_order(server: Meddler) -> None:
    rows = [f"<r>{number:06}{'x' * 1000}</r>" for number in range(12_000)]
    query = Query(server, "large")
    staged = query.task(0, 0, {"body": rows}, size=5000)
    assert len(staged.tokens) > 2
    query.writer("body").commit([staged], 0)
    assert Sent(server.target).bodies("large") == rows


def test_rows_of_one_key_stay_in_order_and_keys_are_spread_over_partitions(server: Meddler) -> None:
    query = Query(server, "keyed", sequenceKey="carrier")
    for batch in range(3):
        tasks = [
            {"body": [f"<k{key}>{batch}{row}</k{key}>" for key in keys for row in range(4)],
             "carrier": [key for key in keys for _ in range(4)]}
            for keys in (range(4), range(4, 8))
        ]  # fmt: skip
        query.run(batch, *tasks)
    found = Sent(server.target).bodies("keyed")
    for key in range(8):
        of_key = [re.findall(r">(\d+)<", one)[0] for one in found if one.startswith(f"<k{key}>")]
        assert of_key == [f"{batch}{row}" for batch in range(3) for row in range(4)]


def test_a_row_that_is_no_xml_is_named_or_goes_to_the_table(server: Meddler, tmp_path: Path) -> None:
    rows = {"body": ["<a/>", "<b/>", "<a><b></a>", "<d/>"], "carrier": [7, 8, 9, 10]}
    with pytest.raises(WriteRefused) as caught:
        Query(server, "named", sequenceKey="carrier").task(0, 0, rows)
    assert caught.value.message.startswith("row 2 of partition 0 of batch 0 cannot be sent, column body: ")
    assert caught.value.message.endswith(" (carrier=9)")
    query = Query(server, "diverted", sequenceKey="carrier", refused=str(tmp_path))
    query.run(0, rows)
    assert sorted(Sent(server.target).bodies("diverted")) == ["<a/>", "<b/>", "<d/>"]
    found = dataset_of(tmp_path).to_table().to_pylist()
    assert [(row["carrier"], row["refused_row"], row["refused_column"]) for row in found] == [(9, 2, "body")]


KINDS = {
    "good": ("<{0}/>", "urn:a", "out"),
    "no XML": ("{0}", "urn:a", "out"),
    "cut off": ("<{0}>", "urn:a", "out"),
    "null": (None, "urn:a", "out"),
    "no action": ("<{0}/>", None, "out"),
    "nowhere": ("<{0}/>", "urn:a", "nowhere"),
    "no queue": ("<{0}/>", "urn:a", None),
}
"""Rows: body, action and queue. The first can be sent."""
numbers = itertools.count()


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.lists(st.sampled_from(["good", "good", *KINDS]), max_size=6), min_size=1, max_size=3),
    place=st.sampled_from(sorted({one for pair in failures() for one in pair})),
    size=st.sampled_from([60, 1 << 20]),
)
def test_every_row_is_sent_or_in_the_table_once_whatever_it_is_and_whatever_fails(
    server: Meddler, tmp_path: Path, kinds: list[list[str]], place: str, size: int
) -> None:
    name = f"mixed{next(numbers)}"
    query = Query(server, name, refused=str(tmp_path / name), queue="", action="", awaySeconds="60")
    rows = [(task, row, kind) for task, some in enumerate(kinds) for row, kind in enumerate(some)]

    def of(task: int) -> dict[str, list[str | None]]:
        mine = [(f"r{task}-{row}", KINDS[kind]) for one, row, kind in rows if one == task]
        bodies = [body and body.format(name) for name, (body, _, _) in mine]
        return {"body": bodies, "action": [kind[1] for _, kind in mine], "queue": [kind[2] for _, kind in mine]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_room, "PART_BYTES", size)
        patch.setattr("holdfast.pipeline.writer.sink.Patience", partial(Patience, sleep=lambda seconds: None))
        for where in (place, "none"):
            with contextlib.suppress(Died):
                attempt(server, query, 0, where, [of(task) for task in range(len(kinds))])
    assert Sent(server.target).bodies(name) == [f"<r{task}-{row}/>" for task, row, kind in rows if kind == "good"]
    table = dataset_of(tmp_path / name) if (tmp_path / name).exists() else None
    found = table.to_table().to_pylist() if table is not None and table.files else []
    places = sorted((one["refused_partition"], one["refused_row"]) for one in found)
    assert places == [(task, row) for task, row, kind in rows if kind != "good"]
    assert all(one["refused_reason"] for one in found)


def test_a_row_for_an_unknown_queue_or_address_cannot_be_sent(server: Meddler) -> None:
    with pytest.raises(WriteRefused, match=r"column queue: .*nowhere"):
        Query(server, "lost", queue="").task(0, 0, bodies("a") | {"queue": ["nowhere"]})
    with pytest.raises(WriteRefused, match=r"column to: .*http://elsewhere/"):
        Query(server, "lost", queue="").task(0, 0, bodies("a") | {"to": ["http://elsewhere/"]})


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize(
    ("options", "why", "remedy"),
    [
        ({"queue": "outt"}, r"option queue: .*'outt' does not exist", "Did you mean 'out'? The queues are "),
        ({"queue": "nowhere"}, r"option queue: .*nowhere", "The queues are "),
        ({"queue": "", "to": "http://elsewhere/"}, r"option to: .*http://elsewhere/", "Configure a forwarder"),
        ({"action": "Sub mit"}, r"option action: .*not an absolute IRI", "urn:orders/Submit"),
    ],
)
def test_a_wrong_option_fails_the_write_also_if_refused_rows_have_a_table(
    server: Meddler, tmp_path: Path, options: dict[str, str], why: str, remedy: str, has_table: bool
) -> None:
    more = {"refused": str(tmp_path / "refused")} if has_table else {}
    with pytest.raises(WriteRefused, match=why) as caught:
        Query(server, "lost", **options, **more).task(0, 0, bodies("a", "b"))
    assert remedy in caught.value.remedy
    assert "Correct the option" in caught.value.remedy
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def test_another_query_or_a_gap_is_refused_and_a_return_sends_nothing_twice(
    server: Meddler,
) -> None:
    Query(server, "q1", sinkId="bound").run(0, bodies("a"))
    with pytest.raises(SinkBound):
        Query(server, "q2", sinkId="bound").task(0, 0, bodies("b"))
    with pytest.raises(BatchRefused):
        Query(server, "q1", sinkId="bound").task(5, 0, bodies("b"))
    Query(server, "q2", sinkId="bound", rebind="true").run(0, bodies("b"))
    Query(server, "q1", sinkId="bound", rebind="true").run(0, bodies("a"))
    assert Sent(server.target).bodies("bound") == ["<a/>", "<b/>"]


def test_an_overtaken_batch_fails_with_its_numbers_and_is_not_taken_for_sent(server: Meddler) -> None:
    plane = SinkPlane(server.url)
    batches = [Batch("parallel", "nightly", number, jumps=True) for number in (5, 6)]
    staged = [write_as(server, batch, bodies(f"n{batch.number}")) for batch in batches]
    for batch, one in reversed([*zip(batches, staged, strict=True)]):
        if batch.number == 6:
            assert plane.publish(batch, list(one.tokens), one.rows).is_new
            assert not plane.publish(batch, list(one.tokens), one.rows).is_new
        else:
            with pytest.raises(
                BatchRefused, match="batch 6 of 'nightly' was published before batch 5, which the server has not"
            ):
                plane.publish(batch, list(one.tokens), one.rows)
    plane.close()
    assert Sent(server.target).bodies("parallel") == ["<n6/>"]


def write_as(server: Meddler, batch: Batch, rows: dict[str, list[str]]) -> Staged:
    """What a task of a batch write does."""
    options, plan = planned(Query(server).options, schema(*rows), False, stream=True)
    return TaskWriter(options, plan, batch, 0).write(iter(pa.table(rows).to_batches()))


# Each kill costs two seconds of processor time.
@pytest.mark.crash
@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_a_server_that_is_killed_while_rows_are_staged_and_published_has_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    monkeypatch.setattr(rows_room, "PART_BYTES", 2000)
    port, admin = free_ports(2)

    def start() -> Crew:
        made = Crew(tmp_path, "--port", str(port), "--admin", str(admin), module=SERVED)
        assert made.url() and made.url()
        return made

    crew = start()
    server = Meddler(f"http://127.0.0.1:{admin}")
    steps = [(f"batch={b}&" if what == "parts" else f"/batches/{b}", when)
             for b in range(2) for what in ("parts", "batches") for when in ("before", "after")][:kills]  # fmt: skip
    died: list[tuple[str, str]] = []
    later: list[threading.Timer] = []

    def meddle(request: str) -> str | None:
        if len(died) < len(steps) and steps[len(died)][0] in request:
            died.append(steps[len(died)])
            if died[-1][1] == "before":
                restart()
                return "before"
            later.append(threading.Timer(0.002, restart))  # while it works on the request, or just after
            later[-1].start()
        return None

    def restart() -> None:
        nonlocal crew
        crew.clean()
        crew = start()

    server.on_sink = meddle
    query = Query(server, "killed", awaySeconds="120")
    sent = []
    try:
        for batch in range(3):
            tasks = [[f"{'x' * 50}{batch}-{task}-{row}" for row in range(100)] for task in range(2)]
            query.run(batch, *(bodies(*rows) for rows in tasks))
            sent += [f"<{row}/>" for rows in tasks for row in rows]
        assert Sent(server.target).bodies("killed") == sent
        assert len(died) == len(steps)
    finally:
        server.stop()
        for timer in later:
            timer.join()
        crew.clean()
