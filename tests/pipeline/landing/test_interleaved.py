"""A Parquet table whose drivers stop anywhere, for hours or for good, while others go on. At every moment each landed
batch is there, whole and once. The test chooses every step of the file system; Spark's rows are lines of text."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, pause
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing import parquet as landed
from holdfast.pipeline.landing.layout import Layout
from holdfast.pipeline.landing.parquet import ParquetTable, complete, counting
from holdfast.pipeline.landing.publication import ATTEMPTS
from holdfast.pipeline.spark import checkpoints, files

LAYOUT = Layout(StructType([StructField("x", StringType())]))

BORNE = {PipelineError, ConfigurationError, FileNotFoundError}
"""What ends a driver that is not alone: another was faster, or has swept what this one reads."""


class Rows:
    """What Spark would call a DataFrame."""

    schema = LAYOUT.schema

    def __init__(self, world: World, lines: Callable[[], list[str]]) -> None:
        self.sparkSession, self.lines = world, lines


class World:
    """A table and a file system. It stands for a Spark session, too, of which nobody asks anything."""

    def __init__(self, out: Path) -> None:
        self.out = str(out)
        self.local = threading.local()
        self.said: set[int] = set()
        """Batches that somebody was told are landed."""
        self.seen: dict[int, str] = {}
        """Batch -> whose rows are in the table."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()

    def step(self) -> None:
        pause(self.local)

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

    def publish_text(self, file: str, text: str) -> None:
        hidden = f"{os.path.dirname(file)}/.{os.path.basename(file)}"
        self.write_text(hidden, text)
        self.step()
        os.rename(hidden, file)

    def rename_unless_there(self, directory: str, name: str) -> bool:
        self.step()
        try:
            os.rename(directory, name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise ConfigurationError(str(error), remedy="") from error
            return False
        return True

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

    def _rows(self, batch: int, who: str) -> Rows:
        return Rows(self, lambda: [f"{batch} {who} {number}" for number in range(3)])

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

    def attempts(self) -> list[str]:
        return os.listdir(Path(self.out, ATTEMPTS))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    def told(name: str) -> Callable[..., Any]:
        return lambda world, *arguments: getattr(world, name)(*arguments)

    for name in ("names", "read_text", "write_text", "publish_text", "rename_unless_there", "delete"):
        monkeypatch.setattr(files, name, told(name))
    monkeypatch.setattr(files, "renames_at_once", lambda world, out: True)
    monkeypatch.setattr(landed, "write_rows", lambda rows, *arguments: rows.sparkSession.write_rows(rows, *arguments))
    return lambda: World(tmp_path / "table")


def errors(*actors: Actor) -> set[type[Exception]]:
    return {type(one.error) for one in actors if one.error is not None}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_driver_that_sleeps_or_dies_at_any_step_takes_nothing_away_from_others(
    begin: Callable[[], World], is_killed: bool
) -> None:
    steps, was_over = 0, False
    while not was_over:
        world = begin()
        assert not errors(world.land(0, 1).finish())
        one = world.land(2)
        for _ in range(steps):
            if not one.is_over:
                one.step()
        was_over = one.is_over
        world.check()
        if is_killed:
            one.kill()
        other = world.land(2, 3).finish()
        while not one.is_over:
            one.step()
            world.check()
        assert errors(one) <= BORNE, (steps, one.error)
        assert not errors(other, world.land(4).finish()), steps
        world.check()
        assert world.said == {0, 1, 2, 3, 4}
        assert world.attempts() == []
        steps += 1
    assert steps > 20


def lives(begin: Callable[[], World], seed: int) -> None:
    """Three drivers, of one checkpoint or of two; each dies and comes again."""
    draw, world, batches = random.Random(seed), begin(), range(6)
    names = ("one", "one", draw.choice(("one", "other")))
    for _ in turns(draw, 1500, lambda number: world.land(*batches, who=names[number]), 3, changes=0.15, deaths=0.005):
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


def test_drivers_side_by_side_lose_and_double_nothing(begin: Callable[[], World]) -> None:
    lives(begin, 0)


@pytest.mark.nightly
def test_drivers_side_by_side_lose_and_double_nothing_in_many_lives(begin: Callable[[], World]) -> None:
    for seed in range(100, 160):
        lives(begin, seed)
