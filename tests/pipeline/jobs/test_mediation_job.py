"""The command holdfast pipeline, as far as it needs no Spark: what it says of a file, and its exit codes.

Covers pipeline/jobs/mediation.py and pipeline/mediation/execution/targets.py.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from fake_server import FakeServer

from holdfast.cli.main import main
from holdfast.pipeline.jobs import mediation as mediation_job
from holdfast.pipeline.jobs.mediation import _messages, _tell, pipeline
from holdfast.pipeline.mediation.definition.plan import PipelinePlan
from holdfast.pipeline.mediation.execution import samples
from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.mediation.execution.metrics import PipelineCollector

EXAMPLE = Path(__file__).parents[3] / "examples" / "mediation" / "orders.toml"


def holdfast(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "pipeline", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.nightly
def test_check_says_what_the_pipeline_would_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holdfast(monkeypatch, "check", str(EXAMPLE), "--set", "work=/w") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "pipeline    orders, its progress in /w/orders.checkpoint",
        "source      incoming, orders at http://127.0.0.1:8081",
        f"table       customers, {EXAMPLE.parent}/customers.csv",
    ]
    assert "step        known, sql of customers, checked" in lines
    assert "route       confirmed to first when tier = 'gold' OR o.amount.value > 1000" in lines
    assert lines[-2:] == ["letters     /w/dead", "queries     incoming"]

    assert holdfast(monkeypatch, "check", str(EXAMPLE), "--json") == 0
    assert json.loads(capsys.readouterr().out)["sinks"] == {"first": "first", "others": "others"}


@pytest.mark.nightly
def test_mistakes_are_told_in_sentences_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(EXAMPLE.read_text().replace("http://127.0.0.1:8081", "ftp://h").replace("order.xsd", "o.xsd"))
    for command in ("check", "run"):
        assert holdfast(monkeypatch, command, str(file)) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"holdfast: {file} has 4 mistakes, and nothing of it is used:")
        assert "sources.incoming.broker" in told
        assert "steps.read.parse.xsd" in told
        assert "Traceback" not in told


@pytest.mark.nightly
def test_check_tells_mistakes_in_sql_with_their_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "orders.toml"
    text = EXAMPLE.read_text().replace("LEFT JOIN customers c ON", "LEFT JOIN customers c OM")
    file.write_text(text.replace("o.amount.value > 0", "o.amount.value >"))
    for name in ("customers.csv", "order.xsd"):
        (tmp_path / name).write_bytes((EXAMPLE.parent / name).read_bytes())
    assert holdfast(monkeypatch, "check", str(file)) == 1
    told = capsys.readouterr().err
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "value > 0" in line or 'sql = """' in line]
    assert (
        f'orders.toml:{lines[0]}: steps.checked.validate.rules."the amount is not above 0": Spark cannot parse' in told
    )
    assert f"orders.toml:{lines[1]}: steps.known.sql: Spark cannot parse it: [PARSE_SYNTAX_ERROR]" in told
    assert "has 2 mistakes" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", str(EXAMPLE), "--set", "work"], "'work' is not NAME=VALUE"),
        (["run", "nowhere.toml"], "does not exist"),
        (["check", str(EXAMPLE), "--rows", "0"], "0 is not in the range"),
        (["check", str(EXAMPLE), "--expect", "rows.jsonl"], "name their files with --with"),
        (["check", str(EXAMPLE), "--dry-run", "--with", "1.xml"], "give only one of the two"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_check_takes_the_files_that_a_shell_makes_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(mediation_job, "_test", lambda plan, told, expect, **_: taken.extend((told, expect)))
    given = ["check", str(EXAMPLE), "--with", "1.xml", "2.xml", "--expect", "rows.jsonl", "--with", "other=3.xml"]
    result = CliRunner().invoke(pipeline, given)
    assert result.exit_code == 0, result.output
    assert taken == [("1.xml", "2.xml", "other=3.xml"), "rows.jsonl"]


@pytest.mark.spark
def test_check_reads_each_file_once_as_it_may_be_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = sorted(map(str, EXAMPLE.parent.glob("messages/*.xml")))
    read, made, usual = Counter[str](), list[int](), Path.read_bytes

    def made_of(spark: Any, plan: PipelinePlan, rows: Callable[..., Any]) -> dict[str, list[Any]]:
        for source in plan.sources:
            for _ in range(2):  # to infer fields, and for the steps
                rows(spark, source)
        return {}

    monkeypatch.setattr(Path, "read_bytes", lambda file: (read.update([str(file)]), usual(file))[1])
    session = SimpleNamespace(createDataFrame=lambda values, _: made.append(len(values)))
    monkeypatch.setattr(mediation_job, "command_session", lambda *_, **__: nullcontext(session))
    monkeypatch.setattr(samples, "made_of", made_of)
    result = CliRunner().invoke(pipeline, ["check", str(EXAMPLE), "--with", *messages])
    assert result.exit_code == 0, result.output
    assert made == [len(messages)] * 2
    assert {read[file] for file in messages} == {1}


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_check_compares_rows_and_the_exit_code_says_whether_they_differ(tmp_path: Path) -> None:
    messages = sorted(map(str, EXAMPLE.parent.glob("messages/*.xml")))

    def check(*more: str) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-m", "holdfast", "pipeline", "check", str(EXAMPLE), "--with", *messages, *more]
        return subprocess.run(given, capture_output=True, text=True, check=False)

    rows = tmp_path / "rows.jsonl"
    rows.write_text(check().stdout)
    same = check("--expect", str(rows))
    assert (same.returncode, same.stdout.splitlines()[0]) == (0, "sink first: 2 rows as expected")
    rows.write_text(rows.read_text().replace("2000.00", "2001.00"))
    other = check("--expect", str(rows))
    assert other.returncode == 1
    assert "<amount>2001.00</amount>" in other.stdout
    assert other.stderr.endswith(f"the rows differ from those of {rows}\n")


@pytest.mark.parametrize("command", [[], ["run"], ["check"]])
def test_each_help_shows_two_examples(command: list[str]) -> None:
    result = CliRunner().invoke(pipeline, [*command, "--help"])
    assert result.output.count("holdfast pipeline") >= 2


def test_batches_are_told_that_have_rows_or_dropped_late_ones(
    as_json: None, capsys: pytest.CaptureFixture[str]
) -> None:
    batches: queue.SimpleQueue[MediatedBatch] = queue.SimpleQueue()
    batches.put(MediatedBatch("orders", 3, 5, {"out": 4}, 1, 0, False))
    batches.put(MediatedBatch("orders", 4, 0, {"out": 0}, 0, 0, False))
    refused: Any = {"refused": {"out": 2}, "reasons": {"out": "not XML"}}
    batches.put(MediatedBatch("orders", 5, 0, {"out": 0}, 2, 1, False, **refused))
    total = Counter({"rows orders": 2, "rows hourly": 6})
    collector = PipelineCollector({"orders": ["out"]})
    _tell(batches, total, collector)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "event": "batch",
            "query": "orders",
            "batch": 3,
            "rows": 5,
            "sinks": {"out": 4},
            "dead": 1,
            "late": 0,
            "repeated": False,
            "doubles": 0,
            "refused": {},
            "reasons": {},
            "seconds": 0.0,
        },
        {
            "event": "batch",
            "query": "orders",
            "batch": 5,
            "rows": 0,
            "sinks": {"out": 0},
            "dead": 2,
            "late": 1,
            "repeated": False,
            "doubles": 0,
            "refused": {"out": 2},
            "reasons": {"out": "not XML"},
            "seconds": 0.0,
        },
    ]
    assert (total["rows orders"], total["dead"], total["late"]) == (7, 3, 1)
    assert "holdfast_pipeline_dead_rows_total" in {
        s.name for m in collector.collect() for s in m.samples if s.value == 3
    }
    # each message once, though a step with state reads it as well
    assert _messages(total, {"orders": "orders", "hourly": "orders", "other": "returns"}) == 7


@pytest.mark.parametrize(("sent", "code"), [(0, 1), (1, 0)])
def test_a_run_fails_if_the_server_has_accepted_no_row_of_a_sink(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sent: int, code: int
) -> None:
    counts: dict[str, Any] = {"dead": 1970, "late": 0, "repeated": False}
    refused = {"refused": {"first": 1970}, "reasons": {"first": "the queue 'frist' does not exist"}}
    batch = MediatedBatch("incoming", 0, 1970 + sent, {"first": sent, "others": 0}, **counts, **refused)

    def run(*_: Any, on_batch: Callable[[MediatedBatch], None], **__: Any) -> Any:
        on_batch(batch)
        queries: dict[str, Any] = {}
        return SimpleNamespace(queries=queries, wait=lambda seconds: True, settle=lambda away: {})

    monkeypatch.setattr("holdfast.pipeline.mediation.execution.run.run", run)
    monkeypatch.setattr(mediation_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(mediation_job, "_reached", lambda plan, *_: plan)
    monkeypatch.setattr(mediation_job, "hear", lambda _: None)
    assert (holdfast(monkeypatch, "run", str(EXAMPLE), "--set", "work=/w") or 0) == code
    out, err = capsys.readouterr()
    told = f"{sent} to first, 0 to others, 1,970 dead letters, 1,970 of first refused by the server (the queue 'frist'"
    assert told in out.splitlines()[0]
    assert out.splitlines()[-1].endswith("1,970 of first refused by the server")
    if code:
        assert "accepted no row of the sink first, and refused 1,970 rows: the queue 'frist' does not exist" in err
        assert "dead letters in /w/dead" in err


@pytest.fixture
def misspelt(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the example's file, for the server, with some texts replaced."""
    monkeypatch.setattr(mediation_job, "_syntax_mistakes", lambda said: [])
    for name in ("orders", "first", "others"):
        server.create(name)

    def write(*replaced: tuple[str, str]) -> Path:
        file = tmp_path / "orders.toml"
        text = EXAMPLE.read_text().replace("http://127.0.0.1:8081", server.url)
        for old, new in replaced:
            text = text.replace(old, new)
        file.write_text(text)
        for name in ("customers.csv", "order.xsd"):
            (tmp_path / name).write_bytes((EXAMPLE.parent / name).read_bytes())
        return file

    return write


_MISSPELT = [
    (('queue = "first"', 'queue = "frist"'), "sinks.first.queue", "'frist'; did you mean 'first'"),
    (('queue = "orders"', 'queue = "ordres"'), "sources.incoming.queue", "'ordres'; did you mean 'orders'"),
]


@pytest.mark.parametrize(("replaced", "key", "told"), _MISSPELT)
@pytest.mark.parametrize("command", [["check"], ["check", "--dry-run"], ["run"]])
def test_a_misspelt_queue_is_a_mistake_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    misspelt: Callable[..., Path],
    command: list[str],
    replaced: tuple[str, str],
    key: str,
    told: str,
) -> None:
    monkeypatch.setattr(mediation_job, "command_session", None)
    file = misspelt(replaced)
    assert holdfast(monkeypatch, *command, str(file)) == 1
    err = capsys.readouterr().err
    name, nearest = told.split("; did you mean ")
    assert f"has no queue {name}" in err
    assert f"id you mean {nearest}?" in err
    assert command != ["check"] or f"{key}: " in err


def test_check_reports_a_server_that_does_not_answer_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: FakeServer,
    misspelt: Callable[..., Path],
) -> None:
    file = misspelt(_MISSPELT[0][0])
    server.stop()
    assert not holdfast(monkeypatch, "check", str(file))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"holdfast: some queues were not checked: the server at {server.url} does not answer")
    server.start()
    server.token = "other"
    assert not holdfast(monkeypatch, "check", str(file))
    assert "answered 401" in capsys.readouterr().err


class Running:
    """Stands for a pipeline that runs: its first batch has rows, and its metrics are scraped before it ends.

    Args:
        on_batch: Is given the batch.
        told: Gives what the command has printed to standard error since the last call.
    """

    batch = MediatedBatch("incoming", 0, 5, {"first": 3, "others": 1}, dead=1, late=2, repeated=False)

    def __init__(self, on_batch: Callable[[MediatedBatch], None], told: Callable[[], str]) -> None:
        offsets = {"startOffset": 0, "endOffset": 5, "latestOffset": 12}
        source = {name: json.dumps({"orders": {"0": at}}) for name, at in offsets.items()}
        self.queries = {"incoming": SimpleNamespace(lastProgress={"sources": [source]})}
        self.scraped = ""
        self._on_batch, self._told = on_batch, told
        self._waits = 0

    def wait(self, seconds: float) -> bool:
        self._waits += 1
        if self._waits == 1:
            self._on_batch(self.batch)
        if self._waits == 2:
            address = self._told().splitlines()[0].removeprefix("metrics at ")
            with urllib.request.urlopen(address, timeout=60) as answer:
                self.scraped = answer.read().decode()
        return self._waits == 3

    def settle(self, away: float) -> dict[str, Any]:
        return {"incoming": {"orders": [5]}}


def test_a_run_serves_its_rows_and_lag_and_its_last_line_has_its_sums(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Running] = []
    printed = ""

    def told() -> str:
        nonlocal printed
        out, err = capsys.readouterr()
        printed += out
        return err

    def run(*_: Any, on_batch: Callable[[MediatedBatch], None], **__: Any) -> Running:
        made.append(Running(on_batch, told))
        return made[0]

    monkeypatch.setattr("holdfast.pipeline.mediation.execution.run.run", run)
    monkeypatch.setattr(mediation_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(mediation_job, "_reached", lambda plan, *_: plan)
    monkeypatch.setattr(mediation_job, "hear", lambda _: None)
    assert holdfast(monkeypatch, "run", str(EXAMPLE), "--json", "--metrics", "127.0.0.1:0") in (0, None)
    lines = made[0].scraped.splitlines()
    assert 'holdfast_pipeline_rows_read_total{query="incoming"} 5.0' in lines
    assert 'holdfast_pipeline_rows_out_total{query="incoming",sink="first"} 3.0' in lines
    assert 'holdfast_pipeline_late_rows_total{query="incoming"} 2.0' in lines
    assert 'holdfast_pipeline_lag_records{query="incoming",queue="orders"} 7.0' in lines
    told()
    assert json.loads(printed.splitlines()[-1]) == {
        "event": "end",
        "rows": 5,
        "dead": 1,
        "late": 2,
        "doubles": 0,
        "refused": {},
        "cursors": {"incoming": {"orders": [5]}},
    }
