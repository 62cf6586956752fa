"""A table of Parquet whose drivers and compactions stop anywhere, for an hour or for good, while the others go on: at
every moment each batch that was landed is there, whole and once; of a table that each replaces, one at most. Every step
of the file system is the test's to choose; what Spark would write are lines of text."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from actors import Actor, pause
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing import compaction
from holdfast.pipeline.landing import directories as landed
from holdfast.pipeline.landing.directories import Layout, ParquetTable, complete, counting
from holdfast.pipeline.landing.publication import ATTEMPTS
from holdfast.pipeline.mediation.execution.sinks import write_table
from holdfast.pipeline.spark import checkpoints, files

LAYOUT = Layout(StructType([StructField("x", StringType())]))
HOUR = 3600.0
SMALL, LARGE = 40, 1 << 20
"""Bytes of a compacted directory: of two batches, and of all."""


BORNE = {PipelineError, ConfigurationError, FileNotFoundError}
"""What ends somebody who is not alone: another was faster, or has swept what this one reads."""


class Rows:
    """What Spark would call a DataFrame."""

    schema = LAYOUT.schema

    def __init__(self, world: World, lines: Callable[[], list[str]]) -> None:
        self.sparkSession, self.lines = world, lines

    def coalesce(self, files: int) -> Rows:
        return self

    def sortWithinPartitions(self, *columns: str) -> Rows:
        return self


class World:
    """A table, a file system, and a clock. It stands for a Spark session, too, of which nobody asks anything."""

    def __init__(self, out: Path) -> None:
        self.out = str(out)
        self.now = 1_000_000_000.0
        self.local = threading.local()
        self.said: set[int] = set()
        """Batches that somebody was told are landed."""
        self.seen: dict[int, str] = {}
        """Batch -> whose rows are in the table."""
        self._times: dict[str, float] = {}
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()

    def newSession(self) -> World:
        return self

    def step(self) -> None:
        pause(self.local)

    def _touch(self, *places: str) -> None:
        self._times.update(dict.fromkeys(places, self.now))

    # --- what files does ------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        self.step()
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def read_text(self, file: str) -> str:
        self.step()
        return Path(file).read_text()

    def write_text(self, file: str, text: str) -> None:
        for content in ("", text):
            self.step()
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(content)
            self._touch(file, os.path.dirname(file))

    def publish_text(self, file: str, text: str) -> None:
        hidden = f"{os.path.dirname(file)}/.{os.path.basename(file)}"
        self.write_text(hidden, text)
        self.step()
        os.rename(hidden, file)
        self._touch(file)

    def rename_unless_there(self, directory: str, name: str) -> bool:
        self.step()
        try:
            os.rename(directory, name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise ConfigurationError(str(error), remedy="") from error
            return False
        return True

    def size(self, place: str) -> int:
        self.step()
        return sum(file.stat().st_size for file in Path(place).glob("part-*"))

    def modified(self, place: str) -> float:
        self.step()
        os.stat(place)
        return self._times.get(place, self.now)

    def delete(self, place: str) -> None:
        for directory, _, inside in os.walk(place, topdown=False):
            for file in sorted(inside):
                self.step()
                Path(directory, file).unlink(missing_ok=True)
            self.step()
            try:
                os.rmdir(directory)
            except OSError:
                return

    # --- what Spark does ------------------------------------------------------------------------------------------

    def read_units(self, out: str, units: list[Any], layout: Layout) -> Rows:
        parts: list[Path] = []
        for unit in units:
            self.step()
            parts += sorted(Path(out, unit.name).glob("part-*"))
        return Rows(self, lambda: [line for part in parts for line in self.read_text(str(part)).splitlines()])

    def write_rows(self, rows: Rows, place: str, layout: Layout) -> None:
        self.step()
        shutil.rmtree(place, ignore_errors=True)
        Path(place, "_temporary").mkdir(parents=True)
        lines = rows.lines()
        for number, some in enumerate((lines[: len(lines) // 2], lines[len(lines) // 2 :])):
            self.step()
            Path(place, "_temporary", str(number)).write_text("".join(f"{line}\n" for line in some))
            self.step()
            os.rename(f"{place}/_temporary/{number}", f"{place}/part-{number}")
        self.step()
        os.rmdir(f"{place}/_temporary")
        self.step()
        Path(place, "_SUCCESS").touch()
        self._touch(place, f"{place}/_SUCCESS")

    # --- who is there ---------------------------------------------------------------------------------------------

    def land(self, *batches: int, who: str = "one") -> Actor:
        """A driver; one of another name has other messages in its batches."""

        def go() -> None:
            table = ParquetTable(self, self.out)  # type: ignore[arg-type]
            for batch in batches:
                if not checkpoints.is_there(table, batch, who, self.out):
                    table.write(self._rows(batch, who), batch, LAYOUT, who)  # type: ignore[arg-type]
                self.said.add(batch)

        return Actor(self.local, go)

    def replace(self, *batches: int, who: str = "one") -> Actor:
        """A driver each of whose batches is all of the table."""

        def go() -> None:
            for batch in batches:
                write_table(self._rows(batch, who), self.out, batch, who, only=True)  # type: ignore[arg-type]
                self.said.add(batch)

        return Actor(self.local, go)

    def _rows(self, batch: int, who: str) -> Rows:
        return Rows(self, lambda: [f"{batch} {who} {number}" for number in range(3)])

    def compact(self, target: int = LARGE, keep: float = HOUR) -> Actor:
        return Actor(self.local, lambda: compaction.compact(self, self.out, target=target, keep=keep))  # type: ignore[arg-type]

    def check(self) -> None:
        """What a reader sees now."""
        seen: dict[int, list[str]] = {}
        for unit in counting(complete(self, self.out)):  # type: ignore[arg-type]
            for part in sorted(Path(self.out, unit.name).glob("part-*")):
                for line in part.read_text().splitlines():
                    seen.setdefault(int(line.split()[0]), []).append(line)
        for batch, lines in seen.items():
            who = lines[0].split()[1]
            assert sorted(lines) == [f"{batch} {who} {number}" for number in range(3)]
            assert self.seen.setdefault(batch, who) == who
        assert seen.keys() == self.seen.keys() >= self.said

    def look(self) -> int | None:
        """Which batch Spark's own reader sees of a table that each replaces: none, or one, and all of it."""
        there = [Path(self.out, name) for name in os.listdir(self.out) if name[0] not in "_."]
        if not there:
            return None
        (one,) = there
        batch = int(one.name.removeprefix("batch="))
        lines = sorted(line for part in one.glob("part-*") for line in part.read_text().splitlines())
        assert lines == [f"{batch} {lines[0].split()[1]} {number}" for number in range(3)]
        assert {"_SUCCESS", LAYOUT.note, "_origin"} <= set(os.listdir(one))
        return batch

    def attempts(self) -> list[str]:
        return os.listdir(Path(self.out, ATTEMPTS))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    def told(name: str) -> Callable[..., Any]:
        return lambda world, *arguments: getattr(world, name)(*arguments)

    for name in ("names", "read_text", "write_text", "publish_text", "rename_unless_there", "size", "modified"):
        monkeypatch.setattr(files, name, told(name))
    monkeypatch.setattr(files, "delete", told("delete"))
    monkeypatch.setattr(files, "renames_at_once", lambda world, out: True)
    for room in (landed, compaction):
        monkeypatch.setattr(room, "write_rows", lambda rows, *arguments: rows.sparkSession.write_rows(rows, *arguments))
    monkeypatch.setattr(compaction, "read_units", told("read_units"))
    worlds: list[World] = []
    monkeypatch.setattr(compaction, "time", SimpleNamespace(time=lambda: worlds[-1].now))

    def begun() -> World:
        worlds.append(World(tmp_path / "table"))
        return worlds[-1]

    return begun


def errors(*actors: Actor) -> set[type[Exception]]:
    return {type(one.error) for one in actors if one.error is not None}


SLEEPERS: dict[str, Callable[[World], Actor]] = {
    "compaction": lambda world: world.compact(),
    "compaction that keeps nothing": lambda world: world.compact(keep=0.0),
    "driver": lambda world: world.land(4),
}


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("sleeper", SLEEPERS)
def test_who_sleeps_for_hours_or_dies_at_any_step_takes_nothing_away_from_what_others_did_meanwhile(
    begin: Callable[[], World], sleeper: str, every: int
) -> None:
    for is_killed in (False, True):
        steps = 0
        while not sleeps(begin(), SLEEPERS[sleeper], steps := steps + every, is_killed=is_killed):
            pass
        assert steps > 20


def sleeps(world: World, sleeper: Callable[[World], Actor], steps: int, *, is_killed: bool) -> bool:
    """One does so many steps, and sleeps while others land, compact and sweep; whether it was at its end before."""
    assert not errors(world.land(0, 1, 2, 3).finish())
    one = sleeper(world)
    for _ in range(steps):
        if not one.is_over:
            one.step()
    was_over = one.is_over
    world.check()
    if is_killed:
        one.kill()
    world.now += 2 * HOUR
    others = [world.compact(SMALL).finish(), world.land(4, 5).finish(), world.compact(SMALL).finish()]
    world.now += 2 * HOUR
    others.append(world.compact(SMALL, 0.0).finish())
    world.check()
    while not one.is_over:
        one.step()
        world.check()
    assert errors(one) <= BORNE, (steps, one.error)
    world.now += 2 * HOUR
    assert not errors(*others, world.compact(keep=0.0).finish(), world.compact(keep=0.0).finish()), steps
    world.check()
    assert world.said == {0, 1, 2, 3, 4, 5}
    return was_over


def lives(begin: Callable[[], World], seed: int) -> None:
    """Two drivers, of one checkpoint or of two, and two compactions; each dies and comes again, and clocks are set."""
    draw, world, batches = random.Random(seed), begin(), range(6)
    names = ("one", draw.choice(("one", "other")))
    keep = draw.choice((0.0, HOUR))
    makers: list[Callable[[], Actor]] = [
        *[lambda name=name: world.land(*batches, who=name) for name in names],  # type: ignore[misc]
        *[lambda: world.compact(draw.choice((SMALL, 2 * SMALL, LARGE)), keep)] * 2,
    ]
    for _ in turns(draw, 1500, lambda number: makers[number](), 4, changes=0.15, deaths=0.005):
        world.now += draw.choice((2 * HOUR, 2 * HOUR, -3 * HOUR)) if draw.random() < 0.02 else 0.01
        world.check()
    world.check()


def turns(
    draw: random.Random, steps: int, come: Callable[[int], Actor], many: int, *, changes: float, deaths: float
) -> Iterator[None]:
    """So many actors do so many steps in all; each sleeps while another has its turn, dies, and comes again."""
    actors = [come(number) for number in range(many)]
    one = 0
    for _ in range(steps):
        if draw.random() < changes:
            one = draw.randrange(many)
        if actors[one].is_over or draw.random() < deaths:
            actors[one].kill()
            assert errors(actors[one]) <= BORNE, actors[one].error
            actors[one] = come(one)
        actors[one].step()
        yield
    for actor in actors:
        actor.kill()


def test_drivers_and_compactions_side_by_side_lose_and_double_nothing(begin: Callable[[], World]) -> None:
    for seed in range(3):
        lives(begin, seed)


@pytest.mark.nightly
def test_drivers_and_compactions_side_by_side_lose_and_double_nothing_in_many_lives(
    begin: Callable[[], World],
) -> None:
    for seed in range(100, 160):
        lives(begin, seed)


# --- a table that each batch replaces ---------------------------------------------------------------------------------


def test_a_reader_of_a_table_that_is_replaced_sees_the_old_or_nothing_or_the_new(begin: Callable[[], World]) -> None:
    world = begin()
    one, seen = world.replace(0, 1, 2), []
    while not one.is_over:
        one.step()
        seen.append(world.look())
    assert not errors(one)
    changes = [now for now, before in zip(seen, [object(), *seen], strict=False) if now != before]
    assert changes == [None, 0, None, 1, None, 2]
    assert seen[seen.index(0) :].count(None) == 2  # steps, between the two renames of each
    assert world.attempts() == []


def test_who_is_killed_at_any_step_of_a_replacement_comes_again_and_does_it(begin: Callable[[], World]) -> None:
    was_over, steps, found = False, 0, set()
    while not was_over:
        world = begin()
        assert not errors(world.replace(0).finish())
        one = world.replace(1)
        for _ in range(steps):
            if not one.is_over:
                one.step()
        was_over = one.is_over
        one.kill()
        found.add(world.look())
        for batch in (1, 2):
            again = world.replace(batch)
            while not again.is_over:
                again.step()
                world.look()
            assert not errors(again), steps
            assert world.look() == batch
        assert world.attempts() == []
        steps += 1
    assert found == {0, None, 1}
    assert steps > 20


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.nightly)])
def test_of_two_drivers_that_replace_a_table_one_that_slept_does_no_harm_whenever_the_other_dies(
    begin: Callable[[], World], every: int
) -> None:
    draw = random.Random(1)
    told: set[type[Exception]] = set()
    for steps in range(1, 100, every):
        world = begin()
        assert not errors(world.replace(0).finish())
        one, other = world.replace(1, 2), world.replace(1, 2, 3)
        for actor, many in ((one, steps), (other, draw.randrange(150))):
            for _ in range(many):
                if not actor.is_over:
                    actor.step()
                    world.look()
        if draw.random() < 0.5:
            other.kill()
        while not one.is_over:
            one.step()
            world.look()
        while not other.is_over:
            other.step()
            world.look()
        told |= errors(one, other)
        assert not errors(world.replace(4).finish())
        assert world.look() == 4
        assert world.attempts() == []
    assert told <= BORNE
    assert PipelineError in told


def replacements(begin: Callable[[], World], seed: int) -> None:
    """Three drivers, of one checkpoint or of copies of it; each sleeps, dies, and comes again where it was."""
    draw, world = random.Random(seed), begin()
    names = ("one", "one", draw.choice(("one", "other")))
    starts = [0, 0, 0]

    def come(number: int) -> Actor:
        starts[number] = draw.choice((starts[number], max(world.said, default=-1) + 1))
        return world.replace(*range(starts[number], starts[number] + 3), who=names[number])

    for _ in turns(draw, 1000, come, 3, changes=0.2, deaths=0.01):
        world.look()
    newest = max(world.said) + 4
    assert not errors(world.replace(newest).finish())
    assert world.look() == newest
    assert world.attempts() == []


def test_drivers_that_replace_a_table_side_by_side_never_show_two_batches_nor_half_of_one(
    begin: Callable[[], World],
) -> None:
    for seed in range(2):
        replacements(begin, seed)


@pytest.mark.nightly
def test_drivers_that_replace_a_table_side_by_side_never_show_two_batches_nor_half_of_one_in_many_lives(
    begin: Callable[[], World],
) -> None:
    for seed in range(100, 200):
        replacements(begin, seed)


def test_where_the_old_batch_cannot_be_taken_away_the_new_one_is_not_shown(
    begin: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = begin()
    assert not errors(world.replace(0).finish())
    rename = files.rename_unless_there

    def refused(world: Any, directory: str, name: str) -> bool:
        if directory.endswith("/batch=0"):
            raise ConfigurationError("it cannot be written", remedy="")
        return rename(world, directory, name)

    monkeypatch.setattr(files, "rename_unless_there", refused)
    assert errors(world.replace(1).finish()) == {ConfigurationError}
    assert world.look() == 0
    monkeypatch.undo()


def test_who_is_killed_where_directories_cannot_be_renamed_takes_the_old_away_when_it_comes_again(
    begin: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "renames_at_once", lambda world, out: False)
    was_over, steps, both = False, 0, 0
    while not was_over:
        world = begin()
        assert not errors(world.replace(0).finish())
        one = world.replace(1)
        for _ in range(steps):
            if not one.is_over:
                one.step()
        was_over = one.is_over
        one.kill()
        both += len(counting(complete(world, world.out))) == 2  # type: ignore[arg-type]
        assert not errors(world.replace(1).finish())
        assert world.look() == 1
        steps += 1
    assert both > 0
