"""Landing as a process that is killed and started again.

Covers pipeline/jobs/land.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fake_server import FakeServer, record
from processes import signal_session
from pyspark.errors import StreamingQueryException
from quick_spark import QUICK_JAVA

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.jobs.command import STARTS
from holdfast.pipeline.jobs.land import _follow, _land, _source_options, _trigger, land_command
from holdfast.pipeline.jobs.reland import reland_command
from holdfast.pipeline.landing import tables as landing
from holdfast.pipeline.landing.tables import LandedBatch
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.spark import checkpoints

BODY = "<o:order xmlns:o='urn:orders' city='Åre'><o:id>{}</o:id></o:order>"


class Job:
    """One landing, run by one process after another."""

    def __init__(self, server: FakeServer, directory: Path) -> None:
        self._directory = directory
        self._errors = directory / "stderr"
        source = str(Path(__file__).parents[3] / "src")
        self._environ = {
            **os.environ,
            "PYTHONPATH": source,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        }
        self._arguments = ["--json", "--broker", server.url, "--queue", "orders", "--master", "local[2]"]
        self._arguments += ["--out", str(directory / "landed"), "--checkpoint", str(directory / "checkpoint")]
        self._arguments += ["--schema", "id INT, city STRING", "--max-rows-per-batch", "100"]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """The lines it prints."""
        command = [sys.executable, "-m", "holdfast.pipeline.jobs.land", *self._arguments, *arguments]
        with self._errors.open("a") as errors:
            self._process = process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self._environ, start_new_session=True
            )
        assert process.stdout
        return (json.loads(line) for line in process.stdout)

    def signal_driver(self, number: int) -> int:
        assert self._process
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self._process
        return self._process.wait(200)

    def signal_all(self, number: int) -> None:
        assert self._process
        signal_session(self._process.pid, number)

    def kill(self) -> None:
        """Everything it started, at once, like a machine that loses power."""
        if self._process and self._process.poll() is None:
            signal_session(self._process.pid, signal.SIGKILL)
            self._process.wait(200)

    def landed_in_parquet(self) -> list[tuple[int, int, str]]:
        """From the files of complete batches, without Spark."""
        found = []
        for done in (self._directory / "landed").glob("batch=*/_SUCCESS"):
            for file in done.parent.glob("*.parquet"):
                table = pq.ParquetFile(file).read(["message_number", "id", "city"]).to_pydict()
                found += list(zip(*table.values(), strict=True))
        return sorted(found)

    def landed(self) -> list[tuple[int, int, str]]:
        """What is in the Delta table, without Spark."""
        import deltalake

        out = str(self._directory / "landed")
        if not deltalake.DeltaTable.is_deltatable(out):
            return []
        table = deltalake.DeltaTable(out).to_pyarrow_table(columns=["message_number", "id", "city"])
        return sorted(zip(*table.to_pydict().values(), strict=True))

    def run(self, command: str, *options: str) -> dict[str, Any]:
        """The last line that a command prints which is given the table."""
        line = [sys.executable, "-m", "holdfast", command, "--json", *options, str(self._directory / "landed")]
        line += ["--master", "local[2]"]
        done = subprocess.run(line, capture_output=True, text=True, env=self._environ, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def errors(self) -> str:
        return self._errors.read_text()


@pytest.fixture
def job(server: FakeServer, tmp_path: Path) -> Iterator[Job]:
    server.create("orders", partitions=2)
    for partition in (0, 1):
        numbers = range(1000 * partition, 1000 * partition + 250)
        # all of one moment, so that each batch has as many of either partition
        server.append("orders", partition, [record(i, BODY.format(i), received_at=1_700_000_000.0) for i in numbers])
    job = Job(server, tmp_path)
    yield job
    job.kill()


def hold(release: threading.Event, held: threading.Event, at: int) -> Callable[[int], int | None]:
    """Stops the server's ``at``th answer to a request for records until released."""

    def on_records(asked: int) -> int | None:
        if asked == at:
            held.set()
            release.wait(200)
        return None

    return on_records


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_driver_killed_within_a_batch_and_restarted_lands_every_message_once(server: FakeServer, job: Job, kind: str):
    landed = job.landed if kind == "delta" else job.landed_in_parquet
    how = ("--format", kind) if kind == "parquet" else ()
    release, held = threading.Event(), threading.Event()
    server.on_records = hold(release, held, at=4)  # two requests a batch, one for each partition: in batch 1
    lines = job.start(*how)
    assert next(lines)["total"] == 100
    assert held.wait(200), job.errors()
    job.kill()
    release.set()
    assert len(landed()) == 100

    server.append("orders", 0, [record(250, BODY.format(250))])
    events = []
    for event in (lines := job.start("--interval", "0.1")):
        events.append(event)
        if event["total"] == 501:
            break
    assert job.signal_driver(signal.SIGTERM) == 0, job.errors()
    assert [event["batch"] for event in events] == [1, 2, 3, 4, 5], job.errors()
    assert list(lines) == [{"event": "end", "rows": 501, "flagged": 0, "cursor": {"orders": {"0": 251, "1": 250}}}]
    numbers = [*range(251), *range(1000, 1250)]
    assert landed() == [(i, i, "Åre") for i in numbers]
    if kind == "parquet":
        end = job.run("convert")
        assert (end["event"], end["rows_before"], end["rows_after"]) == ("converted", 501, 501)
    else:
        end = job.run("compact", "--out")
        assert (end["event"], end["made"]) == ("end", 1)
    assert job.landed() == [(i, i, "Åre") for i in numbers]
    assert list(server.queues["orders"].cursors.values()) == [{"0": 251, "1": 250}]


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_of_two_drivers_of_one_checkpoint_each_batch_is_landed_by_one(server: FakeServer, job: Job, tmp_path: Path):
    """As when a scheduler starts a job again that hangs, and it goes on after all."""
    release, held = threading.Event(), threading.Event()
    server.on_records = hold(release, held, at=4)
    hung, again = job, Job(server, tmp_path)
    lines = hung.start()
    assert next(lines)["total"] == 100
    assert held.wait(200), job.errors()
    hung.signal_all(signal.SIGSTOP)
    release.set()
    try:
        batches = [event["batch"] for event in again.start("--available-now") if event["event"] == "batch"]
        assert again.wait() == 0, again.errors()
        assert batches == [1, 2, 3, 4]
        hung.signal_all(signal.SIGCONT)
        assert hung.wait() == 1, job.errors()
    finally:
        again.kill()
    assert "by another driver" in job.errors()
    assert "stop one of the two" in job.errors()
    assert job.landed() == [(i, i, "Åre") for i in (*range(250), *range(1000, 1250))]
    assert all(len(list(batch.iterdir())) == 1 for batch in (tmp_path / "landed" / "rows").iterdir())


class Query:
    """A query that has done one more batch each time it is looked at."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.written: dict[int, LandedBatch] = {}
        self.stopped = False

    def awaitTermination(self, seconds: float) -> bool:
        source = {"endOffset": "{}", "latestOffset": None}
        batch = len(self.recentProgress)
        progress = {"batchId": batch, "numInputRows": 10, "durationMs": {}, "sources": [source]}
        self.recentProgress.append(progress)
        self.written[batch] = LandedBatch(batch, 10, 1, ("orders", 0, 10 * batch, "id is missing"))
        return batch == 8

    def stop(self) -> None:
        self.stopped = True


class LateQuery(Query):
    """A query whose Python process Spark did not wait for."""

    def awaitTermination(self, seconds: float) -> bool:
        raise StreamingQueryException(
            "[STREAM_FAILED] terminated with exception: Python worker failed to connect back."
        )


def test_a_query_is_started_again_when_spark_did_not_wait_for_its_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    queries: list[Query] = [LateQuery(), LateQuery(), Query()]

    def land(spark: None, on_batch: Callable[[LandedBatch], None], **_how: Any) -> Query:
        query = queries.pop(0)
        for batch in range(9):
            on_batch(LandedBatch(batch, 10, 0, None))
        return query

    monkeypatch.setattr(landing, "land", land)
    monkeypatch.setattr(checkpoints, "settle", lambda spark, **_where: {"x": {0: 90}})
    monkeypatch.setattr(landing, "read_landed", lambda spark, out: nothing_landed())
    reading = (
        "schema",
        "schema_file",
        "xsd",
        "prefix",
        "lenient",
        "max_elements",
        "also",
        "element",
        "by_day",
        "table",
    )
    given = dict.fromkeys((*reading, "interval", "max_rows_per_batch", "away_seconds"))
    arguments = dict.fromkeys(("broker", "queue", "checkpoint", "reader", "out"), "x") | given
    arguments |= {"available_now": True, "until_rows": None, "types": {}, "bodies": {}}
    options = ReadOptions.parse({"broker": "http://127.0.0.1:9"})
    _land(None, arguments, options, threading.Event())  # type: ignore[arg-type]
    assert queries == []

    queries += [LateQuery() for _ in range(STARTS)]
    with pytest.raises(HoldfastError, match="this machine is overloaded") as caught:
        _land(None, arguments, options, threading.Event())  # type: ignore[arg-type]
    assert "--master" in caught.value.remedy
    assert queries == []
    attempts = [line for line in capsys.readouterr().err.splitlines() if "the next attempt begins" in line]
    assert [attempts[0][-8:], attempts[-1][-8:]] == [f"(2 of {STARTS})", f"({STARTS} of {STARTS})"]


def nothing_landed() -> None:
    raise ConfigurationError("nothing has been landed")


def test_batches_are_counted_once_even_those_that_are_repeated(
    as_json: None, capsys: pytest.CaptureFixture[str]
) -> None:
    landed = {0: LandedBatch(0, 10, 0, None), 1: LandedBatch(1, 7, 0, None)}  # 1 is repeated: now it is whole
    query = Query()
    _follow(query, landed, query.written, None, threading.Event())  # type: ignore[arg-type]
    assert {batch: done.rows for batch, done in landed.items()} == dict.fromkeys(range(9), 10)
    assert not query.stopped
    assert query.written == {}
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["batch"], line["rows"], line["flagged"]) for line in lines] == [(i, 10, 1) for i in range(9)]
    assert lines[3]["first_flagged"] == {
        "queue": "orders",
        "partition": 0,
        "offset": 30,
        "problem": "id is missing",
    }


def test_a_landing_ends_after_a_number_of_rows_or_at_a_signal():
    query, landed = Query(), dict[int, LandedBatch]()
    _follow(query, landed, query.written, 25, threading.Event())  # type: ignore[arg-type]
    assert (query.stopped, sorted(landed)) == (True, [0, 1, 2])
    stop = threading.Event()
    stop.set()
    query, landed = Query(), {}
    _follow(query, landed, query.written, None, stop)  # type: ignore[arg-type]
    assert (query.stopped, sorted(landed)) == (True, [0])


class StoppedQuery(Query):
    """A query that is done with one more batch when it is stopped, and with another that it does not come to note."""

    def stop(self) -> None:
        super().awaitTermination(0)
        self.written[2] = LandedBatch(2, 5, 0, None)


def test_rows_landed_while_the_query_stops_are_reported_and_counted(
    as_json: None, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    stop.set()
    query, landed = StoppedQuery(), dict[int, LandedBatch]()
    _follow(query, landed, query.written, None, stop)  # type: ignore[arg-type]
    assert {batch: done.rows for batch, done in landed.items()} == {0: 10, 1: 10, 2: 5}
    assert [json.loads(line)["batch"] for line in capsys.readouterr().out.splitlines()] == [0, 1]


def test_wrong_usage_is_told_before_spark_is_started():
    required = ["--broker", "http://127.0.0.1:9", "--out", "o", "--checkpoint", "c"]
    result = CliRunner().invoke(land_command, [*required, "--available-now", "--interval", "1"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output
    given = ["--schema", "id INT", "--xsd", __file__]
    for command in (land_command, reland_command):
        names = required if command is land_command else ["--landed", "o", "--out", "p"]
        result = CliRunner().invoke(command, [*names, *given])
        assert (result.exit_code, "--schema and --xsd exclude each other" in result.output) == (2, True)
        result = CliRunner().invoke(command, [*names, *given[2:]])
        assert isinstance(result.exception, ConfigurationError)
        assert "test_land_job.py" in str(result.exception)
    for wrong, why in (("nonsense", "--broker='nonsense'"), ("", "--broker=''")):
        result = CliRunner().invoke(land_command, ["--broker", wrong, "--out", "o", "--checkpoint", "c"])
        assert result.exit_code == 2
        assert why in result.output


def test_arguments_become_a_trigger_and_options_of_the_source():
    assert _trigger({"available_now": True, "interval": None}) == {"availableNow": True}
    assert _trigger({"available_now": False, "interval": 0.25}) == {"processingTime": "250 milliseconds"}
    assert _trigger({"available_now": False, "interval": None}) == {"processingTime": "10000 milliseconds"}
    assert _trigger({"available_now": False, "interval": 0.0}) == {"processingTime": "0 milliseconds"}
    given = {"max_rows_per_batch": 100, "away_seconds": 0.0}
    assert _source_options(given) == {"maxRowsPerBatch": "100", "awaySeconds": "0.0"}
    assert _source_options(dict.fromkeys(given)) == {}


def test_the_help_shows_examples():
    result = CliRunner().invoke(land_command, ["--help"])
    assert result.output.count("holdfast land --broker") == 4
