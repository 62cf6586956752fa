"""Landing as a process that is killed and started again."""

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
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline import landing
from holdfast.pipeline.land_job import (
    _STARTS,
    _follow,
    _in_a_sentence,
    _land,
    _schema,
    _sentence,
    _source_options,
    _trigger,
    land_command,
)

BODY = "<o:order xmlns:o='urn:orders' city='Åre'><o:id>{}</o:id></o:order>"


class Job:
    """One landing, run by one process after another."""

    def __init__(self, server: FakeServer, directory: Path) -> None:
        self._directory = directory
        self._errors = directory / "stderr"
        source = str(Path(__file__).parents[2] / "src")
        self._environ = {
            **os.environ,
            "PYTHONPATH": source,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        self._arguments = ["--broker", server.url, "--queue", "orders", "--master", "local[2]"]
        self._arguments += ["--out", str(directory / "landed"), "--checkpoint", str(directory / "checkpoint")]
        self._arguments += ["--schema", "id INT, city STRING", "--max-rows-per-batch", "100"]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """The lines it prints."""
        command = [sys.executable, "-m", "holdfast.pipeline.land_job", *self._arguments, *arguments]
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

    def kill(self) -> None:
        """Everything it started, at once, like a machine that loses power."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(200)

    def landed(self) -> list[tuple[int, int, str]]:
        """From the files of complete batches, without Spark."""
        found = []
        for done in (self._directory / "landed").glob("batch=*/_SUCCESS"):
            for file in done.parent.glob("*.parquet"):
                table = pq.ParquetFile(file).read(["message_number", "id", "city"]).to_pydict()
                found += list(zip(*table.values(), strict=True))
        return sorted(found)

    def errors(self) -> str:
        return self._errors.read_text()


@pytest.fixture
def job(server: FakeServer, tmp_path: Path) -> Iterator[Job]:
    server.create("orders", partitions=2)
    for partition in (0, 1):
        numbers = range(1000 * partition, 1000 * partition + 250)
        server.append("orders", partition, [record(i, BODY.format(i)) for i in numbers])
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
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_killed_in_the_middle_of_a_batch_and_restarted_lands_every_message_once(server: FakeServer, job: Job):
    release, held = threading.Event(), threading.Event()
    server.on_records = hold(release, held, at=4)  # two requests a batch, one for each partition: in batch 1
    lines = job.start()
    assert next(lines)["total"] == 100
    assert held.wait(200), job.errors()
    job.kill()
    release.set()
    assert len(job.landed()) == 100

    server.append("orders", 0, [record(250, BODY.format(250))])
    events = []
    for event in (lines := job.start("--interval", "0.1")):
        events.append(event)
        if event["total"] == 501:
            break
    assert job.signal_driver(signal.SIGTERM) == 0, job.errors()
    assert [event["batch"] for event in events] == [1, 2, 3, 4, 5], job.errors()
    assert list(lines) == [{"event": "end", "rows": 501, "cursor": {"0": 251, "1": 250}}]
    numbers = [*range(251), *range(1000, 1250)]
    assert job.landed() == [(i, i, "Åre") for i in numbers]
    assert server.queues["orders"].cursors["land"] == {"0": 251, "1": 250}


class Query:
    """A query that has done one more batch each time it is looked at."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.stopped = False

    def awaitTermination(self, seconds: float) -> bool:
        source = {"endOffset": "{}", "latestOffset": None}
        batch = len(self.recentProgress)
        progress = {"batchId": batch, "numInputRows": 10, "durationMs": {}, "sources": [source]}
        self.recentProgress.append(progress)
        return batch == 8

    def stop(self) -> None:
        self.stopped = True


class LateQuery(Query):
    """A query whose Python process Spark did not wait for."""

    def awaitTermination(self, seconds: float) -> bool:
        raise StreamingQueryException(
            "[STREAM_FAILED] terminated with exception: Python worker failed to connect back."
        )


def test_a_query_is_started_again_when_spark_did_not_wait_for_its_python(monkeypatch: pytest.MonkeyPatch):
    queries: list[Query] = [LateQuery(), LateQuery(), Query()]
    monkeypatch.setattr(landing, "land", lambda spark, **_how: queries.pop(0))
    monkeypatch.setattr(landing, "settle", lambda spark, **_where: {0: 90})
    monkeypatch.setattr(landing, "read_landed", lambda spark, out: nothing_landed())
    given = dict.fromkeys(("schema", "schema_file", "prefix", "interval", "max_rows_per_batch", "away_seconds"))
    arguments = dict.fromkeys(("broker", "queue", "checkpoint", "reader", "out"), "x") | given
    arguments |= {"available_now": True, "until_rows": None}
    _land(None, arguments, threading.Event())  # type: ignore[arg-type]
    assert queries == []

    queries += [LateQuery() for _ in range(_STARTS)]
    with pytest.raises(HoldfastError, match="failed to connect back"):
        _land(None, arguments, threading.Event())  # type: ignore[arg-type]
    assert queries == []


def nothing_landed() -> None:
    raise ConfigurationError("nothing has been landed")


def test_batches_are_counted_once_even_those_that_are_repeated():
    rows = {0: 10, 1: 7}  # batch 1 was landed, and is repeated: now it is whole
    _follow(query := Query(), rows, None, threading.Event())  # type: ignore[arg-type]
    assert rows == dict.fromkeys(range(9), 10)
    assert not query.stopped


def test_it_ends_at_so_many_rows_or_when_it_is_told_to():
    _follow(query := Query(), rows := {}, 25, threading.Event())  # type: ignore[arg-type]
    assert (query.stopped, sum(rows.values())) == (True, 30)
    stop = threading.Event()
    stop.set()
    _follow(query := Query(), rows := {}, None, stop)  # type: ignore[arg-type]
    assert (query.stopped, sum(rows.values())) == (True, 10)


def test_wrong_usage_is_told_before_spark_is_started():
    required = ["--broker", "http://127.0.0.1:9", "--out", "o", "--checkpoint", "c"]
    result = CliRunner().invoke(land_command, [*required, "--available-now", "--interval", "1"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output
    for wrong, why in (("nonsense", "option broker='nonsense'"), ("", "option broker=''")):
        result = CliRunner().invoke(land_command, ["--broker", wrong, "--out", "o", "--checkpoint", "c"])
        assert result.exit_code == 2
        assert why in result.output


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_a_java_process_that_is_gone_is_a_sentence(error: Exception):
    with pytest.raises(HoldfastError, match="Spark's Java process has ended") as caught, _in_a_sentence():
        raise error
    assert "what is landed is safe" in caught.value.remedy


def test_what_spark_refuses_is_a_sentence():
    with pytest.raises(HoldfastError, match=r"\[PARSE_SYNTAX_ERROR\] near 'INTT'") as caught, _in_a_sentence():
        raise PySparkException("[PARSE_SYNTAX_ERROR] near 'INTT'\nand a page of SQL")
    assert str(caught.value) == "[PARSE_SYNTAX_ERROR] near 'INTT'\n  what is landed is safe"


@pytest.mark.parametrize("error", [HoldfastError("ours"), RuntimeError("a mistake")])
def test_any_other_error_of_a_run_is_told_as_it_is(error: Exception):
    with pytest.raises(type(error), match=str(error)) as caught, _in_a_sentence():
        raise error
    assert caught.value is error


def test_the_schema_may_be_given_as_ddl_or_in_a_file_as_ddl_or_json(tmp_path: Path):
    fields = StructType([StructField("id", IntegerType(), metadata={"namespace": "urn:o"})])
    (tmp_path / "json").write_text(fields.json())
    (tmp_path / "ddl").write_text("id INT\n")
    nothing = {"schema": None, "schema_file": None}
    assert _schema({**nothing, "schema_file": tmp_path / "json"}) == fields
    assert _schema({**nothing, "schema_file": tmp_path / "ddl"}) == "id INT"
    assert _schema({**nothing, "schema": "id INT"}) == "id INT"
    assert _schema(nothing) is None


def test_arguments_become_a_trigger_and_options_of_the_source():
    assert _trigger({"available_now": True, "interval": None}) == {"availableNow": True}
    assert _trigger({"available_now": False, "interval": 0.25}) == {"processingTime": "250 milliseconds"}
    assert _trigger({"available_now": False, "interval": None}) == {"processingTime": "10000 milliseconds"}
    assert _trigger({"available_now": False, "interval": 0.0}) == {"processingTime": "0 milliseconds"}
    given = {"max_rows_per_batch": 100, "away_seconds": 0.0}
    assert _source_options(given) == {"maxRowsPerBatch": "100", "awaySeconds": "0.0"}
    assert _source_options(dict.fromkeys(given)) == {}


def test_the_help_shows_two_examples():
    result = CliRunner().invoke(land_command, ["--help"])
    assert result.output.count("holdfast land --broker") == 2


def test_of_a_failed_querys_report_our_own_sentence_is_told():
    report = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "holdfast.pipeline.errors.ServerAway: the server at http://b does not answer (tried for 60 s)\n"
        "  nothing is lost: start the server\n"
        "\tat org.apache.spark.Something(Something.scala:1)"
    )
    expected = "the server at http://b does not answer (tried for 60 s)\n  nothing is lost: start the server"
    assert _sentence(report) == expected
    assert _sentence("one\ntwo") == "one"
