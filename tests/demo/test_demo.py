"""The demo: its verdict finds what is wrong, its directory is safe, and a small run of it is exact."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from quick_spark import quick_spark

from demo.check import ACTION, Verdict, check_landed, check_queue, numbered
from demo.flights import COLUMNS, departure_xml, departures
from demo.run import MARKER, Teller, prepare, progress_text
from holdfast import Destination, Source
from holdfast.endpoint.listener_settings import AdminListener, Listeners
from holdfast.endpoint.serve import Service
from holdfast.exceptions import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
COUNT = 200
MARK = "HOLDFAST_DEMO_UNDER_TEST"

Row = dict[str, Any]


def found(verdict: Verdict) -> dict[str, int]:
    return {kind: faults.count for kind, faults in verdict.faults() if faults.count}


# --- the verdict on what was landed -------------------------------------------------------------------------------


@pytest.fixture
def rows() -> list[Row]:
    """What an exact run lands."""
    return [
        {
            "sequence": f"urn:sequence:{departure['carrier']}",
            "message_number": number,
            "message_id": f"urn:message:{departure['carrier']}:{number}",
            "action": ACTION,
            "received_at": datetime(2026, 1, 1, tzinfo=UTC),
            "body": departure_xml(departure).decode(),
            **departure,
            "corrupt_record": None,
        }
        for number, departure in numbered(COUNT)
    ]


def land(directory: Path, rows: list[Row], done: bool = True) -> Path:
    """Write rows as two batches, in the order of the queue."""
    kinds = {"message_number": pa.int64(), "offset": pa.int64(), "received_at": pa.timestamp("us", tz="UTC")}
    rows = [{**row, "partition": 0, "offset": offset} for offset, row in enumerate(rows)]
    integers = {name for row in rows for name in [*COLUMNS, "partition"] if isinstance(row[name], int)}
    names = list(rows[0])
    schema = pa.schema([(name, kinds.get(name, pa.int32() if name in integers else pa.string())) for name in names])
    half = len(rows) // 2
    for chosen in (rows[half:], rows[:half]) if done else (rows[:half],):
        write_deltalake(str(directory), pa.Table.from_pylist(chosen, schema), mode="append")
    return directory


def test_what_is_landed_whole_is_exact(tmp_path: Path, rows: list[Row]):
    verdict = check_landed(land(tmp_path, rows), COUNT)
    assert (verdict.rows, verdict.is_exact, found(verdict)) == (COUNT, True, {})


def test_a_row_that_is_missing_is_named(tmp_path: Path, rows: list[Row]):
    lost = rows.pop(77)
    verdict = check_landed(land(tmp_path, rows), COUNT)
    assert found(verdict) == {"missing": 1}
    assert f"{lost['carrier']} message {lost['message_number']}: flight {lost['flight']}" in verdict.missing.examples[0]
    assert not verdict.is_exact


def test_a_row_that_is_there_twice_is_named(tmp_path: Path, rows: list[Row]):
    rows.append(rows[-1])
    verdict = check_landed(land(tmp_path, rows), COUNT)
    assert found(verdict) == {"doubled": 1}
    assert rows[-1]["sequence"] in verdict.doubled.examples[0]


def test_one_that_was_never_sent_is_one_too_many(tmp_path: Path, rows: list[Row]):
    assert found(check_landed(land(tmp_path, rows), COUNT - 1)) == {"doubled": 1}


def test_two_rows_that_changed_places_are_out_of_order(tmp_path: Path, rows: list[Row]):
    united = [index for index, row in enumerate(rows) if row["carrier"] == "UA"]
    one, other = united[3], united[4]
    rows[one], rows[other] = rows[other], rows[one]
    verdict = check_landed(land(tmp_path, rows), COUNT)
    assert found(verdict) == {"out of order": 1}
    assert "urn:sequence:UA number 4 is behind number 5" in verdict.out_of_order.examples[0]


def test_numbers_that_do_not_follow_the_data_set_are_different_rows(tmp_path: Path, rows: list[Row]):
    one, other = [row for row in rows if row["carrier"] == "UA"][3:5]
    one["message_number"], other["message_number"] = other["message_number"], one["message_number"]
    assert found(check_landed(land(tmp_path, rows), COUNT)) == {"out of order": 1, "different": 2}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("dep_delay", 999),
        ("dep_time", None),
        ("tailnum", "N00000"),
        ("body", "<departure/>"),
        ("action", "urn:another"),
        ("message_id", ""),
        ("received_at", None),
        ("corrupt_record", "dep_time: 'x' is not an integer"),
    ],
)
def test_a_field_that_is_not_as_it_was_sent_is_named(tmp_path: Path, rows: list[Row], column: str, value: object):
    rows[20][column] = value
    verdict = check_landed(land(tmp_path, rows), COUNT)
    assert found(verdict) == {"different": 1}
    assert column in verdict.different.examples[0]


def test_a_batch_that_is_not_complete_does_not_count(tmp_path: Path, rows: list[Row]):
    verdict = check_landed(land(tmp_path, rows, done=False), COUNT)
    assert found(verdict) == {"missing": COUNT // 2}
    assert len(verdict.missing.examples) == 5


def test_nothing_landed_is_all_missing(tmp_path: Path):
    assert found(check_landed(tmp_path / "landed", COUNT)) == {"missing": COUNT}


# --- the verdict on the queue -------------------------------------------------------------------------------------


async def test_the_queue_is_judged_record_by_record(tmp_path: Path):
    service = Service(Destination(tmp_path / "inbox"), Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    try:
        async with Source(service.url, tmp_path / "outbox") as source:
            sends = (
                source.send(departure_xml(one), action=ACTION, sequence_key=str(one["carrier"]))
                for one in departures(COUNT)
            )
            for sent in await asyncio.gather(*sends):
                await sent.acknowledged(60)
            exact = await asyncio.to_thread(check_queue, service.admin_url, "inbox", COUNT)
            again = departure_xml(next(departures(1)))
            await (await source.send(again, action=ACTION, sequence_key="again")).acknowledged(60)
            await (await source.send("<other xmlns='urn:x'/>", action=ACTION, sequence_key="other")).acknowledged(60)
        doubled = await asyncio.to_thread(check_queue, service.admin_url, "inbox", COUNT)
        short = await asyncio.to_thread(check_queue, service.admin_url, "inbox", COUNT + 3)
    finally:
        await service.close()
    assert (exact.rows, found(exact)) == (COUNT, {})
    assert (doubled.rows, found(doubled)) == (COUNT + 2, {"doubled": 1, "different": 1})
    assert "departure 1 of the data set, at partition" in doubled.doubled.examples[0]
    assert found(short) == {"doubled": 1, "different": 1, "missing": 3}


async def test_departures_that_come_in_another_order_than_the_data_sets_are_out_of_order(tmp_path: Path):
    """Whoever forwards merges Sequences: numbers alone would not show that he changed an airline's order."""
    service = Service(Destination(tmp_path / "inbox"), Listeners(port=0, admin=AdminListener(port=0)))
    await service.start()
    try:
        async with Source(service.url, tmp_path / "outbox") as source:
            for departure in sorted(departures(50), key=lambda one: str(one["time_hour"]), reverse=True):
                await source.send(departure_xml(departure), action=ACTION)
            await source.flush(60)
        verdict = await asyncio.to_thread(check_queue, service.admin_url, "inbox", 50)
    finally:
        await service.close()
    assert set(found(verdict)) == {"out of order"}
    assert not [told for told in verdict.out_of_order.examples if told.startswith("urn:")], "each Sequence is in order"


# --- its directory and what it tells ------------------------------------------------------------------------------


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="is not from an earlier demo"):
        prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_directory(tmp_path: Path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigurationError, match="not empty"):
        prepare(tmp_path / "out")


def test_what_an_earlier_demo_made_is_removed_and_nothing_else(tmp_path: Path):
    out = tmp_path / "new" / "out"
    prepare(out)
    (out / "landed" / "rows").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    prepare(out)
    assert sorted(path.name for path in out.iterdir()) == sorted([MARKER, "notes.txt"])


def test_in_a_log_it_tells_events_at_once_and_progress_now_and_then():
    stream = io.StringIO()
    teller = Teller(stream, every=0.0)
    teller.event("began")
    teller.status("half")
    patient = Teller(stream, every=60.0)
    patient.status("never told")
    lines = [line.partition(" s  ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["began", "half"]


def test_on_a_terminal_progress_is_one_line_written_over(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    teller = Teller(stream := Terminal())
    teller.status("one of many, and longer than the line")
    teller.status("two")
    teller.event("done")
    assert stream.getvalue().count("\n") == 1
    shown = stream.getvalue().split("\r\x1b[2K")
    assert len(shown) == 4
    assert len(shown[1]) == 29
    assert shown[3].endswith("done\n")


def test_until_rows_land_it_tells_that_spark_is_starting():
    assert "30 forwarded, Spark is starting; 7 lost" in progress_text(40, 100, 30, 0, lost=7)
    assert "30 forwarded, 20 landed by Spark; 7 lost" in progress_text(40, 100, 30, 20, lost=7)


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def command() -> Any:
    return importlib.import_module("demo.__main__")


@pytest.mark.parametrize("arguments", ["--messages some", "--messages 9", "--loss 1.5", "--speed 1"])
def test_wrong_usage_is_told_before_anything_begins(command: Any, arguments: str):
    assert CliRunner().invoke(command.demo, arguments.split()).exit_code == 2


def test_the_help_describes_the_demo_with_two_examples(command: Any):
    result = CliRunner().invoke(command.demo, ["--help"])
    assert result.output.count("\n  scripts/demo") == 2
    assert "SIGKILL" in result.output


def test_a_directory_it_refuses_is_exit_code_1_and_a_sentence(command: Any, tmp_path: Path):
    (tmp_path / "thesis.txt").touch()
    result = CliRunner().invoke(command.demo, ["--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "not from an earlier demo" in result.output


def test_a_run_that_is_not_exact_says_what_is_wrong(command: Any, tmp_path: Path, rows: list[Row], capsys: Any):
    lost = rows.pop()
    landed = check_landed(land(tmp_path / "landed", rows), COUNT)
    counts = dict.fromkeys(("sent", "kills", "unreachable", "doubled", "delayed"), 1)
    for way in ("lost before the broker", "lost behind the broker", "dropped by the broker", "dropped by the service"):
        counts[way] = 2
    outcome = command.Outcome(Verdict(COUNT), Verdict(COUNT), landed, counts)
    command.report(outcome, COUNT, tmp_path)
    told = capsys.readouterr().out
    assert not outcome.is_exact
    assert "1 missing in" in told
    assert f"{lost['carrier']} message {lost['message_number']}" in told
    assert "Exact" not in told


class Run:
    """What scripts/demo starts, as a process; says what it has said so far."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self._out = out
        self.lines: list[str] = []
        self._told = threading.Condition()
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        environ = {
            **os.environ,
            **quick_spark(),
            "PYTHONPATH": path,
            "PYTHONSAFEPATH": "1",
            "COLUMNS": "160",
            MARK: str(out),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo", "--out", str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._told:
                self.lines.append(line.rstrip())
                self._told.notify_all()

    def wait_for(self, text: str) -> None:
        with self._told:
            assert self._told.wait_for(lambda: any(text in line for line in self.lines), 300), self.lines

    def end(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def left(self) -> dict[int, str]:
        """Processes it started, or that those started, that still live: each has its mark in its environment."""
        commands = {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                environ = (directory / "environ").read_bytes()
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if f"{MARK}={self._out}".encode() in environ and directory.name != str(self.process.pid):
                commands[int(directory.name)] = command
        return commands

    def leaves_nothing(self) -> bool:
        """Whether no process is left; Spark's Python workers notice within a moment that their JVM is gone."""
        deadline = time.monotonic() + 90
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return not left

    def kill(self) -> None:
        """Whatever went wrong: the next test is to have the machine for itself."""
        self.process.kill()
        self.process.wait()
        while left := self.left():
            for number in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.1)
        self._reader.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def start(out: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, none of which outlives the test."""
    runs: list[Run] = []

    def call(*arguments: str) -> Run:
        runs.append(Run(out, *arguments))
        return runs[-1]

    yield call
    for run in runs:
        run.kill()


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_a_small_run_with_kills_of_all_parts_is_exact_and_leaves_no_process(out: Path, start: Callable[..., Run]):
    """``scripts/demo`` does the same with more messages. By default, the tests of the broker and of landing kill each
    of these parts alone, and those above test the verdict."""
    run = start("--messages", "600", "--loss", "0.2", "--seed", "3")
    assert run.end(800) == 0, run.lines
    told = "\n".join(run.lines)
    assert "starting the Spark driver: its first rows may take half a minute" in told
    assert told.count("killed the source with SIGKILL") >= 1
    assert told.count("killed the broker with SIGKILL") >= 2
    assert told.count("killed the second service with SIGKILL") == 2
    assert told.count("killed the Spark driver with SIGKILL") == 1
    assert re.search(r"accepted +. +600 .*\n.*forwarded +. +600 .*\n.*landed +. +600 ", told), told
    assert "Exact" in told
    assert run.leaves_nothing(), run.left()
    landed = DeltaTable(str(out / "landed")).to_pyarrow_table().to_pylist()
    key = ("carrier", "message_number")
    by_airline = {tuple(row[name] for name in key): {name: row[name] for name in COLUMNS} for row in landed}
    assert len(landed) == 600
    assert by_airline == {(departure["carrier"], number): departure for number, departure in numbered(600)}
    assert {row["sequence"] for row in landed} == set(_sequences(landed))
    assert json.loads((out / MARKER).read_text())["owns"]


def _sequences(landed: list[Row]) -> dict[str, str]:
    """Sequence by sequence its airline: one each."""
    airlines = {row["sequence"]: row["carrier"] for row in landed}
    assert len(airlines) == len(set(airlines.values()))
    assert all(airlines[row["sequence"]] == row["carrier"] for row in landed)
    return airlines


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_leaves_no_process(start: Callable[..., Run], number: signal.Signals):
    run = start("--messages", "100000")
    run.wait_for("acknowledged, ")
    while len(run.left()) < 4:  # the source, the broker, the service and the Spark driver
        time.sleep(0.1)
    run.process.send_signal(number)
    assert run.end(300) == 130, run.lines
    assert "no process is left" in run.lines[-1]
    assert run.leaves_nothing(), run.left()
