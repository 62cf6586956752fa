"""The scripts of bench/, run as their users run them, as small as can be: that they measure, not what comes out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import maven_build
import pytest
from databases import find_program

BENCH = Path(__file__).parents[2] / "bench"


def run(*words: str) -> Any:
    """What a script prints as JSON."""
    done = subprocess.run(
        [sys.executable, str(BENCH / words[0]), *words[1:], "--json"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_the_comparison_gives_units_rates_and_quantiles_of_each_system(tmp_path: Path) -> None:
    told = run(
        *("broker.py", "--systems", "broker", "forwarded", "--connections", "2", "--bodies", "100"),
        *("--rounds", "1", "--seconds", "0.3", "--warmup", "0.2", "--moderate", "0.2", "--directory", str(tmp_path)),
    )
    rows = {row["system"]: row for row in told["rows"]}
    assert list(rows) == ["append+sync", "bare", "broker", "forwarded"]
    assert rows["bare"]["units"] == 1.0
    for row in (rows["bare"], rows["broker"], rows["forwarded"]):
        assert row["requests"] > 0
        assert 0 < row["p50"] <= row["p90"] <= row["p99"] <= row["p999"] <= row["longest"]
        assert row["moderate"]["rate"] < row["rate"]


def test_a_destination_that_drops_early_messages_is_measured_beside_a_window_of_one() -> None:
    (row,) = run("overtaking.py", "--pauses", "2", "--messages", "60", "--rounds", "1")
    assert row["pause_ms"] == 2.0
    assert row["window_1"] > 0 and row["default"] > 0 and row["ratio"] > 0
    assert 0 < row["repeats"] < 1, "messages overtake each other, and the server drops them"


@pytest.mark.nightly
def test_calls_through_a_broker_are_measured_beside_direct_ones() -> None:
    told = run("calls.py", "--clients", "source", "--rounds", "1", "--calls", "20", "--warmup", "5")
    (row,) = told["rows"]
    assert row["client"] == "source" and row["direct_ms"] > 0 and row["broker_ms"] > 0
    assert row["ratios"] == [row["ratio"]] and len(told["load"]) == 2


@pytest.mark.nightly
def test_a_source_starts_on_what_waits_and_drains_it(tmp_path: Path) -> None:
    told = run("waiting.py", "--messages", "2000", "--directory", str(tmp_path))
    assert [(one["messages"], one["start"]["waiting"]) for one in told] == [(10_000, 10_000), (2000, 2000)]
    assert all(one["drain"]["messages/s"] > 0 for one in told)


@pytest.mark.nightly
def test_a_backlog_is_written_served_and_read_back_to_the_last_message(tmp_path: Path) -> None:
    told = run("backlog.py", "--messages", "2000", "--seconds", "0.2", "--directory", str(tmp_path))
    assert [row["messages"] for row in told["sizes"]] == [0, 200, 2000]
    for row in told["sizes"]:
        assert 0 < row["up_seconds"] <= row["first_acknowledged_seconds"]
        assert 0 < row["started"]["anonymous"] <= row["started"]["resident"] <= row["loaded"]["most"]
    assert told["sizes"][2]["written"]["rate"] > 0
    waiting = {read["messages"] for how, read in told["reads"].items() if how != "RocksDB's iterator"}
    assert len(waiting) == 1, "what is there is read each way"
    assert waiting.pop() > 2000, "with what came while it was served"
    assert not list(tmp_path.iterdir())


def test_paced_requests_come_at_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    """However slow the machine is: what was not answered in time is counted, not left out."""
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, str(BENCH / "bare.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bare:
        assert bare.stdin is not None and bare.stdout is not None
        url = f"http://127.0.0.1:{int(bare.stdout.readline())}/"
        words = (
            "--plain",
            "--connections",
            "4",
            "--rate",
            "40",
            "--seconds",
            "1",
            "--warmup",
            "0",
            "--pid",
            str(bare.pid),
        )
        told = run("load.py", "--url", url, *words)
        bare.stdin.close()
    # What was due while nobody looked is sent later: no more than came due since the process began.
    assert 1 <= told["requests"] <= 40 * (time.monotonic() - begun) + 4
    assert told["errors"] == {}
    assert told["server_cpu_us"] is not None


def test_processor_time_counts_a_process_and_all_that_it_started() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from load import cpu_seconds
    finally:
        sys.path.remove(str(BENCH))
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds([process.pid]) >= 0.29
        process.stdin.close()
    assert cpu_seconds([process.pid]) == pytest.approx(0.0)


@pytest.mark.nightly
def test_workers_are_measured_beside_one_process(tmp_path: Path) -> None:
    words = ("--workers", "1", "2", "--connections", "4", "--rounds", "1", "--seconds", "0.3")
    done = subprocess.run(
        [sys.executable, str(BENCH / "workers.py"), *words], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["1", "given"], ["2", "given"], ["2", "passed"]]
    assert all(float(row[2].replace(",", "")) > 0 and row[-1] == "0" for row in rows), done.stdout


@pytest.mark.nightly
@pytest.mark.skipif(find_program("initdb") is None, reason="no initdb here: apt-get install postgresql")
def test_a_cluster_is_measured_at_work_and_while_a_partition_has_no_owner() -> None:
    told = run("cluster.py", "--rounds", "1", "--seconds", "0.5", "--connections", "2", "--leases", "1")
    assert [row["system"] for row in told["cost"]] == ["embedded", "alone", "cluster", "passed on"]
    assert told["cost"][0]["ratio"] == 1.0
    assert all(row["rate"] > 0 and row["ratio"] > 0 for row in told["cost"])
    assert [row["trouble"] for row in told["gap"]] == ["killed", "paused", "moved", "ended", "drained"]
    assert all(0 < row["median_s"] <= row["longest_s"] for row in told["gap"])


@pytest.mark.nightly
@pytest.mark.skipif(maven_build.available() is not None, reason=maven_build.available() or "")
def test_a_cluster_on_kafka_is_measured_too() -> None:
    told = run(
        *("cluster.py", "--engine", "kafka", "--rounds", "1", "--seconds", "0.5", "--connections", "2"),
        *("--leases", "2", "--troubles", "moved", "--megabytes", "5"),
    )
    assert [row["system"] for row in told["cost"]] == ["embedded", "alone", "cluster", "passed on"]
    assert [row["trouble"] for row in told["gap"]] == ["moved"]
    assert told["rebuild"][0]["mb_per_s"] > 0


def test_the_capacity_page_has_what_the_model_prints() -> None:
    """Record it again: python bench/cluster_capacity.py > docs/internals/runs/cluster-capacity.txt"""
    recorded = (BENCH.parent / "docs" / "internals" / "runs" / "cluster-capacity.txt").read_text(encoding="utf-8")
    told = capacity("--nodes", "3", "--sequences", "1000")
    assert told.partition("3 nodes, 24")[0] == recorded.partition("50 nodes, ")[0]


@pytest.mark.nightly
def test_the_capacity_page_has_what_the_simulation_prints() -> None:
    recorded = (BENCH.parent / "docs" / "internals" / "runs" / "cluster-capacity.txt").read_text(encoding="utf-8")
    assert capacity() == recorded


def capacity(*words: str) -> str:
    program = [sys.executable, str(BENCH / "cluster_capacity.py"), *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=550, check=True).stdout
