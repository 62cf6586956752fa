"""A reassembling stream as a process that is killed at any moment and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captured import Captured, Key, outcomes, wild_capture
from processes import signal_session
from quick_spark import QUICK_JAVA

from holdfast.pipeline.reassembly.rows import CAPTURE
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch

PATIENCE = 240.0


class Job:
    """``holdfast reassemble --stream``, one process after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.captured = directory / "captured"
        self.captured.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, output: IO[bytes], *more: str) -> None:
        command = [sys.executable, "-m", "holdfast.cli.main", "reassemble", str(self.captured), "--column", "content"]
        command += ["--stream", "--out", str(self.directory / "out"), "--master", "local[2]", "--timeout", "36000"]
        command += ["--checkpoint", str(self.directory / "checkpoint"), "--json", *more]
        source = str(Path(__file__).parents[3] / "src")
        java = f"{QUICK_JAVA} -Xmx600m"
        environ = {**os.environ, "PYTHONPATH": source, "PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": java}
        self.process = subprocess.Popen(command, stdout=output, env=environ, start_new_session=True)

    def put(self, number: int, capture: Iterable[Captured]) -> None:
        table = pa.Table.from_batches([record_batch([one.row for one in capture], arrow_schema(CAPTURE))])
        beside = self.directory / "being-written"
        pq.write_table(table, beside)
        os.utime(beside, (1_700_000_000 + number, 1_700_000_000 + number))
        beside.rename(self.captured / f"{number:03}.parquet")

    def until(self, is_so: Callable[[], bool]) -> None:
        assert self.process is not None
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert self.process.poll() is None and time.monotonic() < end
            time.sleep(0.01)

    def has(self, log: str, batch: int) -> bool:
        """Whether Spark has written that batch into its log of offsets or of commits."""
        return (self.directory / "checkpoint" / log / str(batch)).exists()

    def kill(self) -> None:
        assert self.process is not None
        signal_session(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.nightly
def test_killed_in_its_batches_a_stream_loses_and_doubles_nothing(tmp_path: Path) -> None:
    capture = wild_capture(21, size=200)
    job = Job(tmp_path)
    with (tmp_path / "printed").open("wb") as output:
        job.put(0, capture[:80])
        job.start(output)
        job.until(lambda: job.has("offsets", 0))
        job.kill()
        job.start(output, "--interval", "0")
        job.until(lambda: job.has("commits", 0))
        job.put(1, capture[80:160])
        written = tmp_path / "out"
        job.until(
            lambda: len([*written.glob("_delta_log/*.json")]) > 2 or len([*written.glob("rows/*/*/_temporary")]) > 0
        )
        job.kill()
        job.put(2, capture[160:])
        job.start(output, "--available-now")
        assert job.process is not None
        assert job.process.wait(PATIENCE) == 1  # of so wild a capture something is missing
    last = json.loads((tmp_path / "printed").read_text().splitlines()[-1])
    expected = outcomes(capture)
    assert (last["event"], last["sequences"]) == ("end", len(expected))
    assert last["seen"] == sum(one.seen for one in expected.values())
    assert last["messages"] == sum(len(one.first) for one in expected.values())
    rows = deltalake.DeltaTable(str(written)).to_pyarrow_table().to_pylist()
    given: dict[Key, list[tuple[int, bytes]]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "message" and not row["marker"]:
            given[row["sequence"], row["rm"]].append((row["message_number"], row["body"].encode()))
    for key, one in expected.items():
        first_gap = next(number for number in range(1, 1_000) if number not in one.first)
        assert sorted(given[key]) == [(number, body) for number, body in one.messages if number < first_gap]
