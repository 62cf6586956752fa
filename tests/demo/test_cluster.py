"""The demo of a cluster: its count finds what is wrong, and a real run with a kill of each broker is exact, on both
engines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import maven_build
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from databases import Server

from demo.cluster import Cluster, cluster, faults_of, numbers_of

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 600


@pytest.mark.parametrize(
    ("received", "fault"),
    [
        ([1, 2, 3, 4], ""),
        ([1, 2, 4], "1 missing, 0 received again, 0 out of order, 0 never sent"),
        ([1, 2, 2, 3, 4], "0 missing, 1 received again, 0 out of order, 0 never sent"),
        ([1, 3, 2, 4], "0 missing, 0 received again, 1 out of order, 0 never sent"),
        ([1, 2, 3, 4, 5], "0 missing, 0 received again, 0 out of order, 1 never sent"),
        ([], "4 missing, 0 received again, 0 out of order, 0 never sent"),
    ],
)
def test_the_count_names_every_kind_of_fault(received: list[int], fault: str) -> None:
    assert faults_of(received, 4) == fault


def test_the_orders_that_spark_landed_are_counted_in_the_order_of_the_queue(tmp_path: Path) -> None:
    """Files of a batch that a kill interrupted are not in the log of the table, so they do not count."""
    (tmp_path / "_spark_metadata").mkdir()
    for name, (numbers, offset) in {"0": ((3, 4), 12), "1": ((1, 2), 10), "lost": ((5,), 14)}.items():
        bodies = [f'<order source="web shop" number="{number}"/>' for number in numbers]
        offsets = range(offset, offset + len(numbers))
        rows = {"partition": [0] * len(numbers), "offset": list(offsets), "body": bodies}
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
        if name != "lost":
            line = json.dumps({"path": f"file://{tmp_path}/{name}.parquet"})
            (tmp_path / "_spark_metadata" / name).write_text(f"v1\n{line}\n")
    assert numbers_of(tmp_path) == {"web shop": [1, 2, 3, 4], "call center": []}
    assert numbers_of(tmp_path / "absent") == {"web shop": [], "call center": []}


def test_a_database_for_a_cluster_on_kafka_is_wrong_usage() -> None:
    result = CliRunner().invoke(cluster, ["--engine", "kafka", "--database", "postgresql://nowhere/none"])
    assert (result.exit_code, "--database is for --engine postgresql" in result.output) == (2, True)


def test_the_help_describes_the_demo_with_three_examples() -> None:
    told = CliRunner().invoke(cluster, ["--help"]).output
    assert told.count("\n  python -m demo.cluster") == 3
    assert "SIGKILL" in told


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM, which the command sets."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_a_count_that_is_wrong_is_exit_code_1_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: Cluster) -> list[str]:
        return ["web shop: 1 missing"]

    monkeypatch.setattr(Cluster, "run", run)
    monkeypatch.setattr("demo.cluster.check_database", lambda url: None)
    result = CliRunner().invoke(cluster, ["--database", "postgresql://nowhere/none"])
    assert result.exit_code == 1
    assert "NOT exact, web shop: 1 missing" in result.output


@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize(
    ("engine", "told"),
    [("postgresql", "apt-get install postgresql"), ("kafka", "apt-get install maven default-jdk-headless")],
)
def test_without_the_engine_it_says_what_to_install(engine: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    maven_build.available.cache_clear()
    result = CliRunner().invoke(cluster, ["--engine", engine])
    maven_build.available.cache_clear()
    assert result.exit_code == 1
    assert told in result.output


@pytest.mark.usefixtures("sigterm")
def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = CliRunner().invoke(cluster, [])
    assert result.exit_code == 1
    assert "holdfast[spark]" in result.output and "--no-spark" in result.output


@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://nobody@127.0.0.1:9/none", "the database cannot be reached"),
        ("mysql://nobody@127.0.0.1:9/none", "postgresql://"),
    ],
)
def test_a_database_of_no_use_is_told_before_anything_begins(url: str, told: str) -> None:
    result = CliRunner().invoke(cluster, ["--database", url])
    assert result.exit_code == 1
    assert told in result.output


class Run:
    """The demo, started as a user does. A variable marks its processes."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        self._mark = f"HOLDFAST_DEMO_UNDER_TEST={uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo.cluster", "--orders", str(ORDERS), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", name: value},
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        assert any(text in line for line in self.process.stdout), text

    def left(self) -> set[int]:
        """The processes that the run started, as far as they live."""
        found = set()
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if self._mark.encode() in (directory / "environ").read_bytes():
                    found.add(int(directory.name))
        return found - {self.process.pid}

    def clean(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=100)


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Starts runs, none of which outlives the test."""
    runs: list[Run] = []

    def call(*arguments: str) -> Run:
        runs.append(Run(*arguments))
        return runs[-1]

    yield call
    for run in runs:
        run.clean()


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("engine", ["postgresql", "kafka"])
def test_each_broker_is_killed_and_the_count_is_exact(
    start: Callable[..., Run], request: pytest.FixtureRequest, engine: str
) -> None:
    if engine == "postgresql":
        run = start("--database", request.getfixturevalue("servers")("postgresql").new_url())
    elif reason := maven_build.available():
        pytest.skip(reason)
    else:
        run = start("--engine", engine)
    told, _ = run.process.communicate(timeout=1100)
    assert run.process.returncode == 0, told
    assert re.findall(r"killed broker (\w) with SIGKILL", told) == ["a", "b", "c"]
    assert re.findall(r"broker (\w) was started again", told) == ["a", "b", "c"]
    assert f"Spark has read the whole queue, and landed {2 * ORDERS:,} orders" in told
    assert f"both services and Spark's table have each of the {2 * ORDERS:,} orders once" in told
    assert not run.left()


@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_leaves_no_process(
    start: Callable[..., Run], servers: Callable[[str], Server], number: signal.Signals
) -> None:
    servers("postgresql")  # skips the test if PostgreSQL is not installed
    run = start("--no-spark")
    run.wait_for("killed broker a with SIGKILL")
    assert len(run.left()) >= 3  # two brokers and the database server
    run.process.send_signal(number)
    told, _ = run.process.communicate(timeout=100)
    assert run.process.returncode == 130, told
    assert "no process is left" in told
    assert not run.left()
