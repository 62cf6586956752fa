"""The table of refused rows, with drivers of one checkpoint that sleep, die and live side by side: every row is sent or
in the table, once, though attempts at a batch differ in what is refused. Every step at the file system and every
request is the test's to choose.

Covers pipeline/writer/refused_rows.py.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from actors import Actor, pause
from fake_server import FakeServer
from hive_dataset import dataset_of
from pyarrow import fs
from sink_steps import Query

from holdfast.client.errors import PipelineError
from holdfast.pipeline.writer import client as sink_client
from holdfast.pipeline.writer import refused_rows as refused
from holdfast.pipeline.writer.client import Batch, SinkPlane

ROWS = [f"r{number}" for number in range(4)]
BATCHES = 2


class SteppedFiles:
    """A local file system that stops before each thing it does."""

    def __init__(self, local: threading.local) -> None:
        self._local, self._system = local, fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            pause(self._local)
            return getattr(self._system, name)(*arguments, **named)

        return call


class World:
    """A server, a table, and drivers of one query. Which rows cannot be sent changes as a server's settings do."""

    def __init__(self, server: FakeServer, directory: Path, name: str) -> None:
        self.server, self.name, self.directory = server, name, directory / name
        self.local = threading.local()
        self.bad = {b"<r0/>", b"<r1/>"}
        server.sinks.fault = lambda row: "it is bad" if row["body"] in self.bad else ""

    def drive(self) -> Actor:
        """A driver: all batches, of two tasks each, from the first one on."""
        query = Query(self.server, self.name, refused=str(self.directory))

        def go() -> None:
            for batch in range(BATCHES):
                query.run(batch, *({"body": [f"<{row}/>" for row in some]} for some in (ROWS[::2], ROWS[1::2])))

        return Actor(self.local, go)

    def check(self) -> None:
        """Every row of every batch, once."""
        sent = [(batch, row["body"].decode()) for _, batch, rows in self.published for row in rows]
        table = dataset_of(self.directory) if self.directory.exists() else None
        kept = table.to_table().to_pylist() if table is not None and table.files else []
        found = sent + [(one["refused_batch"], one["body"]) for one in kept]
        assert sorted(found) == [(batch, f"<{row}/>") for batch in range(BATCHES) for row in ROWS]
        left = [path for path in self.directory.glob("_staged/*/*") if not list(path.glob("*.json"))]
        assert left == []  # there may be attempts of which nobody can say any more whether they were published

    @property
    def published(self) -> list[tuple[str, int, list[dict[str, Any]]]]:
        return self.server.sinks[self.name].published


@pytest.fixture
def begin(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    worlds: list[World] = []
    monkeypatch.setattr(refused, "_system", lambda directory: (SteppedFiles(worlds[-1].local), directory))
    asked = SinkPlane._request

    def request(self: SinkPlane, *arguments: Any, **named: Any) -> Any:
        pause(worlds[-1].local)
        answer = asked(self, *arguments, **named)
        pause(worlds[-1].local)
        return answer

    monkeypatch.setattr(sink_client.SinkPlane, "_request", request)

    def begun() -> World:
        worlds.append(World(server, tmp_path, f"q{len(worlds)}"))
        return worlds[-1]

    return begun


def finish(world: World) -> None:
    """A driver that is alone, again and again, as whoever sees to the query would start it."""
    assert world.drive().finish().error is None
    world.check()


@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["sleeps", "dies"])
def test_concurrent_and_killed_drivers_neither_lose_nor_duplicate_refused_rows(
    begin: Callable[[], World], is_killed: bool
) -> None:
    steps, was_over = 0, False
    while not was_over:
        world, steps = begin(), steps + 1
        one = world.drive()
        for _ in range(steps):
            if not one.is_over:
                one.step()
        was_over = one.is_over
        world.bad = {b"<r1/>", b"<r2/>", b"<r3/>"}
        if is_killed:
            one.kill()
        another = world.drive().finish()
        world.bad = set()
        one.finish()
        for actor in (one, another):
            assert actor.error is None or isinstance(actor.error, PipelineError), (steps, actor.error)
        finish(world)
    assert steps > 40


def test_drivers_side_by_side_double_and_lose_no_refused_row(begin: Callable[[], World]) -> None:
    for seed in range(12):
        draw, world = random.Random(seed), begin()
        actors = [world.drive(), world.drive()]
        for _ in range(150):
            one = draw.randrange(2)
            if actors[one].is_over or draw.random() < 0.01:
                actors[one].kill()
                actors[one] = world.drive()
            actors[one].step()
            if draw.random() < 0.05:
                world.bad = {f"<{row}/>".encode() for row in ROWS if draw.random() < 0.5}
        for actor in actors:
            actor.kill()
        finish(world)


def test_the_next_batch_places_the_refused_rows_of_a_dead_driver(
    begin: Callable[[], World],
) -> None:
    """Nobody need repeat the batch, as Spark does."""
    world = begin()
    one = world.drive()
    while not (world.name in world.server.sinks.sinks and world.published):
        one.step()
    one.kill()
    query = Query(world.server, world.name, refused=str(world.directory))
    query.run(1, {"body": [f"<{row}/>" for row in ROWS]})
    world.check()


def test_what_nobody_can_say_any_more_is_left_where_it_is(begin: Callable[[], World]) -> None:
    world = begin()
    one = world.drive()
    while not (world.name in world.server.sinks.sinks and world.published):
        one.step()
    query = Query(world.server, world.name)  # does not know of the table
    query.run(1, {"body": ["<a/>"]})
    one.kill()
    last = SinkPlane(world.server.url).last(Batch(world.name, world.name, 0))
    assert last is not None and last[0] == 1
    Query(world.server, world.name, refused=str(world.directory)).run(0, {"body": [f"<{row}/>" for row in ROWS]})
    assert len(list(world.directory.rglob("*.parquet"))) == 2


def test_a_task_whose_rows_are_all_refused_writes_them_some_at_a_time(server: FakeServer, tmp_path: Path) -> None:
    rows = [f"r{number}" for number in range(2500)]
    Query(server, refused=str(tmp_path)).run(0, {"body": [*rows, "x" * (5 << 20), "last"]})
    (file,) = tmp_path.glob("refused_query=q1/refused_batch=0/*.parquet")
    table = pyarrow.parquet.ParquetFile(file)
    assert table.num_row_groups == 4
    assert table.read().column("body").to_pylist() == [*rows, "x" * (5 << 20), "last"]
