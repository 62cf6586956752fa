"""The source and the sink from a client of Spark Connect, whose server is a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_server import FakeServer, record
from quick_spark import QUICK_JAVA

from holdfast.pipeline.spark.java import java_home

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="needs grpcio-status: pyspark[connect]"),
]

CHILD = Path(__file__).parents[2] / "support" / "connect_child.py"
ENVIRON = {
    "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
    "PYSPARK_PYTHON": sys.executable,
    "JAVA_TOOL_OPTIONS": QUICK_JAVA,
}


def test_source_and_sink_work_under_spark_connect_without_registration(server: FakeServer, tmp_path: Path) -> None:
    server.create("in")
    server.append("in", 0, [record(number) for number in range(5)])
    until = time.monotonic() + 300
    while True:  # Spark gives a source's process ten seconds to start, whatever else the machine does
        environ = {**os.environ, **ENVIRON, "JAVA_HOME": str(java_home())}
        with (tmp_path / "log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), server.url, str(tmp_path)],
                cwd=tmp_path, env=environ, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            code = child.wait(800)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # the server that it started
            except ProcessLookupError:
                pass
        if code == 0 or "failed to connect back" not in (tmp_path / "log").read_text() or time.monotonic() > until:
            break
    assert code == 0, (tmp_path / "log").read_text()[-6000:]
    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["read"], said["refused"]) == (5, [4])
    bodies = [record(number).body.decode() for number in range(5)]
    assert server.sinks[said["query"]].bodies == bodies
    assert server.sinks["each"].bodies == bodies
    (once,) = (sink for name, sink in server.sinks.sinks.items() if name.startswith("once-"))
    assert once.bodies == [f"<n>{number}</n>" for number in (0, 1, 2, 3, 5)]
