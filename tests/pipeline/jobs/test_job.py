"""Commands that run on Spark: what they print when Spark or Java fails, and how they end.

Covers pipeline/jobs/command.py and pipeline/jobs/grid.py.
"""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.jobs import grid as grid_job
from holdfast.pipeline.jobs.audit import _audit
from holdfast.pipeline.jobs.command import _told, failure, in_a_sentence, sentence, tell_of_flags
from holdfast.pipeline.jobs.grid import run_grid
from holdfast.pipeline.jobs.land import land_command
from holdfast.pipeline.jobs.reassemble import _reassemble
from holdfast.pipeline.simulation.grid import parse_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_a_java_process_that_is_gone_is_a_sentence(error: Exception):
    with (
        pytest.raises(HoldfastError, match="Spark's Java process has ended") as caught,
        in_a_sentence("what is landed is safe"),
    ):
        raise error
    assert "what is landed is safe" in caught.value.remedy


def test_what_spark_refuses_is_a_sentence():
    with (
        pytest.raises(HoldfastError, match=r"\[PARSE_SYNTAX_ERROR\] near 'INTT'") as caught,
        in_a_sentence("what is landed is safe"),
    ):
        raise PySparkException("[PARSE_SYNTAX_ERROR] near 'INTT'\nand a page of SQL")
    assert str(caught.value) == "[PARSE_SYNTAX_ERROR] near 'INTT'\n  what is landed is safe"


def test_a_command_prints_sparks_standard_error_without_chatter_and_stack_traces():
    said = b"""WARNING: Using incubator modules: jdk.incubator.vector
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Starting Streaming TransformWithStateInPandas Python worker.

Traceback (most recent call last):
  File "pyspark/daemon.py", line 264, in manager
BrokenPipeError: [Errno 32] Broken pipe

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "pyspark/daemon.py", line 270, in manager
EOFError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "pyspark/worker.py", line 9, in main
OSError: gone
java.lang.OutOfMemoryError: Java heap space
Exception in thread "stream execution thread for reassemble [id = 7]" java.lang.StackOverflowError
\tat java.base/java.util.regex.Pattern$Loop.match(Pattern.java:4870)
\t... 12 more
the stream goes on where reader r of queue orders stood
"""
    assert b"".join(_told(said.splitlines(keepends=True))) == (
        b"java.lang.OutOfMemoryError: Java heap space\nthe stream goes on where reader r of queue orders stood\n"
    )


def test_tracebacks_that_several_workers_print_at_the_same_time_are_omitted():
    """A worker that is killed does not finish its own."""
    chance = random.Random(3)
    of_java = [
        b"java.lang.OutOfMemoryError: Java heap space\n",
        b"org.apache.spark.SparkException: no\n",
        b'Exception in thread "main" java.lang.Error: no\n',
        b"OpenJDK 64-Bit Server VM warning: no\n",
        b"# There is insufficient memory\n",
        b"26/11/30 20:00:00 ERROR Executor: no\n",
    ]
    ends = ["E: no\n", "KeyboardInterrupt\n", "holdfast.client.errors.ServerAway: no\n"]
    for _ in range(50):
        workers = [
            [
                f"Traceback of {one}\n",
                *[f'  File "{one}.py", line 7, in main\n', "    main()\n", "    ^^\n"] * 2,
                chance.choice(ends),
            ]
            for one in range(chance.randint(1, 4))
        ]
        for lines in workers:
            if chance.random() < 0.3:
                del lines[chance.randint(1, len(lines) - 1) :]
        order = [one for one, lines in enumerate(workers) for _ in lines]
        chance.shuffle(order)
        said = [workers[one].pop(0).encode() for one in order]
        shown = chance.choice(of_java)
        said.insert(chance.randint(0, len(said)), shown)
        shown_last = chance.choice(of_java)
        assert list(_told([b"before\n", *said, shown_last])) == [b"before\n", shown, shown_last], said


def test_a_second_run_with_one_checkpoint_is_not_told_to_start_again():
    text = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 4."
    with pytest.raises(HoldfastError, match="another process runs with the same checkpoint") as caught:
        raise failure(
            f"[STREAM_FAILED] Query [id = 7] terminated with exception: {text}", "rows are safe", "start again"
        )
    remedy = "rows are safe. Run only one at a time: before you start this one again, stop the other"
    assert caught.value.remedy == remedy


class JavaError(Py4JJavaError):
    """What py4j raises of an exception that PySpark has no class for, with the text that the JVM gives it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def test_an_exception_of_java_is_its_first_cause():
    text = (
        "An error occurred while calling o5382.save.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Task 0 in stage 65.0 failed 1 times, most recent failure: java.io.IOException: No space left\n"
        "\tat org.apache.hadoop.fs.FileSystem.create(FileSystem.java:1234)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base/java.lang.Thread.run\n"
    )
    with pytest.raises(HoldfastError) as caught, in_a_sentence("audit again"):
        raise JavaError(text)
    assert str(caught.value) == "java.io.IOException: No space left on device\n  audit again"


@pytest.mark.spark
def test_an_unwritable_place_for_tables_is_reported_before_any_computation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grid_job, "command_session", lambda *_given, **_settings: contextlib.nullcontext(spark))
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "out")
    for run in (
        lambda: _reassemble(spark, {"capture": ["nowhere"], "column": None, "out": out}),
        lambda: _audit(spark, ("nowhere",), {}, out, "delta", None),
        lambda: run_grid(parse_grid(["loss=0"]), out, None, None),
    ):
        with pytest.raises(ConfigurationError, match=r"file/out/.* cannot be written"):
            run()


@pytest.mark.parametrize("error", [HoldfastError("ours"), RuntimeError("a mistake")])
def test_any_other_error_of_a_run_is_reported_unchanged(error: Exception):
    with pytest.raises(type(error), match=str(error)) as caught, in_a_sentence("what is landed is safe"):
        raise error
    assert caught.value is error


def test_holdfasts_own_error_is_taken_from_a_failed_querys_report():
    report = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "holdfast.client.errors.ServerAway: the server at http://b does not answer (tried for 60 s)\n"
        "  nothing is lost: start the server\n"
        "\tat org.apache.spark.Something(Something.scala:1)"
    )
    expected = "the server at http://b does not answer (tried for 60 s)\n  nothing is lost: start the server"
    assert sentence(report) == expected
    assert sentence("one\ntwo") == "one"
    ended = "[STREAM_FAILED] Query [id = 7, runId = 5] terminated with exception: java.io.IOException: No space left"
    assert sentence(f"{ended} SQLSTATE: XXKST\n=== Streaming Query ===\n") == "java.io.IOException: No space left"


REPORT = """[STREAM_FAILED] Query [id = 7, runId = 5] terminated with exception: Traceback (most recent call last):
  File "py4j/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o146.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure.
\tat org.apache.spark.Something(Something.scala:1)
Caused by: java.io.IOException: No space left on device
\t... 43 more
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Current Committed Offsets: {org.apache.PythonMicroBatchStream@9: {"v": 1, "queue": "q", "epoch": "e", "0": 10, "1": 4}}
Current Available Offsets: {org.apache.PythonMicroBatchStream@9: {"v": 1, "queue": "q", "epoch": "e", "0": 20, "1": 4}}
"""


def test_a_failed_batch_is_reported_with_its_offsets_and_the_root_cause():
    expected = "the batch of partition 0 offsets 10 to 20 failed: java.io.IOException: No space left on device"
    assert sentence(REPORT) == expected
    first = REPORT.replace(
        '{org.apache.PythonMicroBatchStream@9: {"v": 1, "queue": "q", "epoch": "e", "0": 10, "1": 4}}', "{}"
    )
    assert sentence(first).startswith(
        "the batch of partition 0 offsets its first to 20, partition 1 offsets its first to 4 failed"
    )
    python = "x.PythonException: An exception was thrown from the Python worker:\n  File\nMemoryError: none left\n"
    assert sentence(python) == "MemoryError: none left"


def test_flagged_rows_are_reported_with_the_next_step(capsys: pytest.CaptureFixture[str]):
    tell_of_flags(0, 9, "landed")
    assert capsys.readouterr().err == ""
    tell_of_flags(2, 9, "landed")
    told = capsys.readouterr().err
    assert told.startswith("holdfast: 2 of 9 rows in landed are flagged: corrupt_record contains the reason\n")
    assert "holdfast reland" in told


def test_two_schemas_are_refused(tmp_path: Path):
    (tmp_path / "file").write_text("id INT")
    both = ["--schema", "id INT", "--schema-file", str(tmp_path / "file")]
    result = CliRunner().invoke(land_command, ["--broker", "http://b", "--out", "o", "--checkpoint", "c", *both])
    assert result.exit_code == 2
    assert "--schema and --schema-file exclude each other" in result.output


_WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from holdfast.cli.main import main; main()"
_COMMANDS = [
    ["land", "--broker", "http://b", "--checkpoint", "c", "--out", "o"],
    ["reland", "--landed", "l", "--out", "o"],
    ["compact", "--out", "o"],
    ["convert", "o"],
    ["reassemble", "FILE", "--out", "o"],
    ["audit", "."],
    ["pipeline", "run", "FILE"],
    ["pipeline", "check", "FILE"],
    ["simulate", "--grid", "loss=0", "--out", "o"],
]


@pytest.mark.every(3)
@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_without_spark_a_command_shows_its_options_and_names_what_to_install(command: list[str], tmp_path: Path):
    (tmp_path / "FILE").write_text("")
    python = [sys.executable, "-c", _WITHOUT_SPARK]
    shown = subprocess.run([*python, command[0], "--help"], capture_output=True, text=True, check=True)
    assert f"holdfast {command[0]} " in shown.stdout
    done = subprocess.run([*python, *command], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert re.match(
        r"holdfast: (the pipeline|this command) needs pyspark.*\n  pip install 'holdfast\[spark\]'\n$", done.stderr
    )
